"""A program on its memory: run it, watch it, time it, and say what it is.

`Session` makes a program of a model. With open shapes it makes one of these for each set of shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from trireme.runtime.session_runs import SessionRuns
from trireme.support.arguments import checked, later_names
from trireme.support.errors import RunError

if TYPE_CHECKING:
    from trireme.backend.device import Progress
    from trireme.profiling.profile import Profile
    from trireme.profiling.spans import TaskSpan
    from trireme.runtime.interactive import Watcher
    from trireme.support.dtypes import Array

__getattr__ = later_names(
    __name__,
    {
        "Array": "trireme.support.dtypes",
        "Profile": "trireme.profiling.profile",
        "Progress": "trireme.backend.device",
        "TaskSpan": "trireme.profiling.spans",
        "Watcher": "trireme.runtime.interactive",
    },
)


class ProgramSession(SessionRuns):
    """A program ready to run."""

    def at(self, feeds: Mapping[str, Any]) -> ProgramSession:
        """Return the session that serves the shapes of these feeds: this one."""
        return self

    def _served(
        self, feeds: Mapping[str, Any]
    ) -> tuple[
        ProgramSession, Mapping[str, Any], Callable[[Mapping[str, Array]], dict[str, Array]]
    ]:
        """Return the session that serves feeds, what to feed it, and what finishes its outputs."""
        return self, feeds, dict

    @property
    def moves(self) -> list[bool]:
        """Whether tasks can be pointed at each input, then at each output, where it is."""
        return self._binding.moves

    @checked(RunError)
    def run_traced(self, feeds: Mapping[str, Any]) -> tuple[dict[str, Array], list[TaskSpan]]:
        """Return the outputs of a run in this session's mode, and when each of its tasks ran.

        Errors: as `run`
        """
        served, given, finished = self._served(feeds)
        if served is not self:
            outputs, spans = served.run_traced(given)
            return finished(outputs), spans
        with self._alone():
            self._choose_executor(feeds)
            return self._watched(feeds)

    @checked(RunError)
    def run_in_order(self, feeds: Mapping[str, Any], order: Sequence[int]) -> dict[str, Array]:
        """Return the outputs of a run whose tasks go in the given order, one after another.

        Errors: RunError, if the order leaves a task out or breaks a wait
        """
        served, given, finished = self._served(feeds)
        if served is not self:
            return finished(served.run_in_order(given, order))
        from trireme.runtime.execute import check_order, run_profiled

        with self._alone():
            check_order(self.plan, order)
            results = self._binding.bind(feeds)
            run_profiled(self.plan, self._calls, order)
            return self._binding.collect(results)

    @checked(RunError)
    def run_nodes(
        self, feeds: Mapping[str, Any], watch: Watcher, order: Sequence[int] | None = None
    ) -> dict[str, Array]:
        """Return the outputs of a run, task after task, of which `watch` sees what each made.

        With execution="interactive" every node is a task, and every value is seen.
        Errors: as `run` and, given an order, as `run_in_order`
        """
        served, given, finished = self._served(feeds)
        if served is not self:
            return finished(served.run_nodes(given, watch, order))
        from trireme.runtime.execute import check_order
        from trireme.runtime.interactive import run_steps

        with self._alone():
            chosen = range(len(self._calls)) if order is None else order
            check_order(self.plan, chosen)
            results = self._binding.bind(feeds, in_place=False)
            run_steps(self.plan, self._calls, self._context.read, watch, chosen)
            return self._binding.collect(results)

    @checked(RunError)
    def profile(
        self,
        feeds: Mapping[str, Any],
        runs: int = 20,
        warmup: int = 2,
        progress: Progress | None = None,
    ) -> Profile:
        """Return what `runs` runs took, after `warmup` runs that are not counted.

        Each is two: one as `run` does it, whose wall time counts, and one that is watched, which
        says what every task and node took. States go on by both. Where a device is simulated, and
        there are no states, two runs simulate, of which one is plain (repeats.py). Where a device
        fails and other devices may run, the profile is theirs.
        Errors: as `run`
        """
        from trireme.backend.device import no_progress

        if runs < 1 or warmup < 0:
            raise RunError(f"a profile needs at least one run, not {runs} after {warmup}")
        failover = self._failover
        try:
            made = self._profile(feeds, runs, warmup, progress or no_progress)
        except BaseException as error:
            if failover is None or not failover.is_fault(error):
                raise
            self._finish()
            made = failover.do_again(error, lambda other: other.profile(feeds, runs, warmup))
        return replace(made, events=self.events)

    def _profile(
        self, feeds: Mapping[str, Any], runs: int, warmup: int, progress: Progress
    ) -> Profile:
        """Return the profile of runs on all devices."""
        from trireme.profiling.profile import make_profile
        from trireme.runtime.program import memory_rows
        from trireme.runtime.repeats import seen_runs

        served, given, _ = self._served(feeds)
        if served is not self:
            return served.profile(given, runs, warmup, progress)
        with self._alone():
            self._choose_executor(feeds)
            calls = [] if self.states.types else self._calls
            run, watch = partial(self._run, feeds), partial(self._watched, feeds)
            seen = seen_runs(calls, run, lambda: watch()[1], runs, warmup, progress)
            memory = memory_rows(self.program)
            return make_profile(self.plan, *seen, memory, self._runs.is_serial, self.cores)

    def _watched(self, feeds: Mapping[str, Any]) -> tuple[dict[str, Array], list[TaskSpan]]:
        """Return the outputs of a run, and when each of its tasks ran."""
        if self._is_watched:
            self._begin_run()
        given = self._binding.bind(feeds)
        if self._watched_runs is None:
            spans = self._runs.profiled()
        else:
            spans = self._watched_runs.profiled(self._runs, (self._context, given, feeds))
        return self._binding.collect(given), spans

    def _choose_executor(self, feeds: Mapping[str, Any]) -> None:
        """Have a mode chosen; what the tries write their outputs into is held meanwhile."""
        given = self._binding.bind(feeds)
        watched = self._watched_runs
        if watched is None:
            self._runs.choose_executor()
        else:
            while self._runs.chosen is None:
                watched.run(self._runs, (self._context, given, feeds))
        self._binding.collect(given)
