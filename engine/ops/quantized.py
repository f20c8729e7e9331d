"""The meaning of ops on stored integers: the `quantized` functions of the OpDefs, in plain numpy.

Each takes the call and the stored arrays and follows the formula in `trireme.ops.integer`. Sums of
products use the op's own float64 reference. Below 2**53 it is exact in any order, and an int32
accumulator is far below that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trireme.ir.graph import Rounding
from trireme.ir.op import Call, get_op
from trireme.ops import integer as q
from trireme.support.dtypes import Array
from trireme.support.errors import GraphError

Quantized = Callable[..., Any]


def _wide(x: Array, zero: int = 0) -> Array:
    return np.asarray(x.astype(np.int64) - zero)


def _exact(op: str, call: Call, *arrays: Array) -> Array:
    """The op's float64 reference on integers, without its activation, as integers."""
    floats = [a.astype(np.float64) for a in arrays]
    attrs = {**call.attrs, "activation": ""} if "activation" in call.attrs else call.attrs
    result = np.asarray(get_op(op).reference(*floats, **attrs))
    return np.asarray(np.rint(result), np.int64)


def _along_channels(call: Call, y: Array) -> list[int]:
    """Return the shape with which a number for each channel broadcasts against y."""
    shape = [1] * y.ndim
    shape[1 if call.attrs.get("layout") == "NCHW" else -1] = -1
    return shape


def or_floats(op: str, integers: Quantized, activate: Callable[[str, Array], Array]) -> Quantized:
    """Return the quantised form of a product, whose result a float bias makes float32.

    integers: the form without one
    activate: applies a fused activation by its name
    """

    def run(call: Call, x: Array, w: Array, *rest: Array | None) -> Array:
        if not q.makes_floats(call):
            return np.asarray(integers(call, x, w, *rest))
        p, bias = q.float_sum_params(call), np.asarray(rest[0])
        acc = _exact(op, call, _wide(x, p.x_zero), _wide(w, p.w_zero))
        shape = _along_channels(call, acc)
        real = acc.astype(np.float32) * p.scales.reshape(shape) + bias.reshape(shape)
        return activate(str(call.attrs["activation"]), real)

    return run


def _linear(op: str, lower: Callable[[Call], q.LinearParams]) -> Quantized:
    def run(call: Call, x: Array, w: Array, bias: Array | None = None, *_: Array | None) -> Array:
        if q.stored_dtypes(call) == q.SIXTEEN_BIT:
            return _linear_16(op, call, x, w, bias)
        p = lower(call)
        bound = () if bias is None else (bias,)
        acc = _exact(op, call, _wide(x, p.x_zero), _wide(w, p.w_zero), *bound)
        shape = _along_channels(call, acc)
        multipliers, shifts = p.multipliers.reshape(shape), p.shifts.reshape(shape)
        return q.requantize(acc, multipliers, shifts, p.y_zero, p.low, p.high, p.rounding)

    return run


def _linear_16(op: str, call: Call, x: Array, w: Array, bias: Array | None) -> Array:
    """Return a product of int16 and int8: see WideParams and ScaledParams."""
    if op == "matmul":
        raise GraphError("matmul has no form on int16")
    p = q.fully_connected_16_params(call) if op == "fully_connected" else q.conv_16_params(call)
    zero = p.w_zero if isinstance(p, q.ScaledParams) else 0
    acc = _exact(op, call, _wide(x), _wide(w, zero))
    shape = _along_channels(call, acc)
    acc = acc if bias is None else acc + bias.reshape(shape)
    if isinstance(p, q.ScaledParams):
        scaled = q.round_half_away(acc.astype(np.float64) * p.scales)
        return np.asarray(np.clip(scaled, p.low, p.high))
    scaled = q.multiply_wide(acc, p.multipliers.reshape(shape), p.shifts.reshape(shape))
    return np.asarray(np.clip(scaled, p.low, p.high))


conv = _linear("conv", q.conv_params)
conv_transpose = _linear("conv_transpose", q.conv_params)
fully_connected = _linear("fully_connected", q.fully_connected_params)
matmul = _linear("matmul", q.matmul_params)


def _on_one_scale(p: q.AddParams | q.CompareParams, a: Array, b: Array) -> tuple[Array, Array]:
    """Return a' and b' of AddParams or CompareParams."""
    left = q.multiply_by_quantized(_wide(a, p.a_zero) << p.left_shift, p.a_multiplier, p.a_shift)
    right = q.multiply_by_quantized(_wide(b, p.b_zero) << p.left_shift, p.b_multiplier, p.b_shift)
    return left, right


def _added(p: q.AddParams, a: Array, b: Array) -> Array:
    left, right = _on_one_scale(p, a, b)
    scale = (p.y_multiplier, p.y_shift)
    return q.requantize(left + right, *scale, p.y_zero, p.low, p.high, p.rounding)


