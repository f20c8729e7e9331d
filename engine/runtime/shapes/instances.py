"""Run a graph with open shapes: an instance for each set of input shapes, kept while it is used.

An instance binds the shapes, optimises the graph and cuts it (stage.py). Its region is a session of
its own on the same open devices. Where shapes depend on values, the host runs these steps, and the
rest of the graph gets instances by the shapes that the steps made. `instance.py` runs one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass

from trireme.ir.any_rank import has_late_rank
from trireme.ir.bind_shapes import bind_shapes, sizes_of
from trireme.ir.dims import substituted
from trireme.ir.graph import Graph
from trireme.ops.repeats import bodies_of
from trireme.runtime.shapes.ahead import Kept, Shapes
from trireme.runtime.shapes.closed import ClosedGraph, why_not_closed
from trireme.runtime.shapes.instance import (
    HostSteps,
    Instance,
    PlacedRegion,
    StageReport,
    StaticRegion,
    Tier,
    report_of,
    step_texts,
    value_of,
)
from trireme.runtime.shapes.polymorphic import PolymorphicGraph, usual_shapes
from trireme.runtime.shapes.resizable import ResizableGraph
from trireme.runtime.shapes.stage import (
    Served,
    Stage,
    check_pin,
    cut,
    has_branches,
    has_little_work,
    most_of,
    only_chooses,
    regions,
    with_symbols,
)
from trireme.runtime.shapes.variants import Chosen
from trireme.support.dtypes import Array
from trireme.support.errors import CompileError, InternalError, RunError, ShapeError
from trireme.support.forks import register_at_fork

MOST_FITTING = 1024
"""Shapes that are remembered to lie within the bounds."""
MOST_RESERVED_BYTES = 64 << 20
"""Scratch memory is planned for the bounds of symbols up to this; above, it grows with the runs."""


@dataclass(frozen=True)
class Tools:
    """What instances are made with.

    optimise: the passes that the caller chose
    open_region: opens a session for a static graph
    polymorphic: compiles a graph once for every shape, or says why not
    open_polymorphic: opens a session for such a graph at some shapes
    served: gives the nodes of a graph that a program for every shape may have; None for no cuts
    host: runs the nodes whose results have shapes that depend on values
    most: instances kept; the one unused for longest goes
    """

    optimise: Callable[[Graph], Graph]
    open_region: Callable[[Graph], PlacedRegion]
    polymorphic: Callable[[Graph, Sequence[Sequence[int]]], PolymorphicGraph | str]
    open_polymorphic: Callable[[PolymorphicGraph, Shapes], StaticRegion]
    served: Served | None
    host: HostSteps
    most: int


class OpenGraph:
    """A graph whose inputs have open shapes, and its instances.

    path: the shapes of the stages before this one
    most: by input, the most of its dimensions that only a run tells
    """

    def __init__(
        self,
        graph: Graph,
        tools: Tools,
        kept: Kept[Instance],
        path: tuple[Shapes, ...] = (),
        most: Mapping[int, int] | None = None,
    ) -> None:
        self.graph, self._tools, self._kept = graph, tools, kept
        self._path = path
        self._names = [value.name for value in graph.input_values()]
        self.reset_after_fork()
        register_at_fork(self)
        self._chooses: bool | None = None
        self._most = most or {}
        if path and not has_late_rank(list(graph.input_values())):
            self.graph = tools.optimise(with_symbols(graph, self._most))
        self._chosen = Chosen(self.graph, self._of_variant)
        is_ready = path or self._chosen.has_variants
        self._polymorphic = None if is_ready else self._compiled_once(usual_shapes(graph))
        self._parts: list[_Part] | None = None
        self._fitting: set[Shapes] = set()

    def reset_after_fork(self) -> None:
        """Be free, in a forked child, of the threads that made instances."""
        self._making = threading.Lock()

    def _compiled_once(self, shapes: Sequence[Sequence[int]]) -> PolymorphicGraph | str | None:
        """Return the program for every shape, or why none; None if these shapes do not fit."""
        try:
            made = self._tools.polymorphic(self.graph, shapes)
        except (ShapeError, RunError):  # sizes of several symbols may have to agree
            return None
        if isinstance(made, PolymorphicGraph):
            _reserve(made, self.graph)
        return made

    def _variant(self, shapes: Shapes) -> OpenGraph | None:
        """Return the open graph that these shapes choose; None where this one has no variants.

        Errors: ShapeError, if they do not fit the graph
        """
        if not self._chosen.has_variants:
            return None
        with self._making:
            return self._chosen.at(shapes)

    def _of_variant(self, graph: Graph) -> OpenGraph:
        made = graph if self._path else self._tools.optimise(graph)
        return OpenGraph(made, self._tools, self._kept, self._path, self._most)

    def instance(self, shapes: Shapes) -> Instance:
        """Return the instance for these shapes of the inputs, in their order.

        Errors: ShapeError, if they do not fit the graph; those of opening a session
        """
        if (variant := self._variant(shapes)) is not None:
            return variant.instance(shapes)
        return self._kept.get((*self._path, shapes), lambda: self._make(shapes))

    def hold(self, shapes: Shapes) -> Generator[Instance, None, None]:
        """Yield the instance for these shapes, which is not closed until the `for` ends.

        Errors: as `instance`
        """
        if (variant := self._variant(shapes)) is not None:
            return variant.hold(shapes)
        return self._kept.hold((*self._path, shapes), lambda: self._make(shapes))

    def prepare(self, shapes: Shapes) -> None:
        """Make the instance for these shapes unless there is one; in any thread.

        Of a graph in regions only the first is known before a run.
        Errors: as `instance`
        """
        if (variant := self._variant(shapes)) is not None:
            variant.prepare(shapes)
            return
        if parts := self.parts(shapes):
            parts[0].graph.prepare(shapes)
            return
        self._kept.prepare((*self._path, shapes), lambda: self._make(shapes))

    @property
    def resizable(self) -> ResizableGraph | None:
        """The program for every shape as one whose calls change their shape."""
        made = self._polymorphic
        return made.resizable if isinstance(made, PolymorphicGraph) else None

    def parts(self, shapes: Shapes) -> Sequence[_Part]:
        """Return the regions that runs go through, in order; none where an instance runs it all.

        Errors: ShapeError, if the shapes do not fit the graph
        """
        if (variant := self._variant(shapes)) is not None:
            return variant.parts(shapes)
        with self._making:
            if self._parts is None:
                sizes_of(self.graph, shapes)
                self._decide(shapes)
                self._parts = self._cut() if isinstance(self._polymorphic, str) else []
            if self._parts and shapes not in self._fitting:
                sizes_of(self.graph, shapes)
                if len(self._fitting) >= MOST_FITTING:
                    self._fitting.clear()
                self._fitting.add(shapes)
            return self._parts

    def _cut(self) -> list[_Part]:
        """Return the graph in regions, of which one has a program for every shape that pays."""
        if self._tools.served is None:
            return []
        served = self._tools.served(self.graph)
        parts = self._opened(regions(self.graph, served))
        if parts and parts[0].graph._decide_usual():
            return parts
        parts = self._opened(regions(self.graph, served, join_first=True))
        return parts if parts and parts[1].graph._pays() else []

    def _opened(self, graphs: Sequence[Graph]) -> list[_Part]:
        parts, most = [], most_of(self.graph, self.graph.nodes)
        for number, graph in enumerate(graphs):
            path = (*self._path, ((-1 - number,),))
            one = OpenGraph(graph, self._tools, self._kept, path, most)
            parts.append(_Part(one, graph.inputs, graph.outputs))
        return parts

    def _pays(self) -> bool:
        """Whether a part of the graph has a program for every shape that is worth it."""
        if self._chosen.has_variants:
            return False
        if self._decide_usual():
            return True
        self._parts = self._cut()
        return bool(self._parts)

    def _decide_usual(self) -> bool:
        """Whether one program serves every shape, as far as usual sizes tell."""
        if self._chosen.has_variants:
            return False
        try:
            self._decide(tuple(map(tuple, usual_shapes(self.graph))))
        except (ShapeError, RunError):
            return False
        return isinstance(self._polymorphic, PolymorphicGraph)

    def _make(self, shapes: Shapes) -> Instance:
        with self._making:
            made = self._polymorphic_instance(shapes)
        if not isinstance(made, str):
            return made
        return self._branching(shapes, made) or self._specialised(shapes, made)

    def _branching(self, shapes: Shapes, why: str) -> Instance | None:
        """Return the instance of a graph of branches, whose bodies stay open; None for others."""
        if self._chooses is None:
            self._chooses = only_chooses(self.graph, shapes)
        if not self._chooses:
            return None
        sizes_of(self.graph, shapes)
        return self._stepwise(shapes, why)

    def _stepwise(self, shapes: Shapes, why: str) -> Instance:
        """Return the instance in which the host goes from node to node and bodies stay open."""
        for node in self.graph.nodes:
            if not bodies_of(node):
                check_pin(node, "the host runs the nodes around its branches, which stay open")
        stage = Stage(self.graph, None, self.graph.nodes, None)
        by_name = dict(zip(self._names, shapes, strict=True))
        report = StageReport(by_name, 0, "", "reference", why, step_texts(stage))
        return Instance(stage, None, None, report)

    def _polymorphic_instance(self, shapes: Shapes) -> Instance | str:
        """Return an instance of the program for every shape, or why there is none."""
        made = self._decide(shapes)
        if isinstance(made, str):
            return made
        try:
            return self._of_all_shapes(made, shapes)
        except CompileError as error:
            return error.summary

    def _decide(self, shapes: Shapes) -> PolymorphicGraph | str:
        """Return the program for every shape, or why there is none."""
        if self._polymorphic is None:
            made = self._late(shapes) if self._path else self._compiled_once(shapes)
            self._polymorphic = made or "no sizes were found that its symbols agree on"
        return self._polymorphic

    def _late(self, shapes: Shapes) -> PolymorphicGraph | str | None:
        """Return the program of a later stage for every shape; none pays for little work."""
        if why := why_not_closed(self.graph):
            return why
        try:
            usual = ClosedGraph(self.graph).at(usual_shapes(self.graph))
        except (ShapeError, RunError):
            usual = ClosedGraph(self.graph).at(shapes)
        if has_little_work(usual):
            return "it has little work at usual sizes"
        return self._compiled_once(shapes)

    def _of_all_shapes(self, program: PolymorphicGraph, shapes: Shapes) -> Instance:
        region = self._tools.open_polymorphic(program, shapes)
        stage = Stage(self.graph, self.graph, (), None)
        by_name = dict(zip(self._names, shapes, strict=True))
        report = StageReport(by_name, program.node_count, program.device, "polymorphic", "", ())
        return Instance(stage, region, None, report)

    def _specialised(self, shapes: Shapes, why: str) -> Instance:
        """Return the instance of a program compiled for these shapes."""
        try:
            bound = bind_shapes(self.graph, dict(zip(self._names, shapes, strict=True)))
        except ShapeError as error:
            if not has_branches(self.graph):
                raise
            sizes_of(self.graph, shapes)
            return self._stepwise(shapes, f"{why}; a branch refuses the shapes: {error.summary}")
        stage = cut(self._tools.optimise(bound))
        region: PlacedRegion | None = None
        if stage.region is not None and not self._is_small(stage.region):
            region = self._tools.open_region(stage.region)
        rest = None
        if stage.rest is not None:
            path = (*self._path, shapes)
            rest = OpenGraph(stage.rest, self._tools, self._kept, path, stage.most)
        tier: Tier = "reference" if region is None else "specialised"
        return Instance(stage, region, rest, report_of(stage, region, tier, why))

    def _is_small(self, region: Graph) -> bool:
        return bool(self._path) and has_little_work(region)

    def run(self, arrays: Sequence[Array], done: list[StageReport]) -> list[Array]:
        """Return the outputs in order, given an array for each input in order.

        done: gets the report of each stage; a StageWatch gets what each took as well
        """
        shapes = tuple(array.shape for array in arrays)
        if (variant := self._variant(shapes)) is not None:
            return variant.run(arrays, done)
        if parts := self.parts(shapes):
            return self._run_parts(parts, arrays, done)
        for instance in self.hold(shapes):
            return instance.run(arrays, done, self._tools.host)
        raise InternalError("no instance was found")

    def _run_parts(
        self, parts: Sequence[_Part], arrays: Sequence[Array], done: list[StageReport]
    ) -> list[Array]:
        known: dict[int, Array] = dict(zip(self.graph.inputs, arrays, strict=True))
        for part in parts:
            results = part.graph.run([known[value] for value in part.inputs], done)
            known |= dict(zip(part.outputs, results, strict=True))
        return [value_of(self.graph, value, known) for value in self.graph.outputs]


def _reserve(program: PolymorphicGraph, graph: Graph) -> None:
    """Have the scratch memory of the largest shapes, if all symbols have a bound and it is small.

    So no run within the bounds allocates scratch.
    """
    sizes = {name: most for name, (_, most) in graph.symbols.items() if most is not None}
    if len(sizes) != len(graph.symbols):
        return
    inputs = graph.input_values()
    try:
        largest = program.program([[int(substituted(d, sizes)) for d in v.shape] for v in inputs])
    except (ShapeError, RunError, CompileError):  # the bounds do not go together
        return
    if sum(largest.scratch_bytes().values()) <= MOST_RESERVED_BYTES:
        program.reserve(largest)


@dataclass(frozen=True)
class _Part:
    """A region of an open graph, and the values of that graph that it reads and makes."""

    graph: OpenGraph
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
