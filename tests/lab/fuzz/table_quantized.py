"""Rows of quantised graphs: QDQ pairs around float ops, ONNX's and ONNX Runtime's integer ops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from ort_integers import adds_exactly

from lab.fuzz.grower import MICROSOFT, Grower, Refused, Tensor
from lab.fuzz.rows import Row
from lab.fuzz.table_images import window

NARROW = ("int8", "uint8", "int8", "uint8")


def parameters(g: Grower, array: Any, dtype: str, symmetric: bool = False) -> tuple[Any, Any]:
    """Return the scale and zero point that hold the array's range, scaled at random."""
    info = np.iinfo(dtype)
    low, high = float(array.min(initial=0)), float(array.max(initial=0))
    if symmetric:
        high = max(-low, high)
        low = -high
    scale = np.float32(max(high - low, 1e-2) / (info.max - info.min) * g.rng.uniform(0.8, 1.5))
    zero = 0 if symmetric and info.min < 0 else round(info.min - low / float(scale))
    return scale, np.array(min(max(zero, info.min), info.max), dtype)


def quantised(g: Grower, x: Tensor, dtype: str = "") -> tuple[Tensor, Tensor, Tensor | None]:
    """Return x in integers, with its scale and zero point.

    Errors: Refused, if x came from stored integers: what is between them may then be an integer op
    whose results are off by a unit, which nothing says
    """
    if x.name in g.stored:
        raise Refused("from stored integers to stored integers")
    dtype = dtype or g.choose(NARROW if g.opset < 21 or g.chance(0.8) else ["int16", "uint16"])
    scale, zero = parameters(g, x.array, dtype)
    s, z = g.constant(scale), g.constant(zero)
    if dtype == "uint8" and zero == 0 and g.chance(0.5):
        z = None
    return g.node("QuantizeLinear", [x, s, z])[0], s, z


def through(g: Grower, x: Tensor) -> Tensor:
    """Return x after a pair of QuantizeLinear and DequantizeLinear."""
    return dequantised(g, quantised(g, x))


def dequantised(g: Grower, stored: Sequence[Tensor | None], **attrs: int) -> Tensor:
    """Return the floats of stored integers."""
    made = g.node("DequantizeLinear", stored, attrs, rounds=False)[0]
    g.stored.add(made.name)
    return made


def finish(g: Grower, y: Tensor, x: Tensor | None = None) -> None:
    """Quantise a result, which may be off by one unit; nothing reads it.

    x: what was dequantised, of an op that requantises: its result is rounded to x's units first
    """
    dtype = g.choose(NARROW)
    scale, zero = parameters(g, y.array, dtype)
    s, z = g.constant(scale), g.constant(zero)
    units = 1.0 if x is None else 1.0 + math.ceil(step_of(g, x) / float(scale) / 2)
    q = g.node("QuantizeLinear", [y, s, z], loose=units)[0]
    if g.chance(0.7):
        g.node("DequantizeLinear", [q, s, z], rounds=False, loose=units * float(scale) * 1.001)


def step_of(g: Grower, x: Tensor) -> float:
    """Return the scale of what DequantizeLinear made."""
    made = next(node for node in g.nodes if x.name in node.output)
    return float(g.arrays[made.input[1]])


def weight(g: Grower, data: Any, axis: int | None, dtype: str = "int8") -> tuple[Any, Any, Any]:
    """Return weights in integers, a scale for all or one for each along `axis`, zero points.

    The integers of int8 keep to the bits with which the oracle's products are exact.
    """
    halves = 1 if dtype == "int8" and not adds_exactly() else 0
    if axis is None:
        scale, zero = parameters(g, data, dtype, True)
        stored = np.clip(np.rint(data / scale / 2**halves) + zero, *_range(dtype)).astype(dtype)
        return g.constant(stored), g.constant(scale), g.constant(zero)
    parts = np.moveaxis(data, axis, 0)
    pairs = [parameters(g, part, dtype, True) for part in parts]
    scales = np.array([scale for scale, _ in pairs], np.float32)
    zeros = np.array([zero for _, zero in pairs], dtype)
    along = [-1 if a == axis else 1 for a in range(data.ndim)]
    stored = np.rint(data / scales.reshape(along) / 2**halves) + zeros.reshape(along)
    stored = np.clip(stored, *_range(dtype)).astype(dtype)
    return g.constant(stored), g.constant(scales), g.constant(zeros)


