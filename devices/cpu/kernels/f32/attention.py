"""Attention as one kernel: softmax(scale Q K^T + mask) V, whose scores never leave the cache.

A chunk takes blocks of queries. The lanes of a vector are neighbouring queries, so that Q is
transposed once a block, K and V are read in place element by element whatever their strides, and
softmax runs down the keys without joining lanes. Transposes around the products become strides.
`patterns/attention.py` says which nodes of a graph are such a computation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trireme.devices.cpu.codegen import mathfn
from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.copies import transpose_registers
from trireme.devices.cpu.kernels.lowering import begin, deal, finish

_VECTORS = 2
"""Vectors of queries in a block."""
_MOST_ROWS = 14
_UNROLL = 4


@dataclass(frozen=True)
class OperandStrides:
    """How an operand is walked: elements between batches (one a dimension), rows and columns."""

    batch: tuple[int, ...]
    row: int
    column: int


@dataclass(frozen=True)
class AttentionShape:
    """Shapes and strides of an attention; Q [queries, depth], K [keys, depth], V [keys, width].

    mask: of a mask whose rows are keys, of one column when it is the same for all queries
    """

    batch: tuple[int, ...]
    queries: int
    keys: int
    depth: int
    width: int
    q: OperandStrides
    k: OperandStrides
    v: OperandStrides
    out: OperandStrides
    mask: OperandStrides | None
    scale: float
    mask_scale: float


def attention_kernel(isa: Isa, shape: AttentionShape) -> tuple[Code, int, int, float]:
    """Return the kernel, its chunks, the bytes each thread needs of its own and its seconds.

    Operands: Q, K, V, the mask where there is one, the result
    """
    vectors = min(_VECTORS, -(-shape.queries // isa.lanes))
    most = min(_MOST_ROWS, (isa.registers - 1 - vectors) // vectors)
    fn, operands, chunk, local = begin(
        f"attention_f32_{most}x{vectors}", isa, 4 + (shape.mask is not None)
    )
    emitter = _AttentionEmitter(fn, shape, vectors, most, operands, local)
    blocks = -(-shape.queries // emitter.block)
    items = math.prod(shape.batch) * blocks
    cycles = shape.keys * vectors * (shape.depth + shape.width + 12)
    seconds = items * cycles / 3e9
    size, chunks = deal(items, seconds)
    first: Index = chunk * size if chunks > 1 else 0
    for item in fn.range(first, fn.minimum(first + size, items)):
        emitter.item(item, blocks)
    return finish(fn), chunks, emitter.local_bytes, seconds


class _AttentionEmitter:
    """Writes one attention kernel: item (a block of queries of a batch) > the five steps of it."""

    def __init__(
        self,
        fn: Function,
        shape: AttentionShape,
        vectors: int,
        rows: int,
        operands: Sequence[Value],
        local: Value,
    ) -> None:
        self.fn, self.shape, self.most = fn, shape, rows
        self.lanes = fn.isa.lanes
        self.block = vectors * self.lanes
        self.type = vector(self.lanes, "float")
        self.operands = operands
        held = max(shape.depth, shape.width)
        self.turned, self.scores = local, fn.at(local, held * self.block)
        self.local_bytes = 4 * self.block * (held + shape.keys)

    def item(self, item: Index, blocks: int) -> None:
        """Emit a block of queries of one batch."""
        fn, shape = self.fn, self.shape
        batch, block = (fn.integer(op, item, blocks) for op in ("udiv", "urem"))
        walks = [shape.q, shape.k, shape.v, *([shape.mask] if shape.mask else []), shape.out]
        q, k, v, *mask, out = (
            fn.at(base, self._batch_offset(batch, walk))
            for base, walk in zip(self.operands, walks, strict=True)
        )
        first = fn.as_value("i64", block) * self.block
        q, out = fn.at(q, first * shape.q.row), fn.at(out, first * shape.out.row)
        if shape.mask and shape.mask.column:
            mask = [fn.at(mask[0], first * shape.mask.column)]
        rest = shape.queries % self.block
        if not rest or blocks == 1:
            self._block(rest or self.block, q, k, v, mask, out)
            return
        for is_last in fn.either(fn.compare("eq", fn.as_value("i64", block), blocks - 1)):
            self._block(rest if is_last else self.block, q, k, v, mask, out)

    def _batch_offset(self, batch: Index, walk: OperandStrides) -> Index:
        """The element offset of an operand's matrices of the batch-th combination."""
        fn, offset = self.fn, self.fn.as_value("i64", 0)
        for axis in reversed(range(len(walk.batch))):
            index = fn.integer("urem", batch, self.shape.batch[axis]) if axis else batch
            batch = fn.integer("udiv", batch, self.shape.batch[axis]) if axis else 0
            offset = offset + fn.as_value("i64", index) * walk.batch[axis]
        return offset

    def _block(
        self, count: int, q: Value, k: Value, v: Value, mask: Sequence[Value], out: Value
    ) -> None:
        """Emit the attention of `count` queries."""
        counts = [min(self.lanes, count - at) for at in range(0, count, self.lanes)]
        self._turn_in(q, counts)
        largest = self._scores(k, mask, len(counts))
        scales = self._exponentials(largest)
        self._sums(v, scales)
        self._turn_out(out, counts)

    def _tiles(self, total: int) -> list[tuple[range, int]]:
        """Cut rows into tiles of equal height and a last one: their starts, and the height."""
        height = -(-total // -(-total // self.most))
        whole = total // height * height
        tiles = [(range(0, whole, height), height)]
        return tiles if whole == total else [*tiles, (range(whole, total), total - whole)]

    def _turn_in(self, q: Value, counts: Sequence[int]) -> None:
        """Emit scale * Q^T: squares transposed in registers."""
        fn, lanes, depth = self.fn, self.lanes, self.shape.depth
        nothing = fn.as_value(self.type, 0.0)

        def square(at: Index, columns: int) -> None:
            for v, count in enumerate(counts):
                lines = [
                    fn.load_some(
                        self.type,
                        fn.at(fn.at(q, (v * lanes + r) * self.shape.q.row), at),
                        columns,
                    )
                    if r < count
                    else nothing
                    for r in range(lanes)
                ]
                to = fn.at(fn.at(self.turned, _times(at, self.block)), v * lanes)
                for c, line in enumerate(transpose_registers(fn, lines)[:columns]):
                    fn.store(line * self.shape.scale, fn.at(to, c * self.block))

        whole = depth // lanes * lanes
        for at in fn.range(0, whole, lanes):
            square(at, lanes)
        if whole < depth:
            square(whole, depth - whole)

    def _scores(self, k: Value, mask: Sequence[Value], vectors: int) -> list[Value]:
        """Emit the scores, a row for each key; returns the largest of each query."""
        fn, shape = self.fn, self.shape
        largest = [Var(fn, self.type, -math.inf) for _ in range(vectors)]
        for starts, height in self._tiles(shape.keys):
            for key in fn.range(starts.start, starts.stop, height):
                a = fn.at(k, _times(key, shape.k.row))
                totals = self._tile(
                    a, (shape.k.row, shape.k.column), self.turned, shape.depth, height, vectors
                )
                to = fn.at(self.scores, _times(key, self.block))
                for r, row in enumerate(totals):
                    for v, total in enumerate(row):
                        value = total.get()
                        if mask:
                            value = self._masked(value, mask[0], _plus(key, r), v)
                        top = largest[v].get()  # NaN is left out: the sum of exponentials has it
                        above = fn.compare("ogt", value, top)
                        largest[v].set(fn.select(above, value, top))
                        fn.store(value, fn.at(to, r * self.block + v * self.lanes))
        return [top.get() for top in largest]

    def _masked(self, value: Value, mask: Value, key: Index, v: int) -> Value:
        """Return scores plus their mask."""
        fn, walk = self.fn, self.shape.mask
        assert walk is not None
        at = fn.at(mask, _times(key, walk.row))
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

        even = self.shape.keys // 2 * 2
        for key in fn.range(0, even, 2):
            row(key, 0)
            row(_plus(key, 1), 1)
        if even < self.shape.keys:
            row(even, 0)
        return [1.0 / (a.get() + b.get()) for a, b in sums]

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
        self, a: Value, strides: tuple[int, int], b: Value, depth: int, height: int, vectors: int
    ) -> list[list[Var]]:
        """Emit a register tile of A B: A in place with its strides, B in rows of a block."""
        fn = self.fn
        totals = [[Var(fn, self.type, 0.0) for _ in range(vectors)] for _ in range(height)]

        def step(at: Index) -> None:
            line = fn.at(b, _times(at, self.block))
            columns = [fn.load(self.type, fn.at(line, v * self.lanes)) for v in range(vectors)]
            element = fn.at(a, _times(at, strides[1]))
            for r, row in enumerate(totals):
                factor = fn.splat(fn.load("float", fn.at(element, r * strides[0])), self.lanes)
                for total, column in zip(row, columns, strict=True):
                    total.set(fn.fma(factor, column, total.get()))

        whole = depth // _UNROLL * _UNROLL
        for at in fn.range(0, whole, _UNROLL):
            for u in range(_UNROLL):
                step(_plus(at, u))
        for at in range(whole, depth):
            step(at)
        return totals

    def _turn_out(self, out: Value, counts: Sequence[int]) -> None:
        """Emit the result's rows from its transpose."""
        fn, lanes, width = self.fn, self.lanes, self.shape.width
        nothing = fn.as_value(self.type, 0.0)

        def square(at: Index, columns: int) -> None:
            for v, count in enumerate(counts):
                place = fn.at(fn.at(self.turned, _times(at, self.block)), v * lanes)
                lines = [
                    fn.load(self.type, fn.at(place, c * self.block)) if c < columns else nothing
                    for c in range(lanes)
                ]
                for r, line in enumerate(transpose_registers(fn, lines)[:count]):
                    to = fn.at(fn.at(out, (v * lanes + r) * self.shape.out.row), at)
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
