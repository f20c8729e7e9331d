"""LLVM's calls that turn IR into object code, past llvmlite's lock.

llvmlite lets one thread into LLVM at a time. LLVM needs that lock only for shared objects, and
kernels share nothing: each has a context of its own, each thread a target machine. The long calls
(passes, emitting machine code) give Python's lock away, so that kernels are compiled side by side
and beside Python. The short ones keep it: to get it back from a thread that computes in Python
takes 5 ms, longer than they do. Two threads compile 1.9 times as fast as one.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm

from trireme.support.errors import CompileError

ObjectOf = Callable[[str, Any, Any, Any], bytes]
"""Object code of IR: (text, target machine, passes, pass builder)."""


@functools.cache
def past_the_lock() -> ObjectOf | None:
    """Return what makes object code past llvmlite's lock; None if it is not as expected here.

    It raises CompileError, if LLVM refuses the IR.
    """
    try:
        return _object_of(llvm.ffi.lib)
    except (AttributeError, OSError):
        return None


def _object_of(lib: Any) -> ObjectOf:
    keeps, gives = ctypes.PyDLL(lib._name), ctypes.CDLL(lib._name)

    def call(of: ctypes.CDLL, name: str) -> Any:
        locked, found = getattr(lib, name), getattr(of, name)
        found.argtypes, found.restype = locked.argtypes, locked.restype
        return found

    new_context = call(keeps, "LLVMPY_ContextCreate")
    parse = call(keeps, "LLVMPY_ParseAssembly")
    verify = call(keeps, "LLVMPY_VerifyModule")
    run = call(gives, "LLVMPY_RunNewModulePassManager")
    emit = call(gives, "LLVMPY_TargetMachineEmitToMemory")
    start = call(keeps, "LLVMPY_GetBufferStart")
    size = call(keeps, "LLVMPY_GetBufferSize")
    drop_buffer = call(keeps, "LLVMPY_DisposeMemoryBuffer")
    drop_module = call(keeps, "LLVMPY_DisposeModule")
    drop_context = call(keeps, "LLVMPY_ContextDispose")

    def object_of(text: str, machine: Any, passes: Any, builder: Any) -> bytes:
        context, module = new_context(), None
        try:
            with llvm.ffi.OutputString() as error:
                module = parse(context, text.encode(), error)
                if not module or error:
                    raise CompileError(f"cpu: LLVM refused a kernel: {error}")
            with llvm.ffi.OutputString() as error:
                if verify(module, error):
                    raise CompileError(f"cpu: LLVM refused a kernel: {error}")
            run(passes, module, builder)
            with llvm.ffi.OutputString() as error:
                buffer = emit(machine, module, 1, error)
                if not buffer:
                    raise CompileError(f"cpu: LLVM cannot emit a kernel: {error}")
            data = ctypes.string_at(start(buffer), size(buffer))
            drop_buffer(buffer)
            return data
        finally:
            if module:
                drop_module(module)
            drop_context(context)

    return object_of
