"""conv_transpose: a few plain convolutions, whose results are then put side by side.

phases.py says which. Each is a matrix product over gathered rows (depthwise: a window kernel) into
memory between steps. One more step deals the results out to the output positions, and fills those
without an input. Where sizes vary, phases and taps stay.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from trireme.devices.cpu.codegen.aligned_memory import aligned_copy
from trireme.devices.cpu.kernels.f32.dealing import deal_step
from trireme.devices.cpu.kernels.f32.depthwise_pool import (
    MOST_TAPS,
    WindowKernel,
    window_step,
)
from trireme.devices.cpu.kernels.f32.im2row import ImageWindow
from trireme.devices.cpu.kernels.f32.panels import pack_panels, panel_bytes
from trireme.devices.cpu.kernels.f32.product_shape import (
    PACKED_EACH,
    MatmulShape,
    Strides,
)
from trireme.devices.cpu.kernels.f32.product_step import Operands, product_step
from trireme.devices.cpu.kernels.f32.products import conv_reason
from trireme.devices.cpu.kernels.f32.tiling import Size
from trireme.devices.cpu.kernels.lowering import (
    TABLE,
    Context,
    Operand,
    Rule,
    SizedTemp,
    Step,
    Temp,
    dims_of,
    varies,
)
from trireme.devices.cpu.kernels.phases import (
    MOST_PHASES,
    PhaseAxis,
    PhaseRange,
    axes_of,
    pairs,
    weights_of,
)
from trireme.devices.cpu.kernels.spans import Wiring
from trireme.ir.graph import Graph, Node
from trireme.ops.activation import activate
from trireme.support.dtypes import Array

_USUAL_BYTES = 1 << 16
"""Bytes of a result, where memory is shared by results of unlike sizes."""


def _is_depthwise(graph: Graph, node: Node) -> bool:
    """Whether each channel is convolved alone."""
    w = graph.type(node.used[1]).dims
    return bool(node.attrs["groups"] == w[0] and w[-1] == 1 and w[0] > 1)


def _axes_for(graph: Graph, node: Node) -> tuple[PhaseAxis, PhaseAxis]:
    """Return the axes, with runs of phases where one group makes all channels."""
    return axes_of(graph, node, alone=node.attrs["groups"] > 1)


def _window_for(
    axes: tuple[PhaseAxis, PhaseAxis],
    runs: tuple[PhaseRange, PhaseRange],
    channels: int,
    depth: int,
) -> ImageWindow:
    """Return the window of a pair of runs over the image."""
    rows, columns = runs
    return ImageWindow(
        axes[0].size,
        axes[1].size,
        channels,
        depth,
        axes[0].windows,
        axes[1].windows,
        (len(rows.taps), len(columns.taps)),
        (1, 1),
        (rows.pad, columns.pad),
        (rows.dilation, columns.dilation),
    )


def _image(context: Context, value: int) -> Array:
    """Return the weights as [C, KH, KW, M]."""
    data = context.constant(value)
    return data if data.ndim == 4 else data[:, None]


def _bias(context: Context, node: Node) -> Array | None:
    value = node.inputs[2] if len(node.inputs) > 2 else None
    return None if value is None else context.constant(value)


def _run_product(
    graph: Graph,
    node: Node,
    axes: tuple[PhaseAxis, PhaseAxis],
    runs: tuple[PhaseRange, PhaseRange],
    gathers: bool = False,
) -> MatmulShape:
    """Return the product of gathered rows of a pair of runs; gathers: even where rows are dense."""
    x, groups = graph.type(node.used[0]).dims, node.attrs["groups"]
    channels, columns = x[-1], _columns(graph, node, runs)
    window = _window_for(axes, runs, channels, channels // groups)
    has_bias = len(node.inputs) > 2 and node.inputs[2] is not None
    return MatmulShape(
        Size(
            x[0] * window.out_height * window.out_width,
            columns,
            math.prod(window.kernel) * window.depth,
            groups,
        ),
        a=Strides(channels, window.depth),
        b=PACKED_EACH,
        c=Strides(groups * columns, columns),
        bias_batch=columns if has_bias else 0,
        bias=has_bias,
        activation=node.attrs["activation"],
        window=None if window.is_dense and not gathers else window,
    )


def _columns(graph: Graph, node: Node, runs: tuple[PhaseRange, PhaseRange]) -> int:
    return runs[0].count * runs[1].count * graph.type(node.used[1]).dims[-1]


def _run_operands(
    context: Context, node: Node, runs: tuple[PhaseRange, PhaseRange], target: Temp
) -> Operands:
    """Return the operands of that product."""
    weight, groups, bias = node.used[1], node.attrs["groups"], _bias(context, node)
    shape = context.type(weight).dims
    columns, each = _columns(context.graph, node, runs), shape[-1]
    depth = len(runs[0].taps) * len(runs[1].taps) * shape[0] // groups

    def pack(width: int) -> Operand:
        def make() -> Array:
            parts = np.split(_image(context, weight), groups)
            stacked = np.stack([weights_of(part, *runs) for part in parts])
            matrix = stacked.transpose(0, 3, 4, 5, 1, 2, 6).reshape(groups, depth, columns)
            return pack_panels(matrix, width)

        nbytes = panel_bytes(groups, depth, columns, width)
        return context.pack_later(weight, f"{runs} {groups} {width}", nbytes, make)

    extra: tuple[Operand, ...] = ()
    if bias is not None:
        phases = columns // each
        extra = (np.tile(bias.reshape(groups, 1, each), (1, phases, 1)).reshape(-1),)
    return Operands(context.operand(node.used[0]), pack, extra, target)


def _product(context: Context, node: Node, number: int, target: Temp) -> Step:
    """Return the step of one pair of runs."""

    def product_of(graph: Graph, node: Node) -> MatmulShape:
        axes = _axes_for(graph, node)
        return _run_product(graph, node, axes, pairs(axes)[number], gathers=context.is_open)

    runs = pairs(_axes_for(context.graph, node))[number]
    operands = _run_operands(context, node, runs, target)
    return product_step(context, node, product_of, operands, "conv")


def _depthwise(context: Context, node: Node, number: int, target: Temp) -> Step:
    """Return the step of one pair of runs where each channel is by itself."""
    x, weight, bias = context.type(node.used[0]).dims, node.used[1], _bias(context, node)
    axes = _axes_for(context.graph, node)
    runs = pairs(axes)[number]
    window = _window_for(axes, runs, x[-1], x[-1])

    def pack() -> Array:
        taken = weights_of(_image(context, weight), *runs)
        return aligned_copy(taken.reshape(math.prod(window.kernel), x[-1]))

    nbytes = 4 * math.prod(window.kernel) * x[-1]
    taps = context.pack_later(weight, f"taps {runs}", nbytes, pack)
    extra = () if bias is None else (bias,)
    reads = (context.operand(node.used[0]), taps, *extra)
    kernel = WindowKernel("depthwise", node.attrs["activation"], bias is not None)
    wiring = Wiring(reads, (target,), (node.id,), "depthwise_f32")
    return window_step(context, wiring, lambda _: window, node.used[0], kernel)


def _lower(context: Context, node: Node) -> list[Step]:
    graph = context.graph
    axes = _axes_for(graph, node)
    by_channel = (
        _is_depthwise(graph, node)
        and math.prod(max(len(run.taps) for run in axis.runs) for axis in axes) <= MOST_TAPS
    )
    make = _depthwise if by_channel else _product
    results = [_result(context, node, number) for number in range(len(pairs(axes)))]
    steps = [make(context, node, number, result) for number, result in enumerate(results)]
    axes_at, blank = partial(_axes_for, node=node), _blank_pixel(context, node)
    return [*steps, deal_step(context, node, axes_at, results, blank)]


def _result(context: Context, node: Node, number: int) -> Temp:
    """Return the memory of the results of a pair of runs."""

    def bytes_at(graph: Graph) -> int:
        y, axes = dims_of(graph, node.outputs[0]), _axes_for(graph, node)
        rows, columns = pairs(axes)[number]
        pixels = y[0] * axes[0].windows * axes[1].windows * rows.count * columns.count
        return 4 * pixels * y[-1]

    key = f"%{node.outputs[0]} phases {number}"
    if context.is_open:
        return SizedTemp(key, _USUAL_BYTES, bytes_at)
    return Temp(key, bytes_at(context.graph))


def _blank_pixel(context: Context, node: Node) -> Array:
    """Return a pixel that no input reaches: the bias alone."""
    bias, channels = _bias(context, node), context.type(node.outputs[0]).dims[-1]
    blank = np.zeros(channels, np.float32) if bias is None else bias.astype(np.float32)
    return activate(node.attrs["activation"], blank)


def _reason(graph: Graph, node: Node) -> str | None:
    """Say why a transposed convolution has no native kernel, None when it has."""
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None and not graph.values[bias].is_constant:
        return "conv_transpose has a native kernel for a constant bias only"
    if max(node.attrs["strides"]) > MOST_PHASES:
        return f"conv_transpose has no native kernel for strides over {MOST_PHASES}"
    return conv_reason(graph, node)


def _open_reason(graph: Graph, node: Node) -> str | None:
    x = dims_of(graph, node.used[0])
    if varies(x[-1]) or not any(map(varies, x[1:-1])):
        return "conv_transpose has kernels for every shape where height or width varies"
    if _is_depthwise(graph, node):
        return "conv_transpose has no kernel for every shape where each channel is alone"
    return None


TABLE.add("conv_transpose", Rule(_reason, _lower, _open_reason), ["float32"], "NHWC")
