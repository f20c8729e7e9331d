"""Progress of a command on standard error, where that is a terminal."""

from __future__ import annotations

import sys

from trireme.tools.streams import say


class Progress:
    """A line of progress on a terminal; nothing in a pipe."""

    def __init__(self) -> None:
        self.live = sys.stderr.isatty()

    def __call__(self, what: str, done: int = 0, total: int = 0) -> None:
        """Show what is being done."""
        if self.live:
            count = f" {done}/{total}" if total else ""
            say(f"\r\x1b[K{what}{count}", end="")

    def done(self) -> None:
        """Wipe the line."""
        if self.live:
            say("\r\x1b[K", end="")
