"""Reductions along any axes, float and quantised: an item makes a result, or a vector of them.

Where the reduced elements are contiguous, an item reads them by vectors and joins the lanes at the
end. Otherwise the lanes are neighbouring results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trireme.devices.opencl.kernels.elementwise import (
    Ints,
    OperandWalk,
    axis_code,
    dense_strides,
    merge,
    outer_work,
    row_group,
)
from trireme.devices.opencl.kernels.integer import clamped, numbers, scaled
from trireme.devices.opencl.kernels.shared_rows import SharedRows, shared_rows
from trireme.devices.opencl.kernels.source import Lanes, lanes_for
from trireme.devices.opencl.kernels.tiles import indent
from trireme.devices.opencl.lowering import C_TYPES, KernelName, Lowering, Pointer
from trireme.ir.graph import Graph, Node, Rounding
from trireme.ir.op import call_of
from trireme.ops import integer as q


@dataclass(frozen=True)
class Accumulation:
    """How a result {s} grows by the next value {v}.

    before: makes {v} of an element
    end: makes a result of {s} and the number of elements COUNT
    ctype: the type of the computation
    """

    start: str
    step: str
    end: str = "{s}"
    before: str = "{v}"
    ctype: str = "float"

    def more(self, total: str, element: str, lanes: Lanes) -> list[str]:
        """Return the statements that add the variable `element` to the variable `total`."""
        value = self.before.format(v=element)
        return [
            f"const {lanes.type(self.ctype)} v = {value};",
            f"{total} = {self.step.format(s=total, v='v')};",
        ]


_MAX = "({v} > {s}) | ({v} != {v}) ? {v} : {s}"
_ADD = "{s} + {v}"
REDUCTIONS: dict[str, Accumulation] = {
    "reduce_sum": Accumulation("0.0f", _ADD),
    "reduce_mean": Accumulation("0.0f", _ADD, "{s} / (float)COUNT"),
    "reduce_max": Accumulation("-INFINITY", _MAX),
    "reduce_min": Accumulation("INFINITY", _MAX.replace(">", "<")),
    "reduce_prod": Accumulation("1.0f", "{s} * {v}"),
    "reduce_l1": Accumulation("0.0f", _ADD, before="fabs({v})"),
    "reduce_l2": Accumulation("0.0f", _ADD, "sqrt({s})", "{v} * {v}"),
    "reduce_sum_square": Accumulation("0.0f", _ADD, before="{v} * {v}"),
    "reduce_log_sum": Accumulation("0.0f", _ADD, "log({s})"),
}
QUANTIZED = ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min")


def refuse_quantized_reduction(graph: Graph, node: Node) -> str | None:
    """Return why there is no kernel for a reduction of quantised values, or None."""
    call = call_of(graph, node)
    if node.op in ("reduce_max", "reduce_min"):
        q.same_quant(call)
    else:
        (q.reduce_mean_params if node.op == "reduce_mean" else q.reduce_sum_params)(call)
    return None if reduced_axes(graph, node) is not None else "the axes are not constant"


def lower_quantized_reduction(low: Lowering, chain: list[Node]) -> None:
    """Emit a reduction of stored integers: see quantize.ReduceParams."""
    node = chain[0]
    least, most = q.dtype_limits(low.graph.type(node.used[0]).dtype)
    if node.op in ("reduce_max", "reduce_min"):
        step, start = ("max", least) if node.op == "reduce_max" else ("min", most)
        emit_reduction(low, chain, Accumulation(f"({start})", f"{step}({{s}}, {{v}})", ctype="int"))
        return
    lower = q.reduce_mean_params if node.op == "reduce_mean" else q.reduce_sum_params
    emit_reduction(low, chain, Accumulation("0", _ADD, ctype="int"), lower(low.call(node)))


def lower_reduction(low: Lowering, chain: list[Node]) -> None:
    """Emit a float reduction."""
    emit_reduction(low, chain, REDUCTIONS[chain[0].op])


def reduced_axes(graph: Graph, node: Node) -> Ints | None:
    """Return the reduced axes, in order; None when they are not constant."""
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
    """Return why there is no kernel for a reduction, or None."""
    return None if reduced_axes(graph, node) is not None else "the axes are not constant"


def split_walk(dims: Ints, axes: Ints) -> tuple[OperandWalk, OperandWalk]:
    """Return the walks of kept axes (strides of y and x) and of reduced axes (of x)."""
    strides = dense_strides(dims)
    kept = [axis for axis in range(len(dims)) if axis not in axes]
    kept_dims = tuple(dims[axis] for axis in kept)
    outer = merge(kept_dims, [dense_strides(kept_dims), tuple(strides[axis] for axis in kept)])
    inner = merge(tuple(dims[a] for a in axes), [tuple(strides[a] for a in axes)])
    return outer, inner


def emit_reduction(
    low: Lowering, chain: list[Node], how: Accumulation, params: q.ReduceParams | None = None
) -> None:
    """Emit a reduction; `params` requantise an integer sum."""
    node, graph = chain[0], low.graph
    dtype = graph.type(node.used[0]).dtype
    dims = graph.type(node.used[0]).dims
    outer, inner = split_walk(dims, reduced_axes(graph, node) or ())
    n, along = outer.dims[-1], outer.strides[1][-1] == 1
    lanes = Lanes(lanes_for(n, low.tuning.vector) if along else 1)
    together = not along and inner.strides[0][-1] == 1
    wide = Lanes(lanes_for(inner.dims[-1], low.tuning.vector) if together else 1)
    code, coordinates = axis_code(len(outer.dims) - 1)
    scalars = {"N": n, "COUNT": math.prod(inner.dims), "XS": outer.strides[1][-1]}
    scalars |= {f"D{a}": size for a, size in enumerate(outer.dims[1:-1], 1)}
    scalars |= {} if params is None else numbers(params)
    places = {"x": ["at * XS"], "y": ["at"]}
    for axis, coordinate in enumerate(coordinates):
        for name, steps in (("y", outer.strides[0]), ("x", outer.strides[1])):
            scalars[f"{name.upper()}{axis}"] = steps[axis]
            places[name].append(f"{coordinate} * {name.upper()}{axis}")
    if together and len(outer.dims) == len(inner.dims) == 1:
        shared = shared_rows(low.tuning, n, inner.dims[-1])
        if shared is not None:
            _emit_shared(low, chain, how, params, shared, scalars)
            return
    kind = lanes.type(how.ctype)
    lines = [
        f"const int at = min(i0 * {lanes.n}, N - {lanes.n});",
        *code,
        f"__global const {C_TYPES[dtype]} *r = x + {' + '.join(places['x'])};",
        f"{kind} s = {lanes.splat(how.ctype, how.start)};",
    ]
    loops, ends = _loops(inner, scalars, wide)
    if wide.n > 1:
        lines += _vector_rows(loops, ends, wide, how, dtype)
    else:
        lines += [*loops, f"const {kind} q = {_element(lanes, how, dtype, 'r + from')};"]
        lines += [*how.more("s", "q", lanes), *ends]
    lines.append(f"s = {how.end.format(s='s')};")
    lines += _stored(lanes, dtype, how, params, f"y + {' + '.join(places['y'])}")
    tensors = [
        Pointer("x", C_TYPES[dtype], low.ref(node.used[0])),
        Pointer("y", C_TYPES[dtype], low.ref(node.outputs[0]), writes=True),
    ]
    items = -(-n // lanes.n)
    low.emit(
        chain,
        KernelName(node.op, dtype, "reduce"),
        tensors,
        (items, *outer_work(outer.dims)),
        indent(lines),
        scalars=scalars,
        group=row_group(low, items),
    )


def _emit_shared(
    low: Lowering,
    chain: list[Node],
    how: Accumulation,
    params: q.ReduceParams | None,
    shared: SharedRows,
    scalars: dict[str, int],
) -> None:
    """Emit a reduction of rows of COUNT elements that lie together."""
    node, one = chain[0], Lanes(1)
    dtype = low.graph.type(node.used[0]).dtype
    lines = [
        *shared.start(how.ctype, "COUNT"),
        f"__global const {C_TYPES[dtype]} *r = x + i1 * XS;",
        f"{how.ctype} s = {how.start};",
        f"for (int k = lane; k < length; k += {shared.items}) {{",
        f"const {how.ctype} q = {_element(one, how, dtype, 'r + k')};",
        *how.more("s", "q", one),
        "}",
        *shared.join(how.ctype, "s", how.step),
        "if (lane == 0 && i1 < ROWS) {",
        f"s = {how.end.format(s='s')};",
        *_stored(one, dtype, how, params, "y + i1"),
        "}",
    ]
    low.emit(
        chain,
        KernelName(node.op, dtype, "reduce", variant="_shared"),
        [
            Pointer("x", C_TYPES[dtype], low.ref(node.used[0])),
            Pointer("y", C_TYPES[dtype], low.ref(node.outputs[0]), writes=True),
        ],
        shared.work,
        indent(lines),
        scalars={**scalars, "ROWS": shared.count},
        group=shared.group,
        local=True,
    )


def _element(lanes: Lanes, how: Accumulation, dtype: str, pointer: str) -> str:
    """Return elements loaded in the type of the reduction."""
    value = lanes.load(dtype, pointer)
    return value if how.ctype == "float" else lanes.convert(how.ctype, value)


def _stored(
    lanes: Lanes, dtype: str, how: Accumulation, params: q.ReduceParams | None, pointer: str
) -> Sequence[str]:
    """Return the statements that store the result."""
    if how.ctype == "float":
        return [lanes.store(dtype, "s", pointer)]
    value = "s"
    if params is not None:
        acc = f"s - {lanes.splat('int', 'count * x_zero')}"
        if params.rounding is Rounding.HALF_EVEN:
            product = f"{lanes.convert('long', acc)} * {lanes.splat('long', 'multiplier')}"
            divisor = lanes.splat("long", "(long)divisor << (31 - shift)")
            value = lanes.convert("int", f"divide_even{lanes.n}({product}, {divisor})")
        else:
            value = scaled(lanes, acc, params.rounding)
        value = clamped(lanes, value)
    return [lanes.store(dtype, lanes.convert(C_TYPES[dtype], value), pointer)]


def _loops(
    inner: OperandWalk, scalars: dict[str, int], lanes: Lanes
) -> tuple[list[str], list[str]]:
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
    loops: list[str], ends: list[str], lanes: Lanes, how: Accumulation, dtype: str
) -> list[str]:
    """Return the reduction of rows whose elements lie together: vectors, tail, then the lanes."""
    kind, one = lanes.type(how.ctype), Lanes(1)
    return [
        f"{kind} p = {lanes.splat(how.ctype, how.start)};",
        *loops,
        "int k = from;",
        f"for (; k + {lanes.n} <= from + R; k += {lanes.n}) {{",
        f"const {kind} q = {_element(lanes, how, dtype, 'r + k')};",
        *how.more("p", "q", lanes),
        "}",
        "for (; k < from + R; k++) {",
        f"const {how.ctype} q = {_element(one, how, dtype, 'r + k')};",
        *how.more("s", "q", one),
        "}",
        *ends,
        f"{how.ctype} t[{lanes.n}];",
        lanes.store("int32" if how.ctype == "int" else "float32", "p", "t"),
        f"for (int j = 0; j < {lanes.n}; j++) {{",
        f"const {how.ctype} v = t[j];",
        f"s = {how.step.format(s='s', v='v')};",
        "}",
    ]
