"""Run again without the device that failed.

A session with `fallback=True` and several devices has a `Failover`. A run that a device fails is
repeated from its inputs, which are the last boundary that is always intact: nothing writes into
feeds, and states are put back. The plan without the device is made at the first fault and kept.
So a session pays nothing for plans that it may never need; `prepare` makes them earlier. Where the
other devices succeed, all later runs of the session go to them at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from trireme.backend.device import HOST, Device
from trireme.ir.effects import States
from trireme.ir.graph import Graph
from trireme.ir.op import get_op
from trireme.ir.selectors import unpinned
from trireme.ops.repeats import bodies_of
from trireme.support.dtypes import Array
from trireme.support.errors import (
    CompileError,
    DeviceError,
    PlanError,
    TriremeError,
)
from trireme.support.fault_events import Action, EventLog, event_of, fault_kind
from trireme.support.forks import register_at_fork

if TYPE_CHECKING:
    from trireme.backend.device import Progress
    from trireme.placement.options import PlacementOptions
    from trireme.profiling.profile import Profile
    from trireme.runtime.models.arguments import SessionArguments
    from trireme.runtime.models.prepare import Prepared
    from trireme.runtime.program.options import ExecutionOptions


_log = logging.getLogger(__name__)
Made = TypeVar("Made")
Results = dict[str, Array]
_FAULTS = (CompileError, DeviceError, PlanError)
"""Errors that a device can cause in a run: with open shapes, a run may compile and plan."""


class FallbackSession(Protocol):
    """A session on the devices that are left."""

    @property
    def states(self) -> States:
        """The variables by name."""

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

    devices: those that a plan may have, by name
    open_on: opens a session on some of them
    states: of the session; writes: whether runs may leave them half written
    on_change: called, on any thread, when a device is out from now on
    out: those that failed, which runs pass over, but never all; replaced, never changed, so that
        readers need no lock
    """

    def __init__(
        self,
        devices: Sequence[str],
        open_on: Callable[[Sequence[str]], FallbackSession],
        states: States,
        writes: bool,
        log: EventLog,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.devices = tuple(devices)
        self._open_on, self._log, self._on_change = open_on, log, on_change
        self._states, self._writes = states, writes
        self.out: frozenset[str] = frozenset()
        self._plans: dict[tuple[str, ...], FallbackSession] = {}
        self._saved: Mapping[str, Array] | None = None
        self._closed = False
        self.reset_after_fork()
        register_at_fork(self)

    def reset_after_fork(self) -> None:
        """Be free in a forked child."""
        self._lock, self._taking_out = threading.RLock(), threading.Lock()

    @property
    def watches(self) -> bool:
        """Whether `begin` is to be called of each run."""
        return self._writes or bool(self.out)

    def begin(self) -> None:
        """Prepare for a run on all devices.

        Errors: DeviceOut, if a device is out; `run_again` then runs on the others
        """
        self.save()
        self.check()

    def check(self) -> None:
        """Errors: DeviceOut, if a device is out"""
        if self.out:
            raise DeviceOut(f"{', '.join(sorted(self.out))} is out")

    def save(self) -> None:
        """Keep the states that a run may leave half written."""
        if self._writes:
            self._saved = self._states.saved()

    def note_hang(self, hung: DeviceError) -> None:
        """Note a run that hangs on its caller's thread, so that others go on without its device."""
        self._restore()
        self._report([hung], (), "hangs")
        self._take_out([hung])

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
        return self.do_again(error, lambda session: session.run(feeds, out))

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
            self._take_out(causes)
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

    def close(self) -> None:
        """Close the plans."""
        self._closed = True
        with self._lock:
            plans, self._plans = list(self._plans.values()), {}
        for plan in plans:
            plan.close()

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
        """Say what became of the faults of a run.

        Causes without a device of the session are refusals, not faults.
        """
        for cause in causes:
            if cause.device in self.devices:
                self._log.add(event_of(cause, "ran again" if to else action, to))

    def _take_out(self, causes: Iterable[TriremeError]) -> None:
        """Have later runs pass over the devices that failed, unless none would be left."""
        failed = {cause.device for cause in causes}.intersection(self.devices)
        with self._taking_out:
            out = self.out | failed
            if out == self.out or out >= set(self.devices):
                return
            self.out = out
        self._on_change()

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


def kept_apart(feeds: Any, out: Any) -> Any:
    """Return feeds with copies of those that share memory with `out`.

    A run that fails may have written `out`, and begins again from its feeds. What is no mapping is
    returned as it is, for the run to refuse.
    """
    if not isinstance(feeds, Mapping) or not isinstance(out, Mapping):
        return feeds
    given = [array for array in out.values() if isinstance(array, np.ndarray)]
    return {name: fed.copy() if _shares_memory(fed, given) else fed for name, fed in feeds.items()}


def _shares_memory(fed: Any, given: Sequence[Array]) -> bool:
    is_array = isinstance(fed, np.ndarray)
    return is_array and any(np.may_share_memory(fed, array) for array in given)


class StreamFailover:
    """Runs items of a stream again without the devices that failed; a stream has no states.

    finish: returns when no launch of the session is under way
    """

    def __init__(self, failover: Failover, finish: Callable[[], None]) -> None:
        self._failover, self._finish = failover, finish

    def check(self) -> None:
        """Errors: DeviceOut, if an item is not to begin because a device is passed over"""
        self._failover.check()

    def run(self, error: BaseException, feeds: Mapping[str, Any]) -> Results | None:
        """Return the outputs of an item that failed; None where its error is no device's."""
        if not self._failover.is_fault(error):
            return None
        self._finish()
        return self._failover.run_again(error, feeds, None)


def open_failover(
    open_session: Callable[..., FallbackSession],
    arguments: SessionArguments,
    prepared: Prepared,
    devices: Mapping[str, Device],
    how: tuple[ExecutionOptions, PlacementOptions],
    log: EventLog,
    on_change: Callable[[], None],
) -> Failover | None:
    """Return the failover of a session; None where no device can be done without.

    devices: those that the session runs on, the host device that it may have added too
    how: its options of execution and of placement; a fixed placement has no say without a device
    on_change: see Failover
    """
    names = [name for name in devices if name != HOST or _asked_for_host(arguments)]
    if len(names) < 2:
        return None
    execution = replace(how[0], passes=(), passes_off=(), signature=None, optional_inputs=())
    placement = replace(how[1], pins={}, fixed=None)
    has_variables = prepared.tied is not None and prepared.tied.are_variables

    def open_on(left: Sequence[str]) -> FallbackSession:
        kept = [one for name, one in devices.items() if name in left or name not in names]
        opened = open_session(
            unpinned(prepared.graph, set(names) - set(left)),
            devices=kept,
            mode=arguments.mode,
            calibration=prepared.calibration,
            states=None if has_variables else arguments.states,
            buckets=arguments.buckets,
            placement_options=placement.without(set(names) - set(left)),
            execution_options=execution,
        )
        opened.watch_tasks()
        return opened

    writes = _writes_states(prepared.graph)
    return Failover(names, open_on, prepared.states, writes, log, on_change)


def _asked_for_host(arguments: SessionArguments) -> bool:
    given = arguments.devices or ()
    return any((one if isinstance(one, str) else one.spec.name) == HOST for one in given)


def _writes_states(graph: Graph) -> bool:
    """Whether a run can leave states of the graph, or of a body in it, half written."""
    return any(
        get_op(node.op).effect or any(map(_writes_states, bodies_of(node).values()))
        for node in graph.nodes
    )
