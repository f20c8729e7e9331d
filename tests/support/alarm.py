"""A timer whose signal raises, as Ctrl-C's does."""

import contextlib
import signal

import pytest

needs_timers = pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="this system has no timers"
)


class Interrupted(Exception):
    """What the handler raises."""


class Stop(BaseException):
    """As KeyboardInterrupt, which pytest would take for its own."""


@contextlib.contextmanager
def alarms(raised=Interrupted):
    """Yield a function that sets the timer to seconds from now; nothing is left set behind."""

    def interrupt(signum, frame):
        raise raised

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
