"""Kernels of float operators on int8 weights: levels, then products on 8-bit integers.

The products are those of quantised layers (int8/linear.py) with
an epilogue that scales their sums back to float32 (int8/dequant.py).
"""

from __future__ import annotations

import numpy as np

from trireme.devices.cpu.kernels.dynamic_range.dynamic_quantize import (
    LevelRounding,
    LineLayout,
    rounding_steps,
)
from trireme.devices.cpu.kernels.expressions import ACTIVATIONS
from trireme.devices.cpu.kernels.f32.winograd.conv import winograd_cost
from trireme.devices.cpu.kernels.int8 import depthwise
from trireme.devices.cpu.kernels.int8.arithmetic import Dot, dot_of
from trireme.devices.cpu.kernels.int8.columns import source_of
from trireme.devices.cpu.kernels.int8.dequant import Dequantiser, DequantState, dequantiser
from trireme.devices.cpu.kernels.int8.dot_variants import Way, best_way
from trireme.devices.cpu.kernels.int8.linear import lane_channels, product_step
from trireme.devices.cpu.kernels.int8.pack import Int8MatmulShape, pack_weights, weight_zero
from trireme.devices.cpu.kernels.int8.prepare import Image, LineWindow
from trireme.devices.cpu.kernels.int8.shapes import Shape, conv_shape, matrix_shape
from trireme.devices.cpu.kernels.int8.split import repeats_of
from trireme.devices.cpu.kernels.lowering import Context, Step, Temp
from trireme.ir.graph import Rounding
from trireme.ir.quantization.dynamic_range import (
    HybridProduct,
    Levels,
    LinearOp,
    find_hybrid,
    pads_of,
)
from trireme.ops.integer import LinearParams
from trireme.support.dtypes import Array

_NONE = np.zeros(0, np.int32)


def chosen_hybrid(context: Context) -> list[Levels | HybridProduct]:
    """Return the levels and products of a graph that are faster so than in float32.

    Without VNNI, Winograd's algorithm in float32 may be faster.
    """
    found = find_hybrid(context.graph, ACTIVATIONS)
    slow = {
        one.source.levels
        for one in found
        if isinstance(one, HybridProduct) and _is_slower(context, one)
    }
    return [
        one for one in found if (one if isinstance(one, Levels) else one.source).levels not in slow
    ]


def _is_slower(context: Context, product: HybridProduct) -> bool:
    """Whether a model says that the float nodes would take less time."""
    op = product.op
    if context.isa.vnni or op.node.op != "conv" or _is_depthwise(context, op):
        return False
    cycles = winograd_cost(context, op.node)
    return cycles is not None and cycles < way_of(context, product.source, op).cycles


def lower_levels(context: Context, levels: Levels) -> list[Step]:
    """Return the steps that round a value, once for every border and form that its readers want."""
    steps: list[Step] = []
    done: set[Temp] = set()
    for op in levels.readers:
        memory, state = _memory(context, levels, op)
        if memory not in done:
            layout, rounding = (
                _layout(context, levels, op),
                LevelRounding(levels.kind, levels.tiny),
            )
            x = context.operand(levels.x)
            steps += rounding_steps(context, layout, rounding, x, memory, state)
            done.add(memory)
    return steps


