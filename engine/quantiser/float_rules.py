"""Rules of weights that become floats again before a product, and of products on 8-bit levels.

float16: the weights are stored as float16 and cast to float32, which a session does once, at load.
dynamic: the weights are int8 with a scale a channel. The input is rounded to 8 bits in the run, by
a range of its own for each row (or image). The nodes are those of TensorFlow Lite's hybrid kernels
(converters/tflite/dynamic_range.py), which devices with integers match as a whole.

    step = max((max(x, 0) - min(x, 0)) / 255, tiny), point = clip(round(-128 - min / step)),
    q = clip(round(x / step + point)) - point,  y = op(q, w) * (step * scales) + bias
"""

from __future__ import annotations

import numpy as np

from trireme.quantiser.measure import decibels
from trireme.quantiser.weight_rules import Rewriting, Stored, finished, gather_blocks
from trireme.support.dtypes import Array

_TINY = 1e-30
"""The range of an input of zeros alone."""
_MOST = 127
_SHRINKS = np.linspace(1.0, 0.8, 9)
"""Shares of a channel's peak that are tried as its greatest number."""


def half(use: Rewriting) -> tuple[int, Stored]:
    """op(x, w) -> op(x, cast(w as float16)); a gather casts the rows that it takes."""
    node, w = use.node, use.weights
    small = w.astype(np.float16)
    inputs = list(node.inputs)
    inputs[use.scheme.ops[node.op]] = use.constant(small, "half")
    if node.op == "gather":
        made = use.add("cast", use.add("gather", *inputs, **node.attrs), to="float32")
    else:
        place = use.scheme.ops[node.op]
        inputs[place] = use.add("cast", inputs[place], to="float32")
        made = use.add(node.op, *inputs, **node.attrs)
    noise = float(np.sum((w - small.astype(np.float64)) ** 2))
    ratio = decibels(float(np.vdot(w, w)), noise)
    return made, Stored("float16, computed in float32", small.nbytes, ratio)


def dynamic_product(use: Rewriting) -> tuple[int, Stored]:
    """op(x, w, bias, residual) -> the product of levels of x and int8 weights, scaled."""
    node = use.node
    axes = (-1,) if node.op == "fully_connected" else (1, 2, 3)
    levels, step = _levels(use, node.used[0], axes)
    numbers, scales, stored = _channels(use)
    w = use.add("cast", use.constant(numbers, "int8"), to="float32")
    plain = {key: value for key, value in node.attrs.items() if key != "activation"}
    product = use.add(node.op, levels, w, **plain)
    y = use.add("mul", product, use.add("mul", step, use.constant(scales, "scales")))
    bias, residual = (node.inputs[at] if at < len(node.inputs) else None for at in (2, 3))
    if bias is not None:
        y = use.add("add", y, bias)
    return finished(use, y, residual), stored


def _levels(use: Rewriting, x: int, axes: tuple[int, ...]) -> tuple[int, int]:
    """Return x as whole numbers of a range of 255 that holds 0, and the step between them.

    Products of one input share them.
    """
    key = ("levels", x, axes)
    if key not in use.g.memo:
        use.g.memo[key] = _made_levels(use, x, axes)
    made: tuple[int, int] = use.g.memo[key]
    return made


def _made_levels(use: Rewriting, x: int, axes: tuple[int, ...]) -> tuple[int, int]:
    def number(value: float) -> int:
        return use.g.constant(np.array(value, np.float32))

    over = use.g.constant(np.array(axes))
    zero, least, most = number(0), number(-128), number(127)
    low = use.add("min", use.add("reduce_min", x, over, keepdims=1), zero)
    high = use.add("max", use.add("reduce_max", x, over, keepdims=1), zero)
    step = use.add("mul", use.add("sub", high, low), number(1 / 255))
    step = use.add("max", step, number(_TINY))
    point = use.add("round", use.add("sub", least, use.add("div", low, step)))
    point = use.add("clip", point, least, most)
    shifted = use.add("add", use.add("div", x, step), point)
    levels = use.add("clip", use.add("round", shifted), least, most)
    return use.add("sub", levels, point), step


def _channels(use: Rewriting) -> tuple[Array, Array, Stored]:
    """Return weights as int8 with the scale of least squared error for each channel."""
    w = use.weights.astype(np.float64)
    rows = w.reshape(len(w), -1)
    peaks = np.abs(rows).max(axis=1, initial=0.0)
    peaks = np.where(peaks > 0, peaks, 1.0)
    least, scales = np.full(len(w), np.inf), peaks / _MOST
    for share in _SHRINKS:
        scale = (peaks * share / _MOST).astype(np.float32).astype(np.float64)
        error = np.sum((rows - _rounded(rows, scale) * scale[:, None]) ** 2, axis=1)
        scales, least = np.where(error < least, scale, scales), np.minimum(error, least)
    numbers = _rounded(rows, scales).astype(np.int8).reshape(w.shape)
    ratio = decibels(float(np.sum(w * w)), float(least.sum()))
    stored = Stored("int8 a channel, products on levels of 8 bits", w.size + 4 * len(w), ratio)
    return numbers, scales.astype(np.float32), stored


def _rounded(rows: Array, scales: Array) -> Array:
    return np.asarray(np.clip(np.rint(rows / scales[:, None]), -_MOST, _MOST))


def dynamic_rows(use: Rewriting) -> tuple[int, Stored]:
    """gather(w, i) -> rows of 8 bits, each with a scale of its own."""
    return gather_blocks(use.with_group(use.weights.shape[1]))
