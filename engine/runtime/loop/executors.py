"""The two ways to run bound tasks, serial and parallel, and runs that are watched or repeated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np

from trireme.backend.capabilities import SimulatedCall, ThreadedCall
from trireme.backend.device import BoundCall, Progress, no_progress
from trireme.ir.effects import uses_state
from trireme.ir.graph import Graph, Node
from trireme.plan.plan import Plan, Task
from trireme.profiling.spans import TaskSpan
from trireme.runtime.loop.dispatch import ParallelRunner
from trireme.runtime.loop.execute import (
    TaskListener,
    has_overlap,
    run_profiled,
    serial_order,
    serial_runner,
    task_runner,
)
from trireme.support.dtypes import Array
from trireme.support.records import dataclass
from trireme.support.timing import RepeatLimits, seconds_of, time_calls
from trireme.support.units import time_text


@dataclass(frozen=True)
class WatchedTask:
    """A task that ran: its nodes, its device, and its output arrays, by value id."""

    task: Task
    graph: Graph
    values: Mapping[int, Array]

    @property
    def node(self) -> Node:
        """The node of an interactive step; the last one of a sunk region."""
        return self.task.nodes[-1]

    @property
    def device(self) -> str:
        """The device that ran it; of a copy "from>to"."""
        return self.task.device

    def __str__(self) -> str:
        nodes = self.task.nodes
        what = nodes[0].label if len(nodes) == 1 else f"{len(nodes)} nodes to {nodes[-1].label}"
        lines = [f"{self.task.index:4} {self.device}: {what}"]
        for value, array in self.values.items():
            name, type = self.graph.values[value].first_name, self.graph.type(value)
            lines.append(f"       %{value} {name} {type}: {summary(array)}")
        return "\n".join(lines)


Watcher = Callable[[WatchedTask], None]


def run_steps(
    plan: Plan,
    calls: Sequence[BoundCall],
    read: Callable[[int], Array],
    watch: Watcher,
    order: Sequence[int],
) -> None:
    """Run every task in an order that respects the waits, and show `watch` what each made.

    `read` returns a value by id, as an array of its own.
    """
    for index in order:
        task = plan.tasks[index]
        task_runner(plan, calls, index)()
        watch(WatchedTask(task, plan.graph, {value: read(value) for value in task.outputs}))


def summary(array: Array) -> str:
    """Return a few words on an array: its numbers when they are few, else their spread."""
    if array.size <= 8:
        return str(array.reshape(-1).tolist())
    if array.dtype.kind not in "biufV":
        return f"{array.size} elements of {array.dtype}"
    numbers = array.astype(np.float64)
    odd = int(np.count_nonzero(~np.isfinite(numbers)))
    note = f", {odd} not finite" if odd else ""
    with np.errstate(all="ignore"):
        return f"min {numbers.min():.6g} mean {numbers.mean():.6g} max {numbers.max():.6g}{note}"


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


Mode = Literal["auto", "serial", "parallel"]

TRIES = 8
"""Runs of each way before the faster is kept; the least of each counts."""


class Executors:
    """Runs the tasks of a plan, in one mode.

    watch: is told when tasks begin and end
    run: runs every task once
    chosen: "serial" or "parallel"; None while both are tried
    why: a sentence on the choice
    """

    run: Callable[[], None]

    def __init__(
        self, plan: Plan, calls: Sequence[BoundCall], mode: Mode, watch: TaskListener | None = None
    ) -> None:
        self.plan, self.calls, self._watch = plan, calls, watch
        self.runner: ParallelRunner | None = None
        self._serially = serial_runner(plan, calls, watch)
        self._overlaps = has_overlap(plan)
        self.mode = mode

    @property
    def mode(self) -> Mode:
        """The mode of the options."""
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._mode = mode
        self._best = {"serial": float("inf"), "parallel": float("inf")}
        self._tried = 0
        if mode == "auto":
            self._choose()
        else:
            self._settle_on(mode, "asked for")

    @property
    def is_serial(self) -> bool:
        """Whether runs are serial, by the options or because parallel would not pay."""
        return self.chosen == "serial"

    def choose_executor(self) -> None:
        """Run until a way is chosen."""
        while self.chosen is None:
            self.run()

    def profiled(self) -> list[TaskSpan]:
        """Run every task once and return when each ran."""
        if self.in_parallel:
            return self._parallel().run(profile=True)
        spans = run_profiled(self.plan, self.calls, self.order, self._watch)
        return sorted(spans, key=lambda span: span.task)

    @property
    def order(self) -> list[int]:
        """The order of the tasks: in which they run, or of their numbers when they overlap."""
        plain = list(range(len(self.calls)))
        return plain if self.in_parallel else serial_order(self.plan, self.calls)

    def close(self) -> None:
        """Stop the threads."""
        if self.runner is not None:
            self.runner.close()
            self.runner = None

    def give_up(self, error: Exception) -> None:
        """Have a run end with an error if its caller waits for a thread that hangs."""
        if self.runner is not None:
            self.runner.give_up(error)

    def abandon(self) -> None:
        """Leave the threads alone: one of them hangs."""
        self.runner = None

    @property
    def in_parallel(self) -> bool:
        """Whether tasks run as their waits allow; False where no two could run at once."""
        return self.chosen == "parallel" and self._overlaps

    def _parallel(self) -> ParallelRunner:
        if self.runner is None:
            self.runner = ParallelRunner(self.plan, self.calls, watch=self._watch)
        return self.runner

    def _overlapping(self) -> None:
        self._parallel().run()

    def _settle_on(self, chosen: Literal["serial", "parallel"], why: str) -> None:
        self.chosen: Literal["serial", "parallel"] | None = chosen
        self.why = why
        self.run = self._overlapping if self.in_parallel else self._serially

    def _choose(self) -> None:
        """Choose by the plan alone where that is safe or all there is; else begin to try."""
        tasks, specs = self.plan.tasks, self.plan.placement.specs
        if not self._overlaps:
            self._settle_on("serial", "no two tasks could run at the same time")
        elif any(not task.is_copy and specs[task.device].clock == "virtual" for task in tasks):
            self._settle_on("parallel", "not tried: a device is simulated")
        elif any(uses_state(node) for task in tasks for node in task.nodes):
            self._settle_on("parallel", "not tried: a try would write states")
        else:
            self.chosen, self.why, self.run = None, "both are being tried", self._try

    def _try(self) -> None:
        """Run once and time it, in the other way than the last time; keep the faster in the end."""
        mode: Literal["serial", "parallel"] = "parallel" if self._tried % 2 else "serial"
        run = self._overlapping if mode == "parallel" else self._serially
        self._best[mode] = min(self._best[mode], seconds_of(run))
        self._tried += 1
        if self._tried == 2 * TRIES:
            serial, parallel = self._best["serial"], self._best["parallel"]
            why = f"tried: serial {time_text(serial)}, parallel {time_text(parallel)}"
            self._settle_on("parallel" if parallel < serial else "serial", why)
            if serial <= parallel:
                self.close()
