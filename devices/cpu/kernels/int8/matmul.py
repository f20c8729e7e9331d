"""matmul of two activations on 8-bit integers, item by item of a batch.

    y = requantise(sum (a - a_zero) (b - b_zero))

Two steps: the right operand is packed as weights are (right_operand.py), then linear.py's product
runs for each item. Each chunk prepares its rows of the left operand as that of a layer does. Where
the right zero point is not 0 in signed bytes, the sums of the rows are taken once a chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trireme.backend.kernel_table import STORED_8
from trireme.devices.cpu.codegen.ir import Function, Index, Value
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.int8.arithmetic import (
    CYCLES_PER_S,
    QUADS,
    dot_of,
    stored_reason,
)
from trireme.devices.cpu.kernels.int8.epilogue import Channels, Int8Epilogue
from trireme.devices.cpu.kernels.int8.linear import LinearKernel, kernel_name, operand_count
from trireme.devices.cpu.kernels.int8.matmul_layout import BatchWalk, MatmulLayout, dense_layout
from trireme.devices.cpu.kernels.int8.microkernel import row_sum
from trireme.devices.cpu.kernels.int8.pack import (
    Int8MatmulShape,
    RegisterTile,
    choose_tile,
    store_cycles,
)
from trireme.devices.cpu.kernels.int8.prepare import Image, LineWindow
from trireme.devices.cpu.kernels.int8.product_cut import ProductCut, cut_product
from trireme.devices.cpu.kernels.int8.requant import Requantiser, requantiser
from trireme.devices.cpu.kernels.int8.right_operand import (
    Panels,
    RightOperand,
    pack_kernel,
    pack_s,
    terms_numbers,
)
from trireme.devices.cpu.kernels.int8.shapes import matrix_shape
from trireme.devices.cpu.kernels.lowering import (
    TABLE,
    Context,
    Operand,
    Rule,
    Step,
    Temp,
    begin,
    deal,
    finish,
)
from trireme.ir.graph import Graph, Node
from trireme.ir.op import call_of
from trireme.ops.integer import LinearParams, matmul_params
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.records import dataclass


@dataclass(frozen=True, eq=False)
class StartedByColumn:
    """A requantisation of sums that begin with numbers known at run time (Int8Epilogue).

    operands: int32 [lanes], the numbers of an item's columns
    """

    requant: Requantiser
    operands: tuple[Operand, ...]
    element: str = "i8"
    shared: bool = True

    @property
    def data(self) -> Array:
        """The constants of the requantisation."""
        return self.requant.data

    @property
    def form(self) -> StartedByColumn:
        """The facts that code depends on."""
        return replace(self, requant=self.requant.form, operands=(0,))

    def enter(
        self, fn: Function, operands: Sequence[Value], row: Index, channels: Channels | None = None
    ) -> Value:
        """Return the address of the numbers."""
        return operands[0]

    def start(self, fn: Function, channels: Channels, mark: Value) -> list[Value]:
        """Return what the sums of vectors of columns begin with."""
        return self.requant.start(fn, (mark, *channels[1:]), None)

    def finish(
        self,
        fn: Function,
        sums: Sequence[Value],
        channels: Channels,
        mark: Value,
        pointer: Value,
        count: int,
    ) -> None:
        """Store sums as bytes."""
        self.requant.finish(fn, sums, channels, None, pointer, count)


@dataclass(frozen=True)
class ItemWalk:
    """How chunks go through the items.

    each: items of a chunk; 1 where an item has several chunks
    left, right, output: where an item begins; right: among the packed ones
    """

    items: int
    each: int
    left: BatchWalk
    right: BatchWalk
    output: BatchWalk


@dataclass(frozen=True)
class ItemsProduct:
    """The product of an item, its cut, and how the kernel goes through the items.

    row: elements from one row of the output to the next
    local_bytes: of a chunk's lines; sums of rows lie behind them
    """

    product: Int8MatmulShape
    source: tuple[Image, LineWindow]
    tile: RegisterTile
    cut: ProductCut
    local_bytes: int
    walk: ItemWalk
    panels: Panels
    row: int
    row_factor: int


class ItemsKernel(LinearKernel):
    """Emits a product for items of a batch."""

    def __init__(self, isa: Isa, plan: ItemsProduct, epilogue: Int8Epilogue) -> None:
        super().__init__(
            isa, plan.product, plan.source, plan.tile, epilogue, plan.row_factor, plan.cut, None
        )
        self.plan, self.width = plan, plan.row

    def emit(self, fn: Function, pointers: Sequence[Value], chunk: Value, local: Value) -> None:
        """Emit a chunk: some items, or a part of one."""
        walk, per_item = self.plan.walk, self.cut.blocks * self.cut.parts
        self.sums = fn.at(local, self.plan.local_bytes, "i8")
        if walk.each == 1:
            item = fn.integer("udiv", chunk, per_item)
            rest = fn.as_value("i64", fn.integer("urem", chunk, per_item))
            super().emit(fn, self._of_item(fn, pointers, item), rest, local)
            return
        first = chunk * walk.each
        for item in fn.range(first, fn.minimum(first + walk.each, walk.items)):
            super().emit(fn, self._of_item(fn, pointers, item), fn.as_value("i64", 0), local)

    def _of_item(self, fn: Function, pointers: Sequence[Value], item: Index) -> list[Value]:
        """Return the operands of an item: left, packed right, table, [numbers], output."""
        walk, panels = self.plan.walk, self.plan.panels
        x, w, table, *numbers, y = pointers
        right = walk.right.at(fn, item)
        return [
            fn.at(x, walk.left.at(fn, item), "i8"),
            fn.at(w, right * panels.item_bytes, "i8"),
            table,
            *(fn.at(line, right * (panels.wanted * panels.lanes), "i32") for line in numbers),
            fn.at(y, walk.output.at(fn, item), "i8"),
        ]

    def panel_loops(
        self, fn: Function, first_panel: Index, rows: tuple[Index, Index], group: Index
    ) -> None:
        """Emit the panels of a chunk, after the sums of its rows."""
        self.first_row = rows[0]
        if self.row_factor:
            for row in fn.range(*rows):
                start = self.row_start(fn, self.places[0], None, row, 0, 0)
                total = fn.extract(row_sum(fn, self.product, start, self.row_factor), 0)
                fn.store(total, self._sum_of(fn, row), 4)
        super().panel_loops(fn, first_panel, rows, group)

    def row_terms(self, fn: Function, starts: Sequence[Value], row: Index) -> list[Value]:
        """Return the sums of a tile's rows, in every lane."""
        places = [self._sum_of(fn, row + r) for r in range(len(starts))]
        return [fn.splat(fn.load("i32", place, 4), self.isa.lanes) for place in places]

    def _sum_of(self, fn: Function, row: Index) -> Value:
        return fn.at(self.sums, fn.as_value("i64", row) - self.first_row, "i32")


