"""The step of a float32 product: its kernel, the cut for threads, and which form its weights have.

Comes in: what gives the shape of a product (gemm.py), and its operands. Weights of a decoder that
no cache holds become compact (compact.py). Others are packed in panels as wide as the cut says.
Where sizes vary, one cut serves every shape, and variants serve some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.codegen.value import Word
from trireme.devices.cpu.kernels.f32.compact import (
    LANES,
    compact_chunks,
    compact_kernel,
    compact_product,
    compacted,
    has_compact,
    of_one_row,
)
from trireme.devices.cpu.kernels.f32.gemm import product_kernel
from trireme.devices.cpu.kernels.f32.product_shape import (
    CUT_WORDS,
    Blocks,
    MatmulShape,
    blocks_of,
    cut_of,
    local_bytes,
)
from trireme.devices.cpu.kernels.lowering import (
    ELEMENTWISE,
    Context,
    Operand,
    Packed,
    Sized,
    Step,
    Temp,
    open_step,
    varies,
)
from trireme.devices.cpu.kernels.sample import generalised
from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import Array
from trireme.support.errors import CompileError
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

_FAMILIES = {op: f"{op}_f32" for op in ("conv", "fully_connected", "matmul")}
ProductOf = Callable[[Graph, Node], MatmulShape]


@dataclass(frozen=True, eq=False)
class ProductVariant:
    """Another way to compute a product at some shapes.

    reads: operands that the product does not read; those of all variants come before C
    words: that its code reads
    size: what a shape decides; None where the product serves it
    """

    code: Code
    reads: tuple[Operand, ...]
    words: int
    size: Callable[[Graph, MatmulShape], Sized | None]


def product_step(
    context: Context,
    node: Node,
    product_of: ProductOf,
    operands: Operands,
    what: str,
    others: Sequence[ProductVariant] = (),
) -> Step:
    """Return the step that computes a product.

    others: variants where sizes vary, of which the first that can serves a shape
    """
    if context.is_open:
        return _open_step(context, node, product_of, operands, what, others)
    return _fixed_step(context, node, product_of(context.graph, node), operands, what)


def _fixed_step(
    context: Context, node: Node, product: MatmulShape, operands: Operands, what: str
) -> Step:
    compact = None
    if product.size.rows == 1:
        compact = _compact_weights(context, node, product, operands)
    if compact is not None:
        return _compact_step(context, node, product, operands, compact, what)
    cut = cut_of(context.isa, product)
    blocks = blocks_of(context.isa, product, cut, context.threads, False)
    b = operands.b(cut.vectors * context.isa.lanes) if callable(operands.b) else operands.b
    return Step(
        context.kernel(product_kernel, product, cut, blocks, what),
        (operands.a, b, *operands.extra),
        (operands.c,),
        product.size.batch * blocks.blocks * blocks.groups,
        local_bytes(cut, blocks, product),
        seconds=_product_s(context.isa, product),
        nodes=(node.id,),
        columns=blocks.groups,
        family=_FAMILIES.get(what, ELEMENTWISE),
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
    seconds, known = _product_s(context.isa, product), compact_product(product)
    group, chunks = compact_chunks(known, seconds)
    return Step(
        context.kernel(compact_kernel, known, group, what),
        (operands.a, compact, *operands.extra),
        (operands.c,),
        chunks,
        seconds=seconds,
        nodes=(node.id,),
        columns=chunks,
        family=_FAMILIES.get(what, ELEMENTWISE),
    )


def _open_step(
    context: Context,
    node: Node,
    product_of: ProductOf,
    operands: Operands,
    what: str,
    others: Sequence[ProductVariant],
) -> Step:
    isa, product = context.isa, product_of(context.graph, node)
    cut = cut_of(isa, product)
    known, count, words = generalised(product, node.label)
    at: list[Any] = [Word(count + k) for k in range(CUT_WORDS)]
    variants = others or _one_row(context, node, product, operands, what)
    more = [read for variant in variants for read in variant.reads]
    cut_at, all_words = Blocks(*at), count + CUT_WORDS
    code = context.kernel(product_kernel, known, cut, cut_at, what, all_words, len(more))
    codes = (code, *(variant.code for variant in variants))
    room = max(all_words, *(variant.words for variant in variants), 0)

    def size(graph: Graph) -> Sized:
        one = product_of(graph, node)
        if 0 in (one.size.batch, one.size.rows, one.size.columns, one.size.depth):
            raise CompileError(f"{node.label} has no elements", fix="compile this shape by itself")
        for k, variant in enumerate(variants, 1):
            found = variant.size(graph, one)
            if found is not None:
                return replace(found, words=_filled(found.words, room), variant=k)
        blocks = blocks_of(isa, one, cut, context.threads, True)
        return Sized(
            _filled((*words(one), *blocks), room),
            one.size.batch * blocks.blocks * blocks.groups,
            _product_s(isa, one),
            local_bytes(cut, blocks, one),
            blocks.groups,
        )

    b = operands.b(cut.vectors * isa.lanes) if callable(operands.b) else operands.b
    reads = (operands.a, b, *operands.extra, *more)
    family = _FAMILIES.get(what, ELEMENTWISE)
    return open_step(codes, reads, (operands.c,), size, (node.id,), family)


def _filled(words: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return words and zeros: the codes of a step have equally many."""
    return (*words, *(0,) * (count - len(words)))


def _one_row(
    context: Context, node: Node, product: MatmulShape, operands: Operands, what: str
) -> list[ProductVariant]:
    """Return the variant of one row with compact weights, where there are such."""
    if not varies(product.size.rows):
        return []
    compact = _compact_weights(context, node, product, operands)
    if compact is None:
        return []
    isa, row = context.isa, compact_product(product)
    group, chunks = compact_chunks(row, _product_s(isa, of_one_row(product)))

    def size(_: Graph, one: MatmulShape) -> Sized | None:
        if one.size.rows != 1 or not chunks:
            return None
        return Sized((), chunks, _product_s(isa, one), columns=chunks)

    code = context.kernel(compact_kernel, row, group, what, True)
    return [ProductVariant(code, (compact,), 0, size)]


def _compact_weights(
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


def _product_s(isa: Isa, product: MatmulShape) -> float:
    """Estimate a product for one thread: multiply-adds, or reading B from a cache or memory."""
    size = product.size
    b_items = size.depth * size.columns * size.batch
    bandwidth = 8e10 if 4 * b_items <= isa.l2_bytes // 2 else 1.8e10
    return max(size.rows * b_items * 2.0 / (7e9 * isa.lanes), 4 * b_items / bandwidth)
