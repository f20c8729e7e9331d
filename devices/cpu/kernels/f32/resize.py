"""resize: each output position is an input position, or the weighted sum of a few.

The taps of both axes come from the op's own definition and are tables of constants. A kernel row
makes one output row, all channels of a position in vectors. Sums are in float32; int8/resize.py has
those of stored integers. A resize to the nearest position copies elements of any dtype.
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
from trireme.devices.cpu.kernels.lowering import TABLE, Context, Rule, Step, begin, deal, finish
from trireme.ir.graph import Graph, Node
from trireme.ops.resize import AxisPlan, plan_axes, taps
from trireme.support.dtypes import Array, itemsize
from trireme.support.errors import InternalError
from trireme.support.records import dataclass

MOST_TAPS = 16
MOST_POSITIONS = 1 << 22
"""Of an axis: the tables of positions and weights of a longer one take seconds to make."""


@dataclass(frozen=True)
class ResizeShape:
    """An image as [outer, height, width, inner] -> [outer, out_height, out_width, inner]."""

    outer: int
    height: AxisPlan
    width: AxisPlan
    inner: int


def axis_plans(graph: Graph, node: Node) -> Mapping[int, AxisPlan] | None:
    """Return the plan of each axis; None when that is not known before the run."""
    shape, attrs = graph.type(node.used[0]).dims, node.attrs
    given = [
        graph.values[i] if k < len(node.inputs) and (i := node.inputs[k]) is not None else None
        for k in (2, 3)
    ]
    if any(value is not None and value.data is None for value in given):
        return None
    scales, sizes = (None if v is None or not v.type.elements else v.data for v in given)
    axes = attrs["axes"] or tuple(range(len(shape)))
    return plan_axes(
        shape,
        None if scales is None else tuple(float(s) for s in scales.reshape(-1)),
        None if sizes is None else tuple(int(s) for s in sizes.reshape(-1)),
        tuple(axis % len(shape) for axis in axes),
        attrs["keep_aspect_ratio_policy"],
    )


def view_of(graph: Graph, node: Node) -> ResizeShape | None:
    """The node's image as four axes; None when the resized axes are not neighbours."""
    found, shape = axis_plans(graph, node), graph.type(node.used[0]).dims
    plans = {a: p for a, p in (found or {}).items() if p.out != p.size or p.scale != 1}
    if found is None or len(plans) > 2:
        return None
    still = AxisPlan(1, 1, 1.0)
    if not plans:
        return ResizeShape(1, still, still, math.prod(shape))
    first, last = min(plans), max(plans)
    if math.prod(shape[first + 1 : last]) != 1:
        return None
    height = plans[first] if first != last else still
    return ResizeShape(math.prod(shape[:first]), height, plans[last], math.prod(shape[last + 1 :]))


def axis_taps(node: Node, plan: AxisPlan) -> tuple[Array, Array]:
    """Return positions and weights [out, taps] of an axis, without taps that weigh nothing."""
    attrs = node.attrs
    if plan == AxisPlan(1, 1, 1.0):
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
    if node.attrs["mode"] == "nearest":
        return nearest_reason(graph, node)
    view = view_of(graph, node)
    missing = view_reason(graph, node)
    if view is None or missing:
        return missing
    if graph.type(node.used[0]).dtype != "float32":
        return f"resize has no native {node.attrs['mode']} kernel for plain integers"
    if (longest := max(view.height.out, view.width.out)) > MOST_POSITIONS:
        return f"resize has no native kernel for an axis of {longest} positions"
    count = math.prod(axis_taps(node, p)[0].shape[1] for p in (view.height, view.width))
    if count > MOST_TAPS:
        return f"resize has no native kernel for {count} taps a position"
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


def nearest_work(shape: NearestShape) -> tuple[int, float]:
    """Return the rows of the output, and the seconds of all."""
    rows = shape.outer * shape.out[0]
    return rows, rows * shape.out[1] * (shape.inner * shape.item / 2.5e10 + 4e-10)


def _nearest_kernel(isa: Isa, shape: NearestShape) -> tuple[Code, int, float]:
    """Return the kernel that copies positions, its chunks and seconds.

    Operands: x, offsets of the rows and of the columns in items, y
    """
    fn, operands, chunk, _ = begin(f"resize_nearest_b{8 * shape.item}", isa, 4)
    rows, seconds = nearest_work(shape)
    size, chunks = deal(rows, seconds)
    first: Index = chunk * size if chunks > 1 else 0
    emit_nearest(fn, shape, operands, (first, fn.minimum(first + size, rows)))
    return finish(fn), chunks, seconds


