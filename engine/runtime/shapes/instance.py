"""What runs a graph at one set of input shapes, stage by stage, and what each stage took."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from trireme.ir.effects import States
from trireme.ir.graph import Graph, Node
from trireme.ir.interpreter import interpret
from trireme.placement.placement import Placement
from trireme.profiling.staged import StageTimes
from trireme.runtime.shapes.stage import Stage
from trireme.support.dtypes import Array
from trireme.support.errors import RunError

Tier = Literal["polymorphic", "specialised", "reference", "dataflow"]


@dataclass(frozen=True)
class StageReport:
    """What one stage of a run was.

    shapes: of its inputs, by name
    nodes: the nodes of its region
    on: the devices of the region, or "numpy reference"; "" without nodes
    tier: "polymorphic" where one program serves every shape, "specialised" where the program is
        compiled for these shapes, "reference" for numpy, "dataflow" for a dynamic schedule; why is
        why it is not polymorphic
    steps: the nodes that the host ran, because the shapes of their results depend on values
    fallbacks: of the steps, each body of control flow that is not compiled, and why
    state: how the tied states of the session are kept
    bucket: the sizes of symbols that the feeds were padded to; none where shapes run as they are
    padding: the share of the work that was padding, 0 to 1
    """

    shapes: Mapping[str, tuple[int, ...]]
    nodes: int
    on: str
    tier: Tier
    why: str
    steps: tuple[str, ...]
    fallbacks: tuple[str, ...] = ()
    state: str = ""
    bucket: Mapping[str, int] = field(default_factory=dict)
    padding: float = 0.0

    @property
    def has_plan(self) -> bool:
        """Whether one plan runs all of the stage."""
        return not self.steps and self.tier in ("polymorphic", "specialised")

    @property
    def ran_by(self) -> str:
        """Who ran the nodes of the stage: its devices, numpy and the host."""
        ran = [f"{self.on} ran {self.nodes} nodes"] if self.nodes else []
        return ", then ".join([*ran, *(f"the host ran {step}" for step in self.steps)])

    def __str__(self) -> str:
        shapes = ", ".join(f"{name} {list(shape)}" for name, shape in self.shapes.items())
        lines = [f"{shapes}:"]
        if self.nodes:
            why = f" ({self.why})" if self.why else ""
            lines = [f"{shapes}: {self.nodes} nodes on {self.on}, {self.tier}{why}"]
        if self.bucket:
            sizes = ", ".join(f"{name}={size}" for name, size in self.bucket.items())
            lines.append(f"  bucket {sizes}: {self.padding:.0%} of the work is padding")
        lines += [f"  then host: {step}" for step in self.steps]
        lines += [f"    {fallback}" for fallback in self.fallbacks]
        lines += [f"  {self.state}"] if self.state else []
        return "\n".join(lines)


class StagesRan(list[StageReport]):
    """The reports of a run.

    regions: what ran the region of each stage; None where numpy did
    """

    def __init__(self) -> None:
        super().__init__()
        self.regions: list[object] = []


class StageWatch(StagesRan):
    """The reports of a run, and the times of its stages; wall_s: the seconds of the run."""

    def __init__(self) -> None:
        super().__init__()
        self.wall_s = 0.0
        self._laps: list[_Laps] = []

    def begin(self) -> _Laps:
        """Return the clock of a stage that begins."""
        self._laps.append(_Laps())
        return self._laps[-1]

    @property
    def times(self) -> list[StageTimes]:
        """What each stage took, in order."""
        return [StageTimes(one.region_s, tuple(one.steps_s), one.grown_bytes) for one in self._laps]


class _Laps:
    """The clock of one stage."""

    def __init__(self) -> None:
        self.region_s, self.grown_bytes = 0.0, 0
        self.steps_s: list[float] = []
        self._last = time.perf_counter()

    def _lap(self) -> float:
        now = time.perf_counter()
        took, self._last = now - self._last, now
        return took

    def region_ran(self) -> None:
        """Note that the region ended."""
        self.region_s = self._lap()

    def step_ran(self, results: Sequence[Array]) -> None:
        """Note that a step ended with these results."""
        self.grown_bytes += sum(array.nbytes for array in results)
        self.steps_s.append(self._lap())


class StaticRegion(Protocol):
    """What runs a graph of static shapes: a session."""

    @property
    def graph(self) -> Graph:
        """The graph that runs compute."""

    @property
    def devices(self) -> Mapping[str, object]:
        """The open devices, by name."""

    def run(
        self, feeds: Mapping[str, Any], out: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        """Return the outputs by name."""

    def close(self) -> None:
        """Release the resources."""


class PlacedRegion(StaticRegion, Protocol):
    """A session of a graph that was placed for its shapes."""

    @property
    def placement(self) -> Placement:
        """Where every node runs."""


class NextStage(Protocol):
    """What runs the rest of a stage, at the shapes that its steps made."""

    def run(self, arrays: Sequence[Array], done: list[StageReport]) -> list[Array]:
        """Return the outputs in order, given an array for each input in order."""


@dataclass(frozen=True)
class HostSteps:
    """How the host runs the nodes that are in no region.

    run: gives the results of a node of a graph; None stands for an input that is left out
    take_fallbacks: gives what bodies of control flow were not compiled since it was asked last
    states: the variables that nodes read and write
    """

    run: Callable[[Graph, Node, list[Array | None]], Sequence[Array]]
    take_fallbacks: Callable[[], tuple[str, ...]]
    states: States


@dataclass(frozen=True)
class Instance:
    """A graph for one set of input shapes.

    region: what runs the region; None where there is none or the numpy references run it
    rest: the next stage
    """

    stage: Stage
    region: StaticRegion | None
    rest: NextStage | None
    report: StageReport

    def close(self) -> None:
        """Close the region."""
        if self.region is not None:
            self.region.close()

    def run(self, arrays: Sequence[Array], done: list[StageReport], host: HostSteps) -> list[Array]:
        """Return the outputs in order, given an array for each input in order.

        done: gets the report of this stage and of the next ones; a StageWatch gets what each took
            as well
        """
        stage = self.stage
        place = len(done)
        done.append(self.report)
        if isinstance(done, StagesRan):
            done.regions.append(self.region)
        watch = done.begin() if isinstance(done, StageWatch) else None
        known: dict[int, Array] = dict(zip(stage.graph.inputs, arrays, strict=True))
        if stage.region is not None:
            known |= self._run_region(stage.region, known, host.states)
        if watch is not None:
            watch.region_ran()
        if stage.steps:  # those of a run that failed are forgotten
            host.take_fallbacks()
        for node in stage.steps:
            results = host.run(stage.graph, node, _operands(stage.graph, node, known))
            known |= dict(zip(node.outputs, results, strict=True))
            if watch is not None:
                watch.step_ran(results)
        if stage.steps and (fallbacks := host.take_fallbacks()):
            done[place] = replace(self.report, fallbacks=fallbacks)
        if self.rest is not None and stage.rest is not None:
            rest = stage.rest  # the ids are those of this stage; the next one has its own
            results = self.rest.run([known[value] for value in rest.inputs], done)
            known |= dict(zip(rest.outputs, results, strict=True))
        return [value_of(stage.graph, value, known) for value in stage.graph.outputs]

    def _run_region(
        self, region: Graph, known: Mapping[int, Array], states: States
    ) -> dict[int, Array]:
        if self.region is None:
            feeds = {value: known[value] for value in region.inputs}
            return interpret(region, feeds, states=states.arrays)
        by_name = {region.values[v].name: known[v] for v in region.inputs}
        results = self.region.run(by_name)
        return {value: results[region.values[value].name] for value in region.outputs}


def report_of(stage: Stage, region: PlacedRegion | None, tier: Tier, why: str) -> StageReport:
    """Return the report of a stage; why: why no program serves every shape."""
    nodes = () if stage.region is None else stage.region.nodes
    on = "numpy reference" if region is None else _devices_used(region)
    shapes = {value.name: value.type.dims for value in stage.graph.input_values()}
    return StageReport(shapes, len(nodes), on if nodes else "", tier, why, step_texts(stage))


def step_texts(stage: Stage) -> tuple[str, ...]:
    """Return the labels of the steps, with the proven most of what only a run tells."""
    return tuple(_step_text(stage, node) for node in stage.steps)


def value_of(graph: Graph, value: int, known: Mapping[int, Array]) -> Array:
    """Return a constant's data, or the array that was made; raise RunError if there is none."""
    data = graph.values[value].data
    if data is not None:
        return data
    if value not in known:
        raise RunError(f"'{graph.values[value].name}' was not made")
    return known[value]


def _devices_used(region: PlacedRegion) -> str:
    placed = region.placement
    return ", ".join(name for name in region.devices if placed.uses(name))


def _operands(graph: Graph, node: Node, known: Mapping[int, Array]) -> list[Array | None]:
    return [None if value is None else value_of(graph, value, known) for value in node.inputs]


def _step_text(stage: Stage, node: Node) -> str:
    most = stage.most.get(node.outputs[0])
    return node.label if most is None else f"{node.label}, at most {most}"
