"""Run a program on a stream of inputs, several runs in flight: model parallelism for throughput.

Each run in flight has a context. Every queue (a device, or a link between memories) has a thread
and runs one task at a time, the oldest run's first; cheap tasks run on the thread that made them
ready where their queue is free. Outputs come in the order of the inputs, with the bits that one run
after another would give. A run that fails says which it was, and the others go on.
"""

from __future__ import annotations

import heapq
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from trireme.plan.flow import Flow, flow_of, state_waits
from trireme.runtime.context import ExecutionContext
from trireme.runtime.dispatch import CHEAP_S
from trireme.runtime.execute import finish
from trireme.runtime.failures import interrupt_of, launch_error
from trireme.runtime.io_binding import Given
from trireme.runtime.program import Program
from trireme.support.closing import Closing
from trireme.support.dtypes import Array
from trireme.support.errors import RunError, TriremeError
from trireme.support.forks import register_at_fork

Feeds = Mapping[str, Any]


class Item:
    """One run: its number in the stream, its context (None where its inputs did not fit), and what
    is left to do.
    """

    def __init__(self, number: int, context: ExecutionContext | None) -> None:
        self.number, self.context = number, context
        self.left: list[int] = []
        self.over: set[int] = set()
        self.unfinished = 0
        self.later: dict[int, list[tuple[Item, int]]] = {}
        self.given: Given = (None, [])
        self.error: BaseException | None = None


class Runner(Protocol):
    """What a stream gives its items to: a pipeline, or replicas."""

    flow: Flow
    contexts: list[ExecutionContext]

    def start(self) -> None:
        """Start the threads, if they are not there."""

    def submit(self, item: Item, before: Item | None) -> None:
        """Begin a run, whose inputs are in its context; `before` is the run before it."""

    def wait(self, item: Item) -> None:
        """Return when a run is over, its error set if it failed."""

    def end(self) -> None:
        """Stop the threads; runs that are under way go no further than what has started."""


class Pipeline:
    """Lanes for a program, and the threads of its queues; used by one stream at a time.

    flow: its depth, memory and predicted steady state
    asked: the depth that was asked for, None for the least that is enough
    Errors: PlanError, if the contexts do not fit a device's memory
    """

    def __init__(self, program: Program, depth: int | None = None) -> None:
        self.plan, self.asked = program.plan, depth
        plan = self.plan
        self.flow: Flow = flow_of(plan, [task.estimate_s for task in plan.tasks], depth)
        first = ExecutionContext(program)
        self.contexts = [
            first,
            *(ExecutionContext(program, first.scratch) for _ in range(1, self.flow.depth)),
        ]
        self.followers: list[list[int]] = [[] for _ in plan.tasks]
        for task in plan.tasks:
            for other in task.waits:
                self.followers[other].append(task.index)
        self.state_waits = state_waits(plan)
        self.names = list(dict.fromkeys(task.device for task in plan.tasks))
        self.queue_of = [self.names.index(task.device) for task in plan.tasks]
        self.cheap = [task.estimate_s < CHEAP_S for task in plan.tasks]
        self.reset_after_fork()
        register_at_fork(self)

    def reset_after_fork(self) -> None:
        """Start afresh: no thread, no task waiting for one."""
        self.lock = threading.Lock()
        self.calls = [threading.Condition(self.lock) for _ in self.names]
        self.done = threading.Condition(self.lock)
        self.ready: list[list[tuple[int, int, Item]]] = [[] for _ in self.names]
        self.busy = [False] * len(self.names)
        self.threads: list[threading.Thread] = []
        self.stopping = False

    def start(self) -> None:
        """Start a thread a queue, if they are not there."""
        if self.stopping:
            self.end()  # an interrupt kept the last from its end
        if self.threads:
            return
        for queue, name in enumerate(self.names):
            thread = threading.Thread(
                target=self._serve, args=(queue,), name=f"trireme-stream-{name}", daemon=True
            )
            thread.start()
            self.threads.append(thread)

    def end(self) -> None:
        """Stop the threads; what runs is waited for, what is ready is not begun."""
        with self.lock:
            self.stopping = True
            for tasks, call in zip(self.ready, self.calls, strict=True):
                tasks.clear()
                call.notify()
            self.done.notify_all()
        for thread in self.threads:
            if thread is not threading.current_thread():  # a collector may run this anywhere
                thread.join()
        self.reset_after_fork()

    def submit(self, item: Item, before: Item | None) -> None:
        """Make the tasks of an item ready that wait for nothing."""
        item.left = [len(task.waits) for task in self.plan.tasks]
        item.unfinished = len(item.left)
        with self.lock:
            for a, b in self.state_waits:
                if before is not None and before.context is not None and a not in before.over:
                    item.left[b] += 1
                    before.later.setdefault(a, []).append((item, b))
            for task, count in enumerate(item.left):
                if not count:
                    self._push(item, task)

    def wait(self, item: Item) -> None:
        """Return when all tasks of an item are over."""
        with self.lock:
            while item.unfinished > 0:
                self.done.wait()

    def _push(self, item: Item, task: int) -> None:
        queue = self.queue_of[task]
        heapq.heappush(self.ready[queue], (item.number, task, item))
        if not self.busy[queue]:
            self.calls[queue].notify()

    def _serve(self, queue: int) -> None:
        while True:
            with self.lock:
                while not self.stopping and (self.busy[queue] or not self.ready[queue]):
                    self.calls[queue].wait()
                if self.stopping:
                    return
                _, task, item = heapq.heappop(self.ready[queue])
                self.busy[queue] = True
            mine = deque([(task, item)])
            while mine and not self.stopping:
                task, item = mine.popleft()
                self._run(task, item)
                self._finish(task, item, mine)

    def _run(self, task: int, item: Item) -> None:
        if item.error is not None or item.context is None:
            return
        try:
            item.context.calls[task].launch().wait()
        except Exception as error:
            item.error = item.error or launch_error(item.context.program.plan, [task], error)
        except BaseException as error:
            item.error = item.error or error

    def _finish(self, task: int, item: Item, mine: deque[tuple[int, Item]]) -> None:
        """Free the task's queue; claim the cheap tasks that became ready where nothing waits."""
        with self.lock:
            queue = self.queue_of[task]
            self.busy[queue] = False
            item.over.add(task)
            item.unfinished -= 1
            waiting = [(item, follower) for follower in self.followers[task]]
            for one, follower in waiting + item.later.pop(task, []):
                one.left[follower] -= 1
                if not one.left[follower]:
                    other = self.queue_of[follower]
                    if self.cheap[follower] and not self.busy[other] and not self.ready[other]:
                        self.busy[other] = True
                        mine.append((follower, one))
                    else:
                        self._push(one, follower)
            if self.ready[queue] and not self.busy[queue]:
                self.calls[queue].notify()
            if not item.unfinished:
                self.done.notify_all()


