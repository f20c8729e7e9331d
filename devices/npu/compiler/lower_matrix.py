"""Lower conv, conv_transpose, fully_connected, matmul and gemm to matrix jobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trireme.devices.npu.compiler.jobs import BoxedValue, MoveJob, Shared
from trireme.devices.npu.compiler.layout import Box, nhwc, row_major
from trireme.devices.npu.compiler.lower import (
    FLOATS,
    LoweringRow,
    NpuLowering,
    function_name,
    is_integer,
)
from trireme.devices.npu.compiler.windows import MatrixJob, PackScales, PackWeights, Part
from trireme.devices.npu.stream.commands import Window
from trireme.ir.graph import Node, Value
from trireme.ir.op import Call
from trireme.ops import integer as q
from trireme.ops.integer import LinearParams
from trireme.support.dtypes import Array
from trireme.support.errors import GraphError


@dataclass(frozen=True)
class _Numbers:
    """The fields of a matrix op that differ between integers and floats."""

    fields: dict[str, Any]
    w_dtype: str
    scales: PackScales
    packing: Hashable


def _numbers(
    call: Call, params: Callable[[Call], LinearParams], bias: Array | None, oc: int
) -> _Numbers:
    """Return fields and scales; `oc` output channels a part, bias and scales over all parts."""
    if is_integer(call):
        linear = params(call)
        fields: dict[str, Any] = {
            "x_zero": linear.x_zero,
            "w_zero": linear.w_zero,
            "y_zero": linear.y_zero,
            "low": linear.low,
            "high": linear.high,
            "rounding": linear.rounding,
        }

        def integers(part: int, channels: slice) -> Array:
            cut = slice(part * oc + channels.start, part * oc + channels.stop)
            count = channels.stop - channels.start
            addend = np.zeros(count, np.int32) if bias is None else bias[cut]
            rows = (addend, linear.multipliers[cut], linear.shifts[cut])
            return np.concatenate([np.asarray(row, np.int32) for row in rows])

        packing = (linear.multipliers.tobytes(), linear.shifts.tobytes())
        return _Numbers(fields, call.type(1).dtype, integers, packing)

    def floats(part: int, channels: slice) -> Array:
        cut = slice(part * oc + channels.start, part * oc + channels.stop)
        count = channels.stop - channels.start
        return np.zeros(count, np.float32) if bias is None else bias[cut].astype(np.float32)

    return _Numbers(
        {"function": function_name(str(call.attrs.get("activation", "")))}, "float16", floats, None
    )


def _packed(node: Node, numbers: _Numbers) -> Shared:
    """Return the key of a node's packed weights and scales."""
    attrs = tuple((name, repr(value)) for name, value in sorted(node.attrs.items()))
    weights, bias = (*node.inputs, None)[1:3]
    if weights is None:
        raise GraphError("the weight is missing")
    return Shared(weights, bias, (node.op, attrs, numbers.packing))


def _constant(call: Call, position: int, name: str) -> Array | None:
    """Return the data of an optional constant input."""
    value: Value | None = call.input(position)
    if value is None:
        return None
    if value.data is None:
        raise GraphError(f"{name} must be a constant")
    return value.data


def _pack(data: Array, dtype: str) -> Array:
    with np.errstate(over="ignore"):
        return data.astype(dtype) if dtype == "float16" else data


