"""resize: each output position is an input position, or the weighted sum of a few.

The taps of both axes come from the op's own definition and are tables of constants. A kernel row
makes one output row, all channels of a position in vectors. Sums are in float32; int8/resize.py has
those of stored integers. A resize to the nearest position copies elements of any dtype. In a graph
whose sizes vary, the axes that change are known, and a shape's taps are tables of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from trireme.backend.kernel_table import PLAIN
from trireme.devices.cpu.codegen.index import plus, times
from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.copies import Copy, copy_row
from trireme.devices.cpu.kernels.f32.resize_view import (
    STILL,
    ResizeShape,
    open_axes,
    view_of,
    views,
)
from trireme.devices.cpu.kernels.lowering import (
    TABLE,
    Context,
    Rule,
    Step,
    dims_of,
    finish,
    varies,
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
from trireme.ops.resize import AxisPlan, taps
from trireme.support.dtypes import Array, itemsize
from trireme.support.records import dataclass

_MOST_TAPS = 16
_MOST_POSITIONS = 1 << 22
"""Of an axis: the tables of positions and weights of a longer one take seconds to make."""
_Taps = tuple[int, int]
_OPEN_TAPS: Mapping[str, tuple[_Taps, ...]] = {
    "linear": ((2, 2), (2, 1), (1, 2), (1, 1)),
    "cubic": ((4, 4), (4, 1), (1, 4), (1, 1)),
}
"""Taps of rows and columns that have code where sizes vary: an axis may keep its size."""


def _axis_taps(node: Node, plan: AxisPlan) -> tuple[Array, Array]:
    """Return positions and weights [out, taps] of an axis, without taps that weigh nothing."""
    attrs = node.attrs
    if plan == STILL:
        return np.zeros((1, 1), np.int64), np.ones((1, 1), np.float32)
    picks, weights, _ = taps(
        plan,
        mode=attrs["mode"],
        transform=attrs["coordinate_transformation_mode"],
        rounding=attrs["nearest_mode"],
        cubic_a=attrs["cubic_coeff_a"],
        exclude=bool(attrs["exclude_outside"]),
        antialias=bool(attrs["antialias"]),
    )
    used = np.abs(weights).max(axis=0) > 0
    return picks[:, used], weights[:, used].astype(np.float32)


def nearest_reason(graph: Graph, node: Node) -> str | None:
    """Say why positions of a node cannot be picked; None when they can, whatever the dtype."""
    types = [graph.type(i) for i in (node.used[0], node.outputs[0])]
    if types[0].dtype == "string" or itemsize(types[0].dtype) not in (1, 2, 4, 8):
        return f"resize has no native kernel for {types[0].dtype}"
    if types[0].quant != types[1].quant:
        return "resize has no native kernel between different quantisations"
    return view_reason(graph, node)


def view_reason(graph: Graph, node: Node) -> str | None:
    """Say why a node's image cannot be seen as four axes; None when it can."""
    if not all(graph.type(i).elements for i in (node.used[0], node.outputs[0])):
        return "resize has no native kernel for empty tensors"
    if node.attrs["coordinate_transformation_mode"] == "tf_crop_and_resize":
        return "resize has no native kernel for tf_crop_and_resize"
    if view_of(graph, node) is None:
        return "resize has native kernels for two neighbouring axes and constant sizes only"
    return None


def _reason(graph: Graph, node: Node) -> str | None:
    if any(map(varies, (*dims_of(graph, node.used[0]), *dims_of(graph, node.outputs[0])))):
        return None  # `_open_reason` says it all
    if node.attrs["mode"] == "nearest":
        return nearest_reason(graph, node)
    view = view_of(graph, node)
    missing = view_reason(graph, node)
    if view is None or missing:
        return missing
    if graph.type(node.used[0]).dtype != "float32":
        return f"resize has no native {node.attrs['mode']} kernel for plain integers"
    if (longest := max(view.height.out, view.width.out)) > _MOST_POSITIONS:
        return f"resize has no native kernel for an axis of {longest} positions"
    count = math.prod(_axis_taps(node, p)[0].shape[1] for p in (view.height, view.width))
    if count > _MOST_TAPS:
        return f"resize has no native kernel for {count} taps a position"
    return None


