"""From 32-bit sums to float32, where the input was rounded to 8 bits at run time (levels.py).

    y = activation(sum * (step * scales) + bias),  sum = start + sum of u * w

u = level + zero is unsigned under VNNI, so sums start with -zero times the sum of the weights; step
and zero are those of the image that a row is of. The roundings are those of the float nodes, so the
bits are too, wherever float32 holds their sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from trireme.devices.cpu.elementwise import activate
from trireme.devices.cpu.ir import Function, Index, Value, lanes_of, vector
from trireme.devices.cpu.kernels import Operand
from trireme.dtypes import Array


@dataclass(frozen=True)
class State:
    """What is known at run time of an input rounded to levels.

    memory: float32 steps [images], then int32 zero points [images]
    zero: what a level of 0 is stored as; None: that is the zero point of its image
    """

    memory: Operand
    images: int
    zero: int | None


@dataclass(eq=False)
class Mark:
    """The step of an image in every lane, its zero point, and scaled channels made so far."""

    step: Value
    zero: Value | None
    scaled: dict[tuple[str, int], Value] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Dequantiser:
    """How the sums of a layer on levels become float32.

    data: int32 rows: what sums begin with, the bits of each of the scales, and of a bias
    state: where the state of the images is, as in State
    rows: rows of the product in an image
    offset: whether a zero point known at run time times the first row is what sums begin with
    """

    data: Array
    state: Operand
    images: int
    rows: int
    bias: bool
    activation: str
    offset: bool
    element: str = "float"

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Where the steps are."""
        return (self.state,)

    @property
    def shared(self) -> bool:
        """Whether there is one step for all rows."""
        return self.images == 1

    def enter(self, fn: Function, operands: Sequence[Value], row: Index) -> Mark:
        """Return step and zero point of the image that a row is of."""
        image = fn.integer("udiv", row, self.rows) if self.images > 1 else 0
        (state,) = operands
        step = fn.splat(fn.load("float", fn.at(state, image)), fn.isa.lanes)
        zero = None
        if self.offset:
            place = fn.at(fn.at(state, self.images), image)
            zero = fn.splat(fn.load("i32", place), fn.isa.lanes)
        return Mark(step, zero)

    def start(self, fn: Function, table: Value, at: Index, lanes: int, mark: Mark) -> Value:
        """Return what the sums of a vector of channels begin with."""
        first = self._row(fn, table, 0, at, vector(lanes, "i32"))
        return first if mark.zero is None else first * _narrowed(fn, mark.zero, lanes)

    def finish(
        self, fn: Function, sums: Sequence[Value], table: Value, at: Index, mark: Mark,
        pointer: Value, count: int,
    ) -> None:  # fmt: skip
        """Store the first `count` results of the sums of some vectors of channels."""
        lanes = lanes_of(sums[0].type)
        for v, acc in enumerate(sums):
            y = self._number(fn, acc, table, at, v, mark)
            fn.store_some(y, fn.at(pointer, v * lanes), min(count - v * lanes, lanes))

    def _number(
        self, fn: Function, acc: Value, table: Value, at: Index, v: int, mark: Mark
    ) -> Value:
        """Return a vector of results; v counts the vectors of channels from `at` on."""
        lanes = lanes_of(acc.type)
        real, here = vector(lanes, "float"), at + v * lanes
        key = (str(at), v)
        if key not in mark.scaled:
            factor = _narrowed(fn, mark.step, lanes)
            for number in range(1, len(self.data) - self.bias):
                factor = factor * self._row(fn, table, number, here, real)
            mark.scaled[key] = factor
        y = fn.convert("sitofp", acc, real) * mark.scaled[key]
        if self.bias:
            y = y + self._row(fn, table, len(self.data) - 1, here, real)
        return activate(fn, self.activation, y)

    def _row(self, fn: Function, table: Value, number: int, at: Index, type: str) -> Value:
        start = fn.at(table, number * self.data.shape[1])
        return fn.load(type, fn.at(start, at))


def _narrowed(fn: Function, x: Value, lanes: int) -> Value:
    """Return the first lanes of a vector."""
    return x if lanes == lanes_of(x.type) else fn.shuffle(x, x, range(lanes))


def dequantiser(
    w: Array, scales: Sequence[Array], bias: Array | None, order: Array, state: State,
    rows: int, activation: str,
) -> Dequantiser:  # fmt: skip
    """Return how the sums of a layer on levels become float32.

    Shapes: w [O, ...]; scales and bias: 1 or O numbers
    order: the channel in each lane of the kernel; lanes beyond the channels are padding
    rows: rows of the product in an image
    """
    inside = order < len(w)
    sums = w.reshape(len(w), -1).astype(np.int64).sum(1)
    first = -sums * (1 if state.zero is None else state.zero)
    more = [*scales, *([] if bias is None else [bias])]
    table = np.zeros((1 + len(more), len(order)), np.int32)
    table[0, inside] = first[order[inside]]
    for row, numbers in zip(table[1:], more, strict=True):
        full = np.resize(numbers.astype(np.float32), len(w))
        row[inside] = full.view(np.int32)[order[inside]]
    return Dequantiser(
        table, state.memory, state.images, rows, bias is not None, activation, state.zero is None
    )