def _layout(context: Context, levels: Levels, op: LinearOp) -> LineLayout:
    """Return how levels lie as a reader wants them."""
    dims = context.type(levels.x).dims
    top, left, bottom, right = pads_of(op.node)
    channels, size = dims[-1], context.type(levels.x).elements // levels.images
    lines = 1
    if len(dims) == 4 and levels.images == dims[0]:
        lines = dims[1]
    elif levels.images == 1:
        lines = size // channels
    border = (top, left * channels, bottom, right * channels)
    return LineLayout(levels.images, lines, size // lines, border, _dot(context, levels, op))


def _memory(context: Context, levels: Levels, op: LinearOp) -> tuple[Temp, Temp]:
    """Return the memory of levels as a reader wants them, and of their state."""
    layout, key = _layout(context, levels, op), f"levels %{levels.levels}"
    form = f"{key} {pads_of(op.node)} {layout.dot.dtype}"
    return Temp(form, layout.nbytes), Temp(f"{key} state", 8 * levels.images)


def _dot(context: Context, levels: Levels, op: LinearOp) -> Dot:
    """Return how an op multiplies levels."""
    if _is_depthwise(context, op):
        return dot_of(context.isa)
    return way_of(context, levels, op).dot


def _is_depthwise(context: Context, op: LinearOp) -> bool:
    return op.node.op == "conv" and depthwise.is_depthwise(context.graph, op.node)


def way_of(context: Context, levels: Levels, op: LinearOp) -> Way:
    """Return how a product of matrices is computed."""
    if op.node.id not in levels.ways:
        product, _, _ = _shape(context, levels, op)
        w, params = weights_of(context, op), params_of(context, op)
        levels.ways[op.node.id] = best_way(context.isa, w, params, product)
    way: Way = levels.ways[op.node.id]
    return way


def _shape(
    context: Context, levels: Levels, op: LinearOp
) -> tuple[Int8MatmulShape, LineWindow, Shape]:
    if op.node.op == "conv":
        return conv_shape(context.graph, op.node)
    x = context.type(levels.x)
    return matrix_shape(x.elements // x.dims[-1], x.dims[-1], len(weights_of(context, op)))


def lower_product(context: Context, product: HybridProduct) -> list[Step]:
    """Return the step of a product on levels."""
    lower = _lower_depthwise if _is_depthwise(context, product.op) else _lower_linear
    return [lower(context, product)]


def _lower_linear(context: Context, product: HybridProduct) -> Step:
    """Return the step of a conv or fully_connected as a product of matrices."""
    isa, op = context.isa, product.op
    shape, view, dims = _shape(context, product.source, op)
    way = way_of(context, product.source, op)
    dot, tile = way.dot, way.tile
    image = Image(dims, pads_of(op.node), "uint8", 0, dot, prepared=True)
    order = np.arange(-(-shape.channels // isa.lanes) * isa.lanes)
    epilogue = _epilogue(context, product, lane_channels(shape, order), shape.rows)
    repeats = repeats_of(way.parts, shape, dot, order, tile, isa.lanes) if way.parts else None
    packed = pack_weights(way.steps, dot, order, tile, isa.lanes)
    levels, _ = _memory(context, product.source, op)
    operands, timed = (levels, packed, product.output), (tile, way.cycles)
    params = params_of(context, op)
    factor = params.w_zero - weight_zero(weights_of(context, op), params, dot)
    source = (image, view)
    return product_step(context, shape, source, timed, epilogue, operands, factor, repeats)


def _lower_depthwise(context: Context, product: HybridProduct) -> Step:
    """Return the step of a depthwise conv."""
    isa, op, dot = context.isa, product.op, dot_of(context.isa)
    n, height, width, channels = context.type(op.node.used[0]).dims
    image = Image((n, height, width, channels), pads_of(op.node), "uint8", 0, dot, prepared=True)
    window = depthwise.window_of(context.graph, op.node)
    blocks = depthwise.cut_channels(channels, dot, isa)
    lanes = depthwise.lane_channels(isa, blocks, dot)
    epilogue = _epilogue(context, product, lanes, window.out[0] * window.out[1], mixed=True)
    w = weights_of(context, op)
    packed = depthwise.pack_weights(w, 0, window, blocks, dot, lanes)
    levels, _ = _memory(context, product.source, op)
    operands = (levels, packed, product.output)
    return depthwise.depthwise_step(context, source_of(image, window), blocks, epilogue, operands)


def _epilogue(
    context: Context,
    product: HybridProduct,
    lanes: Array,
    rows: int,
    mixed: bool = False,
) -> Dequantiser:
    """Return the epilogue of a product of so many rows (lines of output, if depthwise)."""
    source, dot = product.source, _dot(context, product.source, product.op)
    scales = [context.constant(value) for value in product.scales]
    bias = None if product.bias is None else context.constant(product.bias)
    zero = 0 if dot.width == 2 else 128 if source.kind == "symmetric" else None
    _, state = _memory(context, source, product.op)
    return dequantiser(
        weights_of(context, product.op).astype(np.int32) - params_of(context, product.op).w_zero,
        scales,
        bias,
        lanes,
        DequantState(state, source.images, zero),
        rows // source.images,
        product.activation,
        mixed,
    )


def weights_of(context: Context, op: LinearOp) -> Array:
    """Return the weights of all parts side by side, moved into the range of int8."""

    def make() -> Array:
        whole = np.concatenate([context.constant(part) for part in op.weights], axis=-1)
        return (whole + _zero_of(whole)).astype(np.int8)

    return context.pack(op.weights[0], f"int8 {op.weights}", make)


def params_of(context: Context, op: LinearOp) -> LinearParams:
    """Return the parameters of a product; how far `weights_of` moved weights is their zero."""

    def make() -> Array:
        ends = [_ends(context.constant(part)) for part in op.weights]
        return np.array(_zero_of(np.array(ends)), np.int64)

    zero = context.pack(op.weights[0], f"zero {op.weights}", make)
    return LinearParams(0, int(zero), 0, _NONE, _NONE, 0, 0, Rounding.TWICE)


def _ends(w: Array) -> tuple[float, float]:
    return float(w.min()), float(w.max())


def _zero_of(w: Array) -> int:
    """Return what moves whole numbers of a range of 255 into that of int8; 0 where they fit."""
    least, most = _ends(w)
    return int(min(0.0, 127 - most) if most > 127 else max(0.0, -128 - least))