def emit_nearest(
    fn: Function, shape: NearestShape, operands: Sequence[Value], span: tuple[Index, Index]
) -> None:
    """Emit some of the output's rows; all sizes but those of a position may be read."""
    (x, row_at, column_at, y), (height, width) = operands, shape.out
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


def nearest_shape(view: ResizeShape, item: int) -> NearestShape:
    """Return an image of elements of `item` bytes, as kernels of nearest positions see it."""
    size = view.height.size * view.width.size * view.inner
    return NearestShape(view.outer, size, (view.height.out, view.width.out), view.inner, item)


def nearest_tables(node: Node, view: ResizeShape) -> tuple[Array, Array]:
    """Return the offsets of the rows and of the columns that a kernel copies, in items."""
    rows, columns = (axis_taps(node, plan)[0][:, 0] for plan in (view.height, view.width))
    return rows * (view.width.size * view.inner), columns * view.inner


def lower_nearest(context: Context, node: Node) -> list[Step]:
    """Return the step that copies the nearest positions."""
    view = view_of(context.graph, node)
    if view is None:
        raise InternalError("the reason was not asked")
    shape = nearest_shape(view, itemsize(context.type(node.used[0]).dtype))
    code, chunks, seconds = context.kernel(_nearest_kernel, shape)
    reads = (context.operand(node.used[0]), *nearest_tables(node, view))
    return [
        Step(
            code,
            reads,
            node.outputs,
            chunks,
            seconds=seconds,
            nodes=(node.id,),
            family="resize_nearest",
        )
    ]


@dataclass(frozen=True)
class BlendShape:
    """A resize by sums: sizes of the image, of the output, and taps of a row and of a column."""

    outer: int
    height: int
    width: int
    inner: int
    out: tuple[int, int]
    taps: tuple[int, int]


def blend_work(isa: Isa, shape: BlendShape) -> tuple[int, float]:
    """Return the rows of the output, and the seconds of all."""
    total = shape.outer * shape.out[0]
    vectors = total * shape.out[1] * -(-shape.inner // _lanes(isa, shape.inner))
    return total, vectors * (shape.taps[0] * shape.taps[1] * 1.5 + 1) / 1e9


def _blend_kernel(isa: Isa, mode: str, shape: BlendShape) -> tuple[Code, int, float]:
    """Return the kernel of a resize, its chunks and seconds.

    Operands: x, offsets and weights of the rows, offsets and weights of the columns, y
    """
    fn, operands, chunk, _ = begin(f"resize_{mode}_f32", isa, 6)
    total, seconds = blend_work(isa, shape)
    size, chunks = deal(total, seconds)
    first: Index = chunk * size if chunks > 1 else 0
    emit_blend(fn, shape, operands, (first, fn.minimum(first + size, total)))
    return finish(fn), chunks, seconds


def emit_blend(
    fn: Function, shape: BlendShape, operands: Sequence[Value], span: tuple[Index, Index]
) -> None:
    """Emit some of the output's rows; height and width of image and output may be read."""
    (x, row_at, row_by, column_at, column_by, y), (high, wide) = operands, shape.out
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


def blend_shape(view: ResizeShape, taps: tuple[int, int]) -> BlendShape:
    """Return an image as kernels of sums see it."""
    height, width = view.height, view.width
    return BlendShape(
        view.outer, height.size, width.size, view.inner, (height.out, width.out), taps
    )


def blend_tables(node: Node, view: ResizeShape) -> tuple[Array, Array, Array, Array]:
    """Return offsets and weights of the rows, then of the columns: [positions, taps] each."""
    rows, row_weights = axis_taps(node, view.height)
    columns, column_weights = axis_taps(node, view.width)
    return (
        rows * (view.width.size * view.inner),
        row_weights,
        columns * view.inner,
        column_weights,
    )


def _lower(context: Context, node: Node) -> list[Step]:
    if node.attrs["mode"] == "nearest":
        return lower_nearest(context, node)
    view = view_of(context.graph, node)
    if view is None:
        raise InternalError("the reason was not asked")
    tables = blend_tables(node, view)
    shape = blend_shape(view, (tables[0].shape[1], tables[2].shape[1]))
    code, chunks, seconds = context.kernel(_blend_kernel, node.attrs["mode"], shape)
    reads = (context.operand(node.used[0]), *tables)
    return [
        Step(
            code,
            reads,
            (node.outputs[0],),
            chunks,
            seconds=seconds,
            nodes=(node.id,),
            family="resize",
        )
    ]


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


TABLE.add("resize", Rule(_reason, _lower), [PLAIN])
