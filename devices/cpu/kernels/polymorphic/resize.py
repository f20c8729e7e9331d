"""resize for every shape: two neighbouring axes vary, and a shape's taps are tables of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from trireme.backend.kernel_table import PLAIN
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.resize import (
    BlendShape,
    NearestShape,
    ResizeShape,
    axis_plans,
    blend_shape,
    blend_tables,
    blend_work,
    emit_blend,
    emit_nearest,
    nearest_shape,
    nearest_tables,
    nearest_work,
)
from trireme.devices.cpu.kernels.lowering import Context, finish
from trireme.devices.cpu.kernels.polymorphic.sample import deal_evenly, generalised, varies
from trireme.devices.cpu.kernels.polymorphic.step import (
    POLYMORPHIC,
    PolymorphicRule,
    PolymorphicStep,
    Sized,
    begin_sized,
    dims_of,
)
from trireme.ir.graph import Graph, Node
from trireme.ops.resize import AxisPlan
from trireme.support.dtypes import itemsize
from trireme.support.errors import CompileError

Taps = tuple[int, int]
_STILL = AxisPlan(1, 1, 1.0)
_TAPS: Mapping[str, tuple[Taps, ...]] = {
    "linear": ((2, 2), (2, 1), (1, 2), (1, 1)),
    "cubic": ((4, 4), (4, 1), (1, 4), (1, 1)),
}
"""Taps of rows and of columns that kernels are made for: an axis may keep its size."""


def _axes(graph: Graph, node: Node) -> tuple[int, ...]:
    """Return the axes of a sample that change, and the one behind a single one where it varies."""
    x, y = dims_of(graph, node.used[0]), dims_of(graph, node.outputs[0])
    axes = tuple(axis for axis, size in enumerate(x) if size != y[axis])
    if len(axes) == 1 and any(map(varies, x[axes[0] + 1 :])):
        return axes[0], axes[0] + 1
    return axes


def _sampled_view(graph: Graph, node: Node, axes: Sequence[int]) -> ResizeShape:
    """Return a node's image by the sizes of its values alone."""
    x, y = dims_of(graph, node.used[0]), dims_of(graph, node.outputs[0])
    high, wide = (AxisPlan(x[axis], y[axis], 1.0) for axis in (axes[0], axes[-1]))
    outer, inner = math.prod(x[: axes[0]]), math.prod(x[axes[-1] + 1 :])
    return ResizeShape(outer, high if len(axes) > 1 else _STILL, wide, inner)


def _view(graph: Graph, node: Node, axes: Sequence[int]) -> ResizeShape:
    """Return the image of a node of one shape.

    Errors: CompileError, if its sizes are not known, or another axis changes
    """
    view, plans = _sampled_view(graph, node, axes), axis_plans(graph, node)
    if plans is None or not set(axes) <= set(plans) or not set(_axes(graph, node)) <= set(axes):
        raise CompileError(f"cpu: {node.label}: other axes change in this shape")
    high, wide = plans[axes[0]] if len(axes) > 1 else _STILL, plans[axes[-1]]
    if 0 in (view.outer, high.size, high.out, wide.size, wide.out, view.inner):
        raise CompileError(f"{node.label} has no elements", fix="compile this shape by itself")
    return ResizeShape(view.outer, high, wide, view.inner)


def sized_nearest_kernel(isa: Isa, shape: NearestShape, words: int) -> Code:
    """Return the kernel that copies positions; the last words are a chunk's rows, and all.

    Operands: offsets of rows and of columns, x, y
    """
    name = f"resize_nearest_b{8 * shape.item}"
    fn, (rows_at, columns_at, x, y), chunk, _ = begin_sized(name, isa, 4, words + 2)
    size, rows = fn.words[words:]
    first = chunk * size
    span = first, fn.minimum(first + size, rows)
    emit_nearest(fn, fn.known(shape), (x, rows_at, columns_at, y), span)
    return finish(fn)


def _nearest(context: Context, node: Node, axes: Sequence[int]) -> PolymorphicStep:
    item = itemsize(context.type(node.used[0]).dtype)
    sample = nearest_shape(_sampled_view(context.graph, node, axes), item)
    known, count, words = generalised(sample, node.label)
    code = context.kernel(sized_nearest_kernel, known, count)

    def size(graph: Graph) -> Sized:
        view = _view(graph, node, axes)
        shape = nearest_shape(view, item)
        rows, seconds = nearest_work(shape)
        part, chunks = deal_evenly(rows, seconds)
        arrays = nearest_tables(node, view)
        return Sized((*words(shape), part, rows), chunks, seconds, arrays=arrays)

    reads = (context.operand(node.used[0]),)
    return PolymorphicStep((code,), reads, node.outputs, size, (node.id,), "resize_nearest")


def sized_blend_kernel(isa: Isa, mode: str, shape: BlendShape, words: int) -> Code:
    """Return the kernel of sums; the last words are a chunk's rows, and all.

    Operands: offsets and weights of rows, then of columns, x, y
    """
    fn, (*tables, x, y), chunk, _ = begin_sized(f"resize_{mode}_f32", isa, 6, words + 2)
    size, rows = fn.words[words:]
    first = chunk * size
    span = first, fn.minimum(first + size, rows)
    emit_blend(fn, fn.known(shape), (x, *tables, y), span)
    return finish(fn)


def _blend(context: Context, node: Node, axes: Sequence[int]) -> PolymorphicStep:
    isa, mode = context.isa, node.attrs["mode"]
    view = _sampled_view(context.graph, node, axes)
    made = {taps: generalised(blend_shape(view, taps), node.label) for taps in _TAPS[mode]}
    codes = [context.kernel(sized_blend_kernel, mode, *plan[:2]) for plan in made.values()]

    def size(graph: Graph) -> Sized:
        view = _view(graph, node, axes)
        tables = blend_tables(node, view)
        taps = tables[0].shape[1], tables[2].shape[1]
        if taps not in made:
            raise CompileError(f"cpu: {node.label}: {taps} taps in this shape")
        shape = blend_shape(view, taps)
        rows, seconds = blend_work(isa, shape)
        part, chunks = deal_evenly(rows, seconds)
        words, variant = made[taps][2](shape), list(made).index(taps)
        sized = (*words, part, rows)
        return Sized(sized, chunks, seconds, variant=variant, arrays=tables)

    reads = (context.operand(node.used[0]),)
    return PolymorphicStep(tuple(codes), reads, node.outputs, size, (node.id,), "resize")


def _lower(context: Context, node: Node) -> Sequence[PolymorphicStep]:
    axes = _axes(context.graph, node)
    make = _nearest if node.attrs["mode"] == "nearest" else _blend
    return [make(context, node, axes)]


def _reason(graph: Graph, node: Node) -> str | None:
    x, y = (graph.type(value) for value in (node.used[0], node.outputs[0]))
    axes, attrs = _axes(graph, node), node.attrs
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


POLYMORPHIC.add("resize", PolymorphicRule(_reason, _lower), [PLAIN])
