"""Runs of a plan that end though a device hangs.

A task that takes more than max(1 s, 20 x predicted) is a HANG. The device is LOST then: nobody
waits for it again. The memory of its plan, and what the run borrowed from the caller, are kept for
ever, because the task may still write there.

A call into a driver that hangs cannot be stopped, so there are two ways to come back from one. A
launch returns at once and is waited for; the caller itself gives up a wait that takes too long
(TimedEvent). That costs nothing. A launch that does not even return holds its thread. So the run of
a request, which has a token, goes to a thread of its own that can be left behind. The hand-over
takes the time of waking two threads, which a request spends on its queue anyway. A plain run goes
there, too, where that is less than a hundredth of it, and where an event cannot be given up.

A shorter plain run stays on its caller's thread. Where its launch does not return, Watcher takes
the caller's turn away: the device is lost, and other callers run without it. The caller waits for
its launch, takes its turn again and runs on the other devices.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import NamedTuple, Protocol
from weakref import ref

from trireme.backend.capabilities import TimedEvent
from trireme.backend.device import HOST, Device, Done, Event
from trireme.backend.links import link_ends
from trireme.ir.op import get_op
from trireme.plan.plan import Plan, Task
from trireme.profiling.rows import clock_of
from trireme.profiling.spans import TaskSpan
from trireme.runtime.executors import Executors
from trireme.runtime.failover.watcher import LOOK_S, WATCHER
from trireme.runtime.failures import interrupt_of, task_error
from trireme.support.cancel import Clock, current_token, working_for
from trireme.support.errors import DeviceError, FaultKind, InternalError
from trireme.support.forks import register_at_fork
from trireme.support.locks import taking
from trireme.support.threads import start_thread

LEAST_S, TIMES = 1.0, 20.0
"""A task may take so many seconds, and so often what is predicted or was seen."""
_LONG_S = 4e-3
"""A run of so many seconds takes a hundredth longer, or less, for a hand-over."""
_KEPT: list[object] = []
"""Memory of tasks that hang: the device may still write there."""


class TaskWatch:
    """The tasks of a plan that are under way, and since when.

    Wall times of a simulated device are not predicted: such a task is watched from its second run
    on, by the longest that was seen. Each body of control flow has a watch of its own beside that
    of the run.

    run: the watch of the run, of a body
    hung: the error of the task that took too long; every wait ends at once then
    is_timed: of a run, whether every wait so far could have been given up
    """

    def __init__(
        self,
        plan: Plan,
        least_s: float = LEAST_S,
        clock: Clock = time.monotonic,
        run: TaskWatch | None = None,
    ) -> None:
        self.plan, self._least_s, self._clock = plan, least_s, clock
        self._run = None if run is None else ref(run)
        self._bodies: list[TaskWatch] = []
        self._expected_s = [
            task.estimate_s if clock_of(plan, task) == "wall" else math.inf for task in plan.tasks
        ]
        self._longest_s = [0.0] * len(plan.tasks)
        self._begun: dict[int, tuple[Sequence[int], float]] = {}
        self._overdue: Sequence[int] = ()
        self._timed: dict[type[Event], bool] = {Done: True}
        self._limits_s: dict[tuple[int, int], float] = {}
        self._memories = [_memory_beside_host(plan, task) for task in plan.tasks]
        self._endless = {task.index for task in plan.tasks if _may_take_any_time(task)}
        self.hung: DeviceError | None = None
        self.is_timed = not any(map(_crosses_devices, plan.tasks))

    def of_body(self, plan: Plan) -> TaskWatch | None:
        """Return the watch of a body; None where the host runs all of it."""
        if not works_beside_host(plan):
            return None
        made = TaskWatch(plan, self._least_s, self._clock, self)
        self._bodies.append(made)
        self.is_timed &= made.is_timed
        return made

    def begin(self, tasks: Sequence[int]) -> None:
        """Note that tasks, launched together, begin."""
        self._begun[tasks[0]] = tasks, self._clock()

    def end(self, tasks: Sequence[int]) -> None:
        """Note that they are over."""
        found = self._begun.pop(tasks[0], None)
        if found is not None:
            took_s = self._clock() - found[1]
            for index in tasks:
                if took_s > self._longest_s[index]:
                    self._longest_s[index] = took_s
                    self._limits_s.clear()

    def wait(self, event: Event, tasks: Sequence[int]) -> None:
        """Return when a launch is over. Errors: those of its wait; DeviceError of kind HANG"""
        if self.hung is not None:
            raise self.hung
        kind = type(event)
        is_timed = self._timed.get(kind)
        if is_timed is None:
            is_timed = self._timed[kind] = isinstance(event, TimedEvent)
            self._of_run().is_timed &= is_timed
        if not is_timed or kind is Done:
            event.wait()
            return
        key = tasks[0], len(tasks)
        limit_s = self._limits_s.get(key)
        if limit_s is None:
            limit_s = self._limits_s[key] = self.limit_s(tasks)
        if not event.wait_for(limit_s):  # type: ignore[attr-defined]
            raise self.give_up(tasks)

    def give_up(self, tasks: Sequence[int]) -> DeviceError:
        """Have every wait end, and return the error of tasks that hang."""
        limit_s = self.limit_s(tasks)
        error = DeviceError(f"a task takes longer than {limit_s:.3g} s: the device hangs")
        found = task_error(self.plan, tasks, error.of_kind(FaultKind.HANG))
        assert isinstance(found, DeviceError)
        run = self._of_run()
        for one in (run, *run._bodies):
            one.hung = one.hung or found
        return found

    def reset(self) -> None:
        """Forget what was under way."""
        for one in (self, *self._bodies):
            one._begun.clear()

    def claim(self, tasks: Sequence[int]) -> bool:
        """Whether tasks are still under way; they never end then."""
        return self._begun.pop(tasks[0], None) is not None

    def limit_s(self, tasks: Sequence[int]) -> float:
        """Return the seconds that tasks may take: those that wait in a queue before them count."""
        if not self._endless.isdisjoint(tasks):
            return math.inf
        memories = {self._memories[index] for index in tasks} - {HOST}
        before = [n for n, memory in enumerate(self._memories) if memory in memories]
        return max(self._least_s, TIMES * sum(map(self._known_s, {*tasks, *before})))

    def overdue(self) -> Sequence[int]:
        """Return tasks that have taken too long; none where all is well."""
        now_s = self._clock()
        for tasks, begun_s in list(self._begun.values()):
            if now_s - begun_s > self.limit_s(tasks):
                return tasks
        return ()

    def stuck(self) -> StuckTasks | None:
        """Return tasks that were overdue at the last look already; None where all is well.

        At the first look after a pause of the whole process any task may be overdue.
        """
        for one in (self, *self._bodies):
            tasks = one.overdue()
            known, one._overdue = one._overdue, tasks
            if tasks and tasks is known:
                return StuckTasks(one, tasks)
        return None

    def _of_run(self) -> TaskWatch:
        run = None if self._run is None else self._run()
        return self if run is None else run

    def _known_s(self, index: int) -> float:
        expected_s, longest_s = self._expected_s[index], self._longest_s[index]
        if expected_s == math.inf and longest_s:
            return longest_s
        return max(expected_s, longest_s)


class StuckTasks(NamedTuple):
    """Tasks that have taken too long, and the watch of their plan."""

    watch: TaskWatch
    tasks: Sequence[int]

    def claim(self) -> bool:
        """See TaskWatch."""
        return self.watch.claim(self.tasks)

    def give_up(self) -> DeviceError:
        """See TaskWatch."""
        return self.watch.give_up(self.tasks)


class CallersTurns(Protocol):
    """What lets one run after another go through a plan.

    turn: the lock of the run that has the turn
    """

    @property
    def turn(self) -> threading.Lock:
        """See above."""

    def leave_turn(self, hung: DeviceError) -> None:
        """Let others run: the run that has the turn hangs on its caller's thread."""

    def begin_turn(self) -> None:
        """Prepare for what the caller that hung does next: it has the turn again."""


