"""Concat of stored integers: an input of the output's scale is copied, another is requantised."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trireme.backend.kernel_table import STORED_8
from trireme.devices.cpu.kernels.int8.arithmetic import stored_reason
from trireme.devices.cpu.kernels.int8.elementwise import table_step
from trireme.devices.cpu.kernels.lowering import TABLE, Context, Rule, Step
from trireme.devices.cpu.kernels.movement.move import MOVES, copy_steps
from trireme.ir.graph import Graph, Node
from trireme.ir.op import call_of
from trireme.ops.integer import concat_tables


def _lower(context: Context, node: Node) -> Sequence[Step]:
    """Return one step an input: a copy, or a walk through a table where its scale is another."""
    graph = context.graph
    steps: list[Step] = []
    out = context.type(node.outputs[0]).dims
    axis = node.attrs["axis"] % len(out)
    count, stride = math.prod(out[:axis]), math.prod(out[axis:])
    moves, tables = MOVES["concat"](graph, node), concat_tables(call_of(graph, node))
    for move, table in zip(moves, tables, strict=True):
        length = math.prod(move.copy.shape[axis:])
        if not length * count:
            continue
        if table is None:
            steps += copy_steps(context, node, [move], MOVES["concat"])
        else:
            rows = (count, length, stride, move.copy.target_at)
            steps.append(table_step(context, node, move.source, table, rows))
    return steps


def _reason(graph: Graph, node: Node) -> str | None:
    return stored_reason(graph, node, lambda: concat_tables(call_of(graph, node)))


TABLE.add("concat", Rule(_reason, _lower), STORED_8)