def add(call: Call, a: Array, b: Array) -> Array:
    """Return a + b: see AddParams."""
    return _added(q.add_params(call, q.stored_dtypes(call)), a, b)


def sub(call: Call, a: Array, b: Array) -> Array:
    """Return a - b: see AddParams."""
    return _added(q.sub_params(call, q.stored_dtypes(call)), a, b)


def mul(call: Call, a: Array, b: Array) -> Array:
    """Return a * b: see MulParams."""
    p = q.mul_params(call, q.stored_dtypes(call))
    product = _wide(a, p.a_zero) * _wide(b, p.b_zero)
    return q.requantize(product, p.multiplier, p.shift, p.y_zero, p.low, p.high, p.rounding)


def prelu(call: Call, x: Array, slope: Array) -> Array:
    """Return x, times the slope where it is negative: see PreluParams."""
    p = q.prelu_params(call)
    wide = _wide(x, p.x_zero)
    product = wide * _wide(slope, p.slope_zero)
    positive = q.multiply(wide, p.multiplier, p.shift, p.rounding)
    negative = q.multiply(product, p.slope_multiplier, p.slope_shift, p.rounding)
    return np.asarray(np.clip(np.where(wide >= 0, positive, negative) + p.y_zero, p.low, p.high))


def average_pool(call: Call, x: Array) -> Array:
    """Return rounded window means: see PoolParams; a float64 mean is on its side of a half."""
    p = q.pool_params(call, q.stored_dtypes(call))
    attrs = {**call.attrs, "activation": ""}
    wide = _wide(x, p.zero).astype(np.float64)
    mean = np.asarray(get_op("average_pool").reference(wide, **attrs))
    if p.rounding is Rounding.HALF_EVEN:
        rounded = np.rint(mean) + p.zero
    else:  # of the stored integers
        rounded = q.round_half_away(mean + p.zero)
    return np.asarray(np.clip(rounded.astype(np.int64), p.low, p.high))


def max_pool(call: Call, x: Array) -> Any:
    """Return window maxima, clamped: see PoolParams."""
    p = q.pool_params(call, q.stored_dtypes(call))
    attrs = {**call.attrs, "activation": ""} if "activation" in call.attrs else call.attrs
    result = get_op("max_pool").reference(x.astype(np.float64), **attrs)
    if not isinstance(result, tuple):
        return np.clip(result, p.low, p.high)
    return (np.clip(result[0], p.low, p.high), *result[1:])


def _summed(lower: Callable[[Call, tuple[str, ...]], q.ReduceParams]) -> Quantized:
    def run(call: Call, x: Array, axes: Array | None = None) -> Array:
        p = lower(call, q.stored_dtypes(call))
        total = np.asarray(get_op("reduce_sum").reference(_wide(x), axes, **call.attrs))
        acc = total - p.count * p.x_zero
        if p.rounding is Rounding.HALF_EVEN:
            scaled = q.divide(acc * p.multiplier, p.divisor << (31 - p.shift), p.rounding)
        else:
            scaled = q.multiply(acc, p.multiplier, p.shift, p.rounding)
        return np.asarray(np.clip(scaled + p.y_zero, p.low, p.high))

    return run


reduce_mean = _summed(q.reduce_mean_params)
reduce_sum = _summed(q.reduce_sum_params)


def table(op: str) -> Quantized:
    """Return the quantised form of a unary op: a table of all stored numbers."""

    def run(call: Call, x: Array, *_: Array | None) -> Array:
        return q.lookup(q.unary_table(op, call, q.stored_dtypes(call)), x)

    return run


def on_stored(op: str) -> Quantized:
    """Return the quantised form of an op that is right on stored integers of one quantisation."""

    def run(call: Call, *arrays: Array | None) -> Any:
        q.same_quant(call, q.stored_dtypes(call))
        return get_op(op).reference(*arrays, **call.attrs)

    return run


def through_float(op: str) -> Quantized:
    """Return the quantised form of an op without an integer one: float32 inside, rounded once."""

    def run(call: Call, *arrays: Array | None) -> Array:
        reals = [
            q.dequantized(array, value.type)
            if array is not None and value and value.quant
            else array
            for array, value in zip(arrays, call.inputs, strict=True)
        ]
        result = np.asarray(get_op(op).reference(*reals, **call.attrs))
        return q.quantized(result, call.outputs[0]) if call.outputs[0].quant else result

    return run


