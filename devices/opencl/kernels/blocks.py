"""Products in blocks through local memory, for GPUs with fast local memory of their own.

A work-group makes a block of rows x columns. For each slice of the depth, its items fetch the rows
and the columns together, wait for each other, and multiply from local memory. They fetch the next
slice while they multiply. An item keeps its results in registers.

Where blocks are few, several groups share the depth of a block. Each group writes a part, and a
second kernel adds the parts in order of the depth. So results do not depend on which group ends
first. No item leaves early: rows beyond the last repeat the last and are not stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from trireme.devices.opencl.kernels.source import Lanes
from trireme.devices.opencl.kernels.tiles import (
    ProductOperands,
    ProductRows,
    ProductTile,
    declare_sums,
    indent,
    product_name,
)
from trireme.devices.opencl.lowering import KernelName, Pointer
from trireme.devices.opencl.tuning import BlockCut, ProductBlock, ProductSizes, best_cut

_LANES = Lanes(4)


@dataclass(frozen=True)
class RowReads:
    """How the items of a block read the rows of a product; "{u}" stands for each row of an item.

    x: the rows
    wide: elements of the depth that lie together for certain, 4 or 1
    load: the expression of the elements of row{u} at the depth k
    start: statements for each row before the loop
    once, advance: statements before the loop, and before each further slice
    """

    x: ProductRows
    wide: int
    load: str
    start: Sequence[str] = ()
    once: Sequence[str] = ()
    advance: Sequence[str] = ()


@dataclass(frozen=True)
class BlockOperands:
    """The operands of a product in blocks.

    column: the expression of four columns of b at the depth k and the vector v
    tensors, scalars: the arguments that reads need besides x
    start: statements before the loop, which declare base
    """

    reads: RowReads
    column: str
    tensors: Sequence[Pointer]
    start: Sequence[str] = ("const int base = 0;",)
    scalars: Mapping[str, int] = field(default_factory=dict)


def dense_reads(x: ProductRows, depth: int, first: str) -> RowReads:
    """Return how rows are read whose elements lie together; `first` is the address of the first."""
    wide = 4 if depth % 4 == 0 else 1
    start = (f"__global const {x.pointer.ctype} *r{{u}} = {first} + row{{u}} * K;",)
    return RowReads(x, wide, x.load(Lanes(wide), "r{u} + k"), start)


def cut_of(product: ProductOperands, sizes: ProductSizes) -> BlockCut | None:
    """Return how blocks cut a product; None where the device or the product has no use for them."""
    if sizes.columns < _LANES.n:
        return None
    return best_cut(product.low.tuning, sizes, has_integers=bool(product.chunk))


def packing_tile(block: ProductBlock, columns: int) -> ProductTile:
    """Return the tile whose panels are the columns of blocks."""
    return ProductTile(1, block.columns // _LANES.n, _LANES, columns)


def constant_column(product: ProductOperands, block: ProductBlock) -> str:
    """Return the expression of four columns of a packed constant."""
    place = f"w + (panel * K + k) * {block.columns} + v * 4"
    if product.dtype == "float16":
        return _LANES.load(product.dtype, place)
    return f"*(__global const float4 *)({place})"  # constants are aligned, panels are of vectors


def emit_blocks(
    product: ProductOperands,
    name: str,
    sizes: ProductSizes,
    cut: BlockCut,
    operands: BlockOperands,
) -> None:
    """Emit a product in blocks."""
    low, block, reads = product.low, cut.block, operands.reads
    tile = ProductTile(block.item_rows, block.item_columns // 4, _LANES, sizes.columns)
    is_whole = cut.parts == 1
    lines = [
        *_places(block, reads.wide, is_whole),
        *operands.start,
        *_row_starts(block, reads),
        *declare_sums(tile, product.chunk),
        *_slices(product, block, tile, operands),
        *_finish(product, block, tile, is_whole),
    ]
    scalars = {"M": sizes.rows, "N": sizes.columns, "K": sizes.depth, **operands.scalars}
    scalars |= reads.x.scalars
    if is_whole:
        ends = [*product.finish.tensors, product.finish.target()]
        scalars |= product.finish.scalars
    else:
        parts = low.temporary(4 * cut.parts * sizes.batches * sizes.rows * sizes.columns)
        ends = [Pointer("parts", "int" if product.chunk else "float", parts, writes=True)]
        scalars |= {"PARTS": cut.parts, "SHARE": cut.slices * block.depth}
    low.emit(
        product.chain,
        product_name(product, name, tile, variant="_local", cut=cut),
        [reads.x.pointer, *operands.tensors, *ends],
        (
            block.items * -(-sizes.rows // block.rows),
            -(-sizes.columns // block.columns),
            sizes.batches * cut.parts,
        ),
        indent(lines),
        group=(block.items, 1, 1),
        local=True,
        scalars=scalars,
    )
    if not is_whole:
        _emit_sum(product, sizes, cut.parts, replace(ends[0], writes=False))


def _places(block: ProductBlock, wide: int, is_whole: bool) -> list[str]:
    """Return the local memory, an item's place in its group, and the group's place in the product.

    Rows are kept with the depth first, four elements apart from the power of two, which spreads
    them over the banks.
    """
    across, vectors = block.columns // block.item_columns, block.columns // 4
    of_depth = (
        "from = 0, to = K"
        if is_whole
        else ("part = (int)get_group_id(2) % PARTS, from = part * SHARE, to = min(from + SHARE, K)")
    )
    batch = "" if is_whole else " / PARTS"
    return [
        f"__local float4 rows[2][{block.depth}][{block.rows // 4 + 1}];",
        f"__local float4 columns[2][{block.depth}][{vectors}];",
        f"const int t = (int)get_local_id(0), tx = t % {across}, ty = t / {across};",
        f"const int top = (int)get_group_id(0) * {block.rows}, panel = (int)get_group_id(1);",
        f"const int batch = (int)get_group_id(2){batch};",
        f"const int {of_depth};",
        f"const int ra = t / {block.depth // wide}, ka = t % {block.depth // wide} * {wide};",
        f"const int v = t % {vectors}, kb = t / {vectors};",
    ]


def _row_starts(block: ProductBlock, reads: RowReads) -> list[str]:
    lines = [*reads.once]
    for u in range(block.row_loads(reads.wide)):
        step = u * block.row_step(reads.wide)
        lines.append(f"const int row{u} = min(top + ra + {step}, M - 1);")
        lines += [each.replace("{u}", str(u)) for each in reads.start]
    return lines


def _slices(
    product: ProductOperands, block: ProductBlock, tile: ProductTile, operands: BlockOperands
) -> list[str]:
    """Return the loop over the slices of the depth."""
    reads = operands.reads
    row_type = Lanes(reads.wide).type("float")
    whole = []
    if product.chunk:
        chunk = product.chunk // block.depth * block.depth
        whole = [f"if ((next - from) % {chunk} == 0) {{", *_to_integers(tile), "}"]
    return [
        *(f"{row_type} a{u};" for u in range(block.row_loads(reads.wide))),
        *(f"float4 b{u};" for u in range(block.column_loads)),
        *_fetch(block, operands, "from"),
        *_keep(block, reads.wide, "0"),
        "barrier(CLK_LOCAL_MEM_FENCE);",
        "int now = 0;",
        f"for (int k0 = from; k0 < to; k0 += {block.depth}) {{",
        f"const int next = k0 + {block.depth};",
        *reads.advance,
        *_fetch(block, operands, "next"),
        *_multiply(product, block, tile),
        *whole,
        "now ^= 1;",
        *_keep(block, reads.wide, "now"),
        "barrier(CLK_LOCAL_MEM_FENCE);",
        "}",
        *(_to_integers(tile) if product.chunk else ()),
    ]


def _to_integers(tile: ProductTile) -> list[str]:
    zero = _LANES.splat("float", "0.0f")
    return [f"t{n} += {_LANES.convert('int', f's{n}')}; s{n} = {zero};" for n in tile.sums]


def _fetch(block: ProductBlock, operands: BlockOperands, slice_start: str) -> list[str]:
    """Return the statements that load an item's share of a slice, zeros beyond its end."""
    reads = operands.reads
    nothing = Lanes(reads.wide).splat("float", "0.0f")
    lines = ["{", f"const int k = {slice_start} + ka;"]
    for u in range(block.row_loads(reads.wide)):
        lines.append(f"a{u} = k < to ? {reads.load} : {nothing};".replace("{u}", str(u)))
    lines.append("}")
    for u in range(block.column_loads):
        lines.append(
            f"{{ const int k = {slice_start} + kb + {u * block.column_step}; "
            f"b{u} = k < to ? {operands.column} : (float4)(0.0f); }}"
        )
    return lines