def _range(dtype: str) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def real(g: Grower, ranks: Sequence[int] | None = None) -> Tensor:
    """A float value that has elements and did not come from stored integers."""
    return g.pick(("float32",), ranks, lambda t: t.array.size > 0 and t.name not in g.stored)


def qdq_conv(g: Grower) -> None:
    """Conv between pairs, its weights stored, its bias in int32 or float; Relu behind at times."""
    x = through(g, real(g, (4,)))
    channels = x.shape[1]
    groups = int(g.choose([k for k in (1, 1, 2, channels) if channels % k == 0]))
    out, kernel = groups * int(g.rng.integers(1, 5)), [int(g.choose([1, 3, 2])) for _ in "hw"]
    per = channels // groups
    data = g.random("float32", (out, per, *kernel)) / math.sqrt(per * math.prod(kernel))
    axis = 0 if g.opset >= 13 and g.chance(0.6) else None
    stored = weight(g, data, axis)
    attrs = {"axis": axis} if axis is not None else {}
    w = dequantised(g, stored, **attrs)
    y = g.node("Conv", [x, w, bias(g, out, stored[1])], window(g, x, kernel) | {"group": groups})[0]
    if g.chance(0.4):
        y = g.node(g.choose(["Relu", "Sigmoid", "LeakyRelu"]), [y])[0]
    finish(g, y)


def bias(g: Grower, count: int, scale: Tensor) -> Tensor | None:
    """A bias in int32 behind DequantizeLinear, in float, or none."""
    kind = g.choose(["int32", "float", "none"])
    if kind == "none":
        return None
    if kind == "float":
        return g.constant(g.random("float32", (count,)))
    step = g.constant((scale.array * np.float32(0.0123)).astype(np.float32))
    stored = g.constant(g.rng.integers(-300, 300, count).astype(np.int32))
    attrs = {"axis": 0} if step.rank else {}
    zero = g.constant(np.zeros(step.shape, np.int32)) if g.chance(0.5) else None
    return dequantised(g, [stored, step, zero], **attrs)


def qdq_matmul(g: Grower) -> None:
    """MatMul or Gemm between pairs, by stored weights or by another value."""
    x = through(g, real(g, (2, 3)))
    inner, columns = x.shape[-1], int(g.rng.integers(1, 7))
    data = g.random("float32", (inner, columns)) / np.float32(math.sqrt(inner))
    axis = 1 if g.opset >= 13 and g.chance(0.4) else None
    stored = weight(g, data, axis, g.choose(["int8", "uint8"]))
    attrs = {"axis": axis} if axis is not None else {}
    w = dequantised(g, stored, **attrs)
    if x.rank == 2 and g.chance(0.5):
        y = g.node("Gemm", [x, w, bias(g, columns, stored[1])])[0]
    else:
        y = g.node("MatMul", [x, w])[0]
        if g.chance(0.4):
            y = g.node("Add", [y, g.constant(g.random("float32", (columns,)))])[0]
    finish(g, y)


def qdq_binary(g: Grower) -> None:
    """Two quantised operands, also one that is a scalar or a constant."""
    x = real(g)
    a, b = through(g, x), through(g, g.like(x))
    if not b.array.size:
        raise Refused("empty")
    op = g.choose(["Add", "Add", "Mul", "Sub", "Div", "Max", "Min"])
    y = g.node(op, g.choose([[a, b], [b, a]]))[0]
    finish(g, y, max(a, b, key=lambda t: step_of(g, t)) if op in ("Max", "Min") else None)


def qdq_unary(g: Grower) -> None:
    """A float op between pairs."""
    ops = ["Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSwish", "Softmax", "Clip", "Abs", "Gelu"]
    op = g.choose([*ops, "Exp", "Sqrt", "Neg", "Identity", "Floor"])
    x = through(g, real(g))
    extra = [g.constant(np.float32(v)) for v in (-0.5, 0.7)] if op == "Clip" else []
    finish(g, g.node(op, [x, *extra])[0], x)


def qdq_pool(g: Grower) -> None:
    """A pool between pairs."""
    x = through(g, real(g, (4,)))
    op = g.choose(["MaxPool", "AveragePool", "GlobalAveragePool", "ReduceMean"])
    if op == "GlobalAveragePool":
        attrs: dict[str, Any] = {}
    elif op == "ReduceMean":
        axes = g.constant(np.array([2, 3])) if g.opset >= 18 else None
        finish(g, g.node(op, [x, axes], {"keepdims": int(g.chance(0.5))})[0], x)
        return
    else:
        attrs = {"kernel_shape": [min(2, x.shape[2]), min(3, x.shape[3])]}
        attrs["strides"] = [int(v) for v in g.rng.integers(1, 3, 2)]
    finish(g, g.node(op, [x], attrs)[0], x)


