"""Ops that change the element type or the device of a tensor: cast, cast_like, bit_cast, copy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np

from trireme.ir.graph import Value
from trireme.ir.op import Attr, Sample, define, no_flops
from trireme.ops import axis_maps
from trireme.ops.shapes import Types, one, same_type
from trireme.support.dtypes import (
    ANY,
    FLOATS,
    NAMES,
    SMALL_FLOATS,
    TEXT,
    Array,
    dtype_name,
    numpy_dtype,
)
from trireme.support.errors import ShapeError

DTYPE = Attr("str", choices=NAMES)


def cast(x: Array, to: str, saturate: int = 1, round_mode: str = "up") -> Array:
    """Return x in another dtype, by the rules of ONNX Cast-28.

    Floats to integers are cut toward zero (`_to_integer`); to small floats, out of range gives the
    greatest finite value when `saturate`; to float8_e8m0fnu the exponent is rounded as
    `round_mode` says.
    """
    if to == "string":
        return _to_text(x)
    target = numpy_dtype(to)
    if x.dtype.kind in "OUS":
        return _from_text(x, target)
    if to == "bool":
        return np.asarray(x != np.zeros((), x.dtype))
    if to == "float8_e8m0fnu":
        return _to_exponent(x, saturate, round_mode)
    if to in SMALL_FLOATS and saturate:
        return _saturated(x, target)
    if to in ("int4", "uint4", "int2", "uint2"):
        return _wrapped(x, target)
    if x.dtype.name in FLOATS and target.kind in "iu":
        return _to_integer(x, target)
    return x.astype(target)


def _to_integer(x: Array, target: np.dtype[Any]) -> Array:
    """Truncate floats toward zero; out of range or NaN, do as ONNX Runtime 1.32 does on x86.

    ONNX leaves these cases open. Targets of up to 32 bits take the low bits of an int32. uint32,
    int64 and uint64 take those of an int64. -2^31 or -2^63 stands for a value out of range. For
    uint32 and uint64 the upper half is converted less 2^31 or 2^63. float16 becomes uint32 through
    int64.
    """
    by_way_of_64 = target.itemsize == 8 or (x.dtype == np.float16 and target == np.uint32)
    limit = 2.0**63 if by_way_of_64 else 2.0**31
    wide = np.trunc(x.astype(np.float64))
    above = (wide >= limit) & (target.kind == "u" and 2.0 ** (8 * target.itemsize - 1) == limit)
    moved = np.where(above, wide - limit, wide)
    inside = (moved >= -limit) & (moved < limit)
    whole = np.where(inside, moved, -limit).astype(np.int64)
    return np.where(above, whole ^ np.int64(-limit), whole).astype(target)


def _to_text(x: Array) -> Array:
    if x.dtype.kind in "OUS":
        return x.astype(object)
    texts = [_number_text(v) for v in x.reshape(-1)]
    return np.array(texts, object).reshape(x.shape)


def _number_text(value: Any) -> str:
    if isinstance(value, np.bool_):
        return str(int(value))
    if np.issubdtype(type(value), np.integer):
        return str(int(value))
    number = float(value)
    if np.isnan(number) or np.isinf(number):
        return "NaN" if np.isnan(number) else "INF" if number > 0 else "-INF"
    text = np.format_float_positional(value, unique=True, trim="-")
    return text if len(text) < 12 else np.format_float_scientific(value, unique=True, trim="-")


def _from_text(x: Array, target: np.dtype[Any]) -> Array:
    flat = [str(v) for v in x.reshape(-1)]
    if target.kind in "iub":
        parsed = np.array([int(float(v)) if "." in v else int(v) for v in flat])
    else:
        parsed = np.array([float(v) for v in flat], np.float64)
    return parsed.astype(target).reshape(x.shape)


def _saturated(x: Array, target: np.dtype[Any]) -> Array:
    limit = float(ml_dtypes.finfo(target).max)
    wide = x.astype(np.float64)
    return np.asarray(np.where(np.isnan(wide), wide, np.clip(wide, -limit, limit))).astype(target)


def _wrapped(x: Array, target: np.dtype[Any]) -> Array:
    bits = int(ml_dtypes.iinfo(target).bits)
    whole = np.trunc(x.astype(np.float64)).astype(np.int64) & ((1 << bits) - 1)
    if ml_dtypes.iinfo(target).min < 0:
        whole = np.where(whole >= 1 << (bits - 1), whole - (1 << bits), whole)
    return whole.astype(target)


def _to_exponent(x: Array, saturate: int, round_mode: str) -> Array:
    """Round positive floats to powers of two 2^(e-127), e = 0..254; NaN is 255."""
    wide = np.abs(x.astype(np.float64))
    mantissa, exponent = np.frexp(wide)
    power = exponent.astype(np.int64) - 1
    exact = mantissa == 0.5
    if round_mode == "up":
        power = np.where(exact, power, power + 1)
    elif round_mode == "nearest":
        power = np.where(mantissa >= 0.75, power + 1, power)
    code = power + 127
    over = code > 254
    code = np.where(over, 254 if saturate else 255, np.clip(code, 0, 255))
    code = np.where(wide == 0, 0, code)
    code = np.where(np.isinf(wide), 254 if saturate else 255, code)
    return np.where(np.isnan(wide), 255, code).astype(np.uint8).view(ml_dtypes.float8_e8m0fnu)


def _infer_cast(x: Value, to: str, **attrs: object) -> Types:
    return one(x.shape, to)


def _cast_samples(rng: np.random.Generator) -> Iterable[Sample]:
    x = rng.standard_normal((3, 19)).astype(np.float32) * 50
    for to in ("int32", "int8", "float16", "bool", "float64"):
        yield Sample((x,), {"to": to}, note=f"float32 to {to}")
    ints = rng.integers(-100, 100, (3, 19))
    for source, to in (("int64", "int32"), ("int32", "float32"), ("int8", "float32")):
        yield Sample((ints.astype(source),), {"to": to}, note=f"{source} to {to}")
    yield Sample(((x > 0),), {"to": "float32"}, note="bool to float32")
    yield Sample((np.array([np.nan, np.inf, -np.inf, -0.0], np.float32),), {"to": "float16"})


_ROUNDING = {
    "saturate": Attr("int", 1),
    "round_mode": Attr("str", "up", ("up", "down", "nearest")),
}
define(
    "cast",
    "x",
    "y = x as dtype `to`; floats to integers cut toward zero. Source: ONNX Cast",
    _infer_cast,
    cast,
    attrs={"to": DTYPE, **_ROUNDING},
    samples=_cast_samples,
    dtypes=(ANY,),
    elementwise=True,
)
define(
    "cast_like",
    "x like",
    "y = x as the dtype of `like`. Source: ONNX CastLike",
    lambda x, like, **attrs: one(x.shape, like.dtype),
    lambda x, like, saturate, round_mode: cast(x, dtype_name(like.dtype), saturate, round_mode),
    attrs=_ROUNDING,
    axis_map=axis_maps.rows_alone,
    samples=lambda rng: [
        Sample((rng.standard_normal((3, 5)).astype(np.float32), np.zeros(2, np.int32)))
    ],
    dtypes=(ANY, ANY),
)


def _infer_bit_cast(x: Value, to: str) -> Types:
    if to in TEXT:
        raise ShapeError("bits are not read as strings")
    found, wanted = numpy_dtype(x.dtype).itemsize, numpy_dtype(to).itemsize
    if found != wanted:
        raise ShapeError(f"x is {x.dtype} of {found} bytes, {to} has {wanted}")
    return one(x.shape, to)


define(
    "bit_cast",
    "x",
    "y = the bits of x read as dtype `to`, of the same size. Source: ONNX",
    _infer_bit_cast,
    lambda x, to: np.asarray(x, order="C").view(numpy_dtype(to)),
    attrs={"to": DTYPE},
    flops=no_flops,
    samples=lambda rng: [
        Sample((rng.standard_normal((3, 5)).astype(np.float32),), {"to": "int32"}),
        Sample((np.array(7, np.uint8),), {"to": "int8"}, note="no axes"),
    ],
    dtypes=(ANY - TEXT,),
    elementwise=True,
    alias=True,
)
define(
    "copy",
    "x",
    "y = x on the device `to`; only placement adds it. Source: trireme",
    same_type,
    lambda x, to: x,
    attrs={"to": Attr("str", "")},
    flops=no_flops,
    family="move",
    moves=True,
    dtypes=(ANY,),
)
define(
    "identity",
    "x",
    "y = x. Source: ONNX Identity-25",
    same_type,
    lambda x: x,
    flops=no_flops,
    family="move",
    moves=True,
    samples=lambda rng: [Sample((rng.standard_normal((3, 5)).astype(np.float32),))],
    dtypes=(ANY,),
    elementwise=True,
    rearranges=True,
    alias=True,
)
