"""The simulated NPU: graphs become command streams, run on a described machine.

Read in this order: `spec` (the machine), `stream.commands` (its commands), `compiler.lower` (nodes
to jobs), `tiling` and `residency` (the use of SRAM), `emit` (jobs to commands). Then read
`simulator.simulate` (values), `timing` (cycles), `chip` and `executable` (running tasks), `device`
(the contract with the engine).
"""

from collections.abc import Sequence

from trireme.backend.device import Device
from trireme.backend.device_kind import DeviceInstance, DeviceKind
from trireme.devices.npu.options import NpuOptions


def _open(options: NpuOptions, instance: DeviceInstance) -> Device:
    from trireme.devices.npu.device import open_npu

    return open_npu(options, instance)


def _demands() -> Sequence[str]:
    from trireme.devices.npu.compiler.constraints import sentences

    return sentences()


KIND = DeviceKind(
    name="npu",
    summary="a simulated NPU: command streams on a described machine, in virtual time",
    open=_open,
    options=NpuOptions,
    instances=True,
    demands=_demands,
)
