"""Ops of the exact quotient of two numbers: its floor, and what is left."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from trireme.ir.op import Attr, Sample
from trireme.ops.activation import edge_values
from trireme.ops.elementwise import binary_samples, define_binary, integer_samples
from trireme.support.dtypes import Array


def _modulo_samples(rng: np.random.Generator) -> Iterable[Sample]:
    yield from integer_samples(rng)
    a, b = rng.integers(-20, 21, (2, 3, 7)).astype(np.int32)
    yield Sample((a, np.where(b == 0, 5, b).astype(np.int32)), {"fmod": 1}, note="fmod")
    for attrs in ({}, {"zero": "dividend"}, {"fmod": 1}):
        for sample in _quotient_samples(rng):
            yield Sample(sample.inputs, attrs, note=f"{sample.note} {attrs}")


def _quotient_samples(rng: np.random.Generator) -> Iterable[Sample]:
    """Yield floats whose rounded quotient is whole although the exact one is not."""
    step = np.array([0.1, 0.3, -0.7, 1.1, 7.0, -1e-6, 3e36], np.float32)
    whole = rng.integers(-99, 99, (9, 1)).astype(np.float32)
    yield Sample((whole * step, step), note="near multiples")
    yield Sample(
        (np.append(edge_values(), np.float32(1e-45))[:, None], edge_values()), note="edges"
    )


def _modulo(a: Array, b: Array, fmod: int, zero: str) -> Array:
    if fmod:
        return np.asarray(np.fmod(a, b))
    rest = np.asarray(np.mod(a, b))
    if zero == "divisor" or rest.dtype.kind in "iu":
        return rest
    return np.asarray(np.where(rest == 0, np.copysign(rest, a), rest))


def _floor_div_samples(rng: np.random.Generator) -> Iterable[Sample]:
    yield from integer_samples(rng)
    yield from binary_samples(rng)
    yield from _quotient_samples(rng)


define_binary(
    "mod",
    "y = a mod b, exact: of b's sign, or of a's with fmod=1. A zero has the sign of `zero`: "
    "Python's % and ONNX take the divisor's, PyTorch and TFLite the dividend's. "
    "Source: ONNX Mod-28, ATen remainder",
    _modulo,
    attrs={
        "fmod": Attr("int", 0),
        "zero": Attr("str", "divisor", choices=("divisor", "dividend")),
    },
    samples=_modulo_samples,
)
define_binary(
    "floor_div",
    "y = floor(a / b) of the exact quotient. Source: TFLite FLOOR_DIV, ATen div_floor",
    np.floor_divide,
    samples=_floor_div_samples,
)
