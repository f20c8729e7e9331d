"""Matrix products of float and quantised values: dense rows, and batches of two matrices.

    y[row, o] = finish(sum over k of a[row, k] b[k, o])

Sums are in float32. Quantised products use the same kernels, because integers under 2^24 are exact
in float32. Stored integers less their zero points are multiplied as floats. The sums become int32
before they can exceed 2^24.
"""

from __future__ import annotations

import math

import numpy as np

from trireme.devices.opencl.kernels.blocks import (
    BlockOperands,
    constant_column,
    cut_of,
    dense_reads,
    emit_blocks,
    packing_tile,
)
from trireme.devices.opencl.kernels.elementwise import broadcast_strides
from trireme.devices.opencl.kernels.tiles import (
    ProductOperands,
    column_starts,
    declare_sums,
    depth_loop,
    finish_lines,
    float_product,
    indent,
    multiply_lines,
    product_name,
    tile_for,
)
from trireme.devices.opencl.lowering import C_TYPES, Lowering, Pointer, Ref
from trireme.devices.opencl.tuning import ProductSizes
from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import Array

Ints = tuple[int, ...]


def lower_fully_connected(low: Lowering, chain: list[Node]) -> None:
    """Emit x [..,I] times constant w [O,I]."""
    emit_fully_connected(float_product(low, chain))


def emit_fully_connected(product: ProductOperands) -> None:
    """Emit x [..,I] times constant w [O,I], float or quantised."""
    w = product.array()
    rows = math.prod(product.low.graph.type(product.node.used[0]).dims[:-1])
    emit_rows(product, "fully_connected", rows, w.T)


