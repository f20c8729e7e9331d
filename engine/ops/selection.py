"""Ops that pick elements by value or position: top_k, non_zero, unique, compress and others."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from trireme.ir.dtype_rules import Like
from trireme.ir.graph import UNKNOWN, Dim, TensorType, Value
from trireme.ir.op import Attr, Call, Sample, define
from trireme.ops.bounds import check_range
from trireme.ops.movement import draw, ints, move
from trireme.ops.shapes import (
    Types,
    axis_of,
    expect,
    expect_dims,
    expect_rank,
    expect_single,
    ints_of,
    one,
    product,
    same_type,
    to_ints,
)
from trireme.support.dtypes import ANY, BOOL, INDICES, REALS, Array
from trireme.support.errors import RunError, ShapeError


def _infer_top_k(x: Value, k: Value, *, axis: int, **attrs: int) -> Types:
    at, known = axis_of(axis, len(x.shape)), ints_of(k)
    expect_single("k", k)
    count: Dim = UNKNOWN if known is None else known[0]
    size = x.shape[at]
    if isinstance(count, int) and isinstance(size, int) and not 0 <= count <= size:
        raise ShapeError(f"k is {count}, the axis has {size} elements")
    shape = (*x.shape[:at], count, *x.shape[at + 1 :])
    return TensorType(shape, x.dtype), TensorType(shape, "int64")


def _sortable(x: Array) -> Array:
    """Return x for numpy's sort: ml_dtypes as float32, because numpy misorders their NaN."""
    return x.astype(np.float32) if x.dtype.kind == "V" else x


def _top_k(x: Array, k: Array, *, axis: int, largest: int, sorted: int) -> tuple[Array, Array]:
    count, keys = int(k.reshape(())), _sortable(x)
    if largest:
        flipped = np.flip(keys, axis)
        backward = np.flip(np.argsort(flipped, axis=axis, kind="stable"), axis)
        order = x.shape[axis] - 1 - backward
    else:
        order = np.argsort(keys, axis=axis, kind="stable")
    best = order.take(np.arange(count), axis=axis)
    return np.take_along_axis(x, best, axis), best.astype(np.int64)


def _top_samples(rng: np.random.Generator) -> Iterable[Sample]:
    fixed = frozenset({1})
    yield Sample((draw(rng, 3, 19), ints(5)), constants=fixed)
    yield Sample((draw(rng, 7, 4), ints(3)), {"axis": 0, "largest": 0}, fixed, note="least")
    yield Sample((np.array([[1, 2, 2, 1, 2]], np.float32), ints(4)), constants=fixed, note="ties")


define(
    "top_k",
    "x k",
    "y, indices = the k greatest (or least) elements along `axis`, in order, the first of "
    "ties first. Source: ONNX TopK-24",
    _infer_top_k,
    _top_k,
    outputs="y indices?",
    samples=_top_samples,
    family="other",
    attrs={"axis": Attr("int", -1), "largest": Attr("int", 1), "sorted": Attr("int", 1)},
    flops=lambda call: 10 * call.type(0).elements,
    most=lambda call: call.type(0).shape[axis_of(call.attrs["axis"], len(call.type(0).shape))],
    moves=True,
    dtypes=(REALS, INDICES),
)


def _non_zero(x: Array) -> Array:
    """Return a column for each place; a number has no axes, and one column where it is not 0."""
    places = np.nonzero(np.atleast_1d(x))
    return np.array(places[: x.ndim], np.int64).reshape(x.ndim, len(places[0]))


move(
    "non_zero",
    "x",
    "y = the indices of x's nonzero elements, [rank, count]. Source: ONNX",
    lambda x: one((max(len(x.shape), 0), UNKNOWN), "int64"),
    _non_zero,
    moves=False,
    most=lambda call: product(call.type(0).shape),
    samples=lambda rng: [Sample((rng.integers(0, 2, (3, 5)).astype(np.float32),))],
    dtypes=(ANY,),
)


def _along_or_all(call: Call) -> Dim:
    """Return the length of the axis, of all elements where there is none."""
    shape, axis = call.type(0).shape, call.attrs["axis"]
    return product(shape) if axis is None else shape[axis_of(axis, len(shape))]


def _infer_unique(x: Value, *, axis: int | None, sorted: int) -> Types:
    shape: tuple[Dim, ...] = (UNKNOWN,)
    if axis is not None:
        at = axis_of(axis, len(x.shape))
        shape = (*x.shape[:at], UNKNOWN, *x.shape[at + 1 :])
    index = TensorType((UNKNOWN,), "int64")
    inverse: Dim = UNKNOWN
    if axis is not None:
        inverse = x.shape[axis]
    elif all(isinstance(dim, int) for dim in x.shape):
        inverse = x.type.elements
    return TensorType(shape, x.dtype), index, TensorType((inverse,), "int64"), index


def _unique(x: Array, *, axis: int | None, sorted: int) -> tuple[Array, ...]:
    y, first, inverse, counts = np.unique(
        _sortable(x), return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first)
        y = y.take(order, axis=0 if axis is None else axis)
        first, counts = first[order], counts[order]
        inverse = np.argsort(order)[inverse]
    return y.astype(x.dtype), first, inverse, counts


