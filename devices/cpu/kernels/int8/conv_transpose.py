"""conv_transpose on 8-bit integers: the plain convolutions of its phases, dealt out.

phases.py says which convolutions. Each is the conv of a graph of its own, with the part of the
weights, the bias and the scales that its phases take; it writes to memory between steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trireme.backend.kernel_table import STORED_8
from trireme.devices.cpu.kernels.f32.dealing import deal_step
from trireme.devices.cpu.kernels.int8.arithmetic import stored_reason
from trireme.devices.cpu.kernels.int8.linear import lower_conv
from trireme.devices.cpu.kernels.lines import for_lines
from trireme.devices.cpu.kernels.lowering import TABLE, Context, Rule, Step, Temp
from trireme.devices.cpu.kernels.phases import PhaseAxis, PhaseRange, axes_of, pairs, weights_of
from trireme.ir.graph import Graph, Node, Quant, TensorType, Value
from trireme.ir.op import call_of
from trireme.ops.integer import conv_params, requantize
from trireme.support.dtypes import Array
from trireme.support.errors import InternalError

_WEIGHTS, _BIAS, _RESULT = -1, -2, -3
"""Ids of the values of a plain convolution, in its own graph."""


def _constant(graph: Graph, value: int) -> Array:
    data = graph.values[value].data
    if data is None:
        raise InternalError(f"%{value} is not a constant")
    return data


def _tiled(quant: Quant | None, phases: int) -> Quant | None:
    """Return the quantisation of weights whose channels come once for each phase."""
    if quant is None or len(quant.scales) == 1:
        return quant
    return Quant(quant.scales * phases, quant.zero_points * phases, 0)


def _plain(
    graph: Graph, node: Node, axes: tuple[PhaseAxis, PhaseAxis], runs: tuple[PhaseRange, PhaseRange]
) -> Graph:
    """Return the convolution of a pair of runs of phases as a graph."""
    source, weight = graph.values[node.used[0]], graph.values[node.used[1]]
    w = weights_of(_constant(graph, weight.id), *runs)  # [rows, columns, KH, KW, C, M]
    phases = w.shape[0] * w.shape[1]
    plain = np.ascontiguousarray(w.transpose(0, 1, 5, 2, 3, 4)).reshape(-1, *w.shape[2:5])
    y = graph.type(node.outputs[0])
    shape = (y.dims[0], axes[0].windows, axes[1].windows, phases * y.dims[3])
    made = [
        source,
        Value(
            _WEIGHTS,
            "w",
            TensorType(plain.shape, weight.type.dtype, _tiled(weight.type.quant, phases)),
            plain,
        ),
        Value(_RESULT, "y", TensorType(shape, y.dtype, y.quant)),
    ]
    inputs = [source.id, _WEIGHTS]
    if len(node.used) > 2:
        bias = graph.values[node.used[2]]
        data = np.tile(_constant(graph, bias.id), phases)
        quant = _tiled(bias.type.quant, phases)
        made.append(Value(_BIAS, "b", TensorType(data.shape, bias.type.dtype, quant), data))
        inputs.append(_BIAS)
    ends = [
        axis.windows - 1 + (len(run.taps) - 1) * run.dilation + 1 - run.pad - axis.size
        for axis, run in zip(axes, runs, strict=True)
    ]
    attrs = {
        "strides": (1, 1),
        "dilations": tuple(run.dilation for run in runs),
        "groups": 1,
        "pads": (*(run.pad for run in runs), *(max(end, 0) for end in ends)),
        "layout": "NHWC",
        "activation": node.attrs["activation"],
    }
    conv = replace(node, op="conv", inputs=tuple(inputs), outputs=(_RESULT,), attrs=attrs)
    values = {value.id: value for value in made}
    return Graph("phases", (source.id,), (_RESULT,), (conv,), values)


def _blank(graph: Graph, node: Node) -> Array:
    """Return a pixel that no input reaches: the bias alone."""
    params, y = conv_params(call_of(graph, node)), graph.type(node.outputs[0])
    bias = np.zeros(y.dims[3], np.int64)
    if len(node.used) > 2:
        bias = _constant(graph, node.used[2]).astype(np.int64)
    made = requantize(
        bias,
        params.multipliers,
        params.shifts,
        params.y_zero,
        params.low,
        params.high,
        params.rounding,
    )
    return made.astype(y.dtype)


def _lower(context: Context, node: Node) -> Sequence[Step]:
    graph, steps, results = context.graph, [], []
    axes = axes_of(graph, node, alone=False)
    for number, runs in enumerate(pairs(axes)):
        plain = _plain(graph, node, axes, runs)
        result = Temp(f"%{node.outputs[0]} phases {number}", plain.type(_RESULT).elements)
        for step in lower_conv(replace(context, graph=plain), plain.nodes[0]):
            steps.append(replace(step, writes=(result,)))
        results.append(result)
    return [*steps, deal_step(context, node, lambda _: axes, results, _blank(graph, node))]


def _reason(graph: Graph, node: Node) -> str | None:
    if any(graph.values[value].data is None for value in node.used[1:]):
        return "quantised conv_transpose has native kernels for constant weights and bias only"
    if len(graph.type(node.used[0]).shape) != 4:
        return "quantised conv_transpose has native kernels for one or two spatial axes only"
    if node.attrs["groups"] != 1:
        return "quantised conv_transpose has native kernels for one group only"
    return stored_reason(graph, node, lambda: conv_params(call_of(graph, node)))


TABLE.add("conv_transpose", for_lines(Rule(_reason, _lower)), STORED_8, "NHWC")
