"""Common parts of products: their operands, tiles, packing, and the loops and epilogues of a tile.

A tile is rows by vectors of columns, kept in registers. Constant b is packed in the order in which
a tile reads it: [panel, position, k, vectors of the panel]. The last tile starts early where rows
or columns are missing, so there are no tails. Results computed twice are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trireme.devices.opencl.kernels.epilogue import Finish, FloatEpilogue
from trireme.devices.opencl.kernels.source import Lanes, lanes_for
from trireme.devices.opencl.lowering import C_TYPES, SIGNED, KernelName, Lowering, Pointer, Ref
from trireme.devices.opencl.tuning import BlockCut
from trireme.ir.graph import Node
from trireme.support.dtypes import Array


@dataclass(frozen=True)
class ProductOperands:
    """The operands of a product, float or quantised.

    x: the value of the rows
    x_zero: its zero point where it is stored integers; None where it is float32
    weight: the constant side in the op's layout, without its zero point, or the place of b where b
        is not constant
    dtype: the dtype of the packed weight
    key: the key of the packed weight
    chunk: the most products in a float sum before the sum becomes int32; 0 for any number
    """

    low: Lowering
    chain: list[Node]
    x: int
    weight: Array | Ref
    key: Any
    dtype: str
    finish: Finish
    chunk: int = 0
    x_zero: int | None = None

    @property
    def node(self) -> Node:
        """The node that multiplies."""
        return self.chain[0]

    @property
    def scalars(self) -> dict[str, int]:
        """The int arguments of every product."""
        return self.finish.scalars | ({"CHUNK": self.chunk} if self.chunk else {})

    @property
    def multiply(self) -> str:
        """The multiply-add: exact for integers."""
        return "FMA" if self.finish.kind == "f32" else "fma"

    def packed(self, what: str, tile: ProductTile, b: Array) -> Ref:
        """Return the packed place of b [.., K, N]."""
        key = (what, self.key, tile, self.dtype)
        return self.low.packed(key, lambda: pack_columns(b, tile, self.dtype))

    def rows(self, widen: bool) -> ProductRows:
        """Return how x is read; with `widen` a kernel before makes floats of stored integers."""
        if widen and self.x_zero is not None:
            ref = widened(self.low, self.node, self.x, self.x_zero)
            return ProductRows(Pointer("x", "float", ref), "float32")
        dtype = self.low.graph.type(self.x).dtype
        return ProductRows(Pointer("x", C_TYPES[dtype], self.low.ref(self.x)), dtype, self.x_zero)

    def array(self) -> Array:
        """Return the constant weight."""
        return np.asarray(self.weight)


@dataclass(frozen=True)
class ProductRows:
    """The argument x of a product: floats, or stored integers with their zero point."""

    pointer: Pointer
    dtype: str
    zero: int | None = None

    def load(self, lanes: Lanes, place: str) -> str:
        """Return an expression of floats."""
        value = lanes.load(self.dtype, place)
        return value if self.zero is None else f"({lanes.convert('float', value)} - (float)x_zero)"

    @property
    def scalars(self) -> dict[str, int]:
        """The int arguments of `load`."""
        return {} if self.zero is None else {"x_zero": self.zero}


def float_product(low: Lowering, chain: list[Node]) -> ProductOperands:
    """Return the product of a float node."""
    node = chain[0]
    x, weight = node.used[0], low.graph.values[node.used[1]]
    dtype = "float16" if low.half_weights else "float32"
    side: Array | Ref = low.ref(weight.id) if weight.data is None else weight.data
    return ProductOperands(low, chain, x, side, weight.id, dtype, FloatEpilogue(low, chain))


@dataclass(frozen=True)
class ProductTile:
    """The cut of a product: `rows` x `vectors` of `lanes` columns; `panels` of vectors in all."""

    rows: int
    vectors: int
    lanes: Lanes
    columns: int

    @property
    def panels(self) -> int:
        """How many panels cover the columns."""
        return -(-self.columns // self.width)

    @property
    def width(self) -> int:
        """The columns of a panel."""
        return self.lanes.n * self.vectors

    @property
    def sums(self) -> list[str]:
        """The names of the tile's sums without their first letter, row by row."""
        return [f"{i}_{j}" for i in range(self.rows) for j in range(self.vectors)]

    def starts(self) -> list[int]:
        """Return the first column of every vector; the last vectors start early to end in time."""
        last = self.columns - self.lanes.n
        return [min(v * self.lanes.n, last) for v in range(self.panels * self.vectors)]


