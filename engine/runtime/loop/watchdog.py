"""Runs of a plan that end though a device hangs.

A device whose task hangs (task_watch.py) is LOST: nobody waits for it again. The memory of its
plan, and what the run borrowed from the caller, are kept for ever, because the task may still write
there.

A call into a driver that hangs cannot be stopped, so there are two ways to come back from one. A
launch returns at once and is waited for; the caller itself gives up a wait that takes too long
(TimedEvent). That costs nothing. A launch that does not even return holds its thread. So the run of
a request, which has a token, goes to a thread of its own that can be left behind. The hand-over
takes the time of waking two threads, which a request spends on its queue anyway. A plain run goes
there, too, where that is less than a hundredth of it, and where an event cannot be given up.

A shorter plain run stays on its caller's thread. Where its launch does not return, Watcher takes
the caller's turn away: the device is lost, and other callers run without it. The caller waits for
its launch, takes its turn again and runs on the other devices. A run of one session may run another
(of a region, or on other devices after a fault): then all turns around it are left, too.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol
from weakref import ref

from trireme.backend.device import Device
from trireme.profiling.spans import TaskSpan
from trireme.runtime.loop.executors import Executors
from trireme.runtime.loop.task_watch import (
    LOOK_S,
    StuckTasks,
    TaskWatch,
    keep_for_ever,
    lose,
)
from trireme.runtime.program.failures import interrupt_of
from trireme.support.cancel import current_token, working_for
from trireme.support.errors import DeviceError, FaultKind, InternalError, RunError
from trireme.support.forks import register_at_fork
from trireme.support.live_objects import LiveObjects
from trireme.support.locks import taking
from trireme.support.threads import TaskThreads, start_thread

_log = logging.getLogger(__name__)
_LONG_S = 4e-3
"""A run of so many seconds takes a hundredth longer, or less, for a hand-over."""


class CallersTurns(Protocol):
    """What lets one run after another go through a plan.

    turn: the lock of the run that has the turn
    """

    @property
    def turn(self) -> threading.Lock:
        """See above."""

    def leave_turn(self, hung: DeviceError) -> None:
        """Let others run: the run that has the turn hangs on its caller's thread."""

    def begin_turn(self) -> None:
        """Prepare for what the caller that hung does next: it has the turn again."""


Turns = tuple[ref[CallersTurns], ...]
"""The outermost first. They keep nothing alive."""


class _HeldTurns(threading.local):
    turns: Turns = ()


_HELD = _HeldTurns()


@contextmanager
def holding_turn(turns: CallersTurns) -> Iterator[None]:
    """Say that this thread has the turn of a session in the block, in which it runs another."""
    before = _HELD.turns
    _HELD.turns = (*before, ref(turns))
    try:
        yield
    finally:
        _HELD.turns = before


class Watched(Protocol):
    """Runs that may hang on their callers' threads."""

    def look(self) -> None:
        """Give up what hangs."""


class Watcher:
    """Looks, four times a second, at runs on their callers' threads; ends when there are none.

    A run notes what is under way anyway. So to be looked at costs it nothing, and nobody is woken.
    """

    def __init__(self) -> None:
        self.reset_after_fork()
        register_at_fork(self)

    def reset_after_fork(self) -> None:
        """Look at nothing in a forked child: its sessions add themselves again."""
        self._lock = threading.Lock()
        self._watched = LiveObjects[Watched]()
        self._thread: threading.Thread | None = None

    def add(self, one: Watched) -> bool:
        """Look at runs from now on. False where the system starts no thread."""
        with self._lock:
            self._watched.add(one)
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name="trireme-watcher", daemon=True)
                try:
                    start_thread(thread)
                except RunError as error:
                    self._watched.discard(one)
                    _log.info("short runs go to a thread of their own: %s", error.summary)
                    return False
                self._thread = thread
            return True

    def drop(self, one: Watched) -> None:
        """Look at runs no more."""
        with self._lock:
            self._watched.discard(one)

    def _serve(self) -> None:
        while watched := self._left():
            for one in watched:
                try:
                    one.look()
                except Exception:  # the thread serves all sessions of the process
                    _log.exception("runs cannot be looked at")
            del watched, one
            time.sleep(LOOK_S)

    def _left(self) -> list[Watched]:
        """Return what to look at; where there is nothing the thread ends."""
        with self._lock:
            found = list(self._watched)
            if not found:
                self._thread = None
            return found


WATCHER = Watcher()


