"""Kernels by op: each has a rule with the reason for a refusal, and a function that emits its
steps.

The device calls only `reason` and `lower`. Elementwise nodes are fused into the product or the
elementwise node before them when the value between has no other reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from trireme.backend.kernel_table import ANY, PLAIN, QUANTISED, STORED_8, Form, KernelTable
from trireme.backend.refusal import host_reason
from trireme.devices.opencl.kernels import (
    convolution,
    elementwise,
    epilogue,
    expressions,
    gather,
    integer,
    movement,
    pooling,
    products,
    reductions,
    resize,
    rows,
)
from trireme.devices.opencl.lowering import C_TYPES, Lowering
from trireme.ir.graph import Graph, Node
from trireme.ir.interpreter import is_quantized
from trireme.ir.op import get_op, ops_with
from trireme.support.errors import TriremeError

_MOST_ELEMENTS = 2**31 - 1
_MOST_OPERANDS = 8


@dataclass(frozen=True)
class Kernel:
    """How an op runs.

    refuse: returns a sentence or None
    lower: emits the steps of a node and of the elementwise nodes that follow it in a chain
    fuses: whether a chain is allowed
    """

    refuse: Callable[[Graph, Node], str | None]
    lower: Callable[[Lowering, list[Node]], None]
    fuses: bool = False


def _accept(graph: Graph, node: Node) -> str | None:
    """Refuse no node; the table has its own refusals."""
    return None


_ELEMENTWISE = Kernel(expressions.refusal, elementwise.lower_chain, fuses=True)
_POOL = Kernel(pooling.refuse_pool, pooling.lower_pool, fuses=True)
_STORED_POOL = Kernel(pooling.refuse_quantized_pool, pooling.lower_quantized_pool)
_SOFTMAX = Kernel(_accept, rows.lower_softmax)
_NORMALIZATION = Kernel(rows.refuse_normalization, rows.lower_normalization)
_GATHER = Kernel(gather.refuse_gather, gather.lower_gather)
_GATHER_ND = Kernel(gather.refuse_gather_nd, gather.lower_gather_nd)
_MOVE = Kernel(movement.refuse_move, movement.lower_move)
_STORED_MOVE = Kernel(integer.refuse_stored(movement.refuse_move), movement.lower_move)
_STORED = Kernel(integer.refuse_stored(expressions.refusal), elementwise.lower_chain)
_LINEAR = Kernel(integer.refuse_linear, integer.lower_linear)
_REDUCTION = Kernel(reductions.refuse_reduction, reductions.lower_reduction)
_STORED_REDUCTION = Kernel(
    reductions.refuse_quantized_reduction, reductions.lower_quantized_reduction
)
_Q, _F = (QUANTISED,), ("float32",)
_TABLES = ops_with(lambda op: op.integer_form == "table")
_LINES: tuple[tuple[Iterable[str], Kernel, Iterable[str | Form], str], ...] = (
    (("conv",), Kernel(convolution.refuse_conv, convolution.lower_conv, fuses=True), _F, "NHWC"),
    (
        ("fully_connected",),
        Kernel(products.refuse_fully_connected, products.lower_fully_connected, fuses=True),
        _F,
        ANY,
    ),
    (("matmul",), Kernel(products.refuse_floats, products.lower_matmul, fuses=True), _F, ANY),
    (("max_pool", "average_pool"), _POOL, _F, "NHWC"),
    (("softmax", "log_softmax"), _SOFTMAX, _F, ANY),
    (("layer_normalization", "rms_normalization"), _NORMALIZATION, _F, ANY),
    (("concat",), Kernel(movement.refuse_concat, movement.lower_concat), (PLAIN,), ANY),
    (reductions.REDUCTIONS, _REDUCTION, _F, ANY),
    (("resize",), Kernel(resize.refuse_resize, resize.lower_resize), (PLAIN,), ANY),
    (movement.MOVES, _MOVE, (PLAIN,), ANY),
    (("gather",), _GATHER, (PLAIN,), ANY),
    (("gather_nd",), _GATHER_ND, (PLAIN,), ANY),
    (_TABLES, Kernel(integer.refuse_table, integer.lower_table), STORED_8, ANY),
    (("conv",), _LINEAR, STORED_8, "NHWC"),
    (("fully_connected", "matmul"), _LINEAR, STORED_8, ANY),
    (
        ("add", "sub", "mul", "prelu"),
        Kernel(integer.refuse_binary, integer.lower_binary),
        STORED_8,
        ANY,
    ),
    (("max", "min"), _STORED, _Q, ANY),
    (("max_pool", "average_pool"), _STORED_POOL, STORED_8, "NHWC"),
    (reductions.QUANTIZED, _STORED_REDUCTION, _Q, ANY),
    (movement.MOVES, _STORED_MOVE, _Q, ANY),
    (("resize",), Kernel(resize.refuse_quantized_resize, resize.lower_quantized_resize), _Q, ANY),
    (("gather",), _GATHER, _Q, ANY),
    (("gather_nd",), _GATHER_ND, _Q, ANY),
    (("concat",), Kernel(integer.refuse_concat, movement.lower_quantized_concat), _Q, ANY),
    (("softmax",), Kernel(integer.refuse_softmax, integer.lower_softmax), STORED_8, ANY),
    (("quantize",), Kernel(integer.refuse_quantize, integer.lower_quantize), STORED_8, ANY),
    (("dequantize",), Kernel(integer.refuse_dequantize, integer.lower_dequantize), _Q, ANY),
)


def _filled() -> KernelTable[Kernel]:
    table: KernelTable[Kernel] = KernelTable("opencl")
    for op, row in expressions.ROWS.items():
        table.add(op, _ELEMENTWISE, row.dtypes)
    for ops, kernel, forms, layout in _LINES:
        table.add(ops, kernel, forms, layout)
    return table


TABLE = _filled()


def is_alias(node: Node) -> bool:
    """Whether a node's output is its input's bytes: it has no kernel and no copy."""
    return get_op(node.op).alias


def reason(graph: Graph, node: Node) -> str | None:
    """Return why the device cannot run a node, or None when it can."""
    if found := host_reason(node, "opencl"):
        return found
    for value in (*node.used, *node.outputs):
        type = graph.type(value)
        if not type.is_static:
            return f"the shape of {type} is not known"
        if type.elements > _MOST_ELEMENTS:
            return f"{type} has over 2^31 elements"
        if type.dtype not in C_TYPES:
            return f"no kernel for {type.dtype}"
    if is_alias(node):
        return None
    kernel = TABLE.find(graph, node)
    if kernel is None:
        return TABLE.miss(graph, node)
    try:
        return kernel.refuse(graph, node)
    except TriremeError as error:
        return error.summary


def lower(low: Lowering) -> Lowering:
    """Emit the steps of every node of the lowering's graph and return it."""
    graph = low.graph
    _alias(low)
    chains = _chains(graph)
    for node in graph.nodes:
        if is_alias(node):
            low.kernels.setdefault(node.id, "alias")
            _copy_unplaced(low, node)
        elif node.id in chains:
            chain = chains[node.id]
            if not any(graph.type(value).elements for value in node.outputs):
                low.kernels.update(dict.fromkeys((each.id for each in chain), "nothing"))
                continue
            kernel = TABLE.find(graph, chain[0])
            if kernel is None:
                kernel = _ELEMENTWISE
            kernel.lower(low, chain)
    return low


