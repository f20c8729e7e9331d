"""What elementwise ops and activations are as instructions: a table from an op to what emits it.

Elementwise kernels, and the ends of kernels that apply an activation, look emitters up here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from trireme.devices.cpu.codegen import mathfn
from trireme.devices.cpu.codegen.ir import Function, Value

Emit = Callable[..., Value]
"""(fn, attrs, *operands) -> result, on vectors of float32."""


def _activated(emit: Emit) -> Emit:
    def with_activation(fn: Function, attrs: Mapping[str, Any], *operands: Value) -> Value:
        return activate(fn, attrs.get("activation", ""), emit(fn, attrs, *operands), attrs)

    return with_activation


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
"""What an `activation` attribute does to a vector, by its name."""


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
    below = (mathfn.exp(fn, x) - 1.0) * float(attrs["alpha"])
    small = fn.fma(x, x * 0.5, x) * float(attrs["alpha"])  # e^x - 1 cancels near 0
    below = fn.select(fn.compare("ogt", x, -2e-3), small, below)
    return fn.select(fn.compare("olt", x, 0.0), below, x)


def _celu(fn: Function, attrs: Mapping[str, Any], x: Value) -> Value:
    alpha = float(attrs["alpha"])
    return fn.select(fn.compare("olt", x, 0.0), _elu(fn, attrs, x * (1 / alpha)), x)


def _selu(fn: Function, attrs: Mapping[str, Any], x: Value) -> Value:
    return _elu(fn, attrs, x) * float(attrs["gamma"])


def _softplus(fn: Function, x: Value) -> Value:
    """Return log(1 + e^x) as max(x, 0) + log(1 + e^-|x|), which does not overflow."""
    power = mathfn.exp(fn, -fn.unary("fabs", x))
    return mathfn.clamp(fn, x, 0.0, math.inf) + mathfn.log(fn, power + 1.0)


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


def _plain(emit: Callable[[Function, Value], Value]) -> Emit:
    return lambda fn, attrs, x: emit(fn, x)


def _clip(fn: Function, attrs: Mapping[str, Any], x: Value, *limits: Value) -> Value:
    if attrs["_has_low"]:
        x = mathfn.maximum(fn, x, limits[0])
    return mathfn.minimum(fn, x, limits[-1]) if attrs["_has_high"] else x


EXPRESSIONS: dict[str, Emit] = {
    "add": _activated(lambda fn, attrs, a, b: a + b),
    "sub": _activated(lambda fn, attrs, a, b: a - b),
    "mul": _activated(lambda fn, attrs, a, b: a * b),
    "div": _activated(lambda fn, attrs, a, b: a / b),
    "max": _fold(mathfn.maximum),
    "min": _fold(mathfn.minimum),
    "sum": _fold(lambda fn, a, b: a + b),
    "relu": _plain(ACTIVATIONS["relu"]),
    "sigmoid": _plain(mathfn.sigmoid),
    "tanh": _plain(mathfn.tanh),
    "exp": _plain(mathfn.exp),
    "log": _plain(mathfn.log),
    "erf": _plain(mathfn.erf),
    "neg": _plain(lambda fn, x: -x),
    "abs": _plain(lambda fn, x: fn.unary("fabs", x)),
    "sqrt": _plain(lambda fn, x: fn.unary("sqrt", x)),
    "rsqrt": _plain(lambda fn, x: 1.0 / fn.unary("sqrt", x)),
    "reciprocal": _plain(lambda fn, x: 1.0 / x),
    "floor": _plain(lambda fn, x: fn.unary("floor", x)),
    "ceil": _plain(lambda fn, x: fn.unary("ceil", x)),
    "round": _plain(lambda fn, x: fn.unary("roundeven", x)),
    "square": _plain(lambda fn, x: x * x),
    "squared_difference": lambda fn, attrs, a, b: (a - b) * (a - b),
    "relu6": _plain(ACTIVATIONS["relu6"]),
    "relu_n1_to_1": _plain(ACTIVATIONS["relu_n1_to_1"]),
    "prelu": _prelu,
    "celu": _celu,
    "selu": _selu,
    "softplus": _plain(_softplus),
    "softsign": _plain(lambda fn, x: x / (fn.unary("fabs", x) + 1.0)),
    "mish": _plain(lambda fn, x: x * mathfn.tanh(fn, _softplus(fn, x))),
    "thresholded_relu": _above,
    "hard_swish": _plain(ACTIVATIONS["hard_swish"]),
    "hard_sigmoid": lambda fn, attrs, x: _hard_sigmoid(fn, x, attrs["alpha"], attrs["beta"]),
    "swish": lambda fn, attrs, x: _swish(fn, attrs, x),
    "leaky_relu": _leaky,
    "elu": _elu,
    "gelu": _gelu,
    "clip": _clip,
}
INSIDE: dict[str, Emit] = {
    "_activation": lambda fn, attrs, x: activate(fn, attrs["activation"], x),
}
"""Expressions that are not ops."""
COSTS = {
    "exp": 10,
    "tanh": 16,
    "sigmoid": 12,
    "erf": 20,
    "gelu": 20,
    "gelu_tanh": 20,
    "log": 14,
    "swish": 12,
}
"""Vector instructions of a call, where it is not about two."""
