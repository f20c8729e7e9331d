"""A timer whose signal raises, as Ctrl-C's does."""

import contextlib
import signal

import pytest

AGAIN_S = 1.0
needs_timers = pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="this system has no timers"
)


class Interrupted(Exception):
    """What the handler raises."""


class Stop(BaseException):
    """As KeyboardInterrupt, which pytest would take for its own."""


@contextlib.contextmanager
def alarms(raised=Interrupted):
    """Yield a function that sets the timer to seconds from now; nothing is left set behind.

    It goes off again each second until it is set to 0, or anew: Python ignores what a handler
    raises while a __del__ or the callback of a weak reference runs.
    """

    def interrupt(signum, frame):
        raise raised

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
