"""Samples of quantised calls: every device must compute them bit for bit, or refuse them.

The inputs cover the whole range of stored integers, odd sizes and lane tails, zero points away from
the middle, scales per channel, and both 8-bit types. Output scales spread the results over the
range, and some results saturate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from trireme.ir.graph import Quant
from trireme.ir.op import Sample
from trireme.ops.integer import TABLES_16
from trireme.ops.quantized_samples_16 import SAMPLERS_16, table_samples_16
from trireme.support.dtypes import Array, numpy_dtype

Samples = Callable[[np.random.Generator], Iterable[Sample]]
FIXED = frozenset({1, 2})


def with_quantized(op: str, samples: Samples) -> Samples:
    """Return a sampler that yields the op's float samples, then its quantised ones."""
    if op in _SAMPLERS:
        more = SAMPLERS_16.get(op, lambda rng: ())
        return lambda rng: [*samples(rng), *_SAMPLERS[op](rng), *more(rng)]
    return samples


def with_table(op: str, samples: Samples) -> Samples:
    """Return the same for an op whose quantised form is a table."""
    wide = tuple(table_samples_16(op)) if op in TABLES_16 else ()
    return lambda rng: [*samples(rng), *_table_samples(op), *wide]


def per_tensor(scale: float, zero: int) -> Quant:
    """Return one scale, as float32 holds it, and one zero point."""
    return Quant((float(np.float32(scale)),), (zero,))


def per_channel(rng: np.random.Generator, channels: int, axis: int) -> Quant:
    """Return a scale for each channel, zero points 0."""
    scales = rng.uniform(0.005, 0.02, channels).astype(np.float32)
    return Quant(tuple(float(s) for s in scales), (0,) * channels, axis)


def stored(rng: np.random.Generator, dtype: str, *shape: int) -> Array:
    """Return integers from the whole range of a dtype."""
    info = np.iinfo(numpy_dtype(dtype))
    return rng.integers(info.min, info.max + 1, shape, numpy_dtype(dtype))


def _bias(rng: np.random.Generator, channels: int) -> Array:
    return rng.integers(-3000, 3000, channels, np.int32)


def _window(rank: int = 2, **attrs: Any) -> dict[str, Any]:
    plain = {"strides": (1,) * rank, "pads": (0,) * 2 * rank, "dilations": (1,) * rank}
    return {**plain, "layout": "NHWC", **attrs}


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
                (stored(rng, dtype, *x_shape), stored(rng, dtype, *w_shape), _bias(rng, channels)),
                _window(**attrs),
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
                _window(**attrs),
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
            (stored(rng, dtype, 1, 5, 4, 6), stored(rng, dtype, 6, 3, 3, 7), _bias(rng, 7)),
            _window(strides=(1, 2) if signed else (2, 1), pads=(0, 0, 1, 1)),
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
                (x, w, _bias(rng, outs)),
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


