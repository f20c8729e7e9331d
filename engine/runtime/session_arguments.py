"""The arguments of a Session as one value, from which a stored program gets its key."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trireme.support.records import dataclass

if TYPE_CHECKING:
    from trireme.backend.device import Device, Progress
    from trireme.cost.calibration import Calibration
    from trireme.ir.bind_shapes import Shapes
    from trireme.model_file.cache import Model
    from trireme.placement.options import FixedPlacement, PlacementOptions
    from trireme.runtime.executors import Mode
    from trireme.runtime.options import ExecutionOptions
    from trireme.runtime.states.rules import StateRules


@dataclass(frozen=True)
class SessionArguments:
    """The arguments of a Session, under their names there; not checked."""

    model: Model
    devices: Sequence[str | Device] | None = None
    threads: int | None = None
    fallback: bool = False
    mode: Mode = "auto"
    contexts: int | None = None
    placement: FixedPlacement | None = None
    measure: bool = False
    calibration: Calibration | str | os.PathLike[str] | None = None
    shapes: Shapes | None = None
    states: StateRules | None = None
    buckets: Mapping[str, Sequence[int]] | None = None
    batch: int | None = None
    progress: Progress | None = None
    placement_options: PlacementOptions | None = None
    execution_options: ExecutionOptions | None = None
