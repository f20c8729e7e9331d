"""From kernels as IR text to object code: LLVM's part, several kernels at once.

llvmlite lets one thread into LLVM at a time. LLVM needs that only for what is shared, and kernels
share nothing: each has a context of its own, each thread a target machine. So the longest part,
emitting machine code (three quarters of the time), is called past llvmlite's lock: two threads
compile 1.9 times as fast as one.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import local
from typing import Any

import llvmlite.binding as llvm

from trireme.devices.cpu.target import Isa, llvm_target, start_llvm
from trireme.errors import CompileError

Emit = Callable[[Any, Any], bytes]


@dataclass(frozen=True)
class Code:
    """A kernel as IR text that defines `@name` once."""

    name: str
    text: str

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def symbol(self) -> str:
        """The name in the object file: the kernel's name and part of the digest, which tells apart
        kernels of one name.
        """
        return f"{self.name}.{self.digest[:16]}"


def objects(isa: Isa, kernels: Sequence[Code], threads: int) -> Iterator[bytes]:
    """Yield the object file of each kernel, in order, as several threads make them.

    Errors: CompileError, if LLVM refuses a kernel
    """
    own, emit = local(), _emitter()

    def make(kernel: Code) -> bytes:
        if not hasattr(own, "machine"):
            own.machine = machine_for(isa)
        return emit(own.machine, optimised(module_text(isa, kernel), own.machine))

    if threads == 1 or len(kernels) < 2:
        yield from map(make, kernels)
        return
    with ThreadPoolExecutor(min(threads, len(kernels)), "trireme-compile") as pool:
        yield from pool.map(make, kernels)


def module_text(isa: Isa, kernel: Code) -> str:
    """Return the IR of a module of one kernel, under its symbol."""
    bits = isa.vector_bits
    function = kernel.text.replace(f"@{kernel.name}(", f'@"{kernel.symbol}"(')
    return (
        f"{function}\n"
        f'attributes #0 = {{ nounwind "min-legal-vector-width"="{bits}" '
        f'"prefer-vector-width"="{bits}" }}\n'
    )


def machine_for(isa: Isa) -> Any:
    """Return a new target machine for the instruction set."""
    start_llvm()
    cpu, features = llvm_target(isa)
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=cpu, features=features, opt=2, jit=True
    )


def optimised(text: str, machine: Any) -> Any:
    """Parse and optimise IR. Loops are unrolled and vectorised by our generators, so variables in
    registers and combined instructions are all that is asked of LLVM: half the time of -O2, and
    kernels just as fast.
    """
    try:
        module = llvm.parse_assembly(text, llvm.create_context())
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"cpu: LLVM refused a kernel: {error}") from error
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.run(module, builder)
    return module


@functools.cache
def _emitter() -> Emit:
    """Return what emits a module's object code: past the lock, or within it if this llvmlite is
    not as expected.
    """
    lib = llvm.ffi.lib
    try:
        locked = lib.LLVMPY_TargetMachineEmitToMemory
        free = ctypes.CDLL(lib._name).LLVMPY_TargetMachineEmitToMemory
        free.argtypes, free.restype = locked.argtypes, locked.restype
    except (AttributeError, OSError):
        return lambda machine, module: bytes(machine.emit_object(module))

    def emit(machine: Any, module: Any) -> bytes:
        with llvm.ffi.OutputString() as error:
            buffer = free(machine, module, 1, error)
            if not buffer:
                raise CompileError(f"cpu: LLVM cannot emit a kernel: {error}")
        try:
            start, size = lib.LLVMPY_GetBufferStart(buffer), lib.LLVMPY_GetBufferSize(buffer)
            return ctypes.string_at(start, size)
        finally:
            lib.LLVMPY_DisposeMemoryBuffer(buffer)

    return emit
