"""Ops that only move elements, for every shape: each is one or more strided copies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from trireme.backend.kernel_table import PLAIN
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.copies import (
    Copy,
    Ints,
    copy_runs,
    copy_s,
    dense,
    emit_piece,
    emit_rows,
    emit_strips,
    is_transposed,
    transposed_items,
    with_runs,
)
from trireme.devices.cpu.kernels.lowering import Context, finish
from trireme.devices.cpu.kernels.movement.move import (
    MOVES,
    Move,
    concat_reason,
    const_ints,
    copy_family,
    item_bytes,
    move_reason,
)
from trireme.devices.cpu.kernels.polymorphic.elementwise import activation_step
from trireme.devices.cpu.kernels.polymorphic.plans import quick_plan
from trireme.devices.cpu.kernels.polymorphic.sample import HUGE, deal_evenly, generalised
from trireme.devices.cpu.kernels.polymorphic.step import (
    POLYMORPHIC,
    PolymorphicRule,
    PolymorphicStep,
    Sized,
    begin_sized,
)
from trireme.ir.graph import Graph, Node
from trireme.support.errors import CompileError


def sized_copy_kernel(isa: Isa, copy: Copy, name: str, words: int) -> Code:
    """Return the kernel of a merged copy for every shape; the last words are a chunk's units, and
    all: items of a dense copy, strips of a transposed one, else rows.
    """
    element = f"i{8 * copy.item}"
    fn, (x, y), chunk, _ = begin_sized(f"{name}_b{8 * copy.item}", isa, 2, words + 2)
    size, units = fn.words[words:]
    known = fn.known(copy)
    x, y = fn.at(x, known.source_at, element), fn.at(y, known.target_at, element)
    first = chunk * size
    span = first, fn.minimum(first + size, units)
    if is_transposed(copy):
        emit_strips(fn, known, x, y, span)
    elif _is_dense(copy):
        emit_piece(fn, known, x, y, first, size)
    else:
        emit_rows(fn, known, x, y, element, span)
    return finish(fn)


def _is_dense(copy: Copy) -> bool:
    return copy.source == copy.target == (1,)


def moves_of(graph: Graph, node: Node) -> list[Move]:
    """Return the copies of a node; of a slice where unknown starts stand for themselves.

    Errors: CompileError, if a graph of one shape does not know where a slice starts
    """
    if node.op != "slice" or all(graph.values[i].is_constant for i in node.used[1:]):
        return MOVES[node.op](graph, node)
    x, y = graph.type(node.used[0]).dims, graph.type(node.outputs[0]).dims
    starts = const_ints(graph, node, 1) if graph.values[node.used[1]].is_constant else None
    axes = const_ints(graph, node, 3) or tuple(range(len(x) if starts is None else len(starts)))
    every = const_ints(graph, node, 4) or (1,) * len(axes)
    source, at = list(dense(x)), 0
    for k, axis in enumerate(axis % len(x) for axis in axes):
        start = HUGE + 2 * k + 1 if starts is None else starts[k]
        at += (start if start >= 0 else x[axis] + start) * source[axis]
        source[axis] *= every[k]
    copy = Copy(y, tuple(source), dense(y), item_bytes(graph, node), at)
    return [Move(copy, node.used[0], node.outputs[0])]


MovesOf = Callable[[Graph, Node], Sequence[Move]]


def copy_steps(
    context: Context, node: Node, moves: Sequence[Move], moves_in: MovesOf
) -> list[PolymorphicStep]:
    """Return the steps of a node's copies; moves_in: gives them for one shape."""
    return [_copy_step(context, node, k, move, moves_in) for k, move in enumerate(moves)]


def _copy_step(
    context: Context, node: Node, place: int, move: Move, moves_in: MovesOf
) -> PolymorphicStep:
    isa, name = context.isa, node.op
    runs: tuple[Ints, ...] = copy_runs(move.copy)
    sample = with_runs(move.copy, runs)
    along = sample.source.index(1) if is_transposed(sample) else None
    counted = len(runs) if _is_dense(sample) else len(runs) - 1
    known, count, words = generalised(sample, node.label)
    code = context.kernel(sized_copy_kernel, known, name, count)

    def planned(graph: Graph) -> Copy:
        return with_runs(moves_in(graph, node)[place].copy, runs)

    values = (*node.used, *node.outputs, move.source, move.target)
    plan = quick_plan(context.graph, values, sample, planned)

    def size(graph: Graph) -> Sized:
        copy = plan(graph)
        if 0 in copy.shape:
            return Sized((0,) * (count + 2), chunks=0)
        seconds = copy_s(copy)
        if along is None:
            units = math.prod(copy.shape[:counted])
        else:
            units = transposed_items(copy, along, isa.lanes)
        part, chunks = deal_evenly(units, seconds)
        return Sized((*words(copy), part, units), chunks, seconds)

    reads = (context.operand(move.source),)
    family = copy_family(name, sample.item)
    return PolymorphicStep((code,), reads, (move.target,), size, (node.id,), family)


