"""Lowerings of the ops that only move elements: transpose, concat, split, slice, expand,
tile, reverse, depth_to_space and space_to_depth.

Each is one or more strided copies (copies.py), so every dtype is served, stored integers of
quantised tensors too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from trireme.backend.kernel_table import PLAIN, STORED_16
from trireme.devices.cpu.kernels.copies import Copy, copy_step, dense
from trireme.devices.cpu.kernels.f32.elementwise import activation_step
from trireme.devices.cpu.kernels.f32.products import activation_reason
from trireme.devices.cpu.kernels.lowering import (
    ELEMENTWISE,
    HUGE,
    TABLE,
    Context,
    Rule,
    StateMemory,
    Step,
    float_reason,
    in_every_shape,
)
from trireme.devices.cpu.kernels.spans import Wiring
from trireme.ir.graph import Graph, Node
from trireme.ops.slicing import slice_ends
from trireme.support.dtypes import itemsize
from trireme.support.errors import CompileError
from trireme.support.records import dataclass

Ints = tuple[int, ...]


@dataclass(frozen=True)
class Move:
    """A copy from a value to another."""

    copy: Copy
    source: int
    target: int


MovesOf = Callable[[Graph, Node], Sequence[Move]]


def copy_steps(
    context: Context, node: Node, moves: Sequence[Move], moves_in: MovesOf, name: str = ""
) -> list[Step]:
    """Return the steps of a node's copies; moves_in: gives them for one shape."""

    def copies_at(place: int) -> Callable[[Graph], Copy]:
        return lambda graph: moves_in(graph, node)[place].copy

    return [
        move_step(context, node, move, copies_at(place), name=name)
        for place, move in enumerate(moves)
    ]


def move_step(
    context: Context,
    node: Node,
    move: Move,
    copy_at: Callable[[Graph], Copy],
    target: StateMemory | None = None,
    name: str = "",
) -> Step:
    """Return the step of one of a node's copies; target: the memory it goes to instead."""
    write = context.operand(move.target) if target is None else target
    name = name or node.op
    family = _copy_family(name, move.copy.item)
    wiring = Wiring((context.operand(move.source),), (write,), (node.id,), family)
    return copy_step(context, wiring, move.copy, name, copy_at)


def whole_copy(context: Context, node: Node, source: int, target: int) -> Step:
    """Return the step that copies the first bytes of a value to another, as many as that has."""

    def copies(graph: Graph, _: Node) -> Sequence[Move]:
        return [Move(Copy((graph.type(target).nbytes,), (1,), (1,), 1), source, target)]

    (step,) = copy_steps(context, node, copies(context.graph, node), copies)
    return step


def _copy_family(name: str, item: int) -> str:
    """Return the family of a copy: bytes are transposed and joined unlike larger elements."""
    if name == "gather":
        return name
    if name in ("concat", "transpose"):
        return f"{name} bytes" if item == 1 else name
    return ELEMENTWISE


def move_reason(graph: Graph, node: Node) -> str | None:
    """Say why moving bytes would be wrong or has no kernel."""
    moved = _moved(node)
    types = [graph.type(i) for i in (*moved, *node.outputs)]
    if any(type.quant != types[0].quant for type in types):
        return f"{node.op} has no native kernel between different quantisations"
    if not all(type.elements for type in types):
        return f"{node.op} has no native kernel for empty tensors"
    if types[0].dtype == "string" or itemsize(types[0].dtype) not in (1, 2, 4, 8):
        return f"{node.op} has no native kernel for {types[0].dtype}"
    return None


def _move_reason(graph: Graph, node: Node) -> str | None:
    """Say the same, or that a parameter is not constant."""
    for value in node.used[len(_moved(node)) :]:
        if not graph.values[value].is_constant:
            return f"{node.op} has native kernels for constant parameters only"
    return move_reason(graph, node)


def _moved(node: Node) -> tuple[int, ...]:
    """The inputs whose elements are moved, not parameters."""
    return node.used if node.op == "concat" else node.used[:1]


def const_ints(graph: Graph, node: Node, position: int) -> Ints | None:
    """Return a constant input as integers, None where it was left out."""
    value = node.inputs[position] if position < len(node.inputs) else None
    if value is None:
        return None
    data = graph.values[value].data
    return tuple(int(v) for v in np.asarray(data).reshape(-1))


def item_bytes(graph: Graph, node: Node) -> int:
    """Return the bytes of an element of input 0."""
    return itemsize(graph.type(node.used[0]).dtype)


def _transpose_moves(graph: Graph, node: Node) -> list[Move]:
    x, y = graph.type(node.used[0]).dims, graph.type(node.outputs[0]).dims
    perm = node.attrs["perm"] or tuple(reversed(range(len(x))))
    strides = dense(x)
    source = tuple(strides[axis % len(x)] for axis in perm)
    copy = Copy(y, source, dense(y), item_bytes(graph, node))
    return [Move(copy, node.used[0], node.outputs[0])]


