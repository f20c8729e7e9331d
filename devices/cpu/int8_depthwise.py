"""Depthwise convolution on 8-bit integers: channels in vectors, a few output pixels at a time.

    acc[c] = bias[c] - x_zero * sum(w) + sum over the window of x * (w[c] - w_zero)

The border of the prepared input is the zero point, so the same formula holds everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trireme.devices.cpu.int8 import (
    BYTES,
    ChannelTable,
    channel_table,
    clamp_and_narrow,
    load_bytes,
    requantise,
    store_bytes,
    widen,
)
from trireme.devices.cpu.int8_prepare import prepare
from trireme.devices.cpu.ir import Function, Index, Value, vector
from trireme.devices.cpu.jit import Code
from trireme.devices.cpu.kernels import Context, Step, begin, finish, split_evenly
from trireme.devices.cpu.target import Isa
from trireme.dtypes import Array
from trireme.errors import InternalError
from trireme.graph import Graph, Node
from trireme.op import call_of
from trireme.quantize import LinearParams, conv_params

PIXELS = 4
"""Output pixels of one block: they share the loads of weights."""


@dataclass(frozen=True)
class Window:
    """The geometry of a depthwise convolution on a prepared (bordered) input."""

    height: int
    width: int
    channels: int
    out: tuple[int, int, int]
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]

    def offset(self, ky: int, kx: int) -> int:
        """Return the elements from the first pixel of a window to one of its others."""
        dy, dx = self.dilations
        return (ky * dy * self.width + kx * dx) * self.channels


def is_depthwise(graph: Graph, node: Node) -> bool:
    """Whether a conv has one input and one output channel a group."""
    x, w = graph.type(node.used[0]).dims, graph.type(node.used[1]).dims
    return len(x) == 4 and node.attrs["groups"] == x[3] == w[0] and x[3] > 1


def lower_depthwise(context: Context, node: Node) -> Sequence[Step]:
    """Return the steps of a quantised depthwise conv."""
    graph, isa = context.graph, context.isa
    params = conv_params(call_of(graph, node))
    x, w, y = (graph.type(v).dims for v in (node.used[0], node.used[1], node.outputs[0]))
    top, left, bottom, right = node.attrs["pads"]
    prepared = prepare(context, node, x, (top, left, bottom, right), params.x_zero, BYTES)
    window = Window(
        x[1] + top + bottom, x[2] + left + right, x[3], (y[0], y[1], y[2]), (w[1], w[2]),
        node.attrs["strides"], node.attrs["dilations"],
    )  # fmt: skip
    data = graph.values[node.used[1]].data
    bias = graph.values[node.used[2]].data if len(node.used) > 2 else None
    if data is None:
        raise InternalError(f"{node.label}: weights are not constant")
    weights, table = _constants(data, bias, params, isa.lanes)
    kernel = _Kernel(isa, window, params, table, graph.type(node.used[0]).dtype)
    taps = window.kernel[0] * window.kernel[1]
    step = Step(
        kernel.code(), (prepared.operand, weights, table.data), (node.outputs[0],), kernel.chunks,
        seconds=graph.type(node.outputs[0]).elements * taps / (isa.lanes * 1e9), nodes=(node.id,),
    )  # fmt: skip
    return [*prepared.steps, step]


def _constants(
    w: Array, bias: Array | None, params: LinearParams, lanes: int
) -> tuple[Array, ChannelTable]:
    """Return weights as int32 [taps, channels in whole vectors], and the channel table."""
    channels = len(w)
    padded = -(-channels // lanes) * lanes
    wide = w.reshape(channels, -1).astype(np.int64) - params.w_zero
    terms = np.zeros(channels, np.int64) if bias is None else bias.astype(np.int64)
    terms = terms - params.x_zero * wide.sum(1)
    weights = np.zeros((wide.shape[1], padded), np.int32)
    weights[:, :channels] = wide.T
    most = int(np.abs(wide).sum(1).max(initial=0)) * 255 + int(np.abs(terms).max(initial=0))
    return weights, channel_table(params, terms, lanes, most)


class _Kernel:
    """Emits the kernel: chunks of output rows, blocks of channels, blocks of pixels."""

    def __init__(
        self, isa: Isa, window: Window, params: LinearParams, table: ChannelTable, dtype: str
    ) -> None:
        self.isa, self.window, self.params, self.table, self.dtype = (
            isa, window, params, table, dtype,
        )  # fmt: skip
        n, height, width = window.out
        work = width * window.channels * window.kernel[0] * window.kernel[1]
        self.rows, self.chunks = split_evenly(n * height, max(1, (256 << 10) // work))
        self.pixels = min(PIXELS, width)

    def code(self) -> Code:
        """Operands: prepared input, weights, channel table, output."""
        window, lanes = self.window, self.isa.lanes
        kh, kw = window.kernel
        name = f"depthwise_q8_{kh}x{kw}_{self.pixels}x1"
        fn, (x, w, table, y), chunk, _ = begin(name, self.isa, 4)
        n, height, _ = window.out
        first = chunk * self.rows
        for row in fn.range(first, fn.minimum(first + self.rows, n * height)):
            image = fn.integer("udiv", row, height) if n > 1 else 0
            line = fn.integer("urem", row, height) if n > 1 else row
            start = (image * window.height + line * window.strides[0]) * (
                window.width * window.channels
            )
            places = (fn.at(x, start, "i8"), w, table)
            out = fn.at(y, row * (window.out[2] * window.channels), "i8")
            whole = window.channels // lanes * lanes
            for channel in fn.range(0, whole, lanes):
                self.line(fn, places, out, channel, lanes)
            if whole < window.channels:
                self.line(fn, places, out, whole, window.channels - whole)
        return finish(fn)

    def line(
        self, fn: Function, places: tuple[Value, Value, Value], out: Value, channel: Index,
        count: int,
    ) -> None:  # fmt: skip
        """Emit one output row of one vector of channels."""
        x, w, table = places
        window, lanes = self.window, self.isa.lanes
        type = vector(lanes, "i32")
        kh, kw = window.kernel
        padded = self.table.data.shape[1]
        taps = [(ky, kx) for ky in range(kh) for kx in range(kw)]
        weights = [
            fn.load(type, fn.at(fn.at(w, tap * padded, "i32"), channel, "i32"), 4)
            for tap in range(len(taps))
        ]
        bias, scale = self.table.load(fn, table, channel)
        start = fn.at(x, channel, "i8")
        width = window.out[2]
        for tile in fn.range(0, -(-width // self.pixels)):
            first = fn.minimum(tile * self.pixels, width - self.pixels)
            source = fn.at(start, first * (window.strides[1] * window.channels), "i8")
            for p in range(self.pixels):
                acc = bias
                for (ky, kx), weight in zip(taps, weights, strict=True):
                    at = window.offset(ky, kx) + p * window.strides[1] * window.channels
                    loaded = load_bytes(fn, fn.at(source, at, "i8"), lanes, count)
                    acc = acc + widen(fn, loaded, self.dtype) * weight
                result = clamp_and_narrow(
                    fn, requantise(fn, acc, scale), self.params.y_zero, self.params.low,
                    self.params.high,
                )  # fmt: skip
                target = fn.at(fn.at(out, (first + p) * window.channels, "i8"), channel, "i8")
                store_bytes(fn, result, target, count)