def items_kernel(isa: Isa, plan: ItemsProduct, epilogue: Int8Epilogue) -> Code:
    """Return the kernel of a product of packed items."""
    name = f"{kernel_name(epilogue, plan.panels.dot, plan.tile)}_items"
    operands = operand_count(plan.product, epilogue, None)
    fn, pointers, chunk, local = begin(name, isa, operands)
    ItemsKernel(isa, plan, epilogue).emit(fn, pointers, chunk, local)
    return finish(fn)


@dataclass(frozen=True)
class StoredOperands:
    """The values of a product of two activations, and the node that multiplies."""

    node: Node
    left: int
    right: int
    output: int


def matmul_steps(context: Context, values: StoredOperands, layout: MatmulLayout) -> list[Step]:
    """Return the steps of a product whose operands lie like that: packing, and the product."""
    graph, isa = context.graph, context.isa
    params = matmul_params(call_of(graph, values.node))
    dtype, dot = graph.type(values.left).dtype, dot_of(isa)
    product, view, lines = matrix_shape(layout.rows, layout.depth, layout.columns)
    tile, cycles = choose_tile(isa, product, dot)
    image = Image(lines, (0, 0, 0, 0), dtype, params.x_zero, dot)
    if layout.left.row != layout.depth and layout.rows > 1:
        image = replace(image, pitch=layout.left.row)
        product = replace(product, row_step=layout.left.row if image.as_is else layout.depth)
    wanted = -(-layout.columns // isa.lanes)
    panels = Panels(dot, isa.lanes, tile.vectors, wanted, product.steps(dot))
    packed = Temp(f"packed {values.output}", layout.right_items * panels.item_bytes)
    terms = Temp(f"terms {values.output}", layout.right_items * wanted * isa.lanes * 4)
    requant = _requantiser(context, params, dtype, layout.depth, wanted)
    epilogue: Int8Epilogue = requant
    if dot is QUADS:
        epilogue = StartedByColumn(requant, (terms,))
    item_s = cycles / CYCLES_PER_S
    plan, chunks = _plan(isa, layout, (product, image, view), tile, panels, item_s)
    if dot is QUADS:
        plan = replace(plan, row_factor=_byte_zeros(params, dtype)[1])
    code = context.kernel(items_kernel, plan, epilogue.form)
    block = plan.cut.block if isinstance(plan.cut.block, int) else layout.rows
    sums_bytes = 4 * block if plan.row_factor else 0
    return [
        _pack_step(context, values.right, layout, params, panels, (packed, terms)),
        Step(
            code,
            (context.operand(values.left), packed, requant.data, *epilogue.operands),
            (values.output,),
            chunks,
            plan.local_bytes + sums_bytes,
            seconds=layout.items * item_s,
            stores_s=layout.items * store_cycles(isa, product, tile) / CYCLES_PER_S,
            family="gemm_q8",
        ),
    ]


def _plan(
    isa: Isa,
    layout: MatmulLayout,
    item: tuple[Int8MatmulShape, Image, LineWindow],
    tile: RegisterTile,
    panels: Panels,
    item_s: float,
) -> tuple[ItemsProduct, int]:
    """Return what the product's kernel is made of, and its chunks; item_s: seconds of an item."""
    product, image, view = item
    source = (image.form, view)
    cut, per_item, nbytes = cut_product(isa, product, source, tile, item_s)
    each, chunks = 1, layout.items * per_item
    if per_item == 1:
        each, chunks = deal(layout.items, layout.items * item_s)
    left, output = (BatchWalk(layout.batch, side.batch) for side in (layout.left, layout.output))
    walk = ItemWalk(layout.items, each, left, layout.packed, output)
    row = layout.output.row
    return ItemsProduct(product, source, tile, cut, nbytes, walk, panels, row, 0), chunks


def _pack_step(
    context: Context,
    value: int,
    layout: MatmulLayout,
    params: LinearParams,
    panels: Panels,
    made: tuple[Temp, Temp],
) -> Step:
    """Return the step that packs the right operand."""
    side, dtype = layout.right, context.graph.type(value).dtype
    walk = BatchWalk(layout.right_sizes, side.batch)
    sizes = (layout.right_items, layout.depth, layout.columns)
    zero = 0 if panels.dot is QUADS else params.w_zero
    right = RightOperand(*sizes, side.row, side.column, walk, dtype, zero)
    code, chunks = context.kernel(pack_kernel, right, panels)
    reads: tuple[Operand, ...] = (context.operand(value),)
    if panels.dot is QUADS:
        reads = (*reads, terms_numbers(layout.depth, *_byte_zeros(params, dtype)))
    writes = made if panels.dot is QUADS else made[:1]
    return Step(code, reads, writes, chunks, seconds=pack_s(right, panels), family="pack_q8")


def _byte_zeros(params: LinearParams, dtype: str) -> tuple[int, int]:
    """Return the zero points of unsigned left bytes and signed right ones."""
    signed = dtype == "int8"
    return params.x_zero + 128 * signed, params.w_zero - 128 * (not signed)


def _most(dtype: str, zero: int) -> int:
    info = np.iinfo(numpy_dtype(dtype))
    return max(info.max - zero, zero - info.min)


def _most_sum(params: LinearParams, dtype: str, depth: int) -> int:
    """Return the largest sum, which may be negative."""
    return depth * _most(dtype, params.x_zero) * _most(dtype, params.w_zero)


def _requantiser(
    context: Context, params: LinearParams, dtype: str, depth: int, vectors: int
) -> Requantiser:
    """Return the requantisation of sums whose columns share one scale."""
    most = np.array([_most_sum(params, dtype, depth)])
    one = replace(params, multipliers=params.multipliers[:1], shifts=params.shifts[:1])
    lanes = np.zeros(vectors * context.isa.lanes, np.int64)
    bias = np.zeros(1, np.int64)
    return requantiser(context.isa, one, dtype, bias, (-most, most), lanes, context.recipes)


def lower_matmul(context: Context, node: Node) -> list[Step]:
    """Return the steps of a quantised matmul whose operands are dense."""
    a, b = (context.type(v).dims for v in node.used)
    values = StoredOperands(node, node.used[0], node.used[1], node.outputs[0])
    return matmul_steps(context, values, dense_layout(a, b))


def matmul_reason(graph: Graph, node: Node) -> str | None:
    """Say why a quantised matmul has no kernel here."""
    a, b = (graph.type(v) for v in node.used)
    if len(a.shape) < 2 or len(b.shape) < 2:
        return "matmul has native kernels for matrices only, not for vectors"
    if not b.elements:
        return "matmul has no native kernel for empty tensors"
    reason = stored_reason(graph, node, lambda: matmul_params(call_of(graph, node)))
    if reason is not None:
        return reason
    depth = a.dims[-1]
    if _most_sum(matmul_params(call_of(graph, node)), a.dtype, depth) >= 1 << 31:
        return f"matmul has no native kernel for a depth of {depth}: sums have 32 bits"
    return None


TABLE.add("matmul", Rule(matmul_reason, lower_matmul), STORED_8)
