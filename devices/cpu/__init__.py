"""The cpu device: regions of a graph as native programs, generated for the CPU at hand."""

from trireme.backend.device import Device
from trireme.backend.device_kind import DeviceInstance, DeviceKind
from trireme.devices.cpu.options import CpuOptions


def _open(options: CpuOptions, instance: DeviceInstance) -> Device:
    from trireme.devices.cpu.device import open_cpu

    return open_cpu(options, instance)


KIND = DeviceKind(
    name="cpu",
    summary="native programs, generated for the CPU at hand",
    open=_open,
    options=CpuOptions,
    instances=True,
    measures_cores=True,
)
