"""tree_ensemble: a row walks eight trees at once.

The walks are scalar: each step of one waits for its loads, so several share the core. A leaf leads
to itself: a block of trees takes as many steps as its deepest one, without a branch that depends on
data. The weights of the reached leaves are added tree by tree, in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

import numpy as np

from trireme.devices.cpu.codegen.index import times
from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.scalars import bits
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.lowering import (
    TABLE,
    Context,
    Operand,
    Rule,
    Step,
    dims_of,
    finish,
    varies,
)
from trireme.devices.cpu.kernels.spans import SpanCut, SpanWork, Wiring, begin_span, span_step
from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import Array
from trireme.support.records import dataclass

_WALKS = 8
_NODE = 4
"""Words of a node: its feature, its threshold, and where its branches lead, in words."""
_MOST_NODES = 1 << 29
_STEP_S = 0.7e-9
_WEIGHT_S = 1e-9


@dataclass(frozen=True)
class TreeWalks:
    """Trees as a kernel walks them.

    width: features of a row; steps: those of all blocks of trees
    has_missing: whether NaN takes the first branch somewhere
    is_single: whether each leaf has one weight
    """

    width: int
    trees: int
    outputs: int
    steps: int
    has_missing: bool
    is_single: bool


def _walks_of(graph: Graph, node: Node) -> TreeWalks:
    """Return the trees of a node, whose arrays are constant."""
    _, branches, missing, roots, ends, *_ = (_data(graph, value) for value in node.used[2:])
    own = np.arange(len(branches))
    is_leaf = branches[:, 0] == own
    counts = np.diff(ends, prepend=0)
    return TreeWalks(
        graph.type(node.used[0]).dims[1],
        len(roots),
        graph.type(node.outputs[0]).dims[1],
        _WALKS * int(_steps_of(branches, roots).sum()),
        bool(missing[~is_leaf].any()),
        bool((counts[is_leaf] == 1).all()),
    )


def tree_kernel(isa: Isa, _rows: int, cut: SpanCut, trees: TreeWalks) -> Code:
    """Return the kernel of some rows. Operands: as `_emit_trees`."""
    fn, operands, _, sums, span = begin_span("trees_f32", isa, 8, cut)
    _emit_trees(fn, trees, operands, sums, span)
    return finish(fn)


def _work(trees: TreeWalks, rows: int) -> SpanWork:
    """Return the rows, about the seconds of all, and the bytes of a thread's sums."""
    seconds = rows * (trees.steps * _STEP_S + trees.trees * 3 * _WEIGHT_S)
    return SpanWork(rows, seconds, 8 * trees.outputs)


def _emit_trees(
    fn: Function,
    trees: TreeWalks,
    operands: Sequence[Value],
    sums: Value,
    span: tuple[Index, Index],
) -> None:
    """Emit the walks of some rows.

    Operands: x, nodes, roots (filled up to whole blocks), steps of each block, starts of each
    node's weights, targets, weights, y
    """
    x, *_, y = operands
    outputs = trees.outputs
    for row in fn.range(*span):
        for k in fn.range(0, outputs):
            fn.store(fn.as_value("double", 0.0), fn.at(sums, k, "double"), 8)
        place = fn.at(x, times(fn, row, trees.width))
        whole = trees.trees // _WALKS
        for block in fn.range(0, whole):
            for leaf in _walk(fn, trees, operands, place, block, _WALKS):
                _add(fn, trees, operands, sums, leaf)
        if trees.trees % _WALKS:
            for leaf in _walk(fn, trees, operands, place, whole, trees.trees % _WALKS):
                _add(fn, trees, operands, sums, leaf)
        to = fn.at(y, times(fn, row, outputs))
        for k in fn.range(0, outputs):
            total = fn.load("double", fn.at(sums, k, "double"), 8)
            fn.store(fn.convert("fptrunc", total, "float"), fn.at(to, k))


def _walk(
    fn: Function, trees: TreeWalks, operands: Sequence[Value], row: Value, block: Index, count: int
) -> list[Value]:
    """Return the leaves that a row reaches in a block of trees, as numbers of nodes."""
    _, nodes, roots, steps, *_ = operands
    first = fn.at(roots, block * _WALKS, "i64")
    places = [Var(fn, "i64", fn.load("i64", fn.at(first, k, "i64"), 8)) for k in range(count)]
    moves = Var(fn, "i64", 1)
    for _ in fn.range(0, fn.load("i64", fn.at(steps, block, "i64"), 8)):
        with fn.when(fn.compare("ne", moves.get(), 0)):
            before = [place.get() for place in places]
            for place in places:
                place.set(_step(fn, trees, nodes, row, place.get()))
            changes = [bits(fn, "xor", a.get(), b) for a, b in zip(places, before, strict=True)]
            moves.set(reduce(lambda a, b: bits(fn, "or", a, b), changes))
    return [bits(fn, "lshr", place.get(), 2) for place in places]


