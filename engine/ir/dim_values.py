"""Expressions of symbols as one compiled function: the numbers of many dimensions at some sizes.

`dims.substituted` rewrites an expression and takes tens of microseconds. A shape that comes for the
first time waits for its numbers, so this function gives them all in about a microsecond.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from operator import itemgetter
from typing import Any

import numpy as np

from trireme.ir.dims import is_expression
from trireme.ir.graph import Dim, TensorType
from trireme.support.dtypes import Array, itemsize
from trireme.support.errors import InternalError

Numbers = tuple[int, ...]
NumberRows = Sequence[int | Array]
"""Numbers at many sizes at once: int64 arrays, and an int where all are equal."""
_NAME = re.compile(r"[^\W\d]\w*(?!\w|\()")
"""A symbol in an expression; "min(" and "max(" are calls."""


def evaluator(dims: Iterable[Dim], names: Sequence[str]) -> Callable[..., Numbers]:
    """Return a function of the symbols' sizes, in the order of the names, that returns numbers.

    Errors: InternalError, if a dimension is no expression of these symbols
    """
    return _compiled([_code(dim, names) for dim in dims], names)


def evaluator_of_many(
    dims: Iterable[Dim], names: Sequence[str]
) -> Callable[..., tuple[int | Array, ...]]:
    """Return `evaluator` for many sizes at once: each of a symbol's sizes is an array or an int.

    Errors: InternalError, if a dimension is no expression of these symbols
    """
    return _compiled([_code(dim, names) for dim in dims], names, _OF_MANY)


def most_bytes(
    groups: Iterable[Iterable[TensorType]], names: Sequence[str], of_many: bool = False
) -> Callable[..., Numbers]:
    """Return a function of the symbols' sizes that returns the most bytes of each group of types.

    of_many: whether sizes are arrays, as in `evaluator_of_many`
    Errors: InternalError, if a dimension is no expression of these symbols
    """
    parts = []
    for group in groups:
        codes = []
        for type in group:
            factors = [str(itemsize(type.dtype)), *(_code(dim, names) for dim in type.shape)]
            codes.append("*".join(f"({factor})" for factor in factors))
        parts.append(f"max({', '.join(['0', '0', *codes])})")
    return _compiled(parts, names, _OF_MANY if of_many else _OF_ONE)


def _code(dim: Dim, names: Sequence[str]) -> str:
    """Return the code of a dimension, in which symbols are s0, s1 and so on."""
    places = {name: f"s{k}" for k, name in enumerate(names)}
    if isinstance(dim, int):
        return str(int(dim))
    try:
        return _NAME.sub(lambda found: places[found[0]], dim) if is_expression(dim) else places[dim]
    except KeyError as error:
        raise InternalError(f"dimension {dim!r} is no expression of {names}") from error


def _smallest(*numbers: int | Array) -> Any:
    return reduce(np.minimum, numbers)


def _largest(*numbers: int | Array) -> Any:
    return reduce(np.maximum, numbers)


_OF_ONE: Mapping[str, Any] = {call.__name__: call for call in (min, max)}
_OF_MANY: Mapping[str, Any] = dict(zip(_OF_ONE, (_smallest, _largest), strict=True))


def _compiled(
    parts: Sequence[str], names: Sequence[str], calls: Mapping[str, Any] = _OF_ONE
) -> Callable[..., Any]:
    arguments = ", ".join(f"s{k}" for k in range(len(names)))
    code = f"lambda {arguments}: ({''.join(f'{part}, ' for part in parts)})"
    known: dict[str, Any] = {"__builtins__": {}, **calls}
    made: Callable[..., Any] = eval(code, known)  # noqa: S307  only numbers and our own names
    return made


def picker(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Return a function that takes the items at some places of a sequence."""
    if not places:
        return lambda _: ()
    if len(places) == 1:
        only = places[0]
        return lambda items: (items[only],)
    return itemgetter(*places)
