"""Open a model on devices: a Session takes inputs by name and gives outputs by name.

    with Session(graph, devices=["npu", "opencl", "cpu"]) as session:
        outputs = session.run({"input": x})

`prepare` goes from the model to the program, `ProgramSession` runs it. Where the model's shapes are
open, the programs of `dynamic` run it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from trireme.runtime.asked import Asked
from trireme.runtime.program_session import ProgramSession
from trireme.runtime.stored import stored_key
from trireme.support.arguments import check_arguments, checked, choice, later_names
from trireme.support.errors import InternalError, PlacementError, RunError

if TYPE_CHECKING:
    from trireme.backend.device import Buffer, Device, Progress
    from trireme.cost.calibration import Calibration
    from trireme.ir.bind_shapes import Shapes
    from trireme.ir.graph import Graph, Value
    from trireme.model_file.cache import Model
    from trireme.placement.options import FixedPlacement, PlacementOptions
    from trireme.placement.placement import Placement
    from trireme.profiling.staged import StagedProfile
    from trireme.runtime.context import ExecutionContext
    from trireme.runtime.dataflow.executor import PrimitiveSpan
    from trireme.runtime.dataflow.program import DataflowProgram
    from trireme.runtime.dynamic.ahead import PreparedShapes
    from trireme.runtime.dynamic.kept import Shapes as FeedShapes
    from trireme.runtime.dynamic.polymorphic import PolymorphicGraph
    from trireme.runtime.dynamic.program import OpenProgram
    from trireme.runtime.dynamic.reports import StageReport
    from trireme.runtime.executors import Mode
    from trireme.runtime.options import ExecutionOptions
    from trireme.runtime.prepare import Prepared
    from trireme.runtime.program import Program
    from trireme.runtime.signatures import OtherSignatures
    from trireme.runtime.states.held import TiedStates
    from trireme.runtime.states.program import StatefulProgram
    from trireme.runtime.states.rules import StateRules
    from trireme.runtime.streams.open_stream import OpenStream
    from trireme.runtime.streams.stream import Stream
    from trireme.support.dtypes import Array

    Places = Callable[[Graph], Mapping[int, Buffer]]

__getattr__ = later_names(
    __name__,
    {
        "Array": "trireme.support.dtypes",
        "Calibration": "trireme.cost.calibration",
        "Device": "trireme.backend.device",
        "ExecutionOptions": "trireme.runtime.options",
        "FixedPlacement": "trireme.placement.options",
        "Mode": "trireme.runtime.executors",
        "Model": "trireme.model_file.cache",
        "PlacementOptions": "trireme.placement.options",
        "PreparedShapes": "trireme.runtime.dynamic.ahead",
        "Progress": "trireme.backend.device",
        "Shapes": "trireme.ir.bind_shapes",
        "StagedProfile": "trireme.profiling.staged",
        "StateRules": "trireme.runtime.states.rules",
        "OpenStream": "trireme.runtime.streams.open_stream",
        "Stream": "trireme.runtime.streams.stream",
    },
)

_PREPARED = frozenset(
    {
        "graph",
        "states",
        "unmeasured",
        "placement_options",
        "execution_options",
        "_calibration",
        "_program",
        "_context",
        "_calls",
        "_binding",
        "_runs",
    }
)
"""The attributes of a session that come from preparing its model."""


class Session(ProgramSession):
    """A model ready to run on some devices.

    Where an earlier process left the program of the model's file, runs need nothing more
    (runtime/stored.py). The rest of a session is then prepared when it is first asked for.

    devices: names or open devices, all of which must open and compile; the placement decides who
        does what, and says why a device has nothing to do. "cpu#1", "cpu#2" are instances of cpu
        with cores of their own (docs/explanation/parallelism.md). When None those of a held
        lockfile, else cpu
    threads: worker threads of the cpu device, or of each instance; when None those of a held
        lockfile, else all its cores
    fallback: drop a device that gives an error before it runs (when it is opened, asked, given
        memory or code to compile), and say so in `dropped`
    mode: "parallel" runs tasks as their waits allow, "serial" one by one, "auto" in the way that
        is faster (executors.py); the same bits
    placement: a placement to hold instead of searching: a Placement, a Lock or its file
    measure: try the best placements and each device alone on this machine and keep the fastest;
        a second or two, and `placement.measured` tells (autotune.py)
    calibration: measured cost curves, or the file that holds them; this user's file when None
    shapes: shapes of inputs that the model leaves open. What stays open is bound by each run, which
        may have any shape within the bounds of a symbol: {"ids": (1, "seq<=512")}
    states: outputs that are inputs of the next run, so that the caller feeds and gets neither:
        {"past": "present"}, or {"past.*": "present.*"} for many (runtime/states/rules.py)
    buckets: sizes of symbols that feeds are padded to, for devices that take static shapes:
        {"seq": [64, 128, 512]}. A run takes the next larger ones, and its outputs are cut. An error
        where padding would reach a result (docs/how-to/open-shapes.md)
    batch: make the first axis of all inputs this, where it is 1 (placement/shards/batch.py);
        when None that of a held lockfile
    progress: told what loading is at: (what, done, total), total 0 where it is not known
    placement_options: what decides where nodes go: objective, pins, sharding
        (placement/options.py)
    execution_options: what is seldom set: the passes, the tasks, devices' own options (options.py)
    Errors: DeviceError, PlacementError, PlanError, CompileError, and convert's
    """

    def __init__(
        self,
        model: Model,
        *,
        devices: Sequence[str | Device] | None = None,
        threads: int | None = None,
        fallback: bool = False,
        mode: Mode = "auto",
        placement: FixedPlacement | None = None,
        measure: bool = False,
        calibration: Calibration | str | os.PathLike[str] | None = None,
        shapes: Shapes | None = None,
        states: StateRules | None = None,
        buckets: Mapping[str, Sequence[int]] | None = None,
        batch: int | None = None,
        progress: Progress | None = None,
        placement_options: PlacementOptions | None = None,
        execution_options: ExecutionOptions | None = None,
    ) -> None:
        asked = Asked(
            model,
            devices,
            threads,
            fallback,
            mode,
            placement,
            measure,
            calibration,
            shapes,
            states,
            buckets,
            batch,
            progress,
            placement_options,
            execution_options,
        )
        self._begin()
        self._open, self._tied, self._asked = None, None, asked
        self._others: OtherSignatures | None = None
        self._key = stored_key(vars(asked))
        self._stored = None if self._key is None else self._key.open()
        try:
            if self._stored is None:
                self._prepare_model(asked)
            else:
                self._direct = self._stored.run
                self._closing.callback(self._stored.close)
        except BaseException:
            self.close()
            raise

    def _prepare_model(self, asked: Asked) -> None:
        """Go from the model to its program, and store that where it can be."""
        from trireme.backend.device import no_progress
        from trireme.placement.options import PlacementOptions
        from trireme.runtime.dynamic.stage import is_open
        from trireme.runtime.executors import Mode
        from trireme.runtime.options import ExecutionOptions
        from trireme.runtime.prepare import Preparation
        from trireme.runtime.session_defaults import made_with

        check_arguments(Session.__init__, vars(asked), RunError)
        mode = choice("mode", asked.mode, Mode)
        how = asked.execution_options or ExecutionOptions()
        options = asked.placement_options or PlacementOptions()
        made = made_with(asked.placement, asked.devices, asked.threads, asked.batch, options)
        preparation = Preparation(
            made,
            asked.shapes,
            asked.fallback,
            asked.calibration,
            how,
            partial(_hold, mode, how) if asked.measure else None,
            asked.progress or no_progress,
            self._closing,
            asked.states,
            self.dropped,
        )
        self.execution_options, self.placement_options = how, made.placement_options
        prepared = preparation.prepare(asked.model)
        self.graph, self.states = prepared.graph, prepared.states
        self.unmeasured, self._calibration = prepared.unmeasured, prepared.calibration
        self._tied = prepared.tied
        if how.schedule == "dynamic":
            if asked.buckets:
                raise RunError("buckets need a static schedule: a dynamic one has no plan")
            self._schedule(prepared, mode)
        elif is_open(self.graph) or asked.buckets:
            self._serve(prepared, mode, asked.measure, asked.buckets)
        else:
            self._keep(*preparation.compile(prepared), mode)
            self._store(prepared, how.mmap)

    def _store(self, prepared: Prepared, is_mapped: bool) -> None:
        """Store the program for later processes."""
        if self._key is None or self._stored is not None or self._tied is not None:
            return
        if not self.states.types and not self.dropped:
            self._key.keep(self._context, prepared.files, prepared.notes, is_mapped)

    if not TYPE_CHECKING:  # it would let any name pass

        def __getattr__(self, name: str) -> Any:
            """Prepare the model where a stored program runs, for what runs do not need."""
            if name in _PREPARED and vars(self).get("_stored") is not None:
                self._prepare_stored()
                return object.__getattribute__(self, name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _prepare_stored(self) -> None:
        """Go from the model to its program, which then runs instead of the stored one."""
        with self._preparing:
            if self._stored is not None:
                self._stored.check_current()
                self._prepare_model(self._asked)
                self._stored = None
                self._direct = None if self._closed else self._direct

    def reset_after_fork(self) -> None:
        """See ProgramSession."""
        super().reset_after_fork()
        self._preparing = threading.RLock()

    def _finish(self) -> None:
        if self._stored is None:  # the device of a stored program leaves nothing under way
            super()._finish()

    def _serve(
        self,
        prepared: Prepared,
        mode: Mode,
        measure: bool,
        buckets: Mapping[str, Sequence[int]] | None,
    ) -> None:
        """Have runs find the instance for their shapes."""
        from trireme.ir.bind_shapes import shape_advice
        from trireme.runtime.dynamic.program import open_program
        from trireme.runtime.states.program import PolymorphicOnly, open_stateful

        how, asked = self.execution_options, replace(self.placement_options, pins={})
        if asked.fixed is not None:
            raise PlacementError(
                "a placement is fixed for a model whose shapes are open",
                fix=shape_advice(prepared.graph.input_values()) or "leave out placement=",
            )
        open_region = partial(
            Session,
            devices=list(prepared.devices.values()),
            mode=mode,
            measure=measure,
            calibration=prepared.calibration,
            placement_options=asked,
            execution_options=replace(how, passes=(), passes_off=(), signature=None),
        )
        open_polymorphic = partial(self._of_shapes, prepared, mode)
        open_plain = partial(
            open_program, prepared, asked, how, open_region, open_polymorphic, buckets
        )

        def on_buffers(mine: Prepared, places: Places) -> OpenProgram:
            open_one = partial(self._of_shapes, mine, mode, places=places)
            return open_program(mine, asked, how, open_region, open_one, kind=PolymorphicOnly)

        self._open = (
            open_plain()
            if prepared.tied is None
            else open_stateful(prepared, bool(buckets), on_buffers, open_plain)
        )
        self._devices = prepared.devices
        self._closing.callback(self._open.close)

    def _schedule(self, prepared: Prepared, mode: Mode) -> None:
        """Have runs go through the dataflow form of the graph."""
        from trireme.runtime.control.body import Workshop
        from trireme.runtime.dataflow.program import WORKERS, DataflowProgram

        workshop = Workshop(prepared.devices, prepared.calibration, self.execution_options)
        workers = 0 if mode == "serial" else WORKERS
        self._open = DataflowProgram(prepared.graph, workshop, prepared.states, workers)
        self._devices = prepared.devices
        self._closing.callback(self._open.close)

    def _of_shapes(
        self,
        prepared: Prepared,
        mode: Mode,
        program: PolymorphicGraph,
        shapes: FeedShapes,
        places: Places | None = None,
    ) -> Any:
        """Return what runs some shapes of a program that serves all: a StaticRegion.

        places: says where inputs of a graph lie that are not in the arena
        """
        open_session = partial(_ShapeSession, self, prepared, mode, program, places=places)
        return program.region(shapes, open_session)

    @property
    def inputs(self) -> list[Value]:
        """What to feed: each has .name, .type.shape, .type.dtype. States are not fed."""
        if self._stored is not None:
            return list(self._stored.inputs)
        return super().inputs if self._tied is None else self._tied.inputs

    @property
    def outputs(self) -> list[Value]:
        """What `run` returns, in the model's order. Outputs that are states are kept."""
        if self._stored is not None:
            return list(self._stored.outputs)
        return super().outputs if self._tied is None else self._tied.outputs

    @property
    def is_stored(self) -> bool:
        """Whether the program of an earlier process runs, and nothing else is prepared yet."""
        return self._stored is not None

    @property
    def devices(self) -> Mapping[str, Device]:
        """The open devices, by name."""
        return super().devices if self._open is None else self._devices

    @property
    def has_open_shapes(self) -> bool:
        """Whether runs may have different shapes, or a shape depends on values."""
        from trireme.runtime.dynamic.program import OpenProgram

        return isinstance(self._open, OpenProgram)

    @property
    def stages(self) -> tuple[StageReport, ...]:
        """With open shapes, the stages of the last run: what ran where, and what the host ran.

        One stage where all shapes follow from the inputs' shapes; none with fixed shapes.
        """
        return () if self._open is None else tuple(self._open.stages)

    _open: OpenProgram | DataflowProgram | StatefulProgram | None
    _tied: TiedStates | None

    @checked(RunError)
    def profile_stages(
        self, feeds: Mapping[str, Any], runs: int = 20, warmup: int = 2
    ) -> StagedProfile:
        """Return what the stages of `runs` runs took, after `warmup` runs that are not counted.

        It is for models of open shapes that no one program runs (`stages` has several, or steps of
        the host): each region stands beside its prediction, and steps of the host are measured.
        Errors: as `run`; RunError, if shapes are fixed or the schedule is dynamic
        """
        from trireme.profiling.staged import profile_of_stages
        from trireme.runtime.dynamic.program import OpenProgram

        served = self._open
        if not isinstance(served, OpenProgram):
            raise RunError("the session has no stages", fix="use profile instead")
        if runs < 1 or warmup < 0:
            raise RunError(f"a profile needs at least one run, not {runs} after {warmup}")
        given = self._with_states(feeds)
        with self._alone():
            for _ in range(warmup):
                served.watched(given)
            seen = [served.watched(given) for _ in range(runs)]
            last = seen[-1]
            predicted = [
                None if one is None else _priced(one).placement.makespan_s for one in last.regions
            ]
            times = [one.times for one in seen]
            walls = [one.wall_s for one in seen]
            return profile_of_stages(self.graph.name, walls, last, predicted, times)

    @checked(RunError)
    def prepare(
        self, shapes: Sequence[Mapping[str, Sequence[int]]], wait: bool = False
    ) -> tuple[PreparedShapes, ...]:
        """Have the programs for shapes made in the background, while runs go on.

        It pays where a program is compiled for each set of shapes (`stages` says so), or for each
        bucket: the first run then finds it. The bits are the same. A run that needs a program
        under way waits for it. `prepared` says what became of them; `close` waits for the one under
        way.

        shapes: of all inputs by name, for each program; wait: return when all are made
        Errors: RunError, if an input is missing or unknown, shapes do not fit or there are more
        than `most_shapes`; or if the session has one program
        """
        from trireme.runtime.dynamic.program import OpenProgram

        served = self._open
        if not isinstance(served, OpenProgram):
            raise RunError("nothing is to be prepared: one program serves the session")
        with self._alone():
            served.prepare(shapes)
        if wait:
            served.ahead.wait()
        return self.prepared

    @property
    def prepared(self) -> tuple[PreparedShapes, ...]:
        """What became of the shapes that were to be prepared."""
        from trireme.runtime.dynamic.program import OpenProgram

        return tuple(self._open.ahead.reports) if isinstance(self._open, OpenProgram) else ()

    @checked(RunError)
    def at(self, feeds: Mapping[str, Any]) -> ProgramSession:
        """Return the session that serves the shapes of these feeds: this one where they are fixed.

        With open shapes it is the one that `run` uses for them, opened when there is none. It has a
        placement, a plan and a profile of its own, and closes when other shapes take its place.
        Errors: as `run`; RunError, if shapes depend on values, so that no one program runs them all
        """
        return self._served(feeds)[0]

    def _served(
        self, feeds: Mapping[str, Any]
    ) -> tuple[
        ProgramSession, Mapping[str, Any], Callable[[Mapping[str, Array]], dict[str, Array]]
    ]:
        if self._open is None:
            return super()._served(feeds)
        with self._alone():
            served = self._open.whole(self._with_states(feeds))

        def finished(results: Mapping[str, Array]) -> dict[str, Array]:
            return self._after(served.cut(results))

        return _priced(served.region), served.feeds, finished

    def _with_states(self, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what a program for the shapes of the feeds is fed: states beside the feeds."""
        return feeds if self._tied is None else self._tied.feeds(feeds)

    def _after(self, results: dict[str, Array]) -> dict[str, Array]:
        """Keep those results of such a program that are states, and return the others."""
        if self._tied is None:
            return results
        with self._lock:
            return self._tied.keep(results)

    @checked(RunError)
    def stream(
        self, feeds: Iterable[Mapping[str, Any]], depth: int | None = None
    ) -> Stream | OpenStream:
        """Return an iterator over the outputs of many runs, as `ProgramSession.stream`.

        With open shapes each item may have shapes of its own. Then one run is in flight; overlap on
        several devices needs one shape: `session.at(feeds).stream(...)`.
        Errors: as there; RunError, if shapes are open and `depth` is above 1
        """
        if self._open is None:
            return super().stream(feeds, depth)
        if depth not in (None, 1):
            raise RunError(
                f"a stream of open shapes has one run in flight, not {depth}",
                fix="session.at(feeds).stream(...), for feeds of one shape",
            )
        from trireme.runtime.streams.stream import Streams

        with self._lock:
            self._check_open()
            if self._streams is None:
                self._streams = Streams("this session")
            return self._streams.begin_open(self.run, feeds)

    def _run(
        self, feeds: Mapping[str, Any], out: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        if self._tied is None:
            return self._run_program(feeds, out)
        out, asked = self._tied.outputs_asked(out)
        return self._tied.keep(self._run_program(self._tied.feeds(feeds), out), asked)

    def _run_program(
        self, feeds: Mapping[str, Any], out: Mapping[str, Array] | None
    ) -> dict[str, Array]:
        if self._open is None:
            return super()._run(feeds, out)
        self._check_open()
        return self._open.run(feeds, out)

    def _run_signature(
        self, signature: str, feeds: Mapping[str, Any], out: Mapping[str, Array] | None
    ) -> dict[str, Array]:
        own = self._asked.execution_options
        if own is not None and signature == own.signature:
            return self.run(feeds, out)
        from trireme.runtime.signatures import OtherSignatures

        self._check_open()
        with self._lock:
            if self._others is None:
                self._others = OtherSignatures(partial(_of_signature, self._asked))
                self._closing.callback(self._others.close)
        return self._others.run(self, signature, feeds, out)

    def reset(self) -> None:
        """Give every state its initial value, those of other signatures too.

        Errors: RunError, if a stream is under way
        """
        super().reset()
        if self._others is not None:
            self._others.reset()

    @property
    def spans(self) -> Sequence[PrimitiveSpan]:
        """With a dynamic schedule, when each op of the last run ran, in which frames and turns."""
        from trireme.runtime.dataflow.program import DataflowProgram

        return self._open.spans if isinstance(self._open, DataflowProgram) else ()

    @property
    def _latest(self) -> ProgramSession:
        if self._open is None:
            return self
        from trireme.ir.bind_shapes import shape_advice

        last = self._open.last
        if last is None and len(self._open.stages) > 1:
            raise RunError(
                f"the last run went through {len(self._open.stages)} regions, each with a program",
                fix="session.at(feeds) has one program for the shapes of some feeds",
            )
        if last is None or last.region is None:
            raise RunError(
                "no program has run: the shapes are open",
                fix=shape_advice(self.inputs) or "run the session first",
            )
        return _priced(last.region)


class _ShapeSession(ProgramSession):
    """Some shapes of a program that serves all; estimates come when they are asked for."""

    def __init__(
        self,
        whole: Session,
        prepared: Prepared,
        mode: Mode,
        graph: PolymorphicGraph,
        program: Program,
        places: Places | None,
    ) -> None:
        self._begin()
        self.execution_options = whole.execution_options
        self.placement_options = whole.placement_options
        self.graph, self.states = program.plan.placement.source, prepared.states
        self.unmeasured, self._calibration = prepared.unmeasured, prepared.calibration
        self._mode, self._whole_graph, self._is_priced = mode, graph, False
        self._places = places
        self._keep(program, self._memory(program), mode)

    def price(self) -> None:
        """Have the estimates of its shapes, which runs do without."""
        if not self._is_priced:
            program = self._whole_graph.priced(self._program)
            self._keep(program, self._memory(program), self._mode)
            self._is_priced = True

    def _memory(self, program: Program) -> ExecutionContext:
        places = None if self._places is None else self._places(program.plan.graph)
        return self._whole_graph.context(program, places)


def _priced(region: object) -> ProgramSession:
    """Return a region as a session, with the estimates of its shapes."""
    from trireme.runtime.dynamic.resizable import ShapeRun

    if isinstance(region, ShapeRun):
        region = region.session
    if not isinstance(region, ProgramSession):
        raise InternalError(f"an instance is a {type(region).__name__}")
    if isinstance(region, _ShapeSession):
        region.price()
    return region


def _of_signature(asked: Asked, signature: str) -> Session:
    """Open a session of another graph of a session's model."""
    from trireme.runtime.options import ExecutionOptions

    how = replace(asked.execution_options or ExecutionOptions(), signature=signature)
    return Session(
        asked.model,
        devices=asked.devices,
        threads=asked.threads,
        fallback=asked.fallback,
        mode=asked.mode,
        calibration=asked.calibration,
        execution_options=how,
    )


def _hold(
    mode: Mode,
    options: ExecutionOptions,
    devices: Sequence[Device],
    calibration: Calibration,
    placement: Placement,
) -> Session:
    """Open a session that holds a placement, to be measured."""
    from trireme.runtime.options import ExecutionOptions

    return Session(
        placement.source,
        devices=devices,
        placement=placement,
        mode=mode,
        calibration=calibration,
        execution_options=ExecutionOptions(
            subgraphs=options.subgraphs, execution=options.execution, passes=()
        ),
    )
