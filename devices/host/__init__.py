"""The host device: the numpy references as a device, and the keeper of a session's states."""

from trireme.devices.host.device import open_device

__all__ = ["open_device"]
