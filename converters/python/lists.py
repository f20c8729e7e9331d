"""Lists of Python as tensors of their items: an item at a place that a run decides, and `+`.

A list of the program stays a list of Python as long as its length and its order are known.
`items_of` is what else becomes of one; `scope.RowList` is that value.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from trireme.converters.python.control import Refused
from trireme.converters.python.dtypes import as_weak
from trireme.converters.python.iteration import kind_of
from trireme.converters.python.lifting import (
    binary,
    contains_traced,
    leaves_of,
    lifted,
    side_by_side,
    weakly_alike,
)
from trireme.converters.python.scope import Recorder, RowList, Traced


def items_of(recorder: Recorder, items: Any) -> RowList:
    """Return the items of a list of Python side by side, as a list.

    A number of Python beside tensors takes their dtype, as a variable does that may be either.
    """
    if isinstance(items, RowList):
        return items
    if not items:
        return recorder.rows(recorder.lift(np.zeros(0, np.int64)))
    leaves = [recorder.lift(leaf) for leaf in leaves_of(items)]
    (first, *_) = weakly_alike(list({(one.dtype, one.weak): one for one in leaves}.values()))
    is_known = not contains_traced(items)
    made = (
        recorder.lift(np.asarray(items, first.dtype))
        if is_known
        else side_by_side(recorder, items, first.dtype)
    )
    return recorder.rows(as_weak(made, *leaves), depth_of(items))


def item_of(recorder: Recorder, item: Any) -> Traced:
    """Return an item of a list: a tensor, a number, or a list itself."""
    return items_of(recorder, item) if isinstance(item, (list, tuple)) else recorder.lift(item)


def depth_of(items: Any) -> int:
    """Return how many lists are one in the other."""
    if isinstance(items, RowList):
        return items.depth
    return 1 + depth_of(items[0]) if isinstance(items, (list, tuple)) and len(items) else 0


def joined_lists(recorder: Recorder, first: RowList, second: RowList) -> RowList:
    """Return a list with the items of two, in the dtype of both."""
    if not first.shape[0] or not second.shape[0]:
        return first if first.shape[0] else second
    parts = [replace(recorder.traced_like(one), weak=one.weak) for one in (first, second)]
    made = recorder.apply("concat", weakly_alike(parts), {"axis": 0})
    return recorder.rows(as_weak(made, first, second), first.depth)


def of_lists(
    recorder: Recorder, function: Callable[[Any, Any], Any], left: Any, right: Any
) -> Traced:
    """Return an operator of two values of which one is a list: numpy's, if the other is an array.

    Errors: Refused, if no graph can hold the result
    """
    pair = (left, right)
    is_list = [isinstance(one, (list, RowList)) for one in pair]
    if function is operator.add and all(is_list):
        return joined_lists(recorder, items_of(recorder, left), items_of(recorder, right))
    has_array = any(type(one) is Traced and bool(one.shape) for one in pair)
    if has_array and not any(isinstance(one, str) for one in pair):
        made: Traced = binary(function, lifted(recorder, left), lifted(recorder, right))
        return made
    raise Refused(
        f"{function.__name__} of a {kind_of(left)} and a {kind_of(right)}; "
        "np.array makes an array of a list"
    )
