"""Quantising: TFLite's quantize and dequantize, and ONNX's linear ones with explicit scales.

`quantize` and `dequantize` read the quantisation from the types of their values; the ONNX ops take
scales and zero points as inputs, per tensor, per axis or per block along an axis.
"""

from __future__ import annotations

from collections.abc import Iterable

import ml_dtypes
import numpy as np

from trireme.ir.dtype_rules import Like
from trireme.ir.graph import TensorType, Value
from trireme.ir.op import Attr, Sample, define
from trireme.ops import quantized
from trireme.ops.conversion import cast
from trireme.ops.movement import draw
from trireme.ops.quantized_samples import with_quantized
from trireme.ops.shapes import Types, axis_of, expect, expect_dims, one
from trireme.support.dtypes import FLOATING, FLOATS, INTS, REALS, Array, dtype_name, numpy_dtype
from trireme.support.errors import GraphError, ShapeError


def _unquantized(x: Array, **attrs: object) -> Array:
    raise GraphError("quantize and dequantize need a quantised value")


define(
    "quantize",
    "x",
    "y = round(x / scale) + zero point in `dtype`, with the scale and zero point of y's type; "
    "a quantised x is requantised. Source: TFLite QUANTIZE",
    lambda x, dtype: one(x.shape, dtype),
    _unquantized,
    attrs={"dtype": Attr("str")},
    quantized=quantized.quantize,
    samples=with_quantized("quantize", lambda rng: ()),
    dtypes=(REALS,),
    elementwise=True,
    integer_form="table",
)
define(
    "dequantize",
    "x",
    "y = scale * (x - zero point), float32. Source: TFLite DEQUANTIZE",
    lambda x: one(x.shape, "float32"),
    _unquantized,
    quantized=quantized.dequantize,
    samples=with_quantized("dequantize", lambda rng: ()),
    dtypes=(INTS,),
    elementwise=True,
)


def limits(dtype: str) -> tuple[float, float]:
    """Return the least and the greatest finite value of a dtype, 4- and 2-bit ones too."""
    target = numpy_dtype(dtype)
    info = ml_dtypes.finfo(target) if dtype in FLOATS else ml_dtypes.iinfo(target)
    return float(info.min), float(info.max)


