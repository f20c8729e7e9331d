"""tree_ensemble for every number of rows."""

from __future__ import annotations

from collections.abc import Sequence

from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.trees import (
    OPERANDS,
    TreeWalks,
    emit_trees,
    local_bytes,
    tree_reads,
    tree_reason,
    tree_work,
    walks_of,
)
from trireme.devices.cpu.kernels.lowering import Context, finish
from trireme.devices.cpu.kernels.polymorphic.sample import deal_evenly, varies
from trireme.devices.cpu.kernels.polymorphic.step import (
    POLYMORPHIC,
    PolymorphicRule,
    PolymorphicStep,
    Sized,
    begin_sized,
    dims_of,
)
from trireme.ir.graph import Graph, Node


def sized_tree_kernel(isa: Isa, trees: TreeWalks) -> Code:
    """Return the kernel of some rows; the words are a chunk's rows, and all."""
    fn, operands, chunk, local = begin_sized("trees_f32", isa, OPERANDS, 2)
    size, rows = fn.words
    first = chunk * size
    emit_trees(fn, trees, operands, local, (first, fn.minimum(first + size, rows)))
    return finish(fn)


def _lower(context: Context, node: Node) -> Sequence[PolymorphicStep]:
    trees = walks_of(context.graph, node)
    code, room = context.kernel(sized_tree_kernel, trees), local_bytes(trees)

    def size(graph: Graph) -> Sized:
        rows = dims_of(graph, node.used[0])[0]
        seconds = tree_work(trees, rows)
        part, chunks = deal_evenly(rows, seconds)
        return Sized((part, rows), chunks, seconds, local_bytes=room)

    reads = tree_reads(context, node, trees)
    return [PolymorphicStep((code,), reads, node.outputs, size, (node.id,), "trees")]


def _reason(graph: Graph, node: Node) -> str | None:
    missing = tree_reason(graph, node)
    if missing is None and varies(dims_of(graph, node.used[0])[1]):
        return "tree_ensemble has no kernel for every shape where the features vary"
    return missing


POLYMORPHIC.add("tree_ensemble", PolymorphicRule(_reason, _lower), ["float32"])
