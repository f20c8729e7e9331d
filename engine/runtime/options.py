"""Options of loading and running a model, where the defaults do not suit."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from trireme.ir.python_op import PythonOp
from trireme.plan.subgraphs import Execution, Subgraphs
from trireme.support.arguments import check_arguments, choice
from trireme.support.errors import RunError
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
