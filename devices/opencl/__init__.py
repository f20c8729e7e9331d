"""The OpenCL device: regions of a graph as kernels on one in-order queue, with one wait.

`open_device` is what `engine/backend/device.py` calls. Nothing here touches OpenCL before a device
is asked for, because a driver that was touched does not survive a fork.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trireme.backend.device import Device

if TYPE_CHECKING:
    from trireme.devices.opencl.platforms import FoundDevice


def open_device(
    platform: str | None = None,
    device: str | None = None,
    precision: str = "float32",
    cache_dir: str | Path | None = None,
    tuning: str | None = None,
) -> Device:
    """Open one OpenCL device.

    `platform` and `device` are parts of names, in any case ("pocl", "adreno"); without them a GPU
    is preferred to an accelerator and that to a CPU, and a checker such as Oclgrind is never taken.
    `precision` "float16" keeps float32 weights as float16 on the device and still sums in float32.
    `cache_dir` holds built programs (a folder of the user's when None). `tuning` forces a device
    class: "cpu", "desktop_gpu" or "mobile_gpu".
    Errors: DeviceError, if there is no such device or an option is unknown
    """
    from trireme.devices.opencl.device import open_opencl

    return open_opencl(platform, device, precision, cache_dir, tuning)


def list_devices() -> list[FoundDevice]:
    """Return every OpenCL device of this machine, the one `open_device` prefers first.

    Errors: DeviceError, if this process was forked from one that used OpenCL
    """
    from trireme.devices.opencl.platforms import find_devices

    return find_devices()
