"""conv_transpose for every shape: its plain convolutions as products, then the dealing out."""

from __future__ import annotations

from collections.abc import Sequence

from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.conv_transpose import (
    axes_for,
    blank_pixel,
    is_depthwise,
    run_operands,
    run_product,
    transposed_reason,
)
from trireme.devices.cpu.kernels.f32.dealing import (
    Dealing,
    dealing_name,
    dealing_work,
    emit_dealing,
)
from trireme.devices.cpu.kernels.f32.gemm import MatmulShape
from trireme.devices.cpu.kernels.f32.product_step import product_step
from trireme.devices.cpu.kernels.lowering import Context, Operand, finish, only
from trireme.devices.cpu.kernels.phases import pairs
from trireme.devices.cpu.kernels.polymorphic.sample import deal_evenly, generalised, varies
from trireme.devices.cpu.kernels.polymorphic.step import (
    POLYMORPHIC,
    PolymorphicRule,
    PolymorphicStep,
    Sized,
    SizedTemp,
    begin_sized,
    dims_of,
)
from trireme.ir.graph import Graph, Node

_USUAL_BYTES = 1 << 16
"""Bytes of a result, where memory is shared by results of unlike sizes."""


def _product_steps(
    context: Context, node: Node, number: int, target: SizedTemp
) -> list[PolymorphicStep]:
    """Return the step of a pair of runs."""

    def product_of(graph: Graph, node: Node) -> MatmulShape:
        axes = axes_for(graph, node)
        return run_product(graph, node, axes, pairs(axes)[number], gathers=True)

    runs = pairs(axes_for(context.graph, node))[number]
    operands = run_operands(context, node, runs, target)
    return only(PolymorphicStep, [product_step(context, node, product_of, operands, "conv")])


def _result(context: Context, node: Node, number: int) -> SizedTemp:
    """Return the memory of the results of a pair of runs."""

    def bytes_at(graph: Graph) -> int:
        axes = axes_for(graph, node)
        size = run_product(graph, node, axes, pairs(axes)[number]).size
        return 4 * size.rows * size.columns * size.batch

    return SizedTemp(f"%{node.outputs[0]} phases {number}", _USUAL_BYTES, bytes_at)


def sized_dealing_kernel(isa: Isa, dealing: Dealing, words: int) -> Code:
    """Return the kernel of the dealing out; the last words are a chunk's rows, and all."""
    operands = len(pairs(dealing.axes)) + 2
    fn, pointers, chunk, _ = begin_sized(dealing_name(dealing), isa, operands, words + 2)
    size, rows = fn.words[words:]
    first = chunk * size
    span = first, fn.minimum(first + size, rows)
    emit_dealing(fn, fn.known(dealing), pointers, span)
    return finish(fn)


def _lower(context: Context, node: Node) -> Sequence[PolymorphicStep]:
    count = len(pairs(axes_for(context.graph, node)))
    results = [_result(context, node, number) for number in range(count)]
    steps = [
        step
        for k, result in enumerate(results)
        for step in _product_steps(context, node, k, result)
    ]

    def dealing_of(graph: Graph) -> Dealing:
        y, axes = dims_of(graph, node.outputs[0]), axes_for(graph, node)
        return Dealing(y[0], tuple(axis.places for axis in axes), y[-1], 4)

    known, words_count, words = generalised(dealing_of(context.graph), node.label)
    code = context.kernel(sized_dealing_kernel, known, words_count)

    def size(graph: Graph) -> Sized:
        dealing = dealing_of(graph)
        rows, seconds = dealing_work(dealing)
        part, chunks = deal_evenly(rows, seconds)
        return Sized((*words(dealing), part, rows), chunks, seconds)

    reads: tuple[Operand, ...] = (*results, blank_pixel(context, node))
    last = PolymorphicStep((code,), reads, node.outputs, size, (node.id,), "copy")
    return [*steps, last]


def _reason(graph: Graph, node: Node) -> str | None:
    x = dims_of(graph, node.used[0])
    if varies(x[-1]) or not any(map(varies, x[1:-1])):
        return "conv_transpose has kernels for every shape where height or width varies"
    if is_depthwise(graph, node):
        return "conv_transpose has no kernel for every shape where each channel is alone"
    return transposed_reason(graph, node)


POLYMORPHIC.add("conv_transpose", PolymorphicRule(_reason, _lower), ["float32"], "NHWC")
