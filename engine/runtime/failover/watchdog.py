"""Runs on a thread of their own, so that a device that hangs does not hold its caller.

A task that takes more than max(1 s, 20 x predicted) is a HANG. The device is LOST then: nobody
waits for it again. Its thread, the memory of its plan, and what the run borrowed from the caller
are kept for ever, because the task may still write there.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue

from trireme.backend.device import HOST, Device
from trireme.plan.plan import Plan
from trireme.profiling.rows import clock_of
from trireme.runtime.executors import Executors
from trireme.runtime.failures import interrupt_of, task_error
from trireme.support.cancel import Clock, current_token, working_for
from trireme.support.errors import DeviceError, FaultKind
from trireme.support.forks import register_at_fork
from trireme.support.threads import start_thread

LEAST_S, TIMES = 1.0, 20.0
"""A task may take so many seconds, and so often what is predicted or was seen."""
_LOOK_S = 0.25
"""Seconds between two looks at the tasks under way."""


class TaskWatch:
    """The tasks of a plan that are under way, and since when.

    Wall times of a simulated device are not predicted: such a task is watched from its second run
    on, by the longest that was seen.
    """

    def __init__(self, plan: Plan, least_s: float = LEAST_S, clock: Clock = time.monotonic) -> None:
        self.plan, self._least_s, self._clock = plan, least_s, clock
        self._expected_s = [
            task.estimate_s if clock_of(plan, task) == "wall" else math.inf for task in plan.tasks
        ]
        self._longest_s = [0.0] * len(plan.tasks)
        self._begun: dict[int, tuple[Sequence[int], float]] = {}

    def begin(self, tasks: Sequence[int]) -> None:
        """Note that tasks, launched together, begin."""
        self._begun[tasks[0]] = tasks, self._clock()

    def end(self, tasks: Sequence[int]) -> None:
        """Note that they are over."""
        found = self._begun.pop(tasks[0], None)
        if found is not None:
            took_s = self._clock() - found[1]
            for index in tasks:
                self._longest_s[index] = max(self._longest_s[index], took_s)

    def reset(self) -> None:
        """Forget what was under way."""
        self._begun.clear()

    def limit_s(self, tasks: Sequence[int]) -> float:
        """Return the seconds that tasks may take together."""
        return max(self._least_s, TIMES * sum(map(self._known_s, tasks)))

    def overdue(self) -> Sequence[int]:
        """Return tasks that have taken too long; none where all is well."""
        now_s = self._clock()
        for tasks, begun_s in list(self._begun.values()):
            if now_s - begun_s > self.limit_s(tasks):
                return tasks
        return ()

    def _known_s(self, index: int) -> float:
        expected_s, longest_s = self._expected_s[index], self._longest_s[index]
        if expected_s == math.inf and longest_s:
            return longest_s
        return max(expected_s, longest_s)


class WatchedRuns:
    """Has a thread run a plan, and gives it up when a task hangs. One run at a time.

    lost: the error of the task that hung; the plan never runs again then
    """

    def __init__(self, watch: TaskWatch, devices: Mapping[str, Device]) -> None:
        self.watch, self._devices = watch, devices
        self.lost: DeviceError | None = None
        self._kept: list[object] = []
        self.reset_after_fork()
        register_at_fork(self)

    def reset_after_fork(self) -> None:
        """Have no thread in a forked child."""
        self._thread: threading.Thread | None = None
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def run(self, runs: Executors, borrowed: object) -> None:
        """Run a plan once.

        borrowed: what the run reads and writes of the caller's
        Errors: those of the run; DeviceError of kind HANG, and LOST ever after
        """
        if self.lost is not None:
            raise DeviceError(self.lost.summary).of_device(self.lost.device).of_kind(FaultKind.LOST)
        over = threading.Lock()
        over.acquire()
        failed: list[BaseException] = []
        token = current_token()

        def work() -> None:
            try:
                with working_for(token):
                    runs.run()
            except BaseException as error:
                failed.append(error)
            over.release()

        self.watch.reset()
        self._submit(work)
        try:
            self._wait(over, (borrowed, runs.runner))
        except DeviceError:
            runs.abandon()
            raise
        if failed:
            raise failed[0]

    def close(self) -> None:
        """Let the thread end, unless it hangs."""
        self._work.put(None)
        if self._thread is not None and self.lost is None:
            self._thread.join()

    def _submit(self, work: Callable[[], None]) -> None:
        if self._thread is None or not self._thread.is_alive():
            self.reset_after_fork()
            name, args = "trireme-watched", (self._work,)
            self._thread = threading.Thread(target=_serve, name=name, args=args, daemon=True)
            start_thread(self._thread)
        self._work.put(work)

    def _wait(self, over: threading.Lock, borrowed: object) -> None:
        """Return when a run is over; an interrupt waits for that, too. Errors: DeviceError"""
        interrupt: BaseException | None = None
        while True:
            try:
                if over.acquire(timeout=_LOOK_S):
                    break
                tasks = self.watch.overdue()
            except BaseException as error:
                interrupt = interrupt or interrupt_of(error)
                continue
            if tasks:
                self._give_up(tasks, borrowed)
        if interrupt is not None:
            raise interrupt

    def _give_up(self, tasks: Sequence[int], borrowed: object) -> None:
        """Raise the error of tasks that hang; keep all that they may touch."""
        limit_s = self.watch.limit_s(tasks)
        error = DeviceError(f"a task takes longer than {limit_s:.3g} s: the device hangs")
        found = task_error(self.watch.plan, tasks, error.of_kind(FaultKind.HANG))
        assert isinstance(found, DeviceError)
        self.lost = found
        self._kept.append((borrowed, self._thread))
        if found.device in self._devices:
            self._devices[found.device].is_lost = True
        raise found


def _serve(work: SimpleQueue[Callable[[], None] | None]) -> None:
    while (one := work.get()) is not None:
        one()
        del one


def works_beside_host(plan: Plan) -> bool:
    """Whether a plan has a task on a device that is not the caller's own thread."""
    specs = plan.placement.specs
    return any(not task.is_copy and specs[task.device].memory != HOST for task in plan.tasks)