def _step(fn: Function, trees: TreeWalks, nodes: Value, row: Value, place: Value) -> Value:
    """Return where a row goes on from a node; from a leaf to itself."""
    here = fn.at(nodes, place, "i32")
    feature = fn.load("i32", here)
    takes_nan = None
    if trees.has_missing:
        takes_nan = fn.compare("ne", bits(fn, "and", feature, 1), 0)
        feature = bits(fn, "ashr", feature, 1)
    value = fn.load("float", fn.at(row, fn.convert("sext", feature, "i64")))
    is_second = fn.compare("ugt", value, fn.load("float", fn.at(here, 1)))
    if takes_nan is not None:
        is_first = bits(fn, "and", fn.compare("uno", value, value), takes_nan)
        is_second = bits(fn, "and", is_second, bits(fn, "xor", is_first, 1))
    branch = fn.convert("zext", is_second, "i64") + 2
    return fn.convert("sext", fn.load("i32", fn.at(here, branch, "i32")), "i64")


def _add(
    fn: Function, trees: TreeWalks, operands: Sequence[Value], sums: Value, leaf: Value
) -> None:
    """Emit the sum of a leaf's weights onto those of their targets."""
    *_, starts, targets, weights, _ = operands
    at = fn.at(starts, leaf, "i32")
    first = fn.convert("sext", fn.load("i32", at), "i64")
    last: Index = first + 1
    if not trees.is_single:
        last = fn.convert("sext", fn.load("i32", fn.at(at, 1, "i32")), "i64")
    for weight in fn.range(first, last):
        target = fn.convert("sext", fn.load("i32", fn.at(targets, weight, "i32")), "i64")
        place = fn.at(sums, target, "double")
        wide = fn.convert("fpext", fn.load("float", fn.at(weights, weight)), "double")
        fn.store(fn.load("double", place, 8) + wide, place, 8)


def _steps_of(branches: Array, roots: Array) -> Array:
    """Return how many steps each block of trees takes at most."""
    depth = [0] * len(branches)
    for node, (first, second) in reversed(list(enumerate(branches.tolist()))):
        if first != node:
            depth[node] = 1 + max(depth[first], depth[second])
    filled = np.zeros(-(-len(roots) // _WALKS) * _WALKS, np.int64)
    filled[: len(roots)] = np.array(depth)[roots]
    steps: Array = filled.reshape(-1, _WALKS).max(1)
    return steps


def _data(graph: Graph, value: int) -> Array:
    data = graph.values[value].data
    return np.zeros(0) if data is None else data


def _reads(context: Context, node: Node, trees: TreeWalks) -> tuple[Operand, ...]:
    """Return what the kernel reads."""
    graph = context.graph
    _, features, thresholds, branches, missing, roots, ends, *_ = node.used

    def nodes() -> Array:
        plain, nan, leads = (_data(graph, value) for value in (features, missing, branches))
        is_leaf = leads[:, 0] == np.arange(len(plain))
        made = np.empty((len(plain), _NODE), np.int32)
        made[:, 0] = np.where(is_leaf, 0, plain)
        if trees.has_missing:
            made[:, 0] = made[:, 0] * 2 + nan
        made[:, 1] = _data(graph, thresholds).view(np.int32)
        made[:, 2:] = leads * _NODE
        return made

    def filled_roots() -> Array:
        plain = _data(graph, roots).astype(np.int64) * _NODE
        return np.concatenate([plain, np.zeros(-len(plain) % _WALKS, np.int64)])

    def steps() -> Array:
        return _steps_of(_data(graph, branches), _data(graph, roots))

    def starts() -> Array:
        return np.concatenate([[0], _data(graph, ends)]).astype(np.int32)

    return (
        context.operand(node.used[0]),
        context.pack(features, f"tree nodes {trees.has_missing} {node.used[2:5]}", nodes),
        context.pack(roots, "tree roots", filled_roots),
        context.pack(branches, f"tree steps {roots}", steps),
        context.pack(ends, "tree starts", starts),
        context.operand(node.used[7]),
        context.operand(node.used[8]),
    )


def _reason(graph: Graph, node: Node) -> str | None:
    """Say why trees have no native kernel, None when they have."""
    x, *trees = (graph.values[value] for value in node.used)
    if any(tree.data is None for tree in trees):
        return "tree_ensemble has a native kernel for constant trees only"
    if node.attrs["aggregate"] != "sum":
        return "tree_ensemble has a native kernel for sums only"
    if trees[-1].dtype != "float32":
        return "tree_ensemble has a native kernel for weights of float32 only"
    if not 0 < trees[0].type.elements < _MOST_NODES or not trees[4].type.elements:
        return "tree_ensemble has no native kernel without trees, or for 2^29 nodes"
    if not x.type.elements:
        return "tree_ensemble has no native kernel for empty tensors"
    return None


def _open_reason(graph: Graph, node: Node) -> str | None:
    if varies(dims_of(graph, node.used[0])[1]):
        return "tree_ensemble has no kernel for every shape where the features vary"
    return None


def _lower(context: Context, node: Node) -> list[Step]:
    trees = _walks_of(context.graph, node)
    wiring = Wiring(_reads(context, node, trees), node.outputs, (node.id,), "trees")

    def rows_of(graph: Graph) -> int:
        return dims_of(graph, node.used[0])[0]

    return [span_step(context, wiring, rows_of, partial(_work, trees), tree_kernel, trees)]


TABLE.add("tree_ensemble", Rule(_reason, _lower, _open_reason), ["float32"])
