"""Kernels by op: for each a rule that says why not, and a function that writes its steps.

`reason` and `lower` are all the device sees. Elementwise nodes are fused into the product or the
elementwise node before them when nobody else reads what lies between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trireme.devices.opencl.kernels import (
    convolution,
    elementwise,
    epilogue,
    expressions,
    integer,
    movement,
    pooling,
    products,
    reductions,
    resize,
    rows,
)
from trireme.devices.opencl.lowering import C_TYPES, Lowering
from trireme.errors import TriremeError
from trireme.graph import Graph, Node
from trireme.interpret import is_quantized
from trireme.quantize import TABLE_OPS

_MOST_ELEMENTS = 2**31 - 1
_MOST_OPERANDS = 8


@dataclass(frozen=True)
class Kernel:
    """How an op runs: `refuse` gives a sentence or None; `lower` emits the steps of a node and the
    elementwise nodes that follow it in a chain, of which `fuses` allows any.
    """

    refuse: Callable[[Graph, Node], str | None]
    lower: Callable[[Lowering, list[Node]], None]
    fuses: bool = False


_ELEMENTWISE = Kernel(expressions.refusal, elementwise.lower_chain, fuses=True)
_REDUCTION = Kernel(reductions.refuse_reduction, reductions.lower_reduction)
FLOAT: Mapping[str, Kernel] = dict.fromkeys(expressions.ROWS, _ELEMENTWISE) | {
    "conv": Kernel(convolution.refuse_conv, convolution.lower_conv, fuses=True),
    "fully_connected": Kernel(
        products.refuse_fully_connected, products.lower_fully_connected, fuses=True
    ),
    "matmul": Kernel(products.refuse_floats, products.lower_matmul, fuses=True),
    "max_pool": Kernel(pooling.refuse_pool, pooling.lower_pool, fuses=True),
    "average_pool": Kernel(pooling.refuse_pool, pooling.lower_pool, fuses=True),
    "softmax": Kernel(rows.refuse_floats_first, rows.lower_softmax),
    "log_softmax": Kernel(rows.refuse_floats_first, rows.lower_softmax),
    "layer_normalization": Kernel(rows.refuse_normalization, rows.lower_normalization),
    "rms_normalization": Kernel(rows.refuse_normalization, rows.lower_normalization),
    "concat": Kernel(movement.refuse_concat, movement.lower_concat),
    **dict.fromkeys(reductions.REDUCTIONS, _REDUCTION),
    **dict.fromkeys(movement.MOVES, Kernel(movement.refuse_move, movement.lower_move)),
    "resize": Kernel(resize.refuse_resize, resize.lower_resize),
    "gather": Kernel(movement.refuse_gather, movement.lower_gather),
}
_LINEAR = Kernel(integer.refuse_linear, integer.lower_linear)
_BINARY = Kernel(integer.refuse_binary, integer.lower_binary)
_STORED = Kernel(integer.refuse_stored(expressions.refusal), elementwise.lower_chain)
_POOL = Kernel(pooling.refuse_quantized_pool, pooling.lower_quantized_pool)
_MOVE = Kernel(integer.refuse_stored(movement.refuse_move), movement.lower_move)
_QUANTIZED_REDUCTION = Kernel(
    reductions.refuse_quantized_reduction, reductions.lower_quantized_reduction
)
QUANTIZED: Mapping[str, Kernel] = {
    **dict.fromkeys(TABLE_OPS, Kernel(integer.refuse_table, integer.lower_table)),
    **dict.fromkeys(("conv", "fully_connected", "matmul"), _LINEAR),
    **dict.fromkeys(("add", "sub", "mul", "prelu"), _BINARY),
    **dict.fromkeys(("max", "min"), _STORED),
    **dict.fromkeys(("max_pool", "average_pool"), _POOL),
    **dict.fromkeys(reductions.QUANTIZED, _QUANTIZED_REDUCTION),
    **dict.fromkeys(movement.MOVES, _MOVE),
    "resize": Kernel(resize.refuse_quantized_resize, resize.lower_quantized_resize),
    "gather": Kernel(movement.refuse_gather, movement.lower_gather),
    "concat": Kernel(integer.refuse_concat, movement.lower_quantized_concat),
    "softmax": Kernel(integer.refuse_softmax, integer.lower_softmax),
    "quantize": Kernel(integer.refuse_quantize, integer.lower_quantize),
    "dequantize": Kernel(integer.refuse_dequantize, integer.lower_dequantize),
}
ALIASES = ("reshape", "squeeze", "unsqueeze", "flatten", "identity")
"""Ops whose output is the input's bytes under another shape: no kernel, no copy."""


