"""Float ops on int8 weights for any number of rows, or of images.

The nodes are those of dynamic_range.py. The input of fully connected layers has one range, or one
for each row. Convolutions with a range for each image run their kernels image after image.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trireme.devices.cpu.kernels.dynamic_range.dynamic_quantize import (
    VECTOR_S,
    LevelRounding,
    LineLayout,
)
from trireme.devices.cpu.kernels.dynamic_range.open_levels import (
    IMAGES,
    sized_image_levels,
    sized_levels,
    sized_linear,
    sized_range,
    sized_small_levels,
)
from trireme.devices.cpu.kernels.expressions import ACTIVATIONS
from trireme.devices.cpu.kernels.int8.arithmetic import CYCLES_PER_S, Dot
from trireme.devices.cpu.kernels.int8.dequant import DequantState, dequantiser
from trireme.devices.cpu.kernels.int8.linear import lane_channels
from trireme.devices.cpu.kernels.int8.pack import RegisterTile, pack_weights, weight_zero
from trireme.devices.cpu.kernels.int8.prepare import SLACK_BYTES, Image
from trireme.devices.cpu.kernels.int8.product_cut import panels_of
from trireme.devices.cpu.kernels.int8.shapes import matrix_shape
from trireme.devices.cpu.kernels.int8.split import repeats_of
from trireme.devices.cpu.kernels.items import Batch, steps_of_items
from trireme.devices.cpu.kernels.lowering import (
    ALONE_S,
    Context,
    Sized,
    SizedTemp,
    Step,
    dims_of,
    open_step,
)
from trireme.devices.cpu.kernels.sample import deal_evenly, varies
from trireme.devices.cpu.patterns.dynamic_range import (
    lower_levels,
    lower_product,
    params_of,
    way_of,
    weights_of,
)
from trireme.ir.graph import Graph
from trireme.ir.quantization.dynamic_range import (
    HybridProduct,
    Levels,
    find_hybrid,
)

_FEW_ROWS = (1, 2, 4)
"""Rows of tiles where there are fewer rows than the best tile has."""
_ALONE = 0.4
"""About the share of a whole tile's time that one row of it takes."""


def find_polymorphic_hybrid(graph: Graph) -> list[Levels | HybridProduct]:
    """Return the levels and products of a sample that one kernel serves for every shape."""
    found = find_hybrid(graph, ACTIVATIONS)
    served = {one.levels for one in found if isinstance(one, Levels) and _is_served(graph, one)}
    return [
        one for one in found if (one if isinstance(one, Levels) else one.source).levels in served
    ]


def _is_served(graph: Graph, levels: Levels) -> bool:
    return _is_of_rows(graph, levels) or _is_of_images(graph, levels)


