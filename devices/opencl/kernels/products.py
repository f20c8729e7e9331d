"""Matrix products and convolutions in float: tiles of rows by vectors of columns, in registers.

    y[row, o] = sum over k of a[row, k] b[k, o]

A convolution is the same with rows that are output pixels: for each kernel position every row of a
tile points at its input pixel, or at a row of zeros outside the image. Constant b is packed so that
a tile reads it in order: [panel, position, k, vectors of the panel]. A row or column too few is
made by starting the last tile early, so that there are no tails; what is made twice is the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trireme.devices.opencl.kernels.elementwise import broadcast_strides
from trireme.devices.opencl.kernels.epilogue import Epilogue
from trireme.devices.opencl.kernels.source import Lanes, lanes_for
from trireme.devices.opencl.lowering import C_TYPES, Lowering, Ref, Tensor
from trireme.dtypes import Array
from trireme.graph import Graph, Node


@dataclass(frozen=True)
class Tile:
    """How a product is cut: `rows` x `vectors` of `lanes` columns; `panels` of vectors in all."""

    rows: int
    vectors: int
    lanes: Lanes
    columns: int

    @property
    def panels(self) -> int:
        """How many panels cover the columns."""
        return -(-self.columns // (self.lanes.n * self.vectors))

    def starts(self) -> list[int]:
        """Return the first column of every vector: the last ones start early to end in time."""
        last = self.columns - self.lanes.n
        return [min(v * self.lanes.n, last) for v in range(self.panels * self.vectors)]


def tile_for(low: Lowering, rows: int, columns: int) -> Tile:
    """Return the tile of a product: as large as registers allow, with little done twice."""
    lanes = Lanes(lanes_for(columns, low.tuning.vector))
    vectors = min(low.tuning.columns, -(-columns // lanes.n))
    most = low.tuning.rows * low.tuning.columns // vectors
    if low.tuning.name == "cpu" and rows <= 4:
        vectors = min(8 // rows, -(-columns // lanes.n)) or 1
        most = rows
    most = min(most, 16)
    tiles = -(-rows // most)
    return Tile(-(-rows // tiles), vectors, lanes, columns)


def pack_columns(b: Array, tile: Tile, dtype: str) -> Array:
    """Return b [.., K, N] as [panels, .., K, vectors x lanes], a panel's columns together.

    Shapes: the axes before K (kernel positions) stay between the panel and K
    """
    starts = np.array(tile.starts())
    columns = (starts[:, None] + np.arange(tile.lanes.n)).reshape(tile.panels, -1)
    taken = b[..., columns]
    return np.ascontiguousarray(np.moveaxis(taken, -2, 0).astype(dtype))


def weight_dtype(low: Lowering) -> str:
    """Return the dtype that packed float weights are kept in."""
    return "float16" if low.half_weights else "float32"


def multiply_lines(tile: Tile, dtype: str, a: Sequence[str], b: str, step: str) -> list[str]:
    """Return the loop body over k: load a panel's vectors once, multiply each row by them."""
    n = tile.lanes.n
    lines = [
        f"const {tile.lanes.type('float')} b{j} = "
        f"{tile.lanes.load(dtype, f'{b} + k * {step} + {j * n}')};"
        for j in range(tile.vectors)
    ]
    for i, row in enumerate(a):
        value = Lanes(1).load("float32", f"{row} + k")
        lines.append(f"const {tile.lanes.type('float')} a{i} = {tile.lanes.splat('float', value)};")
        lines += [f"s{i}_{j} = FMA(a{i}, b{j}, s{i}_{j});" for j in range(tile.vectors)]
    return lines


def sums(tile: Tile) -> list[str]:
    """Return the declarations of a tile's sums."""
    kind = tile.lanes.type("float")
    zero = tile.lanes.splat("float", "0.0f")
    return [
        f"{kind} s{i}_{j} = {zero};" for i in range(tile.rows) for j in range(tile.vectors)
    ]  # fmt: skip


