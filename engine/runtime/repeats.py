"""The runs of a profile, in which a simulated device need not simulate again and again.

Simulating takes a thousand times as long as the simulated run. After it the host and real devices
find cold caches, sleeping threads and a core that numpy's threads hold. Beside a real device they
would find none of these. So in watched runs simulators put back their earlier results, because the
inputs are the same. One plain run and the last watched one simulate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from trireme.backend.capabilities import SimulatedCall, ThreadedCall
from trireme.backend.device import BoundCall, Progress, no_progress
from trireme.profiling.spans import TaskSpan
from trireme.support.timing import RepeatLimits, time_calls

SETTLED_S = 0.05
"""After so long numpy's threads look for no more work: OpenBLAS takes about 25 ms."""

_REPORTED_S = 0.5
_CHOICE_RUNS = 40
"""Runs after which a choice of threads is made: the cpu tries 32 times."""


def seen_runs(
    calls: Sequence[BoundCall],
    run: Callable[[], object],
    watch: Callable[[], list[TaskSpan]],
    runs: int,
    warmup: int,
    progress: Progress = no_progress,
) -> tuple[list[list[TaskSpan]], list[float]]:
    """Return the spans of watched runs and the wall seconds of plain ones, after a warm-up.

    calls: the program's; none where its inputs change from run to run, as states do
    run, watch: do one plain run, and a watched one
    progress: called between runs, every _REPORTED_S at most, so that it disturbs few
    """
    with _repeating(calls) as repeats:
        progress("timing runs", 0, 0)
        wall = time_calls(run, RepeatLimits(least=1 if repeats else warmup + runs))
        if repeats and runs > 1:
            time.sleep(SETTLED_S)
            _choose_threads(calls, run)
        spans: list[list[TaskSpan]] = []
        reported = time.perf_counter()
        for _ in range(warmup + runs - repeats):
            if time.perf_counter() - reported > _REPORTED_S:
                progress("watching runs", len(spans), warmup + runs)
                reported = time.perf_counter()
            if repeats:
                run()  # a watched run is long in coming back, and threads sleep meanwhile
            spans.append(watch())
    if repeats:
        spans.append(watch())
    return spans[warmup:], wall if repeats else wall[warmup:]


def _choose_threads(calls: Sequence[BoundCall], run: Callable[[], object]) -> None:
    """Run as a service at work does, one run right behind another, until devices that have a
    choice of threads have made it anew.
    """
    for call in calls:
        if isinstance(call, ThreadedCall):
            call.use_single_thread(None)
    for _ in range(_CHOICE_RUNS):
        run()


@contextmanager
def _repeating(calls: Sequence[BoundCall]) -> Iterator[bool]:
    """Have simulators put back what the first run in here made, and say whether there is one."""
    simulators = [call.repeat for call in calls if isinstance(call, SimulatedCall)]
    try:
        for repeat in simulators:
            repeat(True)
        yield bool(simulators)
    finally:
        for repeat in simulators:
            repeat(False)
