"""Rows of a state that grows: a buffer with room for more, whose first rows count.

A pass of the runtime writes these ops in the place of a concat of a state and new rows
(runtime/states/growth.py). `length` has no elements: its first axis is as long as the rows that
count.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from trireme.ir.dims import add
from trireme.ir.dtype_rules import Like
from trireme.ir.graph import UNKNOWN, Dim, Value
from trireme.ir.op import Attr, Sample
from trireme.ops.movement import draw, move
from trireme.ops.shapes import Types, axis_of, one
from trireme.support.dtypes import ANY, Array
from trireme.support.errors import RunError, ShapeError

_AXIS = {"axis": Attr("int")}
_IN_PLACE = {"in_place": Attr("int", 0, (0, 1), stored=False)}
"""Whether the buffer is memory of a state, into which a device may write the rows. A buffer that is
fed, or that others read, must stay as it is.
"""


def _check(buffer: Value, rows: Value, axis: int) -> int:
    """Return the axis, not negative; raise ShapeError if rows do not fit the buffer."""
    axis = axis_of(axis, len(buffer.shape))
    pairs = enumerate(zip(buffer.shape, rows.shape, strict=False))
    wrong = any(
        a != b and UNKNOWN not in (a, b) and k != axis and isinstance(a, int) and isinstance(b, int)
        for k, (a, b) in pairs
    )
    if wrong or len(buffer.shape) != len(rows.shape):
        raise ShapeError(f"rows {list(rows.shape)} do not fit a buffer {list(buffer.shape)}")
    return axis


def _count(length: Value) -> Dim:
    if not length.shape:
        raise ShapeError("length has no axis, expected one that is as long as the rows that count")
    return length.shape[0]


def _infer_append(buffer: Value, length: Value, rows: Value, *, axis: int, in_place: int) -> Types:
    _check(buffer, rows, axis)
    _count(length)
    return one(buffer.shape, buffer.dtype)


def _append(buffer: Array, length: Array, rows: Array, *, axis: int, in_place: int) -> Array:
    first, last = len(length), len(length) + rows.shape[axis]
    if last > buffer.shape[axis]:
        raise RunError(f"{last} rows do not fit a buffer of {buffer.shape[axis]}")
    made = buffer.copy()
    np.moveaxis(made, axis, 0)[first:last] = np.moveaxis(rows, axis, 0)
    return made


def _infer_held(buffer: Value, length: Value, rows: Value | None = None, *, axis: int) -> Types:
    shape = list(buffer.shape)
    count = _count(length)
    if rows is not None:
        count = add(count, rows.shape[_check(buffer, rows, axis)])
    shape[axis_of(axis, len(shape))] = count
    return one(shape, buffer.dtype)


def _held(buffer: Array, length: Array, rows: Array | None = None, *, axis: int) -> Array:
    count = len(length) + (0 if rows is None else rows.shape[axis])
    if count > buffer.shape[axis]:
        raise RunError(f"{count} rows are more than a buffer of {buffer.shape[axis]} holds")
    return np.take(buffer, range(count), axis)


def _samples(rng: np.random.Generator) -> Iterable[Sample]:
    for axis, shape, new in (
        (0, (7, 3), (2, 3)),
        (1, (2, 9, 4), (2, 1, 4)),
        (-2, (1, 2, 5, 3), (1, 2, 3, 3)),
    ):
        length = np.zeros((2, 0), np.uint8)
        yield Sample((draw(rng, *shape), length, draw(rng, *new)), {"axis": axis})


move(
    "append_rows",
    "buffer length rows",
    "y = buffer, whose rows after the first len(length) along axis are rows",
    _infer_append,
    _append,
    attrs=_AXIS | _IN_PLACE,
    samples=_samples,
    dtypes=(ANY, ANY, Like("buffer")),
)
move(
    "held_rows",
    "buffer length rows?",
    "y = the first len(length) rows of buffer along axis; with rows, as many more as rows has",
    _infer_held,
    _held,
    attrs=_AXIS,
    rearranges=True,
    samples=_samples,
    dtypes=(ANY, ANY, Like("buffer")),
)
