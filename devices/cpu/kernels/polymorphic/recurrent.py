"""rnn, gru and lstm for every batch and number of steps.

The product with the inputs is one for every shape. The steps follow in one kernel, or where they
take long in eight, so that Python handles signals in between. Kernels carry the states on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.gemm import MatmulShape
from trireme.devices.cpu.kernels.f32.product_step import product_step
from trireme.devices.cpu.kernels.f32.recurrent import (
    LONGEST_S,
    RECURRENT,
    gates_bytes,
    gates_operands,
    gates_product,
    layer_of,
    recurrent_constants,
    recurrent_reason,
    recurrent_weights,
    states_bytes,
)
from trireme.devices.cpu.kernels.f32.recurrent_body import emit_recurrent
from trireme.devices.cpu.kernels.f32.recurrent_layer import Layer, local_bytes, operand_names
from trireme.devices.cpu.kernels.lowering import Context, Operand, finish, only
from trireme.devices.cpu.kernels.polymorphic.sample import deal_evenly, generalised
from trireme.devices.cpu.kernels.polymorphic.step import (
    POLYMORPHIC,
    PolymorphicRule,
    PolymorphicStep,
    Sized,
    SizedTemp,
    begin_sized,
)
from trireme.ir.graph import Graph, Node

_PARTS = 8
"""Kernels that long sequences are cut into."""
Ends = tuple[bool, bool]
"""Whether a kernel does the first steps, and the last ones."""


def sized_recurrent_kernel(isa: Isa, layer: Layer, ends: Ends, words: int) -> Code:
    """Return the kernel of some steps; the last words: a chunk's tiles, all, first and last step.

    Operands: as for one shape, with the span of steps as words; states of the kernel before and for
    the next come last, whoever reads them
    """
    names = [name for name in operand_names(layer, *ends) if name != "span"]
    fn, operands, chunk, local = begin_sized(
        f"recurrent_{layer.cell.op}_f32", isa, len(names), words + 4
    )
    size, items, *_ = fn.words[words:]
    places = list(operands)
    if fn.words_at is not None:
        steps = fn.at(fn.words_at, words + 2, "i64")
        places.insert(operand_names(layer, *ends).index("span"), steps)
    first = chunk * size
    tiles = first, fn.minimum(first + size, items)
    emit_recurrent(fn, fn.known(layer), ends, places, chunk, local, tiles)
    return finish(fn)


def _lower(context: Context, node: Node) -> Sequence[PolymorphicStep]:
    isa, key = context.isa, f"%{node.outputs[0]}"
    sample = layer_of(context.graph, node)
    depth = context.type(node.used[1]).dims[2]
    usual = replace(sample, steps=64, batch=4)

    def layer_at(graph: Graph) -> Layer:
        return layer_of(graph, node)

    gates = SizedTemp(
        f"{key} gates", gates_bytes(isa, usual), lambda graph: gates_bytes(isa, layer_at(graph))
    )
    states = SizedTemp(
        f"{key} states", states_bytes(isa, usual), lambda graph: states_bytes(isa, layer_at(graph))
    )

    def product_of(graph: Graph, node: Node) -> MatmulShape:
        return gates_product(isa, layer_at(graph), depth)

    operands = gates_operands(context, node, sample, depth, gates)
    product = product_step(context, node, product_of, operands, "fully_connected")
    steps = only(PolymorphicStep, [product])
    weights = recurrent_weights(context, node.used[2], sample)
    constants = recurrent_constants(context, node, sample)
    for part in range(_PARTS):
        first = constants if part == 0 else constants[: len(constants) - sum(sample.has_states)]
        before: tuple[Operand, ...] = (states,) if part else ()
        reads = (gates, weights, *first, *before)
        after: tuple[Operand, ...] = (states,) if part < _PARTS - 1 else ()
        writes = (*node.outputs, *after)
        steps.append(_part(context, node, sample, part, (reads, writes)))
    return steps


def _part(
    context: Context,
    node: Node,
    sample: Layer,
    part: int,
    ends: tuple[tuple[Operand, ...], tuple[Operand, ...]],
) -> PolymorphicStep:
    """Return the step of one of the kernels; the first does all steps where they are short."""
    isa = context.isa
    known, count, words = generalised(sample, node.label)
    kinds: list[Ends] = [(part == 0, part == _PARTS - 1)]
    kinds += [(True, True)] if part == 0 else []
    codes = tuple(context.kernel(sized_recurrent_kernel, known, kind, count) for kind in kinds)

    def size(graph: Graph) -> Sized:
        layer = layer_of(graph, node)
        seconds = layer.seconds(isa)
        parts = _PARTS if seconds > LONGEST_S and layer.steps >= _PARTS else 1
        items = layer.directions * -(-layer.batch // known.tile(isa))
        one, chunks = deal_evenly(items, seconds / parts)
        low, high = (layer.steps * min(part + k, parts) // parts for k in (0, 1))
        sized = (*words(layer), one, items, low, high)
        if part >= parts:
            return Sized(sized, 0)
        variant = int(parts == 1)
        return Sized(sized, chunks, seconds / parts, local_bytes(isa, known), variant=variant)

    return PolymorphicStep(codes, *ends, size, (node.id,), "recurrent")


POLYMORPHIC.add(RECURRENT, PolymorphicRule(recurrent_reason, _lower), ["float32"])
