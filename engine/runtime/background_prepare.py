"""Prepare a model behind the runs of its stored program, so that no later run waits for it.

A session in a thread of its own goes from the model to its program, which sessions of the same
arguments share (shared_programs.py). The session that runs then finds it there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from trireme.support.forks import wait_before_fork
from trireme.support.locks import Latch

_log = logging.getLogger(__name__)
MOST_WAIT_S = 30.0
"""For a model that is being prepared, before a fork."""


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
