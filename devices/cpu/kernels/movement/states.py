"""States in memory of the device: `variable` is a copy from there, `assign` a copy to there.

compile/states.py says where a variable is the memory itself, without a copy.
"""

from __future__ import annotations

from trireme.devices.cpu.kernels.copies import Copy, copy_step, dense
from trireme.devices.cpu.kernels.lowering import (
    TABLE,
    Context,
    Operand,
    Rule,
    StateMemory,
    Step,
)
from trireme.devices.cpu.kernels.spans import Wiring
from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import itemsize


def state_reason(graph: Graph, node: Node) -> str | None:
    """Say why a state has no memory of the device."""
    type = graph.type(node.outputs[0])
    if not type.elements:
        return f"{node.op} has no native kernel for empty tensors"
    if type.dtype == "string" or itemsize(type.dtype) not in (1, 2, 4, 8):
        return f"{node.op} has no native kernel for {type.dtype}"
    return None


def _step(context: Context, node: Node, source: Operand, target: Operand) -> Step:
    type = context.type(node.outputs[0])
    copy = Copy(type.dims, dense(type.dims), dense(type.dims), itemsize(type.dtype))
    wiring = Wiring((source,), (target,), (node.id,))
    return copy_step(context, wiring, copy, node.op, lambda _: copy)


def _lower_variable(context: Context, node: Node) -> list[Step]:
    return [_step(context, node, StateMemory(node.attrs["state"]), node.outputs[0])]


def _lower_assign(context: Context, node: Node) -> list[Step]:
    value, made = context.operand(node.used[0]), node.outputs[0]
    steps = [_step(context, node, value, StateMemory(node.attrs["state"]))]
    if context.graph.users(made) or context.graph.is_output(made):
        steps.append(_step(context, node, value, made))
    return steps


TABLE.add("variable", Rule(state_reason, _lower_variable))
TABLE.add("assign", Rule(state_reason, _lower_assign))
