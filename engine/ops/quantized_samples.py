"""Samples of quantised calls: every device must compute them bit for bit, or refuse them.

The inputs cover the whole range of stored integers, odd sizes and lane tails, zero points away from
the middle, scales per channel, and both 8-bit types. Output scales spread the results over the
range, and some results saturate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from trireme.ir.graph import Quant, Rounding
from trireme.ir.op import Sample
from trireme.ops.integer import TABLES_16
from trireme.ops.quantized_draws import per_tensor, stored, window
from trireme.ops.quantized_samples_16 import SAMPLERS_16, table_samples_16
from trireme.ops.quantized_samples_products import PRODUCT_SAMPLERS
from trireme.support.dtypes import Array, numpy_dtype

Samples = Callable[[np.random.Generator], Iterable[Sample]]


def with_quantized(op: str, samples: Samples) -> Samples:
    """Return a sampler that yields the op's float samples, then its quantised ones."""
    if op in _SAMPLERS:
        more = SAMPLERS_16.get(op, lambda rng: ())
        return lambda rng: [*samples(rng), *_both_roundings(_SAMPLERS[op](rng)), *more(rng)]
    return samples


def with_table(op: str, samples: Samples) -> Samples:
    """Return the same for an op whose quantised form is a table."""
    wide = tuple(table_samples_16(op)) if op in TABLES_16 else ()
    return lambda rng: [*samples(rng), *_both_roundings(_table_samples(op)), *wide]


def _both_roundings(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Yield samples, and each with halves to even on scales that make halves exact."""
    for sample in samples:
        yield sample
        if any(sample.out_quants):
            quants, outs = (tuple(map(_to_even, q)) for q in (sample.quants, sample.out_quants))
            note = f"{sample.note}, halves to even"
            yield replace(sample, quants=quants, out_quants=outs, note=note)


def _to_even(quant: Quant | None) -> Quant | None:
    if quant is None:
        return None
    scales = tuple(2.0 ** round(math.log2(scale)) for scale in quant.scales)
    return replace(quant, scales=scales, rounding=Rounding.HALF_EVEN)


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
            plain = window(**attrs)
            yield Sample(x, plain, frozenset(), (quant,), (quant,), f"{dtype} {note}")


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
        doubled = {"mode": "linear", "coordinate_transformation_mode": "half_pixel", "axes": (1, 2)}
        inputs = (x, None, None, np.array([10, 14]))
        yield Sample(inputs, doubled, frozenset({3}), (quant,), (quant,), f"{dtype} doubled")
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
    **PRODUCT_SAMPLERS,
    "add": _binary,
    "sub": _binary,
    "mul": _binary,
    "prelu": _prelu,
    "max": _same_quant,
    "min": _same_quant,
    "squared_difference": _difference,
    "div": _div,
    "clip": _clip,
    "pow": _pow,
    "log_softmax": _log_softmax,
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
