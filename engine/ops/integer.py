"""conv_integer: ONNX's convolution of integers whose zero points are inputs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from trireme.dtypes import Array
from trireme.graph import Value
from trireme.op import Attr, OpDef, Sample, define, get_op
from trireme.ops.convolution import LAYOUT, conv_flops, conv_sum
from trireme.ops.shapes import Types, one

Ints = tuple[int, ...]
_WINDOW = {
    "strides": Attr("ints"),
    "pads": Attr("ints"),
    "dilations": Attr("ints"),
    "groups": Attr("int", 1),
    "layout": LAYOUT,
}


def _less(x: Array, zero: Array | None) -> Array:
    """Return x less its zero point, of the tensor or of each index of its first axis."""
    wide = x.astype(np.float64)
    if zero is None:
        return wide
    spread = () if zero.size == 1 else (-1, *[1] * (x.ndim - 1))
    return np.asarray(wide - zero.astype(np.float64).reshape(spread))


def _conv_type(x: Value, w: Value, dtype: str, attrs: dict[str, object]) -> Types:
    (type,) = get_op("conv").infer(x, w, **attrs, activation="")
    return one(type.shape, dtype)


def _conv_integer(
    x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None, *, strides: Ints,
    pads: Ints, dilations: Ints, groups: int, layout: str,
) -> Array:  # fmt: skip
    a, b = _less(x, x_zero), _less(w, w_zero)
    return conv_sum(a, b, strides, pads, dilations, groups, layout).astype(np.int32)


def _conv_samples(rng: np.random.Generator) -> Iterable[Sample]:
    x = rng.integers(0, 256, (2, 3, 6, 7)).astype(np.uint8)
    w = rng.integers(0, 256, (4, 3, 3, 2)).astype(np.uint8)
    attrs = {"strides": (1, 2), "pads": (1, 0, 1, 0), "dilations": (1, 1), "layout": "NCHW"}
    yield Sample((x, w), attrs, frozenset({1}), note="no zero points")
    zeros = (np.array(120, np.uint8), np.array(3, np.uint8))
    yield Sample((x, w, *zeros), attrs, frozenset({1, 2, 3}), note="zero points")


define(
    OpDef(
        "conv_integer", "x w x_zero_point? w_zero_point?",
        "y = conv of (x - x_zero_point) with (w - w_zero_point), int32; shapes as of conv. "
        "Source: ONNX ConvInteger-10",
        lambda x, w, xz=None, wz=None, **attrs: _conv_type(x, w, "int32", attrs), _conv_integer,
        attrs=_WINDOW, flops=conv_flops, samples=_conv_samples, family="conv",
    )
)  # fmt: skip
