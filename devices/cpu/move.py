"""Lowerings of the ops that only move elements: transpose, concat, split, slice, pad, expand, tile.

Each is one or more strided copies (copies.py), so every dtype is served, stored integers of
quantised tensors too.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from trireme.devices.cpu.copies import Copy, copy_kernel, copy_s, dense
from trireme.devices.cpu.elementwise import activation_step
from trireme.devices.cpu.kernels import TABLE, At, Context, Rule, Step, float_reason
from trireme.devices.cpu.products import activation_reason
from trireme.dtypes import Array, itemsize, numpy_dtype
from trireme.graph import Graph, Node
from trireme.kernel_table import PLAIN
from trireme.ops.slicing import slice_range

Ints = tuple[int, ...]


def copy_step(context: Context, node: Node, copy: Copy, output: int, name: str) -> Step:
    """Return the step of a copy from input 0 to an output."""
    return _step(context, node, copy, node.used[0], output, name)


def _step(context: Context, node: Node, copy: Copy, source: int, target: int, name: str) -> Step:
    """Return the step of a copy. Offsets are in the addresses, so that the parts of a split or a
    concat share a kernel.
    """
    read, write = context.operand(source), context.operand(target)
    if isinstance(read, int):
        read, copy = _at(read, copy.source_at * copy.item), replace(copy, source_at=0)
    if isinstance(write, int):
        write, copy = _at(write, copy.target_at * copy.item), replace(copy, target_at=0)
    code, chunks = context.kernel(copy_kernel, copy, name)
    return Step(code, (read,), (write,), chunks, seconds=copy_s(copy), nodes=(node.id,))


def _at(value: int, offset: int) -> int | At:
    return At(value, offset) if offset else value


def _reason(graph: Graph, node: Node) -> str | None:
    """Say why moving bytes would be wrong or has no kernel."""
    moved = _moved(node)
    types = [graph.type(i) for i in (*moved, *node.outputs)]
    if any(type.quant != types[0].quant for type in types):
        return f"{node.op} has no native kernel between different quantisations"
    if not all(type.elements for type in types):
        return f"{node.op} has no native kernel for empty tensors"
    if types[0].dtype == "string" or itemsize(types[0].dtype) not in (1, 2, 4, 8):
        return f"{node.op} has no native kernel for {types[0].dtype}"
    for value in node.used[len(moved) :]:
        if not graph.values[value].is_constant:
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
    activation, y_id = node.attrs["activation"], node.outputs[0]
    if activation:
        steps.append(activation_step(context, activation, y_id, node.id))
    return steps


def _concat_reason(graph: Graph, node: Node) -> str | None:
    if node.attrs["activation"]:
        return float_reason(graph, node) or activation_reason(node)
    return _reason(graph, node)


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


def _lower_reverse(context: Context, node: Node) -> list[Step]:
    x = context.type(node.used[0]).dims
    axes = {axis % len(x) for axis in node.attrs["axes"]}
    strides = dense(x)
    source = tuple(-s if axis in axes else s for axis, s in enumerate(strides))
    at = sum((x[axis] - 1) * strides[axis] for axis in axes)
    copy = Copy(x, source, strides, _item(context, node), at)
    return [copy_step(context, node, copy, node.outputs[0], "reverse")]


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
    code, chunks = context.kernel(copy_kernel, copy, "fill")
    return Step(code, (fill,), (node.outputs[0],), chunks, nodes=(node.id,))


TABLE.add("transpose", Rule(_reason, _lower_transpose))
TABLE.add("concat", Rule(_concat_reason, _lower_concat), [PLAIN])
TABLE.add("split", Rule(_reason, _lower_split))
TABLE.add("slice", Rule(_reason, _lower_slice))
TABLE.add("expand", Rule(_reason, _lower_expand))
TABLE.add("reverse", Rule(_reason, _lower_reverse))
TABLE.add("tile", Rule(_reason, _lower_tile))
TABLE.add("pad", Rule(_pad_reason, _lower_pad))
