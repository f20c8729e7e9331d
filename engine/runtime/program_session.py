"""A program on its memory: run it, watch it, time it, and say what it is.

`Session` makes a program of a model. With open shapes it makes one of these for each set of shapes.
After the first run nothing is allocated but the output arrays that are handed out.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from trireme.support.arguments import check_arguments, checked, later_names
from trireme.support.closing import Closing
from trireme.support.errors import InternalError, RunError
from trireme.support.forks import register_at_fork
from trireme.support.locks import taking
from trireme.support.showing import Shown

if TYPE_CHECKING:
    from trireme.backend.core_latency import Cores
    from trireme.backend.device import Device, Progress
    from trireme.cost.calibration import Calibration
    from trireme.ir.effects import States
    from trireme.ir.graph import Graph, Value
    from trireme.placement.options import PlacementOptions
    from trireme.placement.placement import Placement
    from trireme.plan.plan import Plan
    from trireme.profiling.profile import Profile
    from trireme.profiling.spans import TaskSpan
    from trireme.runtime.context import ExecutionContext
    from trireme.runtime.executors import Executors, Mode
    from trireme.runtime.interactive import Watcher
    from trireme.runtime.options import ExecutionOptions
    from trireme.runtime.program import Program
    from trireme.runtime.states.snapshot import StateSnapshot
    from trireme.runtime.streams.open_stream import OpenStream
    from trireme.runtime.streams.stream import Stream, Streams
    from trireme.support.dtypes import Array

__getattr__ = later_names(
    __name__,
    {
        "Array": "trireme.support.dtypes",
        "Mode": "trireme.runtime.executors",
        "Profile": "trireme.profiling.profile",
        "Progress": "trireme.backend.device",
        "StateSnapshot": "trireme.runtime.states.snapshot",
        "OpenStream": "trireme.runtime.streams.open_stream",
        "Stream": "trireme.runtime.streams.stream",
        "TaskSpan": "trireme.profiling.spans",
        "Watcher": "trireme.runtime.interactive",
    },
)


class ProgramSession(Closing, Shown):
    """A program ready to run.

    graph: what it computes; states: its variables by name
    unmeasured: the devices that are priced by their description, and why
    dropped: devices that gave an error before any run, with the error
    """

    graph: Graph
    states: States
    unmeasured: list[str]
    placement_options: PlacementOptions
    execution_options: ExecutionOptions
    _calibration: Calibration

    def _begin(self) -> None:
        """Have what `close` asks for, before anything can fail."""
        self.reset_after_fork()
        register_at_fork(self)
        self._closed = False
        self._streams: Streams | None = None
        self._direct: Callable[[Mapping[str, Any]], dict[str, Array]] | None = None
        self._closing = ExitStack()
        weakref.finalize(self, self._closing.close).atexit = False
        self.dropped: dict[str, str] = {}

    def _keep(self, program: Program, context: ExecutionContext, mode: Mode) -> None:
        """Have runs go through the program's memory."""
        from trireme.runtime.executors import Executors

        self._program, self._context = program, context
        self._calls, self._binding = context.calls, context.ports
        self._runs = Executors(program.plan, self._calls, mode)
        self._direct = self._binding.direct(self._runs)
        self._closing.callback(self._runs.close)

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

    @checked(RunError)
    def kernels(self, form: str = "ir") -> dict[str, str]:
        """Return the generated code as readable text, by file name.

        form: "ir" (what was generated) or "asm" (machine code); for devices that generate any
        Errors: RunError, for another form
        """
        return self.program.listings(form)

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
        return self._program.devices

    def at(self, feeds: Mapping[str, Any]) -> ProgramSession:
        """Return the session that serves the shapes of these feeds: this one."""
        return self

    def _served(
        self, feeds: Mapping[str, Any]
    ) -> tuple[
        ProgramSession, Mapping[str, Any], Callable[[Mapping[str, Array]], dict[str, Array]]
    ]:
        """Return the session that serves feeds, what to feed it, and what finishes its outputs."""
        return self, feeds, dict

    @property
    def _latest(self) -> ProgramSession:
        """The session of the program that ran last."""
        return self

    def reset(self) -> None:
        """Give every state its initial value.

        Errors: RunError, if a stream is under way
        """
        with self._at_rest():
            self.states.clear()

    def get_state(self) -> StateSnapshot:
        """Return copies of the states; those that have had no value yet may be missing.

        Errors: RunError, if a stream is under way
        """
        from trireme.runtime.states.snapshot import StateSnapshot

        with self._at_rest():
            return StateSnapshot(self.states)

    def set_state(self, state: Mapping[str, Array] | str | os.PathLike[str]) -> None:
        """Give states these values, of a snapshot, arrays by name, or the file of a snapshot.

        States that are not named become initial.
        Errors: RunError, if there is no such state or an array does not fit, and if a stream is
        under way; then no state changes. ModelFileError, if the file cannot be read
        """
        from trireme.runtime.states.snapshot import StateSnapshot

        given = state if isinstance(state, Mapping) else StateSnapshot.load(state)
        with self._at_rest():
            checked = {name: self.states.checked(name, array) for name, array in given.items()}
            self.states.clear()
            self.states.update(checked)

    @contextmanager
    def _at_rest(self) -> Iterator[None]:
        """Hold the session while no run is under way."""
        with self._lock:
            self._check_open()
            if self._streams is not None:
                self._streams.check_ended("states are read and set between runs")
            yield

    def run(
        self,
        feeds: Mapping[str, Any],
        out: Mapping[str, Array] | None = None,
        signature: str | None = None,
    ) -> dict[str, Array]:
        """Return the outputs by name.

        signature: of a model that holds several graphs, the one to run; all share their states
        Shapes: each feed has its input's shape and dtype; `out` may give arrays to write into.
        Large arrays are read and written where they are, so leave them alone during the run.
        Errors: RunError, if a feed or `out` is unknown or does not fit, or a feed is missing;
        DeviceError from a device; ConvertError, if the model has no such signature
        """
        if signature is not None:
            check_arguments(ProgramSession.run, {"signature": signature}, RunError)
            return self._run_signature(signature, feeds, out)
        for _ in self._taken:  # as `with self._lock`, quicker
            try:
                return self._run(feeds, out)
            except BaseException:
                self._finish()
                raise
            finally:
                self._lock.release()
        raise InternalError("a lock cannot be taken")

    def _run_signature(
        self, signature: str, feeds: Mapping[str, Any], out: Mapping[str, Array] | None
    ) -> dict[str, Array]:
        """Return the outputs of one of several graphs of the model."""
        if signature == self.execution_options.signature:
            return self.run(feeds, out)
        raise RunError(f"the session holds one graph, signature {signature!r} was asked for")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the session, which is open, for one run of another kind than `run`."""
        with self._lock:
            self._check_open()
            try:
                yield
            except BaseException:
                self._finish()
                raise

    def _finish(self) -> None:
        """After an error: return when no launch is under way."""
        from trireme.runtime.execute import finish

        finish(self.devices)

    def _run(
        self, feeds: Mapping[str, Any], out: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        direct = self._direct
        if direct is not None and out is None:
            return direct(feeds)
        self._check_open()
        results = self._binding.bind(feeds, out)
        self._runs.run()
        return self._binding.collect(results)

    @checked(RunError)
    def stream(
        self, feeds: Iterable[Mapping[str, Any]], depth: int | None = None
    ) -> Stream | OpenStream:
        """Return an iterator over the outputs of many runs, `depth` of them in flight at most.

        A device works on the next run while another is at this one; the bits are those of one run
        after another, states included. The least depth that keeps the busiest device busy is
        taken when None, or instances of a device take whole runs in turn
        (runtime/streams/round_robin.py) where the objective is throughput. One stream at a
        time; meanwhile `run` is free where there are no states.
        Errors: RunError, if a stream is under way; PlanError, if `depth` runs do not fit memory
        """
        from trireme.runtime.streams.pipeline import pipeline
        from trireme.runtime.streams.round_robin import pipeline_or_round_robin
        from trireme.runtime.streams.stream import Streams

        with self._lock:
            self._check_open()
            asked = self.placement_options
            make = partial(pipeline, self.program, states=self.states)
            if asked.is_free and asked.goal == "throughput":
                make = partial(
                    pipeline_or_round_robin,
                    self.graph,
                    self.program,
                    self._calibration,
                    states=self.states,
                )
            if self._streams is None:
                self._streams = Streams("this session")
            return self._streams.begin(make, feeds, depth, self)

    @checked(RunError)
    def run_traced(self, feeds: Mapping[str, Any]) -> tuple[dict[str, Array], list[TaskSpan]]:
        """Return the outputs of a run in this session's mode, and when each of its tasks ran.

        Errors: as `run`
        """
        served, given, finished = self._served(feeds)
        if served is not self:
            outputs, spans = served.run_traced(given)
            return finished(outputs), spans
        with self._alone():
            self._choose_executor(feeds)
            return self._watched(feeds)

    @checked(RunError)
    def run_in_order(self, feeds: Mapping[str, Any], order: Sequence[int]) -> dict[str, Array]:
        """Return the outputs of a run whose tasks go in the given order, one after another.

        Errors: RunError, if the order leaves a task out or breaks a wait
        """
        served, given, finished = self._served(feeds)
        if served is not self:
            return finished(served.run_in_order(given, order))
        from trireme.runtime.execute import check_order, run_profiled

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
        served, given, finished = self._served(feeds)
        if served is not self:
            return finished(served.run_nodes(given, watch, order))
        from trireme.runtime.execute import check_order
        from trireme.runtime.interactive import run_steps

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
        progress: Progress | None = None,
    ) -> Profile:
        """Return what `runs` runs took, after `warmup` runs that are not counted.

        Each is two: one as `run` does it, whose wall time counts, and one that is watched, which
        says what every task and node took. States go on by both. Where a device is simulated, and
        there are no states, two runs simulate, of which one is plain (repeats.py).
        Errors: as `run`
        """
        from trireme.backend.device import no_progress
        from trireme.profiling.profile import make_profile
        from trireme.runtime.program import memory_rows
        from trireme.runtime.repeats import seen_runs

        if runs < 1 or warmup < 0:
            raise RunError(f"a profile needs at least one run, not {runs} after {warmup}")
        served, given, _ = self._served(feeds)
        if served is not self:
            return served.profile(given, runs, warmup, progress)
        with self._alone():
            self._choose_executor(feeds)
            calls = [] if self.states.types else self._calls
            run, watch = partial(self._run, feeds), partial(self._watched, feeds)
            told = progress or no_progress
            seen = seen_runs(calls, run, lambda: watch()[1], runs, warmup, told)
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
            if self._streams is not None:
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
