"""What calls, events and devices can do beyond the contract: declared here, and asked for by type.

A call has a capability by having its method. The functions at the end answer for calls that do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from trireme.backend.device import BoundCall, Device, Event
from trireme.ir.effects import States

Rebind = Callable[[int], None]
"""Moves one argument of a call to another address, for the launches that follow."""


@runtime_checkable
class DirectCall(Protocol):
    """A call that runs without an event, for work of some microseconds."""

    def run(self) -> None:
        """Do what `launch().wait()` does."""


@runtime_checkable
class RebindableCall(Protocol):
    """A call whose inputs and outputs in host memory can be moved."""

    def rebind(self, argument: int) -> Rebind | None:
        """Return what moves an argument (in the order of `bind`); None where it must stay."""


@runtime_checkable
class ThreadedCall(Protocol):
    """A call of a device that may run with or without its further threads."""

    def use_single_thread(self, alone: bool | None) -> bool:
        """Let further launches run without the device's other threads (True) or with them (False);
        None lets the device find out which is faster. Return whether there is a choice.
        """


@runtime_checkable
class IdlingCall(Protocol):
    """A call of a device whose threads look for more work for a while after a launch."""

    def set_idle(self, sleeps: bool) -> None:
        """Let idle threads sleep as soon as a launch is over (True), as another device then needs
        their cores, or look for more work for a while (False).
        """


@runtime_checkable
class SimulatedCall(Protocol):
    """A call of a simulator, which can put back a result instead of making it again."""

    def repeat(self, repeats: bool) -> None:
        """Have the next launch simulate, and those behind it put back what that one made (True),
        for runs with the same inputs; or have every launch simulate (False).
        """


@runtime_checkable
class QueuedCall(Protocol):
    """A call that its device can start by itself, once events of the same driver queue are over.

    driver_queue: what such calls and events have in common, compared by identity: a driver's
        context. Calls of one device or link and one driver queue run in the order in which they are
        launched. None: the call is not queued
    """

    driver_queue: object

    def launch(self, profile: bool = False, after: Sequence[Event] = ()) -> Event:
        """Return without waiting; the work starts when `after` is over.

        after: QueuedEvents of this driver queue
        """


@runtime_checkable
class QueuedEvent(Protocol):
    """An event of a driver queue: calls and copies of the queue can be started behind it.

    driver_event: what the driver knows it by; an event that wraps another has that one's
    """

    driver_event: object


@runtime_checkable
class StateKeeper(Protocol):
    """A device on which `variable` and `assign` find their arrays."""

    states: States


def states_of(device: Device | None) -> States | None:
    """Return the states that a device keeps, None for a device that keeps none."""
    return device.states if isinstance(device, StateKeeper) else None


def driver_queue_of(call: BoundCall) -> object | None:
    """Return the driver queue of a call, None where its launches must be waited for one by one."""
    return call.driver_queue if isinstance(call, QueuedCall) else None


def runner_of(call: BoundCall) -> Callable[[], None]:
    """Return what launches a call and waits for it."""
    return call.run if isinstance(call, DirectCall) else lambda: call.launch().wait()


def rebind_of(call: BoundCall, argument: int) -> Rebind | None:
    """Return what moves an argument of a call; None where it must stay."""
    return call.rebind(argument) if isinstance(call, RebindableCall) else None
