"""Run again without the device that failed.

A session with `fallback=True` and several devices has a `Failover`. A run that a device fails is
repeated from its inputs, which are the last boundary that is always intact: nothing writes into
feeds, and states are put back. The plan without the device is made at the first fault and kept.
So a session pays nothing for plans that it may never need; `prepare` makes them earlier.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from trireme.ir.effects import States
from trireme.runtime.failover.breaker import CircuitBreaker
from trireme.runtime.failover.canary import Canary, canary_of
from trireme.runtime.failover.events import EventLog, event_of, fault_kind
from trireme.support.dtypes import Array
from trireme.support.errors import (
    CompileError,
    DeviceError,
    PlanError,
    TriremeError,
)
from trireme.support.fault_events import Action, FaultEvent
from trireme.support.forks import register_at_fork
from trireme.support.threads import start_thread

if TYPE_CHECKING:
    from trireme.backend.device import Progress
    from trireme.profiling.profile import Profile

_log = logging.getLogger(__name__)
Made = TypeVar("Made")
Results = dict[str, Array]
_FAULTS = (CompileError, DeviceError, PlanError)
"""Errors that a device can cause in a run: with open shapes, a run may compile and plan."""


class FallbackSession(Protocol):
    """A session on the devices that are left."""

    states: States

    def run(self, feeds: Mapping[str, Any], out: Mapping[str, Array] | None = None) -> Results:
        """Return the outputs by name."""

    def profile(
        self,
        feeds: Mapping[str, Any],
        runs: int = 20,
        warmup: int = 2,
        progress: Progress | None = None,
    ) -> Profile:
        """Return what runs took."""

    def watch_tasks(self) -> None:
        """Give a task up that hangs."""

    def close(self) -> None:
        """Give back memory."""


class DeviceOut(DeviceError):
    """A device of the plan is passed over, so the run goes to another plan at once."""


class Failover:
    """The plans without the devices that failed, and what decides between them.

    breakers: of the devices that a plan may have, by name
    open_on: opens a session on some of them
    states: of the session; writes: whether runs may leave them half written
    on_change: called, on any thread, when a device is taken out and when it is back
    devices: those of the breakers
    out: those that runs pass over; replaced, never changed, so that readers need no lock. None
        where all would be: then runs try all of them
    """

    def __init__(
        self,
        breakers: Mapping[str, CircuitBreaker],
        open_on: Callable[[Sequence[str]], FallbackSession],
        states: States,
        writes: bool,
        log: EventLog,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.breakers, self.devices = dict(breakers), tuple(breakers)
        self._open_on, self._log, self._on_change = open_on, log, on_change
        self._states, self._writes = states, writes
        self.out: frozenset[str] = frozenset()
        self._plans: dict[tuple[str, ...], FallbackSession] = {}
        self._saved: Mapping[str, Array] | None = None
        self._canary: Canary | None = None
        self._has_run = self._closed = self._is_trying = False
        self._trying: threading.Thread | None = None
        self.reset_after_fork()
        register_at_fork(self)
        for breaker in self.breakers.values():
            breaker.listen(self)
        self._look()

    def reset_after_fork(self) -> None:
        """Be free in a forked child."""
        self._lock, self._looking = threading.RLock(), threading.Lock()
        self._trying = None

    @property
    def watches(self) -> bool:
        """Whether `begin` and `note` are to be called of each run."""
        return self._writes or not self._has_run or bool(self.out)

    def begin(self, try_devices: Callable[[], None]) -> None:
        """Prepare for a run on all devices.

        try_devices: tries those that are out; called on a thread of its own
        Errors: DeviceOut, if a device is out; `run_again` then runs on the others
        """
        self.save()
        if not self._writes and not self._has_run and self._states.types:
            self._saved = dict(self._states)
        out = self.out
        if out and not self._is_trying:
            if self._take_due(out):
                self._start_trying(try_devices)
            raise DeviceOut(f"{', '.join(sorted(out))} is out")

    def save(self) -> None:
        """Keep the states that a run may leave half written."""
        if self._writes:
            self._saved = self._states.saved()

    def note_hang(self, hung: DeviceError) -> None:
        """Note a run that hangs on its caller's thread, so that others go on without its device."""
        self._restore()
        self._report([hung], (), "hangs")

    def note(self, feeds: Mapping[str, Any], results: Results) -> None:
        """Keep the first good run on all devices, to compare later ones with."""
        if not self._has_run:
            self._has_run = True
            self._canary = canary_of(feeds, self._saved or {}, results)

    def is_fault(self, error: BaseException) -> bool:
        """Whether a run that ended with an error may succeed on other devices."""
        if self._closed or not isinstance(error, _FAULTS):
            return False
        return isinstance(error, DeviceOut) or error.device in self.devices

    def run_again(
        self, error: BaseException, feeds: Mapping[str, Any], out: Mapping[str, Array] | None
    ) -> Results:
        """Return the outputs of a run on the devices that are left; each is tried once.

        error: that of the run, which `is_fault` found to be one
        Errors: DeviceError with the causes, if no device is left or those that are fail too
        """
        results = self.do_again(error, lambda session: session.run(feeds, out))
        if self._canary is None:
            self._canary = canary_of(feeds, self._saved or {}, results)
        return results

    def do_again(self, error: BaseException, act: Callable[[FallbackSession], Made]) -> Made:
        """Return what an act makes of a session on the devices that are left.

        error, Errors: as of `run_again`
        """
        causes: list[TriremeError] = []
        gone = set(self.out)
        failed: BaseException = error
        while True:
            if isinstance(failed, TriremeError) and not isinstance(failed, DeviceOut):
                causes.append(failed)
                gone.add(failed.device)
            left = tuple(name for name in self.devices if name not in gone)
            self._restore()
            if not left:
                raise self._all_failed(causes) from failed
            try:
                made = self._act_on(left, act)
            except _FAULTS as again:
                if again.device not in left:
                    raise self._all_failed([*causes, again]) from again
                failed = again
                continue
            except TriremeError as refused:
                if not causes or left in self._plans:  # the run's own error: its plan is there
                    raise
                raise self._all_failed([*causes, refused]) from refused
            self._report(causes, left)
            return made

    def prepare(self) -> None:
        """Make the plan without each device, so that its first fault takes no longer than a run.

        A device without which nothing runs has no plan; its faults stay errors.
        """
        for device in self.devices:
            left = tuple(name for name in self.devices if name != device)
            try:
                self._plan(left)
            except TriremeError as error:
                _log.info("no plan without %s: %s", device, error.summary)

    def try_devices(self, run: Callable[[Mapping[str, Any]], Results]) -> bool:
        """Run the canary on all devices; bring those that are out back if the bits are right.

        The caller holds the session, and nothing runs. run: runs on all devices
        """
        canary, saved, out = self._canary, self._states.saved(), self.out
        self._is_trying = True
        try:
            if canary is None:
                return False
            if self._states.types:
                self._states.clear()
                self._states.update(canary.states)
            is_right = canary.has_same_bits(run(canary.feeds))
        except TriremeError as error:
            _log.info("%s still fails: %s", error.device, error.summary)
            return False
        finally:
            self._is_trying = False
            self._states.restore(saved)
        if is_right:
            for device in sorted(out):
                self.breakers[device].bring_back(device, self)
        return is_right

    def wait(self) -> None:
        """Return when no device is being tried."""
        trying = self._trying
        if trying is not None and trying is not threading.current_thread():
            trying.join()

    def close(self) -> None:
        """Close the plans."""
        self._closed = True
        with self._lock:
            plans, self._plans = list(self._plans.values()), {}
            self.breakers = {}
        for plan in plans:
            plan.close()

    def device_changed(self, event: FaultEvent, by: object) -> None:
        """See BreakerListener."""
        if self._closed:
            return
        self._look()
        out = self.out
        is_passed = event.device in out
        to = tuple(name for name in self.devices if name not in out) if is_passed else ()
        self._log.add(replace(event, to=to), None if by is self else logging.INFO)
        self._on_change()

    def _look(self) -> None:
        """Have `out` be what the breakers say."""
        with self._looking:
            found = frozenset(name for name, one in self.breakers.items() if one.is_out)
            self.out = found if len(found) < len(self.devices) else frozenset()

    def _take_due(self, out: frozenset[str]) -> bool:
        """Whether the devices that are out are to be tried now, by this caller alone.

        Never while one of them is lost.
        """
        found = [self.breakers[name] for name in out if name in self.breakers]
        return all(one.is_due for one in found) and all([one.take_due() for one in found])

    def _act_on(self, left: tuple[str, ...], act: Callable[[FallbackSession], Made]) -> Made:
        session = self._plan(left)
        if session.states is self._states or not self._states.types:
            return act(session)
        session.states.clear()
        session.states.update(self._states)
        made = act(session)
        self._states.clear()
        self._states.update(session.states)
        return made

    def _plan(self, left: tuple[str, ...]) -> FallbackSession:
        """Return the session on some devices. Errors: those of a session that opens"""
        with self._lock:
            if left not in self._plans:
                self._plans[left] = self._open_on(left)
            return self._plans[left]

    def _restore(self) -> None:
        if self._writes and self._saved is not None:
            self._states.restore(self._saved)

    def _report(
        self, causes: Iterable[TriremeError], to: tuple[str, ...], action: Action = "failed"
    ) -> None:
        """Say what became of the faults of a run; take devices out that fail often, but the last.

        Causes without a device of the session are refusals, not faults.
        """
        for cause in causes:
            if cause.device not in self.devices:
                continue
            event = event_of(cause, "ran again" if to else action, to)
            self._log.add(event)
            breaker = self.breakers.get(cause.device)
            if breaker is not None and self.out | {cause.device} != set(self.devices):
                breaker.add_fault(event, self)

    def _all_failed(self, causes: Sequence[TriremeError]) -> DeviceError:
        """Return the error of a run that no device could do, with the error of each."""
        self._report(causes, ())
        first = causes[0]
        facts = [f"{one.device or 'without it'}: {one.summary}" for one in causes]
        summary = f"the run failed on {first.device}, and no other device ran it"
        found = DeviceError(summary, facts=facts)
        found.of_device(first.device).of_kind(fault_kind(first))
        if isinstance(first, DeviceError):
            found.at_node(first.node)
        found.causes = tuple(causes)
        return found

    def _start_trying(self, try_devices: Callable[[], None]) -> None:
        self.wait()
        thread = threading.Thread(target=try_devices, name="trireme-canary", daemon=True)
        self._trying = thread
        start_thread(thread)
