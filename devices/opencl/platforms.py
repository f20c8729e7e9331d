"""Find and choose OpenCL devices; the only module that first touches the OpenCL loader."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any

from trireme.devices.opencl import linker, pocl
from trireme.support.errors import DeviceError

_KINDS = {4: "gpu", 8: "accelerator", 2: "cpu"}
_ORDER = ("gpu", "accelerator", "cpu", "custom")
_CHECKERS = ("oclgrind",)
_NO_CACHE = "PYOPENCL_NO_CACHE"
_HIDE_POCL = ("OCL_ICD_VENDORS", "POCL_DEVICES")
"""Variables with which the OpenCL loader, or PoCL, finds no device of PoCL."""
_lock = threading.Lock()
_touched_by: int | None = None


@dataclass(frozen=True)
class FoundDevice:
    """One OpenCL device: names, kind ("gpu", "accelerator", "cpu") and pyopencl's object.

    checker: whether it is a tool that simulates kernels to check them, chosen only by name
    cpu_name: the CPU PoCL compiles for, else ""
    """

    platform: str
    device: str
    kind: str
    version: str
    checker: bool
    cpu_name: str
    handle: Any

    @property
    def is_pocl_cpu(self) -> bool:
        """Whether PoCL runs the kernels on the CPU's cores."""
        return self.platform == pocl.PLATFORM and self.kind == "cpu"

    def __str__(self) -> str:
        return f"{self.device} ({self.kind}) on {self.platform}, {self.version}"


def check_process(owner: int) -> None:
    """Raise DeviceError in a process that was forked from `owner`, which had used OpenCL."""
    if os.getpid() != owner:
        raise DeviceError(
            f"process {os.getpid()} was forked from {owner}, which had used OpenCL, "
            "and its driver does not work here",
            fix="start workers with the 'spawn' method, or open the device after the fork",
        )


def find_devices() -> list[FoundDevice]:
    """Return every device, in order of preference; empty when there is no driver.

    Errors: DeviceError, in a process forked from one that had used OpenCL
    """
    global _touched_by
    if _touched_by is not None:
        check_process(_touched_by)  # a thread of the parent may have held the lock
    with _lock:
        if _touched_by is None:
            if pocl.may_be_present():
                pocl.prepare()
            _touched_by = os.getpid()
        check_process(_touched_by)
        cl = _import_pyopencl()
        try:
            platforms = cl.get_platforms()
        except cl.Error:
            return []
        found = [_describe(p, d) for p in platforms for d in _devices(cl, p)]
    return sorted(found, key=lambda f: (f.checker, _ORDER.index(f.kind)))


def _import_pyopencl() -> Any:
    """Import pyopencl without its own cache of pickled code, which has no protection.

    pyopencl reads the variable at its import, and other users of pyopencl may want that cache.
    """
    asked = os.environ.get(_NO_CACHE)
    os.environ[_NO_CACHE] = "true"
    try:
        import pyopencl
    finally:
        del os.environ[_NO_CACHE]
        if asked is not None:
            os.environ[_NO_CACHE] = asked
    return pyopencl


def _devices(cl: Any, platform: Any) -> list[Any]:
    try:
        return list(platform.get_devices())
    except cl.Error:
        return []


def _describe(platform: Any, device: Any) -> FoundDevice:
    names = f"{platform.name} {device.name}".lower()
    checker = any(name in names for name in _CHECKERS)
    kind = "custom" if checker else _kind(int(device.type))
    is_pocl = platform.name == pocl.PLATFORM and kind == "cpu"
    return FoundDevice(
        platform.name.strip(),
        device.name.strip(),
        kind,
        device.driver_version.strip(),
        checker,
        pocl.name_cpu(device, str(platform.version)) if is_pocl else "",
        device,
    )


def _kind(type_bits: int) -> str:
    return next((kind for bit, kind in _KINDS.items() if type_bits & bit), "custom")


def choose(platform: str | None, device: str | None) -> FoundDevice:
    """Return the preferred device whose names contain the given parts, and that can build kernels.

    Errors: DeviceError, listing the devices found, or why none of them can build a kernel
    """
    found = find_devices()
    wanted = [
        f
        for f in found
        if _contains(f.platform, platform)
        and _contains(f.device, device)
        and (not f.checker or platform is not None or device is not None)
    ]
    faults = []
    for one in wanted:
        fault = linker.link_fault() if one.is_pocl_cpu else None
        if fault is None:
            return one
        faults.append(f"{one}: {fault}")
    if faults:
        raise DeviceError("PoCL cannot link kernels here", facts=faults, fix=linker.FIX)
    asked = " and ".join(
        f"{what} {name!r}"
        for what, name in (("platform", platform), ("device", device))
        if name is not None
    )
    raise DeviceError(
        f"no OpenCL device with {asked}" if asked else "no OpenCL device",
        facts=[str(f) for f in found] or ["no OpenCL platform was found"],
        fix="" if found else _driver_advice(),
    )


def _driver_advice() -> str:
    """Return what gives a platform where there is none."""
    hiding = [f"{name} ({os.environ[name]})" for name in _HIDE_POCL if name in os.environ]
    if not pocl.may_be_present():
        return "install a driver, or the package pocl-binary-distribution"
    if hiding:
        return f"unset {' and '.join(hiding)}, which hides PoCL"
    return "install pocl-binary-distribution anew: it is installed, but its driver does not load"


def _contains(name: str, part: str | None) -> bool:
    return part is None or part.lower() in name.lower()
