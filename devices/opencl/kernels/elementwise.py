"""Kernels of elementwise ops: chains of them in one pass, operands broadcast by strides.

Axes with the same walk in all operands are merged, so most kernels have one axis. An item makes the
lanes of one vector along the last axis. The last item of a row starts early enough to end with the
row, so there are no tails. Two items then compute some elements twice, with the same result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trireme.devices.opencl.kernels.expressions import statements
from trireme.devices.opencl.kernels.source import Lanes, lanes_for
from trireme.devices.opencl.lowering import C_TYPES, KernelName, Lowering, Pointer, Ref
from trireme.ir.graph import Node

Ints = tuple[int, ...]
Code = Callable[[Mapping[int, str], Lanes], tuple[list[str], str]]


@dataclass(frozen=True)
class OperandWalk:
    """The walk over operands: the merged dims, and strides in elements by operand."""

    dims: Ints
    strides: tuple[Ints, ...]


def walk(dims: Ints, shapes: Sequence[Ints]) -> OperandWalk:
    """Return the merged walk of operands of these shapes that broadcast to `dims`."""
    return merge(dims, [broadcast_strides(dims, shape) for shape in shapes])


def broadcast_strides(dims: Ints, shape: Ints) -> Ints:
    """Return the strides, in elements, of a dense operand broadcast to `dims`; 0 where repeated."""
    padded = (1,) * (len(dims) - len(shape)) + tuple(shape)
    dense = dense_strides(padded)
    return tuple(0 if size == 1 else stride for size, stride in zip(padded, dense, strict=True))


def dense_strides(shape: Ints) -> Ints:
    """Return the strides, in elements, of a dense tensor."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def merge(dims: Ints, strides: Sequence[Ints]) -> OperandWalk:
    """Return the walk with axes of size 1 dropped and neighbours merged where all strides allow."""
    kept_dims: list[int] = []
    kept: list[list[int]] = [[] for _ in strides]
    for axis, size in enumerate(dims):
        if size == 1:
            continue
        steps = [each[axis] for each in strides]
        joins = bool(kept_dims) and all(
            each[-1] == step * size for each, step in zip(kept, steps, strict=True)
        )
        if joins:
            kept_dims[-1] *= size
        else:
            kept_dims.append(size)
        for each, step in zip(kept, steps, strict=True):
            if joins:
                each[-1] = step
            else:
                each.append(step)
    if not kept_dims:
        return OperandWalk((1,), tuple((0,) for _ in strides))
    return OperandWalk(tuple(kept_dims), tuple(map(tuple, kept)))


