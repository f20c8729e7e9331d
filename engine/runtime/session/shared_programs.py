"""What sessions of one model and one set of options share: the graph, devices, program and weights.

The first session makes it; those that open while it is there find it by their arguments. Each has
execution contexts of its own. Models with states are not shared, because devices keep states.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from trireme.support.forks import register_at_fork

if TYPE_CHECKING:
    from trireme.runtime.models.prepare import Prepared
    from trireme.runtime.program.program import Program
    from trireme.runtime.session.open_program import OpenProgram


class SharedProgram:
    """A prepared model and its program; closed with the last session that holds it.

    model: what it was made of, which keeps its identity while this lives
    dropped: devices that gave an error before any run
    closing: closes the devices; users: how many sessions hold it
    program: of static shapes; open_program: of open shapes
    watch_regions: has the regions of open shapes watched for tasks that hang
    """

    def __init__(self, model: object) -> None:
        self.model, self.users = model, 0
        self.dropped: dict[str, str] = {}
        self.closing = ExitStack()
        self.prepared: Prepared | None = None
        self.program: Program | None = None
        self.open_program: OpenProgram | None = None
        self.watch_regions: Callable[[], None] | None = None


class SharedPrograms:
    """The shared programs of this process, by their keys."""

    def __init__(self) -> None:
        self._known: dict[str, SharedProgram] = {}
        self.reset_after_fork()
        register_at_fork(self)

    def has(self, key: str | None) -> bool:
        """Whether a session may find a program by a key."""
        return key in self._known

    def take(self, key: str | None, model: object) -> SharedProgram:
        """Return the program of a key, or a new one that is to be filled; `drop` gives it back."""
        with self._lock:
            found = self._known.get(key) if key is not None else None
            if found is None:
                found = SharedProgram(model)
            found.users += 1
            return found

    def offer(self, key: str | None, made: SharedProgram) -> None:
        """Let later sessions find a program that is filled."""
        if key is not None:
            with self._lock:
                self._known.setdefault(key, made)

    def drop(self, one: SharedProgram) -> None:
        """Give a program back; the last one closes it."""
        with self._lock:
            one.users -= 1
            if one.users:
                return
            self._known = {key: each for key, each in self._known.items() if each is not one}
        one.closing.close()

    def reset_after_fork(self) -> None:
        """Be free in a forked child."""
        self._lock = threading.RLock()  # a collector may drop programs anywhere


PROGRAMS = SharedPrograms()
