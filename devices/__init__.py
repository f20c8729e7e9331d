"""Devices: each folder is one device behind the contract of trireme.backend.device."""

if not __name__.startswith("trireme"):
    raise ImportError("the folder devices/ is the package trireme.devices: import that")
