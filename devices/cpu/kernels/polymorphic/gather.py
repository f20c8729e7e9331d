"""gather and scatter for every shape: slices of a tensor that indices name, known or not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.lowering import Context, KernelFault, finish
from trireme.devices.cpu.kernels.movement.gather import (
    Lookup,
    emit_lookup,
    gather_reason,
    lookup_of,
    lookup_work,
    slice_moves,
)
from trireme.devices.cpu.kernels.movement.indexed import (
    SCATTERS,
    Picks,
    emit_picks,
    emit_scatter,
    pick_s,
    picks_of,
    picks_reason,
    scatter_name,
)
from trireme.devices.cpu.kernels.movement.move import Move
from trireme.devices.cpu.kernels.polymorphic.moves import copy_steps, whole_copy
from trireme.devices.cpu.kernels.polymorphic.plans import quick_plan
from trireme.devices.cpu.kernels.polymorphic.sample import deal_evenly, generalised, varies
from trireme.devices.cpu.kernels.polymorphic.step import (
    POLYMORPHIC,
    PolymorphicRule,
    PolymorphicStep,
    Sized,
    begin_sized,
)
from trireme.ir.graph import Graph, Node
from trireme.ops.bounds import outside_axis


def sized_lookup_kernel(isa: Isa, lookup: Lookup, words: int) -> Code:
    """Return the kernel of a gather; the last words are a chunk's slices, and all."""
    fn, operands, chunk, _ = begin_sized(f"gather_b{8 * lookup.item}", isa, 4, words + 2)
    size, rows = fn.words[words:]
    first = chunk * size
    span = first, fn.minimum(first + size, rows)
    emit_lookup(fn, fn.known(lookup), operands, span, chunk)
    return finish(fn)


def _lower(context: Context, node: Node) -> Sequence[PolymorphicStep]:
    sample = lookup_of(context.graph, node)
    moves = slice_moves(context.graph, node, sample)
    if moves is not None:
        return copy_steps(context, node, moves, _moves_in)
    known, count, words = generalised(sample, node.label)
    code = context.kernel(sized_lookup_kernel, known, count)

    def size(graph: Graph) -> Sized:
        lookup = lookup_of(graph, node)
        rows, seconds = lookup_work(lookup)
        part, chunks = deal_evenly(rows, seconds)
        return Sized((*words(lookup), part, rows), chunks, seconds)

    reads = (
        *(context.operand(i) for i in node.used),
        KernelFault(partial(_wrong, node.label, sample.size)),
    )
    return [PolymorphicStep((code,), reads, node.outputs, size, (node.id,), "gather")]


def _wrong(label: str, axis: int, bad: int) -> str:
    """Return the sentence about an index outside its axis."""
    outside = f"index {bad} lies outside its axis" if varies(axis) else outside_axis(bad, axis)
    return f"{label}: {outside}"


def _moves_in(graph: Graph, node: Node) -> list[Move]:
    return slice_moves(graph, node, lookup_of(graph, node)) or []


def sized_picks_kernel(isa: Isa, picks: Picks, words: int) -> Code:
    """Return the kernel of a gather of picks; the last words are a chunk's rows, and all."""
    operands = 3 + len(picks.sizes)
    name = f"gather_picks_b{8 * picks.item}"
    fn, (x, indices, *faults, y), chunk, _ = begin_sized(name, isa, operands, words + 2)
    size, rows = fn.words[words:]
    first = chunk * size
    span = first, fn.minimum(first + size, rows)
    emit_picks(fn, fn.known(picks), (x, indices, y), faults, span, chunk)
    return finish(fn)


def _lower_picks(context: Context, node: Node) -> Sequence[PolymorphicStep]:
    sample = picks_of(context.graph, node)
    known, count, words = generalised(sample, node.label)
    code = context.kernel(sized_picks_kernel, known, count)

    values = (*node.used, *node.outputs)
    plan = quick_plan(context.graph, values, sample, lambda graph: picks_of(graph, node))

    def size(graph: Graph) -> Sized:
        picks = plan(graph)
        rows, seconds = math.prod(picks.dims[:-1]), pick_s(picks)
        part, chunks = deal_evenly(rows, seconds)
        return Sized((*words(picks), part, rows), chunks, seconds)

    faults = (KernelFault(partial(_wrong, node.label, axis)) for axis in sample.sizes)
    reads = (*(context.operand(i) for i in node.used), *faults)
    return [PolymorphicStep((code,), reads, node.outputs, size, (node.id,), "gather")]


def sized_scatter_kernel(isa: Isa, picks: Picks, reduction: str, dtype: str, words: int) -> Code:
    """Return the kernel of a scatter onto a copy of x, in one chunk: picks keep their order."""
    name, operands = scatter_name(picks, reduction, dtype), 3 + len(picks.sizes)
    fn, places, _, _ = begin_sized(name, isa, operands, words)
    emit_scatter(fn, fn.known(picks), places, reduction, dtype)
    return finish(fn)


def _lower_scatter(context: Context, node: Node) -> Sequence[PolymorphicStep]:
    sample, reduction = picks_of(context.graph, node), node.attrs["reduction"]
    dtype = context.type(node.used[0]).dtype if reduction != "none" else ""
    known, count, words = generalised(sample, node.label)
    code = context.kernel(sized_scatter_kernel, known, reduction, dtype, count)

    def size(graph: Graph) -> Sized:
        picks = picks_of(graph, node)
        return Sized(words(picks), 1, pick_s(picks))

    faults = (KernelFault(partial(_wrong, node.label, axis)) for axis in sample.sizes)
    reads = (*(context.operand(i) for i in node.used[1:]), *faults)
    copy = whole_copy(context, node, node.used[0], node.outputs[0])
    return [copy, PolymorphicStep((code,), reads, node.outputs, size, (node.id,), "scatter")]


POLYMORPHIC.add(SCATTERS, PolymorphicRule(picks_reason, _lower_scatter))
POLYMORPHIC.add(("gather_elements", "gather_nd"), PolymorphicRule(picks_reason, _lower_picks))
POLYMORPHIC.add("gather", PolymorphicRule(gather_reason, _lower))
