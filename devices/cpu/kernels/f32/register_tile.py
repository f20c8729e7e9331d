"""The walk of a register tile over the depth of a product, which several kernels share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trireme.devices.cpu.codegen.index import minus, plus, times
from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.llvm_types import lanes_of
from trireme.support.records import dataclass

LINE = 16
"""Elements of a line of the caches."""


@dataclass(frozen=True)
class Prefetch:
    """Memory that a walk brings into the L2 cache: lines of the caches from place on, a step."""

    place: Value
    lines: int


LEAST_ROWS = 6
"""Rows of tiles that have time to spare: a line of weights is used in three cycles or more."""


def part_ahead(
    fn: Function,
    place: Value,
    rows: int,
    turn: tuple[Index, int],
    panel: tuple[Index, int],
    unroll: int,
) -> Prefetch | None:
    """Return the part of the next panel of B that a register tile should bring into the cache.

    A panel from memory holds back the first tile that reads it, and the tiles after it have time
    to spare. So each of them brings its part of the panel that comes next. None for tiles of few
    rows and a single tile, which are as fast as memory is, and where tiles are so many that the
    first one's wait is small.

    place: where the next panel begins; rows: of a tile
    turn: which of how many tiles multiply by a panel; panel: its depth and width
    """
    (tile, tiles), (depth, width) = turn, panel
    lines = max(unroll * width // LINE, 1)
    if rows < LEAST_ROWS or not 1 < tiles <= 2 * lines:
        return None
    each = -(-lines // tiles)
    part = times(fn, depth, each * LINE // unroll)
    return Prefetch(fn.at(place, times(fn, tile, part)), each)


def multiply_tile(
    fn: Function,
    acc: Sequence[Sequence[Var]],
    lines: Sequence[tuple[Value, int]],
    b: tuple[Value, Index],
    panel: Callable[[Value], list[Value]],
    depth: Index,
    unroll: int,
    exact: bool = True,
    ahead: Prefetch | None = None,
) -> None:
    """Emit a register tile's walk over the depth: acc[r][v] += A[r, k] * B[k, v].

    lines: where the rows of A begin, each an address and elements beyond it
    b: where B begins, and the elements between its rows
    panel: loads the vectors of one row of B
    exact: whether `unroll` divides the depth
    ahead: what comes into the cache meanwhile
    """
    whole = depth if exact else minus(fn, depth, fn.integer("urem", depth, unroll))
    for low, high, steps in ((0, whole, unroll), (whole, depth, 1))[: 2 - exact]:
        for k in fn.range(low, high, steps):
            if ahead is not None and steps == unroll:
                _bring(fn, ahead, times(fn, k, ahead.lines * LINE // unroll))
            _multiply_steps(fn, acc, lines, b, panel, k, steps)


def _bring(fn: Function, ahead: Prefetch, offset: Index) -> None:
    for line in range(ahead.lines):
        fn.prefetch(fn.at(ahead.place, plus(fn, offset, line * LINE)))


def _multiply_steps(
    fn: Function,
    acc: Sequence[Sequence[Var]],
    lines: Sequence[tuple[Value, int]],
    b: tuple[Value, Index],
    panel: Callable[[Value], list[Value]],
    k: Index,
    steps: int,
) -> None:
    for step in range(steps):
        columns = panel(fn.at(b[0], times(fn, plus(fn, k, step), b[1])))
        for accumulators, (line, offset) in zip(acc, lines, strict=True):
            scalar = fn.load("float", fn.at(line, plus(fn, k, step + offset)))
            factors = {n: fn.splat(scalar, n) for n in {lanes_of(c.type) for c in columns}}
            for accumulator, column in zip(accumulators, columns, strict=True):
                factor = factors[lanes_of(column.type)]
                accumulator.set(fn.fma(factor, column, accumulator.get()))
