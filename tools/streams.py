"""Standard streams that may be closed, full or of another encoding than a file's name.

A good run stays good when nobody reads its standard error, and `trireme ... | head` is quiet.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
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


def say(text: str, end: str = "\n") -> None:
    """Print on standard error, if anybody listens."""
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
