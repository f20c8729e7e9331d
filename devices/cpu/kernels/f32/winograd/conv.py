"""Lowering of convolutions with small square kernels by Winograd's algorithm, where that pays."""

from __future__ import annotations

import math

import numpy as np

from trireme.devices.cpu.kernels.f32.im2row import ImageWindow
from trireme.devices.cpu.kernels.f32.products import window_of
from trireme.devices.cpu.kernels.f32.winograd.kernel import scheme_of, winograd_kernel
from trireme.devices.cpu.kernels.f32.winograd.layout import WinogradConv
from trireme.devices.cpu.kernels.f32.winograd.plan import (
    choose_size,
    cut_winograd,
    schemes,
    winograd_cycles,
)
from trireme.devices.cpu.kernels.f32.winograd.transforms import panels_shape, transform_weights
from trireme.devices.cpu.kernels.lowering import Context, InPlace, Step
from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import FLOATS, Array
from trireme.support.mapped import release

CYCLES_PER_S = 2.2e9
"""Modelled cycles a second: Zen 4 does 1.75e9 with AVX-512, whose registers it does in two halves,
and 3e9 with AVX2."""


def winograd_size(context: Context, node: Node) -> int:
    """Return m of the F(m x m, ...) that should run a conv; 0 where none can or should.

    It can where there is a scheme for kernel and strides, one group, no dilation, and the weights
    are finite (the transform would spread a NaN over its kernel).
    """
    outputs = context.type(node.used[1]).dims[0]
    window = _window(context, node)
    if not may_transform(context, node, window):
        return 0
    size = choose_size(context.isa, window, outputs)
    return size if size and is_finite(context.constant(node.used[1])) else 0


def may_transform(context: Context, node: Node, window: ImageWindow) -> bool:
    """Whether a scheme fits a conv, and its sums may round."""
    allowed = context.winograd and node.attrs["groups"] == 1 and bool(schemes(window))
    return allowed and not _is_exact(context, node)


def _is_exact(context: Context, node: Node) -> bool:
    """Whether a conv's sums are whole numbers that become integers, here or in another graph."""
    if not _becomes_integers(context.graph, node):
        return False
    weights = context.constant(node.used[1])
    return all(bool((np.rint(part) == part).all()) for part in weights)


def _becomes_integers(graph: Graph, node: Node) -> bool:
    """Whether a node's result is cast to integers, or may be by whom the graph is a part for."""
    if graph.is_output(node.outputs[0]):
        return True
    for user in graph.users(node.outputs[0]):
        if user.op == "cast" and user.attrs["to"] not in FLOATS:
            return True
        if user.op in ("transpose", "reshape") and _becomes_integers(graph, user):
            return True
    return False


def winograd_cost(context: Context, node: Node) -> float | None:
    """Return the modelled cycles of one core, None where `winograd_size` is 0."""
    size = winograd_size(context, node)
    if not size:
        return None
    window, outputs = _window(context, node), context.type(node.used[1]).dims[0]
    batch = context.type(node.used[0]).dims[0]
    return winograd_cycles(context.isa, batch, window, outputs, scheme_of(window, size))


def lower_winograd(context: Context, node: Node, size: int) -> list[Step]:
    """Lower a conv by F(size x size, ...); its weights are transformed here, once."""
    weight, isa = node.used[1], context.isa
    outputs, batch = context.type(weight).dims[0], context.type(node.used[0]).dims[0]
    window = _window(context, node)
    given = [node.inputs[k] if k < len(node.inputs) else None for k in (2, 3)]
    weights = _by_strides(context.constant(node.used[1]))
    strides = np.array(weights.strides, np.int64) // weights.itemsize
    conv = WinogradConv(
        batch,
        window,
        outputs,
        given[0] is not None,
        given[1] is not None,
        node.attrs["activation"],
    )
    made = scheme_of(window, size)
    cut = cut_winograd(isa, batch, window, outputs, size, context.threads)
    code, chunks, local_bytes = context.kernel(winograd_kernel, conv, cut)

    nbytes = 4 * math.prod(panels_shape(made, outputs, window.channels, cut.width))

    def pack() -> Array:
        return transform_weights(context.constant(node.used[1]), made, cut.width)

    reads = (
        context.operand(node.used[0]),
        context.pack_later(weight, f"winograd {size} {cut.width}", nbytes, pack),
        InPlace(weights),
        strides,
        *(context.operand(i) for i in given if i is not None),
    )
    cycles = winograd_cycles(isa, batch, window, outputs, made)
    return [
        Step(
            code,
            reads,
            (node.outputs[0],),
            chunks,
            local_bytes,
            seconds=cycles / CYCLES_PER_S,
            nodes=(node.id,),
            columns=cut.groups,
            family="conv_f32_winograd",
        )
    ]


def _window(context: Context, node: Node) -> ImageWindow:
    _, *kernel, depth = context.type(node.used[1]).dims
    return window_of(context.graph, node, kernel, depth)


def is_finite(weights: Array) -> bool:
    """Return whether no weight is NaN or infinite; the pages that this reads are given back."""
    finite = bool(np.isfinite(weights).all())
    release(weights)
    return finite


def _by_strides(weights: Array) -> Array:
    """Return weights whose strides count whole elements forwards: themselves where they do."""
    fit = all(stride >= 0 and stride % weights.itemsize == 0 for stride in weights.strides)
    return weights if fit else np.ascontiguousarray(weights)
