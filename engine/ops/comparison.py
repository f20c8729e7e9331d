"""Comparisons of two inputs, element by element."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from trireme.ir.dtype_rules import Like
from trireme.ir.graph import Value
from trireme.ir.op import Sample, define
from trireme.ops.elementwise import binary_samples
from trireme.ops.quantized import compare
from trireme.ops.quantized_samples import with_quantized
from trireme.ops.shapes import Types, broadcast, one
from trireme.support.dtypes import ANY, BOOL, REALS


def _infer_compare(a: Value, b: Value, **attrs: object) -> Types:
    return one(broadcast(a.shape, b.shape), "bool")


def _compare_samples(rng: np.random.Generator) -> Iterable[Sample]:
    yield from binary_samples(rng)
    yield Sample(tuple(rng.integers(-2, 3, (2, 3, 7)).astype(np.int32)), note="ties")


_ORDERED = REALS | BOOL
for _name, _sign, _compare, _dtypes in (
    ("equal", "==", np.equal, ANY),
    ("not_equal", "!=", np.not_equal, ANY),
    ("less", "<", np.less, _ORDERED),
    ("less_or_equal", "<=", np.less_equal, _ORDERED),
    ("greater", ">", np.greater, _ORDERED),
    ("greater_or_equal", ">=", np.greater_equal, _ORDERED),
):
    define(
        _name,
        "a b",
        f"y = a {_sign} b, a and b broadcast. Source: ONNX",
        _infer_compare,
        _compare,
        samples=with_quantized(_name, _compare_samples),
        quantized=compare(_name),
        dtypes=(_dtypes, Like("a")),
        elementwise=True,
        commutes=_name in ("equal", "not_equal"),
        compares=True,
    )
