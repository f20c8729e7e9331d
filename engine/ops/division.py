"""Ops of the exact quotient of two numbers: its floor, and what is left."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from trireme.ir.op import Attr, Sample
from trireme.ops.elementwise import define_binary, integer_samples
from trireme.support.dtypes import Array


def _modulo_samples(rng: np.random.Generator) -> Iterable[Sample]:
    yield from integer_samples(rng)
    a, b = rng.integers(-20, 21, (2, 3, 7)).astype(np.int32)
    yield Sample((a, np.where(b == 0, 5, b).astype(np.int32)), {"fmod": 1}, note="fmod")


def _modulo(a: Array, b: Array, fmod: int) -> Array:
    return np.asarray(np.fmod(a, b) if fmod else np.mod(a, b))


define_binary(
    "mod",
    "y = a mod b: of b's sign, or of a's with fmod=1. Source: ONNX Mod-13",
    _modulo,
    attrs={"fmod": Attr("int", 0)},
    samples=_modulo_samples,
)
define_binary(
    "floor_div",
    "y = floor(a / b). Source: TFLite FLOOR_DIV",
    np.floor_divide,
    samples=integer_samples,
)
