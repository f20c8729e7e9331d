"""The vector unit's functions on float16: evaluated in float32, rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from trireme.ops.activation import sigmoid
from trireme.support.dtypes import Array

_ERF = np.frompyfunc(math.erf, 1, 1)


def _erf(x: Array) -> Array:
    return np.asarray(_ERF(x), dtype=np.float32)


def _clip(x: Array, low: float, high: float) -> Array:
    return np.minimum(np.maximum(x, np.float32(low)), np.float32(high))


def _gelu(x: Array) -> Array:
    return np.asarray(x * np.float32(0.5) * (1 + _erf(x * np.float32(math.sqrt(0.5)))))


def _gelu_tanh(x: Array) -> Array:
    cube = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.asarray(x * np.float32(0.5) * (1 + np.tanh(cube)))


Function = Callable[[Array, np.float32, np.float32], Array]

_FUNCTIONS: dict[str, Function] = {
    "none": lambda x, a, b: x,
    "relu": lambda x, a, b: np.maximum(x, 0),
    "relu6": lambda x, a, b: _clip(x, 0, 6),
    "relu_n1_to_1": lambda x, a, b: _clip(x, -1, 1),
    "tanh": lambda x, a, b: np.tanh(x),
    "sigmoid": lambda x, a, b: sigmoid(x),
    "hard_sigmoid": lambda x, a, b: _clip(a * x + b, 0, 1),
    "hard_swish": lambda x, a, b: x * _clip(x / 6 + np.float32(0.5), 0, 1),
    "swish": lambda x, a, b: x * sigmoid(a * x),
    "gelu": lambda x, a, b: _gelu(x),
    "gelu_tanh": lambda x, a, b: _gelu_tanh(x),
    "clip": lambda x, a, b: _clip(x, float(a), float(b)),
    "leaky_relu": lambda x, a, b: np.where(x < 0, a * x, x),
    "elu": lambda x, a, b: np.where(x < 0, a * np.expm1(x), x),
    "exp": lambda x, a, b: np.exp(x),
    "log": lambda x, a, b: np.log(x),
    "sqrt": lambda x, a, b: np.sqrt(x),
    "rsqrt": lambda x, a, b: 1 / np.sqrt(x),
    "reciprocal": lambda x, a, b: 1 / x,
    "abs": lambda x, a, b: np.abs(x),
    "neg": lambda x, a, b: -x,
    "erf": lambda x, a, b: _erf(x),
    "square": lambda x, a, b: x * x,
}
FUSED_PARAMETERS: dict[str, tuple[float, float]] = {
    "hard_sigmoid": (1 / 6, 0.5),
    "swish": (1.0, 0.0),
}
"""alpha and beta of functions fused into another command, whose fields cannot hold them."""


def apply_function(name: str, x: Array) -> Array:
    """Return a fused function of float32 values, still float32."""
    if name == "none":
        return x
    alpha, beta = FUSED_PARAMETERS.get(name, (1.0, 0.0))
    return _FUNCTIONS[name](x, np.float32(alpha), np.float32(beta))


@lru_cache(maxsize=64)
def half_table(name: str, alpha: float, beta: float) -> Array:
    """Return the function of all 65,536 float16 values, indexed by their bits."""
    x = np.arange(65536, dtype=np.uint32).astype(np.uint16).view(np.float16).astype(np.float32)
    with np.errstate(all="ignore"):
        table = _FUNCTIONS[name](x, np.float32(alpha), np.float32(beta)).astype(np.float16)
    table.flags.writeable = False
    return table
