"""From 32-bit sums to float32, of stored integers or of levels rounded in the run.

    y = activation(sum * (step * scales) + bias),  sum = start + sum of u * w

The scales of stored integers include the step, which is known before the run. u = level + zero is
unsigned under VNNI, so sums start with -zero times the sum of the weights. Each row of levels has
the step and zero of its image. The roundings are those of the float nodes. So the bits are equal
too, wherever float32 holds the sums. Stored integers have no such limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

import numpy as np

from trireme.devices.cpu.codegen.ir import Function, Index, Value
from trireme.devices.cpu.codegen.kernel_cache import form_of
from trireme.devices.cpu.codegen.llvm_types import lanes_of, vector
from trireme.devices.cpu.kernels.expressions import activate
from trireme.devices.cpu.kernels.int8.epilogue import Channels
from trireme.devices.cpu.kernels.int8.requant import channel_order
from trireme.devices.cpu.kernels.lowering import Operand
from trireme.ops.integer import FloatSumParams
from trireme.support.dtypes import Array
from trireme.support.records import dataclass


@dataclass(frozen=True)
class DequantState:
    """The facts of an input rounded to levels, known at run time.

    memory: float32 steps [images], then int32 zero points [images]
    zero: what a level of 0 is stored as; None: that is the zero point of its image
    """

    memory: Operand
    images: Index
    zero: int | None


@dataclass(eq=False)
class Mark:
    """The step of an image in every lane, its zero point, and values made of them by channels."""

    step: Value | None = None
    zero: Value | None = None
    starts: dict[str, list[Value]] = field(default_factory=dict)
    factors: dict[str, list[Value]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Dequantiser:
    """The conversion of a layer's sums on levels to float32.

    data: int32 rows: the starts of sums, the bits of each of the scales, and of a bias
    state: where the state of the images is, as in DequantState; None: the scales hold the step
    images, rows: of the input, and rows of the product in an image; read in the run where they vary
    offset: whether a zero point known at run time times the first row is what sums begin with
    mixed: whether lanes are in the order of packs (channel_order), not in that of channels
    """

    data: Array
    state: Operand | None
    images: Index
    rows: Index
    bias: bool
    activation: str
    offset: bool
    mixed: bool = False
    element: str = "float"

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The place of the steps."""
        return () if self.state is None else (self.state,)

    @property
    def form(self) -> Dequantiser:
        """The facts that code depends on (Epilogue)."""
        return replace(self, data=form_of(self.data), state=None if self.state is None else 0)

    @property
    def shared(self) -> bool:
        """Whether all rows have one step."""
        return isinstance(self.images, int) and self.images == 1

    def enter(
        self, fn: Function, operands: Sequence[Value], row: Index, channels: Channels | None = None
    ) -> Mark:
        """Return step and zero point of the image that a row is of."""
        mark = Mark() if self.state is None else self._known(fn, operands[0], row)
        if channels is not None:
            mark.starts[_key(channels)] = self.start(fn, channels, mark)
            mark.factors[_key(channels)] = self._factors(fn, channels, mark)
        return mark

    def _known(self, fn: Function, state: Value, row: Index) -> Mark:
        """Return what the state says of the image that a row is of."""
        image = 0 if self.shared else fn.integer("udiv", row, self.rows)
        step = fn.splat(fn.load("float", fn.at(state, image)), fn.isa.lanes)
        zero = None
        if self.offset:
            place = fn.at(fn.at(state, self.images), image)
            zero = fn.splat(fn.load("i32", place), fn.isa.lanes)
        return Mark(step, zero)

    def start(self, fn: Function, channels: Channels, mark: Mark) -> list[Value]:
        """Return what the sums of vectors of channels begin with."""
        if _key(channels) in mark.starts:
            return mark.starts[_key(channels)]
        first = self._rows(fn, 0, channels, "i32")
        if mark.zero is None:
            return first
        return [row * _narrowed(fn, mark.zero, channels[2]) for row in first]

    def finish(
        self,
        fn: Function,
        sums: Sequence[Value],
        channels: Channels,
        mark: Mark,
        pointer: Value,
        count: int,
    ) -> None:
        """Store the first `count` results of the sums of vectors of channels."""
        lanes = channels[2]
        if _key(channels) not in mark.factors:
            mark.factors[_key(channels)] = self._factors(fn, channels, mark)
        real = vector(lanes, "float")
        y = [
            fn.convert("sitofp", acc, real) * factor
            for acc, factor in zip(sums, mark.factors[_key(channels)], strict=True)
        ]
        if self.bias:
            bias = self._rows(fn, len(self.data) - 1, channels, "float")
            y = [a + b for a, b in zip(y, bias, strict=True)]
        y = [activate(fn, self.activation, part) for part in y]
        if self.mixed:
            y = _sorted(fn, y, channel_order(fn.isa, lanes, len(y)))
        for v, part in enumerate(y):
            if v * lanes < count:
                fn.store_some(part, fn.at(pointer, v * lanes), min(count - v * lanes, lanes))

    def _factors(self, fn: Function, channels: Channels, mark: Mark) -> list[Value]:
        """Return the step times the scales of channels."""
        rows = [
            self._rows(fn, number, channels, "float")
            for number in range(1, len(self.data) - self.bias)
        ]
        if mark.step is not None:
            rows.insert(0, [_narrowed(fn, mark.step, channels[2])] * channels[3])
        factors = rows[0]
        for scales in rows[1:]:
            factors = [a * b for a, b in zip(factors, scales, strict=True)]
        return factors

    def _rows(self, fn: Function, number: int, channels: Channels, element: str) -> list[Value]:
        table, at, lanes, vectors = channels
        start = fn.at(fn.at(table, number * self.data.shape[1]), at)
        type = vector(lanes, element)
        return [fn.load(type, fn.at(start, v * lanes)) for v in range(vectors)]