def _keep(block: ProductBlock, wide: int, buffer: str) -> list[str]:
    """Return the statements that put an item's share of a slice into local memory."""
    lines = []
    for u in range(block.row_loads(wide)):
        for j in range(wide):
            value = f"a{u}.s{j}" if wide > 1 else f"a{u}"
            place = f"((__local float *)rows[{buffer}][ka + {j}])"
            lines.append(f"{place}[ra + {u * block.row_step(wide)}] = {value};")
    for u in range(block.column_loads):
        lines.append(f"columns[{buffer}][kb + {u * block.column_step}][v] = b{u};")
    return lines


def _multiply(product: ProductOperands, block: ProductBlock, tile: ProductTile) -> list[str]:
    """Return the loop that multiplies a slice from local memory."""
    down, across = block.rows // block.item_rows, block.columns // block.item_columns
    lines = ["#pragma unroll", f"for (int k = 0; k < {block.depth}; k++) {{"]
    for i in range(tile.rows // 4):
        lines.append(f"const float4 x{i} = rows[now][k][{i * down} + ty];")
    for j in range(tile.vectors):
        lines.append(f"const float4 w{j} = columns[now][k][{j * across} + tx];")
    for i in range(tile.rows):
        lines.append(f"const float4 e{i} = (float4)(x{i // 4}.s{i % 4});")
        lines += [
            f"s{i}_{j} = {product.multiply}(e{i}, w{j}, s{i}_{j});" for j in range(tile.vectors)
        ]
    return [*lines, "}"]


def _finish(
    product: ProductOperands, block: ProductBlock, tile: ProductTile, is_whole: bool
) -> list[str]:
    """Return the statements that store an item's results: finished, or as a part of them."""
    down, across = block.rows // block.item_rows, block.columns // block.item_columns
    letter = "t" if product.chunk else "s"
    lines = [
        f"const int o{j} = min((panel * {block.columns // 4} + {j * across} + tx) * 4, N - 4);"
        for j in range(tile.vectors)
    ]
    if not is_whole:
        lines.append("const int first = (batch * PARTS + part) * M;")
    for i in range(tile.rows):
        row = f"top + ({i // 4 * down} + ty) * 4 + {i % 4}"
        lines.append(f"{{ const int row = {row}; if (row < M) {{")
        for j in range(tile.vectors):
            sums = f"{letter}{i}_{j}"
            if is_whole:
                code = product.finish.code(sums, _LANES, f"(base + row * N + o{j})", f"o{j}")
                lines.append("{ " + " ".join(code) + " }")
            else:
                lines.append(f"vstore4({sums}, 0, parts + (first + row) * N + o{j});")
        lines.append("} }")
    return lines


def _emit_sum(product: ProductOperands, sizes: ProductSizes, count: int, parts: Pointer) -> None:
    """Emit the kernel that adds the parts of a product and finishes it."""
    kind = _LANES.type(parts.ctype)
    lines = [
        "const int o = min(i0 * 4, N - 4), batch = i1 / M;",
        f"__global const {parts.ctype} *p = parts + ((i1 + batch * (PARTS - 1) * M) * N + o);",
        f"{kind} sum = vload4(0, p);",
        "for (int k = 1; k < PARTS; k++) sum += vload4(0, p + k * M * N);",
        *product.finish.code("sum", _LANES, "(i1 * N + o)", "o"),
    ]
    product.low.emit(
        product.chain,
        KernelName("sum_parts", product.finish.kind, fused=product.finish.fused),
        [parts, *product.finish.tensors, product.finish.target()],
        (-(-sizes.columns // 4), sizes.rows * sizes.batches),
        indent(lines),
        scalars={"M": sizes.rows, "N": sizes.columns, "PARTS": count, **product.finish.scalars},
    )