def qdq_move(g: Grower) -> None:
    """Ops that move elements between pairs, several in a row, some of one scale."""
    x = through(g, real(g, (3, 4)))
    y = x
    for _ in range(int(g.rng.integers(1, 4))):
        op = g.choose(["Transpose", "Reshape", "Slice", "Concat", "Pad", "Resize"])
        y = moved(g, op, y)
    finish(g, y, x)


def moved(g: Grower, op: str, x: Tensor) -> Tensor:
    """Return x through one op that moves elements."""
    if op == "Transpose":
        return g.node(op, [x], {"perm": g.rng.permutation(x.rank).tolist()}, rounds=False)[0]
    if op == "Slice" and x.rank and max(x.shape) > 1:
        axis = int(np.argmax(x.shape))
        numbers = [g.constant(np.array([v])) for v in (1, x.shape[axis], axis)]
        return g.node(op, [x, *numbers], rounds=False)[0]
    if op == "Concat" and x.rank:
        other = through(g, g.constant(g.random("float32", x.shape)))
        return g.node(op, [x, other], {"axis": x.rank - 1}, rounds=False)[0]
    if op == "Pad" and x.rank:
        pads = g.constant(g.rng.integers(0, 2, 2 * x.rank))
        value = g.constant(np.float32(0.25)) if g.chance(0.3) else None
        return g.node(op, [x, pads, value], rounds=False)[0]
    if op == "Resize" and x.rank == 4 and g.opset >= 13:
        mode = g.choose(["nearest", "linear", "cubic"])
        scales = g.constant(np.array([1, 1, 2, g.choose([1, 0.5, 2])], np.float32))
        return g.node(op, [x, None, scales], {"mode": mode})[0]
    return g.node("Reshape", [x, g.constant(np.array([-1, x.shape[-1]]))], rounds=False)[0]


def qlinear_conv(g: Grower) -> None:
    """QLinearConv and ConvInteger."""
    x = real(g, (4,))
    q, s, z = quantised(g, x, g.choose(["int8", "uint8"]))
    zero = z or g.constant(np.uint8(0))
    out, kernel = int(g.rng.integers(1, 5)), [int(g.choose([1, 2, 3])) for _ in "hw"]
    data = g.random("float32", (out, x.shape[1], *kernel)) / math.sqrt(x.shape[1])
    axis = 0 if g.chance(0.4) else None
    w, ws, wz = weight(g, data, axis, "int8" if q.dtype == "int8" or axis == 0 else "uint8")
    attrs = window(g, x, kernel)
    if g.chance(0.3):
        g.node("ConvInteger", [q, w, g.choose([None, zero]), wz if axis is None else None], attrs)
        return
    b = g.constant(g.rng.integers(-300, 300, out).astype(np.int32)) if g.chance(0.5) else None
    y_scale, y_zero = parameters(g, np.array([-3.0, 4.0]), q.dtype)
    last = [g.constant(y_scale), g.constant(y_zero)]
    y = g.node("QLinearConv", [q, s, zero, w, ws, wz, *last, b], attrs, loose=1)[0]
    again(g, y, last)


def qlinear_matmul(g: Grower) -> None:
    """QLinearMatMul, MatMulInteger and QGemm."""
    x = real(g, (2, 3))
    q, s, z = quantised(g, x, g.choose(["int8", "uint8"]))
    zero = z or g.constant(np.uint8(0))
    inner, columns = x.shape[-1], int(g.rng.integers(1, 7))
    data = g.random("float32", (inner, columns)) / np.float32(math.sqrt(inner))
    w, ws, wz = weight(g, data, None, q.dtype)
    if g.chance(0.3):
        g.node("MatMulInteger", [q, w, g.choose([None, zero]), g.choose([None, wz])])
        return
    y_scale, y_zero = parameters(g, np.array([-3.0, 4.0]), q.dtype)
    last = [g.constant(y_scale), g.constant(y_zero)]
    if x.rank == 2 and g.chance(0.4):
        c = g.constant(g.rng.integers(-300, 300, columns).astype(np.int32))
        given = [q, s, zero, w, ws, wz, g.choose([c, None]), *last]
        y = g.node("QGemm", given, {}, domain=MICROSOFT, loose=1)[0]
    else:
        y = g.node("QLinearMatMul", [q, s, zero, w, ws, wz, *last], loose=1)[0]
    again(g, y, last)


