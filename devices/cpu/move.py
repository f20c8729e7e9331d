"""Kernels that only move elements: transpose, concat, split, slice, pad, expand, tile.

Each is one or more strided copies of items of 1, 2, 4 or 8 bytes, so every dtype is served, stored
integers of quantised tensors too. Where both sides run along the last dimension, rows are copied
in vectors; where the source runs along another one, squares are transposed in registers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trireme.devices.cpu.ir import Function, Index, Value, vector
from trireme.devices.cpu.jit import Code
from trireme.devices.cpu.kernels import (
    CHUNK_ELEMENTS,
    QUANTISED_RULES,
    RULES,
    Context,
    Rule,
    Step,
    begin,
    finish,
    split_evenly,
)
from trireme.devices.cpu.target import Isa
from trireme.dtypes import Array, itemsize, numpy_dtype
from trireme.graph import Graph, Node
from trireme.ops.slicing import slice_range

Ints = tuple[int, ...]


@dataclass(frozen=True)
class Copy:
    """A strided copy; strides and offsets in items of `item` bytes."""

    shape: Ints
    source: Ints
    target: Ints
    item: int
    source_at: int = 0
    target_at: int = 0


def dense(shape: Sequence[int]) -> Ints:
    """Return the strides of a dense array."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def merged(copy: Copy) -> Copy:
    """Return the same copy with as few dimensions as can be."""
    dims: list[list[int]] = []
    for size, source, target in zip(copy.shape, copy.source, copy.target, strict=True):
        if size == 1:
            continue
        if dims and dims[-1][1:] == [source * size, target * size]:
            dims[-1] = [dims[-1][0] * size, source, target]
        else:
            dims.append([size, source, target])
    dims = dims or [[1, 1, 1]]
    shape, sources, targets = (tuple(column) for column in zip(*dims, strict=True))
    return replace(copy, shape=shape, source=sources, target=targets)


def copy_kernel(isa: Isa, copy: Copy, name: str) -> tuple[Code, int]:
    """Return the kernel of a strided copy, and its chunks. Operands: source, target."""
    copy = merged(copy)
    bits = 8 * copy.item
    fn, (x, y), chunk, _ = begin(f"{name}_b{bits}", isa, 2)
    element = f"i{bits}"
    x, y = fn.at(x, copy.source_at, element), fn.at(y, copy.target_at, element)
    if copy.target[-1] == 1 and copy.source[-1] != 1 and 1 in copy.source and copy.item == 4:
        chunks = _transposed(fn, copy, x, y, chunk)
    else:
        chunks = _rows(fn, copy, x, y, chunk, element)
    return finish(fn), chunks


def _offsets(fn: Function, row: Index, copy: Copy, axes: Sequence[int]) -> tuple[Index, Index]:
    """The source and target offsets of the row-th combination of the axes."""
    source: Index = 0
    target: Index = 0
    for axis in reversed(axes):
        first = axis == axes[0]
        index = row if first else fn.integer("urem", row, copy.shape[axis])
        row = 0 if first else fn.integer("udiv", row, copy.shape[axis])
        source = index * copy.source[axis] + source
        target = index * copy.target[axis] + target
    return source, target


