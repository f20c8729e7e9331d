"""Ops on spectra that ONNX does not have: rfft2d and complex_abs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from trireme.ir.graph import TensorType, Value
from trireme.ir.op import Attr, Call, Sample, define
from trireme.support.dtypes import Array
from trireme.support.errors import ShapeError


def _infer_rfft2d(x: Value, *, fft_length: tuple[int, ...]) -> tuple[TensorType, ...]:
    if len(x.shape) < 2:
        raise ShapeError(f"x has rank {len(x.shape)}, expected 2 or more")
    if len(fft_length) != 2 or not all(0 < n <= 1 << 24 for n in fft_length):
        raise ShapeError(f"fft_length is {list(fft_length)}, expected (rows, columns)")
    rows, columns = fft_length
    return (TensorType((*x.shape[:-2], rows, columns // 2 + 1), "complex64"),)


def rfft2d(x: Array, *, fft_length: tuple[int, ...]) -> Array:
    """Return the one-sided spectrum of the last two axes, cut or zero-padded to fft_length."""
    return np.asarray(np.fft.rfft2(x.astype(np.float64), s=fft_length), np.complex64)


def _rfft2d_flops(call: Call) -> int:
    rows, columns = call.attrs["fft_length"]
    images = math.prod(call.type(0).dims[:-2])
    return int(2.5 * images * rows * columns * max(math.log2(rows * columns), 1))


def _rfft2d_samples(rng: np.random.Generator) -> Iterable[Sample]:
    x = rng.standard_normal((2, 3, 10)).astype(np.float32)
    for length in ((3, 10), (1, 16), (4, 5)):
        yield Sample((x,), {"fft_length": length}, note=f"length {length}")


def _infer_abs(x: Value, **attrs: Any) -> tuple[TensorType, ...]:
    return (TensorType(x.shape, "float32"),)


def _abs_samples(rng: np.random.Generator) -> Iterable[Sample]:
    x = rng.standard_normal((3, 7)) + 1j * rng.standard_normal((3, 7))
    yield Sample((x.astype(np.complex64),), note="small")


for _part in ("real", "imag"):
    define(
        f"complex_{_part}",
        "x",
        f"y = the {_part}{'inary' if _part == 'imag' else ''} part of x, complex64 to float32. "
        f"Source: TensorFlow Lite {_part.upper()}",
        _infer_abs,
        lambda x, _part=_part: np.ascontiguousarray(getattr(x, _part)),
        samples=_abs_samples,
        elementwise=True,
        dtypes=(frozenset({"complex64"}),),
    )
define(
    "rfft2d",
    "x",
    """y = the discrete Fourier transform of the last two axes, one-sided along the last.

        Shapes: x float32 [...,H,W] -> complex64 [...,rows,columns // 2 + 1], where x is cut or
                padded with zeros to fft_length = (rows, columns)
        Source: TensorFlow Lite RFFT2D
        """,
    _infer_rfft2d,
    rfft2d,
    attrs={"fft_length": Attr("ints")},
    flops=_rfft2d_flops,
    samples=_rfft2d_samples,
    family="other",
    rtol=1e-5,
    dtypes=(frozenset({"float32"}),),
)
define(
    "complex_abs",
    "x",
    "y = sqrt(re(x)^2 + im(x)^2), complex64 to float32. Source: TensorFlow Lite COMPLEX_ABS",
    _infer_abs,
    np.abs,
    samples=_abs_samples,
    elementwise=True,
    rtol=1e-6,
    dtypes=(frozenset({"complex64"}),),
)
