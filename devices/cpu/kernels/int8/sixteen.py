"""conv and fully_connected of int16 by int8 weights: their plans for `wide`, and packed weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trireme.backend.kernel_table import STORED_16
from trireme.devices.cpu.kernels.int8.arithmetic import stored_reason
from trireme.devices.cpu.kernels.int8.wide import MOST_STEPS, WideAxis, WidePlan, wide_kernel
from trireme.devices.cpu.kernels.lines import for_lines
from trireme.devices.cpu.kernels.lowering import TABLE, Context, Rule, Step
from trireme.ir.graph import Graph, Node
from trireme.ir.op import call_of
from trireme.ops.integer import (
    SIXTEEN_BIT,
    ScaledParams,
    WideParams,
    conv_16_params,
    fully_connected_16_params,
)
from trireme.support.dtypes import Array

_MOST_TAPS = 511
"""Products of any numbers whose sum fits 32 bits: each is 2**22 at most."""
_MOST_WEIGHTS = 65535
"""The sum of magnitudes of weights whose products with any int16 fit 32 bits."""


def _flush_of(plan: WidePlan, w: Array) -> str:
    """Return where the sums of 32 bits must be added to those of 64; w is [O, ...]."""
    if np.abs(w.reshape(len(w), -1).astype(np.int64)).sum(1).max(initial=0) <= _MOST_WEIGHTS:
        return "end"
    if plan.steps * plan.columns.kernel <= MOST_STEPS:
        return "row"
    return "tap" if plan.steps <= MOST_STEPS else "block"


def _packed(w: Array, lanes: int, vectors: int) -> Array:
    """Return weights [O, taps, depth] as int16 [block, tap, step, channel of the block, 2]."""
    channels, taps, depth = w.shape
    width = lanes * vectors
    blocks, steps = -(-channels // width), -(-depth // 2)
    padded = np.zeros((blocks * width, taps, steps * 2), np.int16)
    padded[:channels, :, :depth] = w
    shaped = padded.reshape(blocks, width, taps, steps, 2)
    return np.ascontiguousarray(shaped.transpose(0, 2, 3, 1, 4)).reshape(-1)


def _packed_depthwise(w: Array, lanes: int, vectors: int) -> Array:
    """Return weights [O, taps] as int32 [block, tap, channel of the block]."""
    channels, taps = w.shape
    width = lanes * vectors
    blocks = -(-channels // width)
    padded = np.zeros((blocks * width, taps), np.int32)
    padded[:channels] = w
    return np.ascontiguousarray(padded.reshape(blocks, width, taps).transpose(0, 2, 1)).reshape(-1)


def _step_of(
    context: Context, node: Node, plan: WidePlan, w: Array, params: WideParams | ScaledParams
) -> Step:
    """Return the step of a product; w is [O, taps, depth], or [O, taps] of a depthwise one."""
    lanes = context.isa.lanes
    vectors = plan.vectors(lanes)
    pack = _packed_depthwise if plan.is_depthwise else _packed
    weights = context.pack(
        node.used[1], f"wide {plan.is_depthwise} {lanes} {vectors}", lambda: pack(w, lanes, vectors)
    )
    padded = -(-plan.channels // (vectors * lanes)) * vectors * lanes

    def numbers(data: Array, rest: int, dtype: type = np.int64) -> Array:
        made: Array = np.full(padded, rest, dtype)
        made[: plan.channels] = data
        return made

    bias = context.constant(node.used[2]) if len(node.used) > 2 else np.zeros(plan.channels)
    if isinstance(params, ScaledParams):
        factors, shifts = numbers(params.scales, 0, np.float64), numbers(np.ones(1), 1)
    else:
        factors, shifts = numbers(params.multipliers, 0), numbers(15 - params.shifts, 15)
    code, chunks = context.kernel(wide_kernel, plan)
    return Step(
        code,
        (context.operand(node.used[0]), weights, numbers(bias, 0), factors, shifts),
        (node.outputs[0],),
        chunks,
        seconds=plan.seconds(lanes),
        nodes=(node.id,),
        family="wide",
    )


def _windows(context: Context, node: Node) -> tuple[int, WideAxis, WideAxis]:
    """Return the images of a conv, and its way over rows and columns."""
    x, y = context.type(node.used[0]).dims, context.type(node.outputs[0]).dims
    w = context.type(node.used[1]).dims
    attrs = node.attrs
    if w[1:3] == (1, 1) and tuple(attrs["strides"]) == (1, 1) and y[1:3] == x[1:3]:
        pixels = math.prod(x[:3])  # of one line, so that they share the weights
        return 1, WideAxis(1, 1, 1), WideAxis(pixels, pixels, 1)
    rows, columns = (
        WideAxis(
            x[1 + axis],
            y[1 + axis],
            w[1 + axis],
            attrs["strides"][axis],
            attrs["dilations"][axis],
            attrs["pads"][axis],
        )
        for axis in range(2)
    )
    return x[0], rows, columns


def _lower_conv(context: Context, node: Node) -> Sequence[Step]:
    params = conv_16_params(call_of(context.graph, node))
    images, rows, columns = _windows(context, node)
    w, depth = context.constant(node.used[1]), context.type(node.used[0]).dims[3]
    is_depthwise = node.attrs["groups"] > 1
    taps = w.reshape(len(w), -1) if is_depthwise else w.reshape(len(w), -1, w.shape[3])
    plan = WidePlan(
        images, rows, columns, depth, len(w), params.low, params.high, is_depthwise=is_depthwise
    )
    if not is_depthwise:
        plan = replace(plan, flush=_flush_of(plan, taps))
    return [_step_of(context, node, plan, taps, params)]


def _lower_fully_connected(context: Context, node: Node) -> Sequence[Step]:
    params = fully_connected_16_params(call_of(context.graph, node))
    w = context.constant(node.used[1])
    rows = context.type(node.used[0]).elements // w.shape[1]
    axes, (channels, depth) = (WideAxis(1, 1, 1), WideAxis(rows, rows, 1)), w.shape
    plan = WidePlan(1, *axes, depth, channels, params.low, params.high, is_scaled=True)
    plan = replace(plan, flush=_flush_of(plan, w))
    return [_step_of(context, node, plan, w[:, None], params)]


def _constants_reason(graph: Graph, node: Node) -> str | None:
    if any(graph.values[value].data is None for value in node.used[1:]):
        return f"{node.op} on int16 has a native kernel for constant weights and bias only"
    return None


def _conv_reason(graph: Graph, node: Node) -> str | None:
    if len(graph.type(node.used[0]).shape) != 4:
        return "conv on int16 has a native kernel for one or two spatial axes only"
    groups, x = node.attrs["groups"], graph.type(node.used[0]).dims
    w = graph.type(node.used[1]).dims
    if groups != 1 and not groups == x[3] == w[0]:
        return "conv on int16 has a native kernel for one group, or one of each channel only"
    if groups > 1 and w[1] * w[2] > _MOST_TAPS:
        return f"a depthwise conv on int16 has a native kernel for {_MOST_TAPS} taps at most"
    call = call_of(graph, node)
    return _constants_reason(graph, node) or stored_reason(
        graph, node, lambda: conv_16_params(call), SIXTEEN_BIT
    )


def _fully_connected_reason(graph: Graph, node: Node) -> str | None:
    call = call_of(graph, node)
    reason = _constants_reason(graph, node) or stored_reason(
        graph, node, lambda: fully_connected_16_params(call), SIXTEEN_BIT
    )
    if reason is None and fully_connected_16_params(call).w_zero:
        return "fully_connected on int16 has a native kernel for weights of zero point 0 only"
    return reason


TABLE.add("conv", for_lines(Rule(_conv_reason, _lower_conv)), STORED_16, "NHWC")
TABLE.add("fully_connected", Rule(_fully_connected_reason, _lower_fully_connected), STORED_16)
