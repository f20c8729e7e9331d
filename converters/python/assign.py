"""Statements that change arrays: `x[i] = v` and `x += v` make a new value for the variable x.

numpy changes the array, which every other name of it sees. A graph has no such sharing, so an array
with another name, or with a view of it in a variable, is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trireme.converters.python.control import Refused
from trireme.converters.python.dtypes import type_of
from trireme.converters.python.lifting import contains_traced, lifted
from trireme.converters.python.scope import Recorder, Traced
from trireme.converters.python.sharing import expect_own, is_array
from trireme.converters.python.state import Names
from trireme.runtime.eager.operands import cast
from trireme.support.dtypes import numpy_dtype

_REDUCTIONS: dict[np.ufunc, str] = {
    np.add: "add",
    np.subtract: "add",  # of what is negated first
    np.multiply: "mul",
    np.maximum: "max",
    np.minimum: "min",
}


def updated(
    recorder: Recorder,
    names: Names,
    name: str,
    old: Any,
    key: Any,
    value: Any,
    ufunc: np.ufunc | None = None,
) -> Any:
    """Return an array with elements replaced, or combined one after another as ufunc.at does.

    Errors: Refused, if another variable shares the array, or the key is of an unknown kind
    """
    expect_own(names, name, old)
    if isinstance(old, np.ndarray) and not contains_traced([key, value]):
        made = old.copy()
        if ufunc is None:
            made[key] = value
        else:
            ufunc.at(made, key, value)
        return made
    array = lifted(recorder, old)
    if ufunc is not None:
        return _combined(recorder, array, key, value, ufunc)
    one = cast(lifted(recorder, value), array.dtype)
    if not contains_traced(key) and array.type.is_static:
        return _at_known(recorder, array, key, one)
    parts = _without_whole_axes(key if isinstance(key, tuple) else (key,))
    if len(parts) == 1 and isinstance(parts[0], Traced) and parts[0].type.dtype == "bool":
        masked = _where_mask_holds(recorder, array, parts[0], one)
        if masked is not None:
            return masked
    if _are_places(array, parts):
        return _at_traced(recorder, array, [lifted(recorder, part) for part in parts], one)
    return _at_any(recorder, array, key, one)


def _combined(recorder: Recorder, array: Traced, key: Any, value: Any, ufunc: np.ufunc) -> Any:
    """Return an array with elements combined by a ufunc; a place that comes again is again."""
    given = lifted(recorder, value)
    one = cast(given, array.dtype)
    known = given.type.dtype == one.type.dtype or np.result_type(given.dtype, array.dtype)
    if ufunc not in _REDUCTIONS or array.dtype.kind not in "iuf":
        raise Refused(f"{ufunc.__name__}.at of {array.type}")
    exact = known is True or known == array.dtype or _holds(array.dtype, value)
    if not exact:
        raise Refused(
            f"{ufunc.__name__}.at computes in {known} and rounds to {array.dtype} at each step"
        )
    if ufunc is np.subtract:
        one = np.zeros((), array.dtype) - one
    reduction = _REDUCTIONS[ufunc]
    if not contains_traced(key) and array.type.is_static:
        return _at_known(recorder, array, key, one, reduction)
    parts = _without_whole_axes(key if isinstance(key, tuple) else (key,))
    if _are_places(array, parts):
        places = [lifted(recorder, part) for part in parts]
        return _at_traced(recorder, array, places, one, reduction)
    return _at_any(recorder, array, key, one, reduction)


def _holds(dtype: np.dtype[Any], value: Any) -> bool:
    """Whether a known value is one of a dtype."""
    return not contains_traced(value) and bool(np.all(np.asarray(value).astype(dtype) == value))


def _without_whole_axes(parts: Sequence[Any]) -> Sequence[Any]:
    """Return a key without the parts at its end that take an axis whole: y[i, :] is y[i]."""
    end = len(parts)
    while end > 1 and _is_whole(parts[end - 1]):
        end -= 1
    return parts[:end]


def _is_whole(part: Any) -> bool:
    if not isinstance(part, slice):
        return part is Ellipsis
    return all(end is None for end in (part.start, part.stop, part.step))


def _where_mask_holds(
    recorder: Recorder, array: Traced, mask: Traced, value: Traced
) -> Traced | None:
    """Return y[mask] = value where all rows get one value; None where each may get its own."""
    rank = mask.ndim
    if mask.shape != array.shape[:rank]:
        if mask.type.is_static and array.type.is_static:
            raise Refused(f"a mask of {mask.type} is the key of {array.type}")
        return None
    if value.ndim > array.ndim - rank:
        return None
    if array.ndim > rank:
        axes = np.arange(rank, array.ndim, dtype=np.int64)
        mask = recorder.apply("unsqueeze", [mask, axes], {})
    made: Traced = recorder.apply("where", [mask, value, array], {})
    return made if made.type == array.type else None


def as_one_key(first: Any, second: Any) -> tuple[Any, ...] | None:
    """Return the key that takes of an array what two take in turn; None where views end.

    The first takes a row, so it is whole numbers; behind slices a vector would move its axis.
    """
    keys = [one if isinstance(one, tuple) else (one,) for one in (first, second)]
    if not all(map(_is_place, keys[0])):
        return None
    plain = [one for one in keys[1] if not _is_place(one)]
    if len(plain) > 1 and not all(isinstance(one, slice) for one in plain):
        return None
    return (*keys[0], *keys[1])


def _is_place(part: Any) -> bool:
    if isinstance(part, Traced):
        return part.dtype.kind in "iu" and not part.shape
    return isinstance(part, (int, np.integer)) and not isinstance(part, bool)


def _are_places(array: Traced, parts: Sequence[Any]) -> bool:
    """Whether a key is whole numbers and vectors of one length, for rows of a known shape."""
    if any(isinstance(part, slice) or part is None or part is Ellipsis for part in parts):
        return False
    whole = [part for part in parts if isinstance(part, Traced)]
    known = [np.asarray(part) for part in parts if not contains_traced(part)]
    static = all(one.type.is_static and one.ndim <= 1 for one in whole)
    ints = all(one.dtype.kind in "iu" for one in whole)
    ints = ints and all(one.dtype.kind in "iu" for one in known)
    return static and ints and all(isinstance(dim, int) for dim in array.shape[len(parts) :])


def _at_any(
    recorder: Recorder, array: Traced, key: Any, value: Traced, reduction: str = "none"
) -> Any:
    """Replace the elements that any key of numpy takes: their numbers are read by the same key."""
    if array.type.is_static:
        count: Any = np.arange(array.type.elements, dtype=np.int64)
        shape: Any = np.array(array.type.dims, np.int64)
        numbers = recorder.lift(count.reshape(array.type.dims))
    else:
        shape = recorder.apply("shape", [array], {})
        ends = (np.array(0), shape.prod(), np.array(1))
        flat = recorder.apply("range", [recorder.lift(one) for one in ends], {})
        numbers = recorder.apply("reshape", [flat, shape], {"allowzero": 1})
    taken = numbers[key]
    wanted = recorder.apply("shape", [taken], {})
    spread = recorder.apply("expand", [value, wanted], {})
    where = taken.reshape(-1, 1)
    values = [array.reshape(-1), where, spread.reshape(-1)]
    made = recorder.apply("scatter_nd", values, {"reduction": reduction})
    return recorder.apply("reshape", [made, shape], {"allowzero": 1})


def _at_traced(
    recorder: Recorder,
    array: Traced,
    parts: Sequence[Traced],
    value: Traced,
    reduction: str = "none",
) -> Any:
    """Replace the elements at places that only a run knows: numbers, or vectors of one length."""
    most = max(part.ndim for part in parts)
    count = max((part.type.elements for part in parts if part.shape), default=1)
    shape = np.array([count, 1], np.int64)
    columns = []
    for part in parts:
        column = cast(part, np.dtype(np.int64)).reshape(-1, 1)
        columns.append(recorder.apply("expand", [column, shape], {}) if most else column)
    where = recorder.apply("concat", columns, {"axis": 1})
    rest = array.shape[len(parts) :]
    rows = recorder.apply("expand", [value, np.array((count, *rest), np.int64)], {})
    return recorder.apply("scatter_nd", [array, where, rows], {"reduction": reduction})


def _at_known(
    recorder: Recorder, array: Traced, key: Any, value: Traced, reduction: str = "none"
) -> Any:
    dims = array.type.dims
    flat = np.arange(array.type.elements, dtype=np.int64).reshape(dims)[key]
    spread = recorder.apply("expand", [value, np.array(flat.shape, np.int64)], {})
    where = flat.reshape(-1, 1)
    values = [array.reshape(-1), where, spread.reshape(-1)]
    return recorder.apply("scatter_nd", values, {"reduction": reduction}).reshape(dims)


def augmented(recorder: Recorder, names: Names, name: str, old: Any, made: Any) -> Any:
    """Return what a variable holds after `x += v`, of what `x + v` makes: an array keeps its dtype.

    Errors: Refused, if another variable shares the array, or numpy could not keep its type
    """
    if not is_array(old):
        return made
    expect_own(names, name, old)
    before, after = type_of(old), type_of(made)
    dtype = numpy_dtype(before.dtype)
    if not np.can_cast(numpy_dtype(after.dtype), dtype, "same_kind"):
        raise Refused(f"{name} holds {before.dtype}, and what it is changed to is {after.dtype}")
    grows = any(
        isinstance(a, int) and a != b for a, b in zip(before.shape, after.shape, strict=False)
    )
    if grows or len(before.shape) != len(after.shape):
        raise Refused(f"{name} has the shape {before}, and what it is changed to {after}")
    return made.astype(dtype) if isinstance(made, np.ndarray) else cast(made, dtype)
