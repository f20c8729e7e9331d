"""Samples of calls on int16 activations and int8 weights, like those of `quantized_samples`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from trireme.ir.graph import Quant
from trireme.ir.op import Sample
from trireme.support.dtypes import Array

_FIXED = frozenset({1, 2})
_UNIT = Quant((2.0**-15,), (0,))


def _scale(scale: float) -> Quant:
    return Quant((float(np.float32(scale)),), (0,))


def _drawn(rng: np.random.Generator, *shape: int) -> Array:
    return rng.integers(-32768, 32768, shape, np.int16)


def _weights(rng: np.random.Generator, *shape: int) -> Array:
    return rng.integers(-128, 128, shape, np.int8)


def _channels(rng: np.random.Generator, count: int, axis: int = 0) -> Quant:
    scales = rng.uniform(0.005, 0.02, count).astype(np.float32)
    return Quant(tuple(float(s) for s in scales), (0,) * count, axis)


def _bias(rng: np.random.Generator, count: int) -> Array:
    return rng.integers(-(2**33), 2**33, count)


_CONVS: tuple[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ("3x3", (1, 9, 11, 8), (16, 3, 3, 8), {"pads": (1, 1, 1, 1)}),
    ("odd channels", (2, 9, 7, 5), (19, 3, 3, 5), {"strides": (2, 2), "pads": (0, 0, 1, 1)}),
    ("pointwise relu6", (1, 5, 7, 37), (24, 1, 1, 37), {"activation": "relu6"}),
    ("many channels", (1, 2, 3, 1031), (3, 1, 1, 1031), {}),
    ("wide windows", (1, 5, 40, 300), (5, 2, 3, 300), {"pads": (0, 1, 0, 1)}),
    ("depthwise", (1, 8, 7, 19), (19, 3, 3, 1), {"groups": 19, "pads": (1, 1, 1, 1)}),
    ("depthwise, stride 2", (2, 9, 9, 70), (70, 5, 5, 1), {"groups": 70, "strides": (2, 2)}),
    ("dilated", (1, 11, 11, 4), (8, 3, 3, 4), {"dilations": (2, 3), "pads": (2, 3, 2, 3)}),
    ("two groups", (1, 6, 6, 8), (6, 3, 3, 4), {"groups": 2}),
    ("many outputs", (1, 3, 3, 6), (150, 1, 1, 6), {}),
    ("one pixel", (1, 1, 1, 3), (1, 1, 1, 3), {}),
)


def _window(attrs: dict[str, Any]) -> dict[str, Any]:
    plain = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "layout": "NHWC"}
    return {**plain, **attrs}


def _conv(rng: np.random.Generator) -> Iterator[Sample]:
    for note, x, w, attrs in _CONVS:
        inputs = (_drawn(rng, *x), _weights(rng, *w), _bias(rng, w[0]))
        quants = (_scale(0.00037), _channels(rng, w[0]), None)
        out = _scale(0.00015 * float(np.sqrt(np.prod(w[1:]))))
        yield Sample(inputs, _window(attrs), _FIXED, quants, (out,), f"int16 {note}")
    full = (np.full((1, 4, 4, 512), -32768, np.int16), np.full((2, 3, 3, 512), -128, np.int8))
    ends = (_scale(0.001), _scale(0.01))
    fixed = frozenset({1})
    yield Sample(full, _window({}), fixed, ends, (_scale(0.01),), "int16 greatest sums")


def _conv_transpose(rng: np.random.Generator) -> Iterator[Sample]:
    attrs = {"strides": (2, 2), "pads": (0, 0, 1, 1), "dilations": (1, 1), "layout": "NHWC"}
    inputs = (_drawn(rng, 1, 5, 6, 6), _weights(rng, 6, 3, 3, 5), _bias(rng, 5))
    quants = (_scale(0.00037), _channels(rng, 5, 3), None)
    yield Sample(inputs, attrs, _FIXED, quants, (_scale(0.002),), "int16")


def _fully_connected(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, depth, count, activation in ((1, 64, 48, ""), (9, 33, 5, "relu"), (2, 1500, 70, "")):
        inputs = (_drawn(rng, rows, depth), _weights(rng, count, depth), _bias(rng, count))
        out = _scale(0.00015 * depth**0.5)
        for tag, w in (("channels", _channels(rng, count)), ("one scale", _scale(0.0123))):
            yield Sample(
                inputs,
                {"activation": activation},
                _FIXED,
                (_scale(0.00037), w, None),
                (out,),
                f"int16 {rows} rows, {tag}",
            )


def _binary(rng: np.random.Generator) -> Iterator[Sample]:
    a, b, y = _scale(0.0005), _scale(0.00021), _scale(0.0007)
    for shape, other in (((3, 37), (3, 37)), ((2, 5, 19), (19,)), ((4, 6), (4, 1))):
        for activation in ("", "relu6"):
            inputs = (_drawn(rng, *shape), _drawn(rng, *other))
            yield Sample(inputs, {"activation": activation}, frozenset(), (a, b), (y,), "int16")


def _same(rng: np.random.Generator) -> Iterator[Sample]:
    inputs, quant = (_drawn(rng, 3, 19), _drawn(rng, 3, 19)), _scale(0.0005)
    yield Sample(inputs, {}, frozenset(), (quant, quant), (quant,), "int16")


def _pool(rng: np.random.Generator) -> Iterator[Sample]:
    quant = _scale(0.0005)
    for kernel, strides, pads in (((3, 2), (2, 2), (1, 0, 1, 1)), ((2, 2), (1, 1), (0, 0, 0, 0))):
        attrs = {**_window({"strides": strides, "pads": pads}), "kernel": kernel}
        yield Sample((_drawn(rng, 2, 7, 9, 19),), attrs, frozenset(), (quant,), (quant,), "int16")


def _mean(rng: np.random.Generator) -> Iterator[Sample]:
    for axes, keep in (((1, 2), 1), ((1, 2), 0), ((3,), 0)):
        inputs = (_drawn(rng, 2, 5, 7, 19), np.array(axes))
        quants = (_scale(0.0005), None)
        yield Sample(inputs, {"keepdims": keep}, frozenset({1}), quants, (_scale(0.0003),), "int16")


def _concat(rng: np.random.Generator) -> Iterator[Sample]:
    inputs, quant = (_drawn(rng, 2, 5, 3), _drawn(rng, 2, 4, 3)), _scale(0.0005)
    yield Sample(inputs, {"axis": 1}, frozenset(), (quant, quant), (quant,), "int16")


def _softmax(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, scale in (
        ((5, 37), 0.0005),
        ((1, 1000), 0.00002),
        ((3, 1), 0.001),
        ((2, 3, 4), 0.1),
    ):
        yield Sample((_drawn(rng, *shape),), {}, frozenset(), (_scale(scale),), (_UNIT,), "int16")


def _quantize(rng: np.random.Generator) -> Iterator[Sample]:
    real = rng.standard_normal((3, 37)).astype(np.float32)
    real[0, :5] = np.nan, 40, -40, 0.00002, -0.00002
    to = {"dtype": "int16"}
    yield Sample((real,), to, frozenset(), (None,), (_scale(0.00004),), "floats to int16")
    x = _drawn(rng, 3, 37)
    for dtype, y in (("int16", _scale(0.0003)), ("int8", Quant((0.125,), (5,)))):
        quants = (_scale(0.0005),)
        yield Sample((x,), {"dtype": dtype}, frozenset(), quants, (y,), f"int16 to {dtype}")


def _dequantize(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((_drawn(rng, 3, 37),), {}, frozenset(), (_scale(0.0005),), (None,), "int16")


def table_samples_16(op: str) -> Iterator[Sample]:
    """Yield samples of an op whose form on int16 is a table."""
    rng = np.random.default_rng(16)
    is_unit = op in ("sigmoid", "tanh")
    for scale in (0.0005, 0.000013, 2.0**-12):
        y = _UNIT if is_unit else _scale(0.0006)
        yield Sample((_drawn(rng, 3, 37),), {}, frozenset(), (_scale(scale),), (y,), "int16")


SAMPLERS_16: dict[str, Callable[[np.random.Generator], Iterator[Sample]]] = {
    "add": _binary,
    "sub": _binary,
    "mul": _binary,
    "max": _same,
    "min": _same,
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "fully_connected": _fully_connected,
    "average_pool": _pool,
    "max_pool": _pool,
    "reduce_mean": _mean,
    "quantize": _quantize,
    "dequantize": _dequantize,
    "concat": _concat,
    "softmax": _softmax,
}
