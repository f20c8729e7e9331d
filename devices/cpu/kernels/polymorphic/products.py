"""Products for every shape: fully_connected, matmul, gemm and conv in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32 import products as fixed
from trireme.devices.cpu.kernels.f32.compact import (
    CompactProduct,
    compact_chunks,
    compact_product,
    emit_compact,
    of_one_row,
)
from trireme.devices.cpu.kernels.f32.gemm import MatmulShape
from trireme.devices.cpu.kernels.f32.product_step import (
    FAMILIES,
    Operands,
    compact_weights,
    product_s,
)
from trireme.devices.cpu.kernels.lowering import ELEMENTWISE, Context, Operand
from trireme.devices.cpu.kernels.polymorphic.gemm import (
    CUT_WORDS,
    blocks_of,
    cut_for_all,
    sized_product_kernel,
)
from trireme.devices.cpu.kernels.polymorphic.sample import generalised, varies
from trireme.devices.cpu.kernels.polymorphic.step import (
    POLYMORPHIC,
    PolymorphicRule,
    PolymorphicStep,
    Sized,
    begin_sized,
)
from trireme.ir.graph import Graph, Node
from trireme.support.errors import CompileError
from trireme.support.records import dataclass

ProductOf = Callable[[Graph, Node], MatmulShape]


def sized_compact_kernel(isa: Isa, product: CompactProduct, group: int, what: str) -> Code:
    """Return the kernel of one row; operands: A, B, bias, residual, the compact B, C."""
    count = 4 + product.bias + product.residual
    fn, operands, chunk, _ = begin_sized(f"{what}_f32_compact", isa, count, 0)
    a, _, *extra, b, c = operands
    return emit_compact(fn, product, [a, b, *extra, c], chunk, group)


@dataclass(frozen=True, eq=False)
class ProductVariant:
    """Another way to compute a product at some shapes.

    reads: operands that the product does not read; those of all variants come before C
    words: that its code has
    size: what a shape decides; None where the product serves it
    """

    code: Code
    reads: tuple[Operand, ...]
    words: int
    size: Callable[[Graph, MatmulShape], Sized | None]


def product_steps(
    context: Context,
    node: Node,
    product_of: ProductOf,
    operands: Operands,
    what: str,
    others: Sequence[ProductVariant] = (),
) -> list[PolymorphicStep]:
    """Return the step of a product for every shape; others: variants, the first that can serves."""
    isa, product = context.isa, product_of(context.graph, node)
    cut = cut_for_all(isa, product)
    known, count, words = generalised(product, node.label)
    variants = others or _one_row(context, node, product, operands, what)
    more = [read for variant in variants for read in variant.reads]
    code = context.kernel(sized_product_kernel, known, cut, what, count, len(more))
    codes = (code, *(variant.code for variant in variants))
    room = max(count + CUT_WORDS, *(variant.words for variant in variants), 0)

    def size(graph: Graph) -> Sized:
        one = product_of(graph, node)
        if 0 in (one.size.batch, one.size.rows, one.size.columns, one.size.depth):
            raise CompileError(f"{node.label} has no elements", fix="compile this shape by itself")
        for k, variant in enumerate(variants, 1):
            found = variant.size(graph, one)
            if found is not None:
                return replace(found, words=_filled(found.words, room), variant=k)
        blocks = blocks_of(isa, one, cut)
        local = 4 * cut.stride * min(blocks.block_rows, one.size.rows) if one.window else 0
        return Sized(
            _filled((*words(one), *blocks.words), room),
            one.size.batch * blocks.blocks * blocks.groups,
            product_s(isa, one),
            local,
            blocks.groups,
        )

    b = operands.b(cut.vectors * isa.lanes) if callable(operands.b) else operands.b
    reads = (operands.a, b, *operands.extra, *more)
    family = FAMILIES.get(what, ELEMENTWISE)
    return [PolymorphicStep(codes, reads, (operands.c,), size, (node.id,), family)]


def _filled(words: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return words and zeros: the codes of a step have equally many."""
    return (*words, *(0,) * (count - len(words)))


def _one_row(
    context: Context, node: Node, product: MatmulShape, operands: Operands, what: str
) -> list[ProductVariant]:
    """Return the variant of one row with compact weights, where there are such."""
    if not varies(product.size.rows):
        return []
    compact = compact_weights(context, node, product, operands)
    if compact is None:
        return []
    isa, row = context.isa, compact_product(product)
    group, chunks = compact_chunks(row, product_s(isa, of_one_row(product)))

    def size(_: Graph, one: MatmulShape) -> Sized | None:
        if one.size.rows != 1 or not chunks:
            return None
        return Sized((), chunks, product_s(isa, one), columns=chunks)

    code = context.kernel(sized_compact_kernel, row, group, what)
    return [ProductVariant(code, (compact,), 0, size)]


def _rule(
    what: str,
    reason: Callable[[Graph, Node], str | None],
    product_of: ProductOf,
    operands_of: Callable[[Context, Node], Operands],
) -> PolymorphicRule:
    def lower(context: Context, node: Node) -> Sequence[PolymorphicStep]:
        return product_steps(context, node, product_of, operands_of(context, node), what)

    return PolymorphicRule(reason, lower)


POLYMORPHIC.add(
    "fully_connected",
    _rule(
        "fully_connected",
        fixed.fully_connected_reason,
        fixed.fully_connected_product,
        fixed.fully_connected_operands,
    ),
    ["float32"],
)


def _lower_matmul(context: Context, node: Node) -> Sequence[PolymorphicStep]:
    """Lower a matmul; a B that becomes constant in a shape is not packed then."""
    is_packed = context.graph.values[node.used[1]].is_constant
    product_of = partial(fixed.matmul_product, is_packed=is_packed)
    operands = fixed.matmul_operands(context, node)
    return product_steps(context, node, product_of, operands, "matmul")


POLYMORPHIC.add("matmul", PolymorphicRule(fixed.matmul_reason, _lower_matmul), ["float32"])
POLYMORPHIC.add(
    "gemm",
    _rule("gemm", fixed.gemm_reason, fixed.gemm_product, fixed.gemm_operands),
    ["float32"],
)
