"""Make instances before a run needs them: in a thread of its own, while runs go on.

A shape whose program is compiled for it costs a load at its first run. `ShapesAhead` makes the
instances of shapes that the caller expects. A run that comes first waits for the instance that is
under way, and finds those that are ready; the bits are the same, because it is the instance that
the run would have made.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from trireme.support.errors import TriremeError
from trireme.support.forks import register_at_fork

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
