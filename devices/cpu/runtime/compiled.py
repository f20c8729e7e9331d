"""The native part of the worker pool, compiled: its code, and its functions in memory."""

from __future__ import annotations

from typing import Any, NamedTuple

from trireme.devices.cpu.codegen.ahead import CompileAhead
from trireme.devices.cpu.codegen.jit import Jit
from trireme.devices.cpu.codegen.kernel_cache import Code, code_of
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.runtime import native as runtime
from trireme.devices.cpu.runtime.pool import HOT_NS
from trireme.devices.cpu.runtime.workers import Native


class RuntimeCode(NamedTuple):
    """The code, and the names of its functions in the order that `Native` takes them."""

    code: Code
    functions: tuple[str, ...]


def runtime_code(jit: Jit, futex: bool) -> RuntimeCode:
    """Return the code of native.py; functions of a server are there where there is a futex."""
    more = runtime.SERVER_FUNCTIONS if futex else ()
    return RuntimeCode(jit.recipes.kernel(_runtime, futex, HOT_NS), (*runtime.FUNCTIONS, *more))


class LaterNative(Native):
    """The functions of native.py, compiled with the first kernels, or when one is first called."""

    def __init__(self, jit: Jit, futex: bool) -> None:
        self._jit, self._futex = jit, futex

    def begin(self, ahead: CompileAhead) -> None:
        """Have the code compiled with kernels, where it was not compiled before."""
        if not self._is_loaded:
            ahead.begin(runtime_code(self._jit, self._futex).code)

    def load(self, ahead: CompileAhead | None = None) -> None:
        """Have the functions. ahead: what `begin` was called with"""
        if not self._is_loaded:
            code, names = runtime_code(self._jit, self._futex)
            made = Native(self._jit.functions(code, names, ahead), self._jit)
            vars(self).update(vars(made))  # at once: another thread finds all of them or none

    @property
    def _is_loaded(self) -> bool:
        return "run" in vars(self)

    def __getattr__(self, name: str) -> Any:
        """Return a function; called while there are none."""
        if name.startswith("__") or self._is_loaded:
            raise AttributeError(name)
        self.load()
        return getattr(self, name)


def _runtime(isa: Isa, futex: bool, hot_ns: int) -> Code:
    return code_of("runtime", runtime.runtime_ir(futex, hot_ns))