def _key(channels: Channels) -> str:
    return f"{channels[1]} {channels[2:]}"


def _sorted(fn: Function, parts: Sequence[Value], order: Array) -> list[Value]:
    """Return lanes in the order of channels; order: the channel in each lane, [vectors, lanes]."""
    joined, lanes = list(parts), order.shape[1]
    while len(joined) > 1:
        joined = [
            fn.shuffle(a, b, range(2 * lanes_of(a.type)))
            for a, b in zip(joined[::2], joined[1::2], strict=True)
        ]
    places = np.argsort(order.reshape(-1)).tolist()
    (whole,) = joined
    return [fn.shuffle(whole, whole, places[i : i + lanes]) for i in range(0, len(places), lanes)]


def _narrowed(fn: Function, x: Value, lanes: int) -> Value:
    """Return the first lanes of a vector."""
    return x if lanes == lanes_of(x.type) else fn.shuffle(x, x, range(lanes))


def dequantiser(
    w: Array,
    scales: Sequence[Array],
    bias: Array | None,
    lanes: Array,
    state: DequantState,
    rows: Index,
    activation: str,
    mixed: bool = False,
) -> Dequantiser:
    """Return how the sums of a layer on levels become float32.

    Shapes: w [O, ...]; scales and bias: 1 or O numbers
    lanes: the channel in each lane of the kernel; lanes beyond the channels are padding
    rows: rows of the product in an image
    mixed: as of a Dequantiser
    """
    sums = w.reshape(len(w), -1).astype(np.int64).sum(1)
    first = -sums * (1 if state.zero is None else state.zero)
    more = [*scales, *([] if bias is None else [bias])]
    return Dequantiser(
        _table(first, more, lanes),
        state.memory,
        state.images,
        rows,
        bias is not None,
        activation,
        state.zero is None,
        mixed,
    )


def static_dequantiser(
    starts: Array, params: FloatSumParams, bias: Array, lanes: Array, activation: str, mixed: bool
) -> Dequantiser:
    """Return how the sums of a layer on stored integers become float32.

    Shapes: starts int64 [O], what sums begin with; bias float32 [O]
    lanes, mixed: as of `dequantiser`
    """
    table = _table(starts, [params.scales, bias], lanes)
    return Dequantiser(table, None, 1, 1, True, activation, False, mixed)


def _table(starts: Array, rows: Sequence[Array], lanes: Array) -> Array:
    """Return int32 starts and the bits of float rows, by the channel in each lane."""
    inside = lanes < len(starts)
    table = np.zeros((1 + len(rows), len(lanes)), np.int32)
    table[0, inside] = starts[lanes[inside]]
    for row, numbers in zip(table[1:], rows, strict=True):
        full = np.resize(numbers.astype(np.float32), len(starts))
        row[inside] = full.view(np.int32)[lanes[inside]]
    return table