def _open_reason(graph: Graph, node: Node) -> str | None:
    x, y = (graph.type(value) for value in (node.used[0], node.outputs[0]))
    axes, attrs = open_axes(graph, node), node.attrs
    if not axes or len(axes) > 2 or math.prod(x.dims[axes[0] + 1 : axes[-1]]) != 1:
        return "resize has kernels for every shape where one axis or two neighbours change"
    is_open = any(varies(x.dims[axis]) or varies(y.dims[axis]) for axis in axes)
    if varies(math.prod(x.dims[axes[-1] + 1 :])) or not is_open:
        return "resize has kernels for every shape where the axes that change vary"
    if attrs["coordinate_transformation_mode"] == "tf_crop_and_resize" or attrs["antialias"]:
        return "resize has no kernel for every shape of a crop, or with antialias"
    plain = x.dtype == "float32" if attrs["mode"] != "nearest" else x.dtype != "string"
    if not plain or x.quant != y.quant or itemsize(x.dtype) not in (1, 2, 4, 8):
        return f"resize {attrs['mode']} has no kernel for every shape on {x.dtype}"
    return None


def _lanes(isa: Isa, inner: int) -> int:
    """Return the lanes of a vector of channels: no more than there are, in a power of two."""
    return min(isa.lanes, 1 << (inner - 1).bit_length())


@dataclass(frozen=True)
class NearestShape:
    """A resize to nearest positions: rows of the output, its width, channels, bytes of an item."""

    outer: int
    size: int
    out: tuple[int, int]
    inner: int
    item: int


def _nearest_work(shape: NearestShape) -> SpanWork:
    """Return the rows of the output, and the seconds of all."""
    rows = shape.outer * shape.out[0]
    return SpanWork(rows, rows * shape.out[1] * (shape.inner * shape.item / 2.5e10 + 4e-10))


def _nearest_kernel(isa: Isa, shape: NearestShape, cut: SpanCut) -> Code:
    """Return the kernel that copies positions.

    Operands: offsets of the rows and of the columns in items, x, y
    """
    fn, operands, _, _, span = begin_span(f"resize_nearest_b{8 * shape.item}", isa, 4, cut)
    _emit_nearest(fn, fn.known(shape), operands, span)
    return finish(fn)


def _emit_nearest(
    fn: Function, shape: NearestShape, operands: Sequence[Value], span: tuple[Index, Index]
) -> None:
    """Emit some of the output's rows; all sizes but those of a position may be read."""
    (row_at, column_at, x, y), (height, width) = operands, shape.out
    element, along = f"i{8 * shape.item}", Copy((shape.inner,), (1,), (1,), shape.item)
    for row in fn.range(*span):
        outer, oh = (fn.integer(op, row, height) for op in ("udiv", "urem"))
        offset = fn.load("i64", fn.at(row_at, oh, "i64"), 8)
        line = fn.at(x, fn.as_value("i64", outer) * shape.size + offset, element)
        target = fn.at(y, fn.as_value("i64", row) * times(fn, width, shape.inner), element)
        for ow in fn.range(0, width):
            source = fn.at(line, fn.load("i64", fn.at(column_at, ow, "i64"), 8), element)
            place = fn.at(target, ow * shape.inner, element)
            copy_row(fn, along, source, place, element, shape.inner)


def _nearest_shape(view: ResizeShape, item: int) -> NearestShape:
    """Return an image of elements of `item` bytes, as kernels of nearest positions see it."""
    size = view.height.size * view.width.size * view.inner
    return NearestShape(view.outer, size, (view.height.out, view.width.out), view.inner, item)


def _nearest_tables(node: Node, view: ResizeShape) -> tuple[Array, Array]:
    """Return the offsets of the rows and of the columns that a kernel copies, in items."""
    rows, columns = (_axis_taps(node, plan)[0][:, 0] for plan in (view.height, view.width))
    return rows * (view.width.size * view.inner), columns * view.inner


def lower_nearest(context: Context, node: Node) -> list[Step]:
    """Return the step that copies the nearest positions."""
    item = itemsize(context.type(node.used[0]).dtype)
    view_at, sample = views(context, node)

    def planned(graph: Graph) -> Planned[NearestShape]:
        view = view_at(graph)
        shape = _nearest_shape(view, item)
        return Planned(shape, _nearest_work(shape), _nearest_tables(node, view))

    reads = (context.operand(node.used[0]),)
    wiring = Wiring(reads, node.outputs, (node.id,), "resize_nearest")
    samples = () if sample is None else (_nearest_shape(sample, item),)
    return [planned_step(context, wiring, planned, samples, _nearest_kernel)]


@dataclass(frozen=True)
class BlendShape:
    """A resize by sums: sizes of the image, of the output, and taps of a row and of a column."""

    outer: int
    height: int
    width: int
    inner: int
    out: tuple[int, int]
    taps: tuple[int, int]


