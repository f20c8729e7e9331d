"""Rules of running maxima, minima and sums of exponentials along an axis of known length.

Each round combines every element with the one 1, 2, 4, ... places before, so that n elements take
log2(n) rounds. Source: Hillis and Steele, "Data parallel algorithms", 1986
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trireme.converters.torch.use import Use
from trireme.support.dtypes import FLOATS, numpy_dtype

Combine = Callable[[Use, Sequence[int], Sequence[int]], Sequence[int]]


def _scan(use: Use, values: Sequence[int], combine: Combine) -> Sequence[int]:
    """Return `values` with every element combined with all elements before it."""
    axis = use.axis("dim", use.rank(values[0]))
    size = use.shape_of("self")[axis]
    if not isinstance(size, int):
        raise use.error(f"{use.node.target} along an open dimension is not supported")
    step, axes = 1, use.ints(axis)
    while step < size:
        parts = ((0, size - step), (step, size), (0, step))
        before, after, first = (
            [use.add("slice", v, use.ints(a), use.ints(b), axes, use.ints(1)) for v in values]
            for a, b in parts
        )
        rest = combine(use, before, after)
        values = [use.add("concat", a, b, axis=axis) for a, b in zip(first, rest, strict=True)]
        step *= 2
    return values


def _later_wins(op: str) -> Combine:
    """Return how two elements and their places combine; of equal ones the later place stays."""

    def combine(use: Use, before: Sequence[int], after: Sequence[int]) -> Sequence[int]:
        wins = use.add(op, after[0], before[0])
        if use.dtype in FLOATS:  # a NaN wins and stays
            wins = use.add("or", wins, use.add("is_nan", after[0]))
            is_number = use.add("not", use.add("is_nan", before[0]))
            kept = use.add("or", is_number, use.add("is_nan", after[0]))
            wins = use.add("and", wins, kept)
        return [use.add("where", wins, b, a) for a, b in zip(before, after, strict=True)]

    return combine


def extreme(op: str) -> Any:
    """Return the rule of cummax or cummin: values and places."""

    def rule(use: Use) -> tuple[int, ...]:
        x, rank = use["self"], use.rank(use["self"])
        if not rank:
            return x, use.constant(0, "int64")
        axis = use.axis("dim", rank)
        size = use.shape_of("self")[axis]
        if not isinstance(size, int):
            raise use.error(f"{use.node.target} along an open dimension is not supported")
        places = np.arange(size).reshape([-1 if k == axis else 1 for k in range(rank)])
        spread = use.add("expand", use.constant(places, "int64"), use.add("shape", x))
        values, found = _scan(use, (x, spread), _later_wins(op))
        return values, found

    return rule


def log_cum_sum_exp(use: Use) -> int:
    """logcumsumexp: log(e^a + e^b) is max + log(1 + e^(min - max)), which cannot overflow."""
    x = use["self"]
    if not use.rank(x):
        return int(x)
    return _scan(use, (x,), _log_add_exp)[0]


def _log_add_exp(use: Use, before: Sequence[int], after: Sequence[int]) -> Sequence[int]:
    most, least = (use.add(op, before[0], after[0]) for op in ("max", "min"))
    limit = use.constant(np.finfo(numpy_dtype(use.dtype)).min, use.dtype)
    apart = use.add("sub", least, use.add("max", most, limit))  # -inf from -inf is no number
    one = use.constant(1, use.dtype)
    return [use.add("add", most, use.add("log", use.add("add", one, use.add("exp", apart))))]


RUNNING: dict[str, Any] = {
    "cummax": extreme("greater_or_equal"),
    "cummin": extreme("less_or_equal"),
    "logcumsumexp": log_cum_sum_exp,
}