def finish(tile: Tile, epilogue: Epilogue, bias: bool) -> list[str]:
    """Return the statements that finish and store a tile whose first row is `row`."""
    lines = []
    for j in range(tile.vectors):
        for i in range(tile.rows):
            code = epilogue.code(
                f"s{i}_{j}", tile.lanes, f"(base + (row + {i}) * N + o{j})", f"o{j}", bias
            )
            lines.append("{ " + " ".join(code) + " }")
    return lines


def column_starts(tile: Tile, panel: str) -> list[str]:
    """Return the declarations of the first column of each vector of a panel."""
    n = tile.lanes.n
    return [
        f"const int o{j} = min(({panel} * {tile.vectors} + {j}) * {n}, N - {n});"
        for j in range(tile.vectors)
    ]


def indent(lines: Sequence[str]) -> str:
    """Return statements as the body of a kernel."""
    return "\n".join(f"  {line}" for line in lines)


def bias_tensor(low: Lowering, value: int | None) -> list[Tensor]:
    """Return the bias argument, when there is one."""
    if value is None:
        return []
    return [Tensor("bias", "float", low.ref(value))]


def lower_fully_connected(low: Lowering, chain: list[Node]) -> None:
    """Emit x [..,I] times constant w [O,I]."""
    node = chain[0]
    x, w = low.graph.type(_id(node, 0)), low.graph.type(_id(node, 1))
    rows = math.prod(x.dims[:-1])
    tile = tile_for(low, rows, w.dims[0])
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    emit_rows(low, chain, "fully_connected", rows, w.dims[1], tile, _packed(low, node, tile), bias)


def _id(node: Node, position: int) -> int:
    value = node.inputs[position]
    return -1 if value is None else value


def _packed(low: Lowering, node: Node, tile: Tile) -> Ref:
    """Return a packed weight [O,I] (fully_connected) or [K,N] (matmul)."""
    value, dtype = _id(node, 1), weight_dtype(low)
    data = low.graph.values[value].data

    def make() -> Array:
        b = np.asarray(data)
        return pack_columns(b.T if node.op == "fully_connected" else b, tile, dtype)

    return low.packed(("columns", node.op, value, tile, dtype), make)


