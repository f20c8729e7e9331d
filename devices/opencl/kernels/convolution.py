"""Convolutions in float, NHWC: pointwise as a plain product, the rest by windows, depthwise apart.

One spatial axis is a height of one. Windows and depthwise kernels walk the kernel's positions and
leave out those beyond the image.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trireme.devices.opencl.kernels.epilogue import Epilogue
from trireme.devices.opencl.kernels.products import (
    Tile,
    bias_tensor,
    column_starts,
    emit_rows,
    finish,
    indent,
    multiply_lines,
    pack_columns,
    refuse_floats,
    sums,
    tile_for,
    weight_dtype,
)
from trireme.devices.opencl.kernels.source import Lanes, lanes_for
from trireme.devices.opencl.lowering import C_TYPES, Lowering, Ref, Tensor
from trireme.dtypes import Array
from trireme.graph import Graph, Node


@dataclass(frozen=True)
class Window:
    """The sizes of a window op on images [N,H,W,C], one spatial axis taken as a height of one."""

    n: int
    h: int
    w: int
    c: int
    oh: int
    ow: int
    o: int
    kh: int
    kw: int
    sh: int
    sw: int
    top: int
    left: int
    dh: int
    dw: int

    @property
    def pixels(self) -> int:
        """How many output pixels there are."""
        return self.n * self.oh * self.ow

    @property
    def is_pointwise(self) -> bool:
        """Whether every output pixel is made of the input pixel at its own place."""
        same = (self.h, self.w) == (self.oh, self.ow)
        return (self.kh, self.kw, self.sh, self.sw, self.top, self.left) == (1,) * 4 + (
            0,
            0,
        ) and same

    def scalars(self) -> dict[str, int]:
        """Return the sizes as arguments of a kernel."""
        return {
            "H": self.h, "W": self.w, "C": self.c, "OH": self.oh, "OW": self.ow, "N": self.o,
            "KH": self.kh, "KW": self.kw, "SH": self.sh, "SW": self.sw, "PT": self.top,
            "PL": self.left, "DH": self.dh, "DW": self.dw,
        }  # fmt: skip


def window_of(graph: Graph, node: Node, kernel: tuple[int, ...]) -> Window:
    """Return the sizes of a conv or pool; `kernel` are its spatial sizes."""
    x, y = graph.type(node.used[0]).dims, graph.type(node.outputs[0]).dims
    attrs, rank = node.attrs, len(kernel)

    def two(values: tuple[int, ...], fill: int) -> tuple[int, int]:
        return (fill, values[0]) if rank == 1 else (values[0], values[1])

    (kh, kw), (sh, sw) = two(kernel, 1), two(attrs["strides"], 1)
    (dh, dw), (top, left) = two(attrs["dilations"], 1), two(attrs["pads"][:rank], 0)
    (h, w), (oh, ow) = two(x[1:-1], 1), two(y[1:-1], 1)
    return Window(x[0], h, w, x[-1], oh, ow, y[-1], kh, kw, sh, sw, top, left, dh, dw)


def refuse_window(graph: Graph, node: Node, rank: int) -> str | None:
    """Say why a window op has no kernel for its layout or rank, or None."""
    if node.attrs["layout"] != "NHWC":
        return f"no kernel for layout {node.attrs['layout']} (has NHWC)"
    if rank > 2:
        return f"no kernel for {rank} spatial axes (has 1 and 2)"
    return None


def refuse_conv(graph: Graph, node: Node) -> str | None:
    """Say why there is no kernel for a conv, or None."""
    if not graph.values[node.used[1]].is_constant:
        return "the weight is not a constant"
    rank = len(graph.type(node.used[1]).dims) - 2
    return refuse_window(graph, node, rank) or refuse_floats(graph, node)


def weights(low: Lowering, node: Node) -> Array:
    """Return a conv's weights as [O,KH,KW,C/groups]."""
    data = np.asarray(low.graph.values[node.used[1]].data)
    return data[:, None] if data.ndim == 3 else data


