"""The errors of trireme: one tree; each message is a sentence, the facts, and at most one fix.

Every stage raises the class of its own name, where it knows the names of the values involved.
Callers add context outward with `raise ... from`. The command line maps the classes to exit codes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Self


class TriremeError(Exception):
    """Base of all errors: a summary line, then facts, then at most one fix.

    Printed as

        summary
          fact
          fix: what to do

    device: the device that caused the error, "" where that is unknown or irrelevant
    """

    device: str = ""

    def __init__(self, summary: str, *, facts: Iterable[str] = (), fix: str = "") -> None:
        self.summary = summary
        self.facts = tuple(facts)
        self.fix = fix
        lines = [summary, *(f"  {fact}" for fact in self.facts)]
        if fix:
            lines.append(f"  fix: {fix}")
        super().__init__(shortened("\n".join(lines)))

    def of_device(self, device: str) -> Self:
        """Return the error with its device set, unless it already has one."""
        self.device = self.device or device
        return self


class ConvertError(TriremeError):
    """A model holds an op, attribute or type that the converter cannot express."""


class BranchError(ConvertError):
    """One branch of an `if` refuses the shapes that are given; the other takes them."""


class ModelFileError(TriremeError):
    """A file is truncated, damaged, hostile or of another kind."""


class GraphError(TriremeError):
    """A graph breaks a rule: an unknown op or attribute, a value used before it is made."""


class ShapeError(GraphError):
    """Shapes or dtypes of a node's inputs do not fit its op."""


class BranchShapeError(BranchError, ShapeError):
    """One branch of an `if` of a graph refuses the shapes that are given; the other takes them.

    node, branch: the `if`, by id, and the name of the branch; -1 where an inner `if` has it
    """

    node: int = -1
    branch: str = ""


class PlacementError(TriremeError):
    """Some node can run on none of the devices asked for, or on no device that its pin allows."""


class PlanError(TriremeError):
    """A placement cannot be turned into tasks and memory (an unknown shape, short memory)."""


class CompileError(TriremeError):
    """A device could not turn its part of the plan into code."""


class FaultKind(StrEnum):
    """The kind of a device's fault. UNKNOWN is any error whose cause the device did not tell."""

    UNKNOWN = "unknown"
    UNAVAILABLE = "unavailable"
    COMPILE_FAILED = "compile failed"
    OUT_OF_MEMORY = "out of memory"
    LAUNCH_FAILED = "launch failed"
    WAIT_FAILED = "wait failed"
    CHECKSUM = "checksum"
    HANG = "hang"
    LOST = "lost"


class DeviceError(TriremeError):
    """A device cannot be opened, or failed while it worked.

    kind: what failed
    node: the first node of the task that failed, "" where no task did
    causes: where a run was tried on several devices, the error of each, the first try first
    """

    kind: FaultKind = FaultKind.UNKNOWN
    node: str = ""
    causes: tuple[TriremeError, ...] = ()

    def of_kind(self, kind: FaultKind) -> Self:
        """Return the error with its kind set, unless it already has one."""
        if self.kind is FaultKind.UNKNOWN:
            self.kind = kind
        return self

    def at_node(self, node: str) -> Self:
        """Return the error with its node set, unless it already has one."""
        self.node = self.node or node
        return self


class RunError(TriremeError):
    """A run's inputs do not fit, or its session is closed."""


class FeedError(RunError):
    """Feeds are missing, or of no input.

    unknown: the names that are of no input
    """

    unknown: tuple[str, ...]

    def __init__(
        self, summary: str, *, unknown: Iterable[str], facts: Iterable[str] = (), fix: str = ""
    ) -> None:
        super().__init__(summary, facts=facts, fix=fix)
        self.unknown = tuple(unknown)


class CancelledError(RunError):
    """A request was cancelled; it never began, or stopped between two tasks."""


class DeadlineError(RunError):
    """A request's deadline passed while it waited or ran."""


class QueueFullError(RunError):
    """A queue holds as many requests as it may; the request was not taken."""


class InternalError(TriremeError):
    """An invariant of trireme itself is broken; please report it with the model."""


_LONGEST_WORD, _LONGEST_LINE = 240, 2000


def shortened(message: str) -> str:
    """Return a message with the middle of its longest words and lines left out.

    Users choose the names of files, values and nodes, so names can have any length.
    """
    if len(message) <= _LONGEST_WORD:
        return message
    return "\n".join(map(_shortened_line, message.split("\n")))


def _shortened_line(line: str) -> str:
    words = (_without_middle(word, _LONGEST_WORD) for word in line.split(" "))
    return _without_middle(" ".join(words), _LONGEST_LINE)


def _without_middle(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}...({len(text) - 2 * half} characters)...{text[-half:]}"


@contextmanager
def from_device(device: str, doing: str) -> Iterator[None]:
    """Set the device of trireme's errors in the block; turn any other exception into a DeviceError.

    doing: the attempted action, which ends the sentence "npu failed to ..."
    """
    try:
        yield
    except TriremeError as error:
        error.of_device(device)
        raise
    except Exception as error:
        found = DeviceError(f"{device} failed to {doing}: {error}").of_device(device)
        if isinstance(error, MemoryError):
            found.of_kind(FaultKind.OUT_OF_MEMORY)
        raise found from error
