"""PoCL's demands on its host, which no other driver has: environment variables and a CPU name.

`prepare` does all writes to os.environ for OpenCL, once, before the first platform is queried. A
damaged entry of PoCL's own cache aborts the process. So each process gets an empty private folder,
and `programs` keeps the binaries behind a digest. Without specialised work-groups PoCL compiles
each kernel once, when its binary is read, and never in a launch.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib.util
import logging
import os
import shutil
import stat
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trireme.support.disk_cache import untrusted_reason
from trireme.support.errors import DeviceError
from trireme.support.user_files import cache_folder

log = logging.getLogger(__name__)

PLATFORM = "Portable Computing Language"
_PREFIX = "trireme-pocl-"
_ROOM_BYTES = 32 << 20
"""The least free space of a folder; a large network takes some megabytes."""
_LEFT_S = 3600.0
"""The least age of an unchanged folder before a sweep: processes of older versions hold no lock."""
_VENDORS = Path("/etc/OpenCL/vendors")
_STRUCT_BYTES = 4096
_AVX512 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_AVX2 = {"avx2", "fma", "bmi1", "bmi2", "movbe", "f16c"}
_WITHOUT_AVX512 = {"znver1", "znver2", "znver3"}
_CORRECTED = ("OpenCL 3.0 PoCL 3.0-rc2  Linux, Release, RELOC, LLVM 14.0.6,",)
"""Platform versions whose device structure is known: PyPI's newest."""
_names: list[Any] = []


def may_be_present() -> bool:
    """Whether PoCL's PyPI package or an ICD file that names PoCL is installed."""
    if importlib.util.find_spec("pocl_binary_distribution") is not None:
        return True
    return any(_names_pocl(path) for path in _VENDORS.glob("*.icd"))


def _names_pocl(path: Path) -> bool:
    try:
        return b"pocl" in path.read_bytes()
    except OSError:
        return False


def prepare() -> None:
    """Set PoCL's environment: a private cache folder, removed with the process, and no
    specialising.

    Variables that are already set stay, except a POCL_CACHE_DIR that others can write: PoCL loads
    libraries from it.
    Errors: DeviceError, where no folder has room for PoCL's output
    """
    given = os.environ.get("POCL_CACHE_DIR")
    if given is None or untrusted_reason(Path(given)):
        folder = _make_folder()
        os.environ["POCL_CACHE_DIR"] = str(folder)
        atexit.register(_remove, folder, os.getpid())
        _hold(folder)
        sweep(folder.parent)
    os.environ.setdefault("POCL_WORK_GROUP_SPECIALIZATION", "0")


def _make_folder() -> Path:
    """Make a folder of mode 0700 where there is room: LLVM ends the process on a full disk.

    Errors: DeviceError, listing the folders tried
    """
    tried = []
    for parent in _parents():
        try:
            parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            free = shutil.disk_usage(parent).free
            if free >= _ROOM_BYTES:
                return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            tried.append(f"{parent}: {free >> 20} MiB are free")
        except OSError as error:
            tried.append(f"{parent}: {error.strerror}")
    raise DeviceError(
        f"opencl: PoCL needs a folder with {_ROOM_BYTES >> 20} MiB free for what it compiles",
        facts=tried,
        fix="set TMPDIR to such a folder",
    )


def _parents() -> Iterator[Path]:
    """Yield possible parent folders: the system's temporary folder, then this user's caches."""
    with contextlib.suppress(FileNotFoundError):
        yield Path(tempfile.gettempdir())
    caches = cache_folder("pocl")
    if caches is not None:
        yield caches


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _hold(folder: Path) -> int | None:
    """Lock a folder while this process lives; return None where another process holds the lock.

    The kernel releases the lock however the process ends. It needs no process number, which another
    process may have by then.
    """
    try:
        import fcntl

        held = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        return None
    return held


def sweep(where: Path) -> None:
    """Remove this user's folders of killed processes: unlocked and unchanged for a while."""
    for folder in where.glob(f"{_PREFIX}*"):
        try:
            about = folder.lstat()
            old = time.time() - about.st_mtime > _LEFT_S and stat.S_ISDIR(about.st_mode)
            held = _hold(folder) if old and about.st_uid == os.getuid() else None
        except (OSError, AttributeError):
            continue
        if held is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(held)


