"""Calls that wait for a context, and the threads that run them.

A caller in line that runs its call itself has to wake up first. The system may put it on a core
where another run has milliseconds left, while a core idles: of 8 clients on two cores a fourth of
the time went there. So a thread that has a context runs the calls in line one after another, and
their callers wake up beside the next run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any

from trireme.support.cancel import CancelToken, current_token, working_for
from trireme.support.errors import RunError
from trireme.support.threads import start_thread

LOOK_S = 0.25
"""Seconds after which a caller in line looks by itself. A signal may have cost it its call."""
LOOK_TO_STOP_S = 0.02
"""The same of a caller that may have to stop."""


class PlaceInLine:
    """The place of a caller in line: an alarm clock that a free context rings."""

    __slots__ = ("__weakref__", "_bell")

    def __init__(self) -> None:
        self._bell = threading.Lock()
        self._bell.acquire()

    def wait(self, most_s: float = LOOK_S, deadline_s: float | None = None) -> None:
        """Return when the bell rang, after a while, or at a deadline of time.monotonic."""
        left = most_s if deadline_s is None else min(most_s, deadline_s - time.monotonic())
        if left > 0:
            self._bell.acquire(timeout=left)

    def ring(self) -> None:
        """Have `wait` return."""
        with suppress(RuntimeError):  # it rings already
            self._bell.release()


class WaitingCall(PlaceInLine):
    """A call in line: one of the threads of its queue runs it, and its caller waits for its end.

    call: gets the number of a context; it sees the context variables of the caller
    wake: has a thread look at the line
    """

    __slots__ = (
        "_call",
        "_claims",
        "_error",
        "_is_over",
        "_result",
        "_token",
        "_variables",
        "_wake",
    )

    def __init__(self, call: Callable[[int], Any], wake: Callable[[], bool]) -> None:
        super().__init__()
        self._call: Callable[[int], Any] | None = call
        self._token, self._wake = CancelToken(around=current_token()), wake
        self._variables = copy_context()
        self._claims, self._is_over = [True], False
        self._result: Any = None
        self._error: BaseException | None = None

    def ring(self) -> None:
        """Have a thread run the call, which is the first in line."""
        self._wake()

    def claim(self) -> bool:
        """Whether the call is the claimer's, to run it or to drop it; nobody else's then."""
        try:
            return self._claims.pop()
        except IndexError:
            return False

    def run(self, number: int) -> None:
        """Run the claimed call in a context, and wake its caller."""
        call, self._call = self._call, None
        try:
            with working_for(self._token):
                self._token.check()
                if call is not None:
                    self._result = self._variables.run(call, number)
        except BaseException as error:
            self._error = error
        del call
        self._is_over = True
        super().ring()

    def wait_over(self) -> bool:
        """Return True when the call is over, False when there is no thread to run it.

        Errors: DeadlineError, CancelledError, if the run of this thread has to stop
        """
        around = current_token()
        look_s, until_s = (LOOK_S, None) if around is None else (LOOK_TO_STOP_S, around.deadline_s)
        while not self._is_over:
            if self._claims and not self._wake() and self.claim():
                return False
            if around is not None:
                around.check()
            self.wait(look_s, until_s)
        return True

    def drop(self) -> None:
        """Have the call not run; if it does, stop it and return when it is over."""
        if self.claim():
            return
        self._token.cancel()
        while not self._is_over:
            with suppress(BaseException):  # an interrupt waits, too: arrays are in use
                self.wait()

    def result(self) -> Any:
        """Return what the call returned. Errors: its own"""
        error, self._error = self._error, None
        if error is None:
            return self._result
        try:
            raise error
        finally:
            del error  # its traceback has this frame


class LineThreads:
    """Threads that serve a line, started when they are first needed.

    A signal may come between any two steps of a caller, so it wakes a thread in one step.
    serve: runs what can run now; has_work: whether there is such a call
    """

    def __init__(self, serve: Callable[[], None], has_work: Callable[[], bool]) -> None:
        self._serve, self._has_work = serve, has_work
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Have no threads in a forked child."""
        self._threads: list[threading.Thread] = []
        self._idle: list[bool] = []
        self._bells: SimpleQueue[None] = SimpleQueue()
        self._is_closed = False

    def wake(self, most: int) -> bool:
        """Have a thread serve the line; say whether there is one. most: of the threads"""
        if self._idle:
            self._bells.put(None)
            return True
        if len(self._threads) < most and not self._is_closed:
            self._start()
        return bool(self._threads)

    def stop(self) -> None:
        """Have the threads end when no call waits. A collector may call it anywhere."""
        self._is_closed = True
        for _ in list(self._threads):  # those that end leave it
            self._bells.put(None)

    def close(self) -> None:
        """Return when the threads have ended; the caller may be one of them."""
        self.stop()
        for thread in list(self._threads):
            if thread is not threading.current_thread() and thread.is_alive():
                thread.join()

    def _start(self) -> None:
        name = f"trireme-contexts-{len(self._threads)}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        try:
            self._threads.append(thread)
            start_thread(thread)
        except BaseException as error:
            if not thread.is_alive():
                self._threads.remove(thread)
            if not isinstance(error, RunError):  # callers run their own calls after that
                raise

    def _work(self) -> None:
        bells = self._bells
        while True:
            self._serve()
            self._idle.append(True)
            has_work = self._has_work()  # a call may have come before this thread was idle
            if not has_work and not self._is_closed:
                bells.get()
            self._idle.pop()
            if self._is_closed and not has_work:
                with suppress(ValueError):  # a signal in its start took it out
                    self._threads.remove(threading.current_thread())
                bells.put(None)  # the next one ends too, whoever took its bell
                return
