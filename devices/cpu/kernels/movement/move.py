"""Lowerings of the ops that only move elements: transpose, concat, split, slice, expand,
tile, reverse, depth_to_space and space_to_depth.

Each is one or more strided copies (copies.py), so every dtype is served, stored integers of
quantised tensors too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from trireme.backend.kernel_table import PLAIN, STORED_16
from trireme.devices.cpu.kernels.copies import Copy, copy_kernel, copy_s, dense
from trireme.devices.cpu.kernels.f32.elementwise import activation_step
from trireme.devices.cpu.kernels.f32.products import activation_reason
from trireme.devices.cpu.kernels.lowering import (
    ELEMENTWISE,
    TABLE,
    At,
    Context,
    Operand,
    Rule,
    StateMemory,
    Step,
    float_reason,
)
from trireme.ir.graph import Graph, Node
from trireme.ops.slicing import slice_ends
from trireme.support.dtypes import itemsize
from trireme.support.records import dataclass

Ints = tuple[int, ...]


@dataclass(frozen=True)
class Move:
    """A copy from a value to another."""

    copy: Copy
    source: int
    target: int


def copy_step(context: Context, node: Node, copy: Copy, output: int, name: str) -> Step:
    """Return the step of a copy from input 0 to an output."""
    return _step(context, node, copy, node.used[0], context.operand(output), name)


def move_step(context: Context, node: Node, move: Move, target: StateMemory | None = None) -> Step:
    """Return the step of one of a node's copies; target: the memory it goes to instead."""
    write = context.operand(move.target) if target is None else target
    return _step(context, node, move.copy, move.source, write, node.op)


def _step(context: Context, node: Node, copy: Copy, source: int, write: Operand, name: str) -> Step:
    """Return the step of a copy. Offsets are in the addresses, so that the parts of a split or a
    concat share a kernel.
    """
    read = context.operand(source)
    if isinstance(read, int):
        read, copy = _at(read, copy.source_at * copy.item), replace(copy, source_at=0)
    if isinstance(write, int):
        write, copy = _at(write, copy.target_at * copy.item), replace(copy, target_at=0)
    code, chunks = context.kernel(copy_kernel, copy, name)
    return Step(
        code,
        (read,),
        (write,),
        chunks,
        seconds=copy_s(copy),
        nodes=(node.id,),
        family=copy_family(name, copy.item),
    )


def copy_family(name: str, item: int) -> str:
    """Return the family of a copy: bytes are transposed and joined unlike larger elements."""
    if name == "gather":
        return name
    if name in ("concat", "transpose"):
        return f"{name} bytes" if item == 1 else name
    return ELEMENTWISE


def _at(value: int, offset: int) -> int | At:
    return At(value, offset) if offset else value


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


MovesOf = Callable[[Graph, Node], list[Move]]
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


def _lower(context: Context, node: Node) -> list[Step]:
    steps = [move_step(context, node, move) for move in MOVES[node.op](context.graph, node)]
    if node.attrs.get("activation"):
        steps.append(activation_step(context, node.attrs["activation"], node.outputs[0], node.id))
    return steps


TABLE.add("concat", Rule(concat_reason, _lower), [PLAIN, *STORED_16])
_OF_ROWS = ("append_rows", "held_rows")
TABLE.add(_OF_ROWS, Rule(move_reason, _lower))
TABLE.add([op for op in MOVES if op not in ("concat", *_OF_ROWS)], Rule(_move_reason, _lower))