def lower_conv(state: NpuLowering, node: Node, call: Call) -> None:
    """Lower conv: one part a group; depthwise where each group has one input channel."""
    weights = _constant(call, 1, "the weight")
    if weights is None:
        raise GraphError("the weight is missing")
    rank = weights.ndim - 2
    groups = int(call.attrs["groups"])
    kernels = weights if rank == 2 else weights[:, None]
    oc, _, _, ic = kernels.shape
    channel_wise = groups > 1 and ic == 1
    parts = 1 if channel_wise else groups
    each = oc // parts
    numbers = _numbers(call, q.conv_params, _constant(call, 2, "the bias"), each)

    def pack(part: int, depth: slice, channels: slice) -> Array:
        cut = kernels[part * each + channels.start : part * each + channels.stop]
        cut = cut if channel_wise else cut[:, :, :, depth]
        return _pack(np.ascontiguousarray(cut.transpose(1, 2, 3, 0)), numbers.w_dtype)

    x, y = state.operand(node.inputs[0]), state.operand(node.outputs[0])
    residual = _residual(state, node)
    made = []
    for part in range(parts):
        inside = x if channel_wise else replace(x, layout=_channels(x.layout, part * ic, ic))
        cut = replace(y, layout=_channels(y.layout, part * each, each))
        beside = residual and replace(
            residual, layout=_channels(residual.layout, part * each, each)
        )
        made.append(Part(inside, cut, beside))
    reads = (x.value, *((residual.value,) if residual else ()))
    state.jobs.append(
        MatrixJob(
            state.node,
            reads,
            y.value,
            tuple(made),
            window_of(call, kernels.shape[1:3]),
            oc // groups if channel_wise else 0,
            numbers.w_dtype,
            pack,
            numbers.scales,
            numbers.fields,
            _packed(node, numbers),
        )
    )


def lower_conv_transpose(state: NpuLowering, node: Node, call: Call) -> None:
    """Lower conv_transpose: spread the input by the strides, then convolve with flipped weights.

    The spread input [N, (H-1) stride + 1, (W-1) stride + 1, C] is filled with the zero point.
    """
    weights = _constant(call, 1, "the weight")
    if weights is None or weights.ndim != 4:
        raise GraphError("the weight must be [C,KH,KW,M]: two spatial axes")
    groups = int(call.attrs["groups"])
    turned = weights[:, ::-1, ::-1]
    ic, each = weights.shape[0] // groups, weights.shape[3]
    numbers = _numbers(call, q.conv_params, _constant(call, 2, "the bias"), each)

    def pack(part: int, depth: slice, channels: slice) -> Array:
        cut = turned[part * ic + depth.start : part * ic + depth.stop, :, :, channels]
        return _pack(np.ascontiguousarray(cut.transpose(1, 2, 0, 3)), numbers.w_dtype)

    spread = _spread(state, node, call)
    y = state.operand(node.outputs[0])
    made = [
        Part(
            replace(spread, layout=_channels(spread.layout, part * ic, ic)),
            replace(y, layout=_channels(y.layout, part * each, each)),
        )
        for part in range(groups)
    ]
    kh, kw = weights.shape[1:3]
    (dh, dw), pads = call.attrs["dilations"], call.attrs["pads"]
    window = Window(kh, kw, 1, 1, dh, dw, (kh - 1) * dh - pads[0], (kw - 1) * dw - pads[1])
    state.jobs.append(
        MatrixJob(
            state.node,
            (spread.value,),
            y.value,
            tuple(made),
            window,
            0,
            numbers.w_dtype,
            pack,
            numbers.scales,
            numbers.fields,
            _packed(node, numbers),
        )
    )


def _spread(state: NpuLowering, node: Node, call: Call) -> BoxedValue:
    """Add the job that writes the input with gaps of the strides, and return its result."""
    x = state.operand(node.inputs[0])
    n, h, w, c = x.layout.shape
    sh, sw = call.attrs["strides"]
    shape = (n, (h - 1) * sh + 1, (w - 1) * sw + 1, c)
    if (sh, sw) == (1, 1):
        return x
    made = state.temporary(state.stored[x.value][0], math.prod(shape))
    whole = nhwc(shape)
    step_n, step_h, step_w, _ = whole.strides
    places = Box((n, h, w, c), (step_n, sh * step_h, sw * step_w, 1))
    quant = call.type(0).quant
    fill = (BoxedValue(made, whole), float(quant.zero_point if quant else 0))
    state.jobs.append(MoveJob(state.node, (x.value,), made, [(x, BoxedValue(made, places))], fill))
    return BoxedValue(made, whole)


