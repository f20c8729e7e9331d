"""A model with open shapes as a session runs it: feeds by name, instances by their shapes."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from trireme.backend.capabilities import PolymorphicDevice
from trireme.ir.bind_shapes import sizes_of
from trireme.ir.graph import Graph, Node
from trireme.ir.interpreter import evaluate
from trireme.ir.op import get_op
from trireme.passes.pipeline import optimise
from trireme.placement.options import PlacementOptions
from trireme.placement.placement import Placement
from trireme.runtime.control.body import Workshop
from trireme.runtime.control.dynamic import ControlFlow
from trireme.runtime.control.open_loop import open_body
from trireme.runtime.models.prepare import Prepared
from trireme.runtime.program.feeds import refuse_names
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.shape_session import PlacedRegions
from trireme.runtime.shapes.ahead import Kept, Shapes, ShapesAhead
from trireme.runtime.shapes.buckets import BucketFit, Buckets
from trireme.runtime.shapes.feeds import FedArrays, ShapesRefused, feeds_of, handed_out
from trireme.runtime.shapes.instance import (
    HostSteps,
    Instance,
    PlacedRegion,
    StageReport,
    StagesRan,
    StageWatch,
    StaticRegion,
)
from trireme.runtime.shapes.instances import OpenGraph, Tools
from trireme.runtime.shapes.polymorphic import PolymorphicGraph, polymorphic
from trireme.runtime.shapes.resizable import ResizableGraph, ShapeRun
from trireme.runtime.shapes.stage import check_pins, served_nodes
from trireme.support.dtypes import Array
from trireme.support.errors import InternalError, RunError


@dataclass(frozen=True)
class Served:
    """What runs some feeds.

    feeds: what to feed it: those given, or padded ones
    cut: makes its outputs those of the feeds that were given
    """

    region: StaticRegion
    feeds: Mapping[str, Any]
    cut: Callable[[Mapping[str, Array]], dict[str, Array]]


class OpenProgram:
    """A graph with open shapes, the instances that serve it, and the last one that ran.

    buckets: the sizes that shapes are padded to; None where each runs as it is
    stages: what the stages of the last run were
    placed: places what ran the regions of a run
    """

    def __init__(
        self,
        graph: Graph,
        tools: Tools,
        placed: PlacedRegions,
        buckets: Buckets | None = None,
        kind: type[OpenGraph] = OpenGraph,
    ) -> None:
        self.graph, self._buckets = graph, buckets
        self._placed = placed
        self._regions: list[object] = []
        self._kept: Kept[Instance] = Kept(tools.most)
        served = graph if buckets is None else buckets.graph
        self._open = kind(served, tools, self._kept)
        self.ahead, self._most = ShapesAhead(), tools.most
        self._inputs = list(graph.input_values())
        self._outputs = list(graph.output_values())
        self._fed = FedArrays(self._inputs)
        self.last: Instance | None = None
        self._latest: tuple[Shapes, Instance] | None = None
        self.stages: list[StageReport] = []

    def beside(self) -> OpenProgram:
        """Return the same for another session: instances are shared, what ran last is its own."""
        made = copy(self)
        made.ahead, made.last, made.stages, made._regions = ShapesAhead(), None, [], []
        return made

    @property
    def pads(self) -> bool:
        """Whether feeds are padded to buckets."""
        return self._buckets is not None

    @property
    def kept(self) -> int:
        """The number of instances kept, of all stages."""
        return len(self._kept)

    def run(
        self, feeds: Mapping[str, Any], out: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        """Return the outputs by name, which the caller owns.

        Errors: RunError, if a feed or `out` is unknown or does not fit, or a feed is missing
        """
        arrays = self._fed(feeds)
        if self._buckets is not None:
            return self._run_padded(self._buckets, arrays, out)
        shapes = tuple([array.shape for array in arrays])
        latest = self._latest
        is_latest = latest is not None and latest[0] == shapes
        if latest is not None and is_latest and isinstance(latest[1].region, ShapeRun):
            return self._run_whole(latest[1], arrays, out)  # it needs nothing that is closed
        if not is_latest and self._is_cut(shapes):
            return handed_out(self._outputs, self._run_parts(arrays), arrays, out)
        for instance in self._held(shapes):
            if instance.stage.is_whole and instance.region is not None:
                self._latest = shapes, instance
                return self._run_whole(instance, arrays, out)
            return handed_out(self._outputs, self._run_stages(arrays), arrays, out)
        raise InternalError("no instance was found")

    @property
    def resizable(self) -> ResizableGraph | None:
        """The whole graph as one program whose calls change their shape."""
        return self._open.resizable if self._buckets is None else None

    def note(self, shapes: Shapes) -> None:
        """Have the instance of some shapes be the last one that ran."""
        self.stages[:] = [self._instance(shapes).report]

    def _run_whole(
        self, instance: Instance, arrays: list[Array], out: Mapping[str, Array] | None
    ) -> dict[str, Array]:
        """Run an instance whose region is the whole graph."""
        if instance.region is None:
            raise InternalError("no region runs the whole graph")
        self.last, self.stages = instance, [instance.report]
        if isinstance(instance.region, ShapeRun):
            return instance.region.run_arrays(arrays, out)
        self._placed.note_references([instance.region])
        feeds = {value.name: array for value, array in zip(self._inputs, arrays, strict=True)}
        return instance.region.run(feeds, out)

    def _is_cut(self, shapes: Shapes) -> bool:
        """Whether runs go through regions, because no instance runs the graph whole."""
        with ShapesRefused(self._inputs, shapes):
            return bool(self._open.parts(shapes))

    def _run_parts(self, arrays: list[Array]) -> list[Array]:
        self.last = None
        return self._run_stages(arrays)

    def _run_stages(self, arrays: list[Array]) -> list[Array]:
        done = StagesRan()
        with ShapesRefused(self._inputs, tuple(array.shape for array in arrays)):
            results = self._open.run(arrays, done)
        self.stages, self._regions = list(done), done.regions
        self._placed.note_references(done.regions)
        return results

    def placements(self) -> list[Placement]:
        """Return the placement of each region of the last run, priced at its sizes, in order.

        Nodes that the host or numpy runs have none.
        """
        is_whole = self.last is not None and self.last.stage.is_whole
        regions = [self.last.region] if self.last is not None and is_whole else self._regions
        return self._placed.of(regions)

    def _run_padded(
        self, buckets: Buckets, arrays: list[Array], out: Mapping[str, Array] | None
    ) -> dict[str, Array]:
        fit, made = self._fitted(buckets, arrays)
        shapes = tuple(array.shape for array in made)
        if self._is_cut(shapes):
            results = self._run_parts(made)
        else:
            self._instance(shapes)
            results = self._run_stages(made)
        results = buckets.cut(results, fit)
        self.stages = [
            replace(stage, bucket=fit.sizes, padding=fit.padding) for stage in self.stages
        ]
        return handed_out(self._outputs, results, arrays, out)

    def _fitted(self, buckets: Buckets, arrays: list[Array]) -> tuple[BucketFit, list[Array]]:
        """Return the bucket of feeds, and what is fed to the graph that is padded."""
        shapes = tuple(array.shape for array in arrays)
        with ShapesRefused(self._inputs, shapes):
            fit = buckets.fit(shapes)
        return fit, buckets.padded(arrays, fit)

    def watched(self, feeds: Mapping[str, Any]) -> StageWatch:
        """Return what the stages of a run were and what each took.

        Errors: as `run`
        """
        arrays = self._fed(feeds)
        if self._buckets is not None:
            _, arrays = self._fitted(self._buckets, arrays)
        seen = StageWatch()
        with ShapesRefused(self._inputs, tuple(array.shape for array in arrays)):
            begun = time.perf_counter()
            self._open.run(arrays, seen)
            seen.wall_s = time.perf_counter() - begun
        self.stages = list(seen)
        return seen

    def prepare(self, shapes: Sequence[Mapping[str, Sequence[int]]]) -> None:
        """Have the instances of shapes made in the background, those that are there left out.

        Errors: RunError, if an input is missing or unknown, shapes do not fit, or there are more
        than are kept
        """
        asked = dict.fromkeys(self._served_shapes(one) for one in shapes)
        if len(asked) > self._most:
            raise RunError(
                f"{len(asked)} shapes are to be prepared, and {self._most} are kept",
                fix=f"execution_options=ExecutionOptions(most_shapes={len(asked)})",
            )
        names = feeds_of(list(self._open.graph.input_values()))
        self.ahead.add(
            [
                (dict(zip(names, one, strict=True)), partial(self._open.prepare, one))
                for one in asked
            ]
        )

    def _served_shapes(self, shapes: Mapping[str, Sequence[int]]) -> Shapes:
        """Return the shapes that an instance has for those of some feeds.

        Errors: RunError, if they do not fit
        """
        if set(shapes) != set(feeds_of(self._inputs)):
            refuse_names(shapes, self._inputs)
        given = tuple(tuple(shapes[value.name]) for value in self._inputs)
        with ShapesRefused(self._inputs, given):
            if self._buckets is not None:
                return self._buckets.shapes(self._buckets.fit(given))
            sizes_of(self.graph, given)
        return given

    def whole(self, feeds: Mapping[str, Any]) -> Served:
        """Return what runs the whole graph for the shapes of some feeds.

        Errors: RunError, if the host runs a part of it because shapes depend on values
        """
        arrays = self._fed(feeds)
        if self._buckets is None:
            return Served(self._whole(arrays), feeds, dict)
        buckets = self._buckets
        fit, made = self._fitted(buckets, arrays)
        region = self._whole(made)

        def cut(results: Mapping[str, Array]) -> dict[str, Array]:
            names = feeds_of(self._outputs)
            return dict(zip(names, buckets.cut([results[n] for n in names], fit), strict=True))

        names = feeds_of(list(buckets.graph.input_values()))
        return Served(region, dict(zip(names, made, strict=True)), cut)

    def _whole(self, arrays: list[Array]) -> StaticRegion:
        instance = self._instance(tuple(array.shape for array in arrays))
        if instance.region is None or not instance.stage.is_whole:
            steps = ", ".join(node.label for node in instance.stage.steps[:3])
            raise RunError(
                "this model runs in stages, and only `run` runs them all",
                facts=[f"the host runs {steps}, whose shapes depend on values"],
                fix="session.profile_stages(feeds) profiles each stage",
            )
        return instance.region

    def close(self) -> None:
        """Close every instance."""
        self.ahead.close()
        self._kept.close()
        self._regions = []

    def _held(self, shapes: Shapes) -> Generator[Instance, None, None]:
        """Yield the instance for these shapes, which is not closed until the `for` ends."""
        held = self._open.hold(shapes)
        with ShapesRefused(self._inputs, shapes):
            instance = self.last = next(held)
        try:
            yield instance
        finally:
            held.close()

    def _instance(self, shapes: Shapes) -> Instance:
        self._latest = None
        with ShapesRefused(self._inputs, shapes):
            self.last = self._open.instance(shapes)
        return self.last


def open_program(
    prepared: Prepared,
    asked: PlacementOptions,
    how: ExecutionOptions,
    open_region: Callable[[Graph], PlacedRegion],
    open_polymorphic: Callable[[PolymorphicGraph, Shapes], StaticRegion],
    buckets: Mapping[str, Sequence[int]] | None = None,
    kind: type[OpenGraph] = OpenGraph,
) -> OpenProgram:
    """Return what runs a graph with open shapes on open devices.

    kind: what its instances are of
    asked: of each placement
    buckets: the sizes that symbols are padded to, by name
    open_region, open_polymorphic: open a session for a graph of static shapes
    """
    states, devices = prepared.states, prepared.devices
    compile_open = partial(
        polymorphic, devices=devices, calibration=prepared.calibration, asked=asked, options=how
    )
    control = ControlFlow(
        Workshop(devices, prepared.calibration, how),
        partial(open_body, compile=compile_open, open_at=open_polymorphic),
        compile_open if how.execution == "sunk" else None,
    )

    def run_step(graph: Graph, node: Node, arrays: list[Array | None]) -> Sequence[Array]:
        if get_op(node.op).has_body:
            return control.run_control(node, arrays)
        return evaluate(graph, node, arrays, states.arrays)

    tools = Tools(
        optimise=partial(optimise, passes=how.passes, disable=how.passes_off),
        open_region=open_region,
        polymorphic=compile_open,
        open_polymorphic=open_polymorphic,
        served=partial(served_nodes, devices=devices) if how.execution == "sunk" else None,
        host=HostSteps(run_step, control.take_fallbacks, states),
        most=how.most_shapes,
    )
    check_pins(prepared.graph, tools.optimise)
    placed = PlacedRegions(prepared, asked)
    if not buckets:
        return OpenProgram(prepared.graph, tools, placed, kind=kind)
    if not all(isinstance(device, PolymorphicDevice) for device in devices.values()):
        tools = replace(tools, polymorphic=_by_bucket)
    return OpenProgram(prepared.graph, tools, placed, Buckets(prepared.graph, buckets))


def _by_bucket(graph: Graph, shapes: Sequence[Sequence[int]]) -> str:
    """Say why a graph on devices with static shapes has no program for every shape."""
    return "each bucket is placed and compiled for its sizes"
