"""Devices that hang are never asked again, and what their tasks may write to is kept for ever."""

from __future__ import annotations

from collections.abc import Mapping

from trireme.backend.device import Device
from trireme.support.errors import DeviceError

_KEPT: list[object] = []


def lose(devices: Mapping[str, Device], hung: DeviceError, used: object) -> None:
    """Never ask a device again that hangs, and keep what its task may still touch."""
    if hung.device in devices:
        devices[hung.device].is_lost = True
    keep_for_ever(used)


def keep_for_ever(used: object) -> None:
    """Keep the memory of a task that hangs."""
    _KEPT.append(used)
