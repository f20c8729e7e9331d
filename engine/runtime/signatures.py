"""Run other graphs of a session's model: a session for each, and their states together.

A .tflite file may hold a signature that trains and one that infers, over the same variables. An
ONNX model with optional inputs has a graph for each set of those that are fed. States of one name
are one state: each run of another graph is given them, and gives them back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trireme.support.dtypes import Array
from trireme.support.forks import register_at_fork

if TYPE_CHECKING:
    from trireme.runtime.program_session import ProgramSession


GraphChoice = str | tuple[str, ...]
"""A signature by name, or the optional inputs that are fed."""


class SiblingSessions:
    """The sessions of other graphs of a session's model, each opened at its first run."""

    def __init__(self, open_session: Callable[[GraphChoice], ProgramSession]) -> None:
        self._open = open_session
        self._sessions: dict[GraphChoice, ProgramSession] = {}
        self._states: dict[str, Array] = {}
        self.reset_after_fork()
        register_at_fork(self)

    def reset_after_fork(self) -> None:
        """Be free, in a forked child, of the runs of other threads."""
        self._lock = threading.Lock()

    def run(
        self,
        main: ProgramSession,
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
                session = self._sessions[choice] = self._open(choice)
            self._take(main)
            session.set_state(_known(self._states, session))
            try:
                return session.run(feeds, out)
            finally:
                self._take(session)
                main.set_state(_known(self._states, main))

    def _take(self, session: ProgramSession) -> None:
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


def _known(states: Mapping[str, Array], session: ProgramSession) -> dict[str, Array]:
    return {name: array for name, array in states.items() if name in session.states.types}
