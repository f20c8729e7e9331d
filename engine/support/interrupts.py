"""Ctrl-C in a process that is the command line: one line on standard error, and exit code 130.

Python would print a traceback during imports and at the end of the process; this module covers
both. In a process that only imports the package, signal handling stays unchanged.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from types import FrameType

EXIT_CODE = 130
"""The exit code of a shell for a process that SIGINT ended: 128 + 2."""
_NAMES = ("trireme", "trireme.exe")
_MODULES = ("trireme", "trireme.tools.cli")


def is_command() -> bool:
    """Whether this process was started as `trireme ...` or as `python -m trireme ...`."""
    asked = sys.orig_argv
    module = asked[asked.index("-m") + 1] if "-m" in asked[:-1] else ""
    return module in _MODULES or os.path.basename("".join(sys.argv[:1])) in _NAMES


def end_on_interrupt() -> None:
    """From now on, Ctrl-C ends a command-line process at once."""
    if not is_command() or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # nohup ignores SIGINT
        signal.signal(signal.SIGINT, _end)


def raise_on_interrupt() -> None:
    """From now on, Ctrl-C raises KeyboardInterrupt, so that files and devices are closed."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    with contextlib.suppress(OSError):
        os.write(2, b"interrupted\n")
    os._exit(EXIT_CODE)
