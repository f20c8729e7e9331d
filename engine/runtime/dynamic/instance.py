"""What runs a graph at one set of input shapes: a region on devices, then steps on the host.

Comes in: a stage (stage.py), what was opened for its region, and arrays for the inputs. Goes out:
the outputs, and a report. OpenGraph (instances.py) makes instances; the rest of a stage is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from trireme.ir.effects import States
from trireme.ir.graph import Graph, Node
from trireme.ir.interpreter import interpret
from trireme.placement.placement import Placement
from trireme.runtime.dynamic.reports import StageReport, StagesRan, StageWatch, Tier
from trireme.runtime.dynamic.stage import Stage
from trireme.support.dtypes import Array
from trireme.support.errors import RunError


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
