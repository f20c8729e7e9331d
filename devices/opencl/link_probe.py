"""Build one kernel with PoCL, as a process of its own: `linker` reads how it ends."""

from __future__ import annotations

import logging

from trireme.devices.opencl.context import OpenCLContext
from trireme.devices.opencl.platforms import find_devices
from trireme.devices.opencl.programs import Programs

_SOURCE = "kernel void linked(global int *x) { x[get_global_id(0)] = 1; }"


def main() -> None:
    """Build a kernel that no cache has; PoCL aborts the process where it cannot link."""
    logging.disable()  # standard error holds what the linker says
    found = next(one for one in find_devices() if one.is_pocl_cpu)
    programs = Programs(OpenCLContext(found).handle, found.handle, "", ["-w"], None)
    programs.build({"linked": _SOURCE}, "")


if __name__ == "__main__":
    main()
