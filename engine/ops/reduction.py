"""Reductions along axes, arg_max and arg_min, cumulative sums and products."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import ml_dtypes
import numpy as np

from trireme.ir.graph import ANY_RANK, UNKNOWN, Value
from trireme.ir.op import Attr, Axes, Call, IntegerForm, Sample, define
from trireme.ops import quantized
from trireme.ops.bounds import check_range
from trireme.ops.elementwise import divide
from trireme.ops.movement import draw, ints
from trireme.ops.quantized_samples import with_quantized
from trireme.ops.shapes import (
    Types,
    axes_of,
    axis_of,
    expect_single,
    ints_of,
    one,
    same_type,
    to_ints,
)
from trireme.support.dtypes import BOOL, INDICES, INTS, REALS, Array, dtype_name
from trireme.support.errors import ShapeError

Ints = tuple[int, ...]
_ATTRS = {"keepdims": Attr("int", 1), "noop_with_empty_axes": Attr("int", 0)}


def _chosen(rank: int, axes: Ints | None, noop: int) -> Ints:
    if not axes:
        return () if noop else tuple(range(rank))
    return axes_of(axes, rank)


def infer_reduce(
    x: Value, axes: Value | None = None, *, keepdims: int, noop_with_empty_axes: int
) -> Types:
    """Infer: reduced axes become 1 or disappear; all of them are reduced when none is given."""
    rank = len(x.shape)
    if axes is not None and axes.data is None and axes.shape != (0,):
        count = axes.shape[0] if axes.shape else 1
        if keepdims:
            return one((UNKNOWN,) * rank, x.dtype)
        if not isinstance(count, int):
            return one(ANY_RANK, x.dtype)
        return one((UNKNOWN,) * (rank - count), x.dtype)
    chosen = _chosen(rank, ints_of(axes), noop_with_empty_axes)
    if keepdims:
        return one([1 if i in chosen else d for i, d in enumerate(x.shape)], x.dtype)
    return one([d for i, d in enumerate(x.shape) if i not in chosen], x.dtype)


def _flops(call: Call) -> int:
    return call.type(0).elements


def _wide(x: Array) -> Array:
    return x.astype(np.float64) if x.dtype.kind not in "iubc" else x


def _log_sum_exp(x: Array, axis: Ints, keepdims: bool) -> Array:
    wide = x.astype(np.float64)
    top = wide.max(axis=axis, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    y = np.log(np.exp(wide - top).sum(axis=axis, keepdims=True)) + top
    return np.asarray(y if keepdims else y.squeeze(axis))


def _root(x: Array, axis: Ints, keepdims: bool) -> Array:
    wide = x.astype(np.float64)
    return np.asarray(np.sqrt((wide * wide).sum(axis=axis, keepdims=keepdims)))


def _mean(x: Array, axis: Ints, keepdims: bool) -> Array:
    if x.dtype.kind in "iu":
        count = int(np.prod([x.shape[i] for i in axis]))
        return divide(x.astype(np.int64).sum(axis=axis, keepdims=keepdims), np.array(count))
    wide = _wide(x)
    if x.size:
        return np.asarray(wide.mean(axis=axis, keepdims=keepdims))
    shape = wide.sum(axis=axis, keepdims=keepdims).shape
    return np.full(shape, np.nan)  # numpy warns of the mean of an empty array


def _ends(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Return the least and the greatest element of a dtype."""
    if dtype.kind == "b":
        return False, True
    if dtype_name(dtype) in INTS:
        info = ml_dtypes.iinfo(dtype)
        return info.min, info.max
    return -np.inf, np.inf


_KINDS: dict[str, tuple[str, Callable[..., Any], float]] = {
    "sum": ("the sum", lambda x, **o: _wide(x).sum(**o), 4e-6),
    "mean": ("the mean; of integers cut toward zero", _mean, 4e-6),
    "max": ("the greatest; NaN wins", lambda x, **o: x.max(**o, initial=_ends(x.dtype)[0]), 0),
    "min": ("the least; NaN wins", lambda x, **o: x.min(**o, initial=_ends(x.dtype)[1]), 0),
    "prod": ("the product", lambda x, **o: _wide(x).prod(**o), 4e-6),
    "l1": ("the sum of |x|", lambda x, **o: np.abs(_wide(x)).sum(**o), 4e-6),
    "l2": ("sqrt of the sum of x^2", _root, 4e-6),
    "sum_square": ("the sum of x^2", lambda x, **o: np.square(_wide(x)).sum(**o), 4e-6),
    "log_sum": ("log of the sum", lambda x, **o: np.log(_wide(x).sum(**o)), 4e-6),
    "log_sum_exp": ("log of the sum of e^x", _log_sum_exp, 4e-6),
}


