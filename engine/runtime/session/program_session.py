"""A session on one runner: run it, stream it, watch it, time it, and say what it is.

`Session` makes a runner of a model. With open shapes it makes one of these for each set of shapes.
After the first run nothing is allocated but the output arrays that are handed out.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from trireme.runtime.program.contexts import ContextCount, ContextQueue
from trireme.runtime.program.io_binding import DirectRun
from trireme.runtime.session.runners import ClosedRunner, ReadyModel, Runner, SessionState
from trireme.runtime.session.session_faults import SessionFaults
from trireme.support.arguments import check_arguments, checked, later_names
from trireme.support.cancel import CancelToken, checked_timeout, current_token, working_for
from trireme.support.closing import Closing
from trireme.support.errors import FeedError, RunError
from trireme.support.forks import register_at_fork
from trireme.support.showing import Shown

if TYPE_CHECKING:
    from trireme.backend.core_latency import Cores
    from trireme.backend.device import Device, Progress
    from trireme.ir.effects import States
    from trireme.ir.graph import Graph, Value
    from trireme.placement.options import PlacementOptions
    from trireme.placement.placement import Placement
    from trireme.plan.plan import Plan
    from trireme.profiling.profile import Profile
    from trireme.profiling.spans import TaskSpan
    from trireme.runtime.loop.executors import Executors, Watcher
    from trireme.runtime.program.options import ExecutionOptions
    from trireme.runtime.program.program import Program
    from trireme.runtime.session.siblings import GraphChoice, SiblingSessions
    from trireme.runtime.states.held import StateSnapshot
    from trireme.runtime.streams.stream import OpenStream, Stream, Streams
    from trireme.support.dtypes import Array
    from trireme.support.fault_events import FaultEvent, Listener

    Served = tuple[
        "ProgramSession", Mapping[str, Any], Callable[[Mapping[str, Array]], dict[str, Array]]
    ]
    """The session that serves feeds, the feeds of its run, and what finishes its outputs."""


__getattr__ = later_names(
    __name__,
    {
        "Array": "trireme.support.dtypes",
        "OpenStream": "trireme.runtime.streams.stream",
        "Profile": "trireme.profiling.profile",
        "Progress": "trireme.backend.device",
        "StateSnapshot": "trireme.runtime.states.held",
        "Stream": "trireme.runtime.streams.stream",
        "TaskSpan": "trireme.profiling.spans",
        "Watcher": "trireme.runtime.loop.executors",
    },
)


class ProgramSession(Shown, Closing):
    """A program ready to run.

    dropped: devices that gave an error before any run, with the error
    faults: what becomes of devices that fail
    """

    dropped: dict[str, str]

    def _begin(self) -> None:
        """Have what `close` asks for, before anything can fail."""
        self._contexts = ContextQueue()
        self.faults = SessionFaults(self._contexts)
        self.reset_after_fork()
        register_at_fork(self)
        self._state = SessionState.OPEN
        self._made: ReadyModel | None = None
        self._runner: Runner = ClosedRunner()
        self._direct: DirectRun | None = None
        self._streams: Streams | None = None
        self._siblings: SiblingSessions | None = None
        self._count = ContextCount(1, "nothing is prepared")
        self._closing = ExitStack()
        self._closing.callback(self._contexts.stop)
        end = weakref.finalize(self, self._closing.close)
        end.atexit = False
        self._closing.callback(end.detach)  # a session that is closed ends without Python code
        self.dropped = {}

    def _keep(self, made: ReadyModel) -> None:
        """Have runs go through a model that is prepared."""
        self._made, self._count = made, made.count
        self._contexts.widen(made.count.most, made.count.workers)
        self._choose_direct()

    def _choose_direct(self) -> None:
        """Have runs go the shortest way that there is now."""
        self.faults.refresh()
        runner = self.ready.runner
        runner.choose_direct()
        if self._state is not SessionState.CLOSED:
            self._runner, self._direct = runner, runner.direct

    @property
    def ready(self) -> ReadyModel:
        """The prepared model with its runner."""
        return self._prepared_model() if self._made is None else self._made

    def _prepared_model(self) -> ReadyModel:
        """Prepare the model."""
        raise RunError("the session did not open")

    def __str__(self) -> str:
        shapes = ", ".join(f"{value.name} {value.type}" for value in self.inputs)
        return f"{self.graph.name!r} on {', '.join(self.devices)}: {shapes}"

    @property
    def graph(self) -> Graph:
        """The graph that runs compute."""
        return self.ready.prepared.graph

    @property
    def states(self) -> States:
        """The variables by name."""
        return self.ready.prepared.states

    @property
    def unmeasured(self) -> list[str]:
        """The devices that are priced by their description, and why."""
        return self.ready.prepared.unmeasured

    @property
    def placement_options(self) -> PlacementOptions:
        """The options that decide where nodes go."""
        return self.ready.placement_options

    @property
    def execution_options(self) -> ExecutionOptions:
        """The options of passes, tasks and devices."""
        return self.ready.execution_options

    @property
    def inputs(self) -> list[Value]:
        """What to feed: each has .name, .type.shape, .type.dtype. States are not fed."""
        return self.ready.prepared.inputs

    @property
    def outputs(self) -> list[Value]:
        """What `run` returns, in the model's order. Outputs that are states are kept."""
        return self.ready.prepared.outputs

    @property
    def program(self) -> Program:
        """The program that runs; with open shapes that of the last run.

        Errors: RunError, with open shapes before a run, and if no program ran
        """
        return self.ready.latest().program

    @property
    def plan(self) -> Plan:
        """The plan that runs; with open shapes as `program`."""
        return self.program.plan

    @property
    def runs(self) -> Executors:
        """What runs the plan's tasks; with open shapes as `program`."""
        return self.ready.latest().runs

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
        return self.ready.prepared.calibration.cores_of(self.devices.values())

    @property
    def devices(self) -> Mapping[str, Device]:
        """The open devices, by name."""
        return self.ready.runner.devices

    @property
    def events(self) -> tuple[FaultEvent, ...]:
        """The faults of devices so far and what became of each, the oldest first."""
        return self.faults.log.events

    def on_event(self, listener: Listener) -> None:
        """Have a function called with each further event, on the thread of the run."""
        self.faults.log.listeners.append(listener)

    @property
    def fails_over(self) -> bool:
        """Whether a run that a device fails is repeated on other devices."""
        return self.faults.failover is not None

    @property
    def devices_out(self) -> frozenset[str]:
        """Devices that failed: runs pass them over until the session is opened anew."""
        return frozenset() if self.faults.failover is None else self.faults.failover.out

    def watch_tasks(self) -> None:
        """Give up tasks that hang, where a device works beside the host."""
        self.ready.runner.watch_tasks()
        self._choose_direct()

    @property
    def contexts(self) -> int:
        """How many calls run at once; `contexts_why` says why."""
        return self._count.most

    @property
    def contexts_why(self) -> str:
        """Why so many calls run at once."""
        return self._count.why

    def reset(self) -> None:
        """Give every state its initial value, those of other graphs of the model too.

        Errors: RunError, if a stream is under way
        """
        with self._at_rest():
            self.states.clear()
        if self._siblings is not None:
            self._siblings.reset()

    def get_state(self) -> StateSnapshot:
        """Return copies of the states; those that have had no value yet may be missing.

        Errors: RunError, if a stream is under way
        """
        from trireme.runtime.states.held import StateSnapshot

        with self._at_rest():
            return StateSnapshot(self.states)

    def set_state(self, state: Mapping[str, Array] | str | os.PathLike[str]) -> None:
        """Give states these values, of a snapshot, arrays by name, or the file of a snapshot.

        States that are not named become initial.
        Errors: RunError, if there is no such state or an array does not fit, and if a stream is
        under way; then no state changes. ModelFileError, if the file cannot be read
        """
        from trireme.runtime.states.held import StateSnapshot

        given = state if isinstance(state, Mapping) else StateSnapshot.load(state)
        with self._at_rest():
            checked = {name: self.states.checked(name, array) for name, array in given.items()}
            self.states.clear()
            self.states.update(checked)

    @contextmanager
    def _at_rest(self) -> Iterator[None]:
        """Hold the session while no run is under way."""
        with self._contexts.alone():
            self._check_open()
            if self._streams is not None:
                self._streams.check_ended("states are read and set between runs")
            yield

    def run(
        self,
        feeds: Mapping[str, Any],
        out: Mapping[str, Array] | None = None,
        signature: str | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Array]:
        """Return the outputs by name.

        signature: of a model that holds several graphs, the one to run; all share their states
        timeout_s: seconds until the run is stopped with a DeadlineError, between two tasks or
            after 20 ms of native code, or refused where it still waits for others
        Shapes: each feed has its input's shape and dtype; `out` may give arrays to write into.
        `optional_inputs` need no feed. Large arrays are read and written where they are, so leave
        them alone during the run.
        Errors: RunError, if a feed or `out` is unknown or does not fit, or a feed is missing;
        DeviceError from a device; ConvertError, if the model has no such signature
        """
        if timeout_s is not None:
            return self._run_in_time(timeout_s, partial(self.run, feeds, out, signature))
        if signature is not None:
            check_arguments(ProgramSession.run, {"signature": signature}, RunError)
            own = self.execution_options if self._siblings is None else self._siblings
            if signature != own.signature:
                return self._run_sibling(signature, feeds, out)
        if out is not None and self.faults.failover is not None:
            from trireme.runtime.models.failover import kept_apart

            feeds = kept_apart(feeds, out)
        queue = self._contexts
        try:
            if not queue.line:
                lock = queue.lock
                for _ in queue.first:  # as `queue.run`, quicker
                    try:
                        direct = self._direct
                        if direct is not None and out is None:
                            return direct(feeds)
                        return self._runner.run(feeds, out)
                    except BaseException as error:
                        again = self._run_again(error, feeds, out)
                        if again is None:
                            raise
                        return again
                    finally:
                        lock.release()
                        if queue.line:
                            queue.ring()
            made: dict[str, Array] = queue.run(partial(self._run_in, feeds, out))
            return made
        except FeedError as error:  # optional inputs are fed in a session of their own
            refused = error
        siblings = self._siblings
        choice = None if siblings is None else siblings.feeding(refused.unknown)
        if choice is None:
            raise refused
        return self._run_sibling(choice, feeds, out)

    def _run_on_arrays(self, runner: Runner, run: Callable[[], None]) -> bool:
        """Run what is bound to arrays in a runner's turn; False where `run` has to do it."""
        queue = self._contexts
        if queue.line:
            return False
        lock = queue.lock
        for _ in queue.first:
            try:
                if self._runner is not runner:
                    return False
                run()
                return True
            except BaseException:
                self._finish()
                raise
            finally:
                lock.release()
                if queue.line:
                    queue.ring()
        return False

    def _run_in(
        self, feeds: Mapping[str, Any], out: Mapping[str, Array] | None, number: int
    ) -> dict[str, Array]:
        """Return the outputs of a run in a context that is held."""
        try:
            runner = self._runner
            return runner.run_beside(number, feeds, out) if number else runner.run(feeds, out)
        except BaseException as error:
            again = self._run_again(error, feeds, out)
            if again is None:
                raise
            return again

    def _run_in_time(
        self, timeout_s: float, run: Callable[[], dict[str, Array]]
    ) -> dict[str, Array]:
        token = CancelToken(checked_timeout(timeout_s), around=current_token())
        with working_for(token):
            token.check()
            results = run()
            token.check()
        return results

    def _run_again(
        self, error: BaseException, feeds: Mapping[str, Any], out: Mapping[str, Array] | None
    ) -> dict[str, Array] | None:
        """After an error: return the outputs of a run on other devices, None where there is none.

        Errors: DeviceError with all causes, if other devices fail too
        """
        self._finish()
        tied = None if self._made is None else self._made.prepared.tied
        return self.faults.run_again(error, feeds, out, tied)

    def _run_sibling(
        self, choice: GraphChoice, feeds: Mapping[str, Any], out: Mapping[str, Array] | None
    ) -> dict[str, Array]:
        """Return the outputs of another graph of the model."""
        self._check_open()
        if self._siblings is not None:
            return self._siblings.run(self, choice, feeds, out)
        raise RunError(f"the session holds one graph, signature {choice!r} was asked for")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the session, which is open, for one run of another kind than `run`."""
        with self._contexts.alone():
            self._check_open()
            try:
                yield
            except BaseException:
                self._finish()
                raise

    def _finish(self) -> None:
        """After an error: return when no launch is under way."""
        if self._made is not None:  # the device of a stored program leaves nothing under way
            from trireme.runtime.loop.execute import finish

            finish(self.devices)

    @checked(RunError)
    def stream(
        self, feeds: Iterable[Mapping[str, Any]], depth: int | None = None
    ) -> Stream | OpenStream:
        """Return an iterator over the outputs of many runs, `depth` of them in flight at most.

        A device works on the next run while another is at this one; the bits are those of one run
        after another, states included. The least depth that keeps the busiest device busy is
        taken when None, or instances of a device take whole runs in turn
        (runtime/streams/round_robin.py) where the objective is throughput. With `fallback=True` and
        states one run is in flight, so that one that a device fails can be repeated. One stream at
        a time; meanwhile `run` is free where there are no states. With open shapes each item may
        have shapes of its own, and one run is in flight.
        Errors: RunError, if a stream is under way, or shapes are open and `depth` is above 1;
        PlanError, if `depth` runs do not fit memory
        """
        from trireme.runtime.streams.round_robin import pipeline, pipeline_or_round_robin

        is_sized = self.ready.is_sized
        if is_sized and depth not in (None, 1):
            raise RunError(
                f"a stream of open shapes has one run in flight, not {depth}",
                fix="session.at(feeds).stream(...), for feeds of one shape",
            )
        with self._contexts.alone():
            self._check_open()
            streams = self._own_streams()
            if is_sized:
                return streams.begin_open(self.run, feeds)
            asked = self.placement_options
            make = partial(pipeline, self.program, states=self.states)
            if asked.is_free and asked.goal == "throughput":
                make = partial(
                    pipeline_or_round_robin,
                    self.graph,
                    self.program,
                    self.ready.prepared.calibration,
                    states=self.states,
                )
            if not self.fails_over:
                return streams.begin(make, feeds, depth, self)
            if self.states.types:  # each item begins with the states that the last one left whole
                return streams.begin_open(self.run, feeds)
            from trireme.runtime.loop.task_watch import TaskWatch

            make = partial(make, new_watch=TaskWatch)
            return streams.begin(make, feeds, depth, self, self.faults.in_stream(self._finish))

    def _own_streams(self) -> Streams:
        from trireme.runtime.streams.stream import Streams

        if self._streams is None:
            self._streams = Streams("this session")
        return self._streams

    def close(self) -> None:
        """Give back threads, memory and the devices that this session opened."""
        self._state, self._runner, self._direct = SessionState.CLOSED, ClosedRunner(), None
        with self._contexts.alone():
            if self._streams is not None:
                self._streams.close()
            self.faults.close()
            self._closing.close()
        self._contexts.close()

    def reset_after_fork(self) -> None:
        """Be free, in a forked child, of what the parent's threads were doing."""
        self._contexts.reset_after_fork()

    def _check_open(self) -> None:
        if self._state is SessionState.CLOSED:
            raise RunError("the session is closed")

    @checked(RunError)
    def at(self, feeds: Mapping[str, Any]) -> ProgramSession:
        """Return the session that serves the shapes of these feeds: this one where they are fixed.

        With open shapes it is the one that `run` uses for them, opened when there is none. It has a
        placement, a plan and a profile of its own, and closes when other shapes take its place.
        Errors: as `run`; RunError, if shapes depend on values, so that no one program runs them all
        """
        return self._served(feeds)[0]

    def _served(self, feeds: Mapping[str, Any]) -> Served:
        """Return the session that serves feeds, what to feed it, and what finishes its outputs."""
        return self, feeds, dict

    @property
    def moves(self) -> list[bool]:
        """Whether tasks can be pointed at each input, then at each output, where it is."""
        return self.ready.latest().binding.moves

    @checked(RunError)
    def run_traced(self, feeds: Mapping[str, Any]) -> tuple[dict[str, Array], list[TaskSpan]]:
        """Return the outputs of a run in this session's mode, and when each of its tasks ran.

        Errors: as `run`
        """
        served, given, finished = self._served(feeds)
        with served._alone():
            one = served.ready.latest()
            one.choose_executor(given)
            outputs, spans = one.profiled(given)
        return finished(outputs), spans

    @checked(RunError)
    def run_in_order(self, feeds: Mapping[str, Any], order: Sequence[int]) -> dict[str, Array]:
        """Return the outputs of a run whose tasks go in the given order, one after another.

        Errors: RunError, if the order leaves a task out or breaks a wait
        """
        served, given, finished = self._served(feeds)
        with served._alone():
            outputs = served.ready.latest().run_in_order(given, order)
        return finished(outputs)

    @checked(RunError)
    def run_nodes(
        self, feeds: Mapping[str, Any], watch: Watcher, order: Sequence[int] | None = None
    ) -> dict[str, Array]:
        """Return the outputs of a run, task after task, of which `watch` sees what each made.

        With execution="interactive" every node is a task, and every value is seen.
        Errors: as `run` and, given an order, as `run_in_order`
        """
        served, given, finished = self._served(feeds)
        with served._alone():
            outputs = served.ready.latest().run_nodes(given, watch, order)
        return finished(outputs)

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
        there are no states, two runs simulate, of which one is plain (repeats.py). Where a device
        fails and other devices may run, the profile is theirs.
        Errors: as `run`
        """
        from trireme.backend.device import no_progress

        if runs < 1 or warmup < 0:
            raise RunError(f"a profile needs at least one run, not {runs} after {warmup}")
        failover = self.faults.failover
        try:
            made = self._profile(feeds, runs, warmup, progress or no_progress)
        except BaseException as error:
            if failover is None or not failover.is_fault(error):
                raise
            self._finish()
            made = failover.do_again(error, lambda other: other.profile(feeds, runs, warmup))
        return replace(made, events=self.events)

    def _profile(
        self, feeds: Mapping[str, Any], runs: int, warmup: int, progress: Progress
    ) -> Profile:
        """Return the profile of runs on all devices."""
        from trireme.profiling.profile import make_profile
        from trireme.runtime.loop.executors import seen_runs
        from trireme.runtime.program.program import memory_rows

        served, given, _ = self._served(feeds)
        if served is not self:
            return served.profile(given, runs, warmup, progress)
        with self._alone():
            one = self.ready.latest()
            one.choose_executor(feeds)
            calls = [] if self.states.types else one.calls
            run, watch = partial(self._runner.run, feeds), partial(one.profiled, feeds)
            seen = seen_runs(calls, run, lambda: watch()[1], runs, warmup, progress)
            memory = memory_rows(self.program)
            return make_profile(self.plan, *seen, memory, one.runs.is_serial, self.cores)
