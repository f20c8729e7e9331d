"""integer_lstm: an lstm of int8 values, as LiteRT computes it.

The values are plain integers. The attributes hold the scales between them as multipliers and shifts
(`multiply_by_quantized`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from trireme.ir.graph import Quant, TensorType, Value
from trireme.ir.op import Attr, Call, Sample, define
from trireme.ops.integer import multiply_by_quantized, quantize_multiplier
from trireme.ops.integer.arithmetic import rounding_divide_by_power_of_two
from trireme.ops.integer.fixed_point import sigmoid_table, tanh_table
from trireme.ops.integer.normalization import layer_normalized
from trireme.ops.shapes import Types, expect, expect_dims, expect_rank
from trireme.support.dtypes import Array
from trireme.support.errors import GraphError

Ints = tuple[int, ...]
_INT16 = (-32768, 32767)
_INT8 = (-128, 127)


class Scales:
    """The multipliers and shifts of an integer_lstm, taken in their order."""

    def __init__(self, multipliers: Ints, shifts: Ints, gates: int) -> None:
        pairs = list(zip(multipliers, shifts, strict=True))
        if len(pairs) != 3 * gates + 5:
            raise GraphError(f"{len(pairs)} multipliers, expected {3 * gates + 5}")
        self.inputs, self.recurrent = pairs[:gates], pairs[gates : 2 * gates]
        self.norms = pairs[2 * gates : 3 * gates]
        self.peepholes = pairs[3 * gates : 3 * gates + 3]
        self.hidden, self.projection = pairs[-2:]


def _accumulated(
    total: Array | int, acc: Array, scale: tuple[int, int], limits: tuple[int, int], zero: int = 0
) -> Array:
    """Return total + acc scaled, saturated.

    Source: TensorFlow Lite, portable tensor_utils: MatrixBatchVectorMultiplyAccumulate
    """
    return np.clip(multiply_by_quantized(acc, *scale) + zero + total, *limits)


def _looked_up(table: Array, x: Array) -> Array:
    return np.asarray(table[x + 32768], np.int64)


def _lstm_step(
    sums: Sequence[Array], h: Array, c: Array, p: dict[str, Any], scales: Scales
) -> tuple[Array, Array]:
    """Return the new states; the sums are what the input gives each gate."""
    count = len(sums)
    recurrent = np.split(h @ p["r"].T + p["r_bias"], count, axis=-1)
    gates = [
        _accumulated(x, acc, scale, _INT16)
        for x, acc, scale in zip(sums, recurrent, scales.recurrent, strict=True)
    ]
    gates = gates if count == 4 else [gates[0], *gates]  # without an input gate: never read

    def gate(k: int, peephole: int | None, state: Array) -> Array:
        """Return a gate: input, forget, cell, output; a peephole looks at a state."""
        x = gates[k]
        if peephole is not None and p["peepholes"] is not None:
            seen = cycled(p["peepholes"][peephole], state.shape, h.shape[1], p["alone"]) * state
            x = _accumulated(x, seen, scales.peepholes[peephole], _INT16)
        if p["norms"] is not None:
            own = k - 4 + count
            x = layer_normalized(
                x, p["norms"][own], p["norm_bias"][own], scales.norms[own], p["guards"][own]
            )
        return _looked_up(tanh_table(3) if k == 2 else sigmoid_table(), x)

    forget, made = gate(1, 1, c), gate(2, None, c)
    enter = _INT16[1] - forget if count == 3 else gate(0, 0, c)
    entered = _int16(rounding_divide_by_power_of_two(enter * made, 30 + p["cell_scale"]))
    new = np.clip(_int16(rounding_divide_by_power_of_two(forget * c, 15)) + entered, *_INT16)
    if p["cell_clip"] > 0:
        new = np.clip(new, -p["cell_clip"], p["cell_clip"])
    squashed = _looked_up(tanh_table(15 + p["cell_scale"]), new)
    hidden = multiply_by_quantized(gate(3, 2, new) * squashed, *scales.hidden)
    hidden = np.clip(hidden + p["hidden_zero"], *_INT8)
    if p["projection"] is None:
        return hidden, new
    acc = hidden @ p["projection"].T + p["projection_bias"]
    y = _accumulated(0, acc, scales.projection, _INT8, p["output_zero"])
    if p["projection_clip"] > 0:
        y = np.clip(y, -p["projection_clip"], p["projection_clip"])
    return y, new


def cycled(weights: Array, shape: tuple[int, ...], outputs: int, alone: bool) -> Array:
    """Return the peephole weight of each unit [B,H].

    LiteRT walks B times over as many units as the layer has outputs. With a projection to fewer,
    the weights are out of step, and the last units have none. In its batch-major form each
    sequence is `alone`.
    """
    batch, units = shape
    rows, repeats = (batch, 1) if alone else (1, batch)
    walked = np.zeros((rows, batch * units // rows), np.int64)
    count = min(repeats * outputs, walked.shape[1])
    walked[:, :count] = np.tile(weights[:outputs], repeats)[:count]
    return walked.reshape(shape)


def _int16(x: Array) -> Array:
    return x.astype(np.int16).astype(np.int64)


def _wide(x: Array | None) -> Any:
    return None if x is None else x.astype(np.int64)


def _lstm(
    x: Array,
    w: Array,
    r: Array,
    x_bias: Array,
    r_bias: Array,
    h: Array,
    c: Array,
    peepholes: Array | None = None,
    norms: Array | None = None,
    norm_bias: Array | None = None,
    projection: Array | None = None,
    projection_bias: Array | None = None,
    *,
    multipliers: Ints,
    shifts: Ints,
    guards: Ints,
    time_axis: int,
    **attrs: Any,
) -> tuple[Array, ...]:
    count = w.shape[0] // max(c.shape[1], 1)
    scales = Scales(multipliers, shifts, count)
    p = {
        "r": _wide(r),
        "r_bias": _wide(r_bias),
        "peepholes": _wide(peepholes),
        "norms": _wide(norms),
        "norm_bias": _wide(norm_bias),
        "projection": _wide(projection),
        "projection_bias": 0 if projection_bias is None else _wide(projection_bias),
        "guards": guards,
        "alone": time_axis == 1,
        **attrs,
    }
    steps = np.moveaxis(x, time_axis, 0).astype(np.int64)
    h, c = _wide(h), _wide(c)
    made = []
    for step in steps:
        accs = np.split(step @ w.T.astype(np.int64) + x_bias, count, axis=-1)
        sums = [
            _accumulated(0, acc, scale, _INT16)
            for acc, scale in zip(accs, scales.inputs, strict=True)
        ]
        h, c = _lstm_step(sums, h, c, p, scales)
        made.append(h)
    y = np.stack(made) if made else np.zeros((0, *h.shape))
    return np.moveaxis(y, 0, time_axis).astype(np.int8), h.astype(np.int8), c.astype(np.int16)


def _infer_lstm(
    x: Value,
    w: Value,
    r: Value,
    x_bias: Value,
    r_bias: Value,
    h: Value,
    c: Value,
    peepholes: Value | None = None,
    norms: Value | None = None,
    norm_bias: Value | None = None,
    projection: Value | None = None,
    projection_bias: Value | None = None,
    *,
    multipliers: Ints,
    shifts: Ints,
    guards: Ints,
    time_axis: int,
    cell_scale: int,
    **attrs: Any,
) -> Types:
    expect_rank("x", x, 3)
    for name, value in (("w", w), ("r", r), ("h", h), ("c", c)):
        expect_rank(name, value, 2)
    batch, units, outputs = x.shape[1 - time_axis], c.shape[1], h.shape[1]
    expect("x's last dimension", x.shape[2], w.shape[1], "columns of w")
    expect("columns of r", r.shape[1], outputs, "columns of h")
    expect("rows of r", r.shape[0], w.shape[0], "rows of w")
    expect_dims("h", h, batch, outputs)
    expect_dims("c", c, batch, units)
    if isinstance(units, int) and isinstance(w.shape[0], int):
        gates = 4 if w.shape[0] == 4 * units else 3
        expect("rows of w", w.shape[0], gates * units, "3 or 4 gates")
        Scales(multipliers, shifts, gates)
        for bias in (x_bias, r_bias):
            expect_dims("a bias", bias, gates * units)
        if peepholes is not None:
            expect_dims("peepholes", peepholes, 3, units)
        for part in (norms, norm_bias):
            if part is not None:
                expect_dims("norms", part, gates, units)
        if len(guards) != gates or (norms is None) != (norm_bias is None):
            raise GraphError(f"{len(guards)} guards, or a norm without its bias")
    if projection is not None:
        expect_dims("projection", projection, outputs, units)
        if projection_bias is not None:
            expect_dims("projection_bias", projection_bias, outputs)
    else:
        expect("columns of h", outputs, units, "units")
    if not -15 <= cell_scale <= -9:
        raise GraphError(f"cell_scale is {cell_scale}, expected -15 to -9")
    shape = (*x.shape[:2], outputs)
    return (
        TensorType(shape, "int8"),
        TensorType((batch, outputs), "int8"),
        TensorType((batch, units), "int16"),
    )


def _lstm_flops(call: Call) -> int:
    steps_batch = call.type(0).elements // max(call.type(0).dims[2], 1)
    return 2 * steps_batch * (call.type(1).elements + call.type(2).elements)


def _pairs(reals: Sequence[float]) -> dict[str, Ints]:
    pairs = [quantize_multiplier(real) for real in reals]
    return {"multipliers": tuple(m for m, _ in pairs), "shifts": tuple(s for _, s in pairs)}


def _lstm_samples(rng: np.random.Generator) -> Iterable[Sample]:
    def small(*shape: int, dtype: str = "int8", most: int = 127) -> Array:
        return rng.integers(-most, most + 1, shape).astype(dtype)

    for note, gates, extra in (
        ("plain", 4, False),
        ("coupled, batch first", 3, False),
        ("all parts", 4, True),
    ):
        units, outputs, inputs, batch = 5, 3 if extra else 5, 7, 2
        rows = gates * units
        values: list[Array | None] = [
            small(3, batch, inputs),
            small(rows, inputs),
            small(rows, outputs),
            small(rows, dtype="int32", most=9000),
            small(rows, dtype="int32", most=9000),
            small(batch, outputs),
            small(batch, units, dtype="int16", most=20000),
        ]
        if extra:
            values += [
                small(3, units, dtype="int16", most=20000),
                small(gates, units, dtype="int16", most=20000),
                small(gates, units, dtype="int32", most=90000),
                small(outputs, units),
                small(outputs, dtype="int32", most=9000),
            ]
        reals = [0.12] * (2 * gates) + [1e-4] * gates + [2e-4] * 3 + [1e-7, 0.005]
        attrs: dict[str, Any] = {
            **_pairs(reals),
            "guards": (1 + extra,) * gates,
            "cell_scale": -11 if extra else -12,
            "hidden_zero": -3 if extra else 2,
            **({"cell_clip": 15000, "projection_clip": 100, "output_zero": 4} if extra else {}),
        }
        if gates == 3:
            values[0] = np.swapaxes(np.asarray(values[0]), 0, 1)
            attrs["time_axis"] = 1
        fixed = frozenset({1, 2, 3, 4, *range(7, len(values))})
        quants = (Quant((0.1,), (0,)),) if extra else ()
        outs = (Quant((0.2,), (4,)), Quant((0.2,), (4,)), None) if extra else ()
        yield Sample(tuple(values), attrs, fixed, quants, outs, note=note)


_INTS8, _INTS16, _INTS32 = (frozenset({name}) for name in ("int8", "int16", "int32"))
define(
    "integer_lstm",
    "x w r x_bias r_bias h c peepholes? norms? norm_bias? projection? projection_bias?",
    "an lstm of int8 values: gates in int16 with 12 bits behind the point, gates i, f, c, o (f, c, "
    "o when i is 1 - f), the cell's step is 2**cell_scale. Shapes: x [S,B,I] ([B,S,I] with "
    "time_axis 1), w [G*H,I], r [G*H,O], h [B,O], c [B,H], peepholes [3,H], norms [G,H], "
    "projection [O,H] -> y [S,B,O], h, c. multipliers and shifts: G of w, G of r, G of norms, 3 of "
    "peepholes, of the hidden value, of the projection. Source: TFLite LSTM, int8",
    _infer_lstm,
    _lstm,
    outputs="y h c",
    quantized=lambda call, *arrays: _lstm(*arrays, **call.attrs),
    attrs={
        "multipliers": Attr("ints", least=0),
        "shifts": Attr("ints", least=-31),
        "guards": Attr("ints", least=1),
        "cell_scale": Attr("int"),
        "hidden_zero": Attr("int", 0),
        "output_zero": Attr("int", 0),
        "cell_clip": Attr("int", 0, least=0),
        "projection_clip": Attr("int", 0, least=0),
        "time_axis": Attr("int", 0, (0, 1)),
    },
    flops=_lstm_flops,
    samples=_lstm_samples,
    family="matmul",
    dtypes=(
        _INTS8,
        _INTS8,
        _INTS8,
        _INTS32,
        _INTS32,
        _INTS8,
        _INTS16,
        _INTS16,
        _INTS16,
        _INTS32,
        _INTS8,
        _INTS32,
    ),
)