def _samples(rng: np.random.Generator) -> Iterable[Sample]:
    fixed = frozenset({1})
    x = np.abs(draw(rng, 2, 5, 7, 19)) + np.float32(0.1)
    yield Sample((x, ints(1, 2)), constants=fixed, note="global pooling")
    yield Sample((x, ints(-1)), {"keepdims": 0}, fixed, note="last axis")
    yield Sample((x, ints(0, 2)), constants=fixed, note="split axes")
    yield Sample((x,), {"keepdims": 0}, note="everything")
    yield Sample((draw(rng, 3, 4),), {"noop_with_empty_axes": 1}, note="no axes, no reduction")
    broken = np.abs(draw(rng, 4, 3))
    broken[0, 0], broken[1, 1], broken[2, 2] = np.nan, np.inf, 0
    yield Sample((broken, ints(1)), constants=fixed, note="NaN, infinity")
    yield Sample((np.array(0.75, np.float32),), note="a scalar")


def _integer_samples(rng: np.random.Generator) -> Iterable[Sample]:
    yield from _samples(rng)
    x = rng.integers(-3, 4, (3, 5, 2)).astype(np.int32)
    yield Sample((x, ints(1)), constants=frozenset({1}), note="integers")


_STORED: dict[str, tuple[IntegerForm, quantized.Quantized]] = {
    "sum": ("own", quantized.reduce_sum),
    "mean": ("own", quantized.reduce_mean),
    "max": ("same", quantized.on_stored("reduce_max")),
    "min": ("same", quantized.on_stored("reduce_min")),
}
"""The forms on stored integers."""


_FILLS: dict[str, float] = {
    "sum": 0.0,
    "sum_square": 0.0,
    "l1": 0.0,
    "l2": 0.0,
    "log_sum": 0.0,
    "log_sum_exp": -math.inf,
    "max": -math.inf,
    "min": math.inf,
    "prod": 1.0,
    "any": 0.0,
    "all": 1.0,
}
"""Elements that do not change a reduction; a mean counts any element."""


def _reduction(name: str, doc: str, function: Callable[..., Any], **options: Any) -> None:
    def reference(
        x: Array, axes: Array | None = None, *, keepdims: int, noop_with_empty_axes: int
    ) -> Array:
        chosen = _chosen(x.ndim, None if axes is None else to_ints(axes), noop_with_empty_axes)
        y = function(x, axis=chosen, keepdims=bool(keepdims))
        return np.asarray(y).astype(x.dtype)

    define(
        f"reduce_{name}",
        "x axes?",
        f"y = {doc}",
        infer_reduce,
        reference,
        attrs=_ATTRS,
        flops=_flops,
        family="reduce",
        axes=Axes("input", "reduces"),
        fill=_FILLS.get(name),
        **options,
    )


for _name, (_doc, _function, _rtol) in _KINDS.items():
    _integer_form, _quantized = _STORED.get(_name, ("", None))
    _drawn = _integer_samples if _name in (*_STORED, "prod") else _samples
    _reduction(
        _name,
        f"{_doc} along axes, all when none is given. Source: ONNX Reduce ops, opset 20",
        _function,
        samples=with_quantized(f"reduce_{_name}", _drawn),
        rtol=_rtol,
        quantized=_quantized,
        integer_form=_integer_form,
        dtypes=(REALS | BOOL if _name in ("max", "min") else REALS, INDICES),
    )


def _truth_samples(rng: np.random.Generator) -> Iterable[Sample]:
    for axis, keep in ((1, 1), (-1, 0)):
        x = rng.integers(0, 2, (3, 5, 2)).astype(bool)
        yield Sample((x, ints(axis)), {"keepdims": keep}, frozenset({1}))


for _name, _truth in (("any", np.any), ("all", np.all)):
    _reduction(
        _name,
        f"whether {_name} of x is true. Source: TFLite",
        _truth,
        samples=_truth_samples,
        dtypes=(BOOL, INDICES),
    )


