"""A body of control flow as a program: placed, planned and compiled like any graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trireme.backend.device import Device
from trireme.cost.calibration import Calibration
from trireme.cost.model import CostModel
from trireme.ir.graph import Graph
from trireme.placement.options import PlacementOptions
from trireme.placement.place import place
from trireme.plan.plan import make_plan
from trireme.runtime.control.compile import compile_plan
from trireme.runtime.control.operands import watch_calls
from trireme.runtime.loop.execute import serial_runner
from trireme.runtime.loop.task_watch import TaskWatch, lose, works_beside_host
from trireme.runtime.program.context import ExecutionContext
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.program.program import Program
from trireme.support.dtypes import Array
from trireme.support.errors import DeviceError


@dataclass(frozen=True)
class Workshop:
    """What bodies are placed and compiled with: open devices, prices and options.

    watches: whether a wait for a body's task ends when the device hangs
    """

    devices: Mapping[str, Device]
    calibration: Calibration
    options: ExecutionOptions = ExecutionOptions()
    watches: bool = False


def compiled_body(graph: Graph, workshop: Workshop) -> Program:
    """Place, plan and compile a static body.

    Errors: PlacementError, PlanError, CompileError and DeviceError, as a session
    """
    how, devices = workshop.options, workshop.devices
    costs = CostModel(devices, workshop.calibration)
    placement = place(graph, costs, PlacementOptions(sharding="off"))
    plan = make_plan(placement, how.subgraphs, how.execution)
    return compile_plan(plan, devices, None, how.timeout_s)


class Body:
    """A compiled body on memory of its own; one run at a time."""

    def __init__(self, graph: Graph, workshop: Workshop) -> None:
        """Compile a static body; errors as `compiled_body`."""
        context = ExecutionContext(compiled_body(graph, workshop))
        self.plan = context.program.plan
        placed = self.plan.graph
        is_watched = workshop.watches and works_beside_host(self.plan)
        self._watch = TaskWatch(self.plan) if is_watched else None
        if self._watch is not None:
            watch_calls(context.calls, self._watch)
        self._run = serial_runner(self.plan, context.calls, self._watch)
        self._context, self._devices = context, workshop.devices
        self._inputs = [context.view(value) for value in placed.inputs]
        self._outputs = [context.view(value) for value in placed.outputs]

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs, given the inputs in order; shapes and dtypes are the graph's."""
        for view, array in zip(self._inputs, arrays, strict=True):
            view[...] = array
        try:
            self._run()
        except BaseException as error:
            if self._watch is not None:
                self._watch.reset()
                if isinstance(error, DeviceError) and self._watch.hung is not None:
                    lose(self._devices, self._watch.hung, self._context)
            raise
        return [view.copy() for view in self._outputs]

    def check(self) -> None:
        """Errors: DeviceError of kind HANG, if a task that is under way takes too long"""
        stuck = None if self._watch is None else self._watch.stuck()
        if stuck is not None:
            hung = stuck.give_up()
            lose(self._devices, hung, self._context)
            raise hung