def _concat_moves(graph: Graph, node: Node) -> list[Move]:
    y = graph.type(node.outputs[0]).dims
    axis, target, at, steps = node.attrs["axis"] % len(y), dense(y), 0, []
    for value in node.used:
        x = graph.type(value).dims
        copy = Copy(x, dense(x), target, item_bytes(graph, node), 0, at)
        steps.append(Move(copy, value, node.outputs[0]))
        at += x[axis] * target[axis]
    return steps


def held_rows_copy(graph: Graph, node: Node) -> Copy:
    """Return the copy from a buffer of the rows that count."""
    x, y = graph.type(node.used[0]).dims, graph.type(node.outputs[0]).dims
    return Copy(y, dense(x), dense(y), item_bytes(graph, node))


def append_rows_copy(graph: Graph, node: Node) -> Copy:
    """Return the copy of rows into their place in a buffer."""
    buffer, length, rows = (graph.type(value).dims for value in node.used)
    target = dense(buffer)
    at = length[0] * target[node.attrs["axis"] % len(buffer)]
    return Copy(rows, dense(rows), target, item_bytes(graph, node), 0, at)


def _held_rows_moves(graph: Graph, node: Node) -> list[Move]:
    return [Move(held_rows_copy(graph, node), node.used[0], node.outputs[0])]


def _append_rows_moves(graph: Graph, node: Node) -> list[Move]:
    x = graph.type(node.used[0]).dims
    whole = Copy(x, dense(x), dense(x), item_bytes(graph, node))
    return [
        Move(whole, node.used[0], node.outputs[0]),
        Move(append_rows_copy(graph, node), node.used[2], node.outputs[0]),
    ]


def concat_reason(graph: Graph, node: Node) -> str | None:
    """Say why a concat has no native kernel, None when it has."""
    if node.attrs["activation"]:
        return float_reason(graph, node) or activation_reason(node)
    quants = {graph.type(value).quant for value in (*node.used, *node.outputs)}
    if len(quants) > 1:
        return "concat copies integers of one quantisation only"
    return move_reason(graph, node)


def _split_moves(graph: Graph, node: Node) -> list[Move]:
    x = graph.type(node.used[0]).dims
    axis, source, at, steps = node.attrs["axis"] % len(x), dense(x), 0, []
    for output in node.outputs:
        y = graph.type(output).dims
        copy = Copy(y, source, dense(y), item_bytes(graph, node), at)
        steps.append(Move(copy, node.used[0], output))
        at += y[axis] * source[axis]
    return steps


def _slice_moves(graph: Graph, node: Node) -> list[Move]:
    x, y = graph.type(node.used[0]).dims, graph.type(node.outputs[0]).dims
    starts, ends = const_ints(graph, node, 1) or (), const_ints(graph, node, 2) or ()
    axes = const_ints(graph, node, 3) or tuple(range(len(starts)))
    every = const_ints(graph, node, 4) or (1,) * len(starts)
    source, at = list(dense(x)), 0
    for axis, start, end, step in zip(axes, starts, ends, every, strict=True):
        stride = source[axis % len(x)]
        at += slice_ends(x[axis % len(x)], start, end, step)[0] * stride
        source[axis % len(x)] = stride * step
    copy = Copy(y, tuple(source), dense(y), item_bytes(graph, node), at)
    return [Move(copy, node.used[0], node.outputs[0])]


def _expand_moves(graph: Graph, node: Node) -> list[Move]:
    x, y = graph.type(node.used[0]).dims, graph.type(node.outputs[0]).dims
    padded = (1,) * (len(y) - len(x)) + x
    strides = (0,) * (len(y) - len(x)) + dense(x)
    source = tuple(s if p != 1 else 0 for s, p in zip(strides, padded, strict=True))
    copy = Copy(y, source, dense(y), item_bytes(graph, node))
    return [Move(copy, node.used[0], node.outputs[0])]


def _reverse_moves(graph: Graph, node: Node) -> list[Move]:
    x = graph.type(node.used[0]).dims
    axes = {axis % len(x) for axis in node.attrs["axes"]}
    strides = dense(x)
    source = tuple(-s if axis in axes else s for axis, s in enumerate(strides))
    at = sum((x[axis] - 1) * strides[axis] for axis in axes)
    copy = Copy(x, source, strides, item_bytes(graph, node), at)
    return [Move(copy, node.used[0], node.outputs[0])]


def _tile_moves(graph: Graph, node: Node) -> list[Move]:
    x, y = graph.type(node.used[0]).dims, graph.type(node.outputs[0]).dims
    strides, repeats = dense(x), const_ints(graph, node, 1) or ()
    shape = tuple(d for pair in zip(repeats, x, strict=True) for d in pair)
    source = tuple(d for stride in strides for d in (0, stride))
    target = tuple(
        d for size, stride in zip(x, dense(y), strict=True) for d in (size * stride, stride)
    )
    copy = Copy(shape or (1,), source or (1,), target or (1,), item_bytes(graph, node))
    return [Move(copy, node.used[0], node.outputs[0])]