def reason(graph: Graph, node: Node) -> str | None:
    """Return why the device cannot run a node, or None when it can."""
    for value in (*node.used, *node.outputs):
        type = graph.type(value)
        if not type.is_static:
            return f"the shape of {type} is not known"
        if type.elements > _MOST_ELEMENTS:
            return f"{type} has over 2^31 elements"
        if type.dtype not in C_TYPES:
            return f"no kernel for {type.dtype}"
    if node.op in ALIASES:
        return None
    kernel = _kernel(graph, node)
    if kernel is None:
        return f"no {'quantised ' if is_quantized(graph, node) else ''}kernel for {node.op}"
    try:
        return kernel.refuse(graph, node)
    except TriremeError as error:
        return error.summary


def _kernel(graph: Graph, node: Node) -> Kernel | None:
    return (QUANTIZED if is_quantized(graph, node) else FLOAT).get(node.op)


def lower(low: Lowering) -> Lowering:
    """Emit the steps of every node of the lowering's graph and return it."""
    graph = low.graph
    _alias(low)
    chains = _chains(graph)
    for node in graph.nodes:
        if node.op in ALIASES:
            low.kernels.setdefault(node.id, "alias")
        elif node.id in chains:
            chain = chains[node.id]
            kernel = _kernel(graph, chain[0])
            if kernel is None:
                kernel = _ELEMENTWISE
            kernel.lower(low, chain)
    _copy_outputs(low)
    return low


def _alias(low: Lowering) -> None:
    """Note which values share bytes: an alias and its source, or the source and a graph output."""
    graph = low.graph
    fixed = {*graph.inputs, *graph.outputs}
    for node in reversed(graph.nodes):
        if node.op not in ALIASES:
            continue
        source, out = node.inputs[0], node.outputs[0]
        if source is None:
            continue
        if out not in fixed and out not in low.aliases:
            low.aliases[out] = source
            continue
        target = out
        while target in low.aliases:
            target = low.aliases[target]
        free = source not in fixed and source not in low.aliases
        if target in graph.outputs and free and not graph.values[source].is_constant:
            low.aliases[source] = target


def _copy_outputs(low: Lowering) -> None:
    """Copy what an alias could not place: an input, a constant or another output."""
    graph = low.graph
    for node in graph.nodes:
        if node.op not in ALIASES or node.inputs[0] is None:
            continue
        out = node.outputs[0]
        source, target = low.ref(node.inputs[0]), low.ref(out)
        if source != target:
            elementwise.copy_bytes(low, [node], source, target, graph.type(out).nbytes)


def _chains(graph: Graph) -> dict[int, list[Node]]:
    """Return the nodes of each kernel by the id of the last: the place where it is emitted."""
    chains: dict[int, list[Node]] = {}
    taken: set[int] = set()
    for node in graph.nodes:
        if node.id in taken or node.op in ALIASES:
            continue
        chain = [node]
        kernel = _kernel(graph, node)
        while kernel is not None and kernel.fuses and (after := _follower(graph, chain)):
            chain.append(after)
        taken.update(each.id for each in chain)
        chains[chain[-1].id] = chain
    return chains


def _follower(graph: Graph, chain: list[Node]) -> Node | None:
    """Return the elementwise node that can join the chain: the only reader, of the same shape."""
    out = chain[-1].outputs[0]
    users = graph.users(out)
    if out in graph.outputs or len(users) != 1 or len(chain[-1].outputs) != 1:
        return None
    after = users[0]
    if after.op not in expressions.ROWS or after.op in ALIASES or is_quantized(graph, after):
        return None
    same = graph.type(after.outputs[0]).dims == graph.type(out).dims
    operands = {v for node in (*chain, after) for v in node.used}
    floats = all(graph.type(v).dtype == "float32" for v in (*after.used, out, *after.outputs))
    if not (same and floats and len(operands) <= _MOST_OPERANDS):
        return None
    if chain[0].op not in expressions.ROWS and not epilogue.fits(graph, chain[0], after):
        return None
    return after
