"""The two ways to run bound tasks, one after another or as their waits allow, and which it is.

"auto" runs serially where no two tasks could overlap. Else it tries both, a few runs each, and
stays with the faster. Microseconds decide whether overlap pays, and estimates do not give them.
Times of a simulated device say nothing of the machine that it stands for, so with one nothing is
tried. Every run gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from trireme.backend.device import BoundCall
from trireme.ir.effects import uses_state
from trireme.plan.plan import Plan
from trireme.profiling.spans import TaskSpan
from trireme.runtime.dispatch import ParallelRunner
from trireme.runtime.execute import (
    TaskListener,
    has_overlap,
    run_profiled,
    serial_order,
    serial_runner,
)
from trireme.support.timing import seconds_of
from trireme.support.units import time_text

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
