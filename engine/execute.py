"""Run the tasks of a program once: one after another, or each as soon as its waits allow.

Both orders respect the plan's waits and so give the same bits. In parallel mode every queue (a
device, or a link between memories) has a thread of its own; the thread that calls `run` serves the
first queue, so a plan without overlap costs no hand-over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Literal

from trireme.device import BoundCall, NodeSpan
from trireme.plan import Plan

Mode = Literal["serial", "parallel"]


@dataclass(frozen=True)
class TaskSpan:
    """When a task ran, in seconds of time.perf_counter, and what its device says of its inside."""

    task: int
    start_s: float
    end_s: float
    nodes: tuple[NodeSpan, ...]


def serial_runner(calls: Sequence[BoundCall]) -> Callable[[], None]:
    """Return a function that runs every task in plan order, waiting for each."""
    each = [getattr(call, "run", None) or _launcher(call) for call in calls]
    if len(each) == 1:
        only: Callable[[], None] = each[0]
        return only

    def run() -> None:
        for call in each:
            call()

    return run


def _launcher(call: BoundCall) -> Callable[[], None]:
    def run() -> None:
        call.launch().wait()

    return run


def run_profiled(calls: Sequence[BoundCall], order: Sequence[int]) -> list[TaskSpan]:
    """Run every task in an order that respects the waits, and return when each ran."""
    return [_timed(calls[index], index) for index in order]


def _timed(call: BoundCall, index: int) -> TaskSpan:
    start = time.perf_counter()
    event = call.launch(profile=True)
    event.wait()
    return TaskSpan(index, start, time.perf_counter(), tuple(event.spans()))


def has_overlap(plan: Plan) -> bool:
    """Whether two tasks of the plan could run at the same time."""
    before: list[int] = []
    for task in plan.tasks:
        bits = 0
        for other in task.waits:
            bits |= before[other] | 1 << other
        if bits != (1 << task.index) - 1:
            return True
        before.append(bits)
    return False


class ParallelRunner:
    """Runs a plan's tasks as their waits allow, again and again, on threads that stay."""

    def __init__(self, plan: Plan, calls: Sequence[BoundCall]) -> None:
        self.calls = calls
        self.waits = [len(task.waits) for task in plan.tasks]
        self.followers: list[list[int]] = [[] for _ in plan.tasks]
        for task in plan.tasks:
            for other in task.waits:
                self.followers[other].append(task.index)
        names = list(dict.fromkeys(task.device for task in plan.tasks if not task.is_copy))
        names += list(dict.fromkeys(task.device for task in plan.tasks if task.is_copy))
        self.queue_of = [names.index(task.device) for task in plan.tasks]
        self.queues: list[SimpleQueue[int | None]] = [SimpleQueue() for _ in names]
        self.lock = threading.Lock()
        self.left: list[int] = []
        self.unfinished = 0
        self.error: BaseException | None = None
        self.spans: list[TaskSpan] | None = None
        self.threads = [
            threading.Thread(target=self._serve, args=(q,), name=f"trireme-{name}", daemon=True)
            for q, name in enumerate(names)
            if q
        ]
        for thread in self.threads:
            thread.start()

    def run(self, profile: bool = False) -> list[TaskSpan]:
        """Run every task once; raise the first error after all that had started is over."""
        self.left = list(self.waits)
        self.unfinished = len(self.calls)
        self.error = None
        self.spans = [] if profile else None
        for index, count in enumerate(self.waits):
            if not count:
                self.queues[self.queue_of[index]].put(index)
        if self.calls:
            self._serve(0)
        if self.error is not None:
            raise self.error
        return sorted(self.spans or [], key=lambda span: span.task)

    def close(self) -> None:
        """Stop the threads."""
        for queue in self.queues[1:]:
            queue.put(None)
        for thread in self.threads:
            thread.join()

    def _serve(self, queue: int) -> None:
        """Run what comes into a queue: until None, which for the caller's queue ends the run."""
        while (index := self.queues[queue].get()) is not None:
            try:
                if self.error is None:
                    self._run_one(index)
            except BaseException as error:
                with self.lock:
                    self.error = self.error or error
            self._finish(index)

    def _run_one(self, index: int) -> None:
        if self.spans is None:
            self.calls[index].launch().wait()
        else:
            self.spans.append(_timed(self.calls[index], index))

    def _finish(self, index: int) -> None:
        ready = []
        with self.lock:
            for follower in self.followers[index]:
                self.left[follower] -= 1
                if not self.left[follower]:
                    ready.append(follower)
            self.unfinished -= 1
            over = not self.unfinished
        for follower in ready:
            self.queues[self.queue_of[follower]].put(follower)
        if over:
            self.queues[0].put(None)
