"""The options of a cpu device."""

from collections.abc import Iterable
from pathlib import Path

from trireme.backend.device_kind import option
from trireme.support.records import dataclass

NO_CACHE = Path()
"""A `cache_dir` that keeps no object code on disk."""


@dataclass(frozen=True)
class CpuOptions:
    """Options of the cpu device, and of each instance of it ("cpu#1")."""

    threads: int | None = option(
        None,
        "threads that share a region's work, the caller's among them (default: one for each core "
        "that the device has)",
    )
    isa: str = option(
        "auto",
        "instruction set to generate code for: auto, avx512 (with VNNI), avx512_base, avx2, sse4 "
        "or generic; neon or generic on Arm",
        flag="--isa",
    )
    cache_dir: str | Path | None = option(
        None, "folder for object code (default: the user's cache; NO_CACHE for none)"
    )
    spins: int | None = option(None, "how often an idle worker looks for work before it sleeps")
    futex: bool | None = option(
        None, "let workers sleep in native code, not in Python (default: on Linux)"
    )
    winograd: bool = option(
        True,
        "compute 3x3 and 5x5 convolutions by Winograd's algorithm where that is faster; it rounds "
        "differently from a sum of products, and no worse",
        flag="--no-winograd",
    )
    cores: Iterable[int] | None = option(
        None, "cores of an instance, by number (default: its even share)"
    )