def _binary(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype, zero in (("int8", 0), ("uint8", 128)):
        quants = (per_tensor(0.05, zero + 4), per_tensor(0.021, zero - 9))
        x, y = stored(rng, dtype, 2, 5, 7, 19), stored(rng, dtype, 2, 5, 7, 19)
        out = (per_tensor(0.06, zero + 11),)
        yield Sample((x, y), {}, frozenset(), quants, out, f"{dtype} same shape")
        yield Sample((x, y), {"activation": "relu6"}, frozenset(), quants, out, f"{dtype} relu6")
        yield Sample((x, y[0, 0, 0]), {}, frozenset(), quants, out, f"{dtype} along channels")


def _difference(rng: np.random.Generator) -> Iterator[Sample]:
    return (sample for sample in _binary(rng) if not sample.attrs)


def _div(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield quotients without a zero divisor."""
    for dtype, zero in (("int8", 0), ("uint8", 128)):
        x, y = stored(rng, dtype, 2, 5, 19), stored(rng, dtype, 5, 19)
        quants = (per_tensor(0.05, zero + 4), per_tensor(0.021, zero - 9))
        y[y == zero - 9] += 1
        yield Sample((x, y), {}, frozenset(), quants, (per_tensor(0.06, zero + 11),), dtype)


def _compare(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield numbers of two scales; every fifth pair is equal."""
    for dtype, zero in (("int8", -3), ("uint8", 140)):
        x = stored(rng, dtype, 5, 19)
        x[:, ::5] = zero
        quants = (per_tensor(0.05, zero), per_tensor(0.025, zero))
        yield Sample((x, x[::-1].copy()), {}, frozenset(), quants, (None,), dtype)


def _clip(rng: np.random.Generator) -> Iterator[Sample]:
    both, low, high = frozenset({1, 2}), np.float32(-1.3), np.float32(2.1)
    for dtype, zero in (("int8", -3), ("uint8", 140)):
        x, quant = stored(rng, dtype, 3, 37), per_tensor(0.05, zero)
        limits = (np.array(low), np.array(high))
        other = (per_tensor(0.03, zero + 9),)
        yield Sample((x, *limits), {}, both, (quant, None, None), (quant,), dtype)
        yield Sample((x, *limits), {}, both, (quant, None, None), other, f"{dtype} another scale")
        only = np.array(zero + 11, dtype)
        yield Sample((x, only), {}, both, (quant, quant), (quant,), f"{dtype} a stored limit")


def _pow(rng: np.random.Generator) -> Iterator[Sample]:
    x, two = stored(rng, "int8", 3, 37), np.array(2, np.float32)
    quants, out = (per_tensor(0.05, 4), None), (per_tensor(0.2, -90),)
    yield Sample((x, two), {}, frozenset({1}), quants, out, "int8 squared")


def _prelu(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype, zero in (("int8", 4), ("uint8", 131)):
        x, slope = stored(rng, dtype, 2, 3, 5, 19), stored(rng, dtype, 19)
        quants, out = (per_tensor(0.05, zero), per_tensor(0.011, zero - 7)), per_tensor(0.06, 10)
        yield Sample((x, slope), {}, frozenset({1}), quants, (out,), dtype)


def _same_quant(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype, zero in (("int8", -3), ("uint8", 140)):
        quant = per_tensor(0.05, zero)
        inputs = (stored(rng, dtype, 2, 5, 19), stored(rng, dtype, 5, 19))
        yield Sample(inputs, {}, frozenset(), (quant, quant), (quant,), dtype)
    yield Sample(inputs[:1], {}, frozenset(), (quant,), (quant,), f"{dtype} one input")


def _pool(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype, zero in (("int8", -3), ("uint8", 140)):
        quant = per_tensor(0.05, zero)
        for note, attrs in (
            ("whole image", {"kernel": (6, 7)}),
            ("padded, stride 2", {"kernel": (3, 3), "strides": (2, 2), "pads": (0, 1, 1, 1)}),
            ("relu6", {"kernel": (2, 2), "activation": "relu6"}),
            ("beside the image", {"kernel": (1, 2), "pads": (2, 0, 1, 3)}),
        ):
            x = (stored(rng, dtype, 2, 6, 7, 19),)
            window = _window(**attrs)
            yield Sample(x, window, frozenset(), (quant,), (quant,), f"{dtype} {note}")


def _reduce(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype, zero in (("int8", -128), ("uint8", 3)):
        x, axes = stored(rng, dtype, 2, 7, 5, 19), np.array([1, 2])
        quants = (per_tensor(0.0235, zero), None)
        for keepdims, scale in ((0, 0.019), (1, 0.6)):
            out, note = (per_tensor(scale, zero),), f"{dtype} image, scale {scale}"
            yield Sample((x, axes), {"keepdims": keepdims}, frozenset({1}), quants, out, note)


def _reduce_same(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype, zero in (("int8", -128), ("uint8", 3)):
        x, axes = stored(rng, dtype, 2, 7, 5, 19), np.array([1, 2])
        quant = per_tensor(0.0235, zero)
        yield Sample((x, axes), {}, frozenset({1}), (quant, None), (quant,), f"{dtype} image")


def _table_samples(op: str) -> Iterator[Sample]:
    bounded = op in ("sigmoid", "tanh", "erf", "hard_sigmoid", "softsign", "sin", "cos")
    attrs: dict[str, Any] = {"alpha": 0.1} if op == "leaky_relu" else {}
    every = np.arange(256, dtype=np.uint8)
    small = (np.arange(7 * 37) * 37 % 256).astype(np.uint8).reshape(7, 37)
    for x, note in ((every, "every byte"), (small, "odd size")):
        for dtype, zero in (("int8", -5), ("uint8", 120)):
            given = {**attrs, "dtype": dtype} if op == "quantize" else attrs
            quants = (
                (per_tensor(0.05, zero + 7),),
                (per_tensor(1 / 128 if bounded else 0.04, zero),),
            )
            inputs = (x.view(numpy_dtype(dtype)),)
            yield Sample(inputs, given, frozenset(), *quants, f"{dtype} {note}")
    if op == "quantize":
        quants = (per_tensor(0.05, 130),), (per_tensor(0.05, 2),)
        yield Sample((every,), {"dtype": "int8"}, frozenset(), *quants, "uint8 to int8")


def _quantize(rng: np.random.Generator) -> Iterator[Sample]:
    odd = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, 3e38, 0.125, 0.375, -0.125, 0.49999997]
    draws = ((rng.standard_normal((3, 37)) * 9, "odd size"), (np.array(odd), "NaN, ties"))
    for x, note in draws:
        for dtype, zero in (("int8", -3), ("uint8", 140)):
            yield Sample(
                (x.astype(np.float32),),
                {"dtype": dtype},
                frozenset(),
                (),
                (per_tensor(0.25, zero),),
                f"float32 to {dtype}, {note}",
            )
    yield from _table_samples("quantize")


def _dequantize(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype, zero in (("int8", -3), ("uint8", 140)):
        x = (stored(rng, dtype, 7, 37),)
        yield Sample(x, {}, frozenset(), (per_tensor(0.037, zero),), (None,), dtype)


def _concat(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype, zero in (("int8", -3), ("uint8", 140)):
        first, second = per_tensor(0.05, zero), per_tensor(0.071, zero + 9)
        parts = (stored(rng, dtype, 2, 3, 5), stored(rng, dtype, 2, 3, 8))
        attrs = {"axis": 2}
        yield Sample(parts, attrs, frozenset(), (first, first), (first,), f"{dtype} one scale")
        yield Sample(parts, attrs, frozenset(), (first, second), (first,), f"{dtype} rescaled")


def _softmax(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype, zero, y_zero in (("int8", 20, -128), ("uint8", 130, 0)):
        for shape, scale in (((1, 10), 0.1), ((3, 37), 0.02), ((1, 1001), 0.09), ((4, 1), 0.1)):
            x = (stored(rng, dtype, *shape),)
            quants = ((per_tensor(scale, zero),), (per_tensor(1 / 256, y_zero),))
            yield Sample(x, {"axis": -1}, frozenset(), *quants, f"{dtype} {shape}")


def _log_softmax(rng: np.random.Generator) -> Iterator[Sample]:
    x = stored(rng, "int8", 3, 37)
    yield Sample(
        (x,), {"axis": -1}, frozenset(), (per_tensor(0.02, 20),), (per_tensor(0.05, 90),), "int8"
    )


def _pad(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype, zero in (("int8", -3), ("uint8", 140)):
        quant = per_tensor(0.05, zero)
        pads = np.array([0, 1, 2, 0, 0, 2, 1, 0])
        x = (stored(rng, dtype, 2, 3, 4, 5), pads)
        yield Sample(x, {}, frozenset({1}), (quant, None), (quant,), f"{dtype} with zero points")


def _resize(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype, zero in (("int8", -3), ("uint8", 140)):
        quant = per_tensor(0.05, zero)
        x = stored(rng, dtype, 1, 5, 7, 3)
        for how in ("half_pixel", "align_corners", "asymmetric"):
            for mode in ("linear", "nearest"):
                attrs = {
                    "mode": mode,
                    "coordinate_transformation_mode": how,
                    "axes": (1, 2),
                    "nearest_mode": "floor" if how == "asymmetric" else "round_prefer_ceil",
                }
                inputs = (x, None, None, np.array([11, 9]))
                yield Sample(
                    inputs, attrs, frozenset({3}), (quant,), (quant,), f"{dtype} {mode} {how}"
                )
        yield from _resize_through_floats(x, quant)


def _resize_through_floats(x: Array, quant: Quant) -> Iterator[Sample]:
    """Yield resizes without a form on stored integers."""
    cubic: dict[str, object] = {"mode": "cubic", "axes": (1, 2)}
    other = {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}
    sizes, scales = np.array([1, 11, 9, 3]), np.array([1, 1.5, 2, 1], np.float32)
    rows: tuple[tuple[str, Mapping[str, object], tuple[Array | None, ...]], ...] = (
        ("cubic", cubic, (x, None, None, sizes[1:3])),
        ("coordinates of PyTorch", other, (x, None, None, sizes)),
        ("a scale that leaves a rest", {"mode": "linear"}, (x, None, scales)),
        ("another axis", {"mode": "linear"}, (x, None, None, np.array([1, 5, 9, 4]))),
    )
    for note, attrs, inputs in rows:
        fixed = frozenset({len(inputs) - 1})
        yield Sample(inputs, attrs, fixed, (quant,), (quant,), f"{x.dtype} {note}")


_SAMPLERS: dict[str, Callable[[np.random.Generator], Iterator[Sample]]] = {
    "add": _binary,
    "sub": _binary,
    "mul": _binary,
    "prelu": _prelu,
    "max": _same_quant,
    "min": _same_quant,
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "matmul": _matmul,
    "squared_difference": _difference,
    "div": _div,
    "clip": _clip,
    "pow": _pow,
    "log_softmax": _log_softmax,
    "fully_connected": _fully_connected,
    "average_pool": _pool,
    "max_pool": _pool,
    "reduce_mean": _reduce,
    "reduce_sum": _reduce,
    "reduce_max": _reduce_same,
    "reduce_min": _reduce_same,
    "quantize": _quantize,
    "dequantize": _dequantize,
    "concat": _concat,
    "softmax": _softmax,
    "pad": _pad,
    "resize": _resize,
    **dict.fromkeys(
        ("equal", "not_equal", "less", "less_or_equal", "greater", "greater_or_equal"), _compare
    ),
}
