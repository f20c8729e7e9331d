"""What an attention kernel is made for: shapes and strides, blocks of queries, work and memory."""

from __future__ import annotations

import math

from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.spans import SpanWork
from trireme.support.records import dataclass

FEW_QUERIES = 4
"""Queries that are done one by one: a block of them would leave most lanes idle."""
_VECTORS = 2
"""Vectors of queries in a block."""
_MOST_ROWS = 14
REST_ROWS = 4
"""Rows of the tiles at the end of keys whose number varies."""


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
    mask_by_query: whether the keys of a query follow each other in the mask, which is then turned
        block by block
    guarded: whether the result of a query without a score is that of weights 0, not NaN
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
    mask_by_query: bool = False
    guarded: bool = False


@dataclass(frozen=True)
class AttentionPlan:
    """A kernel of an attention; vectors: of queries in a block, 0 where each query is by itself."""

    shape: AttentionShape
    vectors: int


def walks_rows(shape: AttentionShape) -> bool:
    """Whether keys and values lie in rows, which a query by itself reads in whole vectors."""
    k, v = shape.k.column, shape.v.column
    return (k == 1 or shape.depth == 1) and (v == 1 or shape.width == 1)


def is_by_row(shape: AttentionShape) -> bool:
    """Whether each query is done by itself."""
    return shape.queries <= FEW_QUERIES and walks_rows(shape)


def row_work(isa: Isa, shape: AttentionShape) -> SpanWork:
    """Return the queries of all batches, each by itself; a thread keeps the scores of one."""
    items = math.prod(shape.batch) * shape.queries
    cycles = shape.keys * (2 * (shape.depth + shape.width) / isa.lanes + 1)
    return SpanWork(items, items * cycles / 3e9, 4 * -(-shape.keys // isa.lanes) * isa.lanes)


def block_vectors(isa: Isa, queries: int) -> int:
    """Return the vectors of a block of queries."""
    return min(_VECTORS, -(-queries // isa.lanes))


def tile_height(isa: Isa, vectors: int) -> int:
    """Return the most rows of a register tile."""
    return min(_MOST_ROWS, (isa.registers - 1 - vectors) // vectors)


def attention_name(isa: Isa, vectors: int) -> str:
    """Return the name of a kernel: with the size of its register tiles."""
    return f"attention_f32_{tile_height(isa, vectors)}x{vectors}"


def block_work(isa: Isa, shape: AttentionShape, vectors: int, spare: int = 0) -> SpanWork:
    """Return the blocks of queries of all batches.

    A thread keeps Q of a block, turned, and its scores; spare: keys that these have room for too
    """
    items = math.prod(shape.batch) * -(-shape.queries // (vectors * isa.lanes))
    cycles = shape.keys * vectors * (shape.depth + shape.width + 12)
    kept = max(shape.depth, shape.width) + shape.keys + spare
    return SpanWork(items, items * cycles / 3e9, 4 * vectors * isa.lanes * kept)
