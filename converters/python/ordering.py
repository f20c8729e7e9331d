"""Compare, choose and sort values of a captured program as Python does, where a run decides.

`item_calls.py` builds min, max and sorted from these; `expressions.py` compares lists with them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trireme.converters.python.control import Refused, described
from trireme.converters.python.dtypes import common, is_weak, to_type, typed
from trireme.converters.python.lifting import contains_traced, where
from trireme.converters.python.lists import items_of
from trireme.converters.python.numpy_calls import in_order
from trireme.converters.python.python_calls import truth
from trireme.converters.python.scope import Recorder, Traced
from trireme.converters.python.state import is_numeric, is_same, like, parts_of, shape_of
from trireme.runtime.eager.operands import cast

Operator = Callable[[Any, Any], Any]
Operate = Callable[[Operator, Any, Any], Any]
"""Returns an operator of two values, recorded."""


def compared(recorder: Recorder, operate: Operate, op: Operator, a: Any, b: Any) -> Any:
    """Return whether two values compare so: sequences by their first parts that differ.

    op: an operator of Python, as operator.lt
    """
    both = isinstance(a, (list, tuple)) and isinstance(b, (list, tuple))
    if not both:
        return truth(recorder, operate(op, a, b))
    same_kind = isinstance(a, list) == isinstance(b, list)
    if op in (operator.eq, operator.ne) and (not same_kind or len(a) != len(b)):
        return op is operator.ne
    if not same_kind:
        raise Refused("a list is compared with a tuple")
    found: Any = op(len(a), len(b))
    for x, y in reversed(list(zip(a, b, strict=False))):
        same = compared(recorder, operate, operator.eq, x, y)
        if op in (operator.eq, operator.ne):
            differ = op is operator.ne
        else:
            differ = same is True or compared(recorder, operate, op, x, y)
        found = chosen(recorder, same, found, differ)
    return found


def chosen(recorder: Recorder, condition: Any, a: Any, b: Any) -> Any:
    """Return a where a condition holds, else b; of containers part by part.

    Errors: Refused, if no tensor holds both
    """
    if not isinstance(condition, Traced):
        return a if condition else b
    if is_same(a, b):
        return a
    form = shape_of(a)
    if form is not None and form == shape_of(b):
        others = dict(parts_of(b))
        return like(a, {k: chosen(recorder, condition, x, others[k]) for k, x in parts_of(a)})
    if not is_numeric(a) or not is_numeric(b):
        raise Refused(f"{described(a)} or {described(b)} is taken, and only a run knows which")
    (first, _), (second, _) = both = typed(a), typed(b)
    if first.shape != second.shape:
        raise Refused(f"{first} or {second} is taken; they need one shape")
    found = common(*both)
    if found is None:  # a whole number or a real one: as arithmetic has them side by side
        return where(recorder, condition, a, b)
    values = [to_type(recorder, one, found[0].dtype) for one in (a, b)]
    return replace(where(recorder, condition, *values), weak=found[1])


def replaced(recorder: Recorder, items: list[Any], place: Traced, value: Any) -> list[Any]:
    """Return a list with the item at a place that only a run knows replaced.

    Errors: Refused, if the items are no numbers
    """
    count = len(items)
    if not all(map(is_numeric, [*items, value])):
        raise Refused("a list of other than numbers is changed at a place that only a run knows")
    at = where(recorder, place < 0, place + count, place)
    return [chosen(recorder, at == i, value, old) for i, old in enumerate(items)]


def order_of(recorder: Recorder, keys: Sequence[Any], reverse: bool) -> Any:
    """Return the places of keys in ascending order, ties in their order: a tensor, or a list.

    Errors: Refused, if the keys are no numbers, nor tuples of as many numbers
    """
    if not contains_traced(list(keys)):
        return sorted(range(len(keys)), key=keys.__getitem__, reverse=reverse)
    if reverse:  # ties stay in their order, so the keys are sorted from behind
        backward = order_of(recorder, keys[::-1], False)
        return (len(keys) - 1 - backward)[::-1]
    if all(isinstance(key, tuple) and len(key) == len(keys[0]) for key in keys):
        order: Any = np.arange(len(keys))
        for column in reversed(list(zip(*keys, strict=True))):  # the last part decides least
            order = recorder.lift(order)[
                _sorted_places(recorder, items_of(recorder, column)[order])
            ]
        return order
    return _sorted_places(recorder, keys)


def _sorted_places(recorder: Recorder, keys: Any) -> Any:
    column = keys if isinstance(keys, Traced) else items_of(recorder, keys)
    if column.ndim != 1:
        raise Refused(f"rows of {column.type} are sorted")
    column = cast(column, np.dtype(np.int64)) if column.dtype.kind == "b" else column
    return in_order(column, 0)[1]


def taken(recorder: Recorder, items: Sequence[Any], order: Any) -> list[Any]:
    """Return items in an order that only a run knows."""
    if not isinstance(order, Traced):
        return [items[i] for i in order]
    forms = {shape_of(one) for one in items}
    if forms != {None} and len(forms) == 1:
        columns = {
            key: taken(recorder, [dict(parts_of(one))[key] for one in items], order)
            for key, _ in parts_of(items[0])
        }
        return [
            like(items[0], {key: column[i] for key, column in columns.items()})
            for i in range(len(items))
        ]
    if not all(map(is_numeric, items)):
        raise Refused("items that are no numbers come in an order that only a run knows")
    weak = all(map(is_weak, items))
    column = items_of(recorder, items)[order]
    return [replace(column[i], weak=weak) for i in range(len(items))]
