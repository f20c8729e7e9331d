"""Kernels of float operators on int8 weights: levels (levels.py), then products on 8-bit integers.

hybrid_nodes.py finds them. The products are those of quantised layers (int8_linear.py) with an
epilogue that scales their sums back to float32 (int8_dequant.py).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trireme.devices.cpu import int8_depthwise as depthwise
from trireme.devices.cpu.hybrid_nodes import HybridProduct, Levels, Pads, pads_of
from trireme.devices.cpu.int8 import dot_of
from trireme.devices.cpu.int8_columns import source_of
from trireme.devices.cpu.int8_dequant import Dequantiser, State, dequantiser
from trireme.devices.cpu.int8_linear import lane_channels, product_step
from trireme.devices.cpu.int8_pack import choose_tile, pack_weights, steps_of
from trireme.devices.cpu.int8_prepare import Image
from trireme.devices.cpu.int8_requant import channel_order
from trireme.devices.cpu.int8_shapes import conv_shape, fully_connected_shape
from trireme.devices.cpu.kernels import Context, Step, Temp
from trireme.devices.cpu.levels import Layout, Rounding, rounding_steps
from trireme.dtypes import Array
from trireme.errors import InternalError


def lower_levels(context: Context, levels: Levels) -> list[Step]:
    """Return the steps that round a value, once for every border that its readers want."""
    steps: list[Step] = []
    for pads in levels.pads:
        layout = _layout(context, levels, pads)
        memory = _memory(context, levels, pads)
        rounding = Rounding(levels.asymmetric, levels.tiny)
        x = context.operand(levels.x)
        steps += rounding_steps(context.isa, layout, rounding, x, *memory)
    return steps


def _layout(context: Context, levels: Levels, pads: Pads) -> Layout:
    """Return how the levels of a value lie with a border of so many pixels."""
    dims = context.type(levels.x).dims
    top, left, bottom, right = pads
    channels, size = dims[-1], context.type(levels.x).elements // levels.images
    lines = dims[1] if len(dims) == 4 and levels.images == dims[0] else 1
    border = (top, left * channels, bottom, right * channels)
    return Layout(levels.images, lines, size // lines, border, dot_of(context.isa))


def _memory(context: Context, levels: Levels, pads: Pads) -> tuple[Temp, Temp]:
    """Return the memory of levels with a border, and of their state."""
    nbytes = _layout(context, levels, pads).nbytes
    key = f"levels %{levels.levels}"
    return Temp(f"{key} {pads}", nbytes), Temp(f"{key} state", 8 * levels.images)


def lower_product(context: Context, product: HybridProduct) -> list[Step]:
    """Return the step of a product on levels."""
    lower = _lower_depthwise if product.is_depthwise else _lower_linear
    return [lower(context, product)]


def _lower_linear(context: Context, product: HybridProduct) -> Step:
    """Return the step of a conv or fully_connected as a product of matrices."""
    isa, op, dot = context.isa, product.op, dot_of(context.isa)
    shape_of = conv_shape if op.op == "conv" else fully_connected_shape
    shape, view, dims = shape_of(context.graph, op)
    image = Image(dims, pads_of(op), "uint8", 0, dot, prepared=True)
    cut = choose_tile(isa, shape, dot)
    order = np.arange(-(-shape.channels // isa.lanes) * isa.lanes)
    epilogue = _epilogue(context, product, lane_channels(shape, order), shape.rows)
    w = _weights(context, op.used[1])
    packed = pack_weights(steps_of(w, 0, shape, dot), dot, order, cut[0], isa.lanes)
    levels, _ = _memory(context, product.source, pads_of(op))
    operands = (levels, packed, product.output)
    return product_step(isa, shape, (image, view), cut, epilogue, operands)


def _lower_depthwise(context: Context, product: HybridProduct) -> Step:
    """Return the step of a depthwise conv."""
    isa, op, dot = context.isa, product.op, dot_of(context.isa)
    n, height, width, channels = context.type(op.used[0]).dims
    image = Image((n, height, width, channels), pads_of(op), "uint8", 0, dot, prepared=True)
    window = depthwise.window_of(context.graph, op)
    blocks = depthwise.cut_channels(channels, dot, isa)
    lanes = depthwise.lane_channels(isa, blocks, dot)
    epilogue = _epilogue(
        context, product, lanes, window.out[0] * window.out[1],
        lambda lanes, vectors: channel_order(isa, lanes, vectors),
    )  # fmt: skip
    w = _weights(context, op.used[1])
    packed = depthwise.pack_weights(w, 0, window, blocks, dot, lanes)
    levels, _ = _memory(context, product.source, pads_of(op))
    operands = (levels, packed, product.output)
    return depthwise.depthwise_step(isa, source_of(image, window), blocks, epilogue, operands)


def _epilogue(
    context: Context, product: HybridProduct, lanes: Array, rows: int,
    order: Callable[[int, int], Array] | None = None,
) -> Dequantiser:  # fmt: skip
    """Return the epilogue of a product of so many rows (lines of output, if depthwise)."""
    source, dot = product.source, dot_of(context.isa)
    scales = [_constant(context, value) for value in product.scales]
    bias = None if product.bias is None else _constant(context, product.bias)
    zero = 0 if dot.width == 2 else None if source.asymmetric else 128
    _, state = _memory(context, source, pads_of(product.op))
    return dequantiser(
        _weights(context, product.op.used[1]), scales, bias, lanes,
        State(state, source.images, zero), rows // source.images, product.activation, order,
    )  # fmt: skip


def _constant(context: Context, value: int) -> Array:
    data = context.graph.values[value].data
    if data is None:
        raise InternalError(f"%{value} is not a constant")
    return data


def _weights(context: Context, value: int) -> Array:
    """Return whole numbers of float32 as int8."""
    return context.pack(value, "int8", lambda: _constant(context, value).astype(np.int8))
