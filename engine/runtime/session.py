"""Run a program: a Session owns arenas, takes inputs by name and gives outputs by name.

    with Session(graph, devices=["npu", "opencl", "cpu"]) as session:
        outputs = session.run({"input": x})

`prepare` goes from the model to the program; this module runs it. After the first run nothing is
allocated but the output arrays that are handed out.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from trireme.backend.core_latency import Cores
from trireme.backend.device import Device, Progress, no_progress
from trireme.cost.calibration import Calibration
from trireme.ir.bind_shapes import Shapes, shape_advice
from trireme.ir.graph import Value
from trireme.model_file.cache import Model
from trireme.placement.options import FixedPlacement, PlacementOptions
from trireme.placement.placement import Placement
from trireme.plan.plan import Plan
from trireme.profiling.profile import Profile, make_profile
from trireme.profiling.spans import TaskSpan
from trireme.runtime.context import ExecutionContext
from trireme.runtime.dynamic.instances import Shapes as FeedShapes
from trireme.runtime.dynamic.instances import StageReport
from trireme.runtime.dynamic.polymorphic import PolymorphicGraph
from trireme.runtime.dynamic.program import OpenProgram, open_program
from trireme.runtime.dynamic.stage import is_open
from trireme.runtime.execute import check_order, finish, run_profiled
from trireme.runtime.executors import Executors, Mode
from trireme.runtime.interactive import Watcher, run_steps
from trireme.runtime.options import ExecutionOptions
from trireme.runtime.prepare import Preparation, Prepared
from trireme.runtime.program import Program, memory_rows
from trireme.runtime.repeats import seen_runs
from trireme.runtime.session_defaults import made_with
from trireme.runtime.streams.pipeline import pipeline
from trireme.runtime.streams.round_robin import pipeline_or_round_robin
from trireme.runtime.streams.stream import Stream, Streams
from trireme.support.arguments import checked, choice
from trireme.support.closing import Closing
from trireme.support.dtypes import Array
from trireme.support.errors import InternalError, PlacementError, RunError
from trireme.support.forks import register_at_fork
from trireme.support.locks import taking
from trireme.support.showing import Shown


class Session(Closing, Shown):
    """A model ready to run on some devices.

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
    batch: make the first axis of all inputs this, where it is 1 (placement/shards/batch.py);
        when None that of a held lockfile
    progress: told what loading is at: (what, done, total), total 0 where it is not known
    placement_options: what decides where nodes go: objective, pins, sharding
        (placement/options.py)
    execution_options: what is seldom set: the passes, the tasks, devices' own options (options.py)
    Errors: DeviceError, PlacementError, PlanError, CompileError, and convert's
    """

    @checked(RunError)
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
        batch: int | None = None,
        progress: Progress = no_progress,
        placement_options: PlacementOptions = PlacementOptions(),
        execution_options: ExecutionOptions = ExecutionOptions(),
    ) -> None:
        self._begin()
        choice("mode", mode, Mode)
        self.execution_options = execution_options
        try:
            made = made_with(placement, devices, threads, batch, placement_options)
            self.placement_options = made.placement_options
            preparation = Preparation(
                made,
                shapes,
                fallback,
                calibration,
                execution_options,
                partial(_hold, mode, execution_options) if measure else None,
                progress,
                self._closing,
                self.dropped,
            )
            prepared = preparation.prepare(model)
            self.graph, self.states = prepared.graph, prepared.states
            self.unmeasured, self._calibration = prepared.unmeasured, prepared.calibration
            if is_open(self.graph):
                self._serve(prepared, mode, measure)
            else:
                self._keep(*preparation.compile(prepared), mode)
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        """Have what `close` asks for, before anything can fail."""
        self.reset_after_fork()
        register_at_fork(self)
        self._closed = False
        self._streams = Streams("this session")
        self._open: OpenProgram | None = None
        self._direct: Callable[[Mapping[str, Any]], dict[str, Array]] | None = None
        self._price: Callable[[], None] | None = None
        self._closing = ExitStack()
        weakref.finalize(self, self._closing.close).atexit = False
        self.dropped: dict[str, str] = {}

    def _keep(self, program: Program, context: ExecutionContext, mode: Mode) -> None:
        """Have runs go through the program's memory."""
        self._program, self._context = program, context
        self._calls, self._binding = context.calls, context.ports
        self._runs = Executors(program.plan, self._calls, mode)
        self._direct = self._binding.direct(self._runs)
        self._closing.callback(self._runs.close)

    def _serve(self, prepared: Prepared, mode: Mode, measure: bool) -> None:
        """Have runs find the instance for their shapes."""
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
        self._open = open_program(prepared, asked, how, open_region, open_polymorphic)
        self._devices = prepared.devices
        self._closing.callback(self._open.close)

    def _of_shapes(
        self, prepared: Prepared, mode: Mode, program: PolymorphicGraph, shapes: FeedShapes
    ) -> Session:
        """Return a session for some shapes of a program that serves all."""
        session = Session.__new__(Session)
        session._begin()
        made = program.program(shapes)
        session.execution_options, session.placement_options = (
            self.execution_options,
            self.placement_options,
        )
        session.graph, session.states = made.plan.placement.source, prepared.states
        session.unmeasured, session._calibration = prepared.unmeasured, prepared.calibration
        session._keep(made, program.context(made), mode)

        def price() -> None:
            priced = program.priced(made)
            session._keep(priced, program.context(priced), mode)

        session._price = price
        return session

    def __str__(self) -> str:
        shapes = ", ".join(f"{value.name} {value.type}" for value in self.inputs)
        return f"{self.graph.name!r} on {', '.join(self.devices)}: {shapes}"

    @property
    def inputs(self) -> list[Value]:
        """What to feed: each has .name, .type.shape, .type.dtype."""
        return list(self.graph.input_values())

    @property
    def outputs(self) -> list[Value]:
        """What `run` returns, in the model's order."""
        return list(self.graph.output_values())

    @property
    def program(self) -> Program:
        """The program that runs; with open shapes that of the last run.

        Errors: RunError, with open shapes before a run, and if no program ran
        """
        return self._latest._program

    @property
    def plan(self) -> Plan:
        """The plan that runs; with open shapes as `program`."""
        return self.program.plan

    @property
    def runs(self) -> Executors:
        """What runs the plan's tasks; with open shapes as `program`."""
        return self._latest._runs

    @property
    def stages(self) -> tuple[StageReport, ...]:
        """With open shapes, the stages of the last run: what ran where, and what the host ran.

        One stage where all shapes follow from the inputs' shapes; none with fixed shapes.
        """
        return () if self._open is None else tuple(self._open.stages)

    @property
    def _latest(self) -> Session:
        """This session; with open shapes that of the last run."""
        if self._open is None:
            return self
        last = self._open.last
        if last is None or not isinstance(last.region, Session):
            raise RunError(
                "no program has run: the shapes are open",
                fix=shape_advice(self.inputs) or "run the session first",
            )
        return last.region._with_prices()

    def _with_prices(self) -> Session:
        """Return this session with the estimates of its shapes, which runs do without."""
        if self._price is not None:
            self._price()
            self._price = None
        return self

    @checked(RunError)
    def kernels(self, form: str = "ir") -> dict[str, str]:
        """Return the generated code as readable text, by file name.

        form: "ir" (what was generated) or "asm" (machine code); for devices that generate any
        Errors: RunError, for another form
        """
        made = (e for e in self.program.executables if e is not None)
        return {name: text for e in made for name, text in e.listings(form).items()}

    @property
    def placement(self) -> Placement:
        """Where every node runs and why; printable, to_json()."""
        return self.plan.placement

    @property
    def cores(self) -> tuple[Cores, ...]:
        """How far apart the cores of devices are now, beside what estimates are priced by."""
        return self._calibration.cores_of(self.devices.values())

    @property
    def devices(self) -> Mapping[str, Device]:
        """The open devices, by name."""
        return self._program.devices if self._open is None else self._devices

    def run(
        self, feeds: Mapping[str, Any], out: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        """Return the outputs by name.

        Shapes: each feed has its input's shape and dtype; `out` may give arrays to write into.
        Large arrays are read and written where they are, so leave them alone during the run.
        Errors: RunError, if a feed or `out` is unknown or does not fit, or a feed is missing;
        DeviceError from a device
        """
        for _ in self._taken:  # as `with self._lock`, quicker
            try:
                return self._run(feeds, out)
            except BaseException:
                finish(self.devices)
                raise
            finally:
                self._lock.release()
        raise InternalError("a lock cannot be taken")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the session, which is open, for one run of another kind than `run`."""
        with self._lock:
            self._check_open()
            try:
                yield
            except BaseException:
                finish(self.devices)
                raise

    def _run(
        self, feeds: Mapping[str, Any], out: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        direct = self._direct
        if direct is not None and out is None:
            return direct(feeds)
        self._check_open()
        if self._open is not None:
            return self._open.run(feeds, out)
        results = self._binding.bind(feeds, out)
        self._runs.run()
        return self._binding.collect(results)

    @checked(RunError)
    def at(self, feeds: Mapping[str, Any]) -> Session:
        """Return the session that serves the shapes of these feeds: this one where they are fixed.

        With open shapes it is the one that `run` uses for them, opened when there is none. It has a
        placement, a plan and a profile of its own, and closes when other shapes take its place.
        Errors: as `run`; RunError, if shapes depend on values, so that no one program runs them all
        """
        with self._alone():
            if self._open is None:
                return self
            found = self._open.whole(feeds)
            if not isinstance(found, Session):
                raise InternalError(f"an instance is a {type(found).__name__}")
            return found._with_prices()

    @checked(RunError)
    def stream(self, feeds: Iterable[Mapping[str, Any]], depth: int | None = None) -> Stream:
        """Return an iterator over the outputs of many runs, `depth` of them in flight at most.

        A device works on the next run while another is at this one; the bits are those of one run
        after another, states included. The least depth that keeps the busiest device busy is
        taken when None, or instances of a device take whole runs in turn
        (runtime/streams/round_robin.py) where the objective is throughput. One stream at a
        time; meanwhile `run` is free where there are no states.
        Errors: RunError, if a stream is under way; PlanError, if `depth` runs do not fit memory
        """
        if self._open is not None:
            raise RunError(
                "a stream needs fixed shapes", fix=shape_advice(self.inputs) or "use run instead"
            )
        with self._lock:
            self._check_open()
            asked = self.placement_options
            make = partial(pipeline, self.program)
            if asked.is_free and asked.goal == "throughput":
                make = partial(pipeline_or_round_robin, self.graph, self.program, self._calibration)
            return self._streams.begin(make, feeds, depth, self)

    @checked(RunError)
    def run_traced(self, feeds: Mapping[str, Any]) -> tuple[dict[str, Array], list[TaskSpan]]:
        """Return the outputs of a run in this session's mode, and when each of its tasks ran.

        Errors: as `run`
        """
        if self._open is not None:
            return self.at(feeds).run_traced(feeds)
        with self._alone():
            self._choose_executor(feeds)
            return self._watched(feeds)

    @checked(RunError)
    def run_in_order(self, feeds: Mapping[str, Any], order: Sequence[int]) -> dict[str, Array]:
        """Return the outputs of a run whose tasks go in the given order, one after another.

        Errors: RunError, if the order leaves a task out or breaks a wait
        """
        if self._open is not None:
            return self.at(feeds).run_in_order(feeds, order)
        with self._alone():
            check_order(self.plan, order)
            results = self._binding.bind(feeds)
            run_profiled(self.plan, self._calls, order)
            return self._binding.collect(results)

    @checked(RunError)
    def run_nodes(
        self, feeds: Mapping[str, Any], watch: Watcher, order: Sequence[int] | None = None
    ) -> dict[str, Array]:
        """Return the outputs of a run, task after task, of which `watch` sees what each made.

        With execution="interactive" every node is a task, and every value is seen.
        Errors: as `run` and, given an order, as `run_in_order`
        """
        if self._open is not None:
            return self.at(feeds).run_nodes(feeds, watch, order)
        with self._alone():
            chosen = range(len(self._calls)) if order is None else order
            check_order(self.plan, chosen)
            results = self._binding.bind(feeds, in_place=False)
            run_steps(self.plan, self._calls, self._context.read, watch, chosen)
            return self._binding.collect(results)

    @checked(RunError)
    def profile(
        self,
        feeds: Mapping[str, Any],
        runs: int = 20,
        warmup: int = 2,
        progress: Progress = no_progress,
    ) -> Profile:
        """Return what `runs` runs took, after `warmup` runs that are not counted.

        Each is two: one as `run` does it, whose wall time counts, and one that is watched, which
        says what every task and node took. States go on by both. Where a device is simulated, and
        there are no states, two runs simulate, of which one is plain (repeats.py).
        Errors: as `run`
        """
        if runs < 1 or warmup < 0:
            raise RunError(f"a profile needs at least one run, not {runs} after {warmup}")
        if self._open is not None:
            return self.at(feeds).profile(feeds, runs, warmup)
        with self._alone():
            self._choose_executor(feeds)
            calls = [] if self.states.types else self._calls
            run, watch = partial(self._run, feeds), partial(self._watched, feeds)
            seen = seen_runs(calls, run, lambda: watch()[1], runs, warmup, progress)
            memory = memory_rows(self.program)
            return make_profile(self.plan, *seen, memory, self._runs.is_serial, self.cores)

    def _watched(self, feeds: Mapping[str, Any]) -> tuple[dict[str, Array], list[TaskSpan]]:
        """Return the outputs of a run, and when each of its tasks ran."""
        results = self._binding.bind(feeds)
        spans = self._runs.profiled()
        return self._binding.collect(results), spans

    def _choose_executor(self, feeds: Mapping[str, Any]) -> None:
        """Have a mode chosen; what the tries write their outputs into is held meanwhile."""
        given = self._binding.bind(feeds)
        self._runs.choose_executor()
        self._binding.collect(given)

    def close(self) -> None:
        """Give back threads, memory and the devices that this session opened."""
        self._closed, self._direct = True, None  # no run begins, though others wait for the lock
        with self._lock:
            self._streams.close()
            self._closing.close()
            self._calls = []

    def reset_after_fork(self) -> None:
        """Be free, in a forked child, of what the parent's threads were doing."""
        self._lock = threading.Lock()
        self._taken = taking(self._lock)

    def _check_open(self) -> None:
        if self._closed:
            raise RunError("the session is closed")


def _hold(
    mode: Mode,
    options: ExecutionOptions,
    devices: Sequence[Device],
    calibration: Calibration,
    placement: Placement,
) -> Session:
    """Open a session that holds a placement, to be measured."""
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