class WatchedRuns:
    """Runs a plan, and gives it up when a task hangs. One run at a time.

    turns: who runs it, and whom it does not keep alive
    lost: the error of the task that hung; the plan never runs again then
    """

    def __init__(
        self, watch: TaskWatch, devices: Mapping[str, Device], turns: CallersTurns
    ) -> None:
        self.watch, self._devices, self._turns = watch, devices, ref(turns)
        self.lost: DeviceError | None = None
        self._runs: Executors | None = None
        self.reset_after_fork()
        register_at_fork(self)

    def reset_after_fork(self) -> None:
        """Have no thread in a forked child."""
        self._least_s = math.inf
        self._is_beside = self._is_taken = False
        self._claiming = threading.Lock()
        self._have_no_thread()

    def _have_no_thread(self) -> None:
        self._thread: threading.Thread | None = None
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def run(self, runs: Executors, borrowed: object) -> None:
        """Run a plan once.

        borrowed: what the run reads and writes of the caller's
        Errors: those of the run; DeviceError of kind HANG, and LOST ever after
        """
        self._check_not_lost()
        if self._least_s < _LONG_S and self.watch.is_timed and current_token() is None:
            try:
                runs.run()
            except BaseException as error:
                self._end_here(error, runs, borrowed)
                raise
            if self._is_taken:
                self._end_here(None, runs, borrowed)
            return
        begun_s = time.perf_counter()
        self._run_beside(runs, borrowed, runs.run)
        took_s = time.perf_counter() - begun_s
        self._runs = runs
        if took_s >= _LONG_S or WATCHER.add(self):
            self._least_s = min(self._least_s, took_s)

    def look(self) -> None:
        """Take the turn from a run that hangs on its caller's thread. The watcher calls."""
        turns = self._turns()
        if turns is None or self.lost is not None:
            return
        is_here = turns.turn.locked() and not self._is_beside
        stuck = self.watch.stuck() if is_here else None
        if stuck is None:
            return
        with self._claiming:
            self._is_taken = stuck.claim()
        runs = self._runs
        if self._is_taken and runs is not None:
            hung = stuck.give_up()
            runs.give_up(hung)
            self._lose(hung, runs, None)
            turns.leave_turn(hung)

    def _end_here(self, failed: BaseException | None, runs: Executors, borrowed: object) -> None:
        """After a run on its caller's thread: raise what ends it, if that is not its own error.

        The plan is lost if a wait was given up, or if the turn was taken.
        """
        for _ in taking(self._claiming):
            try:
                is_taken = self._is_taken
                self.watch.reset()
                break
            finally:
                self._claiming.release()
        if is_taken:
            _KEPT.append(borrowed)
            turns = self._turns()
            raise self._come_back(turns, failed) from failed
        if self.watch.hung is not None and isinstance(failed, DeviceError):
            self._lose(self.watch.hung, runs, borrowed)

    def _come_back(self, turns: CallersTurns | None, failed: BaseException | None) -> BaseException:
        """Take the turn again after a launch that hung; return what ends the run."""
        if turns is None or self.watch.hung is None:
            return InternalError("a turn was taken from a run that nobody watches")
        interrupt = None if failed is None else interrupt_of(failed)
        has_turn = False
        while not has_turn:
            try:
                for _ in taking(turns.turn):
                    has_turn = True
                    break
            except BaseException as error:
                interrupt = interrupt_of(error)
        turns.begin_turn()
        if interrupt is not None and not isinstance(interrupt, Exception):
            return interrupt
        return self.watch.hung

    def profiled(self, runs: Executors, borrowed: object) -> list[TaskSpan]:
        """Run a plan once and return when each task ran. Errors: as `run`"""
        self._check_not_lost()
        spans: list[TaskSpan] = []
        self._run_beside(runs, borrowed, lambda: spans.extend(runs.profiled()))
        return spans

    def _check_not_lost(self) -> None:
        if self.lost is not None:
            raise DeviceError(self.lost.summary).of_device(self.lost.device).of_kind(FaultKind.LOST)

    def _run_beside(self, runs: Executors, borrowed: object, run: Callable[[], None]) -> None:
        """Run a plan once, on a thread that is left behind where it hangs."""
        over = threading.Lock()
        over.acquire()
        failed: list[BaseException] = []
        token = current_token()

        def work() -> None:
            try:
                with working_for(token):
                    run()
            except BaseException as error:
                failed.append(error)
            over.release()

        self._is_beside = True
        try:
            self.watch.reset()
            self._submit(work)
            stuck = self._wait(over)
        except BaseException:
            self._is_beside = False
            raise
        hung = self.watch.hung if stuck is None else stuck.give_up()
        if hung is not None:
            self._lose(hung, runs, (borrowed, self._thread))
            raise hung
        self._is_beside = False
        if failed:
            raise failed[0]

    def close(self) -> None:
        """Let the thread end, unless it hangs."""
        WATCHER.drop(self)
        self._work.put(None)
        if self._thread is not None and self.lost is None:
            self._thread.join()

    def _submit(self, work: Callable[[], None]) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._have_no_thread()
            name, args = "trireme-watched", (self._work,)
            self._thread = threading.Thread(target=_serve, name=name, args=args, daemon=True)
            start_thread(self._thread)
        self._work.put(work)

    def _wait(self, over: threading.Lock) -> StuckTasks | None:
        """Return when a run is over, None; an interrupt waits for that, too. Or tasks that hang."""
        interrupt: BaseException | None = None
        while True:
            try:
                if over.acquire(timeout=LOOK_S):
                    break
                stuck = self.watch.stuck()
            except BaseException as error:
                interrupt = interrupt or interrupt_of(error)
                continue
            if stuck is not None:
                return stuck
        if interrupt is not None:
            raise interrupt
        return None

    def _lose(self, hung: DeviceError, runs: Executors, borrowed: object) -> None:
        """Never run the plan again; keep all that the tasks that hang may touch."""
        self.lost = hung
        lose(self._devices, hung, (borrowed, runs.runner))
        runs.abandon()