def name_cpu(device: Any, platform_version: str) -> str:
    """Return the CPU name PoCL compiles for, after giving it another where that one cannot work.

    PoCL 3.0 asks LLVM 14 what CPU it runs on. For an x86 CPU that is newer than LLVM 14 the answer
    is "generic", which the clang inside PoCL refuses ("unknown target CPU 'generic'"), so that no
    kernel builds. A Zen 4 has another fault: LLVM 14 takes it for a znver3, which has no AVX-512,
    but PoCL picks the kernel library by the CPU's flags, and code for 512 bits aborts the process
    ("Do not know how to scalarize this operator's operand").

    PoCL has no option for the name (docs/experiments/opencl.md lists what was tried). PoCL keeps
    the name in its device structure next to the target triple. In the versions of `_CORRECTED` two
    pointers are found by the text that they point to. The name becomes the one that PoCL's own
    kernel library for this CPU was built for. /proc/self/mem is read, where a wrong address is an
    error and not a crash. In any other version nothing is written, and a warning says the risk.
    """
    name, flags = _cpu_setting(str(device.version)), cpu_flags()
    if name != "generic" and not (name in _WITHOUT_AVX512 and flags >= _AVX512):
        return name
    known = next((each for each in _CORRECTED if platform_version.startswith(each)), None)
    slot = _find_slot(int(device.int_ptr), name) if known else 0
    if not slot:
        log.warning(
            "opencl: %s takes this CPU for %s, and trireme cannot correct that: kernels may not "
            "build, or may end the process",
            platform_version,
            name,
        )
        return name
    right = _known_cpu(flags)
    buffer = ctypes.create_string_buffer(right)
    _names.append(buffer)
    ctypes.c_void_p.from_address(slot).value = ctypes.addressof(buffer)
    log.info("opencl: PoCL does not know this CPU; compiling for %s", right.decode())
    return right.decode()


def _cpu_setting(version: str) -> str:
    """Return PoCL's text of the CPU's name: "... HSTR: pthread-x86_64-...-linux-gnu-znver3"."""
    return version.partition(" HSTR: ")[2].partition("-linux-gnu-")[2].strip()


def _find_slot(address: int, name: str) -> int:
    """Return the address of the pointer to the CPU's name; 0 where it is not found."""
    if not sys.platform.startswith("linux"):
        return 0
    try:
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            slot, found = _cpu_slot(memory.fileno(), address)
    except OSError:
        return 0
    return slot if found == name.encode() or found in _given_names() else 0


def _given_names() -> set[bytes]:
    """Return the names that this process wrote: a device may be opened again."""
    return {buffer.value for buffer in _names}


def _cpu_slot(memory: int, address: int) -> tuple[int, bytes]:
    """Return the address of the pointer to the CPU's name, and the name; 0 when it is not found."""
    raw = os.pread(memory, _STRUCT_BYTES, address)
    pointers = struct.unpack(f"{len(raw) // 8}Q", raw[: len(raw) // 8 * 8])
    for index, pointer in enumerate(pointers[:-1]):
        if _text(memory, pointer).startswith(b"x86_64-"):
            name = _text(memory, pointers[index + 1])
            if name:
                return address + 8 * (index + 1), name
    return 0, b""


def _text(memory: int, pointer: int) -> bytes:
    if not 4096 < pointer < 1 << 47:
        return b""
    try:
        return os.pread(memory, 64, pointer).split(b"\0")[0]
    except OSError:
        return b""


def cpu_flags() -> frozenset[str]:
    """Return this CPU's flags in /proc/cpuinfo; empty where there is no such file."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def _known_cpu(flags: frozenset[str]) -> bytes:
    """Return a CPU of LLVM 14 with a subset of this one's instructions, as PoCL picks its
    library.
    """
    if flags >= _AVX512:
        return b"skylake-avx512"
    if flags >= _AVX2:
        return b"haswell"
    return b"x86-64"