def row_group(low: Lowering, items: int) -> Ints:
    """Return a work-group for `items` along a row and rows behind each other."""
    along = min(low.tuning.group, 1 << max(items - 1, 0).bit_length())
    return (along, max(low.tuning.group // along, 1))


def axis_code(count: int) -> tuple[list[str], list[str]]:
    """Return statements that find the outer coordinates of an item, and their names in order.

    The outer axes (all but the last) have sizes D0, D1..; items i1 walks the last of them, i2 the
    rest in one.
    """
    if count == 0:
        return [], []
    names = [f"c{axis}" for axis in range(count)]
    lines = [f"const int c{count - 1} = i1;"]
    if count > 1:
        lines.append("int rest = i2;")
        for axis in range(count - 2, 0, -1):
            lines.append(f"const int c{axis} = rest % D{axis}; rest /= D{axis};")
        lines.append("const int c0 = rest;")
    return lines, names


def outer_work(dims: Ints) -> Ints:
    """Return the work sizes of the outer axes, for `axis_code`."""
    if len(dims) == 1:
        return ()
    return (dims[-2],) if len(dims) == 2 else (dims[-2], math.prod(dims[:-2]))


def lower_chain(low: Lowering, nodes: Sequence[Node]) -> None:
    """Emit one kernel for elementwise nodes; the next node alone reads each node but the last."""
    made = {node.outputs[0]: f"v{i}" for i, node in enumerate(nodes)}
    target = nodes[-1].outputs[0]
    loads = list(dict.fromkeys(v for node in nodes for v in node.used if v not in made))

    def code(names: Mapping[int, str], lanes: Lanes) -> tuple[list[str], str]:
        every, lines = {**names, **made}, []
        for node in nodes:
            operands = [None if v is None else every[v] for v in node.inputs]
            lines += statements(low.graph, node, operands, made[node.outputs[0]], lanes)
        return lines, made[target]

    first, *others = (node.op for node in nodes)
    name = KernelName(first, family="elementwise", fused=tuple(others))
    emit_elementwise(low, nodes, name, loads, code)


def emit_elementwise(
    low: Lowering,
    nodes: Sequence[Node],
    name: KernelName,
    loads: Sequence[int],
    code: Code,
    numbers: Mapping[str, int] | None = None,
) -> None:
    """Emit a kernel that loads values, broadcast to the last node's output, and stores a result.

    `code` gets the variable of each value and the lanes, and returns statements and the variable to
    store; `numbers` are int arguments that the statements read.
    """
    graph, target = low.graph, nodes[-1].outputs[0]
    dims = graph.type(target).dims
    plan = walk(dims, [dims, *(graph.type(v).dims for v in loads)])
    n, strides = plan.dims[-1], plan.strides[1:]
    even = all(each[-1] in (0, 1) for each in strides)
    lanes = Lanes(low.tuning.vector if even and n >= low.tuning.vector else 1)
    before, coordinates = axis_code(len(plan.dims) - 1)
    body = [f"const int at = min(i0 * {lanes.n}, N - {lanes.n});", *before]
    tensors: list[Pointer] = []
    scalars = (
        {"N": n}
        | dict(numbers or {})
        | {f"D{a}": size for a, size in enumerate(plan.dims[1:-1], 1)}
    )
    names: dict[int, str] = {}
    for i, (value, steps) in enumerate(zip(loads, strides, strict=True)):
        operand, dtype = f"x{i}", graph.type(value).dtype
        tensors.append(Pointer(operand, C_TYPES[dtype], low.ref(value)))
        offset = _offset(operand, steps, coordinates, scalars)
        names[value] = f"a{i}"
        body.append(_load(f"a{i}", dtype, f"{operand} + {offset}", steps[-1], lanes))
    lines, result = code(names, lanes)
    body += lines
    out = _offset("y", plan.strides[0], coordinates, scalars)
    dtype = graph.type(target).dtype
    body.append(lanes.store(dtype, result, f"y + {out}"))
    tensors.append(Pointer("y", C_TYPES[dtype], low.ref(target), writes=True))
    items = -(-n // lanes.n)
    low.emit(
        nodes,
        name,
        tensors,
        (items, *outer_work(plan.dims)),
        "\n".join(f"  {line}" for line in body),
        scalars=scalars,
        group=row_group(low, items),
    )


def _offset(name: str, steps: Ints, coordinates: list[str], scalars: dict[str, int]) -> str:
    """Return an element offset; strides become scalar arguments named after the operand."""
    terms = ["at"] if steps[-1] == 1 else ([] if steps[-1] == 0 else [f"at * {name}_s"])
    if steps[-1] not in (0, 1):
        scalars[f"{name}_s"] = steps[-1]
    for axis, coordinate in enumerate(coordinates):
        if steps[axis]:
            scalars[f"{name}_s{axis}"] = steps[axis]
            terms.append(f"{coordinate} * {name}_s{axis}")
    return " + ".join(terms) or "0"


def _load(variable: str, dtype: str, pointer: str, step: int, lanes: Lanes) -> str:
    ctype = "float" if dtype == "float16" else C_TYPES[dtype]
    if step == 0:
        value = lanes.splat(ctype, Lanes(1).load(dtype, pointer))
    else:
        value = lanes.load(dtype, pointer)
    return f"const {lanes.type(ctype)} {variable} = {value};"


def copy_bytes(low: Lowering, nodes: Sequence[Node], source: Ref, target: Ref, nbytes: int) -> None:
    """Emit a plain copy."""
    lanes = Lanes(lanes_for(nbytes, 16))
    body = (
        f"  const int at = min(i0 * {lanes.n}, N - {lanes.n});\n"
        f"  {lanes.store('uint8', lanes.load('uint8', 'x + at'), 'y + at')}"
    )
    tensors = [Pointer("x", "uchar", source), Pointer("y", "uchar", target, writes=True)]
    low.emit(
        nodes, KernelName("copy"), tensors, (-(-nbytes // lanes.n),), body, scalars={"N": nbytes}
    )