def qlinear_elementwise(g: Grower) -> None:
    """ONNX Runtime's own QLinearAdd, QLinearMul, QLinearSigmoid, QLinearLeakyRelu, pool, concat."""
    x = real(g)
    dtype = g.choose(["int8", "uint8"])
    first = full(g, x, dtype)
    op = g.choose(["Add", "Mul", "Sigmoid", "LeakyRelu", "GlobalAveragePool", "Concat"])
    y_scale, y_zero = parameters(g, np.array([-3.0, 4.0]), dtype)
    last = [g.constant(y_scale), g.constant(y_zero)]
    if op in ("Add", "Mul"):
        y = g.like(x)
        if not y.array.size:
            raise Refused("empty")
        given, attrs = [*first, *full(g, y, dtype), *last], {}
    elif op == "Concat" and x.rank:
        given, attrs = [*last, *first, *full(g, x, dtype)], {"axis": x.rank - 1}
    elif op == "GlobalAveragePool" and x.rank == 4:
        given, attrs = [*first, *last], {"channels_last": int(g.chance(0.5))}
    else:
        op = op if op in ("Sigmoid", "LeakyRelu") else "Sigmoid"
        given, attrs = [*first, *last], {"alpha": 0.25} if op == "LeakyRelu" else {}
    units = 1.0 + math.ceil(float(first[1].array / last[0].array) / 2)
    y = g.node(f"QLinear{op}", given, attrs, domain=MICROSOFT, loose=units)[0]
    again(g, y, last, units)


def again(g: Grower, y: Tensor, last: list[Tensor], units: float = 1.0) -> None:
    """Dequantise a result that may be off by some units."""
    if g.chance(0.7):
        off = units * float(last[0].array) * 1.001
        g.node("DequantizeLinear", [y, *last], rounds=False, loose=off)


def full(g: Grower, x: Tensor, dtype: str) -> list[Tensor]:
    """Return x in integers, scale and zero point, none left out."""
    q, s, z = quantised(g, x, dtype)
    return [q, s, z or g.constant(np.uint8(0))]


def dynamic(g: Grower) -> None:
    """DynamicQuantizeLinear, and MatMulInteger behind it as quantised transformers have."""
    x = g.pick(("float32",), (2, 3), lambda t: t.array.size > 0)
    q, scale, zero = g.node("DynamicQuantizeLinear", [x], outputs=3)
    if g.chance(0.7):
        data = g.random("float32", (x.shape[-1], int(g.rng.integers(1, 6))))
        w, ws, wz = weight(g, data, None, "int8")
        y = g.node("MatMulInteger", [q, w, zero, wz])[0]
        wide = g.node("Cast", [y], {"to": 1})[0]
        g.node("Mul", [wide, g.node("Mul", [scale, ws])[0]])


def microsoft(g: Grower) -> None:
    """ONNX Runtime's own float ops that exporters write."""
    op = g.choose(["FusedMatMul", "Gelu", "BiasGelu", "FastGelu"])
    x = g.pick(("float32",), (2, 3), lambda t: t.array.size > 0)
    if op == "FusedMatMul":
        turned = int(g.chance(0.5))
        inner, columns = x.shape[-1], int(g.rng.integers(1, 5))
        dims = (columns, inner) if turned else (inner, columns)
        w = g.operand(g.random("float32", dims))
        g.node(op, [x, w], {"transB": turned, "alpha": 0.5}, domain=MICROSOFT)
        return
    extra = [] if op == "Gelu" else [g.operand(g.random("float32", x.shape[-1:]))]
    g.node(op, [x, *extra], {}, domain=MICROSOFT)


ROWS: tuple[Row, ...] = (
    Row("QDQ Conv", qdq_conv, 3),
    Row("QDQ MatMul", qdq_matmul, 2),
    Row("QDQ binary", qdq_binary, 2),
    Row("QDQ unary", qdq_unary, 2),
    Row("QDQ pool", qdq_pool, 2),
    Row("QDQ move", qdq_move, 2),
    Row("QLinearConv", qlinear_conv, 2),
    Row("QLinearMatMul", qlinear_matmul, 2),
    Row("QLinear elementwise", qlinear_elementwise, 2),
    Row("dynamic", dynamic),
    Row("com.microsoft", microsoft, 0.5),
)
