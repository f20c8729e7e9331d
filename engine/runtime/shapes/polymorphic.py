"""Regions that one device compiles once for every shape within the bounds of its symbols."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from trireme.backend.capabilities import (
    PolymorphicDevice,
    PolymorphicExecutable,
    ResizableExecutable,
)
from trireme.backend.device import Buffer, Device
from trireme.cost.calibration import Calibration
from trireme.cost.model import CostModel
from trireme.ir.decided import DecidedValues
from trireme.ir.dims import Bounds, substituted
from trireme.ir.effects import uses_state
from trireme.ir.graph import Graph
from trireme.ir.op import get_op
from trireme.placement.options import PlacementOptions
from trireme.placement.place import place
from trireme.placement.placement import Placement
from trireme.plan.plan import Plan, Task, make_plan
from trireme.runtime.program.context import ExecutionContext
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.program.program import Program
from trireme.runtime.shapes.ahead import Closes
from trireme.runtime.shapes.call_pool import grown
from trireme.runtime.shapes.closed import ClosedGraph, why_not_closed
from trireme.runtime.shapes.resizable import ResizableGraph, ShapeRun, symbols_of_inputs
from trireme.support.cached import cached_property
from trireme.support.errors import CompileError, InternalError
from trireme.support.forks import register_at_fork

Region = TypeVar("Region", bound=Closes)
USUAL_SIZE = 64
"""The size of a symbol that a placement is searched at, as far as its bounds allow."""


class PolymorphicGraph:
    """A graph on one device, with one program for every shape.

    closed: gives the graph for a set of shapes
    device: the name of the device
    turn: is held by a run on scratch memory that all shapes share
    """

    def __init__(
        self,
        closed: ClosedGraph,
        placement: Placement,
        device: str,
        executable: PolymorphicExecutable,
        costs: CostModel,
        asked: PlacementOptions,
        options: ExecutionOptions,
    ) -> None:
        self.closed, self._placement, self.device = closed, placement, device
        self._executable, self._options = executable, options
        self._costs, self._asked = costs, asked
        self._scratch: Buffer | None = None
        self.reset_after_fork()
        register_at_fork(self)
        self.node_count = len(placement.graph.nodes)

    def reset_after_fork(self) -> None:
        """Be free, in a forked child, of the runs of other threads."""
        self.turn = threading.RLock()

    def region(
        self,
        shapes: tuple[tuple[int, ...], ...],
        open_session: Callable[[Program], Region],
    ) -> Region | ShapeRun:
        """Return what runs a set of shapes.

        open_session: opens a session for their program
        Errors: as `program`
        """

        def opened() -> Region:
            return open_session(self.program(shapes))

        return opened() if self.resizable is None else self.resizable.at(shapes, opened)

    @cached_property
    def resizable(self) -> ResizableGraph | None:
        """The graph as calls that change their shape; None where the device has none."""
        executable, names = self._executable, symbols_of_inputs(self.closed.graph)
        if names is None or not isinstance(executable, ResizableExecutable):
            return None
        contents = DecidedValues(self.closed.graph, names)
        call = executable.resizable(contents)
        if call is None:
            return None
        (task,) = self._plan(self._placement).tasks
        region = _region(self.closed.graph, task)
        devices = self._costs.devices
        alloc = devices[self.device].alloc
        return ResizableGraph(self.closed, contents, region, call, devices, alloc)

    @property
    def runs_at_once(self) -> bool:
        """Whether runs on memory of their own may go on at the same time."""
        return self.resizable is not None

    def reserve(self, program: Program) -> None:
        """Have the scratch memory of a program, so that runs of smaller shapes allocate none."""
        needs = program.scratch_bytes()[self.device]
        if self.resizable is None:
            self._scratch_of(needs)
        else:
            self.resizable.calls.reserve(needs)

    def program(self, shapes: Sequence[Sequence[int]]) -> Program:
        """Return the program for a set of shapes, in about a millisecond a hundred nodes.

        Its placement has the estimates of the usual sizes; `priced` gives those of the shapes.
        Errors: ShapeError, if the shapes do not fit; CompileError, if they have another structure
        than was compiled
        """
        graph = self.closed.at(shapes)
        return self._program(replace(self._placement, source=graph, graph=graph))

    def priced(self, program: Program) -> Program:
        """Return a program with the estimates of its shapes."""
        asked = replace(self._asked, single_device=self.device)
        source = program.plan.placement.source
        return self._program(place(source, self._costs, asked))

    def _program(self, placement: Placement) -> Program:
        plan = self._plan(placement)
        executable = self._executable.at(_region(placement.graph, plan.tasks[0]))
        return Program(plan, self._costs.devices, (executable,))

    def _plan(self, placement: Placement) -> Plan:
        plan = make_plan(placement, self._options.subgraphs, self._options.execution)
        if len(plan.tasks) != 1:
            raise InternalError(f"{len(plan.tasks)} tasks of a graph on one device")
        return plan

    def context(
        self, program: Program, places: Mapping[int, Buffer] | None = None
    ) -> ExecutionContext:
        """Return memory for the program. All shapes share its scratch and take turns.

        Where calls change their shape, few sessions of a shape are opened; each has its own.
        places: where inputs lie that are not in the arena
        """
        needs = program.scratch_bytes()[self.device]
        if self.runs_at_once:
            return ExecutionContext(program, places=places)
        scratch = self._scratch_of(needs)
        empty = dict.fromkeys(program.devices)
        return ExecutionContext(program, {**empty, self.device: scratch}, places)

    def _scratch_of(self, needs: int) -> Buffer | None:
        """Return scratch memory of at least so many bytes; it grows by half at least."""
        self._scratch = grown(self._scratch, needs, self._costs.devices[self.device].alloc)
        return self._scratch


def polymorphic(
    graph: Graph,
    shapes: Sequence[Sequence[int]],
    devices: Mapping[str, Device],
    calibration: Calibration,
    asked: PlacementOptions,
    options: ExecutionOptions,
) -> PolymorphicGraph | str:
    """Return a graph with symbols, compiled once; a sentence where it cannot be.

    shapes: shapes of the inputs that are usual, for which it is placed
    Errors: ShapeError, if the shapes do not fit
    """
    if why := why_not_closed(graph) or _why_not_plain(graph):
        return why
    if options.execution != "sunk":
        return "every node is a task of its own (interactive)"
    closed = ClosedGraph(graph)
    usual = closed.at(shapes)
    costs = CostModel(devices, calibration)
    placement = place(usual, costs, asked)
    names = sorted(set(placement.device_of.values()))
    if len(names) != 1:
        return f"the nodes are placed on {', '.join(names)}" if names else "no node"
    device = devices[names[0]]
    if not isinstance(device, PolymorphicDevice):
        return f"{names[0]} has no kernels for every shape"
    for node in graph.nodes:
        reason = device.polymorphic_reason(graph, node)
        if reason is not None:
            return f"{names[0]}: {node.label}: {reason}"
    (task,) = make_plan(placement, options.subgraphs, options.execution).tasks
    try:
        (executable,) = device.compile_polymorphic([_region(graph, task)])
    except CompileError as error:
        return error.summary
    return PolymorphicGraph(closed, placement, names[0], executable, costs, asked, options)


def polymorphic_device(devices: Mapping[str, Device]) -> str | None:
    """Return the name of the first device with kernels for every shape; None without one."""
    return next((n for n, one in devices.items() if isinstance(one, PolymorphicDevice)), None)


def usual_shapes(graph: Graph) -> list[tuple[int, ...]]:
    """Return usual sizes for the shapes of a graph's inputs, within the bounds of its symbols."""
    sizes = usual_sizes(graph)
    return [
        tuple(int(substituted(dim, sizes)) for dim in value.shape) for value in graph.input_values()
    ]


def usual_sizes(graph: Graph) -> dict[str, int]:
    """Return a usual size for each symbol, within its bounds."""
    return {name: _usual(bounds) for name, bounds in graph.symbols.items()}


def _usual(bounds: Bounds) -> int:
    least, most = bounds
    return max(least, USUAL_SIZE if most is None else min(most, USUAL_SIZE))


def _why_not_plain(graph: Graph) -> str:
    for node in graph.nodes:
        if uses_state(node):
            return f"{node.label} works on a state"
        if get_op(node.op).has_body:
            return f"{node.label} is control flow"
    return ""


def _region(graph: Graph, task: Task) -> Graph:
    """Return the graph with those inputs and outputs that its task reads and makes."""
    return replace(graph, inputs=task.inputs, outputs=task.outputs)
