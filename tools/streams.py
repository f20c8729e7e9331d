"""Standard streams that may be closed, full or of another encoding than a file's name.

A good run stays good when nobody reads its standard error, and `trireme ... | head` is quiet.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import textwrap
from collections.abc import Callable
from typing import TextIO


def prepare_streams() -> None:
    """Give the process all three streams, and have those that are written show any text.

    A stream that was closed goes nowhere: Python prints what is meant for a missing standard error
    on standard output, and a file that is opened would get the free number.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _nowhere() -> TextIO:
    return open(os.devnull, "w")


_wipes: list[Callable[[], None]] = []
"""The function that wipes the line of progress of a terminal, if the terminal shows one."""


def keep_line(wipe: Callable[[], None]) -> None:
    """Note what wipes the line that is shown now, for whatever is printed next."""
    _wipes[:] = [wipe]


def forget_line() -> None:
    """Wipe the line of progress, so that what is printed next does not stick to it."""
    wipes, _wipes[:] = list(_wipes), []
    for wipe in wipes:
        wipe()


def terminal_width(stream: TextIO, default: int = 80) -> int:
    """Return the columns of a stream's terminal, or COLUMNS where it is set."""
    with contextlib.suppress(ValueError):
        return int(os.environ.get("COLUMNS", ""))
    try:
        return os.get_terminal_size(stream.fileno()).columns or default
    except (OSError, ValueError):
        return default


def width_of(stream: TextIO) -> int | None:
    """Return the columns that lines are cut to: of a terminal; None for a pipe or a file."""
    return terminal_width(stream) if stream.isatty() else None


def wrapped_to(stream: TextIO, text: str) -> str:
    """Return a text whose lines go on in the next where a terminal is too narrow for them."""
    width = width_of(stream)
    if width is None:
        return text
    lines = [
        textwrap.wrap(line, width, subsequent_indent="    ", break_on_hyphens=False) or [""]
        if len(line) > width
        else [line]
        for line in text.split("\n")
    ]
    return "\n".join(one for wrapped in lines for one in wrapped)


class _Logged(logging.Handler):
    """Prints warnings as everything else on standard error: never behind a line of progress."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        say(self.format(record))


def show_warnings(level: int = logging.WARNING) -> None:
    """Print warnings that are logged, where nobody else does.

    level: the least that is printed
    """
    if not logging.getLogger().handlers:
        logging.lastResort = _Logged(level)


def say(text: str, end: str = "\n") -> None:
    """Print on standard error, if anybody listens."""
    forget_line()
    try:
        print(text, end=end, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        discard(sys.stderr)


def flush_errors() -> None:
    """Flush standard error, so that Python's exit code stays ours."""
    say("", end="")


def discard(stream: TextIO) -> None:
    """Send what a stream still holds nowhere: Python flushes it once more when the process ends."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