def _residual(state: NpuLowering, node: Node) -> Any:
    if len(node.inputs) < 4 or node.inputs[3] is None:
        return None
    return state.operand(node.inputs[3])


def _channels(layout: Box, start: int, count: int) -> Box:
    n, h, w, _ = layout.shape
    return Box((n, h, w, count), layout.strides, layout.offset + start * layout.strides[3])


def window_of(call: Call, kernel: tuple[int, ...]) -> Window:
    """Return the window of a conv or pool; a single spatial axis becomes the columns of one row."""
    dilations, pads = call.attrs["dilations"], call.attrs["pads"]
    strides = effective_strides(call)
    if len(strides) == 1:
        return Window(1, kernel[-1], 1, strides[0], 1, dilations[0], 0, pads[0])
    (kh, kw), (sh, sw), (dh, dw) = kernel, strides, dilations
    return Window(kh, kw, sh, sw, dh, dw, pads[0], pads[1])


def effective_strides(call: Call) -> tuple[int, ...]:
    """Return the strides of a window, 1 along an axis with a single output."""
    outputs = call.outputs[0].dims[1:-1]
    return tuple(
        stride if size > 1 else 1
        for stride, size in zip(call.attrs["strides"], outputs, strict=True)
    )


def lower_fully_connected(state: NpuLowering, node: Node, call: Call) -> None:
    """Lower fully_connected: a product with the rows of x."""
    outputs, inner = call.type(1).dims
    numbers = _numbers(call, q.fully_connected_params, _constant(call, 2, "the bias"), outputs)
    turned = Box((1, 1, inner, outputs), (0, 0, 1, inner))
    _product(state, node, call, numbers, turned, _residual(state, node))


def lower_matmul(state: NpuLowering, node: Node, call: Call) -> None:
    """Lower matmul: one part for each matrix of b that is used."""
    a, b, y = call.type(0).dims, call.type(1).dims, call.outputs[0].dims
    if len(a) < 2 or len(b) < 2:
        raise GraphError("matmul of a vector is not supported")
    numbers = _numbers(call, q.matmul_params, None, 0)
    inner, columns = b[-2:]
    dense_b = Box((1, 1, inner, columns), (0, 0, columns, 1))
    if math.prod(b[:-2]) == 1:
        _product(state, node, call, numbers, dense_b, None)
        return
    _batches(state, node, call, numbers, y)


def _batches(
    state: NpuLowering, node: Node, call: Call, numbers: _Numbers, y: tuple[int, ...]
) -> None:
    a, b = call.type(0).dims, call.type(1).dims
    (rows, inner), columns, lead = a[-2:], b[-1], y[:-2]
    steps_a, steps_b = _lead_steps(a, lead), _lead_steps(b, lead)
    x_value, w_value = state.operand(node.inputs[0]), state.operand(node.inputs[1])
    out = state.operand(node.outputs[0])
    parts, starts = [], []
    for number, index in enumerate(np.ndindex(*lead)):
        x_start = sum(i * s for i, s in zip(index, steps_a, strict=True))
        w_start = sum(i * s for i, s in zip(index, steps_b, strict=True))
        starts.append(w_start)
        x_layout = Box((1, 1, rows, inner), (0, 0, inner, 1), x_start)
        w_layout = Box((1, 1, inner, columns), (0, 0, columns, 1), w_start)
        y_layout = Box((1, 1, rows, columns), (0, 0, columns, 1), number * rows * columns)
        parts.append(
            Part(
                replace(x_value, layout=x_layout),
                replace(out, layout=y_layout),
                None,
                replace(w_value, layout=w_layout),
            )
        )
    state.jobs.append(
        MatrixJob(
            state.node,
            (x_value.value, w_value.value),
            out.value,
            tuple(parts),
            Window(),
            0,
            numbers.w_dtype,
            None,
            _shared(numbers.scales),
            numbers.fields,
            _packed(node, numbers),
        )
    )


def _shared(scales: PackScales) -> PackScales:
    """Return scales that every batch shares."""
    return lambda part, channels: scales(0, channels)


