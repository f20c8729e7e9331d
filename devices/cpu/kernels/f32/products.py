"""Lowerings of matrix products: conv, fully_connected, matmul and gemm in float32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from trireme.devices.cpu.kernels.expressions import ACTIVATIONS
from trireme.devices.cpu.kernels.f32.im2row import ImageWindow
from trireme.devices.cpu.kernels.f32.panels import pack_panels, panel_bytes
from trireme.devices.cpu.kernels.f32.product_shape import (
    PACKED,
    PACKED_EACH,
    MatmulShape,
    Strides,
)
from trireme.devices.cpu.kernels.f32.product_step import (
    Operands,
    product_step,
)
from trireme.devices.cpu.kernels.f32.tiling import Size
from trireme.devices.cpu.kernels.lowering import (
    TABLE,
    Context,
    Operand,
    Rule,
    Step,
    float_reason,
    in_every_shape,
)
from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import Array


def _extra(node: Node) -> tuple[bool, bool]:
    """Return whether a node has a bias and a residual: inputs 2 and 3."""
    given = [node.inputs[k] if k < len(node.inputs) else None for k in (2, 3)]
    return given[0] is not None, given[1] is not None


def _extra_operands(context: Context, node: Node) -> tuple[Operand, ...]:
    return tuple(context.operand(i) for i in node.inputs[2:4] if i is not None)


def constant_reason(graph: Graph, node: Node, position: int, what: str) -> str | None:
    """Say that an input must be a constant, if it is not."""
    value = node.inputs[position]
    if value is None or graph.values[value].is_constant:
        return None
    return f"{node.op} has a native kernel for constant {what} only"


def window_of(graph: Graph, node: Node, kernel: Sequence[int], depth: int) -> ImageWindow:
    """Return a node's window with the spatial axes as two; a 1-D image has height 1."""
    x, y = graph.type(node.used[0]).dims, graph.type(node.outputs[0]).dims
    rank, attrs = len(x) - 2, node.attrs
    one = (1,) * (2 - rank)
    pads = (0,) * (2 - rank) + tuple(attrs["pads"][:rank])
    size, out = (*one, *x[1:-1]), (*one, *y[1:-1])
    strides, dilations = (*one, *attrs["strides"]), (*one, *attrs["dilations"])
    full = (*one, *kernel)
    return ImageWindow(
        size[0],
        size[1],
        x[-1],
        depth,
        out[0],
        out[1],
        (full[0], full[1]),
        (strides[0], strides[1]),
        (pads[0], pads[1]),
        (dilations[0], dilations[1]),
    )


def image_reason(graph: Graph, node: Node) -> str | None:
    """Say why an image op has no kernel for its rank or dtype; None when it has."""
    if len(graph.type(node.used[0]).shape) not in (3, 4):
        return f"{node.op} has native kernels for one or two spatial axes"
    return float_reason(graph, node) or activation_reason(node)


def activation_reason(node: Node) -> str | None:
    """Say that an activation has no kernel, if it has none."""
    name = str(node.attrs.get("activation") or "")
    return None if name in ACTIVATIONS else f"{node.op} has no native kernel with {name}"


def conv_reason(graph: Graph, node: Node) -> str | None:
    """Say why a conv has no native kernel, None when it has."""
    return image_reason(graph, node) or constant_reason(graph, node, 1, "weights")


def conv_product(graph: Graph, node: Node) -> MatmulShape:
    """Return a conv as a product over gathered rows; of the image itself where that is dense."""
    w, y = graph.type(node.used[1]).dims, graph.type(node.outputs[0]).dims
    groups, depth, columns = node.attrs["groups"], math.prod(w[1:]), w[0] // node.attrs["groups"]
    window = window_of(graph, node, w[1:-1], w[-1])
    bias, residual = _extra(node)
    return MatmulShape(
        Size(math.prod(y[:-1]), columns, depth, groups),
        a=Strides(window.channels, w[-1]),
        b=PACKED_EACH,
        c=Strides(w[0], columns),
        bias_batch=columns,
        bias=bias,
        residual=residual,
        activation=node.attrs["activation"],
        window=None if window.is_dense else window,
    )


