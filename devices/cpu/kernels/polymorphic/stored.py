"""Floats to stored bytes and back, for every shape."""

from __future__ import annotations

from collections.abc import Sequence

from trireme.backend.kernel_table import STORED_8
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.int8.conversions import (
    FLAT_S,
    Requantised,
    conversion_of,
    dequantize_reason,
    quantize_reason,
)
from trireme.devices.cpu.kernels.lowering import ELEMENTWISE_Q8, Context, finish
from trireme.devices.cpu.kernels.polymorphic.sample import deal_evenly
from trireme.devices.cpu.kernels.polymorphic.step import (
    POLYMORPHIC,
    PolymorphicRule,
    PolymorphicStep,
    Sized,
    begin_sized,
)
from trireme.ir.graph import Graph, Node


def sized_conversion(isa: Isa, conversion: Requantised) -> Code:
    """Return the kernel of all elements; words: elements, vectors of a chunk."""
    fn, (x, y), chunk, _ = begin_sized(conversion.name, isa, 2, 2)
    elements, size = fn.words
    first = chunk * size * isa.lanes
    last = fn.as_value("i64", fn.minimum(first + size * isa.lanes, elements))
    rest = fn.integer("urem", last - first, isa.lanes)
    whole = last - rest
    for i in fn.range(first, whole, isa.lanes):
        conversion.emit(fn, x, y, i, isa.lanes)
    for i in fn.range(whole, last):
        conversion.emit(fn, x, y, i, 1)
    return finish(fn)


def _lower(context: Context, node: Node) -> Sequence[PolymorphicStep]:
    code = context.kernel(sized_conversion, conversion_of(context.graph, node))
    (output,), lanes = node.outputs, context.isa.lanes

    def size(graph: Graph) -> Sized:
        elements = graph.values[output].type.elements
        part, chunks = deal_evenly(-(-elements // lanes), elements * FLAT_S)
        return Sized((elements, part), chunks, elements * FLAT_S)

    reads = (context.operand(node.used[0]),)
    return [PolymorphicStep((code,), reads, (output,), size, (node.id,), ELEMENTWISE_Q8)]


def _quantize_reason(graph: Graph, node: Node) -> str | None:
    if graph.type(node.used[0]).quant is not None:
        return "quantize has no kernel for every shape from one scale to another"
    return quantize_reason(graph, node)


POLYMORPHIC.add("quantize", PolymorphicRule(_quantize_reason, _lower), STORED_8)
POLYMORPHIC.add("dequantize", PolymorphicRule(dequantize_reason, _lower), STORED_8)
