"""The errors trireme raises: one tree, each message a sentence with the facts and at most one fix.

Every stage raises the class of its own name where the names of the things involved are known;
callers add context outward with `raise ... from`. The command line maps the classes to exit codes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Self


class TriremeError(Exception):
    """Base of all errors: a summary line, then facts, then at most one fix.

    Printed as

        summary
          fact
          fix: what to do

    device: the device that it came from, "" where that is not known or matters to nobody
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
        """Return the error, which came from a device, unless it is known to be another's."""
        self.device = self.device or device
        return self


class ConvertError(TriremeError):
    """A model holds something that the converter cannot express."""


class ModelFileError(TriremeError):
    """A file is not what it claims to be: truncated, damaged, hostile or of another kind."""


class GraphError(TriremeError):
    """A graph breaks a rule: an unknown op or attribute, a value used before it is made."""


class ShapeError(GraphError):
    """Shapes or dtypes of a node's inputs do not fit its op."""


class PlacementError(TriremeError):
    """Some node can run on none of the devices asked for, or a pin cannot be honoured."""


class PlanError(TriremeError):
    """A placement cannot be turned into tasks and memory (an unknown shape, short memory)."""


class CompileError(TriremeError):
    """A device could not turn its part of the plan into code."""


class DeviceError(TriremeError):
    """A device cannot be opened, or failed while it worked."""


class RunError(TriremeError):
    """A run was asked for with inputs that do not fit, or on a closed session."""


class InternalError(TriremeError):
    """An invariant of trireme itself is broken; please report it with the model."""


_LONGEST_WORD, _LONGEST_LINE = 240, 2000


def shortened(message: str) -> str:
    """Return a message with the middle of its longest words and lines left out.

    Names of files, values and nodes are as long as whoever chose them liked.
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
    """Mark the errors that come out as a device's; what is none of ours becomes a DeviceError.

    doing: what the device is asked for, to end the sentence "npu failed to ..."
    """
    try:
        yield
    except TriremeError as error:
        error.of_device(device)
        raise
    except Exception as error:
        raise DeviceError(f"{device} failed to {doing}: {error}").of_device(device) from error
