"""Softmax and related ops, which normalise along one axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from trireme.ir.graph import Value
from trireme.ir.op import Attr, Axes, Call, Sample, define
from trireme.ops import axis_maps, quantized
from trireme.ops.movement import draw
from trireme.ops.quantized_samples import with_quantized
from trireme.ops.shapes import Types, axis_of, same_type
from trireme.support.dtypes import FLOATING, Array

_FLOPS, _INTEGER_FLOPS = 15, 120
"""Operations an element. Those on integers stand for 0.8 ns at the rates of a cpu with AVX-512 or
AVX2 (docs/experiments/cpu-kernels.md)."""


def flops_each(cost: int) -> Callable[[Call], int]:
    """Return the cost of an op that does `cost` operations an input element."""
    return lambda call: cost * call.type(0).elements


def _softmax_flops(call: Call) -> int:
    """Return the cost of softmax; on integers two table reads and a division take the most."""
    cost = _FLOPS if call.type(0).quant is None else _INTEGER_FLOPS
    return cost * call.type(0).elements


def _infer_axis(x: Value, *, axis: int, **attrs: object) -> Types:
    axis_of(axis, len(x.shape)) if x.shape else None
    return same_type(x)


def softmax(x: Array, axis: int, beta: float = 1.0) -> Array:
    """Return e^(beta x) over its sum along an axis, in double precision."""
    wide = beta * x.astype(np.float64)
    powers = np.exp(wide - wide.max(axis=axis, keepdims=True, initial=-np.inf))
    return np.asarray(powers / powers.sum(axis=axis, keepdims=True))


def log_softmax(x: Array, axis: int) -> Array:
    """Return x minus the log of the sum of e^x along an axis, in double precision."""
    wide = x.astype(np.float64)
    if not x.size:
        return wide
    shifted = wide - wide.max(axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)))


def _hardmax(x: Array, *, axis: int) -> Array:
    if not x.size:
        return x
    best = np.expand_dims(x.argmax(axis=axis), axis)
    y = np.zeros_like(x)
    np.put_along_axis(y, best, np.ones((), x.dtype), axis)
    return y


def _axis_samples(rng: np.random.Generator) -> Iterable[Sample]:
    yield Sample((draw(rng, 1, 1001),), {"axis": -1}, note="classifier")
    yield Sample((draw(rng, 2, 7, 19) * 9,), {"axis": -1}, note="odd")
    yield Sample((draw(rng, 2, 7, 5),), {"axis": 1}, note="inner axis")
    yield Sample((draw(rng, 3, 1),), {"axis": -1}, note="one element")
    yield Sample((np.array([[1e4, 1e4 - 1, -1e4]], np.float32),), {"axis": -1}, note="large")
    broken = draw(rng, 3, 4)
    broken[0, 1], broken[1, 2] = np.nan, -np.inf
    yield Sample((broken,), {"axis": -1}, note="NaN, -infinity")


def _softmax_samples(rng: np.random.Generator) -> Iterable[Sample]:
    yield from _axis_samples(rng)
    yield Sample((draw(rng, 3, 9),), {"axis": -1, "beta": 0.5}, note="beta")


AXIS = Attr("int", -1)
define(
    "softmax",
    "x",
    "y = e^(beta x) / sum of e^(beta x) along `axis`. Source: ONNX, TFLite",
    _infer_axis,
    lambda x, axis, beta: softmax(x, axis, beta).astype(x.dtype),
    attrs={"axis": AXIS, "beta": Attr("float", 1.0, least=0)},
    flops=_softmax_flops,
    samples=with_quantized("softmax", _softmax_samples),
    family="normalize",
    rtol=4e-6,
    quantized=quantized.softmax,
    axes=Axes("axis", "normalises"),
    axis_map=axis_maps.shares,
    integer_form="own",
    dtypes=(FLOATING,),
)
define(
    "log_softmax",
    "x",
    "y = x - log(sum of e^x) along `axis`. Source: ONNX LogSoftmax-13",
    _infer_axis,
    lambda x, axis: log_softmax(x, axis).astype(x.dtype),
    attrs={"axis": AXIS},
    flops=flops_each(_FLOPS),
    samples=with_quantized("log_softmax", _axis_samples),
    family="normalize",
    rtol=4e-6,
    quantized=quantized.through_float("log_softmax"),
    axes=Axes("axis", "normalises"),
    fill=-math.inf,
    dtypes=(FLOATING,),
)
define(
    "hardmax",
    "x",
    "y = 1 at the first greatest element along `axis`, else 0. Source: ONNX",
    _infer_axis,
    _hardmax,
    attrs={"axis": AXIS},
    family="normalize",
    axes=Axes("axis", "normalises"),
    fill=-math.inf,
    samples=lambda rng: [Sample((draw(rng, 3, 7, 5),), {"axis": a}) for a in (-1, 1)],
    dtypes=(FLOATING,),
)


def _lp_norm(x: Array, *, axis: int, p: int) -> Array:
    wide = x.astype(np.float64)
    norm = (np.abs(wide) ** p).sum(axis=axis, keepdims=True) ** (1 / p)
    return np.where(norm == 0, 0, wide / norm).astype(x.dtype)


define(
    "lp_normalization",
    "x",
    "y = x / (sum of |x|^p along `axis`)^(1/p), 0 where that is 0. Source: ONNX, opset 22",
    _infer_axis,
    _lp_norm,
    attrs={"axis": AXIS, "p": Attr("int", 2, (1, 2))},
    axes=Axes("axis", "normalises"),
    fill=0.0,
    flops=flops_each(4),
    family="normalize",
    rtol=4e-6,
    samples=lambda rng: [
        Sample((draw(rng, 3, 7),), {"p": p, "axis": axis}) for p, axis in ((1, -1), (2, -1), (2, 0))
    ],
    dtypes=(FLOATING,),
)
