"""Kernels that go over rows: softmax, normalisations and reductions, one item a row or a vector.

A row is what is reduced. Where the elements of a row lie together an item goes over them by
vectors and adds the lanes up at the end; else the lanes are neighbouring rows.
"""

from __future__ import annotations

import math

from trireme.devices.opencl.kernels.elementwise import (
    Ints,
    Walk,
    axis_code,
    dense_strides,
    merge,
    outer_work,
    row_group,
)
from trireme.devices.opencl.kernels.products import indent, refuse_floats
from trireme.devices.opencl.kernels.source import Lanes, c_float, lanes_for
from trireme.devices.opencl.lowering import Lowering, Tensor
from trireme.graph import Graph, Node

_MAX = "({v} > {s}) | ({v} != {v}) ? {v} : {s}"
REDUCTIONS: dict[str, tuple[str, str, str]] = {
    "reduce_sum": ("0.0f", "{s} + {v}", "{s}"),
    "reduce_mean": ("0.0f", "{s} + {v}", "{s} / (float)COUNT"),
    "reduce_max": ("-INFINITY", _MAX, "{s}"),
    "reduce_min": ("INFINITY", _MAX.replace(">", "<"), "{s}"),
    "reduce_prod": ("1.0f", "{s} * {v}", "{s}"),
    "reduce_l1": ("0.0f", "{s} + {v}", "{s}"),
    "reduce_l2": ("0.0f", "{s} + {v}", "sqrt({s})"),
    "reduce_sum_square": ("0.0f", "{s} + {v}", "{s}"),
    "reduce_log_sum": ("0.0f", "{s} + {v}", "log({s})"),
}
"""(start, step, end) of each reduction, of a sum {s} and the next value {v}."""
_BEFORE = {"reduce_l1": "fabs({v})", "reduce_l2": "{v} * {v}", "reduce_sum_square": "{v} * {v}"}


def reduced_axes(graph: Graph, node: Node) -> Ints | None:
    """Return the axes a reduction goes over, in order; None when they are not constant."""
    rank = len(graph.type(node.used[0]).dims)
    given = node.inputs[1] if len(node.inputs) > 1 else None
    data = None if given is None else graph.values[given].data
    if given is not None and data is None:
        return None
    axes = () if data is None else tuple(int(axis) % rank for axis in data.reshape(-1))
    if not axes and not node.attrs["noop_with_empty_axes"]:
        axes = tuple(range(rank))
    return tuple(sorted(axes))


def refuse_reduction(graph: Graph, node: Node) -> str | None:
    """Say why there is no kernel for a reduction, or None."""
    if reduced_axes(graph, node) is None:
        return "the axes are not constant"
    return refuse_floats_first(graph, node)


def refuse_floats_first(graph: Graph, node: Node) -> str | None:
    """Say why there is no kernel for the dtype of the first input, or None."""
    dtype = graph.type(node.used[0]).dtype
    return None if dtype == "float32" else f"no kernel for {dtype} (has float32)"


def split_walk(dims: Ints, axes: Ints) -> tuple[Walk, Walk]:
    """Return the walks of what is kept (strides of y and x) and of what is reduced (of x)."""
    strides = dense_strides(dims)
    kept = [axis for axis in range(len(dims)) if axis not in axes]
    kept_dims = tuple(dims[axis] for axis in kept)
    outer = merge(kept_dims, [dense_strides(kept_dims), tuple(strides[axis] for axis in kept)])
    inner = merge(tuple(dims[a] for a in axes), [tuple(strides[a] for a in axes)])
    return outer, inner