def emit_rows(
    low: Lowering, chain: list[Node], name: str, rows: int, depth: int, tile: Tile, packed: Ref,
    bias: int | None,
) -> None:  # fmt: skip
    """Emit a product of dense rows with a packed constant."""
    epilogue, dtype = Epilogue(low, chain), weight_dtype(low)
    width = tile.lanes.n * tile.vectors
    starts = [f"x + (row + {i}) * K" for i in range(tile.rows)]
    lines = [
        f"const int row = min(i0 * {tile.rows}, M - {tile.rows}), base = 0;",
        *column_starts(tile, "i1"),
        *(f"__global const float *r{i} = {start};" for i, start in enumerate(starts)),
        f"__global const {C_TYPES[dtype]} *p = w + i1 * K * {width};",
        *sums(tile),
        "for (int k = 0; k < K; k++) {",
        *multiply_lines(tile, dtype, [f"r{i}" for i in range(tile.rows)], "p", str(width)),
        "}",
        *finish(tile, epilogue, bias is not None),
    ]
    tensors = [
        Tensor("x", "float", low.ref(_id(chain[0], 0))), Tensor("w", C_TYPES[dtype], packed),
        *bias_tensor(low, bias), *epilogue.tensors, epilogue.target(),
    ]  # fmt: skip
    low.emit(
        chain, epilogue.label(_label(name, tile)), tensors, (-(-rows // tile.rows), tile.panels),
        indent(lines), scalars={"M": rows, "N": tile.columns, "K": depth},
        group=low.tuning.product_group,
    )  # fmt: skip


def _label(name: str, tile: Tile) -> str:
    return f"{name}_f32_{tile.rows}x{tile.vectors * tile.lanes.n}"


def lower_matmul(low: Lowering, chain: list[Node]) -> None:
    """Emit a [..,M,K] times b [..,K,N]; packed when b is one constant matrix."""
    node = chain[0]
    a, b = low.graph.type(_id(node, 0)).dims, low.graph.type(_id(node, 1)).dims
    if low.graph.values[_id(node, 1)].is_constant and len(b) == 2:
        rows = math.prod(a[:-1])
        tile = tile_for(low, rows, b[1])
        emit_rows(low, chain, "matmul", rows, b[0], tile, _packed(low, node, tile), None)
        return
    a = (1, *a) if len(a) == 1 else a
    b = (*b, 1) if len(b) == 1 else b
    _emit_batches(low, chain, a, b)


def _emit_batches(low: Lowering, chain: list[Node], a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Emit a product of which both sides are in memory as they are; batches broadcast by table."""
    rows, depth, columns = a[-2], a[-1], b[-1]
    tile, epilogue = tile_for(low, rows, columns), Epilogue(low, chain)
    places = batch_places(a, b)
    starts = [f"x + table[3 * i2] + (row + {i}) * K" for i in range(tile.rows)]
    loads = [
        f"const {tile.lanes.type('float')} b{j} = "
        f"{tile.lanes.load('float32', f'p + k * N + o{j}')};"
        for j in range(tile.vectors)
    ]
    body = multiply_lines(tile, "float32", [f"r{i}" for i in range(tile.rows)], "p", "N")
    lines = [
        f"const int row = min(i0 * {tile.rows}, M - {tile.rows}), base = table[3 * i2 + 2];",
        *column_starts(tile, "i1"),
        *(f"__global const float *r{i} = {start};" for i, start in enumerate(starts)),
        "__global const float *p = w + table[3 * i2 + 1];",
        *sums(tile),
        "for (int k = 0; k < K; k++) {",
        *loads,
        *body[tile.vectors :],
        "}",
        *finish(tile, epilogue, bias=False),
    ]
    tensors = [
        Tensor("x", "float", low.ref(_id(chain[0], 0))),
        Tensor("w", "float", low.ref(_id(chain[0], 1))),
        Tensor("table", "int", low.constant(places, ("batches", a, b))),
        *epilogue.tensors, epilogue.target(),
    ]  # fmt: skip
    low.emit(
        chain, epilogue.label(_label("matmul", tile)), tensors,
        (-(-rows // tile.rows), tile.panels, len(places)), indent(lines),
        scalars={"M": rows, "N": columns, "K": depth}, group=low.tuning.product_group,
    )  # fmt: skip


def batch_places(a: tuple[int, ...], b: tuple[int, ...]) -> Array:
    """Return for every batch where its a, b and y start, in elements: int32 [batches, 3]."""
    batches = np.broadcast_shapes(a[:-2], b[:-2])
    grid = np.indices(batches).reshape(len(batches), math.prod(batches))
    columns = []
    for shape, size in ((a, a[-2] * a[-1]), (b, b[-2] * b[-1]), ((*batches, 0, 0), a[-2] * b[-1])):
        steps = broadcast_strides(batches, shape[:-2])
        columns.append(np.asarray(steps, np.int64) @ grid * size if steps else np.zeros(1))
    return np.stack(columns, axis=-1).astype(np.int32)


def refuse_fully_connected(graph: Graph, node: Node) -> str | None:
    """Say why there is no kernel for a fully_connected, or None."""
    if not graph.values[_id(node, 1)].is_constant:
        return "the weight is not a constant"
    return refuse_floats(graph, node)


def refuse_floats(graph: Graph, node: Node) -> str | None:
    """Say why there is no float product for these dtypes, or None."""
    for value in (*node.used, *node.outputs):
        dtype = graph.type(value).dtype
        if dtype != "float32":
            return f"no kernel for {dtype} (has float32, and quantised int8, uint8)"
    return None
