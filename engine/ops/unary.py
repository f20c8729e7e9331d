"""Elementwise ops of one input: arithmetic, rounding, powers, trigonometry, tests of floats."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from trireme.ir.graph import Value
from trireme.ir.op import Attr, Call, IntegerForm, OpDef, Sample, define
from trireme.ops.activation import edge_values, float_samples
from trireme.ops.activation import in_double as _double
from trireme.ops.quantized import table
from trireme.ops.quantized_samples import with_table
from trireme.ops.shapes import Types, one, same_type
from trireme.support.dtypes import BOOL, FLOATING, FLOATS, INTEGERS, NUMBERS, REALS, SIGNED, Array

Function = Callable[..., Array]


def _unary(
    name: str,
    doc: str,
    reference: Function,
    cost: int,
    rtol: float = 0,
    dtypes: frozenset[str] = FLOATING,
    integer_form: IntegerForm = "table",
    **options: Any,
) -> OpDef:
    def flops(call: Call) -> int:
        return cost * call.outputs[0].elements

    if integer_form:
        options |= {"quantized": table(name), "samples": with_table(name, float_samples)}
    options.setdefault("samples", float_samples)
    return define(
        name,
        "x",
        doc,
        same_type,
        reference,
        flops=flops,
        rtol=rtol,
        dtypes=(dtypes,),
        elementwise=True,
        integer_form=integer_form,
        **options,
    )


def _rsqrt(x: Array) -> Array:
    return np.asarray(1 / np.sqrt(x))


_unary("abs", "y = |x|. Source: ONNX Abs-13", np.abs, 1, dtypes=REALS)
_unary("neg", "y = -x. Source: ONNX Neg-13", np.negative, 1, dtypes=SIGNED)
_unary("sign", "y = -1, 0 or 1; NaN stays. Source: ONNX Sign-13", np.sign, 2, dtypes=REALS)
_unary("floor", "y = the greatest integer <= x. Source: ONNX Floor-13", np.floor, 1)
_unary("ceil", "y = the least integer >= x. Source: ONNX Ceil-13", np.ceil, 1)
_unary("round", "y = x rounded, halves to even. Source: ONNX Round-22", np.rint, 1)
_unary("exp", "y = e^x. Source: ONNX Exp-13", _double(np.exp), 10, 2e-6)
_unary("log", "y = ln x. Source: ONNX Log-13", _double(np.log), 10, 2e-6)
_unary("sqrt", "y = sqrt(x). Source: ONNX Sqrt-13", np.sqrt, 4, 1e-6)
_unary("rsqrt", "y = 1 / sqrt(x). Source: TFLite RSQRT", _double(_rsqrt), 8, 2e-6)
_unary("square", "y = x * x. Source: TFLite SQUARE", np.square, 1, dtypes=NUMBERS)
_unary("reciprocal", "y = 1 / x. Source: ONNX Reciprocal-13", lambda x: 1 / x, 4, 1e-6)
for _name in ("sin", "cos", "tan"):
    _unary(
        _name,
        f"y = {_name} x, x in radians. Source: ONNX {_name.title()}-22",
        _double(getattr(np, _name)),
        20,
        2e-6,
        integer_form="" if _name == "tan" else "table",
    )
for _name in ("sinh", "cosh"):
    _function = _double(getattr(np, _name))
    _unary(_name, f"y = {_name} x. Source: ONNX", _function, 20, 2e-6, integer_form="")
for _name in ("asin", "acos", "atan", "asinh", "acosh", "atanh"):
    _function = _double(getattr(np, f"arc{_name[1:]}"))
    _unary(_name, f"y = {_name} x. Source: ONNX", _function, 20, 2e-6, integer_form="")
_unary(
    "bitwise_not",
    "y = ~x. Source: ONNX BitwiseNot-18",
    np.invert,
    1,
    dtypes=INTEGERS,
    integer_form="",
    samples=lambda rng: [Sample((rng.integers(-99, 99, (3, 7), np.int32),))],
)
_unary(
    "not",
    "y = not x. Source: ONNX Not-1",
    np.logical_not,
    1,
    dtypes=BOOL,
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
