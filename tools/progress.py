"""Progress of a command on standard error: what it is at, how far it is, and the time left.

On a terminal one line is rewritten; with `rich` (the extra `pretty`) it is a bar.
Elsewhere a plain line comes every _PLAIN_S seconds, so that a log shows a long command at work and
a short one is quiet.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from trireme.tools.streams import forget_line, keep_line, say, terminal_width

_PLAIN_S = 10.0
_TELLS_S = 1.0
"""After so long the time left is shown: before, it is a guess."""


class _Display(Protocol):
    """Where progress is shown."""

    def show(self, what: str, done: int, total: int, left: str) -> None:
        """Show what is being done."""

    def wipe(self) -> None:
        """Take away what is shown."""


class Progress:
    """Shows the steps of a command; `done` takes the last one away."""

    def __init__(self) -> None:
        self._display = _display()
        self._what, self._start = "", 0.0

    def __call__(self, what: str, done: int = 0, total: int = 0) -> None:
        """Show what is being done, and how much of it is."""
        now = time.perf_counter()
        if what != self._what:
            self._what, self._start = what, now
        left = time_left_s(now - self._start, done, total)
        self._display.show(what, done, total, left_text(left))

    def done(self) -> None:
        """Wipe the line."""
        forget_line()


def time_left_s(passed_s: float, done: int, total: int) -> float | None:
    """Return the seconds that the rest takes at the pace so far; None before that can be told."""
    if not 0 < done <= total or passed_s < _TELLS_S:
        return None
    return passed_s / done * (total - done)


def left_text(left_s: float | None) -> str:
    """Return the time left in whole seconds or minutes: "35 s left"; "" where it is not known."""
    if left_s is None:
        return ""
    return f"{left_s / 60:.0f} min left" if left_s >= 90 else f"{left_s:.0f} s left"


def _display() -> _Display:
    """Return where progress is shown here."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return _Plain()
    try:
        return _Bar()
    except ImportError:
        return _Line()


def _text(what: str, done: int, total: int, left: str) -> str:
    count = f" {done}/{total}" if total else ""
    return f"{what}{count}{f', {left}' if left else ''}"


class _Plain:
    """Lines now and then, for what is no terminal."""

    def __init__(self) -> None:
        self._next = time.perf_counter() + _PLAIN_S

    def show(self, what: str, done: int, total: int, left: str) -> None:
        """Print a line, where the last one is long ago."""
        if time.perf_counter() >= self._next:
            self._next = time.perf_counter() + _PLAIN_S
            say(_text(what, done, total, left))

    def wipe(self) -> None:
        """Leave the lines: they are a log."""


class _Line:
    """One line of a terminal, rewritten."""

    def show(self, what: str, done: int, total: int, left: str) -> None:
        """Write the line over the one before, never wider than the terminal."""
        text = _text(what, done, total, left)[: terminal_width(sys.stderr) - 1]
        say(f"\r\x1b[K{text}", end="")
        keep_line(self.wipe)

    def wipe(self) -> None:
        """Empty the line."""
        say("\r\x1b[K", end="")


class _Bar:
    """A bar of `rich`, drawn when told to: a thread that redraws would disturb what is timed."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        count = TextColumn("{task.fields[count]}")
        columns = (TextColumn("{task.description}"), BarColumn(24), count)
        console = Console(stderr=True)
        self._make: Callable[[], Any] = lambda: Bars(
            *columns, console=console, auto_refresh=False, transient=True
        )
        self._bars: Any = None

    def show(self, what: str, done: int, total: int, left: str) -> None:
        """Draw the bar."""
        if self._bars is None:
            self._bars = self._make()
            self._bars.start()
            self._task = self._bars.add_task(what, total=None, count="")
        count = _text("", done, total, left).strip()
        shown = dict(description=what, completed=done, total=total or 1, count=count)
        self._bars.update(self._task, **shown)
        self._bars.refresh()
        keep_line(self.wipe)

    def wipe(self) -> None:
        """Take the bar away."""
        bars, self._bars = self._bars, None
        if bars is not None:
            bars.stop()
