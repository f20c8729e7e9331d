"""Devices that are only described: a TOML file of figures, to place and predict on."""

if not __name__.startswith("trireme"):
    raise ImportError("import trireme.devices.described")

from trireme.devices.described.device import DescribedDevice
from trireme.devices.described.soc import Soc, load_soc, soc_names

__all__ = ["DescribedDevice", "Soc", "load_soc", "soc_names"]
