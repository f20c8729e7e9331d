"""conv_transpose: a few plain convolutions, whose results are then put side by side.

phases.py says which. Each is a matrix product over gathered rows (depthwise: a window kernel) into
memory between steps. One more step deals the results out to the output positions, and fills those
without an input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trireme.devices.cpu.codegen.aligned_memory import aligned_copy
from trireme.devices.cpu.codegen.ir import Function, Index, Value
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.copies import Copy, copy_row
from trireme.devices.cpu.kernels.f32.depthwise_pool import MOST_TAPS, depthwise_kernel
from trireme.devices.cpu.kernels.f32.gemm import (
    PACKED_EACH,
    MatmulShape,
    Strides,
)
from trireme.devices.cpu.kernels.f32.im2row import ImageWindow
from trireme.devices.cpu.kernels.f32.panels import pack_panels, panel_bytes
from trireme.devices.cpu.kernels.f32.products import Operands, conv_reason, product_step
from trireme.devices.cpu.kernels.f32.tiling import Size
from trireme.devices.cpu.kernels.lowering import (
    TABLE,
    Context,
    Operand,
    Rule,
    Step,
    Temp,
    begin,
    deal,
    finish,
)
from trireme.devices.cpu.kernels.phases import (
    MOST_PHASES,
    PhaseAxis,
    PhaseRange,
    axes_of,
    pairs,
    weights_of,
)
from trireme.ir.graph import Graph, Node
from trireme.ops.activation import activate
from trireme.support.dtypes import Array


@dataclass(frozen=True)
class Dealing:
    """Images [batch, windows, phases of a run, channels] -> image [batch, height, width, channels].

    item: bytes of an element
    """

    batch: int
    axes: Sequence[PhaseAxis]
    channels: int
    item: int


def is_depthwise(graph: Graph, node: Node) -> bool:
    """Whether each channel is convolved alone."""
    w = graph.type(node.used[1]).dims
    return bool(node.attrs["groups"] == w[0] and w[-1] == 1 and w[0] > 1)


def axes_for(graph: Graph, node: Node) -> tuple[PhaseAxis, PhaseAxis]:
    """Return the axes, with runs of phases where one group makes all channels."""
    return axes_of(graph, node, alone=node.attrs["groups"] > 1)


def window_for(
    axes: tuple[PhaseAxis, PhaseAxis],
    runs: tuple[PhaseRange, PhaseRange],
    channels: int,
    depth: int,
) -> ImageWindow:
    """Return the window of a pair of runs over the image."""
    rows, columns = runs
    return ImageWindow(
        axes[0].size,
        axes[1].size,
        channels,
        depth,
        axes[0].windows,
        axes[1].windows,
        (len(rows.taps), len(columns.taps)),
        (1, 1),
        (rows.pad, columns.pad),
        (rows.dilation, columns.dilation),
    )


def _image(context: Context, value: int) -> Array:
    """Return the weights as [C, KH, KW, M]."""
    data = context.constant(value)
    return data if data.ndim == 4 else data[:, None]


def _bias(context: Context, node: Node) -> Array | None:
    value = node.inputs[2] if len(node.inputs) > 2 else None
    return None if value is None else context.constant(value)


def _product(
    context: Context,
    node: Node,
    axes: tuple[PhaseAxis, PhaseAxis],
    runs: tuple[PhaseRange, PhaseRange],
    target: Temp,
) -> Step:
    """Return the step of one pair of runs: a product of gathered rows with its weights."""
    x, weight, groups = context.type(node.used[0]).dims, node.used[1], node.attrs["groups"]
    each, bias = context.type(weight).dims[-1], _bias(context, node)
    phases = runs[0].count * runs[1].count
    columns, channels = phases * each, x[-1]
    window = window_for(axes, runs, channels, channels // groups)
    depth = math.prod(window.kernel) * window.depth
    rows = x[0] * window.out_height * window.out_width
    product = MatmulShape(
        Size(rows, columns, depth, groups),
        a=Strides(channels, window.depth),
        b=PACKED_EACH,
        c=Strides(groups * columns, columns),
        bias_batch=columns if bias is not None else 0,
        bias=bias is not None,
        activation=node.attrs["activation"],
        window=None if window.is_dense else window,
    )

    def pack(width: int) -> Operand:
        def make() -> Array:
            parts = np.split(_image(context, weight), groups)
            stacked = np.stack([weights_of(part, *runs) for part in parts])
            matrix = stacked.transpose(0, 3, 4, 5, 1, 2, 6).reshape(groups, depth, columns)
            return pack_panels(matrix, width)

        nbytes = panel_bytes(groups, depth, columns, width)
        return context.pack_later(weight, f"{runs} {groups} {width}", nbytes, make)

    extra: tuple[Operand, ...] = ()
    if bias is not None:
        extra = (np.tile(bias.reshape(groups, 1, each), (1, phases, 1)).reshape(-1),)
    operands = Operands(context.operand(node.used[0]), pack, extra, target)
    return product_step(context, node, product, operands, "conv")


def _depthwise(
    context: Context,
    node: Node,
    axes: tuple[PhaseAxis, PhaseAxis],
    runs: tuple[PhaseRange, PhaseRange],
    target: Temp,
) -> Step:
    """Return the step of one pair of runs where each channel is by itself."""
    x, weight, bias = context.type(node.used[0]).dims, node.used[1], _bias(context, node)
    window = window_for(axes, runs, x[-1], x[-1])

    def pack() -> Array:
        taken = weights_of(_image(context, weight), *runs)
        return aligned_copy(taken.reshape(math.prod(window.kernel), x[-1]))

    code, chunks, seconds = context.kernel(
        depthwise_kernel,
        window,
        x[0] * window.out_height,
        node.attrs["activation"],
        bias is not None,
        False,
    )
    nbytes = 4 * math.prod(window.kernel) * x[-1]
    taps = context.pack_later(weight, f"taps {runs}", nbytes, pack)
    extra = () if bias is None else (bias,)
    reads = (context.operand(node.used[0]), taps, *extra)
    return Step(
        code, reads, (target,), chunks, seconds=seconds, nodes=(node.id,), family="depthwise_f32"
    )


def dealing_kernel(isa: Isa, dealing: Dealing) -> tuple[Code, int, float]:
    """Return the kernel that deals results out, its chunks and seconds.

    Operands: the results of each pair of runs, a pixel that no input reaches, y
    """
    taken = pairs(dealing.axes)
    fn, pointers, chunk, _ = begin(f"copy_phases_b{8 * dealing.item}", isa, len(taken) + 2)
    down, along = dealing.axes
    rows = dealing.batch * down.out
    row_bytes = along.out * dealing.channels * dealing.item
    seconds = rows * (row_bytes / 2.5e10 + 5e-10 * along.windows * len(along.runs))
    size, chunks = deal(rows, seconds)
    first: Index = chunk * size if chunks > 1 else 0
    writer = _Dealer(fn, dealing, dict(zip(taken, pointers, strict=False)), pointers[-2])
    for row in fn.range(first, fn.minimum(first + size, rows)):
        line = fn.at(pointers[-1], fn.as_value("i64", row) * row_bytes, "i8")
        writer.row(row, line)
    return finish(fn), chunks, seconds


class _Dealer:
    """Writes rows of the output: rows > runs of rows > runs of columns > windows."""

    def __init__(
        self,
        fn: Function,
        dealing: Dealing,
        results: dict[tuple[PhaseRange, PhaseRange], Value],
        blank: Value,
    ) -> None:
        self.fn, self.dealing, self.results, self.blank = fn, dealing, results, blank
        self.pixel = dealing.channels * dealing.item

    def row(self, row: Index, line: Value) -> None:
        """Emit a row of the output, by the phase that it is."""
        fn, down = self.fn, self.dealing.axes[0]
        image, oh = (fn.integer(op, row, down.out) for op in ("udiv", "urem"))
        place = fn.as_value("i64", oh) - down.shift
        window, phase = (fn.integer(op, place, down.stride) for op in ("udiv", "urem"))
        source = fn.as_value("i64", image) * down.windows + window
        self._choose(list(down.runs), source, fn.as_value("i64", phase), line)

    def _choose(self, runs: list[PhaseRange], source: Value, phase: Value, line: Value) -> None:
        """Emit the choice of a run of rows by the phase."""
        if len(runs) == 1:
            self._columns(runs[0], source, phase, line)
            return
        middle = len(runs) // 2
        for is_low in self.fn.either(self.fn.compare("slt", phase, runs[middle].first)):
            self._choose(runs[:middle] if is_low else runs[middle:], source, phase, line)

    def _columns(self, rows: PhaseRange, source: Value, phase: Value, line: Value) -> None:
        """Emit a row's pixels, for each run of columns, window by window."""
        fn, along = self.fn, self.dealing.axes[1]
        for columns in along.runs:
            start = columns.first + along.shift
            low = max(-(start // along.stride), 0)
            high = max((along.out - start - columns.count) // along.stride + 1, low)
            block = rows.count * columns.count * self.pixel
            step, pick = columns.count * self.pixel, phase - rows.first
            data = self.results.get((rows, columns))
            base = None
            if data is not None:
                at = source * (along.windows * block) + pick * step
                base = fn.at(data, at, "i8")
            for window in range(min(low, along.windows)):
                self._pixels(base, line, columns, window, block)
            for t in fn.range(low, min(high, along.windows)):
                self._pixels(base, line, columns, t, block)
            for window in range(max(low, high), along.windows):
                self._pixels(base, line, columns, window, block)

    def _pixels(
        self, base: Value | None, line: Value, columns: PhaseRange, window: Index, block: int
    ) -> None:
        """Emit the pixels of one window that lie inside the output."""
        fn, along = self.fn, self.dealing.axes[1]
        first, last = 0, columns.count
        start = window * along.stride + (columns.first + along.shift)
        if isinstance(start, int):
            first, last = max(0, -start), min(last, along.out - start)
        if last <= first:
            return
        target = fn.at(line, (start + first) * self.pixel, "i8")
        if base is not None:
            place = fn.at(base, window * block + first * self.pixel, "i8")
            self._copy(place, target, last - first)
            return
        for pixel in fn.range(0, last - first):
            self._copy(self.blank, fn.at(target, pixel * self.pixel, "i8"), 1)

    def _copy(self, source: Value, target: Value, pixels: int) -> None:
        item, count = self.dealing.item, pixels * self.dealing.channels
        along = Copy((count,), (1,), (1,), item)
        copy_row(self.fn, along, source, target, f"i{8 * item}", count)


def deal_step(
    context: Context,
    node: Node,
    axes: tuple[PhaseAxis, PhaseAxis],
    results: Sequence[Temp],
    blank: Array,
) -> Step:
    """Return the step that puts the results of pairs of runs side by side."""
    y = context.type(node.outputs[0]).dims
    dealing = Dealing(y[0], tuple(axis.places for axis in axes), y[-1], blank.itemsize)
    code, chunks, seconds = context.kernel(dealing_kernel, dealing)
    return Step(
        code,
        (*results, blank),
        node.outputs,
        chunks,
        seconds=seconds,
        nodes=(node.id,),
        family="copy",
    )


def _lower(context: Context, node: Node) -> list[Step]:
    graph = context.graph
    axes = axes_for(graph, node)
    batch, channels = graph.type(node.outputs[0]).dims[0], graph.type(node.outputs[0]).dims[-1]
    by_channel = (
        is_depthwise(graph, node)
        and math.prod(max(len(run.taps) for run in axis.runs) for axis in axes) <= MOST_TAPS
    )
    steps, results = [], []
    for number, runs in enumerate(pairs(axes)):
        pixels = batch * axes[0].windows * axes[1].windows * runs[0].count * runs[1].count
        results.append(Temp(f"%{node.outputs[0]} phases {number}", 4 * pixels * channels))
        make = _depthwise if by_channel else _product
        steps.append(make(context, node, axes, runs, results[-1]))
    bias = _bias(context, node)
    blank = np.zeros(channels, np.float32) if bias is None else bias.astype(np.float32)
    blank = activate(node.attrs["activation"], blank)
    return [*steps, deal_step(context, node, axes, results, blank)]


def _reason(graph: Graph, node: Node) -> str | None:
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None and not graph.values[bias].is_constant:
        return "conv_transpose has a native kernel for a constant bias only"
    if max(node.attrs["strides"]) > MOST_PHASES:
        return f"conv_transpose has no native kernel for strides over {MOST_PHASES}"
    return conv_reason(graph, node)


TABLE.add("conv_transpose", Rule(_reason, _lower), ["float32"], "NHWC")
