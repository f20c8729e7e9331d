"""Sessions that a session opens beside itself: of another signature, or to measure a placement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from trireme.backend.device import Device
    from trireme.cost.calibration import Calibration
    from trireme.placement.placement import Placement
    from trireme.runtime.asked import Asked
    from trireme.runtime.executors import Mode
    from trireme.runtime.options import ExecutionOptions

Opener = TypeVar("Opener")


def of_signature(open_session: Callable[..., Opener], asked: Asked, signature: str) -> Opener:
    """Open a session of another graph of a session's model."""
    from trireme.runtime.options import ExecutionOptions

    how = replace(asked.execution_options or ExecutionOptions(), signature=signature)
    return open_session(
        asked.model,
        devices=asked.devices,
        threads=asked.threads,
        fallback=asked.fallback,
        mode=asked.mode,
        calibration=asked.calibration,
        execution_options=how,
    )


def holding(
    open_session: Callable[..., Opener],
    mode: Mode,
    options: ExecutionOptions,
    devices: Sequence[Device],
    calibration: Calibration,
    placement: Placement,
) -> Opener:
    """Open a session that holds a placement, to be measured."""
    from trireme.runtime.options import ExecutionOptions

    return open_session(
        placement.source,
        devices=devices,
        placement=placement,
        mode=mode,
        calibration=calibration,
        execution_options=ExecutionOptions(
            subgraphs=options.subgraphs, execution=options.execution, passes=()
        ),
    )
