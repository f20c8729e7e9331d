"""The instances that a session keeps: the one unused for longest goes when there are too many."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

Shapes = tuple[tuple[int, ...], ...]
Key = tuple[Shapes, ...]
"""The shapes of a stage's inputs, after those of the stages before."""


class Closes(Protocol):
    """What holds resources."""

    def close(self) -> None:
        """Release the resources."""


Kind = TypeVar("Kind", bound=Closes)


class Kept(Generic[Kind]):
    """The instances of all stages of a session, the most recently used last.

    One thread at a time asks for them. Others may prepare some meanwhile: these join when the next
    one is asked for, so that no instance is closed while it runs.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._instances: OrderedDict[Key, Kind] = OrderedDict()
        self._lock = threading.Lock()
        self._ready: dict[Key, Kind] = {}
        self._under_way: dict[Key, threading.Event] = {}

    def get(self, key: Key, make: Callable[[], Kind]) -> Kind:
        """Return the instance of a key, made when there is none; one under way is waited for."""
        found = self._instances.get(key)
        if found is not None and not self._ready:
            self._instances.move_to_end(key)
            return found
        under_way = self._under_way.get(key)
        if under_way is not None:
            under_way.wait()
        self._join()
        if key not in self._instances:
            self._instances[key] = make()
        self._instances.move_to_end(key)
        while len(self._instances) > self._most:
            self._instances.popitem(last=False)[1].close()
        return self._instances[key]

    def prepare(self, key: Key, make: Callable[[], Kind]) -> None:
        """Make the instance of a key unless there is one; in any thread."""
        with self._lock:
            if key in self._instances or key in self._ready or key in self._under_way:
                return
            done = self._under_way[key] = threading.Event()
        try:
            made = make()
            with self._lock:
                self._ready[key] = made
        finally:
            with self._lock:
                del self._under_way[key]
            done.set()

    @property
    def is_settled(self) -> bool:
        """Whether nothing that was prepared waits to be taken in."""
        return not self._ready

    def _join(self) -> None:
        """Take in what was prepared."""
        with self._lock:
            for key, made in self._ready.items():
                if key in self._instances:
                    made.close()
                else:
                    self._instances[key] = made
            self._ready.clear()

    def __len__(self) -> int:
        return len(self._instances) + len(self._ready)

    def close(self) -> None:
        """Close every region; nothing is prepared any more."""
        self._join()
        while self._instances:
            self._instances.popitem()[1].close()
