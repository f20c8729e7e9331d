"""dynamic_range_lstm: an LSTM that rounds its hidden values to 8 bits before each product."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from trireme.ir.dtype_rules import Like
from trireme.ir.graph import TensorType, Value
from trireme.ir.op import Attr, Call, Sample, define
from trireme.ops.shapes import Types, expect, expect_rank
from trireme.support.dtypes import Array

_BYTES = frozenset({"int8", "uint8"})
_FLOAT32 = frozenset({"float32"})


def _infer(
    gates: Value, r: Value, scale: Value, zero: Value, h: Value, c: Value, *, reverse: bool
) -> Types:
    expect_rank("gates", gates, 3)
    expect_rank("r", r, 2)
    steps, batch, wide = gates.shape
    size = r.shape[0]
    expect("the columns of r", r.shape[1], wide, "as of the gates")
    if isinstance(size, int):
        expect("the columns of r", r.shape[1], 4 * size, "four gates")
    for what, factor in (("scale", scale), ("zero", zero)):
        expect_rank(what, factor, 1)
        if factor.shape[0] != 1:
            expect(f"the length of {what}", factor.shape[0], wide, "or 1")
    for what, state in (("h", h), ("c", c)):
        expect_rank(what, state, 2)
        expect(f"the batch of {what}", state.shape[0], batch, "as of the gates")
        expect(f"the units of {what}", state.shape[1], size, "as of r")
    last = TensorType((batch, size), "float32")
    return (TensorType((steps, batch, size), "float32"), last, last)


def rounded(x: Array) -> tuple[Array, np.float32]:
    """Return x as whole numbers less their zero point, of 8 bits, and the size of a step.

    A range of 0 has the step 1.
    Source: ONNX DynamicQuantizeLinear; ONNX Runtime, GetQuantizationParameter
    """
    low, high = (np.float32(end(initial=0)) for end in (x.min, x.max))
    step = (high - low) / np.float32(255) if high > low else np.float32(1)
    point = np.clip(np.rint(-low / step), 0, 255)
    return np.clip(np.rint(x / step) + point, 0, 255) - point, step


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x.astype(np.float64))), np.float32)


def _dynamic_range_lstm(
    gates: Array, r: Array, scale: Array, zero: Array, h: Array, c: Array, *, reverse: bool
) -> tuple[Array, ...]:
    weights = r.astype(np.float64) - zero
    y = np.zeros((*gates.shape[:2], len(r)), np.float32)
    steps = range(len(gates))
    for t in reversed(steps) if reverse else steps:
        whole, step = rounded(h)
        product = (whole.astype(np.float64) @ weights).astype(np.float32)
        i, o, f, new = np.split(gates[t] + product * (step * scale), 4, axis=-1)
        c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(new)
        h = _sigmoid(o) * np.tanh(c)
        y[t] = h
    return y, np.array(h), np.array(c)


def _flops(call: Call) -> int:
    steps, batch, wide = call.type(0).dims
    return 2 * steps * batch * wide * call.type(1).dims[0]


def _samples(rng: np.random.Generator) -> Iterable[Sample]:
    cases = (("int8", 2, 3, 1, False), ("uint8", 2, 3, 12, True), ("int8", 1, 16, 1, False))
    for dtype, batch, units, columns, reverse in cases:
        info = np.iinfo(dtype)
        gates = rng.standard_normal((4, batch, 4 * units)).astype(np.float32)
        r = rng.integers(info.min, info.max + 1, (units, 4 * units)).astype(dtype)
        scale = rng.uniform(0.005, 0.02, columns).astype(np.float32)
        zero = np.full(columns, 0 if dtype == "int8" else 120, dtype)
        h, c = (rng.standard_normal((batch, units)).astype(np.float32) for _ in range(2))
        known, note = frozenset({1, 2, 3}), dtype if batch > 1 else "one sequence"
        yield Sample((gates, r, scale, zero, h, c), {"reverse": reverse}, known, note=note)


define(
    "dynamic_range_lstm",
    "gates r scale zero h c",
    """Run an LSTM whose hidden values are rounded to 8 bits before the product of each step.

    One range holds the hidden values of a step of the whole batch. gates are the products of the
    inputs plus the bias; the gates are i, o, f, c.

    Shapes: gates [S,B,4H], r [H,4H], scale and zero [1] or [4H], h, c [B,H] -> y [S,B,H], h, c
    Source: ONNX Runtime, DynamicQuantizeLSTM
    """,
    _infer,
    _dynamic_range_lstm,
    attrs={"reverse": Attr("bool", False)},
    outputs="y y_h y_c",
    flops=_flops,
    samples=_samples,
    family="matmul",
    rtol=1e-5,
    dtypes=(_FLOAT32, _BYTES, _FLOAT32, Like("r"), _FLOAT32, _FLOAT32),
)
