"""The cpu device: regions of a graph as native programs, generated for the CPU at hand."""

from collections.abc import Sequence

from trireme.backend.device import Device
from trireme.backend.device_kind import DeviceInstance, DeviceKind
from trireme.backend.image import ImageCall, TaskImage
from trireme.devices.cpu.options import CpuOptions
from trireme.support.dtypes import Array


def _open(options: CpuOptions, instance: DeviceInstance) -> Device:
    from trireme.devices.cpu.device import open_cpu

    return open_cpu(options, instance)


def _open_image(options: CpuOptions, image: TaskImage, args: Sequence[Array]) -> ImageCall:
    from trireme.devices.cpu.runtime.image import CpuImage

    return CpuImage(image, args, options.spins)


def _image_key(options: CpuOptions) -> str:
    """Return what object code depends on, and the threads that steps are cut for."""
    from trireme.devices.cpu.codegen.target import choose_isa, image_identity, physical_threads

    threads = physical_threads() if options.threads is None else options.threads
    return f"{threads} threads, {image_identity(choose_isa(options.isa))}"


KIND = DeviceKind(
    name="cpu",
    summary="native programs, generated for the CPU at hand",
    open=_open,
    options=CpuOptions,
    instances=True,
    measures_cores=True,
    open_image=_open_image,
    image_key=_image_key,
)
