"""The bodies of window kernels, and the cut of output rows into tiles."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from trireme.devices.cpu.codegen import mathfn
from trireme.devices.cpu.codegen.index import known
from trireme.devices.cpu.codegen.ir import Function, Index, Value
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.kernels.expressions import activate
from trireme.devices.cpu.kernels.f32.im2row import ImageWindow


class WindowBody(ABC):
    """The work of a window kernel on the elements of a window."""

    name = ""
    reads = 1

    @abstractmethod
    def start(self, channel: Index, count: int) -> Value:
        """Return the accumulators' first value."""

    def weight(self, tap: int, channel: Index, count: int) -> Value | None:
        """Return the vector of weights of a kernel position, if there are weights."""
        return None

    @abstractmethod
    def meet(self, total: Value, x: Value, weight: Value | None) -> Value:
        """Return an accumulator after one more element."""

    def careless(self) -> WindowBody | None:
        """Return a body that does the same where no element is NaN, in less time; if there is."""
        return None

    @abstractmethod
    def end(self, total: Value, at: Index, count: int, taps: Value) -> Value:
        """Return the value to store at `at`; taps is the number of elements met, as a float."""


class DepthwiseBody(WindowBody):
    """Multiply by weights [KH*KW, C]; bias, residual and activation at the end."""

    def __init__(
        self,
        fn: Function,
        operands: Sequence[Value],
        channels: int,
        activation: str,
        bias: bool,
        residual: bool,
    ) -> None:
        self.fn, self.channels, self.activation = fn, channels, activation
        _, self.weights, *extra, _ = operands
        self.bias = extra.pop(0) if bias else None
        self.residual = extra.pop(0) if residual else None
        self.type = vector(fn.isa.lanes, "float")

    def start(self, channel: Index, count: int) -> Value:
        """Begin with the bias."""
        if self.bias is None:
            return self.fn.as_value(self.type, 0.0)
        return self.fn.load_some(self.type, self.fn.at(self.bias, channel), count)

    def weight(self, tap: int, channel: Index, count: int) -> Value:
        """Load a kernel position's weights."""
        place = self.fn.at(self.fn.at(self.weights, channel), tap * self.channels)
        return self.fn.load_some(self.type, place, count)

    def meet(self, total: Value, x: Value, weight: Value | None) -> Value:
        """Add x times its weight."""
        return total if weight is None else self.fn.fma(x, weight, total)

    def end(self, total: Value, at: Index, count: int, taps: Value) -> Value:
        """Add the residual, apply the activation."""
        if self.residual is not None:
            total = total + self.fn.load_some(self.type, self.fn.at(self.residual, at), count)
        return activate(self.fn, self.activation, total)


class MaxBody(WindowBody):
    """Keep the largest; NaN stays."""

    def __init__(self, fn: Function, activation: str) -> None:
        self.fn, self.activation = fn, activation

    def start(self, channel: Index, count: int) -> Value:
        """Begin with minus infinity."""
        return self.fn.as_value(vector(self.fn.isa.lanes, "float"), -math.inf)

    def meet(self, total: Value, x: Value, weight: Value | None) -> Value:
        """Take the larger."""
        return mathfn.maximum(self.fn, total, x)

    def careless(self) -> WindowBody | None:
        """The larger in one instruction, not three."""
        return NumberMaxBody(self.fn, self.activation)

    def end(self, total: Value, at: Index, count: int, taps: Value) -> Value:
        """Apply the activation."""
        return activate(self.fn, self.activation, total)


class NumberMaxBody(MaxBody):
    """Keep the largest of numbers."""

    def meet(self, total: Value, x: Value, weight: Value | None) -> Value:
        """Take the larger; either when one is NaN."""
        return self.fn.select(self.fn.compare("ogt", x, total), x, total)


class AverageBody(MaxBody):
    """Add up, divide by the number of elements met, or by a fixed number."""

    def __init__(self, fn: Function, activation: str, fixed: int | None) -> None:
        super().__init__(fn, activation)
        self.fixed = fixed

    def start(self, channel: Index, count: int) -> Value:
        """Begin with zero."""
        return self.fn.as_value(vector(self.fn.isa.lanes, "float"), 0.0)

    def careless(self) -> WindowBody | None:
        """A sum keeps NaN by itself."""
        return None

    def meet(self, total: Value, x: Value, weight: Value | None) -> Value:
        """Add."""
        return total + x

    def end(self, total: Value, at: Index, count: int, taps: Value) -> Value:
        """Divide and apply the activation."""
        if self.fixed is None:  # the mean of nothing is 0
            by = self.fn.select(self.fn.compare("ogt", taps, 1.0), taps, 1.0)
        else:
            by = self.fn.as_value("float", float(self.fixed))
        return activate(self.fn, self.activation, total / self.fn.splat(by, self.fn.isa.lanes))


def taps_of(window: ImageWindow, ow: int) -> list[int]:
    """Return the kernel columns of an output column that lie in the image."""
    left = ow * window.strides[1] - window.pads[1]
    return [
        kw for kw in range(window.kernel[1]) if 0 <= left + kw * window.dilations[1] < window.width
    ]


def tile_columns(window: ImageWindow, most: int) -> int:
    """Return the columns of a tile, at most so many: tiles of a row of known length are alike."""
    if not known(window.out_width):
        return most
    return -(-window.out_width // -(-window.out_width // most))


def column_segments(window: ImageWindow, tile: int) -> list[tuple[range, list[list[int]]]]:
    """Cut an output row into tiles of columns: the starts of neighbouring tiles that share code,
    having the same taps, and the taps of each column of such a tile.
    """
    segments: list[tuple[range, list[list[int]]]] = []
    start = 0
    while start < window.out_width:
        stop = min(start + tile, window.out_width)
        taps = [taps_of(window, ow) for ow in range(start, stop)]
        whole = stop - start == tile
        if whole and segments and segments[-1][1] == taps:
            segments[-1] = (range(segments[-1][0].start, stop, tile), taps)
        else:
            segments.append((range(start, stop, tile), taps))
        tiles = (_alike_until(window, start) - start) // tile
        if tiles > 1:
            stop = start + tiles * tile
            segments[-1] = (range(segments[-1][0].start, stop, tile), taps)
        start = stop
    return segments


def _alike_until(window: ImageWindow, ow: int) -> int:
    """Return a column up to which all have the taps of column ow: all of them, or none."""
    stride, before, width = window.strides[1], window.pads[1], window.width
    reach = (window.kernel[1] - 1) * window.dilations[1]
    left = ow * stride - before
    if left >= width:
        return window.out_width
    if left + reach < 0:
        return min(-((reach - before) // stride), window.out_width)
    if left >= 0 and left + reach < width:
        return min((width - 1 - reach + before) // stride + 1, window.out_width)
    return ow + 1