def compare(op: str) -> Quantized:
    """Return a comparison on stored integers: see CompareParams; int16 are compared as floats."""

    def run(call: Call, a: Array, b: Array) -> Array:
        if q.stored_dtypes(call) == q.SIXTEEN_BIT:
            return np.asarray(through_float(op)(call, a, b))
        return np.asarray(get_op(op).reference(*_on_one_scale(q.compare_params(call), a, b)))

    return run


def squared_difference(call: Call, a: Array, b: Array) -> Array:
    """Return (a - b)^2: see SquaredDifferenceParams; int16 go through floats."""
    if q.stored_dtypes(call) == q.SIXTEEN_BIT:
        return np.asarray(through_float("squared_difference")(call, a, b))
    p = q.squared_difference_params(call)
    left, right = _on_one_scale(p.sides, a, b)
    square = np.square(left - right)
    return q.requantize(square, p.multiplier, p.shift, p.y_zero, p.low, p.high, p.rounding)


def concat(call: Call, *arrays: Array) -> Array:
    """Return the inputs one after another, requantised where their quantisation differs."""
    tables = q.concat_tables(call, q.stored_dtypes(call))
    parts = [x if t is None else q.lookup(t, x) for t, x in zip(tables, arrays, strict=True)]
    return np.concatenate(parts, axis=int(call.attrs["axis"]))


def softmax(call: Call, x: Array) -> Array:
    """Return the softmax along an axis in integers: see SoftmaxParams and Softmax16Params."""
    if q.stored_dtypes(call) == q.SIXTEEN_BIT:
        return _softmax_16(call, x)
    p, axis = q.softmax_params(call), int(call.attrs.get("axis", -1))
    if not x.size:
        return x
    wide = _wide(x)
    e = p.table[wide.max(axis=axis, keepdims=True) - wide].astype(np.int64)
    total = e.sum(axis=axis, keepdims=True)
    return np.asarray(np.clip((e * p.gain + total // 2) // total + p.y_zero, p.low, p.high))


def _softmax_16(call: Call, x: Array) -> Array:
    p, axis = q.softmax_16_params(call), int(call.attrs.get("axis", -1))
    if not x.size:
        return x
    wide = _wide(x)
    e = p.powers[wide.max(axis=axis, keepdims=True) - wide]
    total = e.sum(axis=axis, keepdims=True)
    bits = np.frexp(total.astype(np.float64))[1].astype(np.int64)
    share = ((total << (31 - bits)) + (1 << 13) >> 14) - (1 << 15) - (1 << 16)
    gain = q.curve(p.reciprocals, np.clip(share, -32768, 32767))
    shares = (e * gain + (np.int64(1) << (bits - 2))) >> (bits - 1)
    return np.asarray(np.clip(shares, 0, 32767))


def quantize(call: Call, x: Array) -> Array:
    """Return x in the output's quantisation, from floats or from another quantisation."""
    if call.type(0).quant is None:
        return q.quantized(x, call.outputs[0])
    dtypes = (*q.EIGHT_BIT, *q.SIXTEEN_BIT)
    return q.lookup(q.unary_table("quantize", call, dtypes), x)


def dequantize(call: Call, x: Array) -> Array:
    """Return stored integers as float32."""
    return q.dequantized(x, call.type(0))


def pad(call: Call, x: Array, *rest: Array | None) -> Any:
    """Return x padded; a constant pad fills with the zero point unless a value is given."""
    value = np.asarray(q.pad_value(call, q.stored_dtypes(call)), x.dtype)
    operands = [*rest, None, None, None][:3]
    return get_op("pad").reference(x, operands[0], value, operands[2], **call.attrs)


def resize(call: Call, x: Array, *rest: Array | None) -> Any:
    """Return a resized image: nearest on stored integers, linear by 1/1024 weights (ResizeAxis).

    Modes without an integer form are computed in floats.
    """
    q.same_quant(call, q.stored_dtypes(call))
    attrs = call.attrs
    if attrs["mode"] == "nearest":
        return get_op("resize").reference(x, *rest, **attrs)
    if x.dtype == np.int16:
        raise GraphError("resize has no linear form on int16")
    if q.resize_reason(call) is not None:
        return through_float("resize")(call, x, *rest)
    rows, columns = q.resize_axes(call)
    wide = _wide(x)
    f = rows.fraction.astype(np.int64)[:, None, None]
    g = columns.fraction.astype(np.int64)[:, None]
    upper, lower = wide[:, rows.upper], wide[:, rows.lower]
    mixed = lower * (1024 - f) + upper * f
    total = mixed[:, :, columns.lower] * (1024 - g) + mixed[:, :, columns.upper] * g
    rounding = q.rounding_of(call, Rounding.HALF_AWAY)
    zero = q.quant_of(call.outputs[0], "output").zero_point if rounding is Rounding.HALF_EVEN else 0
    return q.divide(total - (zero << 20), 1 << 20, rounding) + zero
