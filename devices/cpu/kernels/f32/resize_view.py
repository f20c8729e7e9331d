"""The image of a resize as four axes: [outer, height, width, inner].

Where all sizes are numbers, the plans of the op say which axes change. Where sizes vary, the sizes
of the values say so, and each shape must agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from trireme.devices.cpu.kernels.lowering import Context, dims_of, varies
from trireme.ir.graph import Graph, Node
from trireme.ops.resize import AxisPlan, plan_axes
from trireme.support.errors import CompileError, InternalError
from trireme.support.records import dataclass

STILL = AxisPlan(1, 1, 1.0)
"""An axis of one element that stays."""


@dataclass(frozen=True)
class ResizeShape:
    """An image as [outer, height, width, inner] -> [outer, out_height, out_width, inner]."""

    outer: int
    height: AxisPlan
    width: AxisPlan
    inner: int


def _axis_plans(graph: Graph, node: Node) -> Mapping[int, AxisPlan] | None:
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
    """Return the node's image as four axes; None when the resized axes are not neighbours."""
    found, shape = _axis_plans(graph, node), graph.type(node.used[0]).dims
    plans = {a: p for a, p in (found or {}).items() if p.out != p.size or p.scale != 1}
    if found is None or len(plans) > 2:
        return None
    if not plans:
        return ResizeShape(1, STILL, STILL, math.prod(shape))
    first, last = min(plans), max(plans)
    if math.prod(shape[first + 1 : last]) != 1:
        return None
    height = plans[first] if first != last else STILL
    return ResizeShape(math.prod(shape[:first]), height, plans[last], math.prod(shape[last + 1 :]))


def open_axes(graph: Graph, node: Node) -> tuple[int, ...]:
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
    return ResizeShape(outer, high if len(axes) > 1 else STILL, wide, inner)


def _view_along(graph: Graph, node: Node, axes: Sequence[int]) -> ResizeShape:
    """Return the image of a node of one shape, of a graph in which some axes vary.

    Errors: CompileError, if its sizes are not known, or another axis changes
    """
    view, plans = _sampled_view(graph, node, axes), _axis_plans(graph, node)
    if plans is None or not set(axes) <= set(plans) or not set(open_axes(graph, node)) <= set(axes):
        raise CompileError(f"cpu: {node.label}: other axes change in this shape")
    high, wide = plans[axes[0]] if len(axes) > 1 else STILL, plans[axes[-1]]
    if 0 in (view.outer, high.size, high.out, wide.size, wide.out, view.inner):
        raise CompileError(f"{node.label} has no elements", fix="compile this shape by itself")
    return ResizeShape(view.outer, high, wide, view.inner)


def views(
    context: Context, node: Node
) -> tuple[Callable[[Graph], ResizeShape], ResizeShape | None]:
    """Return what gives the image of each graph, and that of a sample where sizes vary."""
    if context.is_open:
        axes = open_axes(context.graph, node)
        at = partial(_view_along, node=node, axes=axes)
        return at, _sampled_view(context.graph, node, axes)
    view = view_of(context.graph, node)
    if view is None:
        raise InternalError("the reason was not asked")
    return lambda _: view, None
