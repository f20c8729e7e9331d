"""Where the items of a product of two activations lie: sizes, and strides of each operand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from trireme.devices.cpu.codegen.ir import Function, Index
from trireme.devices.cpu.kernels.copies import dense
from trireme.support.records import dataclass

Ints = tuple[int, ...]


@dataclass(frozen=True)
class BatchWalk:
    """The items of a batch in an operand: sizes of the batch's axes, and its stride along each."""

    sizes: Ints
    strides: Ints

    def at(self, fn: Function, item: Index) -> Index:
        """Return where an item begins."""
        place: Index = 0
        for size, stride in zip(self.sizes[::-1], self.strides[::-1], strict=True):
            if stride:
                place = fn.integer("urem", item, size) * stride + place
            item = fn.integer("udiv", item, size)
        return place


@dataclass(frozen=True)
class MatrixStrides:
    """How a matrix of each item lies: strides of rows, of columns and of the batch's axes."""

    row: int
    column: int
    batch: Ints


@dataclass(frozen=True)
class MatmulLayout:
    """A product of items: left [rows, depth], right [depth, columns], output [rows, columns].

    Columns of the left operand and of the output have stride 1; so have rows or columns of the
    right one. The stride of a batch's axis is 0 where all its items share a matrix.
    """

    rows: int
    depth: int
    columns: int
    batch: Ints
    left: MatrixStrides
    right: MatrixStrides
    output: MatrixStrides

    @property
    def items(self) -> int:
        """Items of the batch."""
        return math.prod(self.batch)

    @property
    def right_sizes(self) -> Ints:
        """The batch's sizes of the right operand alone: 1 along axes that share its matrix."""
        pairs = zip(self.batch, self.right.batch, strict=True)
        return tuple(size if stride else 1 for size, stride in pairs)

    @property
    def right_items(self) -> int:
        """Matrices of the right operand."""
        return math.prod(self.right_sizes)

    @property
    def packed(self) -> BatchWalk:
        """The items among the packed matrices of the right operand."""
        sizes = self.right_sizes
        steps = zip(dense(sizes), sizes, strict=True)
        return BatchWalk(self.batch, tuple(step if size > 1 else 0 for step, size in steps))

    def with_rows_joined(self) -> MatmulLayout:
        """Return the same with all rows as one matrix, where one right operand serves all items."""
        if any(self.right.batch):
            return self
        for side in (self.left, self.output):
            wanted = tuple(step * self.rows * side.row for step in dense(self.batch))
            pairs = zip(side.batch, wanted, self.batch, strict=True)
            if any(have != want and size > 1 for have, want, size in pairs):
                return self
        sides = (replace(side, batch=()) for side in (self.left, self.right, self.output))
        return MatmulLayout(self.rows * self.items, self.depth, self.columns, (), *sides)


def dense_layout(a: Sequence[int], b: Sequence[int]) -> MatmulLayout:
    """Return the layout of a [.., rows, depth] @ b [.., depth, columns], axis by axis broadcast."""
    rank = max(len(a), len(b)) - 2
    before, other = ((1,) * (rank + 2 - len(x)) + tuple(x[:-2]) for x in (a, b))
    batch = tuple(max(pair) for pair in zip(before, other, strict=True))
    rows, depth, columns = a[-2], a[-1], b[-1]
    return MatmulLayout(
        rows,
        depth,
        columns,
        batch,
        _dense(before, rows, depth),
        _dense(other, depth, columns),
        _dense(batch, rows, columns),
    ).with_rows_joined()


def _dense(batch: Ints, rows: int, columns: int) -> MatrixStrides:
    steps = zip(batch, dense(batch), strict=True)
    every = tuple(step * rows * columns if size > 1 else 0 for size, step in steps)
    return MatrixStrides(columns, 1, every)