def whole_copy(context: Context, node: Node, source: int, target: int) -> PolymorphicStep:
    """Return the step that copies the first bytes of a value to another, as many as that has."""

    def copies(graph: Graph, _: Node) -> Sequence[Move]:
        return [Move(Copy((graph.type(target).nbytes,), (1,), (1,), 1), source, target)]

    return copy_steps(context, node, copies(context.graph, node), copies)[0]


def _known_moves(graph: Graph, node: Node) -> list[Move]:
    if node.op == "slice" and not all(graph.values[i].is_constant for i in node.used[1:]):
        raise CompileError(f"cpu: {node.label}: its bounds are not constant in this shape")
    return MOVES[node.op](graph, node)


def _expand_moves(sample: Graph) -> MovesOf:
    """Return what gives the copy of an expand: an axis repeats where it does so in the sample.

    Errors: CompileError, if another axis has to repeat
    """

    def moves(graph: Graph, node: Node) -> list[Move]:
        (move,) = MOVES["expand"](graph, node)
        (known,) = MOVES["expand"](sample, node)
        own = graph.type(node.used[0]).dims
        missing = len(known.copy.source) - len(own)
        sizes = zip((1,) * missing + own, move.copy.shape, known.copy.source, strict=True)
        if any((size == 1 != whole) if moves else size != 1 for size, whole, moves in sizes):
            raise CompileError(
                f"sizes {list(own)} are broadcast to {list(move.copy.shape)}; the kernel is made "
                "for others",
                fix="compile this shape by itself",
            )
        strides = (0,) * missing + dense(own)
        pairs = zip(known.copy.source, strides, strict=True)
        source = tuple(stride if moves else 0 for moves, stride in pairs)
        return [replace(move, copy=replace(move.copy, source=source))]

    return moves


def _lower(context: Context, node: Node) -> Sequence[PolymorphicStep]:
    moves_in = _expand_moves(context.graph) if node.op == "expand" else _known_moves
    steps = copy_steps(context, node, moves_of(context.graph, node), moves_in)
    if node.attrs.get("activation"):
        activation = str(node.attrs["activation"])
        steps.append(activation_step(context, activation, node.outputs[0], node.id))
    return steps


def _slice_reason(graph: Graph, node: Node) -> str | None:
    known = [graph.values[i].is_constant for i in node.inputs[3:5] if i is not None]
    if not all(known) or (len(node.inputs) < 4 and not graph.values[node.used[1]].is_constant):
        return "slice has kernels for every shape with constant axes and steps only"
    return move_reason(graph, node)


def _tile_reason(graph: Graph, node: Node) -> str | None:
    if not graph.values[node.used[1]].is_constant:
        return "tile has kernels for every shape with constant repeats only"
    return move_reason(graph, node)


def _appended(graph: Graph, node: Node) -> list[Move]:
    """Return the copies of the buffer and of the rows; of the rows alone where they are written
    into the buffer.
    """
    moves = MOVES["append_rows"](graph, node)
    return moves[-1:] if node.attrs["in_place"] else moves


def _lower_append(context: Context, node: Node) -> Sequence[PolymorphicStep]:
    return copy_steps(context, node, _appended(context.graph, node), _appended)


_PLAIN_MOVES = [op for op in MOVES if op not in ("append_rows", "concat", "slice", "tile")]
POLYMORPHIC.add("append_rows", PolymorphicRule(move_reason, _lower_append))
POLYMORPHIC.add("concat", PolymorphicRule(concat_reason, _lower), [PLAIN])
POLYMORPHIC.add("tile", PolymorphicRule(_tile_reason, _lower))
POLYMORPHIC.add("slice", PolymorphicRule(_slice_reason, _lower))
POLYMORPHIC.add(_PLAIN_MOVES, PolymorphicRule(move_reason, _lower))
