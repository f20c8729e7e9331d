"""The thread of a process that looks, four times a second, at runs on their callers' threads.

A run notes what is under way anyway. So to be looked at costs it nothing, and nobody is woken.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

from trireme.support.errors import RunError
from trireme.support.forks import register_at_fork
from trireme.support.live_objects import LiveObjects
from trireme.support.threads import start_thread

_log = logging.getLogger(__name__)
LOOK_S = 0.25
"""Seconds between two looks at the tasks under way."""


class Watched(Protocol):
    """Runs that may hang on their callers' threads."""

    def look(self) -> None:
        """Give up what hangs."""


class Watcher:
    """Looks at runs on a thread, which ends when there are none."""

    def __init__(self) -> None:
        self.reset_after_fork()
        register_at_fork(self)

    def reset_after_fork(self) -> None:
        """Look at nothing in a forked child: its sessions add themselves again."""
        self._lock = threading.Lock()
        self._watched = LiveObjects[Watched]()
        self._thread: threading.Thread | None = None

    def add(self, one: Watched) -> bool:
        """Look at runs from now on. False where the system starts no thread."""
        with self._lock:
            self._watched.add(one)
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name="trireme-watcher", daemon=True)
                try:
                    start_thread(thread)
                except RunError as error:
                    self._watched.discard(one)
                    _log.info("short runs go to a thread of their own: %s", error.summary)
                    return False
                self._thread = thread
            return True

    def drop(self, one: Watched) -> None:
        """Look at runs no more."""
        with self._lock:
            self._watched.discard(one)

    def _serve(self) -> None:
        while watched := self._left():
            for one in watched:
                try:
                    one.look()
                except Exception:  # the thread serves all sessions of the process
                    _log.exception("runs cannot be looked at")
            del watched, one
            time.sleep(LOOK_S)

    def _left(self) -> list[Watched]:
        """Return what to look at; where there is nothing the thread ends."""
        with self._lock:
            found = list(self._watched)
            if not found:
                self._thread = None
            return found


WATCHER = Watcher()