def check_no_other(stream: Stream | None, whose: str) -> None:
    """See that a stream is over before another begins; one that is being closed is waited for.

    Errors: RunError, if it is under way
    """
    if stream is not None:
        if not stream.closed:
            raise RunError(f"a stream of {whose} is under way", fix="read it or close it")
        stream.close()


class Stream(Closing, Iterator[dict[str, Array]]):
    """The outputs of a stream of inputs, in order; read by one thread at a time.

    An item that fails raises RunError with its number, from what went wrong; `next` goes on with
    the item after it. What the inputs' iterable raises comes out when all before it has. Close it,
    or use it in a `with`, if it is not read to the end; any thread may. After an interrupt (Ctrl-C)
    it is closed.

    owner: what must not be collected before the stream
    """

    def __init__(self, runner: Runner, feeds: Iterable[Feeds], owner: object = None) -> None:
        self.runner, self.flow, self._owner = runner, runner.flow, owner
        self._feeds = iter(feeds)
        self._contexts = deque(runner.contexts)
        self._flying: deque[Item] = deque()
        self._last: Item | None = None
        self._count = 0
        self._broken: BaseException | None = None
        self._dry = self.closed = False
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._end = weakref.finalize(self, runner.end)
        register_at_fork(self)
        runner.start()

    def __next__(self) -> dict[str, Array]:
        if not self._reading.acquire(blocking=False):
            raise RunError("the stream is being read already", fix="read it in one thread")
        try:
            return self._next()
        except (StopIteration, TriremeError):
            raise
        except BaseException as error:
            if self.closed:
                raise
            self._give_up("the stream was interrupted")
            interrupt = interrupt_of(error)
            if interrupt is error:
                raise
            raise interrupt from None
        finally:
            self._reading.release()

    def _next(self) -> dict[str, Array]:
        self._fill()
        with self._lock:
            item = self._flying[0] if self._flying else None
        if item is None:
            broken, self._broken = self._broken, None
            self.close()
            raise broken or StopIteration
        if item.context is not None:
            self.runner.wait(item)
        with self._lock:
            if self.closed:
                raise RunError("the stream was closed while it was read")
            self._flying.popleft()
            outputs = {}
            if item.context is not None:
                outputs = item.context.ports.collect(item.given) if item.error is None else {}
                self._contexts.append(item.context)
        if item.error is not None:
            raise RunError(f"item {item.number} of the stream: {item.error}") from item.error
        self._fill()
        return outputs

    def _fill(self) -> None:
        """Take inputs while a context is free."""
        while self._contexts and not self._dry:
            try:
                feeds = next(self._feeds)
            except StopIteration:
                self._dry = True
                return
            except BaseException as error:
                self._dry, self._broken = True, error
                return
            with self._lock:
                if not self.closed:
                    self._begin(feeds)

    def _begin(self, feeds: Feeds) -> None:
        item = Item(self._count, self._contexts[0])
        self._count += 1
        self._flying.append(item)
        try:
            item.given = self._contexts[0].ports.bind(feeds, in_place=False)
        except Exception as error:
            item.context, item.error = None, error
            return
        self._contexts.popleft()
        self.runner.submit(item, self._last)
        self._last = item

    def close(self) -> None:
        """End the stream: what has started is waited for, the rest is not begun."""
        self.closed = self._dry = True
        try:
            with self._lock:
                for item in self._flying:
                    item.error = item.error or RunError("the stream was closed")
                for item in self._flying:
                    if item.context is not None:
                        self.runner.wait(item)
                self._flying.clear()
                self._end()
                self._owner = None
        except BaseException:
            self._give_up("")
            raise

    def _give_up(self, why: str) -> None:
        """Close it though an interrupt may have come anywhere: drop what has not started."""
        self.closed = self._dry = True
        self._broken = RunError(why, fix="begin another") if why else None
        for item in self._flying:
            item.unfinished = 0
        self._flying.clear()
        self._end()
        self._owner = None
        for program in {
            id(context.program): context.program for context in self.runner.contexts
        }.values():
            finish(program.devices)

    def reset_after_fork(self) -> None:
        """Be closed, in a forked child, where no thread is left that would end its runs."""
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self.closed = self._dry = True
        self._broken = RunError("the stream is another process's", fix="begin another")
        self._flying.clear()
