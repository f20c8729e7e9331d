"""The runner of open shapes and of a dynamic schedule: a run finds the program of its shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trireme.runtime.dataflow.program import DataflowProgram
from trireme.runtime.dynamic.program import OpenProgram
from trireme.runtime.dynamic.resizable import ShapeRun
from trireme.runtime.open_programs import step_of
from trireme.runtime.shape_session import priced
from trireme.support.errors import RunError

if TYPE_CHECKING:
    from trireme.backend.device import Device
    from trireme.runtime.dataflow.executor import PrimitiveSpan
    from trireme.runtime.prepare import Prepared
    from trireme.runtime.program_runner import ProgramRunner
    from trireme.runtime.session_faults import SessionFaults
    from trireme.runtime.states.program import StatefulProgram, Step
    from trireme.support.dtypes import Array


class SizedRunner:
    """Runs a model whose shapes are open.

    program: finds what runs feeds; devices: the open ones
    store_shapes: stores the program at the shapes of the next run, for later processes
    direct: no run has one function for all shapes
    """

    direct = None
    store_shapes: Callable[[ShapeRun], None] | None = None

    def __init__(
        self,
        program: OpenProgram | DataflowProgram | StatefulProgram,
        prepared: Prepared,
        faults: SessionFaults,
        watch_regions: Callable[[], None] | None,
    ) -> None:
        self.program, self._prepared, self._faults = program, prepared, faults
        self.tied = prepared.tied
        self._watch_regions, self._regions_are_watched = watch_regions, False
        self._step: Step | None = step_of(program)

    @property
    def devices(self) -> Mapping[str, Device]:
        """The open devices, by name."""
        return self._prepared.devices

    @property
    def open_program(self) -> OpenProgram | None:
        """The program, where shapes are open and no states grow in it."""
        return self.program if isinstance(self.program, OpenProgram) else None

    @property
    def spans(self) -> Sequence[PrimitiveSpan]:
        """With a dynamic schedule, when each op of the last run ran."""
        return self.program.spans if isinstance(self.program, DataflowProgram) else ()

    def choose_direct(self) -> None:
        """Step on states that grow in place where nothing is watched."""
        self._step = None if self._faults.is_watched else step_of(self.program)

    def watch_tasks(self) -> None:
        """Watch the sessions of regions; without any, nothing hangs unseen."""
        if self._watch_regions is not None:
            self._watch_regions()
            self._regions_are_watched = True

    def run(
        self, feeds: Mapping[str, Any], out: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        """Return the outputs of a run.

        Errors: DeviceOut, if a device is passed over
        """
        tied = self.tied
        if tied is None:
            return self._run(feeds, out)
        if out is None and self._step is not None:
            made = self._step(feeds)
            if made is not None:
                return made
        out, asked = tied.outputs_asked(out)
        return tied.keep(self._run(tied.feeds(feeds), out), asked)

    def run_beside(
        self, number: int, feeds: Mapping[str, Any], out: Mapping[str, Array] | None
    ) -> dict[str, Array]:
        """Return the outputs of a run: instances find memory for each of its callers."""
        return self.run(feeds, out)

    def _run(self, feeds: Mapping[str, Any], out: Mapping[str, Array] | None) -> dict[str, Array]:
        self._faults.begin()
        if self._regions_are_watched:
            from trireme.runtime.failover.watchdog import holding_turn

            with holding_turn(self._faults):
                results = self.program.run(feeds, out)
        else:
            results = self.program.run(feeds, out)
        if self.store_shapes is not None:
            self._store_shapes()
        return results

    def _store_shapes(self) -> None:
        """Store the program at the shapes of the run that is just over, for later processes."""
        store = vars(self).pop("store_shapes", None)  # one of several callers has it
        last = None if self.open_program is None else self.open_program.last
        if store is not None and last is not None and isinstance(last.region, ShapeRun):
            store(last.region)

    def latest(self) -> ProgramRunner:
        """Return the runner of the program that ran last.

        Errors: RunError, before a run, and if no program or more than one ran
        """
        from trireme.ir.bind_shapes import shape_advice

        last, stages = self.program.last, self.program.stages
        if last is None and len(stages) > 1:
            raise RunError(
                f"the last run went through {len(stages)} regions, each with a program",
                fix="session.at(feeds) has one program for the shapes of some feeds",
            )
        if (last is None or last.region is None) and stages:
            raise RunError(
                f"the last run had no program: {stages[0].ran_by}",
                fix="session.stages says what ran, session.profile_stages(feeds) what it took",
            )
        if last is None or last.region is None:
            raise RunError(
                "no program has run: the shapes are open",
                fix=shape_advice(self._prepared.inputs) or "run the session first",
            )
        return priced(last.region).ready.latest()
