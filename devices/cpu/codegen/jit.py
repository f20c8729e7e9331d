"""From kernels to addresses of machine code.

A `Jit` serves one instruction set. Object code comes from the cache where the kernel was made
before (kernel_cache.py); all CPUs compile the rest (ahead.py, emit.py). LLVM is loaded to compile
only.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

from trireme.backend.device import Progress, no_progress
from trireme.devices.cpu.codegen.ahead import CompileAhead
from trireme.devices.cpu.codegen.kernel_cache import Code, KernelCache, ObjectCache
from trireme.devices.cpu.codegen.link import Linked, can_link, lay_out
from trireme.devices.cpu.codegen.target import Isa, physical_threads
from trireme.support.errors import CompileError
from trireme.support.forks import register_at_fork

__all__ = ["Code", "Jit", "ObjectCache"]


class Jit:
    """Compiles kernels for one instruction set and keeps their code while it lives."""

    def __init__(self, isa: Isa, cache: ObjectCache | None = None) -> None:
        self.isa = isa
        self.recipes = KernelCache(isa, cache)
        self.reset_after_fork()
        register_at_fork(self)
        self._linked: list[Linked] = []
        self._engine: Any = None
        self._addresses: dict[str, int] = {}

    def reset_after_fork(self) -> None:
        """Be free, in a forked child, of the threads that compiled."""
        self._lock = threading.Lock()

    def addresses(
        self,
        kernels: Iterable[Code],
        progress: Progress = no_progress,
        ahead: CompileAhead | None = None,
    ) -> dict[str, int]:
        """Return the address of each kernel's code, by symbol; compile the unknown ones.

        ahead: has some of them under way
        Errors: CompileError, if LLVM refuses the IR
        """
        with self._lock:
            new = {k.symbol: k for k in kernels if k.symbol not in self._addresses}
            if new:
                self._link(list(new.values()), list(new), progress, ahead)
            return self._addresses

    def ahead(self) -> CompileAhead:
        """Return a block whose kernels are compiled as soon as they are lowered."""
        return CompileAhead(self.isa, self.recipes, physical_threads())

    def functions(
        self, code: Code, names: Sequence[str], ahead: CompileAhead | None = None
    ) -> list[int]:
        """Return where functions begin that a piece of IR defines under names of their own.

        ahead: may have it under way
        """
        with self._lock:
            self._link([code], names, no_progress, ahead)
            return [self._addresses[name] for name in names]

    def kept_objects(self, kernels: Iterable[Code]) -> list[bytes] | None:
        """Return the object file of each kernel, by the cache; None where it lacks one."""
        unique = {kernel.symbol: kernel for kernel in kernels}
        found = [self.recipes.object_of(kernel) for kernel in unique.values()]
        kept = [data for data in found if data is not None]
        return kept if len(kept) == len(found) else None

    def assembly(self, kernel: Code) -> str:
        """Return the machine code of a kernel as text."""
        from trireme.devices.cpu.codegen import emit

        return emit.assembly(self.isa, kernel)

    def _link(
        self,
        kernels: Sequence[Code],
        symbols: Sequence[str],
        progress: Progress,
        ahead: CompileAhead | None,
    ) -> None:
        if ahead is None:
            with self.ahead() as ahead:
                objects = self._objects(kernels, progress, ahead)
        else:
            objects = self._objects(kernels, progress, ahead)
        if all(map(can_link, objects)):
            linked = Linked(lay_out(objects))
            self._linked.append(linked)
            found = {symbol: linked.addresses.get(symbol, 0) for symbol in symbols}
        else:
            found = self._link_by_llvm(objects, symbols)
        for symbol, address in found.items():
            if not address:
                raise CompileError(f"cpu: object code lacks kernel {symbol}")
        self._addresses |= found

    def _link_by_llvm(self, objects: Sequence[bytes], symbols: Sequence[str]) -> dict[str, int]:
        from trireme.devices.cpu.codegen import emit

        if self._engine is None:
            self._engine = emit.engine(self.isa)
        return emit.link(self._engine, objects, symbols)

    def _objects(
        self, kernels: Sequence[Code], progress: Progress, ahead: CompileAhead
    ) -> list[bytes]:
        """Return the object file of every kernel: those on disk first, then those made now."""
        kept = {
            kernel: None if ahead.has(kernel) else self.recipes.object_of(kernel)
            for kernel in kernels
        }
        found = [data for data in kept.values() if data is not None]
        new = [kernel for kernel, data in kept.items() if data is None]
        if not new:
            return found
        ahead.begin_all(new)
        for done, kernel in enumerate(new):
            data = ahead.take(kernel)
            progress("compiling kernels", done + 1, len(new))
            self.recipes.keep(kernel, data)
            found.append(data)
        from trireme.devices.cpu.codegen import emit

        emit.give_back(len(new))
        return found
