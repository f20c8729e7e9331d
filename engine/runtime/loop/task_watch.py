"""The tasks of a plan that are under way, since when, and how long they may take.

A task that takes more than max(1 s, 20 x predicted) is a HANG. What the watch finds, watchdog.py
acts on. A device that hangs is never asked again, and what its task may write to is kept for ever.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from weakref import ref

from trireme.backend.capabilities import TimedEvent
from trireme.backend.device import HOST, Device, Done, Event
from trireme.backend.links import link_ends
from trireme.ir.op import get_op
from trireme.plan.plan import Plan, Task
from trireme.profiling.rows import clock_of
from trireme.runtime.program.failures import task_error
from trireme.support.cancel import Clock
from trireme.support.errors import DeviceError, FaultKind

LEAST_S, TIMES = 1.0, 20.0
"""A task may take so many seconds, and so often what is predicted or was seen."""
LOOK_S = 0.25
"""Seconds between two looks at the tasks under way."""
_KEPT: list[object] = []


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


def lose(devices: Mapping[str, Device], hung: DeviceError, used: object) -> None:
    """Never ask a device again that hangs, and keep what its task may still touch."""
    if hung.device in devices:
        devices[hung.device].is_lost = True
    keep_for_ever(used)


def keep_for_ever(used: object) -> None:
    """Keep the memory of a task that hangs."""
    _KEPT.append(used)
