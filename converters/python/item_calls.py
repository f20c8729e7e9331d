"""Functions of Python that take items, or call a function for each: min, sorted, map and the like.

Each is called with the program that is being read, then with Python's arguments. `expressions.py`
reads the table where an argument depends on a tensor or is a function of the program.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from trireme.converters.python.control import Refused
from trireme.converters.python.iteration import Functions, Generated, is_open, kind_of
from trireme.converters.python.lifting import contains_traced, pair, where
from trireme.converters.python.ordering import chosen, compared, order_of, taken
from trireme.converters.python.python_calls import truth
from trireme.converters.python.scope import Recorder, RowList, Traced
from trireme.runtime.eager.eager import Tensor

_NOTHING = object()


class ItemReader(Protocol):
    """What a function needs of the program that is being read."""

    recorder: Recorder
    node: Any

    def items(self, values: Any, node: Any) -> list[Any]:
        """Return the items of a value whose number is known."""

    def call(self, function: Any, args: list[Any], named: dict[str, Any]) -> Any:
        """Return what a function returns."""

    def operate(self, function: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
        """Return an operator of two values."""


def _items(program: ItemReader, values: Any) -> list[Any]:
    return program.items(values, program.node)


def _extreme(
    op: Callable[[Any, Any], Any],
    reduction: str,
    program: ItemReader,
    *values: Any,
    key: Any = None,
    default: Any = _NOTHING,
) -> Any:
    """min and max: the first of the items that none is better than, as Python compares them."""
    recorder = program.recorder
    if len(values) == 1 and isinstance(values[0], Traced) and key is None:
        return _of_vector(recorder, reduction, values[0])
    items = _items(program, values[0]) if len(values) == 1 else list(values)
    if not items and default is not _NOTHING:
        return default
    if not items:
        raise Refused(f"{reduction} of nothing")
    keys = items if key is None else [program.call(key, [item], {}) for item in items]
    if key is None and all(map(_is_whole, items)):
        return functools.reduce(partial(pair, *_WHOLE[reduction], recorder), items)
    best, at = items[0], keys[0]
    for item, own in zip(items[1:], keys[1:], strict=True):
        better = compared(recorder, program.operate, op, own, at)
        best = chosen(recorder, better, item, best)
        at = best if key is None else chosen(recorder, better, own, at)
    return best


_WHOLE = {"min": (np.minimum, "min"), "max": (np.maximum, "max")}


def _is_whole(value: Any) -> bool:
    """Whether a value is a whole number, of which equal ones are the same."""
    kind = value.dtype.kind if isinstance(value, (Traced, np.generic)) else ""
    return type(value) is int or kind in "iu" and kind != "" and not value.shape


def _of_vector(recorder: Recorder, reduction: str, x: Traced) -> Any:
    """Return the least or greatest element; NaN at the beginning stays, and is passed over else."""
    if len(x.shape) != 1:
        raise Refused(f"{reduction} of {x.type}: Python compares its rows; use x.{reduction}()")
    whole = getattr(x, reduction)
    if x.dtype.kind != "f":
        return whole()
    worst = np.array(-np.inf if reduction == "max" else np.inf, x.dtype)
    numbers = where(recorder, x == x, x, worst)
    first = x[0]
    return where(recorder, first == first, getattr(numbers, reduction)(), first)


def _sorted(program: ItemReader, values: Any, *, key: Any = None, reverse: Any = False) -> Any:
    recorder = program.recorder
    if isinstance(reverse, Traced):
        raise Refused("only a run knows whether sorted() goes backward")
    if isinstance(values, Traced) and key is None and len(values.shape) == 1:
        found = program.call(np.sort, [recorder.traced_like(values)], {})
        return recorder.rows(found[::-1] if reverse else found)
    items = _items(program, values)
    keys = items if key is None else [program.call(key, [item], {}) for item in items]
    return taken(recorder, items, order_of(recorder, keys, bool(reverse)))


def _map(program: ItemReader, function: Any, *values: Any) -> list[Any]:
    columns = [_items(program, one) for one in values]
    return [program.call(function, list(row), {}) for row in zip(*columns, strict=False)]


def _filter(program: ItemReader, function: Any, values: Any) -> list[Any]:
    items = _items(program, values)
    tests = items if function is None else [program.call(function, [one], {}) for one in items]
    kept = [truth(program.recorder, one) for one in tests]
    if contains_traced(kept):
        raise Refused("filter keeps items by a tensor's value")
    return [item for item, keep in zip(items, kept, strict=True) if keep]


def _accumulate(
    program: ItemReader, values: Any, func: Any = None, *, initial: Any = None
) -> list[Any]:
    items = _items(program, values)
    made = [initial] if initial is not None else items[:1]
    for one in items if initial is not None else items[1:]:
        if func is None:
            made.append(program.operate(operator.add, made[-1], one))
        else:
            made.append(program.call(func, [made[-1], one], {}))
    return made


def _reduce(program: ItemReader, function: Any, values: Any, *initial: Any) -> Any:
    items = [*initial, *_items(program, values)]
    if not items:
        raise Refused("reduce of nothing")
    made = items[0]
    for one in items[1:]:
        made = program.call(function, [made, one], {})
    return made


def _rearranged(function: Any, program: ItemReader, *values: Any, **options: Any) -> list[Any]:
    return list(function(*[_items(program, x) if is_open(x) else x for x in values], **options))


def _chained(program: ItemReader, values: Any) -> list[Any]:
    return [one for part in _items(program, values) for one in _items(program, part)]


def _next(program: ItemReader, values: Any, default: Any = _NOTHING) -> Any:
    if isinstance(values, Generated):
        found = [*values[:1], *([] if default is _NOTHING else [default])]
        if not found:
            raise Refused("next of nothing")
        return found[0]
    if hasattr(values, "__next__") and not contains_traced(default):
        return next(values) if default is _NOTHING else next(values, default)
    raise Refused(f"next of a {kind_of(values)}: how far it was read changes at a run", final=True)


def _iter(program: ItemReader, values: Any) -> Any:
    raise Refused("how far an iterator was read changes at a run; make it a list", final=True)


def _isinstance(program: ItemReader, value: Any, kind: Any) -> bool:
    if not isinstance(value, Traced):
        return isinstance(value, kind)
    answers = {issubclass(own, kind) for own in _classes(value)}
    if len(answers) > 1:
        raise Refused("isinstance of a tensor depends on how the program is run")
    return answers.pop()


def _classes(value: Traced) -> list[Any]:
    """Return what the program may see as the class of a value when it runs as Python."""
    if isinstance(value, RowList):
        return [list]
    if value.weak:
        return [float if value.dtype.kind == "f" else int]
    classes: list[Any] = [np.ndarray] if value.shape else [np.ndarray, value.dtype.type]
    return [*classes, Tensor] if value.recorder.eager else classes


ALWAYS: Sequence[Any] = (map, filter, next, isinstance)
"""Functions that are in the table for known arguments too."""
_TABLE: dict[Any, Callable[..., Any]] = {
    min: partial(_extreme, operator.lt, "min"),
    max: partial(_extreme, operator.gt, "max"),
    sorted: _sorted,
    map: _map,
    filter: _filter,
    next: _next,
    iter: _iter,
    isinstance: _isinstance,
    functools.reduce: _reduce,
    itertools.accumulate: _accumulate,
    itertools.chain.from_iterable: _chained,
    **{
        function: partial(_rearranged, function)
        for function in (
            itertools.chain,
            itertools.combinations,
            itertools.combinations_with_replacement,
            itertools.islice,
            itertools.pairwise,
            itertools.permutations,
            itertools.product,
            itertools.zip_longest,
        )
    },
}
ITEM_CALLS = Functions(_TABLE)
