"""Open a model on devices: a Session takes inputs by name and gives outputs by name.

    with Session(graph, devices=["npu", "opencl", "cpu"]) as session:
        outputs = session.run({"input": x})

A session is its arguments and one runner: of a stored program (`StoredRunner`), of one program
(`ProgramRunner`) or of open shapes (`SizedRunner`). `choose_runner` chooses between the last two.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

from trireme.runtime.calls.workers import MAX_QUEUE, SessionRequests, warm_up
from trireme.runtime.models.arguments import LoadLog, SessionArguments
from trireme.runtime.models.stored import stored_key
from trireme.runtime.program.contexts import checked_contexts
from trireme.runtime.session.program_session import ProgramSession
from trireme.runtime.session.runners import ReadyModel, Runner, SessionState
from trireme.runtime.session.shared_programs import PROGRAMS
from trireme.runtime.session.siblings import SiblingSessions
from trireme.runtime.session.stored_runner import BackgroundPreparation, StoredRunner
from trireme.support.arguments import check_arguments, checked, later_names
from trireme.support.errors import RunError

if TYPE_CHECKING:
    from trireme.backend.device import Device, Progress
    from trireme.cost.calibration import Calibration
    from trireme.ir.bind_shapes import Shapes
    from trireme.ir.graph import Value
    from trireme.model_file.cache import Model
    from trireme.placement.options import FixedPlacement, PlacementOptions
    from trireme.placement.placement import Placement
    from trireme.profiling.staged import StagedProfile
    from trireme.runtime.calls.bound_run import BoundRun, MovingIO
    from trireme.runtime.calls.queue import RunRequest
    from trireme.runtime.dataflow.executor import PrimitiveSpan
    from trireme.runtime.loop.executors import Mode
    from trireme.runtime.program.options import ExecutionOptions
    from trireme.runtime.session.open_program import OpenProgram
    from trireme.runtime.session.program_session import Served
    from trireme.runtime.session.sized_runner import SizedRunner
    from trireme.runtime.shapes.ahead import PreparedShapes
    from trireme.runtime.shapes.instance import StageReport
    from trireme.runtime.states.rules import StateRules
    from trireme.support.dtypes import Array


__getattr__ = later_names(
    __name__,
    {
        "Array": "trireme.support.dtypes",
        "BoundRun": "trireme.runtime.calls.bound_run",
        "Calibration": "trireme.cost.calibration",
        "Device": "trireme.backend.device",
        "ExecutionOptions": "trireme.runtime.program.options",
        "FixedPlacement": "trireme.placement.options",
        "Mode": "trireme.runtime.loop.executors",
        "Model": "trireme.model_file.cache",
        "Placement": "trireme.placement.placement",
        "PlacementOptions": "trireme.placement.options",
        "PreparedShapes": "trireme.runtime.shapes.ahead",
        "Progress": "trireme.backend.device",
        "RunRequest": "trireme.runtime.calls.queue",
        "Shapes": "trireme.ir.bind_shapes",
        "StagedProfile": "trireme.profiling.staged",
        "StateRules": "trireme.runtime.states.rules",
    },
)


class Session(ProgramSession):
    """A model ready to run on some devices.

    Where an earlier process left the program of the model's file, runs need nothing more
    (runtime/models/stored.py). The rest of a session is then prepared when it is first asked for.

    devices: names or open devices, all of which must open and compile; the placement decides who
        does what, and says why a device has nothing to do. "cpu#1", "cpu#2" are instances of cpu
        with cores of their own (docs/explanation/parallelism.md). When None those of a held
        lockfile, else cpu
    threads: worker threads of the cpu device, or of each instance; when None those of a held
        lockfile, else all its cores
    fallback: drop a device that gives an error before it runs (when it is opened, asked, given
        memory or code to compile), and say so in `dropped`; repeat a run that a device fails
        without it, and say so in `events` (docs/explanation/reliability.md)
    mode: "parallel" runs tasks as their waits allow, "serial" one by one, "auto" in the way that
        is faster (executors.py); the same bits
    contexts: how many calls run at once, each on memory of its own, which is made when a second
        call first comes; further ones wait in the order in which they come. When None as many as
        keep the cpu device busy, and 1 where calls cannot run at once (`contexts_why`)
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
        contexts: int | None = None,
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
        arguments = SessionArguments(
            model=model,
            devices=devices,
            threads=threads,
            fallback=fallback,
            mode=mode,
            contexts=contexts,
            placement=placement,
            measure=measure,
            calibration=calibration,
            shapes=shapes,
            states=states,
            buckets=buckets,
            batch=batch,
            progress=progress,
            placement_options=placement_options,
            execution_options=execution_options,
        )
        self._open(arguments)

    def _open(self, arguments: SessionArguments, is_sibling: bool = False) -> None:
        """Choose what runs the model: the stored program where there is one.

        is_sibling: whether another session opens this one, and notes what there is to say
        """
        self._begin()
        self._arguments, self._is_sibling = arguments, is_sibling
        max_queue = getattr(arguments.execution_options, "max_queue", MAX_QUEUE)
        self.requests = SessionRequests(max_queue, self._closing)
        self._siblings = SiblingSessions(Session, arguments)
        self._closing.callback(self._siblings.close)
        self.behind: BackgroundPreparation | None = None
        self._stored: StoredRunner | None = None
        self._key = stored_key(vars(arguments))
        log = LoadLog(arguments)
        shared = self._key is not None and PROGRAMS.has(self._key.key)
        stored = None if self._key is None or shared else self._key.open()
        try:
            if stored is None:
                self._prepare_model()
            else:
                self._state = SessionState.STORED
                self._stored = self._runner = StoredRunner(stored, ref(self))
                self._direct = self._stored.direct
                self._count = stored.count(checked_contexts(arguments.contexts))
                self._contexts.widen(self._count.most, self._count.workers)
                self._closing.callback(self._stored.closing.close)
        except BaseException:
            self.close()
            raise
        log.end(stored is not None)

    def _prepare_model(self) -> ReadyModel:
        """Go from the model to its runner, and store its program where it can be."""
        from trireme.runtime.session.choose_runner import RunnerChoice

        arguments = self._arguments
        check_arguments(Session.__init__, vars(arguments), RunError)
        key = self._key
        shared = PROGRAMS.take(None if key is None else key.key, arguments.model)
        self._closing.callback(PROGRAMS.drop, shared)
        self.dropped = shared.dropped
        made = RunnerChoice(
            arguments=arguments,
            key=key,
            stores=self._stored is None,
            is_sibling=self._is_sibling,
            open_session=open_sibling,
            faults=self.faults,
            closing=self._closing,
            shared=shared,
        ).ready_model()
        self._keep(made)
        if arguments.fallback:
            self._fail_over(made)
        return made

    def _fail_over(self, made: ReadyModel) -> None:
        """Have runs that a device fails go on without it."""
        from trireme.runtime.models.failover import open_failover

        mine = ref(self)

        def choose_again() -> None:
            session = mine()
            if session is not None:
                session._choose_direct()

        how = made.execution_options, made.placement_options
        self.faults.failover = open_failover(
            open_sibling,
            self._arguments,
            made.prepared,
            made.runner.devices,
            how,
            self.faults.log,
            choose_again,
        )
        if self.fails_over:
            self.watch_tasks()

    def _prepared_model(self) -> ReadyModel:
        self.take_over(is_kept=True)
        return super()._prepared_model() if self._made is None else self._made

    def take_over(self, is_kept: bool) -> Runner:
        """See PreparesModel."""
        with self._preparing:
            stored = self._stored
            if stored is None:
                return self._runner
            stored.program.check_current()
            if self.behind is not None:
                self.behind.wait()
            self._prepare_model()
            sized = self._sized
            if self.behind is not None:
                self.behind.close()
            if sized is not None:
                if stored.program.ran is not None and sized.open_program is not None:
                    sized.open_program.note(stored.program.ran)
                if is_kept:
                    sized.store_shapes = None
            stored.replace()
            self._stored = None
            if self._state is SessionState.STORED:
                self._state = SessionState.OPEN
            return self._runner

    def prepare_behind(self) -> None:
        """See PreparesModel."""
        if self.behind is not None:
            return
        with self._preparing:
            if self.behind is None and self._state is not SessionState.CLOSED:
                self.behind = BackgroundPreparation(partial(_prepared, self._arguments))
                self._closing.callback(self.behind.close)

    def close(self) -> None:
        """Refuse requests that wait; give back threads, memory and devices opened here."""
        self.requests.close()
        super().close()

    def reset_after_fork(self) -> None:
        """See ProgramSession."""
        super().reset_after_fork()
        self._preparing = threading.RLock()

    @property
    def inputs(self) -> list[Value]:
        """What to feed: each has .name, .type.shape, .type.dtype. States are not fed."""
        return super().inputs if self._stored is None else list(self._stored.program.inputs)

    @property
    def outputs(self) -> list[Value]:
        """What `run` returns, in the model's order. Outputs that are states are kept."""
        return super().outputs if self._stored is None else list(self._stored.program.outputs)

    @property
    def optional_inputs(self) -> list[Value]:
        """What a run may feed, and need not: the default of each is its data.

        Such are the inputs of an ONNX file that have an initializer, from IR version 4 on. They are
        constants in this session; a run that feeds some has a session of its own, which the first
        such run opens. `ExecutionOptions(optional_inputs=...)` makes them inputs of this one.
        """
        assert self._siblings is not None
        return self._siblings.optional_inputs

    @property
    def is_stored(self) -> bool:
        """Whether the program of an earlier process runs, and nothing else is prepared yet."""
        return self._stored is not None

    def prepare_fallbacks(self) -> None:
        """Make the plans that run without each device now, not at its first fault.

        They take the memory and the time of a session each. Without `fallback=True`, or with one
        device, there are none.
        """
        if self.faults.failover is not None:
            self.faults.failover.prepare()

    @property
    def _sized(self) -> SizedRunner | None:
        if not self.ready.is_sized:
            return None
        from trireme.runtime.session.sized_runner import SizedRunner

        runner = self.ready.runner
        assert isinstance(runner, SizedRunner)
        return runner

    @property
    def _open_program(self) -> OpenProgram | None:
        sized = self._sized
        return None if sized is None else sized.open_program

    @property
    def has_open_shapes(self) -> bool:
        """Whether runs may have different shapes, or a shape depends on values."""
        return self._open_program is not None

    @property
    def stages(self) -> tuple[StageReport, ...]:
        """With open shapes, the stages of the last run: what ran where, and what the host ran.

        One stage where all shapes follow from the inputs' shapes; none with fixed shapes.
        """
        return () if self._sized is None else tuple(self._sized.program.stages)

    def region_placements(self) -> tuple[Placement, ...]:
        """Return, with open shapes, the placement of each region of the last run, in order.

        Estimates are those of the run's sizes. Nodes that the host runs (`stages` has them) have no
        placement. With fixed shapes the only one is `placement`.
        """
        if self._sized is None:
            return (self.placement,)
        served = self._open_program
        return () if served is None else tuple(served.placements())

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
        from trireme.runtime.session.shape_session import priced

        served = self._open_program
        if served is None:
            raise RunError("the session has no stages", fix="use profile instead")
        if runs < 1 or warmup < 0:
            raise RunError(f"a profile needs at least one run, not {runs} after {warmup}")
        tied = self.ready.prepared.tied
        given = feeds if tied is None else tied.feeds(feeds)
        with self._alone():
            for _ in range(warmup):
                served.watched(given)
            seen = [served.watched(given) for _ in range(runs)]
            last = seen[-1]
            predicted = [
                None if one is None else priced(one).placement.makespan_s for one in last.regions
            ]
            times = [one.times for one in seen]
            walls = [one.wall_s for one in seen]
            made = profile_of_stages(self.graph.name, walls, last, predicted, times)
            return replace(made, events=self.events)

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
        served = self._open_program
        if served is None:
            raise RunError("nothing is to be prepared: one program serves the session")
        with self._alone():
            served.prepare(shapes)
        if wait:
            served.ahead.wait()
        return self.prepared

    @property
    def prepared(self) -> tuple[PreparedShapes, ...]:
        """What became of the shapes that were to be prepared."""
        served = self._open_program
        return () if served is None else tuple(served.ahead.reports)

    def _served(self, feeds: Mapping[str, Any]) -> Served:
        sized = self._sized
        if sized is None:
            return super()._served(feeds)
        from trireme.runtime.session.shape_session import priced

        tied = sized.tied
        with self._alone():
            served = sized.program.whole(feeds if tied is None else tied.feeds(feeds))

        def finished(results: Mapping[str, Array]) -> dict[str, Array]:
            if tied is None:
                return served.cut(results)
            with self._contexts.alone():
                return tied.keep(served.cut(results))

        return priced(served.region), served.feeds, finished

    @property
    def spans(self) -> Sequence[PrimitiveSpan]:
        """With a dynamic schedule, when each op of the last run ran, in which frames and turns."""
        return () if self._sized is None else self._sized.spans

    def run_async(
        self,
        feeds: Mapping[str, Any],
        out: Mapping[str, Array] | None = None,
        *,
        signature: str | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
    ) -> RunRequest:
        """Return a future of the outputs: a concurrent.futures.Future whose run waits its turn.

        `cancel()` keeps a waiting request from running, and stops a running one at the next task
        boundary. A device that was handed several tasks finishes them. Leave the arrays of `feeds`
        and `out` alone until the request is over. `out` of a request that was stopped may hold
        parts of its results.

        out, signature: as in `run`
        timeout_s: seconds until the deadline. A request that waits then is refused, and never runs.
            A running one is stopped. A result never comes after the deadline
        priority: requests of larger ones run first; those of equal ones in the order of arrival
        Errors: QueueFullError, if `ExecutionOptions.max_queue` requests wait; RunError, if the
        session is closed or an argument is wrong. All other errors are the future's: those of
        `run`, DeadlineError and CancelledError
        """
        call = partial(self.run, feeds, out, signature)
        self._check_open()
        workers = self._count.workers
        return self.requests.submit(workers, call, feeds, timeout_s, priority)

    async def arun(
        self,
        feeds: Mapping[str, Any],
        out: Mapping[str, Array] | None = None,
        *,
        signature: str | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
    ) -> dict[str, Array]:
        """Return the outputs, as `run_async`, while the event loop goes on.

        A task that is cancelled while it waits here cancels the request.
        Errors: as `run_async` and its future
        """
        import asyncio

        request = self.run_async(
            feeds, out, signature=signature, timeout_s=timeout_s, priority=priority
        )
        return await asyncio.wrap_future(request)

    @checked(RunError)
    def warm_up(self, feeds: Mapping[str, Any] | None = None, *, most_s: float = 1.0) -> int:
        """Run until the first calls of a service are as fast as later ones; return how often.

        The first runs start threads, fill caches and try ways to run. States are put back.

        feeds: inputs to run; random ones when None, where no shape is open
        most_s: no further run begins after so many seconds
        Errors: as `run`; RunError, if a shape is open and no feeds are given
        """
        from trireme.runtime.program.feeds import random_feeds

        given = random_feeds(self.inputs) if feeds is None else feeds
        before = None if self._stored is not None or not self.states.types else self.get_state()
        try:
            return warm_up(partial(self.run, given), most_s)
        finally:
            if before is not None:
                self.set_state(before)

    @checked(RunError)
    def bind(self, feeds: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> BoundRun:
        """Return runs on arrays that stay: read and written where they are, as often as you like.

        Arrays may be numpy's, objects of DLPack, or buffers (bytes, memoryview, mmap, array.array)
        of the elements; inputs may be read-only. Outputs without an array in `out` get one that
        each run overwrites. `BoundRun.copies` names what a run copies all the same, and why.

        Errors: RunError, if something does not fit, or cannot be shared without a copy
        """
        from trireme.runtime.calls.bound_run import (
            BoundRun,
            bound_inputs,
            bound_outputs,
            copies_of,
            output_shapes,
        )

        inputs = bound_inputs(self.inputs, feeds)
        shapes = output_shapes(self.inputs, self.outputs, inputs)
        outputs = bound_outputs(self.outputs, shapes, out)
        names = [value.name for value in (*self.inputs, *self.outputs)]
        copies = copies_of(inputs, outputs, names, self._moving(inputs))
        in_place = self._in_place(inputs, outputs)
        return BoundRun(
            inputs, outputs, () if in_place else copies, self.run, self.run_async, in_place
        )

    def _moving(self, feeds: Mapping[str, Array]) -> MovingIO:
        """Return what runs of feeds read and write where it is."""
        from trireme.runtime.calls.bound_run import MovingIO
        from trireme.runtime.program.io_binding import IN_PLACE_BYTES

        sized = self._sized
        if sized is None:
            return MovingIO(self.moves, IN_PLACE_BYTES)
        from trireme.runtime.session.sized_runner import moving_in

        found = None
        if sized.tied is None:
            with self._alone():
                found = moving_in(sized.program, feeds)
        return found or MovingIO([False] * len([*self.inputs, *self.outputs]), 0)

    def _in_place(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]
    ) -> Callable[[], bool] | None:
        """Return what runs on these arrays without a copy; None where `run` has to do it.

        It returns whether it ran.
        """
        if self._sized is not None or self.fails_over:
            return None
        with self._alone():
            runner = self.ready.latest()
            run = runner.on_arrays(inputs, outputs)
        return None if run is None else partial(self._run_on_arrays, runner, run)


def open_sibling(model: Model, **options: Any) -> Session:
    """Open a session for another: to measure, for a region, or without a device."""
    session = Session.__new__(Session)
    session._open(SessionArguments(model, **options), is_sibling=True)
    return session


def _prepared(arguments: SessionArguments) -> Session:
    """Return a session of the same arguments whose model is prepared."""
    session = Session(**{**vars(arguments), "progress": None})
    try:
        session.take_over(is_kept=True)
    except BaseException:
        session.close()
        raise
    return session