def conv_operands(context: Context, node: Node) -> Operands:
    """Return the operands of a conv's product."""
    weight, groups = node.used[1], node.attrs["groups"]
    w = context.type(weight).dims
    depth, columns = math.prod(w[1:]), w[0] // groups

    def pack(width: int) -> Operand:
        def make() -> Array:
            data = context.constant(weight).reshape(groups, columns, depth)
            return pack_panels(data.transpose(0, 2, 1), width)

        nbytes = panel_bytes(groups, depth, columns, width)
        return context.pack_later(weight, f"panels {groups} {width}", nbytes, make)

    extra = _extra_operands(context, node)
    return Operands(context.operand(node.used[0]), pack, extra, node.outputs[0])


def _fully_connected_product(graph: Graph, node: Node) -> MatmulShape:
    """Return a fully connected layer as a product."""
    columns, depth = graph.type(node.used[1]).dims
    rows = graph.type(node.outputs[0]).elements // columns
    bias, residual = _extra(node)
    return MatmulShape(
        Size(rows, columns, depth),
        a=Strides(depth),
        b=PACKED,
        c=Strides(columns),
        bias=bias,
        residual=residual,
        activation=node.attrs["activation"],
    )


def _fully_connected_operands(context: Context, node: Node) -> Operands:
    """Return the operands of a fully connected layer's product."""
    weight = node.used[1]
    columns, depth = context.type(weight).dims

    def pack(width: int) -> Operand:
        def make() -> Array:
            return pack_panels(context.constant(weight).T[None], width)

        nbytes = panel_bytes(1, depth, columns, width)
        return context.pack_later(weight, f"panels 1 {width}", nbytes, make)

    extra = _extra_operands(context, node)
    return Operands(context.operand(node.used[0]), pack, extra, node.outputs[0])


def _lower_fully_connected(context: Context, node: Node) -> list[Step]:
    operands = _fully_connected_operands(context, node)
    return [product_step(context, node, _fully_connected_product, operands, "fully_connected")]


def _fully_connected_reason(graph: Graph, node: Node) -> str | None:
    """Say why a fully connected layer has no native kernel, None when it has."""
    return (
        float_reason(graph, node)
        or activation_reason(node)
        or constant_reason(graph, node, 1, "weights")
    )


def _matmul_reason(graph: Graph, node: Node) -> str | None:
    """Say why a matmul has no native kernel, None when it has."""
    a, b = (graph.type(i).shape for i in node.used)
    if len(a) < 2 or len(b) < 2:
        return "matmul has native kernels for matrices only, not for vectors"
    before, other = _batch(a, b), _batch(b, a)
    if before != other and math.prod(before) != 1 and math.prod(other) != 1:
        return "matmul has no native kernel for batches that are broadcast axis by axis"
    return float_reason(graph, node)


def _batch(shape: Sequence[int | str], other: Sequence[int | str]) -> tuple[int, ...]:
    """The batch dimensions of a matmul operand, with leading ones up to the other's rank."""
    missing = max(len(other) - len(shape), 0)
    return (1,) * missing + tuple(int(dim) for dim in shape[:-2])


def _matmul_product(graph: Graph, node: Node, is_packed: bool) -> MatmulShape:
    """Return a matmul as a product; a packed B lies in panels."""
    left, right = node.used
    a, b = graph.type(left).dims, graph.type(right).dims
    rows, depth, columns = a[-2], a[-1], b[-1]
    a_count, b_count = math.prod(a[:-2]), math.prod(b[:-2])
    batch = max(a_count, b_count)
    if b_count == 1:  # one matrix B: all of A is one matrix
        rows, batch, a_count = rows * batch, 1, 1
    return MatmulShape(
        Size(rows, columns, depth, batch),
        a=Strides(depth, rows * depth if a_count > 1 else 0),
        b=Strides(0 if is_packed else columns, depth * columns if b_count > 1 else 0),
        c=Strides(columns, rows * columns),
    )


