"""The instances that a session keeps: the one unused for longest goes when there are too many."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from trireme.support.forks import register_at_fork
from trireme.support.locks import Latch

Shapes = tuple[tuple[int, ...], ...]
Key = tuple[Shapes, ...]
"""The shapes of a stage's inputs, after those of the stages before."""


class Closes(Protocol):
    """What holds resources."""

    def close(self) -> None:
        """Release the resources."""


Kind = TypeVar("Kind", bound=Closes)


@dataclass(eq=False)
class _Entry(Generic[Kind]):
    """An instance, and how many runs use it now."""

    instance: Kind
    users: int = 0


class Kept(Generic[Kind]):
    """The instances of all stages of a session, the most recently used last.

    Any thread asks for them. An instance that a run uses is not closed before the run is over.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: OrderedDict[Key, _Entry[Kind]] = OrderedDict()
        self.reset_after_fork()
        register_at_fork(self)

    def hold(self, key: Key, make: Callable[[], Kind]) -> Generator[Kind, None, None]:
        """Yield the instance of a key, which is not closed until the `for` ends.

        It is made when there is none; one under way is waited for.
        """
        entry = self._entry(key, make, 1)
        try:
            yield entry.instance
        finally:
            with self._lock:
                entry.users -= 1
                gone = self._surplus()
            _close(gone)

    def get(self, key: Key, make: Callable[[], Kind]) -> Kind:
        """Return the instance of a key, which may be closed when others are asked for."""
        return self._entry(key, make, 0).instance

    def prepare(self, key: Key, make: Callable[[], Kind]) -> None:
        """Make the instance of a key unless there is one, or one is under way."""
        if key not in self._entries and key not in self._under_way:
            self._entry(key, make, 0)

    def _entry(self, key: Key, make: Callable[[], Kind], users: int) -> _Entry[Kind]:
        while True:
            with self._lock:
                entry = self._entries.get(key)
                if entry is not None:
                    self._entries.move_to_end(key)
                    entry.users += users
                    return entry
                under_way = self._under_way.get(key)
                if under_way is None:
                    mine = self._under_way[key] = Latch()
                    break
            under_way.wait()
        gone: list[Kind] = []
        try:
            entry = _Entry(make(), users)
            with self._lock:
                self._entries[key] = entry
                gone = self._surplus()
        finally:
            with self._lock:
                self._under_way.pop(key, None)
            mine.open()
        _close(gone)
        return entry

    def _surplus(self) -> list[Kind]:
        """Take out the instances unused for longest, of those that no run uses; the last stays."""
        surplus = len(self._entries) - self._most
        if surplus <= 0:
            return []
        idle = [key for key, entry in self._entries.items() if not entry.users]
        last = next(reversed(self._entries))
        return [self._entries.pop(key).instance for key in idle[:surplus] if key != last]

    def __len__(self) -> int:
        return len(self._entries)

    def close(self) -> None:
        """Close every instance; no run may be under way."""
        while self._entries:
            self._entries.popitem()[1].instance.close()

    def reset_after_fork(self) -> None:
        """Be free, in a forked child, of what other threads of the parent were doing."""
        self._lock = threading.Lock()
        self._under_way: dict[Key, Latch] = {}
        for entry in self._entries.values():
            entry.users = 0


def _close(gone: Sequence[Closes]) -> None:
    for instance in gone:
        instance.close()
