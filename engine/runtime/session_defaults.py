"""What a session is made with: its caller's options, else those of a fixed placement's lock."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from trireme.backend.device import Device
from trireme.backend.registry import DEFAULT_DEVICE
from trireme.placement.lock import Lock, LockedOptions, devices_of
from trireme.placement.lockfile import load_lock
from trireme.placement.objective import Objective
from trireme.placement.options import FixedPlacement
from trireme.support.errors import PlacementError


@dataclass(frozen=True)
class MadeWith:
    """What a session is made with: its caller's options, else those of a held lock, else defaults.

    held: the placement or the lock that is held, read
    """

    held: FixedPlacement | None
    devices: Sequence[str | Device]
    threads: int | None
    batch: int | None
    objective: Objective


def made_with(
    placement: FixedPlacement | None,
    devices: Sequence[str | Device] | None,
    threads: int | None,
    batch: int | None,
    objective: Objective | None,
) -> MadeWith:
    """Return what a session is made with, given its options of these names.

    Errors: PlacementError, if the lock is of a described machine, where nothing can run;
    ModelFileError, as `load_lock`
    """
    held = _read(placement)
    of_lock, goal = _runnable(held) if isinstance(held, Lock) else (_DEFAULTS, "makespan")
    return MadeWith(
        held,
        of_lock.devices if devices is None else devices,
        of_lock.threads if threads is None else threads,
        of_lock.batch if batch is None else batch,
        objective or goal,
    )


_DEFAULTS = LockedOptions(devices=(DEFAULT_DEVICE,))


def _runnable(held: Lock) -> tuple[LockedOptions, Objective]:
    """Return the options and the objective of a lock of this machine, with devices to open."""
    if held.options.soc:
        raise PlacementError(
            f"the locked placement is of the described machine {held.options.soc!r}, which runs "
            "nothing",
            fix="lock a placement on this machine's devices: trireme place MODEL --lock FILE",
        )
    options = replace(held.options, devices=tuple(devices_of(held)))
    return options, cast(Objective, held.objective)


def _read(fixed: FixedPlacement | None) -> FixedPlacement | None:
    """Return what is fixed; the lock, if it is the file of one.

    Errors: ModelFileError, as `load_lock`
    """
    return load_lock(fixed) if isinstance(fixed, str | os.PathLike) else fixed
