"""Samples of quantised products: convolutions, fully connected layers and matmul."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from trireme.ir.op import Sample
from trireme.ops.quantized_draws import (
    FIXED,
    int32_bias,
    per_channel,
    per_tensor,
    stored,
    window,
)
from trireme.support.dtypes import Array

_CONVS: tuple[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ("3x3", (1, 9, 11, 8), (16, 3, 3, 8), {"pads": (1, 1, 1, 1)}),
    (
        "stride 2, odd channels",
        (2, 9, 7, 5),
        (19, 3, 3, 5),
        {"strides": (2, 2), "pads": (0, 0, 1, 1)},
    ),
    ("pointwise relu6", (1, 5, 7, 37), (24, 1, 1, 37), {"activation": "relu6"}),
    (
        "depthwise",
        (1, 8, 7, 19),
        (19, 3, 3, 1),
        {"groups": 19, "pads": (1, 1, 1, 1), "activation": "relu"},
    ),
    (
        "depthwise, multiplier 2, stride 2",
        (2, 9, 9, 8),
        (16, 5, 5, 1),
        {"groups": 8, "strides": (2, 2), "pads": (1, 1, 2, 2)},
    ),
    ("dilated", (1, 11, 11, 4), (8, 3, 3, 4), {"dilations": (2, 3), "pads": (2, 3, 2, 3)}),
    ("two groups", (1, 6, 6, 8), (6, 3, 3, 4), {"groups": 2}),
    ("one pixel", (1, 1, 1, 3), (1, 1, 1, 3), {}),
)


def _conv(rng: np.random.Generator) -> Iterator[Sample]:
    for note, x_shape, w_shape, attrs in _CONVS:
        for dtype, zero, w_zero in (("int8", -7, 0), ("uint8", 131, 119)):
            channels = w_shape[0]
            signed = dtype == "int8"
            w_quant = per_channel(rng, channels, 0) if signed else per_tensor(0.011, w_zero)
            reach = np.sqrt(np.prod(w_shape[1:]))
            yield Sample(
                (
                    stored(rng, dtype, *x_shape),
                    stored(rng, dtype, *w_shape),
                    int32_bias(rng, channels),
                ),
                window(**attrs),
                FIXED,
                (per_tensor(0.037, zero), w_quant, None),
                (per_tensor(0.02 * float(reach), zero + 3),),
                f"{dtype} {note}",
            )
    yield from _float_convs(rng)


def _float_bias(rng: np.random.Generator, channels: int) -> Array:
    """Return a bias that makes the result of a product float32."""
    return rng.standard_normal(channels).astype(np.float32)


def _float_convs(rng: np.random.Generator) -> Iterator[Sample]:
    for note, x_shape, w_shape, attrs in _CONVS:
        for dtype, zero, w_zero in (("int8", -7, 0), ("uint8", 131, 119)):
            channels = w_shape[0]
            w_quant = per_channel(rng, channels, 0) if dtype == "int8" else per_tensor(0.01, w_zero)
            x, w = stored(rng, dtype, *x_shape), stored(rng, dtype, *w_shape)
            yield Sample(
                (x, w, _float_bias(rng, channels)),
                window(**attrs),
                FIXED,
                (per_tensor(0.037, zero), w_quant, None),
                (None,),
                f"{dtype} to floats, {note}",
            )


def _conv_transpose(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype, zero, w_zero in (("int8", 5, 0), ("uint8", 120, 131)):
        signed = dtype == "int8"
        w_quant = per_channel(rng, 7, 3) if signed else per_tensor(0.011, w_zero)
        yield Sample(
            (stored(rng, dtype, 1, 5, 4, 6), stored(rng, dtype, 6, 3, 3, 7), int32_bias(rng, 7)),
            window(strides=(1, 2) if signed else (2, 1), pads=(0, 0, 1, 1)),
            FIXED,
            (per_tensor(0.037, zero), w_quant, None),
            (per_tensor(0.1, zero),),
            dtype,
        )


def _fully_connected(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, columns, outs in ((1, 64, 10), (5, 37, 19), (3, 129, 1), (16, 64, 96)):
        for dtype, zero, w_zero in (("int8", 9, 0), ("uint8", 117, 140)):
            x, w = stored(rng, dtype, rows, columns), stored(rng, dtype, outs, columns)
            yield Sample(
                (x, w, int32_bias(rng, outs)),
                {"activation": "relu" if rows == 5 else ""},
                FIXED,
                (per_tensor(0.023, zero), per_tensor(0.0137, w_zero), None),
                (per_tensor(0.02 * columns**0.5, zero),),
                f"{dtype} {rows}x{columns}x{outs}",
            )
    x, w = stored(rng, "int8", 3, 40), stored(rng, "int8", 7, 40)
    quants = (per_tensor(0.02, 3), per_channel(rng, 7, 0))
    yield Sample((x, w), {}, FIXED, quants, (per_tensor(0.1, -4),), "per channel, no bias")
    yield from _float_fully_connected(rng)


def _float_fully_connected(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, columns, outs in ((1, 64, 10), (5, 37, 19), (16, 64, 96)):
        for dtype, zero, w_zero in (("int8", 9, 0), ("uint8", 117, 140)):
            x, w = stored(rng, dtype, rows, columns), stored(rng, dtype, outs, columns)
            w_quant = per_channel(rng, outs, 0) if dtype == "int8" else per_tensor(0.01, w_zero)
            yield Sample(
                (x, w, _float_bias(rng, outs)),
                {"activation": "relu" if rows == 5 else ""},
                FIXED,
                (per_tensor(0.023, zero), w_quant, None),
                (None,),
                f"{dtype} {rows}x{columns}x{outs} to floats",
            )


def _matmul(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype, zero in (("int8", 0), ("uint8", 128)):
        a, b = stored(rng, dtype, 2, 5, 19), stored(rng, dtype, 2, 19, 7)
        quants = (per_tensor(0.02, zero + 3), per_tensor(0.03, zero - 5))
        out = (per_tensor(0.11, zero + 8),)
        yield Sample((a, b), {}, frozenset(), quants, out, f"{dtype} batch 2")


PRODUCT_SAMPLERS = {
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "matmul": _matmul,
    "fully_connected": _fully_connected,
}
"""The samplers of products by op."""
