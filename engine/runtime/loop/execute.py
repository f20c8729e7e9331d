"""Run the tasks of a program one after another; `dispatch` runs them in parallel.

Both respect the plan's waits and so give the same bits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import groupby
from typing import Any, Protocol

from trireme.backend.capabilities import driver_queue_of, runner_of
from trireme.backend.device import HOST, BoundCall, Device, Done, Event
from trireme.plan.plan import Plan
from trireme.profiling.spans import TaskSpan, span_of
from trireme.runtime.program.failures import raise_named
from trireme.support.cancel import check_cancelled
from trireme.support.errors import RunError

_log = logging.getLogger(__name__)


class TaskListener(Protocol):
    """Is told what runs."""

    def begin(self, tasks: Sequence[int]) -> None:
        """Note that tasks, launched together, begin."""

    def end(self, tasks: Sequence[int]) -> None:
        """Note that they are over."""

    def wait(self, event: Event, tasks: Sequence[int]) -> None:
        """Return when a launch is over. Errors: those of its wait, and of a wait given up"""


def serial_runner(
    plan: Plan, calls: Sequence[BoundCall], watch: TaskListener | None = None
) -> Callable[[], None]:
    """Return a function that runs every task, one after another, in the order of `serial_order`.

    Where a task and the next are of one driver queue, the device waits, not the host.
    watch: is told when tasks begin and end
    """
    batches = launch_batches(plan, calls, watch)
    if watch is None:
        each = [run for _, run in batches]
    else:
        each = [noted(run, group, watch) for group, run in batches]
    if len(each) == 1:
        return each[0]

    def run() -> None:
        for call in each:
            check_cancelled()
            call()

    return run


def noted(run: Callable[[], None], tasks: Sequence[int], watch: TaskListener) -> Callable[[], None]:
    """Return a function that runs tasks, and tells `watch` when they begin and end."""

    def whole() -> None:
        watch.begin(tasks)
        run()
        watch.end(tasks)

    return whole


def launch_batches(
    plan: Plan, calls: Sequence[BoundCall], watch: TaskListener | None = None
) -> list[tuple[list[int], Callable[[], None]]]:
    """Return the tasks of each launch and wait of a serial run, in order, and what runs them."""
    return [
        (
            group,
            _chain(plan, calls, group, watch)
            if len(group) > 1
            else task_runner(plan, calls, group[0], watch),
        )
        for group in _groups(serial_order(plan, calls), calls)
    ]


def serial_order(plan: Plan, calls: Sequence[BoundCall]) -> list[int]:
    """Return an order that respects the waits, in which the host waits for few driver queues.

    A copy to a driver need not start as soon as its value is there when nothing runs beside it. A
    later copy stands before the kernel that reads it, and both are waited for as one. So all ready
    tasks of one driver queue run before any other. That gives the fewest changes where there is one
    driver queue. Plan order stays where it has no more changes.
    """
    plain = list(range(len(calls)))
    driver_queues = [driver_queue_of(call) for call in calls]
    firsts = dict.fromkeys(id(driver_queues[task.index]) for task in plan.tasks if not task.waits)
    orders = [plain, *(_gathered(plan, driver_queues, first) for first in firsts)]
    return min(orders, key=lambda order: len(_groups(order, calls)))


def _groups(order: Sequence[int], calls: Sequence[BoundCall]) -> list[list[int]]:
    """Return the tasks of each launch and wait: those in a row that are of one driver queue."""
    groups = groupby(order, lambda index: driver_queue_of(calls[index]) or index)
    return [list(group) for _, group in groups]


def _gathered(plan: Plan, driver_queues: Sequence[object | None], first: int) -> list[int]:
    """Return an order in which the ready tasks of a driver queue run before a change to another.

    driver_queues: of each task; first: the id of the one to begin with
    """
    left = [len(task.waits) for task in plan.tasks]
    followers: list[list[int]] = [[] for _ in left]
    ready: dict[int, list[int]] = {}
    for task in plan.tasks:
        for other in task.waits:
            followers[other].append(task.index)
        if not task.waits:
            ready.setdefault(id(driver_queues[task.index]), []).append(task.index)
    order: list[int] = []
    now = first
    while ready:
        if now not in ready:
            now = min(ready, key=lambda one: ready[one][0])
        index = heappop(ready[now])
        if not ready[now]:
            del ready[now]
        order.append(index)
        for follower in followers[index]:
            left[follower] -= 1
            if not left[follower]:
                heappush(ready.setdefault(id(driver_queues[follower]), []), follower)
    return order


def task_runner(
    plan: Plan, calls: Sequence[BoundCall], index: int, watch: TaskListener | None = None
) -> Callable[[], None]:
    """Return a function that runs one task and waits for it; its errors name the task."""
    call = calls[index]
    whole = runner_of(call)
    spec = plan.placement.specs.get(plan.tasks[index].device)
    if watch is not None and (spec is None or spec.memory != HOST):
        whole = partial(_launch_watched, call, (index,), watch)

    def run() -> None:
        try:
            whole()
        except Exception as error:
            raise_named(plan, [index], error)

    return run


def _launch_watched(call: BoundCall, tasks: Sequence[int], watch: TaskListener) -> None:
    watch.wait(call.launch(), tasks)


def _chain(
    plan: Plan, calls: Sequence[Any], group: Sequence[int], watch: TaskListener | None
) -> Callable[[], None]:
    """Return what launches each call behind the one before it, and waits for the last.

    All events are kept until then: a driver may wait for a copy whose event is let go.
    """

    first, *others = [calls[index] for index in group]

    def launch_all() -> None:
        events: list[Event] = [first.launch()]
        try:
            for call in others:
                last = events[-1]
                events.append(call.launch(False, () if type(last) is Done else (last,)))
        finally:
            if watch is None:
                events[-1].wait()
            else:
                watch.wait(events[-1], group)

    def run() -> None:
        try:
            launch_all()
        except Exception as error:
            raise_named(plan, group, error)

    return run


def launch_behind(plan: Plan, calls: Sequence[Any], events: list[Event]) -> None:
    """Launch every task behind those it waits for, all of one driver queue.

    events: gets the event of each task as soon as it is launched
    """
    for task, call in zip(plan.tasks, calls, strict=True):
        after = [events[index] for index in task.waits if type(events[index]) is not Done]
        events.append(call.launch(False, after))


def run_profiled(
    plan: Plan,
    calls: Sequence[BoundCall],
    order: Sequence[int],
    watch: TaskListener | None = None,
) -> list[TaskSpan]:
    """Run every task in an order that respects the waits, and return when each ran.

    Tasks of a driver queue are launched one behind the other and waited for together, as in any
    run.
    watch: is told when tasks begin and end
    """
    seen = []
    for group in _groups(order, calls):
        try:
            if watch is not None:
                watch.begin(group)
            seen += _timed(calls, group)
            if watch is not None:
                watch.end(group)
        except Exception as error:
            raise_named(plan, group, error)
    worker = threading.current_thread().name
    return [span_of(*one, worker) for one in seen]


def _timed(
    calls: Sequence[Any], group: Sequence[int]
) -> list[tuple[int, Event, float, float, bool]]:
    """Run tasks of a driver queue, or one task; return what tells their spans: see span_of."""
    under_way: list[tuple[int, Event, float]] = []
    try:
        for index in group:
            start, event = time.perf_counter(), under_way[-1][1] if under_way else None
            after = {} if event is None or type(event) is Done else {"after": (event,)}
            under_way.append((index, calls[index].launch(profile=True, **after), start))
    finally:
        for _, event, _ in reversed(under_way):
            event.wait()
    end = time.perf_counter()
    return [(index, event, start, end, len(group) > 1) for index, event, start in under_way]


def finish(devices: Mapping[str, Device]) -> None:
    """After an error or an interrupt: return when no launch is under way, known of or not.

    A device that is lost is passed over.

    A further interrupt does not shorten it: the first is on its way out already.
    """
    for name, device in devices.items():
        while not device.is_lost:
            try:
                device.finish()
                break
            except Exception:
                _log.warning("%s cannot finish what it began", name, exc_info=True)
                break
            except BaseException as interrupt:
                _log.debug("interrupted once more: %r", interrupt)


def close_unless_lost(device: Device) -> None:
    """Close a device; one that hangs is left alone, because closing waits for its work."""
    if not device.is_lost:
        device.close()


def check_order(plan: Plan, order: Sequence[int]) -> None:
    """Raise RunError if an order does not name each task once, or breaks a wait."""
    count = len(plan.tasks)
    if sorted(order) != list(range(count)):
        raise RunError(f"the order does not name each of the plan's {count} tasks once")
    done: set[int] = set()
    for index in order:
        if not set(plan.tasks[index].waits) <= done:
            raise RunError(f"the order has task {index} before what it waits for")
        done.add(index)


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
