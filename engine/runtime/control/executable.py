"""A task of the host that holds control flow, as an executable: its bodies are programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trireme.backend.device import (
    HOST,
    Buffer,
    Done,
    Event,
    Executable,
    NodeSpan,
    host_alloc,
    host_view,
)
from trireme.ir.graph import Graph, Node
from trireme.ir.interpreter import evaluate
from trireme.ops.repeats import bodies_of, repeat_of
from trireme.passes.turns import has_no_end, turn_of
from trireme.runtime.control.operands import (
    ControlOperands,
    LazyBodySpans,
    Tally,
    endless,
    watch,
    watch_calls,
)
from trireme.runtime.control.repeat import DRIVEN, RepeatDriver
from trireme.runtime.loop.execute import serial_order, serial_runner
from trireme.runtime.program.context import ExecutionContext
from trireme.runtime.program.program import Program
from trireme.support.dtypes import Array
from trireme.support.errors import CompileError, InternalError

if TYPE_CHECKING:
    from trireme.runtime.loop.task_watch import TaskWatch


class BranchDriver:
    """An `if` on its memory. An output that nobody reads has memory of its own."""

    kernel = "if, driven by the host"

    def __init__(self, operands: ControlOperands, branches: Sequence[Program]) -> None:
        self._condition = operands.array(0).reshape(-1)
        captures = [operands.buffer(k) for k in range(1, len(operands.inputs))]
        self.contexts = [_bound(one, captures, operands.outputs) for one in branches]
        self._orders = [serial_order(one.program.plan, one.calls) for one in self.contexts]
        self._watches: Sequence[TaskWatch | None] = [None] * len(self.contexts)
        self._then, self._else = (
            serial_runner(one.program.plan, one.calls) for one in self.contexts
        )

    def watch_bodies(self, run: TaskWatch) -> None:
        """See CallWithBodies."""
        self._watches = [run.of_body(one.program.plan) for one in self.contexts]
        self._then, self._else = (
            serial_runner(one.program.plan, one.calls, watch)
            for one, watch in zip(self.contexts, self._watches, strict=True)
        )
        for one in self.contexts:
            watch_calls(one.calls, run)

    def profiled(self) -> LazyBodySpans:
        """Run; return what tells how long the kernels of the branch took."""
        taken = 0 if self._condition[0] else 1
        context = self.contexts[taken]
        plan = context.program.plan
        tally = Tally(plan, ("then_branch", "else_branch")[taken])
        tally.add(watch(context, self._orders[taken], self._watches[taken]))
        return partial(tally.spans, 1)

    def run(self) -> None:
        """Run the branch that the condition takes."""
        if self._condition[0]:
            self._then()
        else:
            self._else()


def _bound(
    program: Program, captures: Sequence[Buffer], outputs: Sequence[Buffer]
) -> ExecutionContext:
    graph = program.plan.graph
    places = dict(zip(graph.inputs, captures, strict=True))
    unread = graph.outputs[len(outputs) :]
    places |= dict(zip(graph.outputs, outputs, strict=False))
    places |= {value: host_alloc(max(graph.type(value).nbytes, 1)) for value in unread}
    return ExecutionContext(program, places=places)


REFERENCE = "numpy reference"
Driver = BranchDriver | RepeatDriver
States = MutableMapping[str, Array]


class ControlExecutable(Executable):
    """The nodes of a task of the host, in order, at least one of them control flow.

    bodies: the program of each body that has one; numpy runs a node without
    states: where `variable` and `assign` find their arrays
    """

    def __init__(
        self,
        graph: Graph,
        bodies: Mapping[Graph, Program],
        states: States | None,
        timeout_s: float | None,
    ) -> None:
        self.graph, self.bodies, self.states = graph, bodies, states
        self.timeout_s = timeout_s
        self.kernels = {node.id: self._kernel(node) for node in graph.nodes}
        for node in graph.nodes:
            _check_end(graph, node)

    def listings(self, form: str) -> Mapping[str, str]:
        """Return the code of the bodies; a file is named by node, attribute and kernel."""
        return {
            f"{node.op}{node.id}.{key}.{name}": text
            for node in self.graph.nodes
            for key, body in bodies_of(node).items()
            if body in self.bodies
            for name, text in self.bodies[body].listings(form).items()
        }

    def programs_of(self, node: Node) -> list[Program] | None:
        """Return the programs of a node's bodies, in order; None where numpy runs it."""
        found = [self.bodies.get(body) for body in bodies_of(node).values()]
        made = [one for one in found if one is not None]
        return made if made and len(made) == len(found) else None

    def _kernel(self, node: Node) -> str:
        if self.programs_of(node) is None:
            return REFERENCE
        return BranchDriver.kernel if repeat_of(node.attrs) is None else DRIVEN

    def bind(self, args: Sequence[Buffer], scratch: Buffer | None) -> ControlCall:
        """Return a call on these places."""
        ids = (*self.graph.inputs, *self.graph.outputs)
        if len(args) != len(ids):
            raise InternalError(f"host: {len(args)} buffers bound, the graph has {len(ids)}")
        return ControlCall(self, dict(zip(ids, args, strict=True)))