def _alias(low: Lowering) -> None:
    """Record which values share bytes: an alias and its source, or the source and an output."""
    graph = low.graph
    fixed = {*graph.inputs, *graph.outputs}
    for node in reversed(graph.nodes):
        if not is_alias(node):
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
        if graph.is_output(target) and free and not graph.values[source].is_constant:
            low.aliases[source] = target


def _copy_unplaced(low: Lowering, node: Node) -> None:
    """Copy an alias that cannot share bytes: of an input, a constant or another output.

    The copy is emitted at the node's place, because later nodes of the region read the output.
    """
    if node.inputs[0] is None:
        return
    out = node.outputs[0]
    source, target = low.ref(node.inputs[0]), low.ref(out)
    if source != target:
        elementwise.copy_bytes(low, [node], source, target, low.graph.type(out).nbytes)


def _chains(graph: Graph) -> dict[int, list[Node]]:
    """Return the nodes of each kernel by the id of the last: the place where it is emitted."""
    chains: dict[int, list[Node]] = {}
    taken: set[int] = set()
    for node in graph.nodes:
        if node.id in taken or is_alias(node):
            continue
        chain = [node]
        kernel = TABLE.find(graph, node)
        while kernel is not None and kernel.fuses and (after := _follower(graph, chain)):
            if after.id in taken:  # by the chain that its other operand ends
                break
            chain.append(after)
        taken.update(each.id for each in chain)
        chains[chain[-1].id] = chain
    return chains


def _follower(graph: Graph, chain: list[Node]) -> Node | None:
    """Return the elementwise node that can join the chain: the only reader, of the same shape."""
    out = chain[-1].outputs[0]
    users = graph.users(out)
    if graph.is_output(out) or len(users) != 1 or len(chain[-1].outputs) != 1:
        return None
    after = users[0]
    if after.op not in expressions.ROWS or is_alias(after) or is_quantized(graph, after):
        return None
    same = graph.type(after.outputs[0]).dims == graph.type(out).dims
    operands = {v for node in (*chain, after) for v in node.used}
    floats = all(graph.type(v).dtype == "float32" for v in (*after.used, out, *after.outputs))
    if not (same and floats and len(operands) <= _MOST_OPERANDS):
        return None
    if chain[0].op not in expressions.ROWS and not epilogue.fits(graph, chain[0], after):
        return None
    return after
