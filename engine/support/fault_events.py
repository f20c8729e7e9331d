"""What became of the faults of devices, as typed events."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from trireme.support.errors import FaultKind

Action = Literal["left out", "ran again", "failed", "taken out", "brought back"]
"""What became of a device or of a run.

left out: the session opened without the device
ran again: the run went to other devices and succeeded there
failed: no other device could run it
taken out: further runs pass the device over
brought back: the device runs again
"""


@dataclass(frozen=True)
class FaultEvent:
    """A fault of a device, and what became of it.

    node: the first node of the task that failed, "" where no task did
    to: the devices that ran instead; error: the error's first line
    """

    device: str
    kind: FaultKind
    node: str
    action: Action
    to: tuple[str, ...] = ()
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the event as JSON has it."""
        return asdict(self)

    def __str__(self) -> str:
        at = f" at {self.node}" if self.node else ""
        to = f" on {', '.join(self.to)}" if self.to else ""
        said = f": {self.error}" if self.error else ""
        return f"{self.device} {_SAID[self.action]}{to} ({self.kind}{at}){said}"


_SAID: dict[Action, str] = {
    "left out": "is left out",
    "ran again": "failed, the run was repeated",
    "failed": "failed, and no other device could run",
    "taken out": "is taken out, runs go on",
    "brought back": "is back",
}
