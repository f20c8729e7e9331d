"""Hold one version of a repository: the model that serves, its users, and its state.

The repository's lock guards every field of a slot and the counts of a Hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from trireme.serving.layout import ModelFile, Stamp
from trireme.serving.models import ModelStatus, ServedModel

State = Literal["READY", "LOADING", "UNAVAILABLE"]


class ClosableModel(ServedModel, Protocol):
    """A model that its repository closes."""

    def close(self) -> None:
        """End what it has under way, and give its memory back."""
        ...


class Hold:
    """A model that serves, and how many leases hold it open.

    is_retired: whether another took its place, so that the last lease closes the model
    """

    __slots__ = ("is_retired", "leases", "model", "stamp")

    def __init__(self, model: ClosableModel, stamp: Stamp) -> None:
        self.model, self.stamp = model, stamp
        self.leases, self.is_retired = 0, False


@dataclass
class VersionSlot:
    """One version of a model.

    hold: what serves; it stays when a newer file of the same version does not load
    failed: the stamp of the file that did not load, which is not tried again
    reason: why it did not load, or why it is out of service
    """

    file: ModelFile
    hold: Hold | None = None
    is_loading: bool = False
    failed: Stamp | None = None
    reason: str = ""

    @property
    def is_current(self) -> bool:
        """Whether the file, as it is now, serves."""
        return self.hold is not None and self.hold.stamp == self.file.stamp

    @property
    def status(self) -> ModelStatus:
        """The row of the index."""
        state: State = "UNAVAILABLE"
        reason = self.reason
        if self.hold is not None:
            state = "READY"
            reason = f"the earlier file serves on: {reason}" if reason else ""
        elif self.is_loading:
            state, reason = "LOADING", ""
        return ModelStatus(self.file.name, str(self.file.version), state, reason)