def _serve(work: SimpleQueue[Callable[[], None] | None]) -> None:
    while (one := work.get()) is not None:
        one()
        del one


def lose(devices: Mapping[str, Device], hung: DeviceError, used: object) -> None:
    """Never ask a device again that hangs, and keep what its task may still touch."""
    if hung.device in devices:
        devices[hung.device].is_lost = True
    _KEPT.append(used)


def works_beside_host(plan: Plan) -> bool:
    """Whether a plan, or a body of it, has a task on a device that is not the caller's thread."""
    specs = plan.placement.specs
    if any(not task.is_copy and specs[task.device].memory != HOST for task in plan.tasks):
        return True
    return any(map(works_beside_host, plan.bodies.values()))


def _memory_beside_host(plan: Plan, task: Task) -> str:
    """Return the memory of the device that a task keeps busy; of a copy, not the host's."""
    if not task.is_copy:
        return plan.placement.specs[task.device].memory
    return next((end for end in link_ends(task.device) if end != HOST), HOST)


def _may_take_any_time(task: Task) -> bool:
    """Whether the turns of a loop or the code of a user decide how long a task takes."""
    ops = [get_op(node.op) for node in task.nodes]
    return any(op.has_body or op.calls_python for op in ops)


def _crosses_devices(task: Task) -> bool:
    """Whether a task copies between two devices: its launch waits for the first half."""
    return task.is_copy and HOST not in link_ends(task.device)