def _check_end(graph: Graph, node: Node) -> None:
    """Raise CompileError if a loop surely has no end."""
    form = repeat_of(node.attrs)
    if form is None or not form.counts or not has_no_end(form):
        return
    trips, condition = (*node.inputs, None, None)[:2]
    known = None if condition is None else graph.values[condition].data
    begins = condition is None or (known is not None and bool(known.reshape(-1)[0]))
    if trips is None and begins:
        error = endless(node)
        raise CompileError(error.summary, fix=error.fix)


class ControlCall:
    """The nodes of a task on its memory."""

    def __init__(self, executable: ControlExecutable, places: dict[int, Buffer]) -> None:
        self._executable, self._places = executable, places
        self.drivers: dict[int, Driver] = {}
        graph = executable.graph
        self._nodes = [(node, self._bound(graph, node)) for node in graph.nodes]
        runs = [run for _, run in self._nodes]
        self.run: Callable[[], None] = runs[0] if len(runs) == 1 else self._in_order

    def watch_bodies(self, run: TaskWatch) -> None:
        """See CallWithBodies."""
        for driver in self.drivers.values():
            driver.watch_bodies(run)

    def launch(self, profile: bool = False) -> Event:
        """Run the nodes in order; complete when this returns."""
        if not profile:
            self.run()
            return Done()
        took: list[tuple[Node, str, float, float, LazyBodySpans]] = []
        for node, run in self._nodes:
            driver = self.drivers.get(node.id)
            start = time.perf_counter()
            if driver is None:
                run()
                took.append((node, REFERENCE, start, time.perf_counter(), tuple))
            else:
                bodies = driver.profiled()
                took.append((node, driver.kernel, start, time.perf_counter(), bodies))
        return Done(
            lambda: [
                NodeSpan((node.id,), kernel, start, end, bodies=bodies())
                for node, kernel, start, end, bodies in took
            ]
        )

    def _in_order(self) -> None:
        for _, run in self._nodes:
            run()

    def _bound(self, graph: Graph, node: Node) -> Callable[[], None]:
        programs = self._executable.programs_of(node)
        if programs is None:
            return self._reference(graph, node)
        inputs = [None if i is None else self._place(graph, i) for i in node.inputs]
        operands = ControlOperands(
            graph, node, inputs, [self._place(graph, i) for i in node.outputs]
        )
        form = repeat_of(node.attrs)
        driver: Driver = (
            BranchDriver(operands, programs)
            if form is None
            else RepeatDriver(
                operands, form, turn_of(form), programs[0], self._executable.timeout_s
            )
        )
        self.drivers[node.id] = driver
        return driver.run

    def _reference(self, graph: Graph, node: Node) -> Callable[[], None]:
        inputs = [None if i is None else self._view(graph, i) for i in node.inputs]
        outputs = [self._view(graph, i) for i in node.outputs]
        states = self._executable.states

        def run() -> None:
            made = evaluate(graph, node, inputs, states)
            for out, result in zip(outputs, made, strict=True):
                out[...] = result

        return run

    def _place(self, graph: Graph, value: int) -> Buffer:
        if value not in self._places:
            nbytes, data = graph.type(value).nbytes, graph.values[value].data
            self._places[value] = (
                host_alloc(max(nbytes, 1))
                if data is None
                else Buffer(HOST, np.ascontiguousarray(data).reshape(-1).view(np.uint8), 0, nbytes)
            )
        return self._places[value]

    def _view(self, graph: Graph, value: int) -> Array:
        data = graph.values[value].data
        return host_view(self._place(graph, value), graph.type(value)) if data is None else data