def lower_reduction(low: Lowering, chain: list[Node]) -> None:
    """Emit a reduction along any axes."""
    node, graph = chain[0], low.graph
    dims = graph.type(node.used[0]).dims
    outer, inner = split_walk(dims, reduced_axes(graph, node) or ())
    n, count = outer.dims[-1], math.prod(inner.dims)
    along = outer.strides[1][-1] == 1
    lanes = Lanes(lanes_for(n, low.tuning.vector) if along else 1)
    step_lanes = lanes
    if not along and inner.strides[0][-1] == 1:
        step_lanes = Lanes(lanes_for(inner.dims[-1], low.tuning.vector))
    start, step, end = REDUCTIONS[node.op]
    before = _BEFORE.get(node.op, "{v}")
    code, coordinates = axis_code(len(outer.dims) - 1)
    scalars = {"N": n, "COUNT": count, "XS": outer.strides[1][-1]}
    scalars |= {f"D{a}": size for a, size in enumerate(outer.dims[1:-1], 1)}
    places = {"x": ["at * XS"], "y": ["at"]}
    for axis, coordinate in enumerate(coordinates):
        for name, steps in (("y", outer.strides[0]), ("x", outer.strides[1])):
            scalars[f"{name.upper()}{axis}"] = steps[axis]
            places[name].append(f"{coordinate} * {name.upper()}{axis}")
    loops, ends = _loops(inner, scalars, step_lanes if step_lanes != lanes else Lanes(1))
    lines = [
        f"const int at = min(i0 * {lanes.n}, N - {lanes.n});", *code,
        f"__global const float *r = x + {' + '.join(places['x'])};",
        f"{lanes.type('float')} s = {lanes.splat('float', start)};",
    ]  # fmt: skip
    if step_lanes != lanes:
        lines += _vector_rows(loops, ends, step_lanes, start, step, before, inner)
    else:
        value = lanes.load("float32", "r + from")
        lines += [*loops, f"const {lanes.type('float')} q = {value};"]
        lines += [f"const {lanes.type('float')} v = {before.format(v='q')};"]
        lines += [f"s = {step.format(s='s', v='v')};", *ends]
    lines.append(f"s = {end.format(s='s')};")
    lines.append(lanes.store("float32", "s", f"y + {' + '.join(places['y'])}"))
    tensors = [
        Tensor("x", "float", low.ref(node.used[0])),
        Tensor("y", "float", low.ref(node.outputs[0]), writes=True),
    ]
    items = -(-n // lanes.n)
    low.emit(
        chain, f"{node.op}_f32", tensors, (items, *outer_work(outer.dims)), indent(lines),
        scalars=scalars, group=row_group(low, items),
    )  # fmt: skip


def _loops(inner: Walk, scalars: dict[str, int], lanes: Lanes) -> tuple[list[str], list[str]]:
    """Return the loops over the reduced axes, which set `from`, and their closing braces.

    With more than one lane the last axis is left out: it is walked by vectors.
    """
    depth = len(inner.dims) - (lanes.n > 1)
    lines, terms = [], []
    for axis in range(depth):
        scalars[f"R{axis}"], scalars[f"T{axis}"] = inner.dims[axis], inner.strides[0][axis]
        lines.append(f"for (int r{axis} = 0; r{axis} < R{axis}; r{axis}++) {{")
        terms.append(f"r{axis} * T{axis}")
    if lanes.n > 1:
        scalars["R"] = inner.dims[-1]
    lines.append(f"const int from = {' + '.join(terms) or '0'};")
    return lines, ["}"] * depth


def _vector_rows(
    loops: list[str], ends: list[str], lanes: Lanes, start: str, step: str, before: str, inner: Walk
) -> list[str]:
    """Return the reduction of rows whose elements lie together: vectors, then lanes, then tail."""
    kind = lanes.type("float")
    return [
        f"{kind} p = {lanes.splat('float', start)};",
        *loops,
        "int k = from;",
        f"for (; k + {lanes.n} <= from + R; k += {lanes.n}) {{",
        f"const {kind} q = {lanes.load('float32', 'r + k')};",
        f"const {kind} v = {before.format(v='q')};",
        f"p = {step.format(s='p', v='v')};",
        "}",
        "for (; k < from + R; k++) {",
        "const float q = r[k];",
        f"const float v = {before.format(v='q')};",
        f"s = {step.format(s='s', v='v')};",
        "}",
        *ends,
        f"float t[{lanes.n}];",
        lanes.store("float32", "p", "t"),
        f"for (int j = 0; j < {lanes.n}; j++) {{",
        "const float v = t[j];",
        f"s = {step.format(s='s', v='v')};",
        "}",
    ]


def lower_softmax(low: Lowering, chain: list[Node]) -> None:
    """Emit softmax or log_softmax along one axis."""
    node = chain[0]
    dims = low.graph.type(node.used[0]).dims or (1,)
    axis = int(node.attrs["axis"]) % len(dims)
    size, inner = dims[axis], math.prod(dims[axis + 1 :])
    lanes = Lanes(lanes_for(inner, low.tuning.vector))
    beta = c_float(float(node.attrs.get("beta", 1.0)))
    kind, scale = lanes.type("float"), "" if beta == c_float(1.0) else f" * {beta}"
    load = f"{lanes.load('float32', 'x + first + k * INNER')}{scale}"
    put = lanes.store("float32", "e", "y + first + k * INNER")
    again = lanes.load("float32", "y + first + k * INNER")
    loop = "for (int k = 0; k < SIZE; k++) {"
    if node.op == "softmax":
        passes = [
            loop, f"const {kind} e = exp({load} - m);", "s += e;", put, "}",
            loop, f"const {kind} e = {again} / s;", put, "}",
        ]  # fmt: skip
    else:
        passes = [
            loop, f"s += exp({load} - m);", "}", "s = log(s);",
            loop, f"const {kind} e = {load} - m - s;", put, "}",
        ]  # fmt: skip
    lines = [
        f"const int first = i1 * SIZE * INNER + min(i0 * {lanes.n}, INNER - {lanes.n});",
        f"{kind} m = {lanes.splat('float', '-INFINITY')}, s = {lanes.splat('float', '0.0f')};",
        loop, f"const {kind} v = {load};", f"m = {_MAX.format(s='m', v='v')};", "}",
        *passes,
    ]  # fmt: skip
    _emit_rows(low, chain, lines, -(-inner // lanes.n), math.prod(dims[:axis]), size, inner)


def _emit_rows(
    low: Lowering, chain: list[Node], lines: list[str], items: int, rows: int, size: int,
    inner: int, more: list[Tensor] | None = None,
) -> None:  # fmt: skip
    node = chain[0]
    tensors = [
        Tensor("x", "float", low.ref(node.used[0])),
        *(more or []),
        Tensor("y", "float", low.ref(node.outputs[0]), writes=True),
    ]
    low.emit(
        chain, f"{node.op}_f32", tensors, (items, rows), indent(lines),
        scalars={"SIZE": size, "INNER": inner}, group=row_group(low, items),
    )  # fmt: skip


def refuse_normalization(graph: Graph, node: Node) -> str | None:
    """Say why there is no kernel for a layer or rms normalisation, or None."""
    if len(node.outputs) > 1:
        return "no kernel for the mean and deviation as outputs"
    dims = graph.type(node.used[0]).dims
    row = math.prod(dims[int(node.attrs["axis"]) % len(dims) :])
    for value in node.used[1:]:
        if graph.type(value).elements != row:
            return "scale and bias must be as long as a row"
    return refuse_floats(graph, node)


def lower_normalization(low: Lowering, chain: list[Node]) -> None:
    """Emit layer_normalization or rms_normalization: an item a row, by vectors with a tail."""
    node, graph = chain[0], low.graph
    dims = graph.type(node.used[0]).dims
    axis = int(node.attrs["axis"]) % len(dims)
    size = math.prod(dims[axis:])
    lanes = Lanes(lanes_for(size, low.tuning.vector))
    centred = node.op == "layer_normalization"
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    add = "" if bias is None else " + bias[k]"
    epsilon = c_float(float(node.attrs["epsilon"]))
    lines = [
        "__global const float *r = x + i0 * SIZE;",
        "float mean = 0.0f, s = 0.0f;",
        *(_row_sum(lanes, "{v}", "mean") if centred else []),
        "mean /= (float)SIZE;",
        *_row_sum(lanes, "({v} - mean) * ({v} - mean)", "s"),
        f"const float scaled = 1.0f / sqrt(s / (float)SIZE + {epsilon});",
        "for (int k = 0; k < SIZE; k++) "
        f"y[i0 * SIZE + k] = (r[k] - mean) * scaled * scale[k]{add};",
    ]
    more = [Tensor("scale", "float", low.ref(node.used[1]))]
    if bias is not None:
        more.append(Tensor("bias", "float", low.ref(bias)))
    tensors = [
        Tensor("x", "float", low.ref(node.used[0])), *more,
        Tensor("y", "float", low.ref(node.outputs[0]), writes=True),
    ]  # fmt: skip
    low.emit(
        chain, f"{node.op}_f32", tensors, (math.prod(dims[:axis]),), indent(lines),
        scalars={"SIZE": size}, group=(1,),
    )  # fmt: skip


def _row_sum(lanes: Lanes, term: str, into: str) -> list[str]:
    """Return the sum of a term over a row r of SIZE elements, added to a variable."""
    kind = lanes.type("float")
    return [
        "{",
        f"{kind} p = {lanes.splat('float', '0.0f')};",
        "int k = 0;",
        f"for (; k + {lanes.n} <= SIZE; k += {lanes.n}) {{",
        f"const {kind} v = {lanes.load('float32', 'r + k')};",
        f"p += {term.format(v='v')};",
        "}",
        f"for (; k < SIZE; k++) {{ const float v = r[k]; {into} += {term.format(v='v')}; }}",
        f"float t[{lanes.n}];",
        lanes.store("float32", "p", "t"),
        f"for (int j = 0; j < {lanes.n}; j++) {into} += t[j];",
        "}",
    ]
