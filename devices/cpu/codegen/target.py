"""The instruction sets that kernels are generated for: what differs between them is data, here.

`choose_isa` picks one for the CPU found at run time, or by name. Kernel generators read only the
fields of `Isa`, so one generator serves them all.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
from pathlib import Path
from typing import Any

from trireme.support.errors import DeviceError
from trireme.support.forks import hold_at_fork
from trireme.support.records import dataclass


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
    byte_pairs: whether they are two at a time, in saturating words (pmaddubsw)
    halves: whether float16 is converted by instructions (F16C)
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
    byte_pairs: bool = False
    halves: bool = False
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
        Isa(
            "avx512",
            "",
            "",
            (*_AVX512, "avx512vnni"),
            16,
            32,
            "x86",
            l2_bytes=1 << 20,
            vnni=True,
            halves=True,
        ),
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
            byte_pairs=True,
            halves=True,
        ),
        Isa(
            "avx2",
            "haswell",
            "",
            ("avx2", "fma", "bmi2"),
            8,
            16,
            "x86",
            byte_pairs=True,
            halves=True,
        ),
        _unfused(
            "sse4",
            "x86-64-v2",
            "",
            ("sse4.2", "popcnt"),
            4,
            16,
            "x86",
            variant=True,
            byte_pairs=True,
        ),
        _unfused("generic", "x86-64", "", (), 4, 16, "x86"),
    )
}
_ARM = {
    "neon": Isa("neon", "", "", ("neon",), 4, 32, "arm", halves=True),
    "generic": Isa("generic", "generic", "", (), 4, 32, "arm"),
}
ISAS = {**_ARM, **_X86}
"""Every instruction set by name, also those that this machine lacks; generic is that of x86."""
_OTHER = {"generic": _unfused("generic", "", "", (), 4, 16)}


def _table() -> dict[str, Isa]:
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        return _X86
    return _ARM if machine in ("aarch64", "arm64") else _OTHER


def _llvm() -> Any:
    """Return LLVM's bindings; loading them takes 50 ms and as many MB, so only for compiling."""
    import llvmlite.binding

    return llvmlite.binding


@functools.cache
def start_llvm() -> None:
    """Prepare LLVM's back end for this machine, once a process."""
    _llvm().initialize_native_target()
    _llvm().initialize_native_asmprinter()
    _hold_at_fork()


@functools.cache
def _hold_at_fork() -> None:
    """Have forks wait for a thread in LLVM, whose lock llvmlite never renews in a child."""
    lock = getattr(_llvm().ffi.lib, "_lock", None)
    if lock is not None:
        hold_at_fork(lock)


@functools.cache
def llvm_identity() -> str:
    """Return what tells one LLVM from another, without loading it: its library's file."""
    spec = importlib.util.find_spec("llvmlite")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for file in sorted(Path(place, "binding").glob("*llvmlite.*[dsy][olb]*")):
            status = file.stat()
            return f"{file.name} {status.st_size} {status.st_mtime_ns}"
    return ".".join(map(str, _llvm().llvm_version_info))


@functools.cache
def host_cpu() -> tuple[str, str]:
    """Return LLVM's name of the running CPU and its features as a comma-separated list."""
    start_llvm()
    return _llvm().get_host_cpu_name(), _llvm().get_host_cpu_features().flatten()


@functools.cache
def _cpuinfo() -> dict[str, str]:
    """Return what Linux says of an x86 CPU; nothing elsewhere."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return {}
    try:
        with open("/proc/cpuinfo") as file:
            first = file.read(16384).split("\n\n")[0]
    except OSError:
        return {}
    rows = (line.partition(":") for line in first.splitlines())
    found = {name.strip(): value.strip() for name, _, value in rows}
    return found if {*_IDENTITY} <= {*found} else {}


_IDENTITY = ("vendor_id", "cpu family", "model", "stepping", "flags")
_FLAGS = {"sse4_2": "sse4.2", "avx512_vnni": "avx512vnni"}
"""Linux's names of features, where they differ from LLVM's."""


def machine_identity() -> str:
    """Return what tells the running CPU from others that need other code."""
    found = _cpuinfo()
    return " ".join(found[name] for name in _IDENTITY) if found else " ".join(host_cpu())


def image_identity(isa: Isa) -> str:
    """Return what machine code for an instruction set depends on beside the code of trireme."""
    return f"{isa} {llvm_identity()} {platform.system()} {machine_identity()}"


def cpu_name() -> str:
    """Return what to call the running CPU."""
    found = _cpuinfo()
    if not found:
        return host_cpu()[0]
    family, model = found["cpu family"], found["model"]
    return f"{found.get('model name', found['vendor_id'])} (family {family}, model {model})"


_ALL = range(1 << 16)
_RELATIVE_TIMES = (
    (8, "AuthenticAMD", 23, range(0x30), 1.7),
    (16, "AuthenticAMD", 25, _ALL, 1.0),
    (16, "AuthenticAMD", 26, _ALL, 0.5),
    (16, "GenuineIntel", 6, _ALL, 0.8),
)
"""Time of kernels over their authors' estimates, by lanes, vendor, family and models of CPUs.

Medians over ten to fifteen models of the docs, one thread. Zen 1 (23), whose vectors of 256 bits
are in halves: 1.65, 1.4 to 1.9, and 3 to 4 for integers, which it multiplies in one unit of two.
Zen 4 (25): 1.09, 0.90 to 1.27. Zen 5 (26), whose vectors of 512 bits are not in halves: 0.50, 0.45
to 0.59 and once 0.92. Emerald Rapids: 0.81, 0.69 to 1.08.
"""


def relative_time(isa: Isa) -> float:
    """Return how long kernels take on this CPU, over what their authors estimate; 1 if unknown."""
    found = _cpuinfo()
    if not found:
        return 1.0
    own = isa.lanes, found["vendor_id"], int(found["cpu family"])
    for *kind, models, time in _RELATIVE_TIMES:
        if tuple(kind) == own and int(found["model"]) in models:
            return time
    return 1.0


def cpu_features() -> frozenset[str]:
    """Return the features of the running CPU by LLVM's names; all that `Isa.needs` may hold."""
    found = _cpuinfo()
    if found:
        return frozenset(_FLAGS.get(flag, flag) for flag in found["flags"].split())
    return frozenset(f[1:] for f in host_cpu()[1].split(",") if f.startswith("+"))


def available_isas(variants: bool = True) -> tuple[str, ...]:
    """Return the names of the instruction sets that this machine can run, fastest first."""
    present = cpu_features()
    return tuple(
        name
        for name, isa in _table().items()
        if present.issuperset(isa.needs) and (variants or not isa.variant)
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
            f"cpu: this CPU ({cpu_name()}) lacks {name}", facts=[f"it has: {', '.join(usable)}"]
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