def emit_rows(product: ProductOperands, name: str, rows: int, b: Array) -> None:
    """Emit a product of dense rows with a constant b [K,N]."""
    sizes = ProductSizes(rows, *b.shape)
    if cut := cut_of(product, sizes):
        packed = product.packed("columns", packing_tile(cut.block, b.shape[1]), b)
        column = constant_column(product, cut.block)
        reads = dense_reads(product.rows(widen=False), b.shape[0], "x")
        w = Pointer("w", C_TYPES[product.dtype], packed)
        emit_blocks(product, name, sizes, cut, BlockOperands(reads, column, [w]))
        return
    tile = tile_for(product.low, rows, b.shape[1])
    packed = product.packed("columns", tile, b)
    vectors = [f"p + k * {tile.width} + {j * tile.lanes.n}" for j in range(tile.vectors)]
    ctype = C_TYPES[product.dtype]
    lines = [
        f"const int row = min(i0 * {tile.rows}, M - {tile.rows}), base = 0;",
        *column_starts(tile, "i1"),
        *(f"__global const float *r{i} = x + (row + {i}) * K;" for i in range(tile.rows)),
        f"__global const {ctype} *p = w + i1 * K * {tile.width};",
        *declare_sums(tile, product.chunk),
        *depth_loop(
            tile, "K", product.chunk, multiply_lines(product, tile, product.dtype, vectors)
        ),
        *finish_lines(product, tile),
    ]
    tensors = [
        product.rows(widen=True).pointer,
        Pointer("w", ctype, packed),
        *product.finish.tensors,
        product.finish.target(),
    ]
    product.low.emit(
        product.chain,
        product_name(product, name, tile),
        tensors,
        (-(-rows // tile.rows), tile.panels),
        indent(lines),
        scalars={"M": rows, "N": tile.columns, "K": b.shape[0], **product.scalars},
        group=product.low.tuning.product_group,
    )


def lower_matmul(low: Lowering, chain: list[Node]) -> None:
    """Emit a [..,M,K] times b [..,K,N]."""
    emit_matmul(float_product(low, chain))


def emit_matmul(product: ProductOperands) -> None:
    """Emit a [..,M,K] times b [..,K,N], float or quantised; packed when b is one constant matrix.

    Otherwise both sides are read in their memory order, and a table gives the start of each batch.
    """
    graph, node = product.low.graph, product.node
    a, b = graph.type(node.used[0]).dims, graph.type(node.used[1]).dims
    if not isinstance(product.weight, Ref):
        if len(b) == 2:
            emit_rows(product, "matmul", math.prod(a[:-1]), product.weight)
            return
        weight = product.low.constant(
            np.asarray(product.weight, np.float32), ("floats", product.key)
        )
    else:
        weight = product.weight
    _emit_batches(product, weight, (1, *a) if len(a) == 1 else a, (*b, 1) if len(b) == 1 else b)


def _emit_batches(product: ProductOperands, weight: Ref, a: Ints, b: Ints) -> None:
    rows, depth, columns = a[-2], a[-1], b[-1]
    low, places = product.low, batch_places(a, b)
    table = Pointer("table", "int", low.constant(places, ("batches", a, b)))
    shared = [Pointer("w", "float", weight), table]
    sizes = ProductSizes(rows, depth, columns, len(places))
    if cut := cut_of(product, sizes):
        vector = f"panel * {cut.block.columns // 4} + v"
        operands = BlockOperands(
            dense_reads(product.rows(widen=False), depth, "x + table[3 * batch]"),
            f"vload4(0, p + k * N + min(({vector}) * 4, N - 4))",
            shared,
            (
                "const int base = table[3 * batch + 2];",
                "__global const float *p = w + table[3 * batch + 1];",
            ),
        )
        emit_blocks(product, "matmul", sizes, cut, operands)
        return
    tile = tile_for(low, rows, columns)
    vectors = [f"p + k * N + o{j}" for j in range(tile.vectors)]
    starts = [f"x + table[3 * i2] + (row + {i}) * K" for i in range(tile.rows)]
    lines = [
        f"const int row = min(i0 * {tile.rows}, M - {tile.rows}), base = table[3 * i2 + 2];",
        *column_starts(tile, "i1"),
        *(f"__global const float *r{i} = {start};" for i, start in enumerate(starts)),
        "__global const float *p = w + table[3 * i2 + 1];",
        *declare_sums(tile, product.chunk),
        *depth_loop(tile, "K", product.chunk, multiply_lines(product, tile, "float32", vectors)),
        *finish_lines(product, tile),
    ]
    tensors = [
        product.rows(widen=True).pointer,
        *shared,
        *product.finish.tensors,
        product.finish.target(),
    ]
    low.emit(
        product.chain,
        product_name(product, "matmul", tile, "matmul"),
        tensors,
        (-(-rows // tile.rows), tile.panels, len(places)),
        indent(lines),
        scalars={"M": rows, "N": columns, "K": depth, **product.scalars},
        group=low.tuning.product_group,
    )


def batch_places(a: Ints, b: Ints) -> Array:
    """Return the start of a, b and y of every batch, in elements: int32 [batches, 3]."""
    batches = np.broadcast_shapes(a[:-2], b[:-2])
    grid = np.indices(batches).reshape(len(batches), math.prod(batches))
    columns = []
    for shape, size in ((a, a[-2] * a[-1]), (b, b[-2] * b[-1]), ((*batches, 0, 0), a[-2] * b[-1])):
        steps = broadcast_strides(batches, shape[:-2])
        columns.append(np.asarray(steps, np.int64) @ grid * size if steps else np.zeros(1))
    return np.stack(columns, axis=-1).astype(np.int32)


def refuse_fully_connected(graph: Graph, node: Node) -> str | None:
    """Return why there is no kernel for a fully_connected, or None."""
    if not graph.values[node.used[1]].is_constant:
        return "the weight is not a constant"
    return refuse_floats(graph, node)


def refuse_floats(graph: Graph, node: Node) -> str | None:
    """Return why there is no float kernel for these dtypes, or None."""
    for value in (*node.used, *node.outputs):
        dtype = graph.type(value).dtype
        if dtype != "float32":
            return f"no kernel for {dtype} (has float32, and quantised int8, uint8)"
    return None
