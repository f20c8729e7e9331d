"""Sessions that a session opens beside itself: of another graph, or to measure a placement.

A .tflite file may hold a signature that trains and one that infers, over the same variables. An
ONNX model with optional inputs has a graph for each set of those that are fed. States of one name
are one state: each run of another graph is given them, and gives them back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from trireme.support.errors import RunError
from trireme.support.forks import register_at_fork

if TYPE_CHECKING:
    from trireme.backend.device import Device
    from trireme.cost.calibration import Calibration
    from trireme.ir.effects import States
    from trireme.ir.graph import Value
    from trireme.placement.placement import Placement
    from trireme.runtime.loop.executors import Mode
    from trireme.runtime.models.arguments import SessionArguments
    from trireme.runtime.program.options import ExecutionOptions
    from trireme.support.dtypes import Array


Opener = TypeVar("Opener")
GraphChoice = str | tuple[str, ...]
"""A signature by name, or the optional inputs that are fed."""


class StatefulSession(Protocol):
    """A session of one graph of the model."""

    @property
    def states(self) -> States:
        """The variables by name."""

    def get_state(self) -> Mapping[str, Array]:
        """Return copies of the states."""

    def set_state(self, state: Mapping[str, Array]) -> None:
        """Give states these values."""

    def run(
        self, feeds: Mapping[str, Any], out: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        """Return the outputs by name."""

    def close(self) -> None:
        """Give back memory."""


class SiblingSessions:
    """The sessions of other graphs of a session's model, each opened at its first run.

    signature: of the session's own graph
    """

    def __init__(
        self, open_session: Callable[..., StatefulSession], arguments: SessionArguments
    ) -> None:
        self._open, self._arguments = open_session, arguments
        self.signature = getattr(arguments.execution_options, "signature", None)
        self._optional: list[Value] | None = None
        self._sessions: dict[GraphChoice, StatefulSession] = {}
        self._states: dict[str, Array] = {}
        self.reset_after_fork()
        register_at_fork(self)

    def reset_after_fork(self) -> None:
        """Be free, in a forked child, of the runs of other threads."""
        self._lock = threading.Lock()

    @property
    def optional_inputs(self) -> list[Value]:
        """The inputs with a default that are constants of the session's own graph."""
        if self._optional is None:
            from trireme.model_file.convert import optional_inputs

            how = self._arguments.execution_options
            fed = () if how is None else how.optional_inputs
            found = optional_inputs(self._arguments.model)
            self._optional = [value for value in found if value.name not in fed]
        return list(self._optional)

    def feeding(self, names: tuple[str, ...]) -> GraphChoice | None:
        """Return the graph whose runs feed these inputs too; None where some are not optional."""
        known = {value.name for value in self.optional_inputs} if names else set()
        return tuple(sorted(names)) if names and known.issuperset(names) else None

    def run(
        self,
        main: StatefulSession,
        choice: GraphChoice,
        feeds: Mapping[str, Any],
        out: Mapping[str, Array] | None,
    ) -> dict[str, Array]:
        """Return the outputs of a graph by name; its states are those of `main`.

        Errors: ConvertError, if the model has no such graph; those of opening and running it
        """
        with self._lock:
            session = self._sessions.get(choice)
            if session is None:
                session = self._sessions[choice] = self._opened(choice)
            self._take(main)
            session.set_state(_known(self._states, session))
            try:
                return session.run(feeds, out)
            finally:
                self._take(session)
                main.set_state(_known(self._states, main))

    def _opened(self, choice: GraphChoice) -> StatefulSession:
        """Open the session of a graph, with the arguments of the first one."""
        from trireme.runtime.program.options import ExecutionOptions

        asked = self._arguments
        how = asked.execution_options or ExecutionOptions()
        if isinstance(choice, str):
            return self._open(
                asked.model,
                devices=asked.devices,
                threads=asked.threads,
                fallback=asked.fallback,
                mode=asked.mode,
                calibration=asked.calibration,
                execution_options=replace(how, signature=choice),
            )
        if asked.placement is not None:
            raise RunError(
                f"a held placement is of the graph with constants for {', '.join(choice)}",
                fix=f"ExecutionOptions(optional_inputs={list(choice)}) opens a session for them",
            )
        how = replace(how, optional_inputs=(*how.optional_inputs, *choice))
        return self._open(**{**vars(asked), "progress": None, "execution_options": how})

    def _take(self, session: StatefulSession) -> None:
        """Keep the states of a session; those that are initial there are initial."""
        own = session.states.types
        others = {name: array for name, array in self._states.items() if name not in own}
        self._states = {**others, **session.get_state()}

    def reset(self) -> None:
        """Forget the states that only other graphs have."""
        with self._lock:
            self._states.clear()

    def close(self) -> None:
        """Close the sessions."""
        for session in self._sessions.values():
            session.close()


def _known(states: Mapping[str, Array], session: StatefulSession) -> dict[str, Array]:
    return {name: array for name, array in states.items() if name in session.states.types}


def holding(
    open_session: Callable[..., Opener],
    mode: Mode,
    options: ExecutionOptions,
    devices: Sequence[Device],
    calibration: Calibration,
    placement: Placement,
) -> Opener:
    """Open a session that holds a placement, to be measured."""
    from trireme.runtime.program.options import ExecutionOptions

    return open_session(
        placement.source,
        devices=devices,
        placement=placement,
        mode=mode,
        calibration=calibration,
        execution_options=ExecutionOptions(
            subgraphs=options.subgraphs, execution=options.execution, passes=()
        ),
    )