def _lead_steps(shape: tuple[int, ...], lead: tuple[int, ...]) -> tuple[int, ...]:
    """Return the elements between matrices along each leading output axis, 0 where broadcast."""
    strides = row_major(shape)[:-2]
    own = tuple(0 if n == 1 else s for n, s in zip(shape[:-2], strides, strict=True))
    return (0,) * (len(lead) - len(own)) + own


def lower_gemm(state: NpuLowering, node: Node, call: Call) -> None:
    """Lower gemm: alpha and beta go into constant weights and bias."""
    alpha, beta = float(call.attrs["alpha"]), float(call.attrs["beta"])
    outputs = call.outputs[0].dims[1]
    addend = _constant(call, 2, "c")
    bias = None
    if addend is not None:
        if addend.size not in (1, outputs) or math.prod(addend.shape[:-1]) != 1:
            raise GraphError(f"c {list(addend.shape)} must be one row")
        bias = np.broadcast_to(addend.reshape(-1) * np.float32(beta), (outputs,))
    if alpha != 1.0 and call.inputs[1] is not None and call.inputs[1].data is None:
        raise GraphError(f"alpha = {alpha} needs a constant b")
    numbers = _numbers(call, q.matmul_params, bias, 0)
    inner, columns = reversed(call.type(1).dims) if call.attrs["trans_b"] else call.type(1).dims
    strides = (0, 0, 1, inner) if call.attrs["trans_b"] else (0, 0, columns, 1)
    weights = Box((1, 1, inner, columns), strides)
    _product(state, node, call, numbers, weights, None, alpha, bool(call.attrs["trans_a"]))


def _product(
    state: NpuLowering,
    node: Node,
    call: Call,
    numbers: _Numbers,
    w_layout: Box,
    residual: Any,
    alpha: float = 1.0,
    turned: bool = False,
) -> None:
    """Add the job of [M,K] x [K,N] with one matrix of weights; `w_layout` is [1,1,K,N] of it."""
    _, _, inner, outputs = w_layout.shape
    rows = call.outputs[0].elements // outputs
    x_strides = (0, 0, 1, rows) if turned else (0, 0, inner, 1)
    x = state.operand(node.inputs[0], Box((1, 1, rows, inner), x_strides))
    y = state.operand(node.outputs[0], nhwc((1, 1, rows, outputs)))
    if residual is not None:
        residual = replace(residual, layout=nhwc((1, 1, rows, outputs)))
    weight = call.inputs[1]
    moving, pack, reads = None, None, [x.value]
    if weight is not None and weight.data is not None:
        pack = _constant_weights(weight.data, w_layout, numbers.w_dtype, alpha)
    else:
        moving = state.operand(node.inputs[1], w_layout)
        reads.append(moving.value)
    if residual is not None:
        reads.append(residual.value)
    state.jobs.append(
        MatrixJob(
            state.node,
            tuple(reads),
            y.value,
            (Part(x, y, residual, moving),),
            Window(),
            0,
            numbers.w_dtype,
            pack,
            numbers.scales,
            numbers.fields,
            _packed(node, numbers),
        )
    )


def _constant_weights(data: Array, layout: Box, dtype: str, alpha: float) -> PackWeights:
    _, _, inner, outputs = layout.shape
    turned = layout.strides[2] == 1 and inner > 1 and outputs > 1
    matrix = data.reshape(outputs, inner).T if turned else data.reshape(inner, outputs)

    def pack(part: int, depth: slice, channels: slice) -> Array:
        cut = matrix[depth, channels]
        return _pack(cut * np.float32(alpha) if alpha != 1.0 else cut, dtype)

    return pack


MATRIX_OPS = (
    LoweringRow(("conv",), lower_conv),
    LoweringRow(("conv_transpose",), lower_conv_transpose),
    LoweringRow(("fully_connected",), lower_fully_connected),
    LoweringRow(("matmul",), lower_matmul),
    LoweringRow(("gemm",), lower_gemm, FLOATS),
)
