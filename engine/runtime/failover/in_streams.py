"""Items of a stream that a device fails run on the plans without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trireme.backend.device import Device
from trireme.runtime.failover.failover import DeviceOut, Failover, Results
from trireme.runtime.failover.lost import lose
from trireme.support.errors import DeviceError, FaultKind


class StreamFailover:
    """The RunsAgain of a session without states.

    devices: of the session; memory: what the stream runs on
    finish: returns when no launch of the session is under way
    """

    def __init__(
        self,
        failover: Failover,
        devices: Mapping[str, Device],
        memory: object,
        finish: Callable[[], None],
    ) -> None:
        self._failover, self._devices, self._memory = failover, devices, memory
        self._finish = finish

    def check(self) -> None:
        """See RunsAgain."""
        out = self._failover.out
        if out:
            raise DeviceOut(f"{', '.join(sorted(out))} is out")

    def run(self, error: BaseException, feeds: Mapping[str, Any]) -> Results | None:
        """See RunsAgain."""
        if not self._failover.is_fault(error):
            return None
        if isinstance(error, DeviceError) and error.kind is FaultKind.HANG:
            lose(self._devices, error, self._memory)
        self._finish()
        return self._failover.run_again(error, feeds, None)
