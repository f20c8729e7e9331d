"""Pooling on NHWC images, float and 8-bit: an item makes a vector of channels of one pixel."""

from __future__ import annotations

from trireme.devices.opencl.kernels.convolution import WindowSizes, refuse_window, window_of
from trireme.devices.opencl.kernels.elementwise import row_group
from trireme.devices.opencl.kernels.epilogue import FloatEpilogue
from trireme.devices.opencl.kernels.products import refuse_floats
from trireme.devices.opencl.kernels.source import Lanes, lanes_for
from trireme.devices.opencl.kernels.tiles import indent
from trireme.devices.opencl.lowering import C_TYPES, KernelName, Lowering, Pointer
from trireme.ir.graph import Graph, Node, Rounding
from trireme.ops.integer import pool_params


def refuse_pool(graph: Graph, node: Node) -> str | None:
    """Return why there is no float kernel for a pool, or None."""
    return _refuse_shape(graph, node) or refuse_floats(graph, node)


def refuse_quantized_pool(graph: Graph, node: Node) -> str | None:
    """Return why there is no 8-bit kernel for a pool, or None; GraphError gives a reason too."""
    from trireme.ir.op import call_of

    pool_params(call_of(graph, node))
    return _refuse_shape(graph, node)


def _refuse_shape(graph: Graph, node: Node) -> str | None:
    if len(node.outputs) > 1:
        return "no kernel for the indices of max_pool"
    return refuse_window(graph, node, len(node.attrs["kernel"]))


def _loop(lines: list[str], node: Node, lanes: Lanes) -> list[str]:
    """Return the walk over the window's elements inside the image, and their number."""
    place = f"x + ((n * H + h) * W + w) * C + min(i0 * {lanes.n}, C - {lanes.n})"
    rank = len(node.attrs["kernel"])
    pads = node.attrs["pads"]
    bottom, right = (0, pads[1]) if rank == 1 else (pads[2], pads[3])
    if not node.attrs.get("count_include_pad"):
        return [
            *_begin(),
            "if ((uint)h >= (uint)H || (uint)w >= (uint)W) continue;",
            "count++;",
            f"__global const void *at = {place};",
            *lines,
            "}",
        ]
    return [
        *_begin(),
        f"if (h >= H + {bottom} || w >= W + {right}) continue;",
        "count++;",
        "if ((uint)h >= (uint)H || (uint)w >= (uint)W) continue;",
        f"__global const void *at = {place};",
        *lines,
        "}",
    ]


def _begin() -> list[str]:
    return [
        "const int ow = i1, oh = i2 % OH, n = i2 / OH;",
        "int count = 0;",
        "for (int kh = 0; kh < KH; kh++) for (int kw = 0; kw < KW; kw++) {",
        "const int h = oh * SH - PT + kh * DH, w = ow * SW - PL + kw * DW;",
    ]


def lower_pool(low: Lowering, chain: list[Node]) -> None:
    """Emit max_pool or average_pool in float and the nodes fused behind it."""
    node, epilogue = chain[0], FloatEpilogue(low, chain)
    window = window_of(low.graph, node, node.attrs["kernel"])
    lanes = Lanes(lanes_for(window.c, low.tuning.vector))
    kind, maximum = lanes.type("float"), node.op == "max_pool"
    load = f"const {kind} v = {lanes.load('float32', '(__global const float *)at')};"
    step = [load, "s = (v > s) | (v != v) ? v : s;" if maximum else "s += v;"]
    start = "-INFINITY" if maximum else "0.0f"
    lines = [
        f"{kind} s = {lanes.splat('float', start)};",
        *_loop(step, node, lanes),
        *([] if maximum else ["s /= (float)max(count, 1);"]),
        f"const int o0 = min(i0 * {lanes.n}, C - {lanes.n});",
        *epilogue.code("s", lanes, "(((n * OH + oh) * OW + ow) * C + o0)", "o0"),
    ]
    tensors = [
        Pointer("x", "float", low.ref(node.used[0])),
        *epilogue.tensors,
        epilogue.target(),
    ]
    _emit(
        low, chain, KernelName(node.op, "f32", fused=epilogue.fused), tensors, window, lanes, lines
    )


def lower_quantized_pool(low: Lowering, chain: list[Node]) -> None:
    """Emit max_pool or average_pool on stored integers: see quantize.PoolParams."""
    node, graph = chain[0], low.graph
    params = pool_params(low.call(node))
    dtype = graph.type(node.used[0]).dtype
    window = window_of(graph, node, node.attrs["kernel"])
    lanes = Lanes(lanes_for(window.c, low.tuning.vector))
    kind, maximum = lanes.type("int"), node.op == "max_pool"
    load = lanes.load(dtype, f"(__global const {C_TYPES[dtype]} *)at")
    value = f"const {kind} v = {lanes.convert('int', load)};"
    ends = [lanes.splat("int", name) for name in ("low", "high")]
    mean = [
        "if (count == 0) { count = 1; s += zero; }",
        "s += (count - inside) * zero;" if node.attrs.get("count_include_pad") else "",
        *_divided(lanes, params.rounding),
    ]
    lines = [
        f"{kind} s = {lanes.splat('int', '-2147483647 - 1' if maximum else '0')};",
        "int inside = 0;",
        *_loop([value, "s = max(s, v);" if maximum else "s += v; inside++;"], node, lanes),
        *([] if maximum else [line for line in mean if line]),
        f"s = min(max(s, {ends[0]}), {ends[1]});",
        f"const int o0 = min(i0 * {lanes.n}, C - {lanes.n});",
        lanes.store(
            dtype,
            lanes.convert(C_TYPES[dtype], "s"),
            "y + ((n * OH + oh) * OW + ow) * C + o0",
        ),
    ]
    tensors = [
        Pointer("x", C_TYPES[dtype], low.ref(node.used[0])),
        Pointer("y", C_TYPES[dtype], low.ref(node.outputs[0]), writes=True),
    ]
    scalars = {"zero": params.zero, "low": params.low, "high": params.high}
    _emit(low, chain, KernelName(node.op, dtype), tensors, window, lanes, lines, scalars)


def _divided(lanes: Lanes, rounding: Rounding) -> list[str]:
    """Return the statements that make a sum `s` of stored integers a mean: see PoolParams."""
    if rounding is Rounding.HALF_EVEN:
        wide = lanes.convert("long", f"s - {lanes.splat('int', 'count * zero')}")
        mean = f"divide_even{lanes.n}({wide}, {lanes.splat('long', 'count')})"
        return [f"s = {lanes.convert('int', mean)} + {lanes.splat('int', 'zero')};"]
    up = f"(s < {lanes.splat('int', '0')} ? s - part : s + part)"
    return ["const int part = count / 2;", f"s = {up} / {lanes.splat('int', 'count')};"]


def _emit(
    low: Lowering,
    chain: list[Node],
    name: KernelName,
    tensors: list[Pointer],
    window: WindowSizes,
    lanes: Lanes,
    lines: list[str],
    scalars: dict[str, int] | None = None,
) -> None:
    items = -(-window.c // lanes.n)
    low.emit(
        chain,
        name,
        tensors,
        (items, window.columns.out, window.n * window.rows.out),
        indent(lines),
        scalars=window.scalars() | (scalars or {}),
        group=(*row_group(low, items), 1),
    )
