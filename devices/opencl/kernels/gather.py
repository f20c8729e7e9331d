"""Kernels of gathers, whose indices may be read at run time: wrong ones are reported."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from trireme.devices.opencl.kernels.elementwise import row_group
from trireme.devices.opencl.kernels.movement import BY_SIZE, C_NAMES, lower_move, refuse_move
from trireme.devices.opencl.kernels.source import Lanes, lanes_for
from trireme.devices.opencl.lowering import KernelName, Lowering, Pointer
from trireme.ir.graph import Graph, Node
from trireme.ops.bounds import first_outside, outside_axis
from trireme.support.dtypes import itemsize

_MOST_INDEXED = 5
"""The most axes that a tuple of indices names; each has a report, and arguments are few."""


def lower_gather(low: Lowering, chain: list[Node]) -> None:
    """Emit a gather with run-time indices; a wrong index is reported.

    The kernel then reads slice 0, because later kernels run before the host reads the report.
    """
    node, graph = chain[0], low.graph
    if _is_known(graph, node):
        lower_move(low, chain)
        return
    x, index = graph.type(node.used[0]), graph.type(node.used[1])
    axis = int(node.attrs["axis"]) % len(x.dims)
    lines = [
        "const long asked = index[i1];",
        "const bool is_wrong = asked < -SIZE || asked >= SIZE;",
        "if (is_wrong && !i0 && !i2) { wrong[i1] = asked; atomic_max(first, W1 - i1); }",
        "const int from = is_wrong ? 0 : (int)(asked < 0 ? asked + SIZE : asked);",
    ]
    _emit_runs(
        low,
        node,
        lines,
        ("x + (i2 * SIZE + from) * RUN", "y + (i2 * W1 + i1) * RUN"),
        low.report(index.elements, partial(_wrong_index, node.label, x.dims[axis])),
        (index.elements, math.prod(x.dims[:axis])),
        {"RUN": math.prod(x.dims[axis + 1 :]), "SIZE": x.dims[axis]},
    )


def _emit_runs(
    low: Lowering,
    node: Node,
    lines: Sequence[str],
    places: tuple[str, str],
    reports: Sequence[Pointer],
    outer: tuple[int, ...],
    scalars: Mapping[str, int],
) -> None:
    """Emit the copy of a run of elements for each index.

    lines: what finds the place; places: where a run begins in x and in y
    outer: work items beyond those of a run; scalars: with RUN, the elements of a run
    """
    graph, run = low.graph, scalars["RUN"]
    x, index = graph.type(node.used[0]), graph.type(node.used[1])
    kind = BY_SIZE[itemsize(x.dtype)]
    lanes = Lanes(lanes_for(run, low.tuning.vector))
    code = [
        f"const int at = min(i0 * {lanes.n}, RUN - {lanes.n});",
        *lines,
        f"const {lanes.type(C_NAMES[kind])} v = {lanes.load(kind, f'{places[0]} + at')};",
        lanes.store(kind, "v", f"{places[1]} + at"),
    ]
    tensors = [
        Pointer("x", C_NAMES[kind], low.ref(node.used[0])),
        Pointer("index", "long" if index.dtype == "int64" else "int", low.ref(node.used[1])),
        *reports,
        Pointer("y", C_NAMES[kind], low.ref(node.outputs[0]), writes=True),
    ]
    items = -(-run // lanes.n)
    low.emit(
        [node],
        KernelName(node.op, family="transpose_strided", traffic="as written"),
        tensors,
        (items, *outer),
        "\n".join(f"  {line}" for line in code),
        scalars=scalars,
        group=row_group(low, items),
    )


def refuse_gather(graph: Graph, node: Node) -> str | None:
    """Return why there is no kernel for a gather, or None."""
    if _is_known(graph, node):
        return refuse_move(graph, node)
    if node.attrs["batch_dims"]:
        return "no kernel for batch_dims"
    if not all(graph.type(value).elements for value in node.used):
        return "no kernel for an empty gather"
    return None


def _is_known(graph: Graph, node: Node) -> bool:
    """Whether a gather's indices are constants in range; wrong ones are reported at run time."""
    indices, dims = graph.values[node.used[1]].data, graph.type(node.used[0]).dims
    size = dims[int(node.attrs["axis"]) % len(dims)]
    return indices is not None and first_outside(indices, -size, size - 1) is None


def lower_gather_nd(low: Lowering, chain: list[Node]) -> None:
    """Emit a gather_nd; a wrong index is reported, and the kernel reads place 0 of its axis.

    Indices of each axis have a report of their own, because the axes have sizes of their own.
    """
    node, graph = chain[0], low.graph
    x, index = graph.type(node.used[0]), graph.type(node.used[1])
    batch, width = int(node.attrs["batch_dims"]), index.dims[-1]
    sizes, run = x.dims[batch : batch + width], math.prod(x.dims[batch + width :])
    tuples = math.prod(index.dims[:-1])
    lines = ["int from = (i1 / EACH) * STEP;"]
    scalars = {
        "RUN": run,
        "EACH": math.prod(index.dims[batch:-1]),
        "STEP": math.prod(x.dims[batch:]),
    }
    reports: list[Pointer] = []
    for axis, size in enumerate(sizes):
        scalars |= {f"S{axis}": size, f"P{axis}": math.prod(x.dims[batch + axis + 1 :])}
        lines += [
            f"const long asked{axis} = index[i1 * {width} + {axis}];",
            f"const bool wrong{axis} = asked{axis} < -S{axis} || asked{axis} >= S{axis};",
            f"if (wrong{axis} && !i0) "
            f"{{ found{axis}[i1] = asked{axis}; atomic_max(first{axis}, W1 - i1); }}",
            f"if (!wrong{axis}) "
            f"from += (int)(asked{axis} < 0 ? asked{axis} + S{axis} : asked{axis}) * P{axis};",
        ]
        first, found = low.report(tuples, partial(_wrong_index, node.label, size))
        reports += [replace(first, name=f"first{axis}"), replace(found, name=f"found{axis}")]
    places = "x + from", "y + i1 * RUN"
    _emit_runs(low, node, lines, places, reports, (tuples,), scalars)


def _wrong_index(label: str, size: int, bad: int) -> str:
    return f"{label}: {outside_axis(bad, size)}"


def refuse_gather_nd(graph: Graph, node: Node) -> str | None:
    """Return why there is no kernel for a gather_nd, or None."""
    if not all(graph.type(value).elements for value in node.used):
        return "no kernel for an empty gather_nd"
    if graph.type(node.used[1]).dims[-1] > _MOST_INDEXED:
        return f"no kernel for indices of more than {_MOST_INDEXED} axes"
    return None
