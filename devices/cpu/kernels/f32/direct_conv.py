"""Direct convolution for few input and output channels: first layers above all.

A matrix of gathered rows would cost as much as the product there. Instead a tile of output columns
keeps all output channels in registers, vectors along the channels, and walks the image in place.
The weights [KH, KW, C, O padded to vectors] stay in the L1 cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from trireme.devices.cpu.codegen.aligned_memory import aligned_copy
from trireme.devices.cpu.codegen.index import known
from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.expressions import COSTS, activate
from trireme.devices.cpu.kernels.f32.depthwise_pool import (
    MOST_TAPS,
    lower_depthwise,
    open_image_reason,
)
from trireme.devices.cpu.kernels.f32.im2row import ImageWindow
from trireme.devices.cpu.kernels.f32.open_rows import emit_columns
from trireme.devices.cpu.kernels.f32.product_step import ProductVariant, product_step
from trireme.devices.cpu.kernels.f32.products import (
    conv_operands,
    conv_product,
    conv_reason,
    window_of,
)
from trireme.devices.cpu.kernels.f32.window_body import column_segments, tile_columns
from trireme.devices.cpu.kernels.f32.winograd.conv import lower_winograd, winograd_size
from trireme.devices.cpu.kernels.lowering import (
    TABLE,
    Context,
    Operand,
    Rule,
    Step,
    dims_of,
    finish,
)
from trireme.devices.cpu.kernels.spans import (
    Planned,
    SpanCut,
    SpanWork,
    Wiring,
    begin_span,
    planned_step,
)
from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import Array

_WEIGHT_BYTES = 40 << 10
_MOST_VECTORS = 4
_MOST_UNROLLED = 32
_WIDEST = 16


def _suits(isa: Isa, graph: Graph, node: Node) -> bool:
    """Whether a conv suits this kernel: small, one group, more than one tap."""
    outputs, *kernel, depth = graph.type(node.used[1]).dims
    vectors = -(-outputs // isa.lanes)
    taps = math.prod(kernel)
    return (
        node.attrs["groups"] == 1
        and taps > 1
        and kernel[-1] <= _WIDEST
        and vectors <= _MOST_VECTORS
        and taps * depth * vectors * isa.lanes * 4 <= _WEIGHT_BYTES
        and (len(kernel) == 1 or node.attrs["dilations"][0] == 1)
        and COSTS.get(node.attrs["activation"], 2) <= 4
    )


def _lanes(isa: Isa, outputs: int) -> int:
    """The lanes of a vector: half of the register where that leaves fewer lanes idle.

    Two halves take as long as the whole where vectors of 16 are done in two, as on Zen 4.
    """
    half = isa.lanes // 2
    odd = -(-outputs // half) % 2 if half >= 8 else 0
    return half if odd and outputs <= _MOST_VECTORS * half else isa.lanes


class DirectConvEmitter:
    """Writes one direct convolution: row > tile of columns > kernel row > taps."""

    def __init__(
        self,
        fn: Function,
        window: ImageWindow,
        outputs: int,
        operands: Sequence[Value],
        extra: tuple[bool, bool],
        activation: str,
    ) -> None:
        self.fn, self.window, self.outputs, self.activation = fn, window, outputs, activation
        self.lanes = _lanes(fn.isa, outputs)
        self.type = vector(self.lanes, "float")
        self.vectors = -(-outputs // self.lanes)
        self.x, self.weights, *rest, self.y = operands
        self.bias = rest.pop(0) if extra[0] else None
        self.residual = rest.pop(0) if extra[1] else None
        most = min(16, (fn.isa.registers - 1 - self.vectors) // self.vectors)
        self.tile = tile_columns(window, most)

    def rows(self, first: Index, last: Index) -> None:
        """Emit output rows first..last, counted over the batch."""
        fn, window = self.fn, self.window
        for row in fn.range(first, last):
            n, oh = (fn.integer(op, row, window.out_height) for op in ("udiv", "urem"))
            top = fn.as_value("i64", oh) * window.strides[0] - window.pads[0]
            line = fn.as_value("i64", n) * window.height + top
            x = fn.at(self.x, line * (window.width * window.channels))
            at = fn.as_value("i64", row) * (window.out_width * self.outputs)
            inside = self._kernel_rows(top)
            if not known(window.width):
                emit_columns(fn, window, self.tile, partial(self._tile, x, at, inside))
                continue
            for starts, taps in column_segments(window, self.tile):
                for start in fn.range(starts.start, starts.stop, starts.step):
                    self._tile(x, at, inside, start, taps)

    def _kernel_rows(self, top: Value) -> tuple[Index, Index]:
        """The kernel rows that lie in the image, from the first to before the last."""
        fn, window = self.fn, self.window
        low: Index = 0
        high: Index = window.kernel[0]
        if window.pads[0]:
            above = 0 - top
            low = fn.select(fn.compare("sgt", above, 0), above, fn.as_value("i64", 0))
        if not known(window.height):
            return low, fn.minimum(fn.as_value("i64", window.height) - top, window.kernel[0])
        lowest = (window.out_height - 1) * window.strides[0] - window.pads[0]
        if lowest + window.kernel[0] > window.height:
            high = fn.minimum(window.height - top, window.kernel[0])
        return low, high

    def _tile(
        self,
        x: Value,
        at: Value,
        inside: tuple[Index, Index],
        start: Index,
        taps: Sequence[Sequence[int]],
        met: Sequence[Value] | None = None,
    ) -> None:
        fn, window = self.fn, self.window
        depth, row = window.channels, window.kernel[1] * window.channels
        width = self.vectors * self.lanes
        x = fn.at(x, (start * window.strides[1] - window.pads[1]) * depth)
        totals = self._begin(len(taps))
        for kh in fn.range(*inside):
            line = fn.at(x, kh * (window.width * depth))
            weights = fn.at(self.weights, kh * (row * width))
            if row <= _MOST_UNROLLED:
                for c in range(depth):
                    self._taps(line, weights, c, totals, taps, met)
            else:
                for channel in fn.range(0, depth):
                    self._taps(line, weights, channel, totals, taps, met)
        self._end(at + start * self.outputs, totals)

    def _counts(self) -> list[int]:
        return [min(self.lanes, self.outputs - v * self.lanes) for v in range(self.vectors)]

    def _begin(self, columns: int) -> list[list[Var]]:
        """Return the accumulators, which begin with the bias."""
        fn = self.fn
        first = [
            fn.load_some(self.type, fn.at(self.bias, v * self.lanes), count)
            if self.bias
            else fn.as_value(self.type, 0.0)
            for v, count in enumerate(self._counts())
        ]
        return [[Var(fn, self.type, value) for value in first] for _ in range(columns)]

    def _taps(
        self,
        line: Value,
        weights: Value,
        channel: Index,
        totals: Sequence[Sequence[Var]],
        taps: Sequence[Sequence[int]],
        met: Sequence[Value] | None,
    ) -> None:
        """Emit one channel of one kernel row for all columns of a tile.

        met: which kernel columns the only column meets, where that is asked at run time

        Taps see the same elements; LLVM would keep those in registers and spill the totals, so
        each tap walks a pointer that it knows nothing about.
        """
        fn, window = self.fn, self.window
        width = self.vectors * self.lanes
        line, weights = fn.at(line, channel), fn.at(weights, channel * width)
        for kw in range(window.kernel[1]):
            mine = [k for k, columns in enumerate(taps) if kw in columns]
            if not mine:
                continue
            line = fn.opaque(line)
            if met is None:
                self._tap(line, weights, kw, totals, mine)
                continue
            with fn.when(met[kw]):
                self._tap(line, weights, kw, totals, mine)

    def _tap(
        self,
        line: Value,
        weights: Value,
        kw: int,
        totals: Sequence[Sequence[Var]],
        columns: Sequence[int],
    ) -> None:
        """Emit one kernel column of one channel for the columns of a tile that meet it."""
        fn, window = self.fn, self.window
        depth, width = window.channels, self.vectors * self.lanes
        place = fn.at(weights, kw * depth * width)
        panel = [
            fn.load(self.type, fn.at(place, v * self.lanes), 4 * self.lanes)
            for v in range(self.vectors)
        ]
        for k in columns:
            offset = (k * window.strides[1] + kw * window.dilations[1]) * depth
            factor = fn.splat(fn.load("float", fn.at(line, offset)), self.lanes)
            for total, column in zip(totals[k], panel, strict=True):
                total.set(fn.fma(factor, column, total.get()))

    def _end(self, at: Value, totals: Sequence[Sequence[Var]]) -> None:
        """Emit residual, activation and stores of a tile."""
        fn = self.fn
        for k, column in enumerate(totals):
            for v, (total, count) in enumerate(zip(column, self._counts(), strict=True)):
                place = at + (k * self.outputs + v * self.lanes)
                value = total.get()
                if self.residual:
                    value = value + fn.load_some(self.type, fn.at(self.residual, place), count)
                fn.store_some(activate(fn, self.activation, value), fn.at(self.y, place), count)


def _direct_kernel(
    isa: Isa,
    window: ImageWindow,
    cut: SpanCut,
    outputs: int,
    extra: tuple[bool, bool],
    activation: str,
) -> Code:
    """Return the kernel of a direct conv.

    extra: whether there are bias and residual
    Operands: x, the weights [taps * C, outputs in whole vectors], bias, residual, y
    """
    name = f"direct_conv_f32_{'x'.join(map(str, window.kernel))}"
    fn, operands, _, _, span = begin_span(name, isa, 3 + sum(extra), cut)
    emitter = DirectConvEmitter(fn, fn.known(window), outputs, operands, extra, activation)
    emitter.rows(*span)
    return finish(fn)


def _direct_s(isa: Isa, window: ImageWindow, rows: int, outputs: int) -> float:
    """Return about how many seconds some output rows take."""
    width = _padded(isa, outputs)
    cycles = window.out_width * width * math.prod(window.kernel) * window.channels / isa.lanes / 2
    return rows * cycles / 2e9


def _padded(isa: Isa, outputs: int) -> int:
    """Outputs in whole vectors."""
    lanes = _lanes(isa, outputs)
    return -(-outputs // lanes) * lanes


def _window(graph: Graph, node: Node) -> ImageWindow:
    """Return the window of a direct conv."""
    _, *kernel, depth = graph.type(node.used[1]).dims
    return window_of(graph, node, kernel, depth)


def _direct_reads(context: Context, node: Node) -> tuple[Operand, ...]:
    """Return what a direct conv reads, its weights as [taps * C, outputs in whole vectors]."""
    weight = node.used[1]
    outputs, *kernel, depth = context.type(weight).dims
    width = _padded(context.isa, outputs)
    nbytes = 4 * math.prod(kernel) * depth * width

    def pack() -> Array:
        data = np.asarray(context.graph.values[weight].data).reshape(outputs, -1)
        return aligned_copy(np.pad(data.T, ((0, 0), (0, width - outputs))))

    extra = (context.operand(i) for i in node.inputs[2:4] if i is not None)
    packed = context.pack_later(weight, f"direct {width}", nbytes, pack)
    return (context.operand(node.used[0]), packed, *extra)


def _given_extra(node: Node) -> tuple[bool, bool]:
    """Return whether a conv has a bias and a residual: inputs 2 and 3."""
    bias, residual = (k < len(node.inputs) and node.inputs[k] is not None for k in (2, 3))
    return bias, residual


def _lower_direct(context: Context, node: Node) -> Step:
    """Lower a conv that `_suits`."""
    isa, outputs = context.isa, context.type(node.used[1]).dims[0]

    def planned(graph: Graph) -> Planned[ImageWindow]:
        window = _window(graph, node)
        rows = dims_of(graph, node.used[0])[0] * window.out_height
        return Planned(window, SpanWork(rows, _direct_s(isa, window, rows, outputs)))

    reads, given = _direct_reads(context, node), (_given_extra(node), node.attrs["activation"])
    wiring = Wiring(reads, node.outputs[:1], (node.id,), "direct_conv_f32")
    samples = (_window(context.graph, node),) if context.is_open else ()
    return planned_step(context, wiring, planned, samples, _direct_kernel, outputs, *given)


def _is_depthwise(graph: Graph, node: Node) -> bool:
    """Whether a conv's groups are its channels, with one output channel each."""
    channels, outputs = (graph.type(v).dims[-1] for v in (node.used[0], node.outputs[0]))
    taps = math.prod(graph.type(node.used[1]).dims[1:-1])
    return node.attrs["groups"] == channels == outputs and channels > 1 and taps <= MOST_TAPS


def _lower_conv(context: Context, node: Node) -> Sequence[Step]:
    """Lower a conv by the kernel that suits it: depthwise, Winograd, direct or as a product.

    Where sizes vary, Winograd's algorithm is a variant of the product, with a scheme of its own.
    """
    graph = context.graph
    if _is_depthwise(graph, node):
        return lower_depthwise(context, node)
    others: list[ProductVariant] = []
    if context.is_open:
        from trireme.devices.cpu.kernels.f32.winograd.open_conv import winograd_variants

        others = winograd_variants(context, node, conv_product(graph, node), _window)
    elif size := winograd_size(context, node):
        return lower_winograd(context, node, size)
    if not others and _suits(context.isa, graph, node):
        return [_lower_direct(context, node)]
    operands = conv_operands(context, node)
    return [product_step(context, node, conv_product, operands, "conv", others)]


TABLE.add("conv", Rule(conv_reason, _lower_conv, open_image_reason), ["float32"], "NHWC")
