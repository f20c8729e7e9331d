"""Run the items of a stream: pipelines, round robin and replicas all go through here.

An item is one run. A context has the memory of one run and the steps of it. Every queue has a
thread and runs one step at a time, the oldest item's first. Cheap steps run on the thread that made
them ready, where their queue is free. A context whose devices queue launches by themselves needs no
thread: its items are launched whole. An item that fails says why; the others go on.

Where a launch never returns, its thread is left behind: the reader looks at the watches of the
contexts while it waits. All items under way end with an error then, and no further one begins.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from trireme.backend.device import Event
from trireme.plan.flow import Flow
from trireme.runtime.loop.task_watch import LOOK_S, TaskWatch, lose
from trireme.runtime.program.context import ExecutionContext
from trireme.runtime.program.io_binding import Given
from trireme.runtime.program.program import Program
from trireme.support.cached import cached_property
from trireme.support.errors import DeviceError, FaultKind
from trireme.support.forks import register_at_fork
from trireme.support.threads import TaskThreads


@dataclass(frozen=True)
class StreamStep:
    """A part of an item, for the thread of a queue.

    waits: the steps of the item that come before
    cheap: whether the step may run on the thread that made it ready
    run: runs the step and returns when it is over; its errors name what was launched
    """

    queue: int
    waits: Sequence[int]
    cheap: bool
    run: Callable[[], None]


@dataclass(frozen=True)
class StreamContext:
    """Memory for one run of a stream, and how the run goes in it: by steps, or launched whole.

    between: (a, b): step b waits for step a of the item before
    launch: where there are no steps: launches a run without waiting for any of it, and adds each
        event as soon as it is launched
    watch: of the tasks of its steps; None where nothing is given up
    """

    execution: ExecutionContext
    steps: Sequence[StreamStep] = ()
    between: Sequence[tuple[int, int]] = ()
    launch: Callable[[list[Event]], None] | None = None
    watch: TaskWatch | None = None

    def forget(self, step: int) -> None:
        """Note that a step that failed is under way no more."""
        if self.watch is not None and len(self.steps) == 1:
            self.watch.reset()  # the step is a whole run
        elif self.watch is not None:
            self.watch.claim((step,))

    @cached_property
    def followers(self) -> list[list[int]]:
        """The steps that wait for each step."""
        found: list[list[int]] = [[] for _ in self.steps]
        for index, step in enumerate(self.steps):
            for other in step.waits:
                found[other].append(index)
        return found


class Item:
    """One run: its number in the stream, its context, and what is left to do.

    begun: whether its inputs fitted, so that its context is taken
    feeds: copies of its inputs, where it may have to run again
    """

    def __init__(self, number: int, context: StreamContext) -> None:
        self.number, self.context = number, context
        self.begun = False
        self.feeds: Mapping[str, Any] = {}
        self.left: list[int] = []
        self.over: set[int] = set()
        self.unfinished = 0
        self.later: dict[int, list[tuple[Item, int]]] = {}
        self.done: SimpleQueue[None] = SimpleQueue()
        self.events: list[Event] = []
        self.given: Given = (None, [])
        self.error: BaseException | None = None


class Dispatcher:
    """Contexts, and the threads of their queues; used by one stream at a time.

    flow: depth, memory and predicted steady state
    queues: the names of the queues; none where every context is launched
    lost: the error of a task that hangs; nothing begins any more then
    """

    def __init__(
        self, flow: Flow, contexts: Sequence[StreamContext], queues: Sequence[str]
    ) -> None:
        self.flow, self.contexts, self.queues = flow, contexts, queues
        self.lost: DeviceError | None = None
        self.threads = [TaskThreads(f"trireme-stream-{name}") for name in queues]
        self._look_s = LOOK_S if any(one.watch is not None for one in contexts) else None
        self.reset_after_fork()
        register_at_fork(self)

    @cached_property
    def programs(self) -> list[Program]:
        """The programs of the contexts: several where programs take whole runs in turn."""
        found = {id(one.execution.program): one.execution.program for one in self.contexts}
        return list(found.values())

    def reset_after_fork(self) -> None:
        """Start afresh: no thread, no step waiting for one."""
        self.lock = threading.Lock()
        self.ready: list[list[tuple[int, int, Item]]] = [[] for _ in self.queues]
        self.busy = [False] * len(self.queues)
        self.stopping = False
        self._items: list[Item] = []
        self._running: list[tuple[StreamContext, int] | None] = [None for _ in self.queues]
        self._stuck: set[int] = set()

    def start(self) -> None:
        """Start a thread a queue, if they are not there."""
        if self.lost is not None:
            return
        if self.stopping:
            self.end()  # an interrupt kept the last from its end
        for threads in self.threads:
            threads.start()

    def end(self) -> None:
        """Stop the threads; what runs is waited for, what is ready is not begun.

        A thread that hangs is left alone.
        """
        with self.lock:
            self.stopping = True
            for steps in self.ready:
                steps.clear()
            for item in self._items:
                item.done.put(None)
        for queue, threads in enumerate(self.threads):
            threads.end(partial(self._is_stuck, queue), self._look_s)
        if self.lost is None:
            self.reset_after_fork()

    def _is_stuck(self, queue: int) -> bool:
        """Whether the thread of a queue hangs."""
        with self.lock:
            if self.lost is None:
                self._look()
        return queue in self._stuck

    def submit(self, item: Item, before: Item | None) -> None:
        """Begin a run, whose inputs are in its context; `before` is the run before it."""
        context = item.context
        if context.launch is not None:
            try:
                context.launch(item.events)
            except Exception as error:
                item.error = error
            return
        item.left = [len(step.waits) for step in context.steps]
        item.unfinished = len(item.left)
        with self.lock:
            if self.lost is not None:
                item.error, item.unfinished = self._lost_error(), 0
                return
            self._items.append(item)
            for a, b in context.between:
                if before is not None and a not in before.over:
                    item.left[b] += 1
                    before.later.setdefault(a, []).append((item, b))
            for step, count in enumerate(item.left):
                if not count:
                    self._push(item, step)

    def wait(self, item: Item) -> None:
        """Return when a run is over, its error set if it failed."""
        for event in item.events:
            try:
                event.wait()
            except Exception as error:
                item.error = item.error or error
        item.events = []
        while item.unfinished > 0:
            try:
                item.done.put(item.done.get(timeout=self._look_s))  # others may wait, too
                break
            except Empty:
                with self.lock:
                    self._look()
        with self.lock:
            if item in self._items:
                self._items.remove(item)

    def _look(self) -> None:
        """Give up a task that hangs, and with it all items under way."""
        for context in self.contexts:
            stuck = None if context.watch is None else context.watch.stuck()
            if stuck is not None and stuck.claim():
                self._lose(context, stuck.give_up(), stuck.tasks)
                return

    def _lose(self, context: StreamContext, hung: DeviceError, tasks: Sequence[int]) -> None:
        """Begin nothing more; a thread hangs at one of some tasks of a context."""
        self.lost, self.stopping = hung, True
        lose(context.execution.program.devices, hung, self)
        steps = range(1) if len(context.steps) == 1 else tasks
        for queue, running in enumerate(self._running):
            if running is not None and running[0] is context and running[1] in steps:
                self._stuck.add(queue)
        for item in self._items:
            error = hung if item.context is context else self._lost_error()
            item.error, item.unfinished = item.error or error, 0
            item.done.put(None)
        self._items.clear()

    def _lost_error(self) -> DeviceError:
        assert self.lost is not None
        found = DeviceError(self.lost.summary).of_device(self.lost.device)
        found.of_kind(FaultKind.LOST)
        return found

    def _push(self, item: Item, step: int) -> None:
        queue = item.context.steps[step].queue
        heapq.heappush(self.ready[queue], (item.number, step, item))
        self._begin_oldest(queue)

    def _begin_oldest(self, queue: int) -> None:
        """Hand the oldest item's ready step over to the thread of its queue where that is free."""
        if self.ready[queue] and not self.busy[queue] and not self.stopping:
            _, step, item = heapq.heappop(self.ready[queue])
            self.busy[queue] = True
            self.threads[queue].submit(partial(self._serve, queue, step, item))

    def _serve(self, queue: int, step: int, item: Item) -> None:
        """Run a step, and the cheap ones that it makes ready."""
        mine = deque([(step, item)])
        while mine and not self.stopping:
            step, item = mine.popleft()
            if item.error is None:
                self._running[queue] = item.context, step
                try:
                    item.context.steps[step].run()
                except BaseException as error:
                    item.context.forget(step)
                    if isinstance(error, DeviceError) and error.kind is FaultKind.HANG:
                        lose(item.context.execution.program.devices, error, self)
                    item.error = item.error or error
                self._running[queue] = None
            self._finish(step, item, mine)

    def _finish(self, step: int, item: Item, mine: deque[tuple[int, Item]]) -> None:
        """Free the step's queue; claim the cheap steps that became ready where nothing waits."""
        context = item.context
        with self.lock:
            queue = context.steps[step].queue
            self.busy[queue] = False
            item.over.add(step)
            item.unfinished -= 1
            waiting = [(item, follower) for follower in context.followers[step]]
            for one, follower in waiting + item.later.pop(step, []):
                one.left[follower] -= 1
                if one.left[follower]:
                    continue
                after = context.steps[follower]
                if after.cheap and not self.busy[after.queue] and not self.ready[after.queue]:
                    self.busy[after.queue] = True
                    mine.append((follower, one))
                else:
                    self._push(one, follower)
            self._begin_oldest(queue)
            if not item.unfinished:
                item.done.put(None)
