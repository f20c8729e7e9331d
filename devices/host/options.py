"""Declare the options of the host device."""

from dataclasses import dataclass

from trireme.backend.device_kind import option
from trireme.ir.effects import States


@dataclass(frozen=True)
class HostOptions:
    """Options of the host device."""

    states: States | None = option(
        None, "where `variable` and `assign` find their arrays (default: a set of its own)"
    )
    operators: bool = option(True, "run ops that other devices run, too")
