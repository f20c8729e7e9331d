"""The walk of a register tile over the depth of a product, which several kernels share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trireme.devices.cpu.codegen.index import minus, plus, times
from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.llvm_types import lanes_of


def multiply_tile(
    fn: Function,
    acc: Sequence[Sequence[Var]],
    lines: Sequence[tuple[Value, int]],
    b: tuple[Value, Index],
    panel: Callable[[Value], list[Value]],
    depth: Index,
    unroll: int,
    exact: bool = True,
) -> None:
    """Emit a register tile's walk over the depth: acc[r][v] += A[r, k] * B[k, v].

    lines: where the rows of A begin, each an address and elements beyond it
    b: where B begins, and the elements between its rows
    panel: loads the vectors of one row of B
    exact: whether `unroll` divides the depth
    """
    whole = depth if exact else minus(fn, depth, fn.integer("urem", depth, unroll))
    for low, high, steps in ((0, whole, unroll), (whole, depth, 1))[: 2 - exact]:
        for k in fn.range(low, high, steps):
            _multiply_steps(fn, acc, lines, b, panel, k, steps)


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
