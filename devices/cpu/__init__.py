"""The cpu device: regions of a graph as native programs, generated for the CPU at hand."""

from trireme.devices.cpu.device import CpuDevice, open_device

__all__ = ["CpuDevice", "open_device"]
