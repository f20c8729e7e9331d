"""A model scheduled dynamically: its dataflow form, its ops compiled one by one, and its runs."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from trireme.ir.bind_shapes import retyped
from trireme.ir.effects import States, uses_state
from trireme.ir.graph import Graph, Node, TensorType, graph_of
from trireme.ir.interpreter import evaluate
from trireme.runtime.control.body import Body, Workshop
from trireme.runtime.dataflow.executor import Executor, PrimitiveSpan
from trireme.runtime.dataflow.lower import lower
from trireme.runtime.shapes.feeds import fed_arrays, handed_out
from trireme.runtime.shapes.instance import StageReport
from trireme.support.dtypes import Array, dtype_name
from trireme.support.errors import DeviceError, FaultKind, RunError, TriremeError
from trireme.support.forks import register_at_fork

WORKERS = 4
"""Threads that run ops of a session; compiled ops take turns on them."""
MOST_OPS = 512
"""Compiled ops that are kept; the one unused for longest goes."""


class CompiledOps:
    """Runs nodes on open devices, each compiled for the types that it is given.

    Compiled nodes take turns; numpy and Python operators run beside them.
    references: why numpy runs an op, by its label
    """

    def __init__(self, workshop: Workshop, states: States) -> None:
        self._workshop, self._states = workshop, states
        self._bodies: OrderedDict[Hashable, Body | None] = OrderedDict()
        self._hung: DeviceError | None = None
        self.references: dict[str, str] = {}
        self.reset_after_fork()
        register_at_fork(self)

    def reset_after_fork(self) -> None:
        """Be free, in a forked child, of the ops of other threads."""
        self._lock, self._device = threading.Lock(), threading.Lock()
        self._running: Body | None = None

    def watch(self) -> None:
        """Give up ops that hang, of those that are compiled from now on."""
        self._workshop = replace(self._workshop, watches=True)

    def run(self, graph: Graph, node: Node, arrays: list[Array | None]) -> Sequence[Array]:
        """Return the outputs of a node, given an array for each input."""
        if uses_state(node):
            return evaluate(graph, node, arrays, self._states.arrays)
        given = {v: a for v, a in zip(node.inputs, arrays, strict=True) if v is not None}
        alone = graph_of(graph, node)
        fed = [given[value] for value in alone.inputs]
        if any(array is None or array.dtype == object for array in fed):
            return evaluate(graph, node, arrays, self._states.arrays)
        body = self._body(node, alone, [a for a in fed if a is not None])
        if body is None:
            return evaluate(graph, node, arrays, self._states.arrays)
        with self._device:
            self._check_not_lost()
            self._running = body
            try:
                return body([array for array in fed if array is not None])
            finally:
                self._running = None

    def check(self) -> None:
        """Errors: DeviceError of kind HANG, if the op that runs takes too long"""
        self._check_not_lost()
        running = self._running
        if running is not None:
            try:
                running.check()
            except DeviceError as error:
                self._hung = error
                raise

    def _check_not_lost(self) -> None:
        """Errors: DeviceError of kind LOST, once an op has hung: its thread has the devices"""
        hung = self._hung
        if hung is not None:
            raise DeviceError(hung.summary).of_device(hung.device).of_kind(FaultKind.LOST)

    def _body(self, node: Node, alone: Graph, fed: Sequence[Array]) -> Body | None:
        types = tuple(TensorType(a.shape, dtype_name(a.dtype)) for a in fed)
        key = id(node), types
        with self._lock:
            if key not in self._bodies:
                self._bodies[key] = self._compiled(node, alone, types)
                if len(self._bodies) > MOST_OPS:
                    self._bodies.popitem(last=False)
            self._bodies.move_to_end(key)
            return self._bodies[key]

    def _compiled(self, node: Node, alone: Graph, types: Sequence[TensorType]) -> Body | None:
        """Return a node compiled for these types; None where numpy must run it, and note why."""
        try:
            made = retyped(alone, types)
            if not all(made.type(out).is_static for out in made.outputs):
                self.references[node.label] = "the shape of its result depends on values"
                return None
            return Body(made, self._workshop)
        except TriremeError as error:
            self.references[node.label] = error.summary
            return None


class DataflowProgram:
    """A graph in its dataflow form, as a session runs it.

    Its results have the bits of the structured form: a node computes the same alone or in a region.
    spans: when each op of the last run ran, and in which frames and iterations
    """

    last = None

    def __init__(self, graph: Graph, workshop: Workshop, states: States, workers: int = 0) -> None:
        self.graph = graph
        self.ops = CompiledOps(workshop, states)
        self.primitives = lower(graph)
        timeout_s = workshop.options.timeout_s
        self._executor = Executor(self.primitives, self.ops.run, workers, timeout_s)
        self._inputs, self._outputs = list(graph.input_values()), list(graph.output_values())
        self._on = ", ".join(workshop.devices)
        self.stages: list[StageReport] = []

    def watch(self) -> None:
        """See CompiledOps."""
        self.ops.watch()
        self._executor.watch(self.ops.check)

    @property
    def spans(self) -> Sequence[PrimitiveSpan]:
        """When each op of the last run ran."""
        return self._executor.spans

    def run(
        self, feeds: Mapping[str, Any], out: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        """Return the outputs by name, which the caller owns.

        Errors: RunError, if a feed or `out` is unknown or does not fit; those of the ops
        """
        arrays = fed_arrays(self._inputs, feeds)
        results = self._executor.run(dict(zip(self.graph.inputs, arrays, strict=True)))
        shapes = {v.name: array.shape for v, array in zip(self._inputs, arrays, strict=True)}
        steps = tuple(f"{label}: {why}" for label, why in self.ops.references.items())
        count = len({span.label for span in self.spans})
        self.stages[:] = [StageReport(shapes, count, self._on, "dataflow", "", steps)]
        return handed_out(self._outputs, results, arrays, out)

    def whole(self, feeds: Mapping[str, Any]) -> NoReturn:
        """Raise RunError: no plan holds the whole graph."""
        raise RunError(
            "the schedule is dynamic, so there is no plan",
            fix="execution_options=ExecutionOptions(schedule='static')",
        )

    def close(self) -> None:
        """End the threads."""
        self._executor.close()
