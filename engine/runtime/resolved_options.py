"""What a session is made with: its caller's options, else those of a fixed placement's lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trireme.backend.device import Device
from trireme.backend.registry import DEFAULT_DEVICE
from trireme.placement.lock import Lock, LockedOptions, devices_of
from trireme.placement.options import FixedPlacement, PlacementOptions
from trireme.support.errors import PlacementError
from trireme.support.records import dataclass

_DEFAULTS = LockedOptions(devices=(DEFAULT_DEVICE,))


@dataclass(frozen=True)
class ResolvedOptions:
    """What a session is made with: its caller's options, else those of a lock, else defaults."""

    devices: Sequence[str | Device]
    threads: int | None
    batch: int | None
    placement_options: PlacementOptions


def resolve_options(
    placement: FixedPlacement | None,
    devices: Sequence[str | Device] | None,
    threads: int | None,
    batch: int | None,
    options: PlacementOptions,
) -> ResolvedOptions:
    """Return what a session is made with, given its arguments of these names.

    Errors: PlacementError, if two placements are given, or the lock is of a described machine,
    where nothing can run; ModelFileError, as `load_lock`
    """
    if placement is not None:
        if options.fixed is not None:
            raise PlacementError(
                "two placements are given", fix="leave out placement= or placement_options.fixed"
            )
        options = replace(options, fixed=placement)
    fixed = options.read_fixed()
    of_lock = _runnable(fixed) if isinstance(fixed, Lock) else _DEFAULTS
    return ResolvedOptions(
        of_lock.devices if devices is None else devices,
        of_lock.threads if threads is None else threads,
        of_lock.batch if batch is None else batch,
        replace(options, fixed=fixed),
    )


def _runnable(held: Lock) -> LockedOptions:
    """Return the options of a lock of this machine, with devices to open."""
    if held.options.soc:
        raise PlacementError(
            f"the locked placement is of the described machine {held.options.soc!r}, which runs "
            "nothing",
            fix="lock a placement on this machine's devices: trireme place MODEL --lock FILE",
        )
    return replace(held.options, devices=tuple(devices_of(held)))