def tile_for(low: Lowering, rows: int, columns: int) -> ProductTile:
    """Return the tile of a product: as large as registers allow, with few repeated results."""
    lanes = Lanes(lanes_for(columns, low.tuning.vector))
    most_vectors = -(-columns // lanes.n)
    vectors = min(low.tuning.columns, most_vectors)
    most = min(low.tuning.rows * low.tuning.columns // vectors, 16)
    if low.tuning.on_cores and rows <= 4:
        vectors, most = max(min(8 // rows, most_vectors), 1), rows
    tiles = -(-rows // most)
    return ProductTile(-(-rows // tiles), vectors, lanes, columns)


def pack_columns(b: Array, tile: ProductTile, dtype: str) -> Array:
    """Return b [.., K, N] as [panels, .., K, vectors x lanes], a panel's columns together.

    Shapes: the axes before K (kernel positions) stay between the panel and K
    """
    starts = np.array(tile.starts())
    columns = (starts[:, None] + np.arange(tile.lanes.n)).reshape(tile.panels, -1)
    return np.ascontiguousarray(np.moveaxis(b[..., columns], -2, 0).astype(dtype))


def multiply_lines(
    product: ProductOperands, tile: ProductTile, dtype: str, vectors: Sequence[str]
) -> list[str]:
    """Return the body of the loop over k: load the vectors once, multiply each row r{i} by them."""
    kind = tile.lanes.type("float")
    lines = [
        f"const {kind} b{j} = {tile.lanes.load(dtype, place)};" for j, place in enumerate(vectors)
    ]
    for i in range(tile.rows):
        lines.append(f"const {kind} a{i} = {tile.lanes.splat('float', f'r{i}[k]')};")
        lines += [
            f"s{i}_{j} = {product.multiply}(a{i}, b{j}, s{i}_{j});" for j in range(tile.vectors)
        ]
    return lines


def declare_sums(tile: ProductTile, chunk: int) -> list[str]:
    """Return the declarations of a tile's sums, and of their integer part where there is one."""
    zero, none = tile.lanes.splat("float", "0.0f"), tile.lanes.splat("int", "0")
    lines = [f"{tile.lanes.type('float')} s{name} = {zero};" for name in tile.sums]
    if chunk:
        lines += [f"{tile.lanes.type('int')} t{name} = {none};" for name in tile.sums]
    return lines


def depth_loop(tile: ProductTile, size: str, chunk: int, body: Sequence[str]) -> list[str]:
    """Return the loop of k up to `size`; sums become integers after every `chunk`, if set."""
    if not chunk:
        return [f"for (int k = 0; k < {size}; k++) {{", *body, "}"]
    zero = tile.lanes.splat("float", "0.0f")
    return [
        f"for (int k0 = 0; k0 < {size}; k0 += CHUNK) {{",
        f"const int end = min(k0 + CHUNK, {size});",
        "for (int k = k0; k < end; k++) {",
        *body,
        "}",
        *(f"t{n} += {tile.lanes.convert('int', f's{n}')}; s{n} = {zero};" for n in tile.sums),
        "}",
    ]


def finish_lines(product: ProductOperands, tile: ProductTile) -> list[str]:
    """Return the statements that finish and store a tile whose first row is `row`.

    On a CPU they are a loop over the sums, which builds in a quarter of the time of the same
    statements written out (a requantised tile of 12x32: 0.3 instead of 1.1 s); on a GPU the sums
    must stay in registers, which have no index.
    """
    letter, ctype = ("t", "int") if product.chunk else ("s", "float")
    if not product.low.tuning.on_cores or len(tile.sums) < 4:
        lines = []
        for name in sorted(tile.sums, key=lambda name: name.split("_")[1]):
            i, j = name.split("_")
            place = f"(base + (row + {i}) * N + o{j})"
            code = product.finish.code(f"{letter}{name}", tile.lanes, place, f"o{j}")
            lines.append("{ " + " ".join(code) + " }")
        return lines
    kind, count = tile.lanes.type(ctype), len(tile.sums)
    return [
        f"const {kind} all[{count}] = {{{', '.join(letter + name for name in tile.sums)}}};",
        f"const int columns[{tile.vectors}] = "
        f"{{{', '.join(f'o{j}' for j in range(tile.vectors))}}};",
        f"for (int e = 0; e < {count}; e++) {{",
        f"const int o = columns[e % {tile.vectors}];",
        f"const int place = base + (row + e / {tile.vectors}) * N + o;",
        f"{kind} sum = all[e];",
        *product.finish.code("sum", tile.lanes, "place", "o"),
        "}",
    ]


def column_starts(tile: ProductTile, panel: str) -> list[str]:
    """Return the declarations of the first column of each vector of a panel."""
    n = tile.lanes.n
    return [
        f"const int o{j} = min(({panel} * {tile.vectors} + {j}) * {n}, N - {n});"
        for j in range(tile.vectors)
    ]


def indent(lines: Sequence[str]) -> str:
    """Return statements as the body of a kernel."""
    return "\n".join(f"  {line}" for line in lines)


def product_name(
    product: ProductOperands,
    op: str,
    tile: ProductTile,
    family: str = "product",
    variant: str = "",
    cut: BlockCut | None = None,
) -> KernelName:
    """Return the name of a product's kernel: op, dtype, tile, variant, and the ops fused behind."""
    kind = product.finish.kind
    return KernelName(
        op,
        kind,
        f"{family}_{SIGNED.get(kind, kind)}{variant}",
        (tile.rows, tile.width),
        variant,
        product.finish.fused,
        cut=cut,
    )


def widened(low: Lowering, node: Node, value: int, zero: int) -> Ref:
    """Return float32 of a quantised value less its zero point, made once for all readers."""
    key = (value, zero)
    if key not in low.widened:
        type = low.graph.type(value)
        ref = low.temporary(4 * type.elements)
        low.widened[key] = ref
        lanes = Lanes(lanes_for(type.elements, low.tuning.vector))
        loaded = lanes.convert("float", lanes.load(type.dtype, "x + at"))
        body = (
            f"  const int at = min(i0 * {lanes.n}, N - {lanes.n});\n"
            f"  {lanes.store('float32', f'{loaded} - (float)ZERO', 'y + at')}"
        )
        tensors = [
            Pointer("x", C_TYPES[type.dtype], low.ref(value)),
            Pointer("y", "float", ref, writes=True),
        ]
        items = -(-type.elements // lanes.n)
        low.emit(
            [node],
            KernelName("widen"),
            tensors,
            (items,),
            body,
            scalars={"N": type.elements, "ZERO": zero},
        )
    return low.widened[key]
