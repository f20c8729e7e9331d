"""Lower pools and reductions to pool jobs."""

from __future__ import annotations

import math
from typing import Any

from trireme.devices.npu.compiler.jobs import BoxedValue
from trireme.devices.npu.compiler.layout import nhwc
from trireme.devices.npu.compiler.lower import (
    LoweringRow,
    NpuLowering,
    constant_ints,
    function_name,
    is_integer,
)
from trireme.devices.npu.compiler.lower_matrix import window_of
from trireme.devices.npu.compiler.windows import Part, PoolJob
from trireme.devices.npu.stream.commands import Window
from trireme.ir.graph import Node, Rounding
from trireme.ir.op import Call
from trireme.ops import integer as q
from trireme.support.errors import GraphError


def lower_pool(state: NpuLowering, node: Node, call: Call) -> None:
    """Lower max_pool and average_pool."""
    if len(node.outputs) > 1:
        raise GraphError("the indices of max_pool are not supported")
    kernel = tuple(call.attrs["kernel"])
    window = window_of(call, kernel)
    x, y = state.operand(node.inputs[0]), state.operand(node.outputs[0])
    activation = str(call.attrs["activation"])
    fields: dict[str, Any] = {"kind": "max" if node.op == "max_pool" else "average"}
    if is_integer(call):
        params = q.pool_params(call)
        fields |= {"low": params.low, "high": params.high, "pad_value": params.zero}
        fields["rounding"] = params.rounding
    else:
        fields["function"] = function_name(activation)
    if call.attrs.get("count_include_pad"):
        if call.attrs["ceil_mode"]:
            raise GraphError("count_include_pad with ceil_mode is not supported")
        fields["count"] = math.prod(kernel)
    _pool(state, x, y, window, fields)


def _pool(
    state: NpuLowering, x: BoxedValue, y: BoxedValue, window: Window, fields: dict[str, Any]
) -> None:
    state.jobs.append(PoolJob(state.node, (x.value,), y.value, (Part(x, y),), window, 1, fields))


def lower_reduce(state: NpuLowering, node: Node, call: Call) -> None:
    """Lower a mean, sum or maximum over neighbouring axes: a pool with one window."""
    shape = call.type(0).dims
    given = constant_ints(call, 1)
    if not shape or (not given and call.attrs["noop_with_empty_axes"]):
        raise GraphError("a reduction over no axes is not supported")
    axes = sorted({axis % len(shape) for axis in given or range(len(shape))})
    if axes != list(range(axes[0], axes[-1] + 1)):
        raise GraphError(f"axes {axes} are not neighbours")
    outer = math.prod(shape[: axes[0]])
    inner = math.prod(shape[axes[-1] + 1 :])
    count = math.prod(shape[axes[0] : axes[-1] + 1])
    x = state.operand(node.inputs[0], nhwc((outer, count, 1, inner)))
    y = state.operand(node.outputs[0], nhwc((outer, 1, 1, inner)))
    fields: dict[str, Any] = {"kind": "max" if node.op == "reduce_max" else "mean"}
    if is_integer(call):
        fields |= _reduce_integers(node, call)
    elif node.op == "reduce_sum":
        fields |= {"kind": "average", "count": 1}
    _pool(state, x, y, Window(count, 1), fields)


def _reduce_integers(node: Node, call: Call) -> dict[str, Any]:
    if node.op == "reduce_max":
        q.same_quant(call)
        low, high = q.dtype_limits(call.outputs[0].dtype)
        return {"low": low, "high": high}
    params = (q.reduce_mean_params if node.op == "reduce_mean" else q.reduce_sum_params)(call)
    names = ("x_zero", "y_zero", "multiplier", "shift", "low", "high", "rounding")
    fields = {name: getattr(params, name) for name in names}
    return fields | ({"count": params.divisor} if params.rounding is Rounding.HALF_EVEN else {})


POOL_OPS = (
    LoweringRow(("max_pool", "average_pool"), lower_pool),
    LoweringRow(("reduce_mean", "reduce_sum", "reduce_max"), lower_reduce),
)
