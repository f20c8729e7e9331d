"""integer_svdf: a layer of filters with memory on int8 values, as LiteRT computes it.

The values are plain integers. The attributes hold the scales between them as multipliers and shifts
(`multiply_by_quantized`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from trireme.ir.graph import Quant, TensorType, Value
from trireme.ir.op import Attr, Call, Sample, define
from trireme.ops.integer import dtype_limits, multiply_by_quantized, quantize_multiplier
from trireme.ops.shapes import Types, expect, expect_dims, expect_rank
from trireme.support.dtypes import Array
from trireme.support.errors import GraphError

Ints = tuple[int, ...]


def _svdf(
    x: Array,
    features: Array,
    time: Array,
    state: Array,
    bias: Array | None = None,
    *,
    rank: int,
    multipliers: Ints,
    shifts: Ints,
    x_zero: int,
    y_zero: int,
) -> tuple[Array, ...]:
    filters, memory = time.shape
    (feature, y_scale), batch = zip(multipliers, shifts, strict=True), x.shape[0]
    dots = (x.astype(np.int64) - x_zero) @ features.astype(np.int64).T
    last = np.clip(multiply_by_quantized(dots, *feature), *dtype_limits("int16"))
    old = state.astype(np.int64).reshape(batch, filters, memory)
    new = np.concatenate([old[:, :, 1:], last[:, :, None]], axis=2)
    weighted = (new * time.astype(np.int64)).sum(axis=2)
    total = weighted.reshape(batch, filters // rank, rank).sum(axis=2)
    if bias is not None:
        total = total + bias
    y = multiply_by_quantized(total.astype(np.int32), *y_scale) + y_zero
    made = new.reshape(batch, filters * memory).astype(np.int16)
    return np.clip(y, *dtype_limits("int8")).astype(np.int8), made


def _infer_svdf(
    x: Value,
    features: Value,
    time: Value,
    state: Value,
    bias: Value | None = None,
    *,
    rank: int,
    multipliers: Ints,
    shifts: Ints,
    **attrs: Any,
) -> Types:
    for name, value in (("x", x), ("features", features), ("time", time)):
        expect_rank(name, value, 2)
    if (len(multipliers), len(shifts)) != (2, 2):
        raise GraphError(f"{len(multipliers)} multipliers and {len(shifts)} shifts, expected 2")
    expect("x's last dimension", x.shape[1], features.shape[1], "columns of features")
    filters = expect("rows of features", features.shape[0], time.shape[0], "rows of time")
    memory = time.shape[1]
    if not isinstance(filters, int) or not isinstance(memory, int) or not memory:
        raise GraphError(f"features are {features.type} and time is {time.type}")
    if rank < 1 or filters % rank:
        raise GraphError(f"{filters} filters do not divide by rank {rank}")
    if bias is not None:
        expect_dims("bias", bias, filters // rank)
    expect_dims("state", state, x.shape[0], filters * memory)
    return (
        TensorType((x.shape[0], filters // rank), "int8"),
        TensorType((x.shape[0], filters * memory), "int16"),
    )


def _svdf_flops(call: Call) -> int:
    batch = call.type(0).dims[0]
    return 2 * batch * (call.type(1).elements + call.type(2).elements)


def _svdf_samples(rng: np.random.Generator) -> Iterable[Sample]:
    for rank, x_zero, reals in ((1, 5, (0.9, 1e-7)), (2, -3, (0.4, 3e-7))):
        values = (
            rng.integers(-128, 128, (2, 7)).astype(np.int8),
            rng.integers(-127, 128, (6, 7)).astype(np.int8),
            rng.integers(-30000, 30000, (6, 4)).astype(np.int16),
            rng.integers(-30000, 30000, (2, 24)).astype(np.int16),
            rng.integers(-90000, 90000, 6 // rank).astype(np.int32),
        )
        multipliers, shifts = zip(*map(quantize_multiplier, reals), strict=True)
        scales = {"multipliers": multipliers, "shifts": shifts}
        attrs = {"rank": rank, "x_zero": x_zero, "y_zero": 4 * x_zero, **scales}
        quants = (Quant((0.1,), (x_zero,)),) if rank == 2 else ()
        outs = (Quant((0.2,), (4 * x_zero,)), None) if rank == 2 else ()
        yield Sample(values, attrs, frozenset({1, 2, 4}), quants, outs, note=f"rank {rank}")


define(
    "integer_svdf",
    "x features time state bias?",
    "y = the sum over the last M products of (x - x_zero) with each filter, times the filter's "
    "weights by time, then over `rank` filters, + bias, scaled. Shapes: x [B,I], features [F,I], "
    "time [F,M], state [B,F*M], bias [F/rank] -> y [B,F/rank], state. Source: TFLite SVDF",
    _infer_svdf,
    _svdf,
    outputs="y state",
    quantized=lambda call, *arrays: _svdf(*arrays, **call.attrs),
    attrs={
        "rank": Attr("int", 1, least=1),
        "multipliers": Attr("ints", least=0),
        "shifts": Attr("ints", least=-31),
        "x_zero": Attr("int", 0),
        "y_zero": Attr("int", 0),
    },
    flops=_svdf_flops,
    samples=_svdf_samples,
    family="matmul",
    dtypes=(*(frozenset({name}) for name in ("int8", "int8", "int16", "int16", "int32")),),
)
