"""The runner of fixed shapes: one program on its memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from trireme.runtime.loop.execute import check_order, run_profiled, serial_runner
from trireme.runtime.loop.executors import Executors
from trireme.runtime.program.context import ExecutionContext
from trireme.runtime.program.io_binding import DirectRun, RunInContext, Runs, TasksInOrder

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from trireme.backend.device import Device
    from trireme.profiling.spans import TaskSpan
    from trireme.runtime.loop.executors import Mode, Watcher
    from trireme.runtime.loop.watchdog import WatchedRuns
    from trireme.runtime.program.program import Program
    from trireme.runtime.session.session_faults import SessionFaults
    from trireme.runtime.states.held import TiedStates
    from trireme.support.dtypes import Array


class ProgramRunner:
    """Runs a program: one run at a time on each context.

    closing: is closed with the session; tied: knows the outputs that are states
    turn: a lock to hold in each run, where other sessions run on the same memory
    runs: what runs the tasks; watched: gives up a task that hangs; None where nothing is watched
    direct: feeds to outputs as one function; None where not everything is copied
    """

    is_sized = False

    def __init__(
        self,
        program: Program,
        context: ExecutionContext,
        mode: Mode,
        faults: SessionFaults,
        closing: ExitStack,
        tied: TiedStates | None = None,
        turn: AbstractContextManager[object] | None = None,
    ) -> None:
        self.program, self.context = program, context
        self.calls, self.binding = context.calls, context.ports
        self.runs = Executors(program.plan, self.calls, mode)
        self.watched: WatchedRuns | None = None
        self.direct: DirectRun | None = None
        self.beside: dict[int, RunInContext] = {}
        self._faults, self._closing, self._tied, self._turn = faults, closing, tied, turn
        closing.callback(self.runs.close)
        self.choose_direct()

    @property
    def devices(self) -> Mapping[str, Device]:
        """The open devices, by name."""
        return self.program.devices

    def latest(self) -> ProgramRunner:
        """Return the runner of the program that ran last: this one."""
        return self

    def choose_direct(self) -> None:
        """Have runs go the shortest way that there is now."""
        runs: Runs = self.runs
        if self.watched is not None:
            runs = TasksInOrder(partial(self.watched.run, self.runs, self.context))
        direct = None if self._faults.is_watched else self.binding.direct(runs)
        turn = self._turn
        if direct is None or turn is None:
            self.direct = direct
            return

        def in_turn(feeds: Mapping[str, Any]) -> dict[str, Array]:
            with turn:
                return direct(feeds)

        self.direct = in_turn

    def run(
        self, feeds: Mapping[str, Any], out: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        """Return the outputs of a run in the first context.

        Errors: DeviceOut, if a device is passed over
        """
        if self.direct is not None and out is None:
            return self.direct(feeds)
        tied = self._tied
        if tied is None:
            return self._run(feeds, out)
        out, asked = tied.outputs_asked(out)
        return tied.keep(self._run(tied.feeds(feeds), out), asked)

    def _run(self, feeds: Mapping[str, Any], out: Mapping[str, Array] | None) -> dict[str, Array]:
        self._faults.begin()
        with self._turn or nullcontext():
            given = self.binding.bind(feeds, out)
            if self.watched is None:
                self.runs.run()
            else:
                self.watched.run(self.runs, (self.context, given, feeds))
            return self.binding.collect(given)

    def run_beside(
        self, number: int, feeds: Mapping[str, Any], out: Mapping[str, Array] | None
    ) -> dict[str, Array]:
        """Return the outputs of a run in another context than the first, made at its first run."""
        self._faults.begin()
        found = self.beside.get(number)
        if found is None:
            context = ExecutionContext(self.program, states=self.context.states)
            runs = TasksInOrder(serial_runner(self.program.plan, context.calls))
            found = self.beside[number] = context.ports.runner(runs)
        return found(feeds, out)

    def on_arrays(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]
    ) -> Callable[[], None] | None:
        """Return what runs the program on these arrays; None where something has to be copied."""
        from trireme.runtime.calls.bound_run import run_on_arrays

        return run_on_arrays(self.context, inputs, outputs)

    def watch_tasks(self) -> None:
        """Give a task up that hangs, where a device works beside the host: see watchdog.py.

        Nothing is watched where every task is on the caller's own thread.
        """
        from trireme.runtime.control.operands import watch_calls
        from trireme.runtime.loop.task_watch import TaskWatch, works_beside_host
        from trireme.runtime.loop.watchdog import WatchedRuns

        plan = self.program.plan
        if self.watched is None and works_beside_host(plan):
            watch = TaskWatch(plan)
            watch_calls(self.calls, watch)
            self.runs.close()
            self.runs = Executors(plan, self.calls, self.runs.mode, watch)
            self.watched = WatchedRuns(watch, self.devices, self._faults)
            self._closing.callback(self.watched.close)
            self._closing.callback(self.runs.close)

    def profiled(self, feeds: Mapping[str, Any]) -> tuple[dict[str, Array], list[TaskSpan]]:
        """Return the outputs of a run, and when each of its tasks ran."""
        self._faults.begin()
        given = self.binding.bind(feeds)
        if self.watched is None:
            spans = self.runs.profiled()
        else:
            spans = self.watched.profiled(self.runs, (self.context, given, feeds))
        return self.binding.collect(given), spans

    def run_in_order(self, feeds: Mapping[str, Any], order: Sequence[int]) -> dict[str, Array]:
        """Return the outputs of a run whose tasks go in the given order, one after another."""
        plan = self.program.plan
        check_order(plan, order)
        given = self.binding.bind(feeds)
        run_profiled(plan, self.calls, order)
        return self.binding.collect(given)

    def run_nodes(
        self, feeds: Mapping[str, Any], watch: Watcher, order: Sequence[int] | None
    ) -> dict[str, Array]:
        """Return the outputs of a run, task after task, of which `watch` sees what each made."""
        from trireme.runtime.loop.executors import run_steps

        plan = self.program.plan
        chosen = range(len(self.calls)) if order is None else order
        check_order(plan, chosen)
        given = self.binding.bind(feeds, in_place=False)
        run_steps(plan, self.calls, self.context.read, watch, chosen)
        return self.binding.collect(given)

    def choose_executor(self, feeds: Mapping[str, Any]) -> None:
        """Have a mode chosen; what the tries write their outputs into is held meanwhile."""
        given = self.binding.bind(feeds)
        if self.watched is None:
            self.runs.choose_executor()
        else:
            while self.runs.chosen is None:
                self.watched.run(self.runs, (self.context, given, feeds))
        self.binding.collect(given)
