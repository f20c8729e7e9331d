"""The simulated NPU: graphs become command streams, run on a described machine.

Read in this order: `spec` (the machine), `stream.commands` (what it is told), `compiler.lower`
(nodes to jobs), `tiling` and `residency` (what fits SRAM), `emit` (jobs to commands),
`simulator.simulate` (values), `timing` (cycles), `device` (the contract with the engine).
"""

from trireme.devices.npu.compiler.constraints import constraints, supported_ops
from trireme.devices.npu.device import Npu, NpuCall, NpuExecutable, open_device
from trireme.devices.npu.spec import NpuSpec, load_spec, spec_names
from trireme.devices.npu.stream.disassemble import disassemble

__all__ = [
    "Npu",
    "NpuCall",
    "NpuExecutable",
    "NpuSpec",
    "constraints",
    "disassemble",
    "load_spec",
    "open_device",
    "spec_names",
    "supported_ops",
]
