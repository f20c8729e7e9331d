"""Elementwise ops of one input: arithmetic, rounding, powers, trigonometry, tests of floats."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from trireme.ir.graph import Value
from trireme.ir.op import Attr, OpDef, Sample, define
from trireme.ops.activation import edge_values, float_samples, in_double, unary
from trireme.ops.shapes import Types, one
from trireme.support.dtypes import BOOL, FLOATS, INTEGERS, NUMBERS, REALS, SIGNED, Array

Function = Callable[..., Array]


def _rsqrt(x: Array) -> Array:
    return np.asarray(1 / np.sqrt(x))


unary("abs", "y = |x|. Source: ONNX Abs-13", np.abs, 1, 0, dtypes=(REALS,))
unary("neg", "y = -x. Source: ONNX Neg-13", np.negative, 1, 0, dtypes=(SIGNED,))
unary("sign", "y = -1, 0 or 1; NaN stays. Source: ONNX Sign-13", np.sign, 2, 0, dtypes=(REALS,))
unary("floor", "y = the greatest integer <= x. Source: ONNX Floor-13", np.floor, 1, 0)
unary("ceil", "y = the least integer >= x. Source: ONNX Ceil-13", np.ceil, 1, 0)
unary("round", "y = x rounded, halves to even. Source: ONNX Round-22", np.rint, 1, 0)
unary("exp", "y = e^x. Source: ONNX Exp-13", in_double(np.exp), 10)
unary("log", "y = ln x. Source: ONNX Log-13", in_double(np.log), 10)
unary("sqrt", "y = sqrt(x). Source: ONNX Sqrt-13", np.sqrt, 4, 1e-6)
unary("rsqrt", "y = 1 / sqrt(x). Source: TFLite RSQRT", in_double(_rsqrt), 8)
unary("square", "y = x * x. Source: TFLite SQUARE", np.square, 1, 0, dtypes=(NUMBERS,))
unary("reciprocal", "y = 1 / x. Source: ONNX Reciprocal-13", lambda x: 1 / x, 4, 1e-6)
for _name in ("sin", "cos", "tan"):
    unary(
        _name,
        f"y = {_name} x, x in radians. Source: ONNX {_name.title()}-22",
        in_double(getattr(np, _name)),
        20,
        integer_form="" if _name == "tan" else "table",
    )
for _name in ("sinh", "cosh"):
    _function = in_double(getattr(np, _name))
    unary(_name, f"y = {_name} x. Source: ONNX", _function, 20, integer_form="")
for _name in ("asin", "acos", "atan", "asinh", "acosh", "atanh"):
    _function = in_double(getattr(np, f"arc{_name[1:]}"))
    unary(_name, f"y = {_name} x. Source: ONNX", _function, 20, integer_form="")
unary(
    "bitwise_not",
    "y = ~x. Source: ONNX BitwiseNot-18",
    np.invert,
    1,
    0,
    dtypes=(INTEGERS,),
    integer_form="",
    samples=lambda rng: [Sample((rng.integers(-99, 99, (3, 7), np.int32),))],
)
unary(
    "not",
    "y = not x. Source: ONNX Not-1",
    np.logical_not,
    1,
    0,
    dtypes=(BOOL,),
    integer_form="",
    samples=lambda rng: [Sample((rng.integers(0, 2, (3, 7)).astype(bool),))],
)


def _flag(name: str, doc: str, reference: Function, attrs: dict[str, Attr] | None = None) -> OpDef:
    def infer(x: Value, **attrs: object) -> Types:
        return one(x.shape, "bool")

    def samples(rng: np.random.Generator) -> Iterable[Sample]:
        yield from float_samples(rng)
        for key in attrs or {}:
            yield Sample((edge_values(),), {key: 0}, note=f"not {key}")

    return define(
        name,
        "x",
        doc,
        infer,
        reference,
        samples=samples,
        attrs=attrs or {},
        dtypes=(FLOATS,),
        elementwise=True,
    )


def _is_inf(x: Array, detect_negative: int, detect_positive: int) -> Array:
    return np.isinf(x) & np.where(x < 0, bool(detect_negative), bool(detect_positive))


_flag("is_nan", "y = whether x is NaN. Source: ONNX IsNaN-20", np.isnan)
_flag(
    "is_inf",
    "y = whether x is infinite, of a sign asked for. Source: ONNX IsInf-20",
    _is_inf,
    {"detect_negative": Attr("int", 1), "detect_positive": Attr("int", 1)},
)
