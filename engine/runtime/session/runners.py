"""The runner of a session: chosen once, and replaced when the session closes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from trireme.support.errors import RunError
from trireme.support.records import dataclass

if TYPE_CHECKING:
    from trireme.backend.device import Device
    from trireme.placement.options import PlacementOptions
    from trireme.runtime.models.prepare import Prepared
    from trireme.runtime.program.contexts import ContextCount
    from trireme.runtime.program.io_binding import DirectRun
    from trireme.runtime.program.options import ExecutionOptions
    from trireme.runtime.session.program_runner import ProgramRunner
    from trireme.support.dtypes import Array


class SessionState(Enum):
    """The life of a session. A stored one runs the program that an earlier process left."""

    STORED = "stored"
    OPEN = "open"
    CLOSED = "closed"


class Runner(Protocol):
    """Runs a model, in a context that its caller holds.

    direct: feeds to outputs as one function; None where there is none
    """

    @property
    def direct(self) -> DirectRun | None:
        """See above."""

    def run(
        self, feeds: Mapping[str, Any], out: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        """Return the outputs of a run in the first context."""

    def run_beside(
        self, number: int, feeds: Mapping[str, Any], out: Mapping[str, Array] | None
    ) -> dict[str, Array]:
        """Return the outputs of a run in another context than the first."""


class PreparedRunner(Runner, Protocol):
    """Runs a model that is prepared.

    is_sized: whether shapes are open, or the schedule is dynamic
    """

    is_sized: bool

    @property
    def devices(self) -> Mapping[str, Device]:
        """The open devices, by name."""

    def latest(self) -> ProgramRunner:
        """Return the runner of the program that ran last."""

    def choose_direct(self) -> None:
        """Have runs go the shortest way that there is now."""

    def watch_tasks(self) -> None:
        """Give up tasks that hang."""


class ClosedRunner:
    """Refuses the runs of a session that is closed."""

    direct = None

    def run(
        self, feeds: Mapping[str, Any], out: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        """Errors: RunError, always"""
        raise RunError("the session is closed")

    def run_beside(
        self, number: int, feeds: Mapping[str, Any], out: Mapping[str, Array] | None
    ) -> dict[str, Array]:
        """Errors: RunError, always"""
        return self.run(feeds, out)


@dataclass(frozen=True)
class ReadyModel:
    """A model that is prepared, with its options and its runner.

    count: how many calls run at once
    """

    prepared: Prepared
    execution_options: ExecutionOptions
    placement_options: PlacementOptions
    runner: PreparedRunner
    count: ContextCount

    def latest(self) -> ProgramRunner:
        """Return the runner of the program that ran last.

        Errors: RunError, with open shapes before a run, and if no program ran
        """
        return self.runner.latest()

    @property
    def is_sized(self) -> bool:
        """Whether shapes are open, or the schedule is dynamic."""
        return self.runner.is_sized
