"""Kernels that only move elements: one strided copy, and one copy by a table of places.

The op's own reference gives the move: from every element's index it returns the source element of
each output element. With one step along each axis the copy is strided. Otherwise a table holds a
place for every run of elements that stay together, or -1 for filled ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trireme.devices.opencl.kernels.elementwise import (
    Ints,
    axis_code,
    dense_strides,
    merge,
    outer_work,
    row_group,
)
from trireme.devices.opencl.kernels.source import Lanes, activation, lanes_for
from trireme.devices.opencl.lowering import C_TYPES, KernelName, Lowering, Pointer, Ref, Traffic
from trireme.ir.graph import Graph, Node
from trireme.ir.op import get_op
from trireme.ops.integer import concat_tables
from trireme.support.dtypes import Array, itemsize, numpy_dtype

BY_SIZE = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}
_TRAFFIC: Mapping[str, Traffic] = {
    "gather": "as written",
    "slice": "as written",
    "split": "as written",
    "concat": "as read",
}
"""Ops that read a part of their input, or write a part of their output."""
C_NAMES = {"uint8": "uchar", "uint16": "ushort", "uint32": "uint", "uint64": "ulong"}
MOVES = (
    "transpose",
    "slice",
    "expand",
    "tile",
    "split",
    "reverse",
    "pad",
    "depth_to_space",
    "space_to_depth",
    "gather",
    "batch_to_space",
    "space_to_batch",
)
"""Ops that move their first input; the other inputs give the places."""


@dataclass(frozen=True)
class Side:
    """One side of a strided copy: its place, strides and first element, in elements."""

    ref: Ref
    strides: Ints
    first: int = 0


def refuse_move(graph: Graph, node: Node) -> str | None:
    """Return why a moving op has no kernel here, or None."""
    for value in node.used[1:]:
        if not graph.values[value].is_constant:
            return "an input that says what moves where is not a constant"
    if node.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        return "no kernel for tf_crop_and_resize"
    return None


def lower_move(low: Lowering, chain: list[Node]) -> None:
    """Emit a moving op: every output as a copy of elements of the first input."""
    node, graph = chain[0], low.graph
    source = low.ref(node.used[0])
    for out, places in zip(node.outputs, _places(graph, node), strict=True):
        dtype, target = graph.type(out).dtype, low.ref(out)
        strides = _steps(places)
        if strides is None:
            _emit_table(low, node, source, target, dtype, places)
            continue
        first = int(places.reshape(-1)[0]) if places.size else 0
        dense = dense_strides(graph.type(out).dims)
        emit_strided(
            low,
            node,
            dtype,
            graph.type(out).dims,
            Side(source, strides, first),
            Side(target, dense),
        )


def _places(graph: Graph, node: Node) -> list[Array]:
    """Return, for each output, the input element of each place; -1 is filled.

    Elements are numbered from 1, so the zeros that an op fills in differ from all of them.
    """
    shape = graph.type(node.used[0]).dims
    count = math.prod(shape)
    feeds: list[Array | None] = [np.arange(1, count + 1, dtype=np.int64).reshape(shape)]
    feeds += [None if v is None else graph.values[v].data for v in node.inputs[1:]]
    if node.op == "pad":
        feeds = [*feeds, None, None, None][:4]
        feeds[2] = np.asarray(0)
    result = get_op(node.op).reference(*feeds, **node.attrs)
    return [np.asarray(part) - 1 for part in (result if isinstance(result, tuple) else (result,))]


def _steps(places: Array) -> Ints | None:
    """Return the step along each axis when it is the same everywhere, else None.

    A filled place has no step.
    """
    if not places.size:
        return (0,) * places.ndim
    if places.min() < 0:
        return None
    origin = (0,) * places.ndim
    steps, line = [], places[origin]
    for axis, size in enumerate(places.shape):
        one = tuple(int(a == axis) for a in range(places.ndim))
        step = int(places[one] - places[origin]) if size > 1 else 0
        steps.append(step)
        shape = [-1 if a == axis else 1 for a in range(places.ndim)]
        line = line + (np.arange(size) * step).reshape(shape)
    return tuple(steps) if np.array_equal(line, places) else None


def emit_strided(
    low: Lowering,
    node: Node,
    dtype: str,
    dims: Ints,
    source: Side,
    target: Side,
    *,
    table: Array | None = None,
    fused: str = "",
) -> None:
    """Emit target[..] = source[..] over `dims`, through a table of bytes or an activation."""
    plan = merge(dims, [target.strides, source.strides])
    n, (to, out_of) = plan.dims[-1], plan.strides
    both = to[-1] == out_of[-1] == 1 and table is None
    lanes = Lanes(lanes_for(n, low.tuning.vector) if both else 1)
    kind = dtype if fused else BY_SIZE[itemsize(dtype)]
    scalars = {"N": n, "XA": source.first, "YA": target.first}
    scalars |= {f"D{a}": size for a, size in enumerate(plan.dims[1:-1], 1)}
    code, coordinates = axis_code(len(plan.dims) - 1)
    terms = {"X": [f"XA + at * {_step('X', out_of, scalars)}"], "Y": ["YA + at * YS"]}
    scalars["YS"] = to[-1]
    for axis, coordinate in enumerate(coordinates):
        for side, steps in (("X", out_of), ("Y", to)):
            scalars[f"{side}{axis}"] = steps[axis]
            terms[side].append(f"{coordinate} * {side}{axis}")
    value = lanes.load(kind, f"x + {' + '.join(terms['X'])}")
    ctype = C_NAMES.get(kind, "float")
    lines = [
        f"const int at = min(i0 * {lanes.n}, N - {lanes.n});",
        *code,
        f"{lanes.type(ctype)} v = {'lut[' + value + ']' if table is not None else value};",
    ]
    if fused:
        lines.append(f"v = {activation(fused, 'v', lanes)};")
    lines.append(lanes.store(kind, "v", f"y + {' + '.join(terms['Y'])}"))
    stored = C_TYPES[kind]
    tensors = [Pointer("x", stored, source.ref), Pointer("y", stored, target.ref, writes=True)]
    if table is not None:
        tensors.append(Pointer("lut", "uchar", low.constant(table, ("lut", table.tobytes()))))
    items = -(-n // lanes.n)
    low.emit(
        [node],
        _name(node, "strided", "" if node.op == "concat" else "transpose_strided"),
        tensors,
        (items, *outer_work(plan.dims)),
        "\n".join(f"  {line}" for line in lines),
        scalars=scalars,
        group=row_group(low, items),
    )


def _name(node: Node, form: str, family: str) -> KernelName:
    return KernelName(node.op, form, family, traffic=_TRAFFIC.get(node.op, "whole"))


def _step(side: str, strides: Ints, scalars: dict[str, int]) -> str:
    scalars[f"{side}S"] = strides[-1]
    return f"{side}S"


def _emit_table(
    low: Lowering, node: Node, source: Ref, target: Ref, dtype: str, places: Array
) -> None:
    """Emit a copy of runs of elements by a table of where each run starts."""
    run = run_length(places)
    starts = places.reshape(-1, run)[:, 0].astype(np.int32)
    kind = BY_SIZE[itemsize(dtype)]
    ctype = C_NAMES[kind]
    lanes = Lanes(lanes_for(run, low.tuning.vector))
    lines = [
        f"const int at = min(i0 * {lanes.n}, RUN - {lanes.n}), from = table[i1];",
        f"{lanes.type(ctype)} v = {lanes.splat(ctype, 'fill[0]')};",
        f"if (from >= 0) v = {lanes.load(kind, 'x + from + at')};",
        lanes.store(kind, "v", "y + i1 * RUN + at"),
    ]
    fill = fill_value(low.graph, node).view(numpy_dtype(kind))
    tensors = [
        Pointer("x", ctype, source),
        Pointer("table", "int", low.constant(starts, ("places", node.id, target.key))),
        Pointer("fill", ctype, low.constant(fill, ("fill", fill.tobytes()))),
        Pointer("y", ctype, target, writes=True),
    ]
    items = -(-run // lanes.n)
    low.emit(
        [node],
        _name(node, "table", "table"),
        tensors,
        (items, len(starts)),
        "\n".join(f"  {line}" for line in lines),
        scalars={"RUN": run},
        group=row_group(low, items),
    )


def fill_value(graph: Graph, node: Node) -> Array:
    """Return the fill value of a pad, as an array of one element of the stored dtype."""
    type = graph.type(node.used[0])
    value = node.inputs[2] if node.op == "pad" and len(node.inputs) > 2 else None
    if value is not None:
        return np.asarray(graph.values[value].data).reshape(-1)[:1].copy()
    if type.quant is None:
        return np.zeros(1, numpy_dtype(type.dtype))  # a cast of 0 is NaN where a dtype has no 0
    return np.full(1, type.quant.zero_point, numpy_dtype(type.dtype))


def run_length(places: Array) -> int:
    """Return the greatest length such that all runs of it are consecutive, or all filled."""
    flat = places.reshape(-1)
    step = np.diff(flat)
    joined = (step == 1) & (flat[:-1] >= 0) | ((flat[:-1] < 0) & (flat[1:] < 0))
    breaks = np.flatnonzero(~joined) + 1
    return int(np.gcd.reduce([*breaks.tolist(), flat.size])) if flat.size else 1


def lower_concat(low: Lowering, chain: list[Node]) -> None:
    """Emit a concat: each input copied to its place."""
    _concat(low, chain[0], [None] * len(chain[0].used))


def _concat(low: Lowering, node: Node, tables: Sequence[Array | None]) -> None:
    graph, out = low.graph, node.outputs[0]
    dims, dtype = graph.type(out).dims, graph.type(out).dtype
    axis = int(node.attrs["axis"]) % len(dims)
    steps, first = dense_strides(dims), 0
    for value, table in zip(node.used, tables, strict=True):
        shape = graph.type(value).dims
        emit_strided(
            low,
            node,
            dtype,
            shape,
            Side(low.ref(value), dense_strides(shape)),
            Side(low.ref(out), steps, first),
            table=table,
            fused=str(node.attrs["activation"]),
        )
        first += shape[axis] * steps[axis]


def lower_quantized_concat(low: Lowering, chain: list[Node]) -> None:
    """Emit a quantised concat: inputs whose quantisation differs go through a table of bytes."""
    tables = concat_tables(low.call(chain[0]))
    _concat(low, chain[0], [None if t is None else t.view(np.uint8) for t in tables])


def refuse_concat(graph: Graph, node: Node) -> str | None:
    """Return why there is no kernel for a concat, or None."""
    fused, dtype = str(node.attrs["activation"]), graph.type(node.outputs[0]).dtype
    if fused and dtype not in ("float32", "float16"):
        return f"no kernel for activation {fused} on {dtype}"
    return None