def lower_conv(low: Lowering, chain: list[Node]) -> None:
    """Emit a conv and what is fused behind it."""
    node = chain[0]
    window = window_of(low.graph, node, low.graph.type(node.used[1]).dims[1:-1])
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    groups = int(node.attrs["groups"])
    if groups > 1 and groups == window.c:
        _emit_depthwise(low, chain, window, bias)
    elif groups == 1 and window.is_pointwise:
        _emit_pointwise(low, chain, window, bias)
    else:
        _emit_windows(low, chain, window, groups, bias)


def _emit_pointwise(low: Lowering, chain: list[Node], window: Window, bias: int | None) -> None:
    node, dtype = chain[0], weight_dtype(low)
    tile = tile_for(low, window.pixels, window.o)

    def make() -> Array:
        return pack_columns(weights(low, node).reshape(window.o, -1).T, tile, dtype)

    packed = low.packed(("conv", node.used[1], tile, dtype), make)
    emit_rows(low, chain, "conv", window.pixels, window.c, tile, packed, bias)


def _emit_windows(
    low: Lowering, chain: list[Node], window: Window, groups: int, bias: int | None
) -> None:
    """Emit a conv whose rows are output pixels; each group of channels has panels of its own."""
    node, dtype = chain[0], weight_dtype(low)
    each = window.o // groups
    tile, epilogue = tile_for(low, window.pixels, each), Epilogue(low, chain)

    def make() -> Array:
        whole = weights(low, node).reshape(groups, each, window.kh, window.kw, -1)
        packed = [pack_columns(np.moveaxis(w, 0, -1), tile, dtype) for w in whole]
        return np.concatenate(packed)

    packed = low.packed(("windows", node.used[1], groups, tile, dtype), make)
    width, rows = tile.vectors * tile.lanes.n, range(tile.rows)
    lines = [
        f"const int row = min(i0 * {tile.rows}, M - {tile.rows}), base = 0;",
        *_columns(tile, groups, each),
        *pixel_places(tile.rows),
        *sums(tile),
        f"__global const {C_TYPES[dtype]} *p = w + i1 * KH * KW * CG * {width};",
        "for (int kh = 0; kh < KH; kh++) for (int kw = 0; kw < KW; kw++) {",
        *(f"__global const float *r{i} = {_pixel(i)};" for i in rows),
        "for (int k = 0; k < CG; k++) {",
        *multiply_lines(tile, dtype, [f"r{i}" for i in rows], "p", str(width)),
        "}",
        f"p += CG * {width};",
        "}",
        *finish(tile, epilogue, bias is not None),
    ]
    depth = window.c // groups
    tensors = [
        Tensor("x", "float", low.ref(node.used[0])), Tensor("w", C_TYPES[dtype], packed),
        Tensor("zero", "float", zeros(low, depth)), *bias_tensor(low, bias),
        *epilogue.tensors, epilogue.target(),
    ]  # fmt: skip
    scalars = window.scalars() | {"M": window.pixels, "CG": depth}
    low.emit(
        chain, epilogue.label(f"conv_f32_{tile.rows}x{width}"), tensors,
        (-(-window.pixels // tile.rows), tile.panels * groups), indent(lines),
        scalars=scalars, group=low.tuning.product_group,
    )  # fmt: skip


def _columns(tile: Tile, groups: int, each: int) -> list[str]:
    """Return the declarations of the columns of a panel, and of a group's first input channel."""
    if groups == 1:
        return ["const int first = 0;", *column_starts(tile, "i1")]
    n = tile.lanes.n
    return [
        f"const int group = i1 / {tile.panels}, panel = i1 % {tile.panels};",
        "const int first = group * CG;",
        *(
            f"const int o{j} = group * {each} + "
            f"min((panel * {tile.vectors} + {j}) * {n}, {each - n});"
            for j in range(tile.vectors)
        ),
    ]


def pixel_places(rows: int) -> list[str]:
    """Return the declarations of each row's image n{i} and window origin h{i}, w{i}."""
    lines = ["int q = row;", "int qw = q % OW; q /= OW;", "int qh = q % OH; q /= OH;"]
    for i in range(rows):
        lines.append(f"const int n{i} = q * H, h{i} = qh * SH - PT, w{i} = qw * SW - PL;")
        if i + 1 < rows:
            lines.append("if (++qw == OW) { qw = 0; if (++qh == OH) { qh = 0; q++; } }")
    return lines


def _pixel(i: int) -> str:
    """Return the input pixel of row i at the kernel position, or the zeros."""
    inside = f"(uint)(h{i} + kh * DH) < (uint)H && (uint)(w{i} + kw * DW) < (uint)W"
    place = f"((n{i} + h{i} + kh * DH) * W + w{i} + kw * DW) * C + first"
    return f"{inside} ? x + {place} : zero"


def zeros(low: Lowering, count: int) -> Ref:
    """Return the place of at least that many zeros."""
    size = max(256, 1 << (count - 1).bit_length())
    return low.packed(("zeros", size), lambda: np.zeros(size, np.float32))


def _emit_depthwise(low: Lowering, chain: list[Node], window: Window, bias: int | None) -> None:
    """Emit a depthwise conv: an item makes a few pixels of a row for one vector of channels."""
    node, epilogue, dtype = chain[0], Epilogue(low, chain), weight_dtype(low)
    each = window.o // window.c
    lanes = Lanes(lanes_for(window.o, low.tuning.vector) if each == 1 else 1)
    across = min(4, window.ow)
    kind = lanes.type("float")

    def make() -> Array:
        taps = weights(low, node).reshape(window.o, -1).T
        return np.ascontiguousarray(taps.astype(dtype))

    packed = low.packed(("taps", node.used[1], dtype), make)
    loads = _taps(lanes, dtype, across, window)
    channel = "o0" if each == 1 else f"o0 / {each}"
    lines = [
        f"const int o0 = min(i0 * {lanes.n}, N - {lanes.n});",
        f"const int ow = min(i1 * {across}, OW - {across}), oh = i2 % OH, n = i2 / OH;",
        "const int h0 = oh * SH - PT, w0 = ow * SW - PL;",
        *(f"{kind} s{t} = {lanes.splat('float', '0.0f')};" for t in range(across)),
        "for (int kh = 0; kh < KH; kh++) {",
        "const int h = h0 + kh * DH;",
        "if ((uint)h >= (uint)H) continue;",
        f"__global const float *r = x + (n * H + h) * W * C + {channel};",
        f"__global const {C_TYPES[dtype]} *p = w + kh * KW * N + o0;",
        *loads,
        "}",
    ]
    for t in range(across):
        place = f"(((n * OH + oh) * OW + ow + {t}) * N + o0)"
        lines.append("{ " + " ".join(epilogue.code(f"s{t}", lanes, place, "o0", bias is not None)))
        lines[-1] += " }"
    tensors = [
        Tensor("x", "float", low.ref(node.used[0])), Tensor("w", C_TYPES[dtype], packed),
        *bias_tensor(low, bias), *epilogue.tensors, epilogue.target(),
    ]  # fmt: skip
    scalars = window.scalars()
    baked = {name: scalars.pop(name) for name in ("KH", "KW", "SH", "SW", "DH", "DW")}
    work = (-(-window.o // lanes.n), -(-window.ow // across), window.n * window.oh)
    low.emit(
        chain, epilogue.label(f"depthwise_f32_{across}x{lanes.n}"), tensors, work, indent(lines),
        scalars=scalars, baked=baked, group=(min(low.tuning.group, work[0]), 1, 1),
    )  # fmt: skip


def _taps(lanes: Lanes, dtype: str, across: int, window: Window) -> list[str]:
    """Return the statements of one row of taps: whole windows without asking, others tap by tap."""
    last = (across - 1) * window.sw + (window.kw - 1) * window.dw
    whole, part = [], []
    for kw in range(window.kw):
        tap = f"const {lanes.type('float')} t{kw} = {lanes.load(dtype, f'p + {kw} * N')};"
        whole.append(tap)
        part.append(tap)
        for t in range(across):
            step = t * window.sw + kw * window.dw
            value = lanes.load("float32", f"r + (w0 + {step}) * C")
            add = f"s{t} = FMA({value}, t{kw}, s{t});"
            whole.append(add)
            part.append(f"if ((uint)(w0 + {step}) < (uint)W) {add}")
    return [f"if (w0 >= 0 && w0 + {last} < W) {{", *whole, "} else {", *part, "}"]
