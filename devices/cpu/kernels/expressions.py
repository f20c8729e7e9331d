"""Elementwise ops and activations as instructions: a table from an op to its emitter.

An op has an emitter for each kind of element it is computed in. Elementwise kernels look emitters
up here, and so do the ends of kernels that apply an activation.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

from trireme.devices.cpu.codegen import intfn, mathfn, power, remainder, trigonometry
from trireme.devices.cpu.codegen.ir import Function, Value
from trireme.devices.cpu.codegen.scalars import SCALARS, Kind, bits, convert

Emit = Callable[..., Value]
"""(fn, attrs, *operands) -> result, on vectors."""


ACTIVATIONS: dict[str, Callable[[Function, Value], Value]] = {
    "": lambda fn, x: x,
    "relu": lambda fn, x: mathfn.clamp(fn, x, 0.0, math.inf),
    "relu6": lambda fn, x: mathfn.clamp(fn, x, 0.0, 6.0),
    "relu_n1_to_1": lambda fn, x: mathfn.clamp(fn, x, -1.0, 1.0),
    "tanh": mathfn.tanh,
    "sigmoid": mathfn.sigmoid,
    "hard_sigmoid": lambda fn, x: _hard_sigmoid(fn, x, 1 / 6, 0.5),
    "hard_swish": lambda fn, x: x * _hard_sigmoid(fn, x, 1 / 6, 0.5),
    "swish": mathfn.swish,
    "gelu": lambda fn, x: _fused_gelu(fn, x),
    "gelu_tanh": lambda fn, x: _gelu(fn, {"approximate": "tanh"}, x),
}
"""The function of a vector for each `activation` attribute, by its name."""


def activate(fn: Function, name: str, x: Value, attrs: Mapping[str, Any] | None = None) -> Value:
    """Return the named activation of a vector."""
    return ACTIVATIONS[name](fn, x)


def _hard_sigmoid(fn: Function, x: Value, alpha: float, beta: float) -> Value:
    return mathfn.clamp(fn, fn.fma(x, alpha, beta), 0.0, 1.0)


def _fused_gelu(fn: Function, x: Value) -> Value:
    """Return gelu to 2e-7 of the largest result, in half the instructions."""
    half = x * 0.5
    return fn.fma(half, mathfn.erf(fn, x * math.sqrt(0.5)), half)


def _gelu(fn: Function, attrs: Mapping[str, Any], x: Value) -> Value:
    if attrs.get("approximate", "none") == "tanh":
        half = x * 0.5
        inner = fn.fma(x * x * x, 0.044715, x) * math.sqrt(2 / math.pi)
        return fn.fma(half, mathfn.tanh(fn, inner), half)
    return mathfn.gelu(fn, x)


def _swish(fn: Function, attrs: Mapping[str, Any], x: Value) -> Value:
    alpha = float(attrs.get("alpha", 1.0))
    return mathfn.swish(fn, x) if alpha == 1 else x * mathfn.sigmoid(fn, x * alpha)


def _leaky(fn: Function, attrs: Mapping[str, Any], x: Value) -> Value:
    return fn.select(fn.compare("olt", x, 0.0), x * float(attrs["alpha"]), x)


def _elu(fn: Function, attrs: Mapping[str, Any], x: Value) -> Value:
    below = mathfn.expm1_below(fn, x) * float(attrs["alpha"])
    return fn.select(fn.compare("olt", x, 0.0), below, x)


def _celu(fn: Function, attrs: Mapping[str, Any], x: Value) -> Value:
    alpha = float(attrs["alpha"])
    less_1 = mathfn.expm1_below if alpha > 0 else mathfn.expm1
    below = less_1(fn, x * (1 / alpha)) * alpha
    return fn.select(fn.compare("olt", x, 0.0), below, x)


def _selu(fn: Function, attrs: Mapping[str, Any], x: Value) -> Value:
    return _elu(fn, attrs, x) * float(attrs["gamma"])


def _softplus(fn: Function, x: Value) -> Value:
    """Return log(1 + e^x) as max(x, 0) + log(1 + e^-|x|), which does not overflow."""
    power = mathfn.exp(fn, -fn.unary("fabs", x))
    return mathfn.clamp(fn, x, 0.0, math.inf) + mathfn.log1p_unit(fn, power)


def _prelu(fn: Function, attrs: Mapping[str, Any], x: Value, slope: Value) -> Value:
    return fn.select(fn.compare("olt", x, 0.0), x * slope, x)


def _above(fn: Function, attrs: Mapping[str, Any], x: Value) -> Value:
    return fn.select(fn.compare("ogt", x, float(attrs["alpha"])), x, 0.0)


def _fold(emit: Callable[[Function, Value, Value], Value]) -> Emit:
    def over_all(fn: Function, attrs: Mapping[str, Any], *operands: Value) -> Value:
        result = operands[0]
        for operand in operands[1:]:
            result = emit(fn, result, operand)
        return result

    return over_all


def _plain(emit: Callable[..., Value]) -> Emit:
    return lambda fn, attrs, *operands: emit(fn, *operands)


def _activated(emit: Callable[[Function, Value, Value], Value]) -> Emit:
    def with_activation(fn: Function, attrs: Mapping[str, Any], a: Value, b: Value) -> Value:
        return activate(fn, attrs.get("activation", ""), emit(fn, a, b), attrs)

    return with_activation


def _clip(maximum: Callable[..., Value], minimum: Callable[..., Value]) -> Emit:
    def emit(fn: Function, attrs: Mapping[str, Any], x: Value, *limits: Value) -> Value:
        if attrs["has_low"]:
            x = maximum(fn, x, limits[0])
        return minimum(fn, x, limits[-1]) if attrs["has_high"] else x

    return emit


def _mean(fn: Function, attrs: Mapping[str, Any], *operands: Value) -> Value:
    total = functools.reduce(lambda a, b: a + b, operands)
    return total / fn.as_value(total.type, float(len(operands)))


def _sign(fn: Function, x: Value) -> Value:
    below = fn.select(fn.compare("olt", x, 0.0), fn.as_value(x.type, -1.0), x)
    return fn.select(fn.compare("ogt", x, 0.0), 1.0, below)


def _modulo(rest_of: remainder.RestOf) -> Emit:
    def emit(fn: Function, attrs: Mapping[str, Any], a: Value, b: Value) -> Value:
        if attrs["fmod"]:
            return rest_of(fn, a, b)
        return remainder.modulo(fn, rest_of, a, b, zero_of_b=attrs["zero"] == "divisor")

    return emit


def _floor_divide(rest_of: remainder.RestOf) -> Emit:
    return lambda fn, attrs, a, b: remainder.floor_divide(fn, rest_of, a, b)


def _is_inf(fn: Function, attrs: Mapping[str, Any], x: Value) -> Value:
    above = fn.compare("oeq", x, math.inf if attrs["detect_positive"] else math.nan)
    below = fn.compare("oeq", x, -math.inf if attrs["detect_negative"] else math.nan)
    return bits(fn, "or", above, below)


def _where(fn: Function, attrs: Mapping[str, Any], condition: Value, x: Value, y: Value) -> Value:
    return fn.select(condition, x, y)


def _cast(fn: Function, attrs: Mapping[str, Any], x: Value) -> Value:
    return convert(fn, x, attrs["from"], attrs["to"])


def _pow(fn: Function, attrs: Mapping[str, Any], x: Value, y: Value) -> Value:
    wide = convert(fn, y, attrs["exponent"], "float64")
    return power.power(fn, x, wide)


def _known_power(fn: Function, attrs: Mapping[str, Any], x: Value) -> Value:
    """Return x to a known power of KNOWN_POWERS."""
    exponent = attrs["exponent"]
    if exponent == 0.5:  # of -0 it is 0, of -infinity infinity
        root = fn.unary("fabs", fn.unary("sqrt", x))
        return fn.select(fn.compare("oeq", x, -math.inf), math.inf, root)
    if exponent == -1:
        return 1.0 / x
    square = x * x
    return {1: x, 2: square, 3: square * x, 4: square * square}[exponent]


KNOWN_POWERS = (-1, 0.5, 1, 2, 3, 4)
"""Constant exponents for which a few instructions do."""

Forms = dict[Kind, Emit]
"""The emitter of an op, by the kind of its elements."""


def _single(emit: Emit) -> Forms:
    return {"single": emit}


def _floats(emit: Emit) -> Forms:
    return {"single": emit, "double": emit}


def _integers(emit: Callable[..., Value]) -> Forms:
    """A function of (fn, *operands), the same for signed and unsigned."""
    return {"signed": _plain(emit), "unsigned": _plain(emit)}


def _by_sign(emit: Callable[..., Value]) -> Forms:
    """A function of (fn, *operands, signed=)."""
    return {
        "signed": _plain(functools.partial(emit, signed=True)),
        "unsigned": _plain(functools.partial(emit, signed=False)),
    }


def _arithmetic(emit: Callable[[Function, Value, Value], Value]) -> Forms:
    return _floats(_activated(emit)) | _integers(emit)


def _bitwise(op: str) -> Callable[[Function, Value, Value], Value]:
    return lambda fn, a, b: bits(fn, op, a, b)


def _compared(floats: str, signed: str) -> Forms:
    unsigned = signed.replace("s", "u")

    def emit(relation: str) -> Emit:
        return lambda fn, attrs, a, b: fn.compare(relation, a, b)

    kinds: dict[Kind, Emit] = {"signed": emit(signed), "unsigned": emit(unsigned)}
    return _floats(emit(floats)) | kinds | {"bool": emit(unsigned)}


def _int_modulo(signed: bool) -> Emit:
    return lambda fn, attrs, a, b: intfn.modulo(fn, a, b, signed=signed, of_a=attrs["fmod"])


_MODULO: Forms = {
    "single": _modulo(remainder.of_singles),
    "double": _modulo(remainder.of_doubles),
    "signed": _int_modulo(True),
    "unsigned": _int_modulo(False),
}


def _shift(signed: bool) -> Emit:
    return lambda fn, attrs, a, b: intfn.shift(
        fn, a, b, signed=signed, left=attrs["direction"] == "LEFT"
    )


def _int_clip(signed: bool) -> Emit:
    limits = (functools.partial(f, signed=signed) for f in (intfn.maximum, intfn.minimum))
    return _clip(*limits)


def _int_fold(emit: Callable[..., Value]) -> Forms:
    return {
        "signed": _fold(functools.partial(emit, signed=True)),
        "unsigned": _fold(functools.partial(emit, signed=False)),
    }


def _int_power(signed: bool) -> Emit:
    return lambda fn, attrs, a, b: intfn.power(fn, a, b, signed=signed)


def _add(fn: Function, a: Value, b: Value) -> Value:
    return a + b


def _squared(fn: Function, x: Value) -> Value:
    return x * x


def _difference(fn: Function, a: Value, b: Value) -> Value:
    return (a - b) * (a - b)


def _any(emit: Emit) -> Forms:
    kinds: tuple[Kind, ...] = ("signed", "unsigned", "bool")
    return _floats(emit) | dict.fromkeys(kinds, emit)


EXPRESSIONS: dict[str, Forms] = {
    "add": _arithmetic(_add),
    "sub": _arithmetic(lambda fn, a, b: a - b),
    "mul": _arithmetic(lambda fn, a, b: a * b),
    "div": _floats(_activated(lambda fn, a, b: a / b)) | _by_sign(intfn.divide),
    "floor_div": {
        "single": _floor_divide(remainder.of_singles),
        "double": _floor_divide(remainder.of_doubles),
        **_by_sign(intfn.floor_divide),
    },
    "mod": _MODULO,
    "max": _floats(_fold(mathfn.maximum)) | _int_fold(intfn.maximum),
    "min": _floats(_fold(mathfn.minimum)) | _int_fold(intfn.minimum),
    "sum": _floats(_fold(_add)) | {"signed": _fold(_add), "unsigned": _fold(_add)},
    "mean": _floats(_mean),
    "relu": _floats(_plain(ACTIVATIONS["relu"])),
    "sigmoid": _single(_plain(mathfn.sigmoid)),
    "tanh": _single(_plain(mathfn.tanh)),
    "exp": _single(_plain(mathfn.exp)),
    "log": _single(_plain(mathfn.log)),
    "erf": _single(_plain(mathfn.erf)),
    "sin": _single(_plain(trigonometry.sin)),
    "cos": _single(_plain(trigonometry.cos)),
    "tan": _single(_plain(trigonometry.tan)),
    "neg": _floats(_plain(lambda fn, x: -x)) | {"signed": _plain(intfn.negative)},
    "abs": _floats(_plain(lambda fn, x: fn.unary("fabs", x)))
    | {"signed": _plain(intfn.absolute), "unsigned": _plain(lambda fn, x: x)},
    "sign": _floats(_plain(_sign)) | _by_sign(intfn.sign),
    "sqrt": _floats(_plain(lambda fn, x: fn.unary("sqrt", x))),
    "rsqrt": _floats(_plain(lambda fn, x: 1.0 / fn.unary("sqrt", x))),
    "reciprocal": _floats(_plain(lambda fn, x: 1.0 / x)),
    "floor": _floats(_plain(lambda fn, x: fn.unary("floor", x))),
    "ceil": _floats(_plain(lambda fn, x: fn.unary("ceil", x))),
    "round": _floats(_plain(lambda fn, x: fn.unary("roundeven", x))),
    "square": _floats(_plain(_squared)) | _integers(_squared),
    "squared_difference": _floats(_plain(_difference)) | _integers(_difference),
    "pow": _single(_pow) | {"signed": _int_power(True), "unsigned": _int_power(False)},
    "relu6": _floats(_plain(ACTIVATIONS["relu6"])),
    "relu_n1_to_1": _floats(_plain(ACTIVATIONS["relu_n1_to_1"])),
    "prelu": _floats(_prelu),
    "celu": _single(_celu),
    "selu": _single(_selu),
    "softplus": _single(_plain(_softplus)),
    "softsign": _floats(_plain(lambda fn, x: x / (fn.unary("fabs", x) + 1.0))),
    "mish": _single(_plain(lambda fn, x: x * mathfn.tanh(fn, _softplus(fn, x)))),
    "thresholded_relu": _floats(_above),
    "hard_swish": _single(_plain(ACTIVATIONS["hard_swish"])),
    "hard_sigmoid": _single(
        lambda fn, attrs, x: _hard_sigmoid(fn, x, attrs["alpha"], attrs["beta"])
    ),
    "swish": _single(_swish),
    "leaky_relu": _floats(_leaky),
    "elu": _single(_elu),
    "gelu": _single(_gelu),
    "clip": _floats(_clip(mathfn.maximum, mathfn.minimum))
    | {"signed": _int_clip(True), "unsigned": _int_clip(False)},
    "equal": _compared("oeq", "eq"),
    "not_equal": _compared("une", "ne"),
    "less": _compared("olt", "slt"),
    "less_or_equal": _compared("ole", "sle"),
    "greater": _compared("ogt", "sgt"),
    "greater_or_equal": _compared("oge", "sge"),
    "is_nan": _floats(_plain(lambda fn, x: fn.compare("uno", x, x))),
    "is_inf": _floats(_is_inf),
    "not": {"bool": _plain(lambda fn, x: bits(fn, "xor", x, 1))},
    "and": {"bool": _plain(_bitwise("and"))},
    "or": {"bool": _plain(_bitwise("or"))},
    "xor": {"bool": _plain(_bitwise("xor"))},
    "bitwise_not": _integers(lambda fn, x: bits(fn, "xor", x, -1)),
    "bitwise_and": _integers(_bitwise("and")),
    "bitwise_or": _integers(_bitwise("or")),
    "bitwise_xor": _integers(_bitwise("xor")),
    "bit_shift": {"signed": _shift(True), "unsigned": _shift(False)},
    "where": _any(_where),
    "cast": _any(_cast),
}
"""The emitter of each elementwise op, by the kind of its first element; by the picked one for
`where`."""
_INSIDE: dict[str, Forms] = {
    "_activation": _single(lambda fn, attrs, x: activate(fn, attrs["activation"], x)),
    "_power": _floats(_known_power),
}
"""Expressions that are not ops."""


def emitter(op: str, dtype: str) -> Emit | None:
    """Return what emits an op on elements of a dtype, None where there is none."""
    forms = EXPRESSIONS.get(op) or _INSIDE.get(op, {})
    return forms.get(SCALARS[dtype].kind) if dtype in SCALARS else None


COSTS = {
    "exp": 10,
    "tanh": 16,
    "sigmoid": 12,
    "erf": 20,
    "gelu": 20,
    "gelu_tanh": 20,
    "log": 14,
    "swish": 12,
    "pow": 90,
    "sin": 80,
    "cos": 80,
    "tan": 100,
    "floor_div": 70,
    "mod": 60,
    "cast": 4,
}
"""Vector instructions of a call, where it is not about two."""


def expression_cost(op: str, dtype: str, lanes: int) -> float:
    """Return about how many instructions a call takes for each register of its operands.

    Integer division of 64 bits goes element by element.
    """
    scalar = SCALARS[dtype]
    if scalar.kind in ("signed", "unsigned"):
        if op in ("div", "floor_div", "mod"):
            return 10.0 * lanes if scalar.nbytes == 8 else 16.0
        return 40.0 * scalar.nbytes if op == "pow" else COSTS.get(op, 2)
    return COSTS.get(op, 2)
