"""Kernels along rows: softmax and normalisations, one item a row or a vector of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trireme.devices.opencl.kernels.elementwise import row_group
from trireme.devices.opencl.kernels.products import refuse_floats
from trireme.devices.opencl.kernels.shared_rows import SharedRows, shared_rows
from trireme.devices.opencl.kernels.source import Lanes, c_float, lanes_for
from trireme.devices.opencl.kernels.tiles import indent
from trireme.devices.opencl.lowering import KernelName, Lowering, Pointer
from trireme.ir.graph import Graph, Node


def lower_softmax(low: Lowering, chain: list[Node]) -> None:
    """Emit softmax or log_softmax along one axis."""
    node = chain[0]
    dims = low.graph.type(node.used[0]).dims or (1,)
    axis = int(node.attrs["axis"]) % len(dims)
    size, inner = dims[axis], math.prod(dims[axis + 1 :])
    if inner == 1 and (shared := shared_rows(low.tuning, math.prod(dims[:axis]), size)):
        _emit_shared_softmax(low, chain, shared, size)
        return
    # items must not share elements, because they read back their own results
    lanes = Lanes(min(inner & -inner, low.tuning.vector))
    beta = c_float(float(node.attrs.get("beta", 1.0)))
    kind, scale = lanes.type("float"), "" if beta == c_float(1.0) else f" * {beta}"
    load = f"{lanes.load('float32', 'x + first + k * INNER')}{scale}"
    put = lanes.store("float32", "e", "y + first + k * INNER")
    again = lanes.load("float32", "y + first + k * INNER")
    loop = "for (int k = 0; k < SIZE; k++) {"
    if node.op == "softmax":
        passes = [
            loop,
            f"const {kind} e = exp({load} - m);",
            "s += e;",
            put,
            "}",
            loop,
            f"const {kind} e = {again} / s;",
            put,
            "}",
        ]
    else:
        passes = [
            loop,
            f"s += exp({load} - m);",
            "}",
            "s = log(s);",
            loop,
            f"const {kind} e = {load} - m - s;",
            put,
            "}",
        ]
    lines = [
        f"const int first = i1 * SIZE * INNER + min(i0 * {lanes.n}, INNER - {lanes.n});",
        f"{kind} m = {lanes.splat('float', '-INFINITY')}, s = {lanes.splat('float', '0.0f')};",
        loop,
        f"const {kind} v = {load};",
        "m = (v > m) | (v != v) ? v : m;",
        "}",
        *passes,
    ]
    _emit_rows(low, chain, lines, -(-inner // lanes.n), math.prod(dims[:axis]), size, inner)


_MAX = "({v} > {s}) | ({v} != {v}) ? {v} : {s}"
_ADD = "{s} + {v}"


def _emit_shared_softmax(low: Lowering, chain: list[Node], shared: SharedRows, size: int) -> None:
    node = chain[0]
    beta = c_float(float(node.attrs.get("beta", 1.0)))
    load = "x[first + k]" if beta == c_float(1.0) else f"x[first + k] * {beta}"
    loop = f"for (int k = lane; k < length; k += {shared.items}) {{"
    if node.op == "softmax":
        total = [f"const float e = exp({load} - m);", "s += e;", "y[first + k] = e;"]
        last = "y[first + k] = y[first + k] / s;"
    else:
        total = [f"s += exp({load} - m);"]
        last = f"y[first + k] = {load} - m - s;"
    lines = [
        *shared.start("float", "SIZE"),
        "const int first = i1 * SIZE;",
        "float m = -INFINITY, s = 0.0f;",
        *[loop, f"const float v = {load};", f"m = {_MAX.format(s='m', v='v')};", "}"],
        *shared.join("float", "m", _MAX),
        *[loop, *total, "}"],
        *shared.join("float", "s", _ADD),
        *(["s = log(s);"] if node.op == "log_softmax" else []),
        *[loop, last, "}"],
    ]
    _emit_shared(low, chain, lines, shared, size)


def _emit_shared(
    low: Lowering,
    chain: list[Node],
    lines: list[str],
    shared: SharedRows,
    size: int,
    more: Sequence[Pointer] = (),
) -> None:
    node = chain[0]
    low.emit(
        chain,
        KernelName(node.op, "f32", variant="_shared"),
        [
            Pointer("x", "float", low.ref(node.used[0])),
            *more,
            Pointer("y", "float", low.ref(node.outputs[0]), writes=True),
        ],
        shared.work,
        indent(lines),
        scalars={"SIZE": size, "ROWS": shared.count},
        group=shared.group,
        local=True,
    )


def _emit_rows(
    low: Lowering,
    chain: list[Node],
    lines: list[str],
    items: int,
    rows: int,
    size: int,
    inner: int,
) -> None:
    node = chain[0]
    tensors = [
        Pointer("x", "float", low.ref(node.used[0])),
        Pointer("y", "float", low.ref(node.outputs[0]), writes=True),
    ]
    low.emit(
        chain,
        KernelName(node.op, "f32"),
        tensors,
        (items, rows),
        indent(lines),
        scalars={"SIZE": size, "INNER": inner},
        group=row_group(low, items),
    )


def refuse_normalization(graph: Graph, node: Node) -> str | None:
    """Return why there is no kernel for a layer or rms normalisation, or None."""
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
    more = [Pointer("scale", "float", low.ref(node.used[1]))]
    if bias is not None:
        more.append(Pointer("bias", "float", low.ref(bias)))
    scaled = f"const float scaled = 1.0f / sqrt(s / (float)SIZE + {epsilon});"
    if shared := shared_rows(low.tuning, math.prod(dims[:axis]), size):
        loop = f"for (int k = lane; k < length; k += {shared.items})"
        mean = [f"{loop} mean += r[k];", *shared.join("float", "mean", _ADD)]
        lines = [
            *shared.start("float", "SIZE"),
            "__global const float *r = x + i1 * SIZE;",
            "float mean = 0.0f, s = 0.0f;",
            *(mean if centred else []),
            "mean /= (float)SIZE;",
            f"{loop} {{ const float d = r[k] - mean; s += d * d; }}",
            *shared.join("float", "s", _ADD),
            scaled,
            f"{loop} y[i1 * SIZE + k] = (r[k] - mean) * scaled * scale[k]{add};",
        ]
        _emit_shared(low, chain, lines, shared, size, more)
        return
    lines = [
        "__global const float *r = x + i0 * SIZE;",
        "float mean = 0.0f, s = 0.0f;",
        *(_row_sum(lanes, "{v}", "mean") if centred else []),
        "mean /= (float)SIZE;",
        *_row_sum(lanes, "({v} - mean) * ({v} - mean)", "s"),
        scaled,
        "for (int k = 0; k < SIZE; k++) "
        f"y[i0 * SIZE + k] = (r[k] - mean) * scaled * scale[k]{add};",
    ]
    tensors = [
        Pointer("x", "float", low.ref(node.used[0])),
        *more,
        Pointer("y", "float", low.ref(node.outputs[0]), writes=True),
    ]
    low.emit(
        chain,
        KernelName(node.op, "f32"),
        tensors,
        (math.prod(dims[:axis]),),
        indent(lines),
        scalars={"SIZE": size},
        group=(1,),
    )


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