def _rows(fn: Function, copy: Copy, x: Value, y: Value, chunk: Value, element: str) -> int:
    """Emit a copy row by row; returns the number of chunks."""
    inner = copy.shape[-1]
    if len(copy.shape) == 1 and inner > CHUNK_ELEMENTS and copy.source == copy.target == (1,):
        return _flat(fn, copy, x, y, chunk, element)
    axes = range(len(copy.shape) - 1)
    rows = math.prod(copy.shape[:-1])
    size, chunks = split_evenly(rows, max(1, CHUNK_ELEMENTS // inner))
    first: Index = chunk * size if chunks > 1 else 0
    for row in fn.range(first, fn.minimum(first + size, rows)):
        source, target = _offsets(fn, row, copy, axes)
        _row(fn, copy, fn.at(x, source, element), fn.at(y, target, element), element, inner)
    return chunks


def _flat(fn: Function, copy: Copy, x: Value, y: Value, chunk: Value, element: str) -> int:
    inner = copy.shape[0]
    size, chunks = split_evenly(inner, CHUNK_ELEMENTS)
    first = chunk * size
    count = fn.minimum(first + size, inner) - first
    nbytes = fn.as_value("i64", count * copy.item)
    to, at = fn.at(y, first, element), fn.at(x, first, element)
    fn.declarations.add("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
    fn.line(f"call void @llvm.memcpy.p0.p0.i64({to}, {at}, {nbytes}, i1 false)")
    return chunks


def _row(fn: Function, copy: Copy, x: Value, y: Value, element: str, count: int) -> None:
    """Emit the copy of one row along the last dimension."""
    source, target = copy.source[-1], copy.target[-1]
    if source in (0, 1) and target == 1:
        lanes = fn.isa.vector_bits // (8 * copy.item)
        type = vector(lanes, element)
        same = fn.splat(fn.load(element, x, copy.item), lanes) if source == 0 else None
        whole = count // lanes * lanes
        for i in fn.range(0, whole, lanes):
            value = same or fn.load(type, fn.at(x, i, element), copy.item)
            fn.store(value, fn.at(y, i, element), copy.item)
        _pieces(fn, x, y, element, (whole, count), same, copy.item)
        return
    for i in fn.range(0, count):
        value = fn.load(element, fn.at(x, i * source, element), copy.item)
        fn.store(value, fn.at(y, i * target, element), copy.item)


def _pieces(
    fn: Function, x: Value, y: Value, element: str, span: tuple[int, int], same: Value | None,
    item: int,
) -> None:  # fmt: skip
    """Emit the end of a row in powers of two, so that no byte beyond it is touched."""
    at, end = span
    while at < end:
        lanes = 1 << (end - at).bit_length() - 1
        type = vector(lanes, element)
        if same is None:
            value = fn.load(type, fn.at(x, at, element), item)
        else:
            value = fn.splat(fn.extract(same, 0), lanes)
        fn.store(value, fn.at(y, at, element), item)
        at += lanes


def _transposed(fn: Function, copy: Copy, x: Value, y: Value, chunk: Value) -> int:
    """Emit a copy whose source runs along another dimension than its target."""
    along, last = copy.source.index(1), len(copy.shape) - 1
    lanes = fn.isa.lanes
    blocks = -(-copy.shape[along] // lanes)
    others = [axis for axis in range(last) if axis != along]
    outer = math.prod(copy.shape[axis] for axis in others)
    items = outer * blocks
    size, chunks = split_evenly(items, max(1, CHUNK_ELEMENTS // (lanes * copy.shape[-1])))
    first: Index = chunk * size if chunks > 1 else 0
    for item in fn.range(first, fn.minimum(first + size, items)):
        row, block = fn.integer("udiv", item, blocks), fn.integer("urem", item, blocks)
        source, target = _offsets(fn, row, copy, others) if others else (0, 0)
        source = block * lanes + source
        target = block * (lanes * copy.target[along]) + target
        at, to = fn.at(x, source), fn.at(y, target)
        rest = copy.shape[along] % lanes
        if not rest or isinstance(block, int):
            _strip(fn, copy, along, at, to, rest or lanes)
            continue
        for is_last in fn.either(fn.compare("eq", block, blocks - 1)):
            _strip(fn, copy, along, at, to, rest if is_last else lanes)
    return chunks


def _strip(fn: Function, copy: Copy, along: int, x: Value, y: Value, rows: int) -> None:
    """Emit the transposition of a strip: `rows` target rows of the last dimension's length."""
    lanes, count = fn.isa.lanes, copy.shape[-1]
    whole = count // lanes * lanes
    for i in fn.range(0, whole, lanes):
        _square(fn, copy, along, fn.at(x, i * copy.source[-1]), fn.at(y, i), rows, lanes)
    if whole < count:
        at, to = fn.at(x, whole * copy.source[-1]), fn.at(y, whole)
        _square(fn, copy, along, at, to, rows, count - whole)


def _square(
    fn: Function, copy: Copy, along: int, x: Value, y: Value, rows: int, columns: int
) -> None:
    """Emit the transposition of at most lanes by lanes elements in registers."""
    lanes = fn.isa.lanes
    type = vector(lanes, "float")
    nothing = fn.as_value(type, 0.0)
    lines = [
        fn.load_some(type, fn.at(x, k * copy.source[-1]), rows) if k < columns else nothing
        for k in range(lanes)
    ]
    for r, line in enumerate(transpose_registers(fn, lines)[:rows]):
        fn.store_some(line, fn.at(y, r * copy.target[along]), columns)


def transpose_registers(fn: Function, lines: Sequence[Value]) -> list[Value]:
    """Return the columns of a square of vectors, by log2(lanes) perfect shuffles of pairs."""
    lanes = len(lines)
    low = [k // 2 + (k % 2) * lanes for k in range(lanes)]
    high = [k + lanes // 2 for k in low]
    lines = list(lines)
    for _ in range(lanes.bit_length() - 1):
        pairs = list(zip(lines[: lanes // 2], lines[lanes // 2 :], strict=True))
        lines = [fn.shuffle(a, b, order) for a, b in pairs for order in (low, high)]
    return lines


# -- the ops as copies ------------------------------------------------------------------------


def copy_step(context: Context, node: Node, copy: Copy, output: int, name: str) -> Step:
    """Return the step of a copy from input 0 to an output."""
    return _step(context, node, copy, node.used[0], output, name)


def _step(context: Context, node: Node, copy: Copy, source: int, target: int, name: str) -> Step:
    code, chunks = copy_kernel(context.isa, copy, name)
    seconds = math.prod(copy.shape) * copy.item / 4e9
    return Step(
        code, (context.operand(source),), (target,), chunks, seconds=seconds, nodes=(node.id,)
    )


def _reason(graph: Graph, node: Node) -> str | None:
    """Say why moving bytes would be wrong or has no kernel."""
    if node.attrs.get("activation"):
        return f"{node.op} has no native kernel with an activation"
    types = [graph.type(i) for i in (*_moved(node), *node.outputs)]
    if any(type.quant != types[0].quant for type in types):
        return f"{node.op} has no native kernel between different quantisations"
    if not all(type.elements for type in types):
        return f"{node.op} has no native kernel for empty tensors"
    if types[0].dtype == "string" or itemsize(types[0].dtype) not in (1, 2, 4, 8):
        return f"{node.op} has no native kernel for {types[0].dtype}"
    for value in node.used:
        if value not in _moved(node) and not graph.values[value].is_constant:
            return f"{node.op} has native kernels for constant parameters only"
    return None


def _moved(node: Node) -> tuple[int, ...]:
    """The inputs whose elements are moved, not parameters."""
    return node.used if node.op == "concat" else node.used[:1]


def _ints(context: Context, node: Node, position: int) -> Ints | None:
    value = node.inputs[position] if position < len(node.inputs) else None
    if value is None:
        return None
    data = context.graph.values[value].data
    return tuple(int(v) for v in np.asarray(data).reshape(-1))


def _item(context: Context, node: Node) -> int:
    return itemsize(context.type(node.used[0]).dtype)


def _lower_transpose(context: Context, node: Node) -> list[Step]:
    x, y = context.type(node.used[0]).dims, context.type(node.outputs[0]).dims
    perm = node.attrs["perm"] or tuple(reversed(range(len(x))))
    strides = dense(x)
    source = tuple(strides[axis % len(x)] for axis in perm)
    copy = Copy(y, source, dense(y), _item(context, node))
    return [copy_step(context, node, copy, node.outputs[0], "transpose")]


def _lower_concat(context: Context, node: Node) -> list[Step]:
    y = context.type(node.outputs[0]).dims
    axis, target, at, steps = node.attrs["axis"] % len(y), dense(y), 0, []
    for value in node.used:
        x = context.type(value).dims
        copy = Copy(x, dense(x), target, _item(context, node), 0, at)
        steps.append(_step(context, node, copy, value, node.outputs[0], "concat"))
        at += x[axis] * target[axis]
    return steps


def _lower_split(context: Context, node: Node) -> list[Step]:
    x = context.type(node.used[0]).dims
    axis, source, at, steps = node.attrs["axis"] % len(x), dense(x), 0, []
    for output in node.outputs:
        y = context.type(output).dims
        copy = Copy(y, source, dense(y), _item(context, node), at)
        steps.append(copy_step(context, node, copy, output, "split"))
        at += y[axis] * source[axis]
    return steps


def _lower_slice(context: Context, node: Node) -> list[Step]:
    x, y = context.type(node.used[0]).dims, context.type(node.outputs[0]).dims
    starts, ends = _ints(context, node, 1) or (), _ints(context, node, 2) or ()
    axes = _ints(context, node, 3) or tuple(range(len(starts)))
    every = _ints(context, node, 4) or (1,) * len(starts)
    source, at = list(dense(x)), 0
    for axis, start, end, step in zip(axes, starts, ends, every, strict=True):
        stride = source[axis % len(x)]
        at += slice_range(x[axis % len(x)], start, end, step).start * stride
        source[axis % len(x)] = stride * step
    copy = Copy(y, tuple(source), dense(y), _item(context, node), at)
    return [copy_step(context, node, copy, node.outputs[0], "slice")]


def _lower_expand(context: Context, node: Node) -> list[Step]:
    x, y = context.type(node.used[0]).dims, context.type(node.outputs[0]).dims
    padded = (1,) * (len(y) - len(x)) + x
    strides = (0,) * (len(y) - len(x)) + dense(x)
    source = tuple(s if p != 1 else 0 for s, p in zip(strides, padded, strict=True))
    copy = Copy(y, source, dense(y), _item(context, node))
    return [copy_step(context, node, copy, node.outputs[0], "expand")]


def _lower_tile(context: Context, node: Node) -> list[Step]:
    x, y = context.type(node.used[0]).dims, context.type(node.outputs[0]).dims
    strides = dense(x)
    shape = tuple(d for size, whole in zip(x, y, strict=True) for d in (whole // size, size))
    source = tuple(d for stride in strides for d in (0, stride))
    target = tuple(
        d for size, stride in zip(x, dense(y), strict=True) for d in (size * stride, stride)
    )
    copy = Copy(shape or (1,), source or (1,), target or (1,), _item(context, node))
    return [copy_step(context, node, copy, node.outputs[0], "tile")]


def _pad_reason(graph: Graph, node: Node) -> str | None:
    if node.attrs["mode"] != "constant":
        return f"pad has no native kernel for mode {node.attrs['mode']}"
    for position in (1, 2, 3):
        value = node.inputs[position] if position < len(node.inputs) else None
        if value is not None and not graph.values[value].is_constant:
            return "pad has native kernels for constant pads and values only"
    if graph.type(node.used[0]).quant is not None and len(node.used) > 2:
        return "pad has no native kernel for a given value of a quantised tensor"
    return _reason(graph, node)


def _lower_pad(context: Context, node: Node) -> list[Step]:
    x, y = context.type(node.used[0]).dims, context.type(node.outputs[0]).dims
    pads = _ints(context, node, 1) or ()
    axes = _ints(context, node, 3) or tuple(range(len(pads) // 2))
    before = [0] * len(x)
    after = [0] * len(x)
    for k, axis in enumerate(axes):
        before[axis % len(x)], after[axis % len(x)] = pads[k], pads[k + len(axes)]
    cut = [max(-b, 0) for b in before]
    kept = tuple(size + min(b, 0) + min(a, 0) for size, b, a in zip(x, before, after, strict=True))
    source, target, item = dense(x), dense(y), _item(context, node)
    steps = [_fill_step(context, node, _fill(context, node))]
    if all(size > 0 for size in kept):
        copy = Copy(
            kept, source, target, item,
            sum(c * s for c, s in zip(cut, source, strict=True)),
            sum(max(b, 0) * t for b, t in zip(before, target, strict=True)),
        )  # fmt: skip
        steps.append(copy_step(context, node, copy, node.outputs[0], "pad"))
    return steps


def _fill(context: Context, node: Node) -> Array:
    """The value of a pad as an array of one item."""
    type = context.type(node.used[0])
    value = node.inputs[2] if len(node.inputs) > 2 else None
    if value is not None:
        return np.asarray(context.graph.values[value].data).reshape(1)
    zero = type.quant.zero_point if type.quant is not None else 0
    return np.full(1, zero, numpy_dtype(type.dtype))


def _fill_step(context: Context, node: Node, fill: Array) -> Step:
    y = context.type(node.outputs[0]).dims
    copy = Copy((math.prod(y),), (0,), (1,), _item(context, node))
    code, chunks = copy_kernel(context.isa, copy, "fill")
    return Step(code, (fill,), (node.outputs[0],), chunks, nodes=(node.id,))


RULES["transpose"] = Rule(_reason, _lower_transpose)
RULES["concat"] = Rule(_reason, _lower_concat)
RULES["split"] = Rule(_reason, _lower_split)
RULES["slice"] = Rule(_reason, _lower_slice)
RULES["expand"] = Rule(_reason, _lower_expand)
RULES["tile"] = Rule(_reason, _lower_tile)
RULES["pad"] = QUANTISED_RULES["pad"] = Rule(_pad_reason, _lower_pad)
