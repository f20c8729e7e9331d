"""Items of a stream that a device fails run on the plans without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trireme.runtime.failover.failover import Failover, Results


class StreamFailover:
    """The RunsAgain of a session without states.

    finish: returns when no launch of the session is under way
    """

    def __init__(self, failover: Failover, finish: Callable[[], None]) -> None:
        self._failover, self._finish = failover, finish

    def check(self) -> None:
        """See RunsAgain."""
        self._failover.check()

    def run(self, error: BaseException, feeds: Mapping[str, Any]) -> Results | None:
        """See RunsAgain."""
        if not self._failover.is_fault(error):
            return None
        self._finish()
        return self._failover.run_again(error, feeds, None)
