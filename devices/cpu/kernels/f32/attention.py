"""Attention as one kernel: softmax(scale Q K^T + mask) V, whose scores never leave the cache.

A chunk takes blocks of queries. The lanes of a vector are neighbouring queries. So Q is transposed
once a block, K and V are read in place element by element with any strides, and softmax runs down
the keys without joining lanes. Transposes around the products become strides.
`patterns/attention.py` says which nodes of a graph are such a computation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from trireme.devices.cpu.codegen import mathfn
from trireme.devices.cpu.codegen.index import known, minus, plus, times
from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.scalars import any_lane
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.copies import transpose_registers
from trireme.devices.cpu.kernels.f32.attention_row import RowAttentionEmitter, batch_offset
from trireme.devices.cpu.kernels.f32.attention_shape import (
    REST_ROWS,
    AttentionPlan,
    AttentionShape,
    attention_name,
    tile_height,
)
from trireme.devices.cpu.kernels.lowering import finish
from trireme.devices.cpu.kernels.spans import SpanCut, begin_cut, span_of

_UNROLL = 4


def attention_kernel(isa: Isa, plan: AttentionPlan, cut: SpanCut) -> Code:
    """Return the kernel; operands: Q, K, V, the mask where there is one, the result."""
    vectors, operands = plan.vectors, 4 + (plan.shape.mask is not None)
    name = attention_name(isa, vectors) if vectors else "attention_f32_row"
    fn, pointers, chunk, local = begin_cut(name, isa, operands, cut)
    shape = fn.known(plan.shape)
    if not vectors:
        by_row = RowAttentionEmitter(fn, shape, pointers, local)
        for item in fn.range(*span_of(fn, chunk, cut)):
            by_row.item(item)
        return finish(fn)
    emitter = AttentionEmitter(fn, shape, vectors, pointers, local)
    blocks = fn.integer("udiv", plus(fn, shape.queries, emitter.block - 1), emitter.block)
    for item in fn.range(*span_of(fn, chunk, cut)):
        emitter.item(item, blocks)
    return finish(fn)


class AttentionEmitter:
    """Writes one attention kernel: item (a block of queries of a batch) > the five steps of it."""

    def __init__(
        self,
        fn: Function,
        shape: AttentionShape,
        vectors: int,
        operands: Sequence[Value],
        local: Value,
    ) -> None:
        self.fn, self.shape, self.most = fn, shape, tile_height(fn.isa, vectors)
        self.lanes = fn.isa.lanes
        self.block = vectors * self.lanes
        self.type = vector(self.lanes, "float")
        self.operands = operands
        held = max(shape.depth, shape.width)
        self.turned, self.scores = local, fn.at(local, held * self.block)

    def item(self, item: Index, blocks: Index) -> None:
        """Emit a block of queries of one batch."""
        fn, shape = self.fn, self.shape
        batch, block = (fn.integer(op, item, blocks) for op in ("udiv", "urem"))
        walks = [shape.q, shape.k, shape.v, *([shape.mask] if shape.mask else []), shape.out]
        q, k, v, *mask, out = (
            fn.at(base, batch_offset(fn, shape, batch, walk))
            for base, walk in zip(self.operands, walks, strict=True)
        )
        first = fn.as_value("i64", block) * self.block
        q, out = fn.at(q, first * shape.q.row), fn.at(out, first * shape.out.row)
        if shape.mask and shape.mask.column:
            mask = [fn.at(mask[0], first * shape.mask.column)]
        rest = shape.queries % self.block if isinstance(shape.queries, int) else 0
        if rest > self.block - self.lanes and blocks != 1:
            # the last block has as many vectors as the others: one piece of code does for all
            left = fn.as_value("i64", fn.minimum(minus(fn, shape.queries, first), self.block))
            self._block(left, q, k, v, mask, out)
            return
        if not known(shape.queries):
            left = fn.as_value("i64", fn.minimum(minus(fn, shape.queries, first), self.block))
            for is_whole in fn.either(fn.compare("eq", left, self.block)):
                self._block(self.block if is_whole else left, q, k, v, mask, out)
            return
        if not rest or blocks == 1:
            self._block(rest or self.block, q, k, v, mask, out)
            return
        for is_last in fn.either(fn.compare("eq", fn.as_value("i64", block), blocks - 1)):
            self._block(rest if is_last else self.block, q, k, v, mask, out)

    def _block(
        self, count: Index, q: Value, k: Value, v: Value, mask: Sequence[Value], out: Value
    ) -> None:
        """Emit the attention of `count` queries."""
        vectors = self.block // self.lanes
        if isinstance(count, int):
            vectors = -(-count // self.lanes)
        self._turn_in(q, count, vectors)
        if self.shape.mask_by_query:
            self._turn_mask(mask[0], count, vectors)
        largest = self._scores(k, mask, vectors)
        scales = self._exponentials(largest)
        self._sums(v, scales)
        self._turn_out(out, count, vectors)

    def _tiles(self, total: int) -> list[tuple[range, int]]:
        """Cut rows into tiles of equal height and a last one: their starts, and the height."""
        height = -(-total // -(-total // self.most))
        whole = total // height * height
        tiles = [(range(0, whole, height), height)]
        return tiles if whole == total else [*tiles, (range(whole, total), total - whole)]

    def _turn_in(self, q: Value, queries: Index, vectors: int) -> None:
        """Emit scale * Q^T: squares transposed in registers."""
        fn, lanes, depth = self.fn, self.lanes, self.shape.depth

        def square(at: Index, columns: int) -> None:
            for v in range(vectors):
                lines = self._lines(fn.at(q, at), self.shape.q.row, queries, v, columns)
                to = fn.at(fn.at(self.turned, _times(at, self.block)), v * lanes)
                for c, made in enumerate(transpose_registers(fn, lines)[:columns]):
                    fn.store(made * self.shape.scale, fn.at(to, c * self.block))

        whole = depth // lanes * lanes
        for at in fn.range(0, whole, lanes):
            square(at, lanes)
        if whole < depth:
            square(whole, depth - whole)

    def _lines(
        self, base: Value, stride: Index, queries: Index, v: int, columns: Index
    ) -> list[Value]:
        """Load a part of the rows of a vector of queries; rows beyond the last are of no use."""
        fn, made = self.fn, []
        for row in range(v * self.lanes, (v + 1) * self.lanes):
            if isinstance(queries, int) and row >= queries:
                made.append(fn.as_value(self.type, 0.0))
                continue
            of = row if isinstance(queries, int) else fn.minimum(row, queries - 1)
            made.append(fn.load_some(self.type, fn.at(base, times(fn, of, stride)), columns))
        return made

    def _turn_mask(self, mask: Value, queries: Index, vectors: int) -> None:
        """Emit mask_scale * mask^T where the scores will be: squares transposed in registers."""
        fn, lanes, keys, walk = self.fn, self.lanes, self.shape.keys, self.shape.mask
        assert walk is not None

        def square(at: Index, columns: Index) -> None:
            for v in range(vectors):
                lines = self._lines(fn.at(mask, at), walk.column, queries, v, columns)
                to = fn.at(fn.at(self.scores, times(fn, at, self.block)), v * lanes)
                for c, made in enumerate(transpose_registers(fn, lines)):
                    if not isinstance(columns, int) or c < columns:  # there is room for a square
                        fn.store(made * self.shape.mask_scale, fn.at(to, c * self.block))

        rest = fn.integer("urem", keys, lanes)
        whole = minus(fn, keys, rest)
        for at in fn.range(0, whole, lanes):
            square(at, lanes)
        if isinstance(rest, Value):
            with fn.when(fn.compare("ne", rest, 0)):
                square(whole, rest)
        elif rest:
            square(whole, rest)

    def _scores(self, k: Value, mask: Sequence[Value], vectors: int) -> list[Value]:
        """Emit the scores, a row for each key; returns the largest of each query."""
        fn, keys = self.fn, self.shape.keys
        largest = [Var(fn, self.type, -math.inf) for _ in range(vectors)]
        if known(keys):
            for starts, height in self._tiles(keys):
                for key in fn.range(starts.start, starts.stop, height):
                    self._key_tile(k, mask, largest, key, [plus(fn, key, r) for r in range(height)])
            return [top.get() for top in largest]
        whole = minus(fn, keys, fn.integer("urem", keys, self.most))
        for key in fn.range(0, whole, self.most):
            self._key_tile(k, mask, largest, key, [plus(fn, key, r) for r in range(self.most)])
        for key in fn.range(whole, keys, REST_ROWS):  # none beyond the last is read
            last = minus(fn, keys, 1)
            of = [fn.minimum(plus(fn, key, r), last) for r in range(REST_ROWS)]
            self._key_tile(k, mask, largest, key, of, True)
        return [top.get() for top in largest]

    def _key_tile(
        self,
        k: Value,
        mask: Sequence[Value],
        largest: Sequence[Var],
        key: Index,
        of: Sequence[Index],
        apart: bool = False,
    ) -> None:
        """Emit the scores of some keys; apart: whether they are not neighbours."""
        fn, shape = self.fn, self.shape
        a = fn.at(k, times(fn, key, shape.k.row))
        rows = [fn.at(k, times(fn, one, shape.k.row)) for one in of] if apart else None
        strides = shape.k.row, shape.k.column
        totals = self._tile(a, strides, self.turned, shape.depth, len(of), len(largest), rows)
        to = fn.at(self.scores, _times(key, self.block))
        turned = self._turned_masks(of, len(largest)) if shape.mask_by_query else []
        for r, row in enumerate(totals):
            for v, total in enumerate(row):
                value = total.get()
                if turned:
                    value = value + turned[r][v]
                elif mask:
                    value = self._masked(value, mask[0], of[r], v)
                top = largest[v].get()  # NaN is left out: the sum of exponentials has it
                above = fn.compare("ogt", value, top)
                largest[v].set(fn.select(above, value, top))
                fn.store(value, fn.at(to, r * self.block + v * self.lanes))

    def _turned_masks(self, keys: Sequence[Index], vectors: int) -> list[list[Value]]:
        """Load the masks of some keys, which the scores replace."""
        fn = self.fn
        places = [fn.at(self.scores, times(fn, key, self.block)) for key in keys]
        return [
            [fn.load(self.type, fn.at(place, v * self.lanes)) for v in range(vectors)]
            for place in places
        ]

    def _masked(self, value: Value, mask: Value, key: Index, v: int) -> Value:
        """Return scores plus their mask."""
        fn, walk = self.fn, self.shape.mask
        assert walk is not None
        at = fn.at(mask, times(fn, key, walk.row))
        if walk.column:
            more = fn.load(self.type, fn.at(at, v * self.lanes))
        else:
            more = fn.splat(fn.load("float", at), self.lanes)
        return value + more * self.shape.mask_scale if self.shape.mask_scale != 1 else value + more

    def _exponentials(self, largest: Sequence[Value]) -> list[Value]:
        """Emit e to the scores less the largest; returns one over their sums."""
        fn = self.fn
        sums = [[Var(fn, self.type, 0.0) for _ in range(2)] for _ in largest]

        def row(key: Index, which: int) -> None:
            at = fn.at(self.scores, _times(key, self.block))
            for v, top in enumerate(largest):
                place = fn.at(at, v * self.lanes)
                power = mathfn.exp_short(fn, fn.load(self.type, place) - top, most=0.0)
                fn.store(power, place)
                sums[v][which].set(sums[v][which].get() + power)

        keys = self.shape.keys
        even = minus(fn, keys, fn.integer("urem", keys, 2))
        for key in fn.range(0, even, 2):
            row(key, 0)
            row(_plus(key, 1), 1)
        for key in fn.range(even, keys):
            row(key, 0)
        totals = [a.get() + b.get() for a, b in sums]
        return self._guarded(totals) if self.shape.guarded else [1.0 / total for total in totals]

    def _guarded(self, totals: Sequence[Value]) -> list[Value]:
        """Emit 0 for the exponentials of queries whose sum is NaN; returns one over the others."""
        fn = self.fn
        for v, total in enumerate(totals):
            wrong = fn.compare("uno", total, total)
            with fn.when(any_lane(fn, wrong)):
                for key in fn.range(0, self.shape.keys):
                    place = fn.at(fn.at(self.scores, _times(key, self.block)), v * self.lanes)
                    fn.store(fn.select(wrong, 0.0, fn.load(self.type, place)), place)
        return [fn.select(fn.compare("uno", t, t), 1.0, 1.0 / t) for t in totals]

    def _sums(self, values: Value, scales: Sequence[Value]) -> None:
        """Emit the transposed result: exponentials times V, over their sums."""
        fn, shape = self.fn, self.shape
        for starts, height in self._tiles(shape.width):
            for column in fn.range(starts.start, starts.stop, height):
                a = fn.at(values, _times(column, shape.v.column))
                strides = (shape.v.column, shape.v.row)
                totals = self._tile(a, strides, self.scores, shape.keys, height, len(scales))
                to = fn.at(self.turned, _times(column, self.block))
                for r, row in enumerate(totals):
                    for v, total in enumerate(row):
                        place = fn.at(to, r * self.block + v * self.lanes)
                        fn.store(total.get() * scales[v], place)

    def _tile(
        self,
        a: Value,
        strides: tuple[int, int],
        b: Value,
        depth: int,
        height: int,
        vectors: int,
        rows: Sequence[Value] | None = None,
    ) -> list[list[Var]]:
        """Emit a register tile of A B: A in place with its strides, B in rows of a block.

        rows: where the rows of A begin, if they are not neighbours
        """
        fn = self.fn
        totals = [[Var(fn, self.type, 0.0) for _ in range(vectors)] for _ in range(height)]

        def step(at: Index) -> None:
            line = fn.at(b, _times(at, self.block))
            columns = [fn.load(self.type, fn.at(line, v * self.lanes)) for v in range(vectors)]
            along = times(fn, at, strides[1])
            element = fn.at(a, along)
            for r, row in enumerate(totals):
                place = fn.at(rows[r], along) if rows else fn.at(element, r * strides[0])
                factor = fn.splat(fn.load("float", place), self.lanes)
                for total, column in zip(row, columns, strict=True):
                    total.set(fn.fma(factor, column, total.get()))

        whole = minus(fn, depth, fn.integer("urem", depth, _UNROLL))
        for at in fn.range(0, whole, _UNROLL):
            for u in range(_UNROLL):
                step(_plus(at, u))
        rest = range(whole, depth) if isinstance(whole, int) else fn.range(whole, depth)
        for at in rest:
            step(at)
        return totals

    def _turn_out(self, out: Value, queries: Index, vectors: int) -> None:
        """Emit the result's rows from its transpose."""
        fn, lanes, width = self.fn, self.lanes, self.shape.width
        nothing = fn.as_value(self.type, 0.0)

        def square(at: Index, columns: int) -> None:
            for v in range(vectors):
                place = fn.at(fn.at(self.turned, _times(at, self.block)), v * lanes)
                lines = [
                    fn.load(self.type, fn.at(place, c * self.block)) if c < columns else nothing
                    for c in range(lanes)
                ]
                for r, line in enumerate(transpose_registers(fn, lines)):
                    row = v * lanes + r
                    to = fn.at(fn.at(out, row * self.shape.out.row), at)
                    if isinstance(queries, int):
                        if row < queries:
                            fn.store_some(line, to, columns)
                        continue
                    with fn.when(fn.compare("sgt", queries, row)):
                        fn.store_some(line, to, columns)

        whole = width // lanes * lanes
        for at in fn.range(0, whole, lanes):
            square(at, lanes)
        if whole < width:
            square(whole, width - whole)


def _times(index: Index, factor: int) -> Index:
    return index * factor if isinstance(index, int) or factor else 0


def _plus(index: Index, other: int) -> Index:
    return index + other
