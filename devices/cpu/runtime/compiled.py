"""The native part of the worker pool, compiled: its code, and its functions in memory."""

from __future__ import annotations

from typing import NamedTuple

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


def native_of(jit: Jit, futex: bool) -> Native:
    """Return the functions of native.py, compiled."""
    code, names = runtime_code(jit, futex)
    return Native(jit.functions(code, names), jit)


def _runtime(isa: Isa, futex: bool, hot_ns: int) -> Code:
    return code_of("runtime", runtime.runtime_ir(futex, hot_ns))
