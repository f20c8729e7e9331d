"""The runner of a stored program: it runs until something needs the prepared model.

A session in a thread of its own may go from the model to its program meanwhile, so that no later
run waits for it. Sessions of the same arguments share the program (shared_programs.py).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

from trireme.support.forks import wait_before_fork
from trireme.support.locks import Latch

if TYPE_CHECKING:
    from trireme.runtime.models.stored_program import StoredProgram
    from trireme.runtime.program.io_binding import RunInContext
    from trireme.runtime.session.runners import Runner
    from trireme.support.dtypes import Array


_log = logging.getLogger(__name__)
MOST_WAIT_S = 30.0
"""For a model that is being prepared, before a fork."""


class PreparesModel(Protocol):
    """The session of a stored program."""

    @property
    def behind(self) -> BackgroundPreparation | None:
        """The preparation that goes on while the stored program runs."""

    def prepare_behind(self) -> None:
        """Begin to prepare the model behind the runs of the stored program, if none did."""

    def take_over(self, is_kept: bool) -> Runner:
        """Prepare the model, and return the runner that replaces the stored program.

        is_kept: whether the stored program stays for later processes, or the next run stores one
        """


class StoredRunner:
    """Runs a program from the cache.

    session: prepares the model; its runs hold it, so it is there
    closing: closes the program, until that is replaced
    """

    def __init__(self, program: StoredProgram, session: ref[PreparesModel]) -> None:
        self.program, self._session = program, session
        self.direct = None if program.is_open else program.run
        self.closing = ExitStack()
        self.closing.callback(program.close)
        self._beside: dict[int, RunInContext] = {}

    def run(
        self, feeds: Mapping[str, Any], out: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        """Return the outputs of a run, of the prepared model where the stored one cannot serve."""
        if self.direct is not None and out is None:
            return self.direct(feeds)
        stored, session = self.program, self._opened()
        serving = self._at(feeds, session.behind) if out is None else None
        if serving is None:
            is_kept = not stored.is_open or out is not None or session.behind is not None
            return session.take_over(is_kept).run(feeds, out)
        before, stored.ran = stored.ran, serving.shapes
        results = serving.run(feeds)
        if before not in (None, serving.shapes):
            session.prepare_behind()  # more shapes will come, and it may not serve them
        return results

    def _opened(self) -> PreparesModel:
        session = self._session()
        assert session is not None
        return session

    def _at(
        self, feeds: Mapping[str, Any], behind: BackgroundPreparation | None
    ) -> StoredProgram | None:
        """Return what runs feeds, as long as the prepared model has not taken over."""
        if behind is not None and behind.is_ready and not self.program.takes(feeds):
            return None
        return self.program.at(feeds)

    def run_beside(
        self, number: int, feeds: Mapping[str, Any], out: Mapping[str, Array] | None
    ) -> dict[str, Array]:
        """Return the outputs of a run in another context than the first, made at its first run."""
        if self.program.is_open and not self.program.takes(feeds):
            return self._opened().take_over(True).run_beside(number, feeds, out)
        found = self._beside.get(number)
        if found is None:
            found = self._beside[number] = self.program.beside()
        return found(feeds, out)

    def replace(self) -> None:
        """Leave the stored program to its last run, which ends it."""
        self.program.drop_others()
        self.closing.pop_all()


class Closable(Protocol):
    """A session."""

    def close(self) -> None:
        """Give everything back."""


class BackgroundPreparation:
    """A session beside another, which holds the prepared program until that one has taken it.

    open_prepared: opens it with the arguments of the other, and prepares its model
    """

    def __init__(self, open_prepared: Callable[[], Closable]) -> None:
        self._session: Closable | None = None
        self._over = Latch()
        self._thread = threading.Thread(
            target=self._prepare, args=(open_prepared,), name="trireme-behind"
        )
        wait_before_fork(self)  # a child must not find modules that are half imported
        self._thread.start()

    def _prepare(self, open_prepared: Callable[[], Closable]) -> None:
        try:
            self._session = open_prepared()
        except Exception as error:
            _log.info("the model was not prepared behind the runs of its program: %s", error)
        finally:
            self._over.open()

    @property
    def is_ready(self) -> bool:
        """Whether the model is prepared."""
        return self._session is not None

    def wait(self) -> None:
        """Return when the model is prepared, or when that failed: whoever needs it will say why."""
        self._thread.join()

    def before_fork(self) -> None:
        """Let the thread end first."""
        self._over.wait_for(MOST_WAIT_S)  # a thread that has yet to start cannot be joined

    def close(self) -> None:
        """Wait, and let the program go."""
        self.wait()
        session, self._session = self._session, None
        if session is not None:
            session.close()