def _blend_work(isa: Isa, shape: BlendShape) -> SpanWork:
    """Return the rows of the output, and the seconds of all."""
    total = shape.outer * shape.out[0]
    vectors = total * shape.out[1] * -(-shape.inner // _lanes(isa, shape.inner))
    return SpanWork(total, vectors * (shape.taps[0] * shape.taps[1] * 1.5 + 1) / 1e9)


def _blend_kernel(isa: Isa, shape: BlendShape, cut: SpanCut, mode: str) -> Code:
    """Return the kernel of a resize.

    Operands: offsets and weights of the rows, offsets and weights of the columns, x, y
    """
    fn, operands, _, _, span = begin_span(f"resize_{mode}_f32", isa, 6, cut)
    _emit_blend(fn, fn.known(shape), operands, span)
    return finish(fn)


def _emit_blend(
    fn: Function, shape: BlendShape, operands: Sequence[Value], span: tuple[Index, Index]
) -> None:
    """Emit some of the output's rows; height and width of image and output may be read."""
    (row_at, row_by, column_at, column_by, x, y), (high, wide) = operands, shape.out
    lanes, inner = _lanes(fn.isa, shape.inner), shape.inner
    image_size = times(fn, times(fn, shape.height, shape.width), inner)
    for row in fn.range(*span):
        outer, oh = (fn.integer(op, row, high) for op in ("udiv", "urem"))
        image = fn.at(x, times(fn, outer, image_size))
        lines = _taps_at(fn, image, row_at, row_by, oh, shape.taps[0])
        for ow in fn.range(0, wide):
            points = [
                (at, fn.splat(by * weight, lanes))
                for line, by in lines
                for at, weight in _taps_at(fn, line, column_at, column_by, ow, shape.taps[1])
            ]
            place = times(fn, plus(fn, times(fn, row, wide), ow), inner)
            _blend(fn, points, fn.at(y, place), inner)


def _blend_shape(view: ResizeShape, taps: _Taps) -> BlendShape:
    """Return an image as kernels of sums see it."""
    height, width = view.height, view.width
    return BlendShape(
        view.outer, height.size, width.size, view.inner, (height.out, width.out), taps
    )


def _blend_tables(node: Node, view: ResizeShape) -> tuple[Array, Array, Array, Array]:
    """Return offsets and weights of the rows, then of the columns: [positions, taps] each."""
    rows, row_weights = _axis_taps(node, view.height)
    columns, column_weights = _axis_taps(node, view.width)
    return (
        rows * (view.width.size * view.inner),
        row_weights,
        columns * view.inner,
        column_weights,
    )


def _lower(context: Context, node: Node) -> list[Step]:
    mode = node.attrs["mode"]
    if mode == "nearest":
        return lower_nearest(context, node)
    view_at, sample = views(context, node)

    def planned(graph: Graph) -> Planned[BlendShape]:
        view = view_at(graph)
        tables = _blend_tables(node, view)
        shape = _blend_shape(view, (tables[0].shape[1], tables[2].shape[1]))
        return Planned(shape, _blend_work(context.isa, shape), tables)

    wiring = Wiring((context.operand(node.used[0]),), node.outputs[:1], (node.id,), "resize")
    samples = () if sample is None else [_blend_shape(sample, taps) for taps in _OPEN_TAPS[mode]]
    return [planned_step(context, wiring, planned, samples, _blend_kernel, mode)]


def _taps_at(
    fn: Function, base: Value, at: Value, by: Value, index: Index, count: int
) -> list[tuple[Value, Value]]:
    """The addresses and weights of one output position along an axis."""
    found = []
    for k in range(count):
        place = index * count + k
        offset = fn.load("i64", fn.at(at, place, "i64"), 8)
        found.append((fn.at(base, offset), fn.load("float", fn.at(by, place))))
    return found


def _blend(fn: Function, points: list[tuple[Value, Value]], to: Value, count: int) -> None:
    """Emit the weighted sum of `count` channels of some positions; a single one is copied."""
    lanes = _lanes(fn.isa, count)
    type = vector(lanes, "float")
    whole = count // lanes * lanes

    def emit(at: Index, part: int) -> None:
        total = Var(fn, type, 0.0)
        for k, (point, weight) in enumerate(points):
            element = fn.load_some(type, fn.at(point, at), part)
            if len(points) == 1:
                total.set(element)
            elif k == 0:
                total.set(element * weight)
            else:
                total.set(fn.fma(element, weight, total.get()))
        fn.store_some(total.get(), fn.at(to, at), part)

    for i in fn.range(0, whole, lanes):
        emit(i, lanes)
    if whole < count:
        emit(whole, count - whole)


TABLE.add("resize", Rule(_reason, _lower, _open_reason), [PLAIN])
