"""The OpenCL device: regions of a graph as kernels on one in-order queue, with one wait.

Importing this package does not touch OpenCL, because a driver that was used does not survive a
fork.
"""

from collections.abc import Sequence

from trireme.backend.device import Device
from trireme.backend.device_kind import DeviceInstance, DeviceKind
from trireme.devices.opencl.options import OpenCLOptions


def _open(options: OpenCLOptions, instance: DeviceInstance) -> Device:
    from trireme.devices.opencl.device import open_opencl

    return open_opencl(options)


def _found() -> Sequence[str]:
    from trireme.devices.opencl.platforms import find_devices

    return [str(one) for one in find_devices()]


KIND = DeviceKind(
    name="opencl",
    summary="OpenCL kernels on one in-order queue: a GPU, or the CPU by PoCL",
    open=_open,
    options=OpenCLOptions,
    found=_found,
    also_called=("gpu", "cuda", "rocm"),
)
