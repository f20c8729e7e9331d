"""What to change in an array that does not fit its input: its axes, its dtype, or the batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from math import prod

from trireme.ir.graph import Dim, Value
from trireme.support.dtypes import Array, dtype_name

_IMAGES = (0, 3, 1, 2), (0, 2, 3, 1)
"""Channels moved first, and last."""
_MOST_RANK = 4


def feed_fix(value: Value, array: Array) -> str:
    """Return the fix of an array `x` that does not fit an input; "" where no change is obvious."""
    shape, wanted = array.shape, value.type.shape
    moved = _moved(shape, wanted)
    if moved is None:
        if shape[1:] and wanted[:1] == (1,) and _fits(shape[1:], wanted[1:]):
            return f"open the session with batch={shape[0]}, or run one of the {shape[0]} at a time"
        return ""
    cast = "" if dtype_name(array.dtype) == value.dtype else f".astype({value.dtype!r})"
    return f"x{moved}{cast}" if moved or cast else ""


def _fits(shape: Sequence[int], wanted: Sequence[Dim]) -> bool:
    return len(shape) == len(wanted) and all(
        not isinstance(dim, int) or dim == size for size, dim in zip(shape, wanted, strict=True)
    )


def _moved(shape: tuple[int, ...], wanted: tuple[Dim, ...]) -> str | None:
    """Return what gives an array the shape, as Python behind its name; None where it is unclear."""
    if _fits(shape, wanted):
        return ""
    if _fits((1, *shape), wanted):
        return "[None]"
    if shape[:1] == (1,) and _fits(shape[1:], wanted):
        return "[0]"
    if len(shape) == len(wanted) <= _MOST_RANK:
        orders = [one for one in permutations(range(len(shape))) if _fits(_in(shape, one), wanted)]
        orders = [one for one in _IMAGES if one in orders] or orders
        if len(orders) == 1:
            return f".transpose{orders[0]}"
    fixed = [dim for dim in wanted if isinstance(dim, int)]
    if len(fixed) == len(wanted) and prod(fixed) == prod(shape):
        return f".reshape({', '.join(map(str, fixed))})"
    return None


def _in(shape: tuple[int, ...], order: Sequence[int]) -> tuple[int, ...]:
    return tuple(shape[axis] for axis in order)
