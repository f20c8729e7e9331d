"""Options of loading and running a model, and how those of a lock file join them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from trireme.backend.device import Device
from trireme.backend.registry import DEFAULT_DEVICE
from trireme.ir.python_op import PythonOp
from trireme.placement.lock import Lock, LockedOptions, devices_of
from trireme.placement.options import FixedPlacement, PlacementOptions
from trireme.plan.subgraphs import Execution, Subgraphs
from trireme.support.arguments import check_arguments, choice
from trireme.support.errors import PlacementError, RunError
from trireme.support.records import dataclass
from trireme.support.user_files import USERS_CACHE

Schedule = Literal["static", "dynamic"]


@dataclass(frozen=True, kw_only=True)
class ExecutionOptions:
    """Options of a Session that users seldom set; each has a default.

    subgraphs: "merged" is one graph whose copies start early, "split" runs region after region
    execution: "sunk" runs a region as one task, "interactive" every node as a task of its own
    schedule: "static" plans all tasks ahead, "dynamic" runs the dataflow form of the graph, node by
        node as tokens arrive
    device_options: options by device name, or by kind for all instances, given to `open_device`
    passes: names of the optimiser's passes to run; all when None
    passes_off: names of passes to leave out
    signature: which graph of a .tflite file that holds several; the first when None
    model_cache: folder of the optimised graphs of model files; this user's cache folder when not
        given, no folder when None
    most_shapes: how many programs of a model with open shapes are kept, one for each set of shapes;
        the one unused for longest goes
    mmap: map the model's files, which must then not be truncated or overwritten in place; False to
        read them
    python_ops: functions of the user for the model's file, as in `convert`
    optional_inputs: names of ONNX inputs with a default that every run feeds; `run` takes others
        too, with a session of its own for each set of names
    timeout_s: seconds after which a run of a loop is given up with a RunError; None for no end
    max_queue: how many requests of `run_async` may wait; further ones are a QueueFullError
    Errors: RunError, for a value that a field does not take
    """

    subgraphs: Subgraphs = "merged"
    execution: Execution = "sunk"
    schedule: Schedule = "static"
    device_options: Mapping[str, Mapping[str, Any]] | None = None
    passes: Sequence[str] | None = None
    passes_off: Sequence[str] = ()
    signature: str | None = None
    model_cache: str | os.PathLike[str] | None = USERS_CACHE
    most_shapes: int = 32
    mmap: bool = True
    python_ops: Mapping[str, PythonOp] | None = None
    optional_inputs: Sequence[str] = ()
    timeout_s: float | None = None
    max_queue: int = 1024

    def __post_init__(self) -> None:
        check_arguments(ExecutionOptions, vars(self), RunError)
        if self.max_queue < 1:
            raise RunError(f"max_queue is {self.max_queue}, expected at least 1")
        choice("subgraphs", self.subgraphs, Subgraphs)
        choice("execution", self.execution, Execution)
        choice("schedule", self.schedule, Schedule)


AS_GIVEN = ExecutionOptions(passes=())
"""Runs a graph as it is: without a pass."""

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
