"""Products for every shape: fully_connected, matmul, gemm and conv in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from trireme.devices.cpu.kernels.f32 import products as fixed
from trireme.devices.cpu.kernels.f32.gemm import MatmulShape
from trireme.devices.cpu.kernels.lowering import ELEMENTWISE, Context
from trireme.devices.cpu.kernels.polymorphic.gemm import (
    blocks_of,
    cut_for_all,
    sized_product_kernel,
)
from trireme.devices.cpu.kernels.polymorphic.sample import generalised
from trireme.devices.cpu.kernels.polymorphic.step import (
    POLYMORPHIC,
    PolymorphicRule,
    PolymorphicStep,
    Sized,
)
from trireme.ir.graph import Graph, Node

ProductOf = Callable[[Graph, Node], MatmulShape]


def product_steps(
    context: Context, node: Node, product_of: ProductOf, operands: fixed.Operands, what: str
) -> list[PolymorphicStep]:
    """Return the step of a product for every shape."""
    isa, product = context.isa, product_of(context.graph, node)
    cut = cut_for_all(isa, product)
    known, count, words = generalised(product, node.label)
    code = context.kernel(sized_product_kernel, known, cut, what, count)

    def size(graph: Graph) -> Sized:
        one = product_of(graph, node)
        blocks = blocks_of(isa, one, cut)
        local = 4 * cut.stride * min(blocks.block_rows, one.size.rows) if one.window else 0
        return Sized(
            (*words(one), *blocks.words),
            one.size.batch * blocks.blocks * blocks.groups,
            fixed.product_s(isa, one),
            local,
            blocks.groups,
        )

    b = operands.b(cut.vectors * isa.lanes) if callable(operands.b) else operands.b
    reads = (operands.a, b, *operands.extra)
    family = fixed.FAMILIES.get(what, ELEMENTWISE)
    return [PolymorphicStep((code,), reads, (operands.c,), size, (node.id,), family)]


def _rule(
    what: str,
    reason: Callable[[Graph, Node], str | None],
    product_of: ProductOf,
    operands_of: Callable[[Context, Node], fixed.Operands],
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