def along(part: Array, shape: tuple[int, ...], axis: int, block_size: int) -> Array:
    """Return scales or zero points spread over x: per tensor, per index of an axis, per block."""
    if part.size == 1 and part.ndim < 2:
        return part.reshape(())
    if part.ndim == 1 and not block_size:
        return part.reshape([-1 if i == axis % len(shape) else 1 for i in range(len(shape))])
    axis %= len(shape)
    block = block_size or -(-shape[axis] // part.shape[axis])
    spread = np.repeat(part, block, axis=axis)
    return spread[tuple(slice(0, n) for n in shape)]


def _check_scale(x: Value, scale: Value, zero_point: Value | None, axis: int, block: int) -> None:
    rank = len(scale.shape)
    if zero_point is not None and zero_point.shape not in ((), (1,)):
        expect_dims("zero_point", zero_point, *scale.shape)
    if rank == 1 and scale.shape != (1,) and not block:
        at = axis_of(axis, len(x.shape))
        expect("the scale's length", scale.shape[0], x.shape[at], f"of axis {at}")
    elif rank > 1 and rank != len(x.shape):
        raise ShapeError(f"scale has rank {rank}, expected 0, 1 or {len(x.shape)}")


def _infer_quantize_linear(
    x: Value,
    scale: Value,
    zero_point: Value | None = None,
    *,
    axis: int,
    block_size: int,
    output_dtype: str | None,
    **attrs: object,
) -> Types:
    _check_scale(x, scale, zero_point, axis, block_size)
    if zero_point is not None:
        return one(x.shape, zero_point.dtype)
    return one(x.shape, output_dtype or "uint8")


def _quantize_linear(
    x: Array,
    scale: Array,
    zero_point: Array | None = None,
    *,
    axis: int,
    block_size: int,
    output_dtype: str | None,
    saturate: int,
    precision: str | None,
) -> Array:
    dtype = output_dtype or "uint8" if zero_point is None else dtype_name(zero_point.dtype)
    work = numpy_dtype(precision) if precision else np.float32
    steps = along(scale, x.shape, axis, block_size).astype(work)
    ratio = (x.astype(work) / steps).astype(np.float64)
    zero = np.zeros(())
    if zero_point is not None:
        zero = along(zero_point, x.shape, axis, block_size).astype(np.float64)
    if dtype in FLOATS:
        return cast((ratio + zero).astype(np.float32), dtype, saturate)
    low, high = limits(dtype)
    whole = np.where(np.isnan(ratio), low, np.clip(np.rint(ratio) + zero, low, high))
    return whole.astype(np.int64).astype(numpy_dtype(dtype))


def _infer_dequantize_linear(
    x: Value,
    scale: Value,
    zero_point: Value | None = None,
    *,
    axis: int,
    block_size: int,
    output_dtype: str | None,
) -> Types:
    _check_scale(x, scale, zero_point, axis, block_size)
    return one(x.shape, output_dtype or scale.dtype)


def _dequantize_linear(
    x: Array,
    scale: Array,
    zero_point: Array | None = None,
    *,
    axis: int,
    block_size: int,
    output_dtype: str | None,
) -> Array:
    whole = x.astype(np.float64)
    if zero_point is not None:
        whole = whole - along(zero_point, x.shape, axis, block_size).astype(np.float64)
    steps = along(scale, x.shape, axis, block_size).astype(np.float64)
    return (whole * steps).astype(numpy_dtype(output_dtype) if output_dtype else scale.dtype)


def _quantize_samples(rng: np.random.Generator) -> Iterable[Sample]:
    fixed = frozenset({1, 2})
    x = draw(rng, 3, 5, 7) * 40
    for dtype in ("uint8", "int8"):
        zero = np.array(3, dtype)
        yield Sample((x, np.array(0.37, np.float32), zero), constants=fixed, note=dtype)
    scales, zeros = np.array([0.5, 0.25, 2, 1, 0.1], np.float32), np.arange(5, dtype=np.int8)
    yield Sample((x, scales, zeros), {"axis": 1}, fixed, note="per axis")


def _dequantize_samples(rng: np.random.Generator) -> Iterable[Sample]:
    fixed = frozenset({1, 2})
    x = rng.integers(-128, 128, (3, 5, 7)).astype(np.int8)
    yield Sample((x, np.array(0.37, np.float32), np.array(3, np.int8)), constants=fixed)
    scales = np.array([0.5, 0.25, 2, 1, 0.1], np.float32)
    yield Sample((x, scales, np.arange(5, dtype=np.int8)), {"axis": 1}, fixed, note="per axis")


_PLACE = {
    "axis": Attr("int", 1),
    "block_size": Attr("int", 0, least=0),
    "output_dtype": Attr("str", None),
}
define(
    "quantize_linear",
    "x scale zero_point?",
    "y = saturate(round(x / scale) + zero_point), halves to even; NaN gives the least integer. "
    "Shapes: scale and zero_point [], [x's axis] or one a block of block_size along axis. "
    "Source: ONNX QuantizeLinear-25",
    _infer_quantize_linear,
    _quantize_linear,
    samples=_quantize_samples,
    attrs={**_PLACE, "saturate": Attr("int", 1), "precision": Attr("str", None)},
    dtypes=(FLOATING | {"int32"}, FLOATS | {"int32"}, FLOATS | INTS),
)
define(
    "dequantize_linear",
    "x scale zero_point?",
    "y = (x - zero_point) * scale; shapes as of quantize_linear. Source: ONNX DequantizeLinear-25",
    _infer_dequantize_linear,
    _dequantize_linear,
    attrs=_PLACE,
    samples=_dequantize_samples,
    rtol=2e-7,
    dtypes=(FLOATS | INTS, FLOATS, Like("x")),
)


def _dynamic_quantize(x: Array) -> tuple[Array, Array, Array]:
    low, high = min(float(x.min(initial=0)), 0.0), max(float(x.max(initial=0)), 0.0)
    scale = np.float32(np.float32(high - low) / np.float32(255)) or np.float32(1)
    zero = np.clip(np.rint(np.float32(0 - low) / scale), 0, 255)
    y = np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8)
    return y, np.array(scale, np.float32), np.array(zero, np.uint8)


define(
    "dynamic_quantize_linear",
    "x",
    "y = x quantised to uint8 over its own range, which always holds 0; the scale "
    "(max - min) / 255 and zero point round(-min / scale) are outputs. Source: ONNX, opset 11",
    lambda x: (
        TensorType(x.shape, "uint8"),
        TensorType((), "float32"),
        TensorType((), "uint8"),
    ),
    _dynamic_quantize,
    outputs="y scale zero_point",
    samples=lambda rng: [Sample((draw(rng, 3, 19) + shift,)) for shift in (0, 5, -5)],
    dtypes=(FLOATING,),
)
