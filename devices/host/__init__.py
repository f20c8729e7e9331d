"""The host device: the numpy references as a device, and the keeper of a session's states."""

from trireme.backend.device import HOST, Device
from trireme.backend.device_kind import DeviceInstance, DeviceKind
from trireme.devices.host.options import HostOptions


def _open(options: HostOptions, instance: DeviceInstance) -> Device:
    from trireme.devices.host.device import HostDevice

    return HostDevice(options)


KIND = DeviceKind(
    name=HOST,
    summary="numpy references, control flow, and the states of a session",
    open=_open,
    options=HostOptions,
)
