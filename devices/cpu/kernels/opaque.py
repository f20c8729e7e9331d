"""Functions of sizes that searches make, as a recording of a step's sizes calls them.

compile/recording.py runs `Step.size` with numbers that note what is done to them. A
search compares too much for that: `opaque` notes the call instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class _Recording(Protocol):
    def call(
        self, function: Callable[..., tuple[int, ...]], arguments: tuple[float, ...]
    ) -> tuple[int, ...]:
        """Note a call."""


class OpaqueNumber:
    """A number that notes what is done to it."""

    __slots__ = ()

    recording: _Recording


def opaque(function: Callable[..., tuple[int, ...]], *arguments: float) -> tuple[int, ...]:
    """Return what a function of numbers returns; a recording notes the call alone."""
    for number in arguments:
        if isinstance(number, OpaqueNumber):
            return number.recording.call(function, arguments)
    return function(*arguments)
