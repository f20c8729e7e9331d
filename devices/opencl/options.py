"""The options of an OpenCL device."""

from dataclasses import dataclass
from pathlib import Path

from trireme.backend.device_kind import option
from trireme.devices.opencl.tuning import CLASSES


@dataclass(frozen=True)
class OpenCLOptions:
    """Options of the OpenCL device."""

    platform: str | None = option(None, 'part of the platform\'s name, in any case ("pocl")')
    device: str | None = option(
        None,
        'part of the device\'s name, in any case ("adreno"). Without a name a GPU is preferred '
        "to an accelerator and that to a CPU, and a checker such as Oclgrind is never taken",
    )
    precision: str = option(
        "float32",
        "float16 keeps float32 weights as float16 on the device and still sums in float32",
        choices=("float32", "float16"),
        flag="--float16",
        flag_sets="float16",
    )
    cache_dir: str | Path | None = option(
        None, "folder for built programs (default: the user's cache)"
    )
    tuning: str | None = option(
        None, "device class to tune kernels for (default: the device's own)", choices=tuple(CLASSES)
    )
