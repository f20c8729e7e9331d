"""The step of a float32 product: its kernel, the cut for threads, and which form its weights have.

Comes in: the shape of a product (gemm.py) and its operands. Weights of a decoder that no cache
holds become compact (compact.py); others are packed in panels as wide as the cut says.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.compact import (
    LANES,
    compact_chunks,
    compact_kernel,
    compact_product,
    compacted,
    has_compact,
)
from trireme.devices.cpu.kernels.f32.gemm import (
    MatmulShape,
    cut_product,
    product_kernel,
)
from trireme.devices.cpu.kernels.lowering import (
    ELEMENTWISE,
    Context,
    Operand,
    Packed,
    Step,
    Temp,
)
from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import Array
from trireme.support.records import dataclass


@dataclass(frozen=True)
class Operands:
    """The operands of a product: values or constants; b says how to pack a constant."""

    a: Operand
    b: Operand | Callable[[int], Operand]
    extra: tuple[Operand, ...]
    c: int | Temp


_LEAST_BYTES = 1 << 16
"""Weights of a product that are worth being compact."""
_BEYOND_CACHES = 8 << 20
"""Weights of a graph that no core's caches hold from one run to the next."""

FAMILIES = {op: f"{op}_f32" for op in ("conv", "fully_connected", "matmul")}


def product_step(
    context: Context, node: Node, product: MatmulShape, operands: Operands, what: str
) -> Step:
    """Return the step that computes a product."""
    compact = None
    if product.size.rows == 1:
        compact = compact_weights(context, node, product, operands)
    if compact is not None:
        return _compact_step(context, node, product, operands, compact, what)
    cut = cut_product(context.isa, product, context.threads)
    code, chunks, local_bytes = context.kernel(product_kernel, product, cut, what)
    b = operands.b(cut.width) if callable(operands.b) else operands.b
    return Step(
        code,
        (operands.a, b, *operands.extra),
        (operands.c,),
        chunks,
        local_bytes,
        seconds=product_s(context.isa, product),
        nodes=(node.id,),
        columns=cut.groups,
        family=FAMILIES.get(what, ELEMENTWISE),
    )


def _compact_step(
    context: Context,
    node: Node,
    product: MatmulShape,
    operands: Operands,
    compact: Array,
    what: str,
) -> Step:
    """Return the step of a product of one row by compact weights."""
    seconds, known = product_s(context.isa, product), compact_product(product)
    group, chunks = compact_chunks(known, seconds)
    return Step(
        context.kernel(compact_kernel, known, group, what),
        (operands.a, compact, *operands.extra),
        (operands.c,),
        chunks,
        seconds=seconds,
        nodes=(node.id,),
        columns=chunks,
        family=FAMILIES.get(what, ELEMENTWISE),
    )


def compact_weights(
    context: Context, node: Node, product: MatmulShape, operands: Operands
) -> Array | None:
    """Return the compact B of a decoder's product; None where caches hold it as it is."""
    size = product.size
    if not (_grows(context.graph) and callable(operands.b) and has_compact(context.isa)):
        return None
    if size.batch != 1 or product.window or 4 * size.depth * size.columns < _LEAST_BYTES:
        return None
    if _weight_bytes(context.graph) < _BEYOND_CACHES:
        return None
    b = operands.b(-(-size.columns // LANES) * LANES)
    if not isinstance(b, Packed):
        return None

    def make() -> Array:
        rows = b.make().view(np.float32).reshape(size.depth, -1)[:, : size.columns]
        made = compacted(rows)
        return np.zeros(0, np.uint8) if made is None else made

    found = context.pack(node.used[1], f"compact {size.columns}", make)
    return found if found.size else None


def _weight_bytes(graph: Graph) -> int:
    """Return the bytes of the constants that a run reads whole; a gather reads a few rows."""
    return sum(
        value.type.nbytes
        for value in graph.values.values()
        if value.is_constant and any(user.op != "gather" for user in graph.users(value.id))
    )


def _grows(graph: Graph) -> bool:
    """Whether a graph appends to an input, as a decoder does, which asks for one row at a time."""
    return any(
        node.op in ("concat", "append_rows")
        and graph.producer(value) is None
        and not graph.values[value].is_constant
        for node in graph.nodes
        for value in node.used
    )


def product_s(isa: Isa, product: MatmulShape) -> float:
    """Estimate a product for one thread: multiply-adds, or reading B from a cache or memory."""
    size = product.size
    b_items = size.depth * size.columns * size.batch
    bandwidth = 8e10 if 4 * b_items <= isa.l2_bytes // 2 else 1.8e10
    return max(size.rows * b_items * 2.0 / (7e9 * isa.lanes), 4 * b_items / bandwidth)