def _is_of_rows(graph: Graph, levels: Levels) -> bool:
    """Whether all readers are fully connected layers whose depth does not vary."""
    type = graph.type(levels.x)
    depth = type.dims[-1]
    if varies(depth) or levels.images not in (1, type.elements // depth):
        return False
    return all(op.node.op == "fully_connected" for op in levels.readers)


def _is_of_images(graph: Graph, levels: Levels) -> bool:
    """Whether images alone vary, and each has a range of its own."""
    images = graph.type(levels.x).dims[0]
    types = [graph.type(op.node.outputs[0]).dims for op in levels.readers]
    types.append(graph.type(levels.x).dims)
    return levels.images == images and all(
        dims[0] == images and not any(map(varies, dims[1:])) for dims in types
    )


def _rows(graph: Graph, levels: Levels) -> int:
    """Return the rows of the input of levels."""
    return math.prod(dims_of(graph, levels.x)[:-1])


def _memory(levels: Levels, dot: Dot, depth: int) -> tuple[SizedTemp, SizedTemp]:
    """Return the memory of levels in the form of a multiplier, and of their state."""
    key, row = f"levels %{levels.levels}", depth * dot.width

    def level_bytes(graph: Graph) -> int:
        return _rows(graph, levels) * row + SLACK_BYTES

    def state_bytes(graph: Graph) -> int:
        return 8 * (1 if levels.images == 1 else _rows(graph, levels))

    made = SizedTemp(f"{key} {dot.dtype}", row, level_bytes)
    return made, SizedTemp(f"{key} state", 8, state_bytes)


def levels_steps(context: Context, levels: Levels) -> list[Step]:
    """Return the steps that round a value, once for every form that its readers want."""
    if not _is_of_rows(context.graph, levels):
        return _steps_by_image(context, levels, levels)
    steps: list[Step] = []
    dots = dict.fromkeys(way_of(context, levels, op).dot for op in levels.readers)
    for dot in dots:
        lower = _one_range if levels.images == 1 else _range_by_row
        steps += lower(context, levels, dot)
    return steps


def _range_by_row(context: Context, levels: Levels, dot: Dot) -> list[Step]:
    layout, rounding = _layout(context, levels, dot), LevelRounding(levels.kind, levels.tiny)
    row_s = layout.row / context.isa.lanes * VECTOR_S

    def size(graph: Graph) -> Sized:
        rows = _rows(graph, levels)
        part, chunks = deal_evenly(rows, rows * row_s)
        return Sized((rows, part), chunks, rows * row_s)

    code = context.kernel(sized_image_levels, layout, rounding)
    writes = _memory(levels, dot, layout.row)
    return [open_step((code,), (context.operand(levels.x),), writes, size, _ids(levels))]


def _one_range(context: Context, levels: Levels, dot: Dot) -> list[Step]:
    """Return the steps of the range and of the levels of all rows together."""
    layout, rounding = _layout(context, levels, dot), LevelRounding(levels.kind, levels.tiny)
    row_s = layout.row / context.isa.lanes * VECTOR_S

    def parts_of(graph: Graph) -> tuple[int, int, int, float]:
        rows = _rows(graph, levels)
        return rows, *deal_evenly(rows, rows * row_s / 3), rows * row_s

    def size_range(graph: Graph) -> Sized:
        rows, part, parts, seconds = parts_of(graph)
        return Sized((rows, part, parts), 0 if seconds < ALONE_S else parts, seconds / 3)

    def size_levels(graph: Graph) -> Sized:
        rows, _, parts, seconds = parts_of(graph)
        if seconds < ALONE_S:
            return Sized((rows, rows, 1, 1), 1, seconds, variant=1)
        cut, cuts = deal_evenly(rows, seconds * 2 / 3)
        return Sized((rows, cut, cuts, parts), cuts, seconds * 2 / 3)

    made, state = _memory(levels, dot, layout.row)
    ranges = SizedTemp(f"{made.key} ranges", 64, lambda graph: 8 * parts_of(graph)[2])
    x, ids = context.operand(levels.x), _ids(levels)
    first = context.kernel(sized_range, layout, rounding)
    second = context.kernel(sized_levels, layout, rounding)
    small = context.kernel(sized_small_levels, layout, rounding)
    return [
        open_step((first,), (x,), (ranges,), size_range, ids),
        open_step((second, small), (x, ranges), (made, state), size_levels, ids),
    ]


def _layout(context: Context, levels: Levels, dot: Dot) -> LineLayout:
    """Return how a row of levels lies."""
    return LineLayout(1, 1, context.type(levels.x).dims[-1], (0, 0, 0, 0), dot)


def _ids(pattern: Levels | HybridProduct) -> tuple[int, ...]:
    return tuple(node.id for node in pattern.nodes)


def _steps_by_image(
    context: Context, levels: Levels, pattern: Levels | HybridProduct
) -> list[Step]:
    """Return the steps of levels, or of a product on them, as those of one image in a loop."""
    source = context.graph
    found = [
        one
        for one in find_hybrid(source, ACTIVATIONS)
        if (one if isinstance(one, Levels) else one.source).levels == levels.levels
    ]
    outputs = tuple(one.output for one in found if isinstance(one, HybridProduct))
    ids = {node.id for one in found for node in one.nodes}
    nodes = tuple(node for node in source.nodes if node.id in ids)
    values, leading = {}, {}
    for value in dict.fromkeys(v for node in nodes for v in (*node.used, *node.outputs)):
        type = source.type(value)
        leading[value] = int(bool(type.dims) and varies(type.dims[0]))
        one_image = replace(type, shape=(1, *type.dims[1:])) if leading[value] else type
        values[value] = replace(source.values[value], type=one_image)
    graph = Graph(source.name, (levels.x,), outputs, nodes, values)
    of_one = next(one for one in find_hybrid(graph, ACTIVATIONS) if one.nodes == pattern.nodes)

    def lower(inner: Context) -> Sequence[Step]:
        if isinstance(of_one, Levels):
            return lower_levels(inner, of_one)
        return lower_product(inner, of_one)

    batch = Batch(levels.x, 1)
    return steps_of_items(context, graph, leading, batch, _ids(pattern), lower)


def product_steps(context: Context, product: HybridProduct) -> list[Step]:
    """Return the step of a product on levels."""
    if not _is_of_rows(context.graph, product.source):
        return _steps_by_image(context, product.source, product)
    return [_product_of_rows(context, product)]


def _product_of_rows(context: Context, product: HybridProduct) -> Step:
    isa, op, source = context.isa, product.op, product.source
    w, params = weights_of(context, op), params_of(context, op)
    way = way_of(context, source, op)
    dot, tile = way.dot, way.tile
    shape, _, dims = matrix_shape(1, context.type(source.x).dims[-1], len(w))
    order = np.arange(-(-len(w) // isa.lanes) * isa.lanes)
    memory, state = _memory(source, dot, dims[-1])
    repeats = repeats_of(way.parts, shape, dot, order, tile, isa.lanes) if way.parts else None
    zero = 0 if dot.width == 2 else 128 if source.kind == "symmetric" else None
    epilogue = dequantiser(
        w.astype(np.int32) - params.w_zero,
        [context.constant(value) for value in product.scales],
        None if product.bias is None else context.constant(product.bias),
        lane_channels(shape, order),
        DequantState(state, 1 if source.images == 1 else IMAGES, zero),
        1,
        product.activation,
    )
    tiles = [RegisterTile(rows, tile.vectors) for rows in _FEW_ROWS if rows < tile.rows]
    tiles.append(tile)
    image = Image(dims, (0, 0, 0, 0), "uint8", 0, dot, prepared=True)
    factor = params.w_zero - weight_zero(w, params, dot)
    form = repeats and repeats.form
    codes = [
        context.kernel(sized_linear, shape, image, one, epilogue.form, factor, form)
        for one in tiles
    ]
    panels = panels_of(isa, shape, tile)
    row_s = way.cycles / CYCLES_PER_S / _rows(context.graph, source)
    heights = [one.rows for one in tiles]

    def size(graph: Graph) -> Sized:
        rows = _rows(graph, source)
        variant = sum(height <= rows for height in heights) - 1
        height = heights[variant]
        seconds = max(float(rows), _ALONE * tile.rows) * row_s
        count = -(-rows // height)
        if count < 4 and panels > 1:
            part, parts = deal_evenly(panels, seconds)
            return Sized((rows, count * height, 1, part, parts), parts, seconds, variant=variant)
        block, blocks = deal_evenly(count, seconds)
        words = (rows, block * height, blocks, panels, 1)
        return Sized(words, blocks, seconds, variant=variant)

    packed = pack_weights(way.steps, dot, order, tile, isa.lanes)
    again = () if repeats is None else (repeats.index, repeats.weights)
    reads = (memory, packed, epilogue.data, *epilogue.operands, *again)
    ids = _ids(product)
    return open_step(codes, reads, (product.output,), size, ids, "gemm_q8")
