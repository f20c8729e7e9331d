"""The layout of a tensor's axes in memory: strides in elements, folded to four dimensions.

Tensors are dense and row-major everywhere. So one Box of a value serves in DRAM, in SRAM and in
either of two element sizes. Reshapes, slices, broadcasts and transposes are only layouts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trireme.devices.npu.stream.commands import ITEMSIZE, Dims, View


@dataclass(frozen=True, slots=True)
class Box:
    """A strided box over a dense tensor; strides and offset in elements, 0 repeats."""

    shape: Dims
    strides: Dims
    offset: int = 0

    def view(self, place: View) -> View:
        """Return the box of a tensor that starts at `place`."""
        size = ITEMSIZE[place.dtype]
        a, b, c, d = self.strides
        return View(
            place.region,
            place.offset + self.offset * size,
            place.dtype,
            self.shape,
            (a * size, b * size, c * size, d * size),
        )


@dataclass(frozen=True)
class RankedBox:
    """The same as Box with any rank, before folding."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a dense array."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def axes_of(shape: Sequence[int]) -> RankedBox:
    """Return a whole dense tensor."""
    return RankedBox(tuple(shape), row_major(shape))


def broadcast(shape: Sequence[int], to: Sequence[int]) -> RankedBox:
    """Return a dense tensor broadcast to a larger shape, by numpy's rules."""
    padded = (1,) * (len(to) - len(shape)) + tuple(shape)
    strides = (0,) * (len(to) - len(shape)) + row_major(shape)
    return RankedBox(
        tuple(to), tuple(0 if n == 1 else s for n, s in zip(padded, strides, strict=True))
    )


def part(
    axes: RankedBox, start: Sequence[int], shape: Sequence[int], step: Sequence[int]
) -> RankedBox:
    """Return every `step`-th element from `start`; steps are positive."""
    offset = axes.offset + sum(i * s for i, s in zip(start, axes.strides, strict=True))
    strides = tuple(s * k for s, k in zip(axes.strides, step, strict=True))
    return RankedBox(tuple(shape), strides, offset)


def permuted(axes: RankedBox, order: Sequence[int]) -> RankedBox:
    """Return the axes in another order."""
    return RankedBox(
        tuple(axes.shape[i] for i in order), tuple(axes.strides[i] for i in order), axes.offset
    )


def nhwc(shape: Sequence[int]) -> Box:
    """Return a whole dense tensor as [n,h,w,c]: leading axes are added, or folded into n."""
    dims = [1] * (4 - len(shape)) + list(shape)
    n, (h, w, c) = math.prod(dims[:-3]), dims[-3:]
    return Box((n, h, w, c), (h * w * c, w * c, c, 1))


def fold(operands: Sequence[RankedBox], keep_last: bool = False) -> Iterator[tuple[Box, ...]]:
    """Yield the operands, all of one shape, as four dimensions; several times if more are needed.

    Neighbouring axes are merged where every operand allows it. `keep_last` keeps the last axis on
    its own, for ops that work along it.
    """
    shape, strides = _merged(operands, keep_last)
    while len(shape) < 4:
        shape = [1, *shape]
        strides = [[0, *own] for own in strides]
    outer = len(shape) - 4
    for index in itertools.product(*(range(n) for n in shape[:outer])):
        yield tuple(
            _layout(shape[outer:], own[outer:], operand.offset + _dot(index, own[:outer]))
            for operand, own in zip(operands, strides, strict=True)
        )


def _dot(index: Sequence[int], strides: Sequence[int]) -> int:
    return sum(i * s for i, s in zip(index, strides, strict=True))


def _layout(shape: Sequence[int], strides: Sequence[int], offset: int) -> Box:
    n, h, w, c = shape
    sn, sh, sw, sc = strides
    return Box((n, h, w, c), (sn, sh, sw, sc), offset)


def _merged(operands: Sequence[RankedBox], keep_last: bool) -> tuple[list[int], list[list[int]]]:
    """Return the shape and strides with axes of size 1 left out and neighbours merged."""
    full = operands[0].shape
    last = len(full) - 1
    kept = [i for i, n in enumerate(full) if n != 1 or (keep_last and i == last)]
    shape: list[int] = []
    strides: list[list[int]] = [[] for _ in operands]
    for axis in kept:
        size = full[axis]
        steps = [operand.strides[axis] for operand in operands]
        joins = bool(shape) and not (keep_last and axis == last)
        if joins and all(own[-1] == step * size for own, step in zip(strides, steps, strict=True)):
            shape[-1] *= size
            for own, step in zip(strides, steps, strict=True):
                own[-1] = step
        else:
            shape.append(size)
            for own, step in zip(strides, steps, strict=True):
                own.append(step)
    return shape, strides