class WatchedRuns:
    """Runs a plan, and gives it up when a task hangs. One run at a time.

    turns: who runs it, and whom it does not keep alive
    lost: the error of the task that hung; the plan never runs again then
    """

    def __init__(
        self, watch: TaskWatch, devices: Mapping[str, Device], turns: CallersTurns
    ) -> None:
        self.watch, self._devices, self._turns = watch, devices, ref(turns)
        self.lost: DeviceError | None = None
        self._runs: Executors | None = None
        self._around: Turns = ()
        self._beside = TaskThreads("trireme-watched")
        self.reset_after_fork()
        register_at_fork(self)

    def reset_after_fork(self) -> None:
        """Run nothing in a forked child."""
        self._least_s = math.inf
        self._is_here = self._is_taken = False
        self._claiming = threading.Lock()

    def run(self, runs: Executors, borrowed: object) -> None:
        """Run a plan once.

        borrowed: what the run reads and writes of the caller's
        Errors: those of the run; DeviceError of kind HANG, and LOST ever after
        """
        self._check_not_lost()
        if self._least_s < _LONG_S and self.watch.is_timed and current_token() is None:
            self._around = _HELD.turns
            self._is_here = True
            try:
                runs.run()
            except BaseException as error:
                self._end_here(error, runs, borrowed)
                raise
            self._is_here = False
            if self._is_taken:
                self._end_here(None, runs, borrowed)
            return
        begun_s = time.perf_counter()
        self._run_beside(runs, borrowed, runs.run)
        took_s = time.perf_counter() - begun_s
        self._runs = runs
        if took_s >= _LONG_S or WATCHER.add(self):
            self._least_s = min(self._least_s, took_s)

    def look(self) -> None:
        """Take the turn from a run that hangs on its caller's thread. The watcher calls."""
        turns = self._turns()
        if turns is None or self.lost is not None or not self._is_here:
            return
        stuck = self.watch.stuck()
        if stuck is None:
            return
        with self._claiming:
            self._is_taken = True  # a run that ends now asks under the lock
            self._is_taken = stuck.claim()
        runs = self._runs
        if self._is_taken and runs is not None:
            hung = stuck.give_up()
            runs.give_up(hung)
            self._lose(hung, runs, None)
            for one in reversed(self._all_turns()):
                one.leave_turn(hung)

    def _end_here(self, failed: BaseException | None, runs: Executors, borrowed: object) -> None:
        """After a run on its caller's thread: raise what ends it, if that is not its own error.

        The plan is lost if a wait was given up, or if the turn was taken.
        """
        for _ in taking(self._claiming):
            try:
                is_taken, self._is_here = self._is_taken, False
                self.watch.reset()
                break
            finally:
                self._claiming.release()
        if is_taken:
            keep_for_ever(borrowed)
            raise self._come_back(self._all_turns(), failed) from failed
        if self.watch.hung is not None and isinstance(failed, DeviceError):
            self._lose(self.watch.hung, runs, borrowed)

    def _all_turns(self) -> list[CallersTurns]:
        """Return the turns of the run that is under way, the outermost first."""
        found = [one() for one in (*self._around, self._turns)]
        return [one for one in found if one is not None]

    def _come_back(
        self, turns: Sequence[CallersTurns], failed: BaseException | None
    ) -> BaseException:
        """Take the turns again after a launch that hung; return what ends the run."""
        if self.watch.hung is None:
            return InternalError("a turn was taken from a run that nobody watches")
        interrupt = None if failed is None else interrupt_of(failed)
        for one in turns:
            has_turn = False
            while not has_turn:
                try:
                    for _ in taking(one.turn):
                        has_turn = True
                        break
                except BaseException as error:
                    interrupt = interrupt_of(error)
            one.begin_turn()
        if interrupt is not None and not isinstance(interrupt, Exception):
            return interrupt
        return self.watch.hung

    def profiled(self, runs: Executors, borrowed: object) -> list[TaskSpan]:
        """Run a plan once and return when each task ran. Errors: as `run`"""
        self._check_not_lost()
        spans: list[TaskSpan] = []
        self._run_beside(runs, borrowed, lambda: spans.extend(runs.profiled()))
        return spans

    def _check_not_lost(self) -> None:
        if self.lost is not None:
            raise DeviceError(self.lost.summary).of_device(self.lost.device).of_kind(FaultKind.LOST)

    def _run_beside(self, runs: Executors, borrowed: object, run: Callable[[], None]) -> None:
        """Run a plan once, on a thread that is left behind where it hangs."""
        over = threading.Lock()
        over.acquire()
        failed: list[BaseException] = []
        token = current_token()

        def work() -> None:
            try:
                with working_for(token):
                    run()
            except BaseException as error:
                failed.append(error)
            over.release()

        self.watch.reset()
        if not self._beside.are_alive:
            self._beside.leave()
        self._beside.submit(work)
        stuck = self._wait(over)
        hung = self.watch.hung if stuck is None else stuck.give_up()
        if hung is not None:
            self._lose(hung, runs, borrowed)
            raise hung
        if failed:
            raise failed[0]

    def close(self) -> None:
        """Let the thread end, unless it hangs."""
        WATCHER.drop(self)
        if self.lost is None:
            self._beside.end()
        else:
            self._beside.leave()

    def _wait(self, over: threading.Lock) -> StuckTasks | None:
        """Return when a run is over, None; an interrupt waits for that, too. Or tasks that hang."""
        interrupt: BaseException | None = None
        while True:
            try:
                if over.acquire(timeout=LOOK_S):
                    break
                stuck = self.watch.stuck()
            except BaseException as error:
                interrupt = interrupt or interrupt_of(error)
                continue
            if stuck is not None:
                return stuck
        if interrupt is not None:
            raise interrupt
        return None

    def _lose(self, hung: DeviceError, runs: Executors, borrowed: object) -> None:
        """Never run the plan again; keep all that the tasks that hang may touch."""
        self.lost = hung
        lose(self._devices, hung, (borrowed, runs.runner))
        runs.abandon()
