"""Run the tasks of a plan in parallel: each as soon as its waits allow, with few hand-overs.

Every queue (a device, or a link between memories) runs one task at a time. The thread that finishes
a task goes on with the ready ones: all cheap tasks, because handing one over costs more, and one
expensive task. Only further expensive tasks are dispatched to the worker of their queue. The cost
model tells cheap tasks, until a task is seen to take far longer. Tasks that a device runs by itself
(a kernel, a copy) are launched first and waited for last, so a thread starts all its tasks before
it waits. A task that may follow on the same driver queue (device.QueuedCall) is launched behind at
once. So a copy, its kernel and the next copy are on their way before the first is over. No lock is
held while a device works.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

from trireme.backend.capabilities import driver_queue_of
from trireme.backend.device import HOST, BoundCall, Done, Event
from trireme.plan.plan import Plan
from trireme.profiling.spans import TaskSpan, span_of
from trireme.runtime.loop.execute import TaskListener, launch_behind
from trireme.runtime.program.failures import named_error, task_error
from trireme.support.cancel import CancelToken, current_token, working_for
from trireme.support.errors import RunError
from trireme.support.forks import register_at_fork
from trireme.support.threads import TaskThreads

CHEAP_S = 30e-6
"""Predicted seconds below which a task runs where it became ready: about twice what waking another
thread costs."""
_SLOW_S, _SLOW_TIMES = 5 * CHEAP_S, 2
"""A task that took so long so often is cheap no more."""


class ParallelRunner:
    """Runs a plan's tasks as their waits allow, again and again, on threads that stay.

    watch: is told when tasks begin and end
    dispatches: tasks that the last run handed over to another thread
    """

    def __init__(
        self,
        plan: Plan,
        calls: Sequence[BoundCall],
        cheap_s: float = CHEAP_S,
        watch: TaskListener | None = None,
    ) -> None:
        self.plan, self.watch = plan, watch
        self.calls: Sequence[Any] = calls
        self.driver_queues = [driver_queue_of(call) for call in calls]
        self.one_driver_queue = (
            None not in self.driver_queues and len(set(map(id, self.driver_queues))) == 1
        )
        self.waits = [task.waits for task in plan.tasks]
        self.followers: list[list[int]] = [[] for _ in plan.tasks]
        for task in plan.tasks:
            for other in task.waits:
                self.followers[other].append(task.index)
        self.names = list(dict.fromkeys(task.device for task in plan.tasks))
        self.queue_of = [self.names.index(task.device) for task in plan.tasks]
        self.cheap = [task.estimate_s < cheap_s for task in plan.tasks]
        host = {name for name, spec in plan.placement.specs.items() if spec.memory == HOST}
        self.blocks = [task.device in host for task in plan.tasks]
        self.watched = [
            not below or any(self.driver_queues[i] is not self.driver_queues[index] for i in below)
            for index, below in enumerate(self.followers)
        ]
        self.slow = [0] * len(plan.tasks)
        self.left: list[int] = []
        self.under_way: dict[int, Event] = {}
        self.unfinished = self.dispatches = 0
        self.error: BaseException | None = None
        self.token: CancelToken | None = None
        self.profiles = False
        self.seen: list[tuple[int, Event, float, float, str]] = []
        self.threads = [TaskThreads(f"trireme-{name}") for name in self.names]
        self.reset_after_fork()
        register_at_fork(self)

    def give_up(self, error: Exception) -> None:
        """Have a run that waits for its tasks end with an error. The runner is of no use then."""
        self.error = error
        self.over.put(None)

    def reset_after_fork(self) -> None:
        """Start afresh: no thread, no task waiting for one."""
        self.pending: list[deque[int]] = [deque() for _ in self.names]
        self.busy = [False] * len(self.names)
        self.lock = threading.Lock()
        self.over: SimpleQueue[None] = SimpleQueue()
        self.broken = False

    def run(self, profile: bool = False) -> list[TaskSpan]:
        """Run every task once; raise the first error after all that had started is over.

        After an interrupt a launch may be under way that nobody knows of: see Device.finish.
        """
        if not self.calls:
            return []
        if self.one_driver_queue and not profile:
            if self.watch is not None:
                self.watch.begin(range(len(self.calls)))
            self._launch_all()
            if self.watch is not None:
                self.watch.end(range(len(self.calls)))
            return []
        if self.broken:
            self.close()
        self.left = [len(waits) for waits in self.waits]
        self.under_way.clear()
        self.unfinished, self.dispatches = len(self.calls), 0
        self.token = current_token()
        self.error = None
        self.profiles = profile
        self.seen.clear()
        mine: list[int] = []
        try:
            with self.lock:
                self._share([i for i, waits in enumerate(self.waits) if not waits], mine)
            self._work(mine)
            self.over.get()
        except BaseException as error:  # an interrupt: who holds which task is not known any more
            self.error, self.broken = error, True
            self.close()
            raise
        if self.error is not None:
            raise self.error
        return [
            span_of(index, event, start_s, end_s, self.driver_queues[index] is not None, worker)
            for index, event, start_s, end_s, worker in sorted(self.seen, key=lambda one: one[0])
        ]

    def _launch_all(self) -> None:
        """Launch every task behind those it waits for, then wait: the devices do the rest."""
        events: list[Event] = []
        error: BaseException | None = None
        self.dispatches = 0
        try:
            launch_behind(self.plan, self.calls, events)
        except BaseException as caught:
            error = self._named(len(events), caught)
        for index, event in reversed(list(enumerate(events))):
            try:
                self._wait_for(event, index)
            except BaseException as caught:  # the first task's error, or an interrupt
                failed = self._named(index, caught)
                error = failed if error is None or isinstance(error, Exception) else error
        if error is not None:
            raise error

    def close(self) -> None:
        """Stop the threads, which finish their tasks; a further run starts others."""
        for threads in self.threads:
            threads.end()
        self.reset_after_fork()

    def _serve(self, index: int) -> None:
        with working_for(self.token):
            self._work([index])

    def _work(self, mine: list[int]) -> None:
        """Run the tasks that this thread holds, last first, and those that they make ready.

        While something flies, no long task may keep the thread from seeing it land. Tasks for which
        only the device waits come last.
        """
        flying: deque[tuple[int, float, Event]] = deque()
        unwatched: deque[tuple[int, float, Event]] = deque()
        while mine or flying or unwatched:
            if mine:
                index, start = mine.pop(), time.perf_counter()
                if flying and self.blocks[index] and not self.cheap[index] and not self.error:
                    with self.lock:
                        self._dispatch(self.queue_of[index], index, mine)
                    continue
                event = self._launch(index)
                self.blocks[index] = type(event) is Done
                if event is not None and type(event) is not Done:
                    (flying if self.watched[index] else unwatched).append((index, start, event))
                    if self.driver_queues[index] is not None:
                        self._chain(index, event, mine)
                    continue
            else:
                index, start, event = (flying or unwatched).popleft()
            self._wait(index, start, event)
            self._finish(index, mine)

    def _launch(self, index: int) -> Event | None:
        if self.error is not None:
            return None
        try:
            if self.token is not None:
                self.token.check()
            if self.watch is not None:
                self.watch.begin((index,))
            found = map(self.under_way.get, self.waits[index]) if self.under_way else ()
            after = [event for event in found if event is not None]
            if after:
                event: Event = self.calls[index].launch(self.profiles, after)
            else:
                event = self.calls[index].launch(self.profiles)
            return event
        except BaseException as error:
            self._fail(index, error)
            return None

    def _wait(self, index: int, start: float, event: Event | None) -> None:
        if event is None:
            return
        try:
            self._wait_for(event, index)
            end = time.perf_counter()
            if self.cheap[index] and end - start > _SLOW_S:
                self.slow[index] += 1
                self.cheap[index] = self.slow[index] < _SLOW_TIMES
            if self.profiles:
                worker = threading.current_thread().name
                self.seen.append((index, event, start, end, worker))
        except BaseException as error:
            self._fail(index, error)

    def _wait_for(self, event: Event, index: int) -> None:
        if self.watch is None:
            event.wait()
        else:
            self.watch.wait(event, (index,))

    def _fail(self, index: int, error: BaseException) -> None:
        named = self._named(index, error)
        with self.lock:
            self.error = self.error or named

    def _named(self, index: int, error: BaseException) -> BaseException:
        """Return an error with the launched task; an interrupt is unchanged."""
        return named_error(partial(task_error, self.plan, [index]), error)

    def _chain(self, index: int, event: Event, mine: list[int]) -> None:
        """Free the queue of a task under way, and share out what may be launched behind it."""
        with self.lock:
            self.under_way[index] = event
            driver_queue = self.driver_queues[index]
            below = [i for i in self.followers[index] if self.driver_queues[i] is driver_queue]
            self._release(self.queue_of[index], below, mine)

    def _finish(self, index: int, mine: list[int]) -> None:
        """Free the task's queue, and share out what became ready."""
        if self.watch is not None:
            self.watch.end((index,))
        with self.lock:
            if self.under_way.pop(index, None) is None:
                self._release(self.queue_of[index], self.followers[index], mine)
            else:
                driver_queue = self.driver_queues[index]
                below = [
                    i for i in self.followers[index] if self.driver_queues[i] is not driver_queue
                ]
                self._release(None, below, mine)
            self.unfinished -= 1
            if not self.unfinished:
                self.over.put(None)

    def _release(self, queue: int | None, below: Sequence[int], mine: list[int]) -> None:
        """Count down those that waited, and share out what became ready."""
        ready = []
        if queue is not None:
            self.busy[queue] = False
            if self.pending[queue]:
                ready.append(self.pending[queue].popleft())
        left = self.left
        for follower in below:
            left[follower] -= 1
            if not left[follower]:
                ready.append(follower)
        if ready:
            self._share(ready, mine)

    def _share(self, ready: Sequence[int], mine: list[int]) -> None:
        """Claim the queues of ready tasks; keep the cheap and one expensive, dispatch the others.

        The expensive one stays at the bottom of `mine`, below the cheap.
        """
        for index in ready:
            queue = self.queue_of[index]
            if self.busy[queue]:
                self.pending[queue].append(index)
                continue
            self.busy[queue] = True
            if self.cheap[index] or self.driver_queues[index] is not None:
                mine.append(index)
            elif not mine or self.cheap[mine[0]] or self.driver_queues[mine[0]] is not None:
                mine.insert(0, index)
            else:
                self._dispatch(queue, index, mine)

    def _dispatch(self, queue: int, index: int, mine: list[int]) -> None:
        """Hand a task over. Where no thread starts, the run fails: `mine` passes over the task."""
        self.dispatches += 1
        try:
            self.threads[queue].submit(partial(self._serve, index))
        except RunError as error:
            self.error = self.error or self._named(index, error)
            mine.append(index)
