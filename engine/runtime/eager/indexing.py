"""Python's indexing as ops: x[2, ..., 1:-1, None], x[rows], x[mask].

Comes in: a tensor and what stands in its brackets. Goes out: a tensor, made of slice, gather,
gather_nd, transpose and unsqueeze. The rules are numpy's: ints drop their axis; slices, None and
"..." are basic; arrays of indices (and masks, which stand for the indices where they hold) are
advanced. `operators.py` calls this module.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trireme.ir.graph import Dim
from trireme.ir.operand import Operand
from trireme.runtime.eager.operands import cast, dtype_of, int_vector, without_quant
from trireme.support.errors import ShapeError

_FAR = 2**63 - 1
"""The end of every axis, to the slice op."""


@dataclass
class _Key:
    """An index read: what happens to each axis, in order.

    axes: (axis, its slice, its int or its indices) of each axis
    new: for each new axis, how many entries of `axes` come before it
    """

    axes: list[tuple[int, Any]] = field(default_factory=list)
    new: list[int] = field(default_factory=list)


def index(x: Operand, key: Any) -> Any:
    """Return x[key] by numpy's rules.

    Errors: ShapeError, if the key has too many parts, an int is outside its axis or a part is of
        another kind; GraphError, if x is quantised
    """
    without_quant(x, "an index")
    parts = _unfolded(x, key if isinstance(key, tuple) else (key,))
    read = _read(x, parts)
    x = _sliced(x, [(axis, part) for axis, part in read.axes if isinstance(part, slice)])
    advanced = [(axis, part) for axis, part in read.axes if not isinstance(part, slice)]
    apart = _apart(read)
    kept = [at for at, (_, part) in enumerate(read.axes) if isinstance(part, slice)]
    if not any(_rank(part) for _, part in advanced):
        for axis, part in reversed(advanced):
            x = x._apply("gather", x, part, axis=axis)
        return _with_axes(x, [sum(at < before for at in kept) for before in read.new])
    block = max(_rank(part) for _, part in advanced)
    first = min(at for at, (_, part) in enumerate(read.axes) if not isinstance(part, slice))
    x = _gathered(x, advanced, 0 if apart else sum(at < first for at in kept))
    places = []
    for before in read.new:
        rows = sum(at < before for at in kept)
        places.append(rows + block if apart or before > first else rows)
    return _with_axes(x, places)


def _unfolded(x: Operand, parts: Sequence[Any]) -> list[Any]:
    """Return the parts with lists as arrays, masks as indices and "..." as slices."""
    found: list[Any] = []
    for part in parts:
        found.extend(_indices(x, part))
    used = sum(part is not None and part is not Ellipsis for part in found)
    rank, dots = len(x.shape), sum(part is Ellipsis for part in found)
    if dots > 1 or used > rank:
        count = f"{dots} times `...`" if dots > 1 else f"{used} indices"
        raise ShapeError(f"{count} for {x.type}, which has {rank} axes")
    rest = [slice(None)] * (rank - used)
    at = next((i for i, part in enumerate(found) if part is Ellipsis), len(found))
    return [*found[:at], *rest, *found[at + 1 :]]


def _indices(x: Operand, part: Any) -> list[Any]:
    """Return one part as it is, or a list or mask as arrays of indices."""
    if isinstance(part, list) and any(isinstance(one, Operand) for one in part):
        part = int_vector(x, part)
    elif isinstance(part, list):
        part = np.asarray(part) if part else np.zeros(0, np.int64)
    if isinstance(part, (bool, np.bool_)):
        raise ShapeError(f"{part} is no index of an axis", fix="x[None] adds an axis")
    if not isinstance(part, (np.ndarray, Operand)):
        return [part]
    dtype = dtype_of(part)
    if dtype.kind in "iu":
        return [cast(part, np.dtype(np.int64))]
    if dtype.kind != "b" or not _rank(part):
        raise ShapeError(f"an index of {dtype}; expected integers, or a mask of bool")
    return _where(x, part)


def _where(x: Operand, mask: Any) -> list[Any]:
    """Return the indices at which a mask holds, one vector for each axis of the mask."""
    concrete = mask._concrete() if isinstance(mask, Operand) else mask
    if concrete is None:
        found = x._apply("non_zero", mask)
        rows = range(_rank(mask))
        return [x._apply("gather", found, np.array(row, np.int64), axis=0) for row in rows]
    if len(x.shape) < concrete.ndim:
        raise ShapeError(f"a mask of shape {list(concrete.shape)} for {x.type}")
    return [each.astype(np.int64) for each in np.nonzero(concrete)]


def _rank(part: Any) -> int:
    return len(part.shape) if isinstance(part, (np.ndarray, Operand)) else 0


def _read(x: Operand, parts: Sequence[Any]) -> _Key:
    read = _Key()
    for part in parts:
        if part is None:
            read.new.append(len(read.axes))
            continue
        axis = len(read.axes)
        if not isinstance(part, (slice, np.ndarray, Operand)):
            part = _whole(x, axis, part)
        read.axes.append((axis, part))
    return read


def _whole(x: Operand, axis: int, part: Any) -> Any:
    """Return an int as an array of no axes, counted from the start."""
    try:
        number = operator.index(part)
    except TypeError:
        raise ShapeError(
            f"{part!r} is no index; expected ints, slices, None, `...`, arrays"
        ) from None
    dim = x.shape[axis]
    if isinstance(dim, int) and not -dim <= number < dim:
        raise ShapeError(f"index {number} is outside axis {axis} of {x.type}")
    return np.array(number % dim if isinstance(dim, int) else number, np.int64)


def _sliced(x: Any, slices: Sequence[tuple[int, slice]]) -> Any:
    """Return x with its slices taken, by one op."""
    cuts = [(axis, *_bounds(x.shape[axis], part)) for axis, part in slices if part != slice(None)]
    if not cuts:
        return x
    axes, starts, ends, steps = zip(*cuts, strict=True)
    vectors = (int_vector(x, numbers) for numbers in (starts, ends, axes, steps))
    return x._apply("slice", x, *vectors)


def _bounds(dim: Dim, part: slice) -> tuple[Any, Any, int]:
    """Return start, end and step as the slice op reads them, of numpy's meaning.

    The op counts a negative end from the axis' end, so what lies before the first is far below.
    """
    step = 1 if part.step is None else operator.index(part.step)
    if not step:
        raise ShapeError("the step of a slice is 0")
    if not isinstance(dim, int) or any(map(_is_symbolic, (part.start, part.stop))):
        low, high = (0, _FAR) if step > 0 else (_FAR, -_FAR)
        start, stop = (_known(end) for end in (part.start, part.stop))
        return low if start is None else start, high if stop is None else stop, step
    start, stop, step = part.indices(dim)
    if not len(range(start, stop, step)):
        return 0, 0, 1
    return start, stop if stop >= 0 else -_FAR, step


def _is_symbolic(end: Any) -> bool:
    return isinstance(end, Operand) and end._concrete() is None


def _known(end: Any) -> Any:
    return end if end is None or _is_symbolic(end) else operator.index(end)


def _apart(read: _Key) -> bool:
    """Return whether basic parts stand between the advanced ones; their axes then come first."""
    at = [i for i, (_, part) in enumerate(read.axes) if not isinstance(part, slice)]
    if not at:
        return False
    between = any(at[0] < before <= at[-1] for before in read.new)
    return between or at[-1] - at[0] + 1 != len(at)


def _gathered(x: Any, advanced: Sequence[tuple[int, Any]], place: int) -> Any:
    """Return x at arrays of indices of some axes; their joint axes stand at `place`."""
    if len(advanced) == 1:
        ((axis, indices),) = advanced
        return x._apply("gather", x, indices, axis=axis)
    axes = [axis for axis, _ in advanced]
    rest = [axis for axis in range(len(x.shape)) if axis not in axes]
    if axes != list(range(len(axes))):
        x = x._apply("transpose", x, perm=(*axes, *rest))
    where = _stacked(x, [indices for _, indices in advanced])
    x = x._apply("gather_nd", x, where)
    block = len(where.shape) - 1
    if not place:
        return x
    order = list(range(block, block + place)), range(block), range(block + place, len(x.shape))
    return x._apply("transpose", x, perm=tuple(axis for part in order for axis in part))


def _stacked(x: Operand, arrays: Sequence[Any]) -> Any:
    """Return index arrays, broadcast, side by side along a new last axis."""
    found = [each._concrete() if isinstance(each, Operand) else each for each in arrays]
    known = [each for each in found if each is not None]
    if len(known) == len(arrays):
        try:
            return np.stack(np.broadcast_arrays(*known), axis=-1)
        except ValueError as error:
            raise ShapeError(f"the indices do not broadcast: {error}") from error
    zero = arrays[0]
    for each in arrays[1:]:
        zero = x._apply("add", zero, each)
    zero = x._apply("sub", zero, zero)  # of the shape that all broadcast to
    columns = [x._apply("add", zero, each) for each in arrays]
    last = np.array([-1], np.int64)
    return x._apply("concat", *(x._apply("unsqueeze", c, last) for c in columns), axis=-1)


def _with_axes(x: Any, places: Sequence[int]) -> Any:
    """Return x with new axes, given how many of x's axes come before each."""
    if not places:
        return x
    final = [place + i for i, place in enumerate(sorted(places))]
    return x._apply("unsqueeze", x, np.array(final, np.int64))