def _blocks_moves(graph: Graph, node: Node) -> list[Move]:
    """Move n, h, i, w, j, c between [n, h b + i, w b + j, c] and channels made of i, j and c."""
    x, y = graph.type(node.used[0]).dims, graph.type(node.outputs[0]).dims
    to_space, b = node.op == "depth_to_space", node.attrs["blocksize"]
    order = (0, 1, 2, 3) if node.attrs["layout"] == "NHWC" else (0, 2, 3, 1)
    space, depth = (y, x) if to_space else (x, y)
    n, h, w, c = (space[axis] for axis in order)
    sn, sh, sw, sc = (dense(space)[axis] for axis in order)
    dn, dh, dw, dc = (dense(depth)[axis] for axis in order)
    di, dj, dk = (b * c, c, 1) if node.attrs["mode"] == "DCR" else (b, 1, b * b)
    rows = zip(
        (n, h // b, b, w // b, b, c),
        (sn, b * sh, sh, b * sw, sw, sc),
        (dn, dh, di * dc, dw, dj * dc, dk * dc),
        strict=True,
    )
    ends = [(size, d, s) if to_space else (size, s, d) for size, s, d in rows]
    shape, source, target = zip(*sorted(ends, key=lambda row: -row[2]), strict=True)
    copy = Copy(shape, source, target, item_bytes(graph, node))
    return [Move(copy, node.used[0], node.outputs[0])]


MOVES: dict[str, MovesOf] = {
    "transpose": _transpose_moves,
    "concat": _concat_moves,
    "append_rows": _append_rows_moves,
    "held_rows": _held_rows_moves,
    "split": _split_moves,
    "slice": _slice_moves,
    "expand": _expand_moves,
    "reverse": _reverse_moves,
    "tile": _tile_moves,
    "depth_to_space": _blocks_moves,
    "space_to_depth": _blocks_moves,
}
"""The copies that each op is."""


def _open_moves(sample: Graph, node: Node) -> tuple[Sequence[Move], MovesOf]:
    """Return the copies of a node in a sample, and what gives them for one shape."""
    moves_in = MOVES[node.op]
    if node.op == "expand":
        return moves_in(sample, node), _expanded_as(sample)
    if node.op == "slice" and not all(sample.values[i].is_constant for i in node.used[1:]):
        return [_slice_anywhere(sample, node)], _known_slice
    if node.op == "append_rows" and node.attrs["in_place"]:
        moves_in = _rows_alone
    return moves_in(sample, node), moves_in


def _rows_alone(graph: Graph, node: Node) -> Sequence[Move]:
    return MOVES["append_rows"](graph, node)[-1:]


def _slice_anywhere(sample: Graph, node: Node) -> Move:
    """Return the copy of a slice whose starts or ends are unknown; starts stand for themselves."""
    x, y = sample.type(node.used[0]).dims, sample.type(node.outputs[0]).dims
    starts = const_ints(sample, node, 1) if sample.values[node.used[1]].is_constant else None
    axes = const_ints(sample, node, 3) or tuple(range(len(x) if starts is None else len(starts)))
    every = const_ints(sample, node, 4) or (1,) * len(axes)
    source, at = list(dense(x)), 0
    for k, axis in enumerate(axis % len(x) for axis in axes):
        start = HUGE + 2 * k + 1 if starts is None else starts[k]
        at += (start if start >= 0 else x[axis] + start) * source[axis]
        source[axis] *= every[k]
    copy = Copy(y, tuple(source), dense(y), item_bytes(sample, node), at)
    return Move(copy, node.used[0], node.outputs[0])


def _known_slice(graph: Graph, node: Node) -> Sequence[Move]:
    if not all(graph.values[i].is_constant for i in node.used[1:]):
        raise CompileError(f"cpu: {node.label}: its bounds are not constant in this shape")
    return MOVES["slice"](graph, node)


def _expanded_as(sample: Graph) -> MovesOf:
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


def _lower(context: Context, node: Node) -> list[Step]:
    if context.is_open:
        moves, moves_in = _open_moves(context.graph, node)
    else:
        moves_in = MOVES[node.op]
        moves = moves_in(context.graph, node)
    steps = copy_steps(context, node, moves, moves_in)
    if node.attrs.get("activation"):
        activation = str(node.attrs["activation"])
        steps.append(activation_step(context, activation, node.outputs[0], node.id))
    return steps


def _open_reason(graph: Graph, node: Node) -> str | None:
    if node.op == "tile" and not graph.values[node.used[1]].is_constant:
        return "tile has kernels for every shape with constant repeats only"
    if node.op == "slice":
        known = [graph.values[i].is_constant for i in node.inputs[3:5] if i is not None]
        if not all(known) or (len(node.inputs) < 4 and not graph.values[node.used[1]].is_constant):
            return "slice has kernels for every shape with constant axes and steps only"
    return move_reason(graph, node)


TABLE.add("concat", Rule(concat_reason, _lower, in_every_shape), [PLAIN, *STORED_16])
_OF_ROWS = ("append_rows", "held_rows")
TABLE.add(_OF_ROWS, Rule(move_reason, _lower, in_every_shape))
_OTHERS = [op for op in MOVES if op not in ("concat", *_OF_ROWS)]
TABLE.add(_OTHERS, Rule(_move_reason, _lower, _open_reason, open_alone=True))
