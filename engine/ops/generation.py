"""Ops that make tensors from few inputs: ranges, filled and triangular tensors, one-hot."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from trireme.ir.dims import larger, subtract
from trireme.ir.dtype_rules import Like
from trireme.ir.graph import UNKNOWN, Dim, TensorType, Value
from trireme.ir.op import Attr, Sample, define, no_flops
from trireme.ops.movement import draw, ints, move
from trireme.ops.shapes import (
    Types,
    axis_of,
    dims_as_many_as,
    dims_of,
    expect_dims,
    expect_rank,
    expect_single,
    ints_of,
    one,
    same_type,
    to_ints,
)
from trireme.support.dtypes import (
    ANY,
    BOOL,
    FLOATING,
    INDICES,
    NUMBERS,
    REALS,
    SIGNED,
    TEXT,
    Array,
    dtype_name,
    numpy_dtype,
)
from trireme.support.errors import ShapeError


def _infer_filled(shape: Value, *, value: Array | None) -> Types:
    dtype = TensorType((), "float32") if value is None else _type_of(value)
    dims = dims_of(shape)
    made = dims_as_many_as(shape, "shape") if dims is None else dims
    if any(isinstance(dim, int) and dim < 0 for dim in made):
        raise ShapeError(f"shape {made} has a negative dimension")
    return one(made, dtype.dtype)


def _type_of(value: Array) -> TensorType:
    return TensorType(value.shape, dtype_name(value.dtype))


def _filled(shape: Array, *, value: Array | None) -> Array:
    fill = np.zeros((), np.float32) if value is None else value.reshape(())
    return np.full(to_ints(shape), fill)


move(
    "constant_of_shape",
    "shape",
    "y = a tensor of that shape filled with `value` (float32 0). Source: ONNX, opset 25",
    _infer_filled,
    _filled,
    attrs={"value": Attr("array", None)},
    samples=lambda rng: [
        Sample((ints(3, 5),), constants=frozenset({0})),
        Sample((ints(2, 0, 3),), {"value": np.array([7], np.int32)}, frozenset({0}), note="empty"),
    ],
    dtypes=(INDICES,),
)


def range_length(start: float, limit: float, delta: float) -> int:
    """Return how many numbers start, start + delta, .. lie before the limit.

    Errors: ShapeError, if delta is 0 or a number is not finite
    """
    if delta == 0:
        raise ShapeError("delta is 0")
    if not all(map(math.isfinite, (start, limit, delta))):
        raise ShapeError(f"no range from {start} to {limit} by {delta}")
    return max(math.ceil((limit - start) / delta), 0)


def _whole(end: str | float) -> Dim:
    """Return an end of a range as a dimension; "?" for a number that is not whole."""
    if isinstance(end, str):
        return end
    return int(end) if float(end).is_integer() else UNKNOWN


def _infer_range(start: Value, limit: Value, delta: Value) -> Types:
    dtype = start.dtype
    if start.data is None or limit.data is None or delta.data is None:
        return one((UNKNOWN,), dtype)
    first, last, step = (
        v.data.reshape(()).item() for v in (start, limit, delta) if v.data is not None
    )
    if isinstance(first, str) or isinstance(last, str):
        length = larger(subtract(_whole(last), _whole(first)), 0)
        return one((length if step == 1 else UNKNOWN,), dtype)
    return one((range_length(first, last, step),), dtype)


def _range(start: Array, limit: Array, delta: Array) -> Array:
    first, last, step = (v.item() for v in (start, limit, delta))
    steps = np.arange(range_length(first, last, step))
    if start.dtype.kind not in "iu":
        steps = steps.astype(np.float64)
    return np.asarray(first + steps * step).astype(start.dtype)


def _range_samples(rng: np.random.Generator) -> Iterable[Sample]:
    fixed = frozenset({0, 1, 2})
    for dtype, numbers in (
        (np.int64, (3, 12, 2)),
        (np.int32, (10, 4, -2)),
        (np.float32, (1, 5, 0.5)),
    ):
        yield Sample(tuple(np.array(n, dtype) for n in numbers), constants=fixed)


move(
    "range",
    "start limit delta",
    "y = start, start + delta, .. before limit. Source: ONNX",
    _infer_range,
    _range,
    samples=_range_samples,
    dtypes=(SIGNED, Like("start"), Like("start")),
)


def _infer_eye(x: Value, *, dtype: str | None, k: int) -> Types:
    expect_rank("x", x, 2)
    return one(x.shape, dtype or x.dtype)


move(
    "eye_like",
    "x",
    "y = ones on diagonal k of a matrix of x's shape. Source: ONNX EyeLike-22",
    _infer_eye,
    lambda x, dtype, k: np.eye(x.shape[0], x.shape[1], k, numpy_dtype(dtype) if dtype else x.dtype),
    attrs={"dtype": Attr("str", None), "k": Attr("int", 0)},
    samples=lambda rng: [Sample((draw(rng, 4, 5),), {"k": k}) for k in (0, -1)],
    dtypes=(NUMBERS | BOOL,),
)


def _infer_trilu(x: Value, k: Value | None = None, *, upper: int) -> Types:
    if len(x.shape) < 2:
        raise ShapeError(f"x has rank {len(x.shape)}, expected 2 or more")
    return same_type(x)


def _trilu(x: Array, k: Array | None = None, *, upper: int) -> Array:
    at = 0 if k is None else int(k.reshape(()))
    return np.triu(x, at) if upper else np.tril(x, at)


move(
    "trilu",
    "x k?",
    "y = x above (or below) and on diagonal k, else 0. Source: ONNX Trilu-14",
    _infer_trilu,
    _trilu,
    attrs={"upper": Attr("int", 1)},
    moves=False,
    samples=lambda rng: [
        Sample((draw(rng, 2, 4, 5), np.array(k, np.int64)), {"upper": u}, frozenset({1}))
        for k, u in ((0, 1), (-1, 0), (2, 1))
    ],
    dtypes=(ANY - TEXT, INDICES),
)


def _infer_one_hot(indices: Value, depth: Value, values: Value, *, axis: int) -> Types:
    at = axis_of(axis, len(indices.shape) + 1)
    expect_dims("values", values, 2)
    expect_single("depth", depth)
    known = ints_of(depth)
    length: Dim = UNKNOWN if known is None else known[0]
    return one((*indices.shape[:at], length, *indices.shape[at:]), values.dtype)


def _one_hot(indices: Array, depth: Array, values: Array, *, axis: int) -> Array:
    count = int(depth.reshape(()))
    whole = np.trunc(indices.astype(np.float64)).astype(np.int64)
    whole = np.where(whole < 0, whole + count, whole)
    hit = whole[..., None] == np.arange(count)
    return np.asarray(np.where(np.moveaxis(hit, -1, axis), values[1], values[0]))


move(
    "one_hot",
    "indices depth values",
    "y = values[1] where the new axis' index is that of `indices`, else values[0]. Source: ONNX",
    _infer_one_hot,
    _one_hot,
    attrs={"axis": Attr("int", -1)},
    moves=False,
    samples=lambda rng: [
        Sample(
            (ints(1, 0, -1, 5), np.array(4, np.int64), np.array([0.5, 2], np.float32)),
            {"axis": axis},
            frozenset({1, 2}),
        )
        for axis in (-1, 0)
    ],
    dtypes=(REALS, REALS, ANY),
)


def _infer_mel(
    num_mel_bins: Value,
    dft_length: Value,
    sample_rate: Value,
    lower: Value,
    upper: Value,
    *,
    output_datatype: str,
) -> Types:
    bins, length = ints_of(num_mel_bins), ints_of(dft_length)
    rows: Dim = UNKNOWN if length is None else length[0] // 2 + 1
    return one((rows, UNKNOWN if bins is None else bins[0]), output_datatype)


def _mel_weights(
    num_mel_bins: Array,
    dft_length: Array,
    sample_rate: Array,
    lower: Array,
    upper: Array,
    *,
    output_datatype: str,
) -> Array:
    bins, length, rate = (int(v.reshape(())) for v in (num_mel_bins, dft_length, sample_rate))
    ends = [2595 * np.log10(1 + float(edge.reshape(())) / 700) for edge in (lower, upper)]
    mels = ends[0] + np.arange(bins + 2) * (ends[1] - ends[0]) / (bins + 2)
    hertz = 700 * (10 ** (mels / 2595) - 1)
    places = (length + 1) * hertz // rate
    left, centre, right = places[:-2], places[1:-1], places[2:]
    row = np.arange(length // 2 + 1)[:, None]
    rise = np.where(centre == left, row == centre, (row - left) / np.maximum(centre - left, 1))
    fall = (right - row) / np.maximum(right - centre, 1)
    inside = np.where(row <= centre, np.where(row >= left, rise, 0), np.where(row < right, fall, 0))
    return inside.astype(numpy_dtype(output_datatype))


define(
    "mel_weight_matrix",
    "num_mel_bins dft_length sample_rate lower_edge upper_edge",
    "y[bin, band] = the height at a spectrum bin of triangle `band`, the bands' edges spaced "
    "evenly in mel(f) = 2595 log10(1 + f/700). Source: ONNX MelWeightMatrix-17",
    _infer_mel,
    _mel_weights,
    attrs={"output_datatype": Attr("str", "float32")},
    flops=no_flops,
    family="other",
    rtol=2e-6,
    dtypes=(INDICES, INDICES, INDICES, FLOATING, FLOATING),
)
