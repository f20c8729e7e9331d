"""The cells of recurrent layers: the functions of the sums of a block of hidden units.

A stage multiplies the state, or a gru's reset state, by the recurrent weights of some gates. Its
cell function gets the sums of each gate, vectors of neighbouring units, and returns the new state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from trireme.devices.cpu.codegen import mathfn
from trireme.devices.cpu.codegen.ir import Function, Value
from trireme.support.records import dataclass

Activate = Callable[[Function, Value, float, float], Value]

ACTIVATIONS: Mapping[str, Activate] = {
    "relu": lambda fn, x, a, b: mathfn.clamp(fn, x, 0.0, math.inf),
    "tanh": lambda fn, x, a, b: mathfn.tanh(fn, x),
    "sigmoid": lambda fn, x, a, b: mathfn.sigmoid(fn, x),
    "affine": lambda fn, x, a, b: fn.fma(x, a, fn.as_value(x.type, b)),
    "leakyrelu": lambda fn, x, a, b: fn.select(fn.compare("olt", x, 0.0), x * a, x),
    "thresholdedrelu": lambda fn, x, a, b: fn.select(fn.compare("oge", x, a), x, 0.0),
    "scaledtanh": lambda fn, x, a, b: mathfn.tanh(fn, x * b) * a,
    "hardsigmoid": lambda fn, x, a, b: mathfn.clamp(fn, fn.fma(x, a, b), 0.0, 1.0),
    "softsign": lambda fn, x, a, b: x / (fn.unary("fabs", x) + 1.0),
}
"""Activations of vectors by ONNX's name in small letters; a and b are their alpha and beta."""


@dataclass(frozen=True)
class CellActivation:
    """An activation with its numbers; its argument is clipped first where there is a clip."""

    name: str
    alpha: float
    beta: float
    clip: float | None

    def emit(self, fn: Function, x: Value) -> Value:
        """Return the activation of a vector."""
        if self.clip is not None:
            x = mathfn.clamp(fn, x, -self.clip, self.clip)
        return ACTIVATIONS[self.name](fn, x, self.alpha, self.beta)


@dataclass(frozen=True)
class GateProduct:
    """A product of a state with the recurrent weights of some gates, by their numbers."""

    gates: tuple[int, ...]
    reads_rest: bool = False
    """Whether it multiplies a gru's reset state, which the stage before made."""


@dataclass(frozen=True)
class Cell:
    """A recurrent cell.

    gates: sums of a hidden unit; states: what it carries (the first is its output)
    linear: whether a gru resets the product, not the state; coupled: whether an lstm keeps what it
        does not enter; peepholes: whether its gates see its inner state
    weights: elements of its recurrent weights; integers have scales
    taps: neighbouring weights of a unit that are multiplied at a time
    """

    op: str
    gates: int
    states: int
    activations: tuple[CellActivation, ...]
    linear: bool = False
    coupled: bool = False
    peepholes: bool = False
    weights: str = "float"
    taps: int = 1

    @property
    def stages(self) -> tuple[GateProduct, ...]:
        """The products of a step, in order."""
        if self.op == "gru" and not self.linear:
            return GateProduct((0, 1)), GateProduct((2,), reads_rest=True)
        return (GateProduct(tuple(range(self.gates))),)

    @property
    def separate(self) -> tuple[int, ...]:
        """The gates whose product is not added to what the input gives them."""
        return (2,) if self.op == "gru" and self.linear else ()


Loads = Mapping[str, Value]
"""The operands of a cell function beside the sums: the states and constants of its units."""


def rnn(fn: Function, cell: Cell, sums: Sequence[Value], loads: Loads) -> list[Value]:
    """Return h = f(sum)."""
    return [cell.activations[0].emit(fn, sums[0])]


def gru_gates(fn: Function, cell: Cell, sums: Sequence[Value], loads: Loads) -> list[Value]:
    """Return the update gate and the reset state."""
    update, reset = (cell.activations[0].emit(fn, x) for x in sums)
    return [update, reset * loads["h"]]


def _gru_state(fn: Function, cell: Cell, inner: Value, update: Value, h: Value) -> list[Value]:
    made = cell.activations[1].emit(fn, inner)
    return [(1.0 - update) * made + update * h]


def gru_rest(fn: Function, cell: Cell, sums: Sequence[Value], loads: Loads) -> list[Value]:
    """Return h = (1 - z) g(sum) + z h."""
    return _gru_state(fn, cell, sums[0], loads["z"], loads["h"])


def gru_linear(fn: Function, cell: Cell, sums: Sequence[Value], loads: Loads) -> list[Value]:
    """Return h = (1 - z) g(x + r sum) + z h."""
    update, reset = (cell.activations[0].emit(fn, x) for x in sums[:2])
    return _gru_state(fn, cell, loads["x2"] + reset * sums[2], update, loads["h"])


def lstm(fn: Function, cell: Cell, sums: Sequence[Value], loads: Loads) -> list[Value]:
    """Return h = o k(c) and c = f c + i g(sum); gates i, o, f, c."""
    f, g, k = cell.activations
    enter, out, forget, inner = sums
    c = loads["c"]
    if cell.peepholes:
        enter, forget = enter + loads["p0"] * c, forget + loads["p2"] * c
    entered = f.emit(fn, enter)
    kept = 1.0 - entered if cell.coupled else f.emit(fn, forget)
    made = kept * c + entered * g.emit(fn, inner)
    if cell.peepholes:
        out = out + loads["p1"] * made
    return [f.emit(fn, out) * k.emit(fn, made), made]