def _matmul_operands(context: Context, node: Node) -> Operands:
    """Return the operands of a matmul's product."""
    left, right = node.used
    b = context.type(right).dims
    depth, columns, b_count = b[-2], b[-1], math.prod(b[:-2])

    def pack(width: int) -> Operand:
        def make() -> Array:
            return pack_panels(context.constant(right).reshape(b_count, depth, columns), width)

        nbytes = panel_bytes(b_count, depth, columns, width)
        return context.pack_later(right, f"panels {width}", nbytes, make)

    is_packed = context.graph.values[right].is_constant
    return Operands(context.operand(left), pack if is_packed else right, (), node.outputs[0])


def _lower_matmul(context: Context, node: Node) -> list[Step]:
    """Lower a matmul; a B that becomes constant in a shape is not packed then."""
    is_packed = context.graph.values[node.used[1]].is_constant
    product_of = partial(_matmul_product, is_packed=is_packed)
    return [product_step(context, node, product_of, _matmul_operands(context, node), "matmul")]


def _gemm_reason(graph: Graph, node: Node) -> str | None:
    """Say why a gemm has no native kernel, None when it has."""
    attrs = node.attrs
    constant = graph.values[node.used[1]].is_constant
    if attrs["trans_a"]:
        return "gemm has no native kernel for a transposed a"
    if not constant and (attrs["trans_b"] or attrs["alpha"] != 1):
        return "gemm has native kernels for alpha and a transposed b with constant b only"
    if len(node.used) == 3:
        c = graph.values[node.used[2]]
        columns = graph.type(node.outputs[0]).dims[1]
        if (
            c.data is None
            or c.data.size not in (1, columns)
            or (c.data.ndim == 2 and c.data.shape[0] != 1)
        ):
            return "gemm has native kernels for a constant c of one row only"
    return float_reason(graph, node)


def _gemm_product(graph: Graph, node: Node) -> MatmulShape:
    """Return a gemm as a product."""
    rows, columns = graph.type(node.outputs[0]).dims
    depth = _gemm_depth(graph, node)
    return MatmulShape(
        Size(rows, columns, depth),
        a=Strides(depth),
        b=PACKED if graph.values[node.used[1]].is_constant else Strides(columns),
        c=Strides(columns),
        bias=len(node.used) == 3,
    )


def _gemm_depth(graph: Graph, node: Node) -> int:
    """Return the depth, which a constant b tells where the axis of a is open."""
    a, b = node.used[:2]
    if graph.values[b].is_constant:
        return graph.type(b).dims[1 if node.attrs["trans_b"] else 0]
    return graph.type(a).dims[1]


def _gemm_operands(context: Context, node: Node) -> Operands:
    """Return the operands of a gemm's product."""
    attrs, right = node.attrs, node.used[1]
    columns = context.type(node.outputs[0]).dims[1]
    depth = _gemm_depth(context.graph, node)
    constant = context.graph.values[right].data
    extra: tuple[Operand, ...] = ()
    if len(node.used) == 3:
        c = context.constant(node.used[2])
        key, beta = node.used[2], np.float32(attrs["beta"])
        row = context.pack(
            key,
            f"row {columns} {beta}",
            lambda: np.broadcast_to(c.reshape(-1) * beta, (columns,)).copy(),
        )
        extra = (row,)
    alpha = np.float32(attrs["alpha"])

    def pack(width: int) -> Operand:
        def make() -> Array:
            data = context.constant(right)
            return pack_panels((data.T if attrs["trans_b"] else data)[None] * alpha, width)

        nbytes = panel_bytes(1, depth, columns, width)
        key = f"panels {width} {alpha} {attrs['trans_b']}"
        return context.pack_later(right, key, nbytes, make)

    b = right if constant is None else pack
    return Operands(context.operand(node.used[0]), b, extra, node.outputs[0])


def _lower_gemm(context: Context, node: Node) -> list[Step]:
    return [product_step(context, node, _gemm_product, _gemm_operands(context, node), "gemm")]


_FULLY_CONNECTED = Rule(_fully_connected_reason, _lower_fully_connected, in_every_shape)
TABLE.add("fully_connected", _FULLY_CONNECTED, ["float32"])
TABLE.add("matmul", Rule(_matmul_reason, _lower_matmul, in_every_shape), ["float32"])
TABLE.add("gemm", Rule(_gemm_reason, _lower_gemm, in_every_shape), ["float32"])
