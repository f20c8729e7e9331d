"""The options of a simulated NPU."""

from dataclasses import dataclass
from pathlib import Path

from trireme.backend.device_kind import option
from trireme.devices.npu.spec import NpuSpec


@dataclass(frozen=True)
class NpuOptions:
    """Options of the npu."""

    spec: str | Path | NpuSpec = option(
        "default",
        "description of the machine: mobile (the default), ethos_u55_256, systolic_32x32, or a "
        ".toml file",
        flag="--npu-spec",
    )
    float32: str = option(
        "refuse",
        "float16 runs float32 nodes with float16 operands and results, where refuse refuses them",
        choices=("refuse", "float16"),
        flag="--float16",
        flag_sets="float16",
    )
    trace: bool = option(
        False, "keep every intermediate of the last launch, for `NpuCall.intermediate`"
    )
    sram_bytes: int | None = option(None, "another SRAM size than the description's")
