"""resize on stored 8-bit integers: nearest positions are copied, linear ones are two short passes.

Weights are whole 1024ths (trireme.ops.integer.ResizeAxis), so 32-bit sums are exact. A chunk mixes
two lines of the image into one of its thread's own memory, then two positions of that line into
each output; the sum of both is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from trireme.backend.kernel_table import STORED_8
from trireme.devices.cpu.codegen.ir import Function, Index, Value
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.resize import lower_nearest, nearest_reason, view_reason
from trireme.devices.cpu.kernels.int8.arithmetic import (
    load_stored,
    store_stored,
    stored_reason,
    widen,
)
from trireme.devices.cpu.kernels.lowering import (
    TABLE,
    Context,
    Rule,
    Step,
    begin,
    deal,
    finish,
)
from trireme.ir.graph import Graph, Node, Rounding
from trireme.ir.op import call_of
from trireme.ops.integer import ResizeAxis, resize_axes, resize_reason, same_quant
from trireme.support.dtypes import Array
from trireme.support.records import dataclass

_ONE, _HALF, _SHIFT = 1024, 1 << 19, 20
_MOST_ELEMENTS = (1 << 31) - 1
"""Elements of an image that 32-bit offsets reach."""
Emit = Callable[[Index, int], None]
"""(first element, elements of the vector) -> emits what is done with them."""


@dataclass(frozen=True)
class ResizedImages:
    """Images [batch, height, width, channels] of a dtype, resized to height and width `out`.

    zero: the zero point from which halves go to even; None where they go away from 0
    """

    batch: int
    height: int
    width: int
    channels: int
    out: tuple[int, int]
    dtype: str
    zero: int | None

    @property
    def line(self) -> int:
        """Elements of a line."""
        return self.width * self.channels


def linear_kernel(isa: Isa, image: ResizedImages) -> tuple[Code, int, float]:
    """Return the kernel of a linear resize, its chunks and seconds.

    Operands: x, of each output row the offsets of two lines and the weights of both, of each output
    column the offsets of two positions and the weights of both, y
    """
    fn, (x, rows, columns, y), chunk, local = begin("resize_linear_q8", isa, 4)
    total, (height, width) = image.batch * image.out[0], image.out
    vectors = -(-image.line // isa.lanes) + 2 * width * -(-image.channels // isa.lanes)
    seconds = total * vectors / 1e9
    size, chunks = deal(total, seconds)
    first: Index = chunk * size if chunks > 1 else 0
    body = _ResizePasses(fn, image)
    for row in fn.range(first, fn.minimum(first + size, total)):
        n, oh = (fn.integer(op, row, height) for op in ("udiv", "urem"))
        picture = fn.at(x, fn.as_value("i64", n) * (image.height * image.line), "i8")
        body.mix_lines(picture, _entry(fn, rows, oh), local)
        target = fn.at(y, fn.as_value("i64", row) * (width * image.channels), "i8")
        for ow in fn.range(0, width):
            place = fn.at(target, ow * image.channels, "i8")
            body.mix_positions(local, _entry(fn, columns, ow), place)
    return finish(fn), chunks, seconds


def _entry(fn: Function, table: Value, index: Index) -> tuple[Value, ...]:
    """Load two offsets and two weights."""
    base = fn.at(table, index * 4, "i32")
    return tuple(fn.load("i32", fn.at(base, k, "i32")) for k in range(4))


class _ResizePasses:
    """Writes both passes."""

    def __init__(self, fn: Function, image: ResizedImages) -> None:
        self.fn, self.image, self.lanes = fn, image, fn.isa.lanes
        self.wide = vector(self.lanes, "i32")

    def mix_lines(self, picture: Value, entry: Sequence[Value], local: Value) -> None:
        """Emit the weighted sum of two lines, as 32-bit integers."""
        fn = self.fn
        lines = [fn.at(picture, fn.convert("sext", at, "i64"), "i8") for at in entry[:2]]
        weights = [fn.splat(weight, self.lanes) for weight in entry[2:]]

        def emit(at: Index, count: int) -> None:
            total = self._sum([self._load(line, at, count) for line in lines], weights)
            fn.store(total, fn.at(local, at, "i32"))

        self._each(self.image.line, emit)

    def mix_positions(self, line: Value, entry: Sequence[Value], target: Value) -> None:
        """Emit one output position: the weighted sum of two positions, rounded."""
        fn = self.fn
        places = [fn.at(line, fn.convert("sext", at, "i64"), "i32") for at in entry[:2]]
        weights = [fn.splat(weight, self.lanes) for weight in entry[2:]]

        def emit(at: Index, count: int) -> None:
            parts = [fn.load(self.wide, fn.at(place, at, "i32")) for place in places]
            total = self._sum(parts, weights)
            total = total + _HALF + self._less(total)
            rounded = fn.emit(self.wide, f"ashr {total}, {total.text_of(_SHIFT)}")
            narrow = fn.convert("trunc", rounded, vector(self.lanes, "i8"))
            store_stored(fn, narrow, fn.at(target, at, "i8"), count)

        self._each(self.image.channels, emit)

    def _less(self, total: Value) -> Value:
        """Return -1 where a half falls, else 0."""
        if self.image.zero is None:
            return self.fn.emit(self.wide, f"ashr {total}, {total.text_of(31)}")
        floor = self.fn.emit(self.wide, f"ashr {total}, {total.text_of(_SHIFT)}")
        distance = floor - self.image.zero
        return self.fn.emit(self.wide, f"and {distance}, {distance.text_of(1)}") - 1

    def _load(self, line: Value, at: Index, count: int) -> Value:
        place = self.fn.at(line, at, "i8")
        return widen(self.fn, load_stored(self.fn, place, self.lanes, count), self.image.dtype)

    def _sum(self, parts: Sequence[Value], weights: Sequence[Value]) -> Value:
        return parts[0] * weights[0] + parts[1] * weights[1]

    def _each(self, total: int, emit: Emit) -> None:
        whole = total // self.lanes * self.lanes
        for at in self.fn.range(0, whole, self.lanes):
            emit(at, self.lanes)
        if whole < total:
            emit(whole, total - whole)


def _table(axis: ResizeAxis, step: int) -> Array:
    """Return [out, 4]: offsets of two positions, and their weights in 1024ths."""
    fraction = axis.fraction.astype(np.int64)
    columns = (axis.lower * step, axis.upper * step, _ONE - fraction, fraction)
    return np.ascontiguousarray(np.stack(columns, axis=1), np.int32)


def _lower(context: Context, node: Node) -> Sequence[Step]:
    if node.attrs["mode"] == "nearest":
        return lower_nearest(context, node)
    x, y = (context.type(i) for i in (node.used[0], node.outputs[0]))
    rows, columns = resize_axes(call_of(context.graph, node))
    n, height, width, channels = x.dims
    even = y.quant is not None and y.quant.rounding is Rounding.HALF_EVEN
    zero = y.quant.zero_point if y.quant is not None and even else None
    image = ResizedImages(n, height, width, channels, (y.dims[1], y.dims[2]), x.dtype, zero)
    code, chunks, seconds = context.kernel(linear_kernel, image)
    reads = (
        context.operand(node.used[0]),
        _table(rows, image.line),
        _table(columns, image.channels),
    )
    room = 4 * (image.line + 2 * context.isa.lanes)
    return [
        Step(
            code, reads, node.outputs, chunks, room, seconds, (node.id,), family="resize_linear_q8"
        )
    ]


def _reason(graph: Graph, node: Node) -> str | None:
    if node.attrs["mode"] == "nearest":
        return nearest_reason(graph, node)
    if reason := resize_reason(call_of(graph, node)):
        return reason
    x = graph.type(node.used[0]).dims
    if x[1] * x[2] * x[3] > _MOST_ELEMENTS:
        return f"resize has no native kernel for quantised images of over {_MOST_ELEMENTS} elements"

    def known() -> None:
        same_quant(call_of(graph, node))
        resize_axes(call_of(graph, node))

    return view_reason(graph, node) or stored_reason(graph, node, known)


TABLE.add("resize", Rule(_reason, _lower), STORED_8)
