"""The cells of recurrent layers: one step of rnn, gru and lstm, and their activations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from trireme.ops.activation import sigmoid
from trireme.support.dtypes import Array
from trireme.support.errors import GraphError
from trireme.support.records import dataclass

Function = Callable[[Array], Array]
State = tuple[Array, ...]
_FUNCTIONS: dict[str, tuple[Callable[..., Any], float | None, float | None]] = {
    "relu": (lambda x: np.maximum(x, 0), None, None),
    "tanh": (np.tanh, None, None),
    "sigmoid": (sigmoid, None, None),
    "softsign": (lambda x: x / (1 + np.abs(x)), None, None),
    "softplus": (lambda x: np.logaddexp(0, x), None, None),
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "leakyrelu": (lambda x, a: np.where(x < 0, a * x, x), 0.01, None),
    "thresholdedrelu": (lambda x, a: np.where(x >= a, x, 0), 1.0, None),
    "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0),
    "hardsigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), 0.2, 0.5),
    "elu": (lambda x, a: np.where(x < 0, a * np.expm1(x), x), 1.0, None),
}
"""Activations by ONNX's name in small letters, with the defaults of alpha and beta."""


@dataclass(frozen=True)
class Kind:
    """A kind of layer: its gates, its states, its default activations, one step."""

    gates: int
    states: int
    activations: tuple[str, ...]
    step: Callable[..., State]


def activations_of(
    kind: Kind, directions: int, attrs: Mapping[str, Any]
) -> list[tuple[str, tuple[float, float]]]:
    """Return the activations of all directions: ONNX's name in small letters, alpha and beta.

    Each takes its alpha and beta, if it has them, from the lists of the attributes in turn.
    Errors: GraphError, if a name is not that of an activation
    """
    left: list[Iterator[float]] = [
        iter(attrs[key] or ()) for key in ("activation_alpha", "activation_beta")
    ]
    made = []
    for name in attrs["activations"] or kind.activations * directions:
        if name.lower() not in _FUNCTIONS:
            raise GraphError(f"unknown activation {name!r} of a recurrent layer")
        _, *defaults = _FUNCTIONS[name.lower()]
        alpha, beta = (
            0.0 if default is None else float(next(given, default))
            for given, default in zip(left, defaults, strict=True)
        )
        made.append((name.lower(), (alpha, beta)))
    return made


def functions_of(kind: Kind, directions: int, attrs: Mapping[str, Any]) -> list[Function]:
    """Return the activations of all directions as functions, their inputs clipped first."""
    given = activations_of(kind, directions, attrs)
    return [_function(name, numbers, attrs["clip"]) for name, numbers in given]


def _function(name: str, numbers: tuple[float, float], clip: float | None) -> Function:
    """Return an activation as a function of an array, clipped first."""
    function, *defaults = _FUNCTIONS[name]
    given = [n for n, default in zip(numbers, defaults, strict=True) if default is not None]
    return _clipped(function, given, clip)


def _clipped(function: Callable[..., Any], given: list[float], clip: float | None) -> Function:
    def apply(x: Array) -> Array:
        x = x if clip is None else np.clip(x, -clip, clip)
        return np.asarray(function(x, *given))

    return apply


def _rnn_step(gates: Array, h: Array, r: Array, rb: Array, f: list[Function], **_: Any) -> State:
    return (f[0](gates + h @ r.T + rb),)


def _gru_step(
    gates: Array, h: Array, r: Array, rb: Array, f: list[Function], *, linear: bool, **_: Any
) -> State:
    size = h.shape[-1]
    xz, xr, xh = (gates[:, i * size : (i + 1) * size] for i in range(3))
    rz, rr, rh = (r[i * size : (i + 1) * size] for i in range(3))
    bz, br, bh = (rb[i * size : (i + 1) * size] for i in range(3))
    z, reset = f[0](xz + h @ rz.T + bz), f[0](xr + h @ rr.T + br)
    inner = reset * (h @ rh.T + bh) if linear else (reset * h) @ rh.T + bh
    return ((1 - z) * f[1](xh + inner) + z * h,)


def _lstm_step(
    gates: Array,
    h: Array,
    c: Array,
    r: Array,
    rb: Array,
    f: list[Function],
    *,
    peepholes: Array | None,
    coupled: bool,
    **_: Any,
) -> State:
    size = h.shape[-1]
    whole = gates + h @ r.T + rb
    i, o, forget, cell = (whole[:, k * size : (k + 1) * size] for k in range(4))

    def seen(gate: Array, k: int, state: Array) -> Array:
        """Return a gate with its input from the state; 0 times infinity stays NaN."""
        return gate if peepholes is None else gate + peepholes[k * size : (k + 1) * size] * state

    enter = f[0](seen(i, 0, c))
    keep = 1 - enter if coupled else f[0](seen(forget, 2, c))
    made = keep * c + enter * f[1](cell)
    return f[0](seen(o, 1, made)) * f[2](made), made


RNN = Kind(1, 1, ("Tanh",), _rnn_step)
GRU = Kind(3, 1, ("Sigmoid", "Tanh"), _gru_step)
LSTM = Kind(4, 2, ("Sigmoid", "Tanh", "Tanh"), _lstm_step)
KINDS = {"rnn": RNN, "gru": GRU, "lstm": LSTM}
"""The kinds by op."""
