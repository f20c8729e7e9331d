"""Convolutions in float, NHWC: pointwise as a plain product, depthwise, and others by windows.

One spatial axis is a height of one. Window and depthwise kernels walk the kernel's positions and
skip those beyond the image.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trireme.devices.opencl.kernels.blocks import (
    BlockOperands,
    RowReads,
    constant_column,
    cut_of,
    emit_blocks,
    packing_tile,
)
from trireme.devices.opencl.kernels.products import emit_rows, refuse_floats
from trireme.devices.opencl.kernels.source import Lanes, lanes_for
from trireme.devices.opencl.kernels.tiles import (
    ProductOperands,
    ProductRows,
    ProductTile,
    column_starts,
    declare_sums,
    depth_loop,
    finish_lines,
    float_product,
    indent,
    multiply_lines,
    pack_columns,
    product_name,
    tile_for,
)
from trireme.devices.opencl.lowering import C_TYPES, KernelName, Lowering, Pointer, Ref
from trireme.devices.opencl.tuning import BlockCut, ProductSizes
from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import Array


@dataclass(frozen=True)
class WindowAxis:
    """A spatial axis of a window op: its sizes, and how the window lies on it.

    size, out: pixels of the input and of the output
    kernel: positions of the window; pad: pixels before the first
    """

    size: int
    out: int
    kernel: int
    stride: int
    pad: int
    dilation: int

    @property
    def is_pointwise(self) -> bool:
        """Whether every output pixel depends on the input pixel at its own place alone."""
        return (self.kernel, self.stride, self.pad, self.out) == (1, 1, 0, self.size)


@dataclass(frozen=True)
class WindowSizes:
    """The sizes of a window op on images [N,H,W,C], one spatial axis taken as a height of one.

    n, c, o: images, channels of the input and of the output
    """

    n: int
    c: int
    o: int
    rows: WindowAxis
    columns: WindowAxis

    @property
    def pixels(self) -> int:
        """How many output pixels there are."""
        return self.n * self.rows.out * self.columns.out

    @property
    def is_pointwise(self) -> bool:
        """Whether every output pixel depends on the input pixel at its own place alone."""
        return self.rows.is_pointwise and self.columns.is_pointwise

    def scalars(self) -> dict[str, int]:
        """Return the sizes as arguments of a kernel."""
        h, w = self.rows, self.columns
        return {
            "H": h.size,
            "W": w.size,
            "C": self.c,
            "OH": h.out,
            "OW": w.out,
            "N": self.o,
            "KH": h.kernel,
            "KW": w.kernel,
            "SH": h.stride,
            "SW": w.stride,
            "PT": h.pad,
            "PL": w.pad,
            "DH": h.dilation,
            "DW": w.dilation,
        }


def window_of(graph: Graph, node: Node, kernel: tuple[int, ...]) -> WindowSizes:
    """Return the sizes of a conv or pool; `kernel` are its spatial sizes."""
    x, y = graph.type(node.used[0]).dims, graph.type(node.outputs[0]).dims
    attrs, rank = node.attrs, len(kernel)
    fields = (x[1:-1], y[1:-1], kernel, attrs["strides"], attrs["pads"][:rank], attrs["dilations"])
    axes = [WindowAxis(*sizes) for sizes in zip(*fields, strict=True)]
    rows, columns = (_ONE_ROW, axes[0]) if rank == 1 else axes
    return WindowSizes(x[0], x[-1], y[-1], rows, columns)


_ONE_ROW = WindowAxis(size=1, out=1, kernel=1, stride=1, pad=0, dilation=1)


def refuse_window(graph: Graph, node: Node, rank: int) -> str | None:
    """Return why a window op has no kernel for its rank, or None."""
    if rank > 2:
        return f"no kernel for {rank} spatial axes (has 1 and 2)"
    return None


def refuse_conv(graph: Graph, node: Node) -> str | None:
    """Return why there is no kernel for a conv, or None."""
    if not graph.values[node.used[1]].is_constant:
        return "the weight is not a constant"
    rank = len(graph.type(node.used[1]).dims) - 2
    return refuse_window(graph, node, rank) or refuse_floats(graph, node)


def lower_conv(low: Lowering, chain: list[Node]) -> None:
    """Emit a float conv and the nodes fused behind it."""
    emit_conv(float_product(low, chain))


def emit_conv(product: ProductOperands) -> None:
    """Emit a conv, float or quantised."""
    node, graph = product.node, product.low.graph
    window = window_of(graph, node, graph.type(node.used[1]).dims[1:-1])
    w, groups = product.array(), int(node.attrs["groups"])
    w = w[:, None] if w.ndim == 3 else w
    if groups > 1 and groups == window.c:
        _emit_depthwise(product, window, w)
    elif groups == 1 and window.is_pointwise:
        emit_rows(product, "conv", window.pixels, w.reshape(window.o, -1).T)
    else:
        _emit_windows(product, window, w, groups)


def _emit_windows(product: ProductOperands, window: WindowSizes, w: Array, groups: int) -> None:
    """Emit a conv whose rows are output pixels; each group of channels has panels of its own."""
    low, each, depth = product.low, window.o // groups, window.c // groups
    sizes = ProductSizes(window.pixels, w[0].size, window.o)
    if groups == 1 and (cut := cut_of(product, sizes)):
        _emit_window_blocks(product, window, w, sizes, cut)
        return
    tile, ctype = tile_for(low, window.pixels, each), C_TYPES[product.dtype]
    width, rows = tile.width, range(tile.rows)

    def make() -> Array:
        parts = w.reshape(groups, each, window.rows.kernel, window.columns.kernel, depth)
        return np.concatenate(
            [pack_columns(np.moveaxis(part, 0, -1), tile, product.dtype) for part in parts]
        )

    packed = low.packed(("windows", product.key, groups, tile, product.dtype), make)
    vectors = [f"p + k * {width} + {j * tile.lanes.n}" for j in range(tile.vectors)]
    body = multiply_lines(product, tile, product.dtype, vectors)
    lines = [
        f"const int row = min(i0 * {tile.rows}, M - {tile.rows}), base = 0;",
        *_columns(tile, groups, each),
        *pixel_places(tile.rows),
        *declare_sums(tile, product.chunk),
        f"__global const {ctype} *p = w + i1 * KH * KW * CG * {width};",
        "for (int kh = 0; kh < KH; kh++) for (int kw = 0; kw < KW; kw++) {",
        *(f"__global const float *r{i} = {_pixel(i)};" for i in rows),
        *depth_loop(tile, "CG", product.chunk, body),
        f"p += CG * {width};",
        "}",
        *finish_lines(product, tile),
    ]
    tensors = [
        product.rows(widen=True).pointer,
        Pointer("w", ctype, packed),
        Pointer("zero", "float", zeros(low, depth)),
        *product.finish.tensors,
        product.finish.target(),
    ]
    low.emit(
        product.chain,
        product_name(product, "conv", tile),
        tensors,
        (-(-window.pixels // tile.rows), tile.panels * groups),
        indent(lines),
        scalars=window.scalars() | {"M": window.pixels, "CG": depth} | product.scalars,
        group=low.tuning.product_group,
    )


def _emit_window_blocks(
    product: ProductOperands, window: WindowSizes, w: Array, sizes: ProductSizes, cut: BlockCut
) -> None:
    """Emit a conv in blocks: its depth is kernel position by kernel position, all channels each."""
    wide = 4 if window.c % 4 == 0 else 1
    x = product.rows(widen=False)
    lanes = Lanes(wide)
    place = "((n{u} + h{u} + kh * DH) * W + l{u} + kw * DW) * C + c"
    inside = "(uint)(h{u} + kh * DH) < (uint)H && (uint)(l{u} + kw * DW) < (uint)W"
    load = f"({inside} ? {x.load(lanes, f'x + {place}')} : {lanes.splat('float', '0.0f')})"
    reads = RowReads(
        x,
        wide,
        load,
        start=(
            "const int n{u} = row{u} / OW / OH * H, h{u} = row{u} / OW % OH * SH - PT;",
            "const int l{u} = row{u} % OW * SW - PL;",
        ),
        once=("int c = (from + ka) % C, kw = (from + ka) / C % KW, kh = (from + ka) / C / KW;",),
        advance=(
            f"c += {cut.block.depth};",
            "while (c >= C) { c -= C; if (++kw == KW) { kw = 0; kh++; } }",
        ),
    )
    packed = product.packed("columns", packing_tile(cut.block, window.o), w.reshape(window.o, -1).T)
    column = constant_column(product, cut.block)
    weight = Pointer("w", C_TYPES[product.dtype], packed)
    operands = BlockOperands(reads, column, [weight], scalars=window.scalars())
    emit_blocks(product, "conv", sizes, cut, operands)


def _columns(tile: ProductTile, groups: int, each: int) -> list[str]:
    """Return the declarations of the columns of a panel, and of a group's first input channel."""
    if groups == 1:
        return ["const int first = 0;", *column_starts(tile, "i1")]
    n = tile.lanes.n
    starts = [
        f"const int o{j} = group * {each} + min((panel * {tile.vectors} + {j}) * {n}, {each - n});"
        for j in range(tile.vectors)
    ]
    return [
        f"const int group = i1 / {tile.panels}, panel = i1 % {tile.panels};",
        "const int first = group * CG;",
        *starts,
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


def _emit_depthwise(product: ProductOperands, window: WindowSizes, w: Array) -> None:
    """Emit a depthwise conv: an item makes a few pixels of a row for one vector of channels."""
    low, each, ctype = product.low, window.o // window.c, C_TYPES[product.dtype]
    lanes = Lanes(lanes_for(window.o, low.tuning.vector) if each == 1 else 1)
    across = min(4, window.columns.out)
    channel = "o0" if each == 1 else f"o0 / {each}"

    # a GPU converts while it waits for memory; for a CPU's cores that is more work than a copy
    x = product.rows(widen=low.tuning.on_cores)

    def make() -> Array:
        return np.ascontiguousarray(w.reshape(window.o, -1).T.astype(product.dtype))

    packed = low.packed(("taps", product.key, product.dtype), make)
    lines = [
        f"const int o0 = min(i0 * {lanes.n}, N - {lanes.n});",
        f"const int ow = min(i1 * {across}, OW - {across}), oh = i2 % OH, n = i2 / OH;",
        "const int h0 = oh * SH - PT, w0 = ow * SW - PL;",
        *(f"{lanes.type('float')} s{t} = {lanes.splat('float', '0.0f')};" for t in range(across)),
        "for (int kh = 0; kh < KH; kh++) {",
        "const int h = h0 + kh * DH;",
        "if ((uint)h >= (uint)H) continue;",
        f"__global const {x.pointer.ctype} *r = x + (n * H + h) * W * C + {channel};",
        f"__global const {ctype} *p = w + kh * KW * N + o0;",
        *_taps(lanes, product, x, across, window),
        "}",
    ]
    for t in range(across):
        place = f"(((n * OH + oh) * OW + ow + {t}) * N + o0)"
        lines.append("{ " + " ".join(product.finish.code(f"s{t}", lanes, place, "o0")) + " }")
    tensors = [
        x.pointer,
        Pointer("w", ctype, packed),
        *product.finish.tensors,
        product.finish.target(),
    ]
    scalars = window.scalars() | product.finish.scalars | x.scalars
    baked = {name: scalars.pop(name) for name in ("KH", "KW", "SH", "SW", "DH", "DW")}
    work = (-(-window.o // lanes.n), -(-window.columns.out // across), window.n * window.rows.out)
    low.emit(
        product.chain,
        KernelName(
            "depthwise",
            product.finish.kind,
            tile=(across, lanes.n),
            fused=product.finish.fused,
        ),
        tensors,
        work,
        indent(lines),
        scalars=scalars,
        baked=baked,
        group=(min(low.tuning.group, work[0]), 1, 1),
    )


def _taps(
    lanes: Lanes, product: ProductOperands, x: ProductRows, across: int, window: WindowSizes
) -> list[str]:
    """Return the statements of one row of taps: whole windows without asking, others tap by tap."""
    last = (across - 1) * window.columns.stride + (
        window.columns.kernel - 1
    ) * window.columns.dilation
    whole, part = [], []
    for kw in range(window.columns.kernel):
        value = lanes.load(product.dtype, f"p + {kw} * N")
        tap = f"const {lanes.type('float')} t{kw} = {value};"
        whole.append(tap)
        part.append(tap)
        for t in range(across):
            step = t * window.columns.stride + kw * window.columns.dilation
            value = x.load(lanes, f"r + (w0 + {step}) * C")
            add = f"s{t} = {product.multiply}({value}, t{kw}, s{t});"
            whole.append(add)
            part.append(f"if ((uint)(w0 + {step}) < (uint)W) {add}")
    return [f"if (w0 >= 0 && w0 + {last} < W) {{", *whole, "} else {", *part, "}"]
