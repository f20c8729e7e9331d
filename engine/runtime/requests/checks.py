"""Checks of the arguments of requests, quick enough for every request."""

from __future__ import annotations

import math

from trireme.support.errors import RunError


def checked_timeout(timeout_s: object) -> float | None:
    """Return seconds until a deadline. Errors: RunError, if they are no number from 0 on"""
    if timeout_s is None:
        return None
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float):
        raise RunError(f"timeout_s is a {type(timeout_s).__name__}, expected seconds or None")
    if not 0 <= timeout_s < math.inf:
        raise RunError(f"timeout_s is {timeout_s}, expected seconds from 0 on or None")
    return float(timeout_s)


def checked_priority(priority: object) -> int:
    """Return a priority. Errors: RunError, if it is no whole number"""
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise RunError(f"priority is {priority!r}, expected a whole number")
    return priority
