"""Quantised ops of ONNX Runtime: products of 8-bit integers that end in floats, QLinear ops."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import numpy as np

from trireme.converters.onnx import integer_products, quantized, window
from trireme.converters.onnx.scope import NodeUse
from trireme.ops.block_quantized import ROUNDED
from trireme.ops.block_quantized import codes as unpacked


def matmul_integer_to_float(use: NodeUse) -> Sequence[int]:
    """MatMulIntegerToFloat(a, b, a scale, b scale, a zero?, b zero?, bias?)."""
    scale = use.add("mul", use.need(2), use.need(3))
    places = [use.need(0), use.need(1), use.input(4), use.input(5)]
    return (scaled_product(use, places, scale, use.input(6)),)


def dynamic_quantize_matmul(use: NodeUse) -> Sequence[int]:
    """DynamicQuantizeMatMul(a, b, b scale, b zero?, bias?): a is rounded to 8 bits first."""
    a, step, zero = integer_products.dynamic_quantize_linear(use)
    scale = use.add("mul", step, use.need(2))
    places = [a, use.need(1), zero, use.input(3)]
    return (scaled_product(use, places, scale, use.input(4)),)


def scaled_product(use: NodeUse, inputs: Sequence[int | None], scale: int, bias: int | None) -> int:
    """Return the product of (a, b, a zero?, b zero?) times the scale, plus the bias."""
    use = copy.copy(use)
    use.inputs = list(inputs)
    (whole,) = integer_products.matmul_integer(use)
    dtype = use.scope.builder.type(scale).dtype
    y = use.add("mul", use.add("cast", whole, to=dtype), scale)
    return y if bias is None else use.add("add", y, bias)


def qlinear_softmax(use: NodeUse) -> Sequence[int]:
    """QLinearSoftmax(x, scale, zero, y scale, y zero); before opset 13 on x made a matrix."""
    x, axis = quantized.real(use, 0), use.attrs.get("axis", -1)
    if use.attrs["opset"] >= 13:
        return quantized.stored(use, use.add("softmax", x, axis=axis), 3)
    flat = use.add("softmax", use.add("flatten", x, axis=axis), axis=-1)
    y = use.add("reshape", flat, use.add("shape", x), allowzero=1)
    return quantized.stored(use, y, 3)


def qlinear_average_pool(use: NodeUse) -> Sequence[int]:
    """QLinearAveragePool(x, scale, zero, y scale, y zero), of NCHW or (channels_last) NHWC."""
    real = quantized.real(use, 0)
    return _channels_first(use, real, lambda x: _average(use, x), 3)


def _average(use: NodeUse, x: int) -> int:
    kernel = tuple(use.attrs.pop("kernel_shape"))
    attrs = window.spatial(use, kernel, use.scope.builder.type(x).shape[2:])
    more = {key: use.attrs.get(key, 0) for key in ("ceil_mode", "count_include_pad")}
    return use.add("average_pool", x, kernel=kernel, layout="NCHW", **attrs, **more)


def qlinear_conv(use: NodeUse) -> Sequence[int]:
    """QLinearConv with channels_last: x is NHWC, the weight stays OIHW."""
    if not use.take("channels_last", 0):
        return quantized.qlinear_conv(use)
    rank = len(use.type().shape)
    to_first, to_last = _orders(rank)
    use.inputs[0] = use.add("transpose", use.need(0), perm=to_first)
    (y,) = quantized.qlinear_conv(use)
    return (use.add("transpose", y, perm=to_last),)


def nhwc_max_pool(use: NodeUse) -> Sequence[int]:
    """NhwcMaxPool: MaxPool of stored integers in NHWC."""
    to_first, to_last = _orders(len(use.type().shape))
    use.inputs[0] = use.add("transpose", use.need(0), perm=to_first)
    (y,) = window.pool("max_pool")(use)
    return (use.add("transpose", y, perm=to_last),)


def _channels_first(use: NodeUse, x: int, op: Callable[[int], int], first: int) -> Sequence[int]:
    """Return the op of x in NCHW, quantised by the inputs from `first` on, in x's layout."""
    if not use.attrs.pop("channels_last", 0):
        return quantized.stored(use, op(x), first)
    to_first, to_last = _orders(len(use.scope.builder.type(x).shape))
    y = use.add("transpose", op(use.add("transpose", x, perm=to_first)), perm=to_last)
    return quantized.stored(use, y, first)


def _orders(rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the permutations from NHWC to NCHW and back."""
    return (0, rank - 1, *range(1, rank - 1)), (0, *range(2, rank), 1)


def qlinear_where(use: NodeUse) -> Sequence[int]:
    """QLinearWhere(condition, x, scale, zero, y, scale, zero, z scale, z zero)."""
    x, y = quantized.real(use, 1), quantized.real(use, 4)
    return quantized.stored(use, use.add("where", use.need(0), x, y), 7)


def qlinear_reduce_mean(use: NodeUse) -> Sequence[int]:
    """QLinearReduceMean(x, scale, zero, y scale, y zero) over `axes`."""
    x, axes = quantized.real(use, 0), use.attrs.get("axes")
    rank = len(use.type().shape)
    over = use.constant(range(rank) if axes is None else axes, "int64")
    y = use.add("reduce_mean", x, over, keepdims=use.attrs.get("keepdims", 1))
    return quantized.stored(use, y, 3)


def matmul_nbits(use: NodeUse) -> Sequence[int]:
    """MatMulNBits(a, codes, scales, zero points?, group of each row?, bias?).

    accuracy_level is the least accuracy that is asked for. What ONNX Runtime computes exactly on a
    CPU is exact here too: levels 0 to 3, and 2 bits in blocks for which it has no integer kernel.
    """
    bits, block, columns = use.attrs.get("bits", 4), use.attrs["block_size"], use.attrs["N"]
    blocks = -(-use.attrs["K"] // block)
    if use.attrs.get("weight_prepacked"):
        raise use.error("weight_prepacked is not supported: it is the form of one kind of GPU")
    groups = use.array(4)
    if use.input(4) is not None and not (
        groups is not None and (groups == np.arange(len(groups)) // block).all()
    ):
        raise use.error("g_idx is not supported but where neighbours share a block")
    sizes = use.constant((columns, blocks), "int64")
    scales = use.add("reshape", use.need(2), sizes)
    codes = use.constant((columns, blocks, block * bits // 8), "int64")
    packed = use.add("reshape", use.need(1), codes)
    zeros = _zero_points(use, columns, blocks, bits)
    inputs = [use.need(0), packed, scales, zeros, use.input(5)]
    level = use.attrs.get("accuracy_level", 0)
    level = ROUNDED if level == ROUNDED and (bits > 2 or 32 <= block <= 128) else 0
    attrs = {"bits": bits, "block_size": block, "accuracy_level": level}
    return use.add_node("matmul_nbits", inputs, attrs)


def _zero_points(use: NodeUse, columns: int, blocks: int, bits: int) -> int | None:
    """Return zero points [columns, blocks]; integers are packed like codes, row by row."""
    if use.input(3) is None:
        return None
    data = use.array(3)
    if use.type(3).dtype != "uint8":
        return use.add("reshape", use.need(3), use.constant((columns, blocks), "int64"))
    if data is None:
        raise use.error("packed zero points that are not constant are not supported")
    rows = unpacked(data.reshape(columns, -1), bits)[:, :blocks]
    return use.constant(np.ascontiguousarray(rows))
