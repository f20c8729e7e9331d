"""Whether PoCL can link kernels here: where it cannot, it ends the process instead of failing.

PoCL's inner clang starts `ld` for each kernel that no cache has, with -lgcc, -lgcc_s and -lc. It
looks for the program in the folder that PoCL was built for, then on PATH, and PoCL 3.0 has no
option for another linker. A slim container has neither the program nor the libraries.
"""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_PROBE = "trireme.devices.opencl.link_probe"
_PROBE_LIMIT_S = 60.0
_GCC = Path("/usr/lib/gcc")
_LIBC_FOLDERS = (f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64", "/usr/lib")
FIX = "apt-get install gcc libc6-dev (Debian's names; gcc brings ld, of binutils, and libgcc)"


def link_fault() -> str | None:
    """Return the linker's complaint where PoCL cannot link a kernel; None where it can.

    PoCL is trusted where the program and the libraries are in their usual places. Elsewhere a
    process of its own, which PoCL may abort, builds a kernel: once for each PATH, in a second.
    """
    path = os.environ.get("PATH", "")
    return None if _has_toolchain(path) else _probed(path)


def _has_toolchain(path: str) -> bool:
    """Whether `ld`, libgcc and what -lc names are in their usual places."""
    return (
        shutil.which("ld", path=path) is not None
        and any(_GCC.glob("*/*/libgcc.a"))
        and any(Path(folder, "libc.so").exists() for folder in _LIBC_FOLDERS)
    )


@functools.cache
def _probed(path: str) -> str | None:
    """Build a kernel in a child process, in a folder of its own that is PoCL's empty cache."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("POCL_CACHE_DIR")) as folder:
        modules = os.pathsep.join(map(os.path.abspath, sys.path))
        try:
            done = subprocess.run(
                [sys.executable, "-W", "ignore", "-m", _PROBE],
                cwd=folder,
                env={**os.environ, "POCL_CACHE_DIR": folder, "PYTHONPATH": modules},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_PROBE_LIMIT_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    if done.returncode == 0:
        return None
    said = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
    return said[0] if done.returncode < 0 else said[-1]
