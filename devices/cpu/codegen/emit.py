"""Turn the IR text of kernels into object code: LLVM's part."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import re
import sys
from collections.abc import Callable, Sequence
from threading import local
from typing import Any

import llvmlite.binding as llvm

from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_calls import past_the_lock
from trireme.devices.cpu.codegen.target import Isa, llvm_target, start_llvm
from trireme.support.errors import CompileError
from trireme.support.heap import trim_heap

_FEW_KERNELS = 4
"""After so few kernels the compiler's memory stays. The next kernel would fault its pages in again,
which takes 5.5 ms; compiling it takes 3.5 ms."""


def maker(isa: Isa) -> Callable[[Code, str], bytes]:
    """Return what makes the object file of a kernel and its IR; several threads may call it.

    It raises CompileError, if LLVM refuses the kernel.
    """
    own, object_of = local(), past_the_lock()

    def make(kernel: Code, text: str) -> bytes:
        if not hasattr(own, "machine"):
            own.machine = machine_for(isa)
            own.passes = passes_for(own.machine)
        text = module_text(isa, kernel, text)
        if object_of is not None:
            return object_of(text, own.machine, *own.passes)
        return bytes(own.machine.emit_object(optimised(text, own.machine)))

    return make


def assembly(isa: Isa, kernel: Code) -> str:
    """Return the machine code of a kernel as text."""
    machine = machine_for(isa)
    text: str = machine.emit_assembly(optimised(module_text(isa, kernel), machine))
    return text


def engine(isa: Isa) -> Any:
    """Return a new engine of LLVM's that links object files; it owns its target machine."""
    start_llvm()
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine_for(isa))


def link(engine: Any, objects: Sequence[bytes], symbols: Sequence[str]) -> dict[str, int]:
    """Link object files by LLVM; return where symbols begin, 0 where there is none."""
    for data in objects:
        engine.add_object_file(llvm.ObjectFileRef.from_data(data))
    engine.finalize_object()
    return {symbol: engine.get_function_address(symbol) for symbol in symbols}


def module_text(isa: Isa, kernel: Code, text: str | None = None) -> str:
    """Return the IR of a module of one kernel, under its symbol."""
    bits = isa.vector_bits
    function = (text or kernel.text).replace(f"@{kernel.name}(", f'@"{kernel.symbol}"(')
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


def passes_for(machine: Any) -> tuple[Any, Any]:
    """Return passes, and the builder that runs them.

    Our generators unroll and vectorise loops. LLVM only puts variables into registers and combines
    instructions. That takes half the time of -O2, and kernels are as fast.
    """
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    return passes, builder


def optimised(text: str, machine: Any) -> Any:
    """Parse and optimise IR.

    Errors: CompileError, if LLVM refuses it
    """
    try:
        module = llvm.parse_assembly(text, llvm.create_context())
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"cpu: LLVM refused a kernel: {error}") from error
    passes, builder = passes_for(machine)
    passes.run(module, builder)
    return module


def give_back(kernels: int) -> None:
    """Give the memory that compiling took back to the system: heap that is free, and LLVM's code.

    kernels: how many were compiled; after a few nothing is given back
    Clean pages of its library are dropped, and come from the file again if they are wanted. Does
    nothing but on Linux.
    """
    if sys.platform != "linux" or kernels <= _FEW_KERNELS:
        return
    trim_heap()
    libc = ctypes.CDLL(None)
    for start, end in _clean_ranges(os.path.realpath(llvm.ffi.lib._name)):
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


@functools.cache
def _clean_ranges(path: str) -> tuple[tuple[int, int], ...]:
    """Return the read-only mappings of a file that hold no page of this process's own (Linux).

    Read once: the kernel walks every page to answer (5 ms), and what cannot be written stays clean.
    """
    try:
        with open("/proc/self/smaps", errors="surrogateescape") as file:  # it holds file names
            parts = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", file.read())
    except OSError:
        return ()
    found = []
    for part in parts:
        head = part.partition("\n")[0]
        clean = re.search(r"(?m)^Anonymous:\s+0 kB$", part)
        if head.endswith(path) and clean and "w" not in head.split()[1]:
            start, end = (int(number, 16) for number in head.split()[0].split("-"))
            found.append((start, end))
    return tuple(found)