define(
    "unique",
    "x",
    "y, first, inverse, counts = the distinct elements (or slices along `axis`), ascending or "
    "in order of appearance. Source: ONNX Unique-28",
    _infer_unique,
    _unique,
    outputs="y indices? inverse_indices? counts?",
    family="other",
    attrs={"axis": Attr("int", None), "sorted": Attr("int", 1)},
    most=_along_or_all,
    moves=True,
    flops=lambda call: 10 * call.type(0).elements,
    samples=lambda rng: [
        Sample((rng.integers(0, 5, (4, 5)).astype(np.float32),), {"sorted": s}) for s in (0, 1)
    ],
    dtypes=(ANY,),
)


def _infer_compress(x: Value, condition: Value, *, axis: int | None) -> Types:
    expect_rank("condition", condition, 1)
    at = None if axis is None else axis_of(axis, len(x.shape))
    count, room = condition.shape[0], product(x.shape) if at is None else x.shape[at]
    if isinstance(count, int) and isinstance(room, int) and count > room:
        raise ShapeError(f"condition has {count} entries for {room} places")
    if at is None:
        return one((UNKNOWN,), x.dtype)
    return one((*x.shape[:at], UNKNOWN, *x.shape[at + 1 :]), x.dtype)


move(
    "compress",
    "x condition",
    "y = x's slices along `axis` (or elements) where condition holds. Source: ONNX Compress-11",
    _infer_compress,
    lambda x, condition, axis: np.compress(condition, x, axis=axis),
    rearranges=True,
    most=_along_or_all,
    attrs={"axis": Attr("int", None)},
    samples=lambda rng: [
        Sample((draw(rng, 4, 3), np.array([1, 0, 1, 1], bool)), {"axis": 0}),
        Sample((draw(rng, 2, 3), np.array([1, 0, 1, 0, 0, 1], bool)), note="elements"),
    ],
    dtypes=(ANY, BOOL),
)


def _infer_reverse_sequence(x: Value, lengths: Value, *, batch_axis: int, time_axis: int) -> Types:
    batch = x.shape[axis_of(batch_axis, len(x.shape))]
    axis_of(time_axis, len(x.shape))
    expect_dims("lengths", lengths, batch)
    return same_type(x)


def _reverse_sequence(x: Array, lengths: Array, *, batch_axis: int, time_axis: int) -> Array:
    check_range("sequence length", lengths, 0, x.shape[time_axis])
    moved = np.moveaxis(x, (batch_axis, time_axis), (0, 1)).copy()
    for row, length in zip(moved, to_ints(lengths), strict=True):
        row[:length] = row[:length][::-1].copy()
    return np.ascontiguousarray(np.moveaxis(moved, (0, 1), (batch_axis, time_axis)))


move(
    "reverse_sequence",
    "x lengths",
    "y = x with the first lengths[b] steps of each batch b back to front. Source: ONNX",
    _infer_reverse_sequence,
    _reverse_sequence,
    rearranges=True,
    attrs={"batch_axis": Attr("int", 1), "time_axis": Attr("int", 0)},
    samples=lambda rng: [
        Sample((draw(rng, 4, 3, 2), ints(4, 1, 2)), constants=frozenset({1})),
        Sample((draw(rng, 3, 4), ints(4, 1, 2)), {"batch_axis": 0, "time_axis": 1}),
    ],
    dtypes=(ANY, INDICES),
)


def _tensor_scatter(
    cache: Array, update: Array, indices: Array | None = None, *, axis: int, mode: str
) -> Array:
    y, at = cache.copy(), axis % cache.ndim
    starts = (0,) * cache.shape[0] if indices is None else to_ints(indices)
    steps, size = update.shape[at], cache.shape[at]
    for batch, start in enumerate(starts):
        places = start + np.arange(steps)
        if mode == "circular":
            places = places % size
        elif start < 0 or start + steps > size:
            raise RunError(f"write of {steps} at {start} leaves the {size} places of the cache")
        y[batch][(*[slice(None)] * (at - 1), places)] = update[batch]
    return y


def _infer_tensor_scatter(
    cache: Value, update: Value, indices: Value | None = None, *, axis: int, mode: str
) -> Types:
    at = axis_of(axis, expect_rank("update", update, len(cache.shape)))
    if at == 0:
        raise ShapeError("axis is the batch")
    for i, (found, wanted) in enumerate(zip(update.shape, cache.shape, strict=True)):
        if i != at:
            expect(f"dimension {i} of update", found, wanted, "as of the cache")
    steps, size = update.shape[at], cache.shape[at]
    if isinstance(steps, int) and isinstance(size, int) and steps > size:
        raise ShapeError(f"update has {steps} places along axis {at}, the cache {size}")
    expect_dims("write_indices", indices, cache.shape[0])
    return same_type(cache)


move(
    "tensor_scatter",
    "past_cache update write_indices?",
    "y = the cache with each batch's update written from its index on along `axis`, wrapping "
    "around when circular. Source: ONNX TensorScatter-24",
    _infer_tensor_scatter,
    _tensor_scatter,
    attrs={"axis": Attr("int", -2), "mode": Attr("str", "linear", ("linear", "circular"))},
    samples=lambda rng: [
        Sample((draw(rng, 2, 3, 5, 4), draw(rng, 2, 3, 2, 4), ints(3, 1))),
        Sample((draw(rng, 2, 5, 4), draw(rng, 2, 3, 4), ints(3, 1)), {"mode": "circular"}),
    ],
    dtypes=(ANY, Like("past_cache"), INDICES),
)
