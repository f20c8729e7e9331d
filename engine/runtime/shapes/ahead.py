"""The instances that a session keeps, and those made in a thread before a run needs them."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Generic, Literal, Protocol, TypeVar

from trireme.support.errors import TriremeError
from trireme.support.forks import register_at_fork
from trireme.support.locks import Latch
from trireme.support.records import dataclass

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


_log = logging.getLogger(__name__)
Outcome = Literal["waiting", "ready", "failed", "not made"]


@dataclass
class PreparedShapes:
    """Shapes that were to be prepared.

    state: "not made" where the session was closed before, or the process is a fork
    seconds: what it took; error: why it failed, as a run with these shapes will say
    """

    shapes: Mapping[str, tuple[int, ...]]
    state: Outcome = "waiting"
    seconds: float = 0.0
    error: str = ""

    def __str__(self) -> str:
        shapes = ", ".join(f"{name} {list(shape)}" for name, shape in self.shapes.items())
        took = f" in {self.seconds * 1e3:.0f} ms" if self.state == "ready" else ""
        return f"{shapes}: {self.state}{took}{': ' + self.error if self.error else ''}"


class ShapesAhead:
    """The thread that makes instances, and what became of them."""

    def __init__(self) -> None:
        self.reports: list[PreparedShapes] = []
        self._todo: list[tuple[PreparedShapes, Callable[[], object]]] = []
        self._is_closed = False
        self.reset_after_fork()
        register_at_fork(self)

    def reset_after_fork(self) -> None:
        """Have no thread: what waits, or was under way, is not made in a forked child."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._todo.clear()
        for report in self.reports:
            if report.state == "waiting":
                report.state = "not made"

    def add(
        self, work: Sequence[tuple[Mapping[str, tuple[int, ...]], Callable[[], object]]]
    ) -> None:
        """Have instances made in the background, in order.

        work: shapes by input, and what makes their instance
        """
        with self._lock:
            for shapes, make in work:
                report = PreparedShapes(shapes)
                self.reports.append(report)
                self._todo.append((report, make))
            if self._thread is None and self._todo:
                self._thread = threading.Thread(target=self._work, name="trireme-prepare")
                self._thread.start()

    def _work(self) -> None:
        while (one := self._next()) is not None:
            report, make = one
            begun = time.perf_counter()
            try:
                make()
                report.seconds = time.perf_counter() - begun
                report.state = "ready"
            except Exception as error:
                report.error = error.summary if isinstance(error, TriremeError) else str(error)
                report.state = "failed"
                _log.warning("shapes were not prepared: %s", report)

    def _next(self) -> tuple[PreparedShapes, Callable[[], object]] | None:
        with self._lock:
            if self._is_closed or not self._todo:
                self._thread = None
                return None
            return self._todo.pop(0)

    def wait(self) -> None:
        """Wait until everything is made."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def close(self) -> None:
        """Begin nothing more, and wait for the instance that is under way."""
        with self._lock:
            self._is_closed = True
            for report, _ in self._todo:
                report.state = "not made"
            self._todo.clear()
        self.wait()
