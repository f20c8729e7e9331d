"""The instruction sets that kernels are generated for: what differs between them is data, here.

`choose_isa` picks one for the CPU found at run time, or the one that is asked for by name. Kernel
generators read only the fields of `Isa`, so one generator serves them all.
"""

from __future__ import annotations

import functools
import os
import platform
from dataclasses import dataclass

import llvmlite.binding as llvm

from trireme.errors import DeviceError


@dataclass(frozen=True)
class Isa:
    """An instruction set as the generators see it.

    name: as in kernel names (gemm_f32_14x2__avx512)
    cpu, features: what LLVM generates code for; cpu "" is the CPU found at run time
    needs: features the running CPU must have
    lanes: float32 elements of a vector register
    registers: vector registers
    arch: "x86" or "arm", whose intrinsics kernels may use; "" for neither
    fma_cycles: latency of a fused multiply-add, in cycles
    fma_per_cycle: vector multiply-adds started each cycle
    fused: whether a multiply-add rounds once
    variant: whether its floating-point kernels are those of another entry, under its own name
    vnni: whether bytes are multiplied and added four at a time (vpdpbusd)
    """

    name: str
    cpu: str
    features: str
    needs: tuple[str, ...]
    lanes: int
    registers: int
    arch: str = ""
    fma_cycles: int = 4
    fma_per_cycle: int = 2
    fused: bool = True
    vnni: bool = False
    variant: bool = False
    l1_bytes: int = 32 << 10
    l2_bytes: int = 512 << 10

    @property
    def vector_bits(self) -> int:
        """The width of a vector register."""
        return self.lanes * 32

    @property
    def vector(self) -> str:
        """The LLVM type of a vector of float32."""
        return f"<{self.lanes} x float>"


_unfused = functools.partial(Isa, fma_cycles=8, fma_per_cycle=1, fused=False)
_AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "fma")
_X86 = {
    isa.name: isa
    for isa in (
        Isa("avx512", "", "", (*_AVX512, "avx512vnni"), 16, 32, "x86", l2_bytes=1 << 20, vnni=True),
        Isa(
            "avx512_base",
            "skylake-avx512",
            "",
            _AVX512,
            16,
            32,
            "x86",
            l2_bytes=1 << 20,
            variant=True,
        ),
        Isa("avx2", "haswell", "", ("avx2", "fma", "bmi2"), 8, 16, "x86"),
        _unfused("sse4", "x86-64-v2", "", ("sse4.2", "popcnt"), 4, 16, "x86", variant=True),
        _unfused("generic", "x86-64", "", (), 4, 16, "x86"),
    )
}
_ARM = {
    "neon": Isa("neon", "", "", ("neon",), 4, 32, "arm"),
    "generic": Isa("generic", "generic", "", (), 4, 32, "arm"),
}
ISAS = {**_ARM, **_X86}
"""Every instruction set by name, whatever this machine has; generic is that of x86."""
_OTHER = {"generic": _unfused("generic", "", "", (), 4, 16)}


def _table() -> dict[str, Isa]:
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        return _X86
    return _ARM if machine in ("aarch64", "arm64") else _OTHER


@functools.cache
def start_llvm() -> None:
    """Prepare LLVM's back end for this machine, once a process."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@functools.cache
def host_cpu() -> tuple[str, str]:
    """Return LLVM's name of the running CPU and its features as a comma-separated list."""
    start_llvm()
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def available_isas(variants: bool = True) -> tuple[str, ...]:
    """Return the names of the instruction sets that this machine can run, fastest first."""
    present = set(host_cpu()[1].split(","))
    return tuple(
        name
        for name, isa in _table().items()
        if all(f"+{need}" in present for need in isa.needs) and (variants or not isa.variant)
    )


def choose_isa(name: str) -> Isa:
    """Return the instruction set called `name`, "auto" for the fastest one here.

    Errors: DeviceError, if there is no such name or this CPU lacks it
    """
    usable = available_isas()
    if name == "auto":
        return _table()[usable[0]]
    if name not in _table():
        known = ", ".join(("auto", *_table()))
        raise DeviceError(f"cpu: unknown instruction set {name!r}", facts=[f"known: {known}"])
    if name not in usable:
        raise DeviceError(
            f"cpu: this CPU ({host_cpu()[0]}) lacks {name}", facts=[f"it has: {', '.join(usable)}"]
        )
    return _table()[name]


def llvm_target(isa: Isa) -> tuple[str, str]:
    """Return the CPU name and features that LLVM generates code for."""
    return (isa.cpu, isa.features) if isa.cpu else host_cpu()


def physical_threads() -> int:
    """Return the number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
