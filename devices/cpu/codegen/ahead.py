"""Kernels that threads compile, from when their IR is written.

Lowering a graph is Python, and LLVM runs beside Python: a kernel does not wait until the last one
is lowered. A `CompileAhead` serves one compilation: `begin` gives it kernels, `take` waits for the
object code of one, and the end of the block ends the threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from trireme.devices.cpu.codegen.kernel_cache import Code, KernelCache
from trireme.devices.cpu.codegen.target import Isa


class CompileAhead:
    """The kernels that were begun, and the threads that compile them.

    recipes: has the IR of kernels that were written and not compiled
    threads: how many compile at once
    """

    def __init__(self, isa: Isa, recipes: KernelCache, threads: int) -> None:
        self._isa, self._recipes, self._most = isa, recipes, threads
        self._begun: dict[str, Future[bytes]] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._make: Callable[[Code, str], bytes] | None = None

    def begin(self, code: Code) -> None:
        """Compile a kernel from now on, if its IR was just written; else it has object code."""
        text = self._recipes.waiting_text(code)
        if text is not None:
            self._submit(code, text)

    def begin_all(self, codes: Sequence[Code]) -> None:
        """Compile those of the kernels that were not begun; the longest begin first."""
        left = [(code, self._recipes.text_of(code)) for code in codes if not self.has(code)]
        for code, text in sorted(left, key=lambda one: len(one[1]), reverse=True):
            self._submit(code, text)

    def has(self, code: Code) -> bool:
        """Whether a kernel was begun and not taken."""
        return code.digest in self._begun

    def take(self, code: Code) -> bytes:
        """Return the object code of a kernel that was begun, when it is there.

        Errors: CompileError, if LLVM refuses the kernel
        """
        return self._begun.pop(code.digest).result()

    def _submit(self, code: Code, text: str) -> None:
        if self._threads is None or self._make is None:
            from trireme.devices.cpu.codegen import emit

            self._threads = ThreadPoolExecutor(self._most, "trireme-compile")
            self._make = emit.maker(self._isa)
        self._begun[code.digest] = self._threads.submit(self._make, code, text)

    def __enter__(self) -> CompileAhead:
        """Return this."""
        return self

    def __exit__(self, *error: Any) -> None:
        """End the threads; what has not begun to compile is left."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
