"""What a session does about devices that fail, hang and are passed over.

A session without failover, such as a region of open shapes, gives hangs up and repeats nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trireme.support.fault_events import EventLog

if TYPE_CHECKING:
    from threading import Lock

    from trireme.runtime.models.failover import Failover, StreamFailover
    from trireme.runtime.program.contexts import ContextQueue
    from trireme.runtime.states.held import TiedStates
    from trireme.support.dtypes import Array
    from trireme.support.errors import DeviceError


class SessionFaults:
    """The faults of a session's devices. It is the CallersTurns of the session's runs.

    log: the faults so far; failover: runs without a device; None where no run is repeated
    is_watched: whether each run begins with `begin`
    """

    def __init__(self, contexts: ContextQueue) -> None:
        self.log, self._contexts = EventLog(), contexts
        self.failover: Failover | None = None
        self.is_watched = False

    def refresh(self) -> None:
        """Ask the failover whether each run has to begin with it."""
        self.is_watched = self.failover is not None and self.failover.watches

    def begin(self) -> None:
        """Errors: DeviceOut, if a device is passed over"""
        if self.is_watched and self.failover is not None:
            self.failover.begin()

    def run_again(
        self,
        error: BaseException,
        feeds: Mapping[str, Any],
        out: Mapping[str, Array] | None,
        tied: TiedStates | None,
    ) -> dict[str, Array] | None:
        """After an error: return the outputs of a run on other devices, None where there is none.

        Nothing of the run that failed is under way then.
        tied: of the session; the other plans have variables where it has variables, not outputs
        Errors: DeviceError with all causes, if other devices fail too
        """
        failover = self.failover
        if failover is None or not failover.is_fault(error):
            return None
        from trireme.runtime.loop.watchdog import holding_turn

        with holding_turn(self):
            if tied is None or not tied.are_variables:
                return failover.run_again(error, feeds, out)
            out, asked = tied.outputs_asked(out)
            return tied.keep(failover.run_again(error, feeds, out), asked)

    def in_stream(self, finish: Callable[[], None]) -> StreamFailover | None:
        """Return what runs items of a stream again; None where nothing does."""
        if self.failover is None:
            return None
        from trireme.runtime.models.failover import StreamFailover

        return StreamFailover(self.failover, finish)

    def close(self) -> None:
        """Close the sessions on other devices."""
        if self.failover is not None:
            self.failover.close()

    def leave_turn(self, hung: DeviceError) -> None:
        """See CallersTurns. A session without failover is a region or a plan of one that has it."""
        if self.failover is not None:
            self.failover.note_hang(hung)
        self._contexts.release(self._contexts.lock)

    @property
    def turn(self) -> Lock:
        """See CallersTurns."""
        return self._contexts.lock

    def begin_turn(self) -> None:
        """See CallersTurns."""
        if self.failover is not None:
            self.failover.save()
