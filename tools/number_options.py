"""Types of numeric options: each says which numbers it takes, and refuses others in one sentence.

argparse calls a type with the option's text and prints its error behind the option's name.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

from trireme.support.limits import MOST_THREADS

MOST = 1_000_000
"""Of what an option counts: runs, rounds, classes."""
MOST_SEED = 2**63 - 1
DAY_S = 86_400.0


def whole(least: int = 1, most: int = MOST) -> Callable[[str], int]:
    """Return the type of a whole number from `least` to `most`."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise _refused(text, f"a whole number from {least} to {most:,}")
        return number

    return parse


def seconds(text: str) -> float:
    """Return a time of more than 0 s and at most a day."""
    number = _real(text)
    if not 0 < number <= DAY_S:
        raise _refused(text, f"seconds, more than 0 and at most {DAY_S:,.0f}")
    return number


def number_or_none(text: str) -> float:
    """Return a finite number of 0, which leaves something out, or more."""
    number = _real(text)
    if not 0 <= number < math.inf:
        raise _refused(text, "a number of 0 or more")
    return number


_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def duration(text: str) -> float:
    """Return a time with its unit, 50ms or 200us or 1.5s, in seconds; more than 0."""
    unit = next((unit for unit in _UNITS if text.endswith(unit)), "")
    number = _real(text.removesuffix(unit)) * _UNITS.get(unit, math.nan)
    if not 0 < number <= DAY_S:
        raise _refused(text, "a time with its unit, such as 50ms")
    return number


def positive(text: str) -> float:
    """Return a number of more than 0."""
    number = _real(text)
    if not 0 < number < math.inf:
        raise _refused(text, "a number of more than 0")
    return number


def relative(text: str) -> float:
    """Return a difference relative to the largest value, from 0 to 1."""
    number = _real(text)
    if not 0 <= number <= 1:
        raise _refused(text, "a number from 0 to 1")
    return number


def share(text: str) -> float:
    """Return a share given as 5% or 0.05."""
    number = _real(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 <= number < math.inf:
        raise _refused(text, "a share, such as 5% or 0.05")
    return number


def thread_list(text: str) -> tuple[int, ...]:
    """Return numbers of threads given as 1,2."""
    try:
        return tuple(whole(1, MOST_THREADS)(number) for number in text.split(","))
    except argparse.ArgumentTypeError:
        raise _refused(text, f"numbers of threads from 1 to {MOST_THREADS}, as in 1,2") from None


def _real(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _refused(text: str, expected: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"{text!r}: expected {expected}")
