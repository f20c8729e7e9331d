"""Run the tasks of a program one after another; `dispatch` runs them in parallel.

Both respect the plan's waits and so give the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from trireme.device import BoundCall, Done, Event, chain_of
from trireme.errors import RunError
from trireme.plan import Plan
from trireme.running.dispatch import TaskSpan


def serial_runner(calls: Sequence[BoundCall]) -> Callable[[], None]:
    """Return a function that runs every task in plan order, waiting for each.

    Where a task and the next are of one chain, it is the device that waits, not the host.
    """
    each: list[Callable[[], None]] = []
    for _, some in groupby(enumerate(calls), lambda one: chain_of(one[1]) or one[0]):
        group = [call for _, call in some]
        each.append(_chain(group) if len(group) > 1 else _alone(group[0]))
    if len(each) == 1:
        return each[0]

    def run() -> None:
        for call in each:
            call()

    return run


def _alone(call: BoundCall) -> Callable[[], None]:
    def run() -> None:
        call.launch().wait()

    quick: Callable[[], None] | None = getattr(call, "run", None)
    return quick or run


def _chain(calls: Sequence[Any]) -> Callable[[], None]:
    """Return what launches each call behind the one before it, and waits for the last."""

    def run() -> None:
        event: Event = calls[0].launch()
        try:
            for call in calls[1:]:
                event = call.launch(False, () if type(event) is Done else (event,))
        finally:
            event.wait()

    return run


def run_profiled(calls: Sequence[BoundCall], order: Sequence[int]) -> list[TaskSpan]:
    """Run every task in an order that respects the waits, and return when each ran."""
    return [_timed(calls[index], index) for index in order]


def _timed(call: BoundCall, index: int) -> TaskSpan:
    start = time.perf_counter()
    event = call.launch(profile=True)
    event.wait()
    return TaskSpan(index, start, time.perf_counter(), tuple(event.spans()))


def check_order(plan: Plan, order: Sequence[int]) -> None:
    """Raise RunError if an order leaves a task out or breaks a wait."""
    done: set[int] = set()
    for index in order:
        if not set(plan.tasks[index].waits) <= done:
            raise RunError(f"task {index} would run before what it waits for")
        done.add(index)
    if not len(done) == len(order) == len(plan.tasks):
        raise RunError(f"the order names {len(order)} tasks, the plan has {len(plan.tasks)}")


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