def _infer_arg(x: Value, *, axis: int, keepdims: int, **attrs: object) -> Types:
    axis = axis_of(axis, len(x.shape))
    if x.shape[axis] == 0 and 0 not in (*x.shape[:axis], *x.shape[axis + 1 :]):
        raise ShapeError(f"axis {axis} of {x.type} is empty, so it has no greatest or least")
    kept = (1,) if keepdims else ()
    return one((*x.shape[:axis], *kept, *x.shape[axis + 1 :]), "int64")


def _arg(function: Callable[..., Any]) -> Callable[..., Array]:
    def reference(x: Array, *, axis: int, keepdims: int, select_last_index: int) -> Array:
        if not x.size:  # inference checked that the result is empty too; numpy refuses the axis
            found = np.zeros(np.delete(x.shape, axis), np.int64)
        elif select_last_index:
            found = x.shape[axis] - 1 - function(np.flip(x, axis), axis=axis)
        else:
            found = function(x, axis=axis)
        return np.expand_dims(found, axis) if keepdims else np.asarray(found)

    return reference


def _arg_samples(rng: np.random.Generator) -> Iterable[Sample]:
    yield Sample((draw(rng, 2, 5, 19),), {"axis": -1, "keepdims": 0}, note="last axis")
    yield Sample((draw(rng, 7, 3),), {"axis": 0})
    ties = np.array([[1, 3, 3], [2, 2, 1]], np.float32)
    yield Sample((ties,), {"axis": 1, "select_last_index": 1}, note="last of ties")
    yield Sample((ties,), {"axis": 1}, note="first of ties")
    yield Sample((np.zeros((0, 3, 0), np.float32),), {"axis": 0}, note="an empty axis of nothing")


for _name, _arg_function in (("max", np.argmax), ("min", np.argmin)):
    define(
        f"arg_{_name}",
        "x",
        f"y = the index of the {_name} along `axis`, the first of ties (or the last). "
        "Source: ONNX ArgMax-13",
        _infer_arg,
        _arg(_arg_function),
        flops=_flops,
        samples=_arg_samples,
        family="reduce",
        moves=True,
        axes=Axes("axis", "reduces"),
        fill=_FILLS[_name],
        dtypes=(REALS | BOOL,),
        attrs={
            "axis": Attr("int", 0),
            "keepdims": Attr("int", 1),
            "select_last_index": Attr("int", 0),
        },
    )


def _infer_running(x: Value, axis: Value, **attrs: int) -> Types:
    expect_single("axis", axis)
    for number in ints_of(axis) or ():
        axis_of(number, len(x.shape))
    return same_type(x)


def _running(function: Callable[..., Any], first: int) -> Callable[..., Array]:
    def reference(x: Array, axis: Array, *, exclusive: int, reverse: int) -> Array:
        check_range("axis", axis, -x.ndim, x.ndim - 1)
        at = int(axis.reshape(()))
        x = np.flip(x, at) if reverse else x
        y = np.asarray(function(_wide(x), axis=at)).astype(x.dtype)
        if exclusive and y.size:
            y = np.roll(y, 1, at)
            y[(slice(None),) * (at % x.ndim) + (0,)] = first
        return np.ascontiguousarray(np.flip(y, at)) if reverse else y

    return reference


def _running_samples(rng: np.random.Generator) -> Iterable[Sample]:
    for exclusive, reverse in ((0, 0), (1, 0), (0, 1), (1, 1)):
        attrs = {"exclusive": exclusive, "reverse": reverse}
        yield Sample((draw(rng, 3, 7), np.array(1, np.int64)), attrs, frozenset({1}))


for _name, _run, _first in (("sum", np.cumsum, 0), ("prod", np.cumprod, 1)):
    define(
        f"cum_{_name}",
        "x axis",
        f"y = the running {_name} along `axis`, without the element itself when exclusive, "
        f"from the end when reverse. Source: ONNX Cum{_name.title()}",
        _infer_running,
        _running(_run, _first),
        samples=_running_samples,
        family="reduce",
        axes=Axes("input", "accumulates"),
        fill=float(_first),
        attrs={"exclusive": Attr("int", 0), "reverse": Attr("int", 0)},
        rtol=4e-6,
        dtypes=(REALS, INDICES),
    )
