"""How an attention walks its operands: batches, rows and columns as strides, and masks.

attention.py finds which values they are; kernels/f32/attention_shape.py says what a kernel reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trireme.devices.cpu.codegen.aligned_memory import aligned_copy
from trireme.devices.cpu.kernels.copies import dense
from trireme.devices.cpu.kernels.f32.attention_shape import AttentionShape, OperandStrides
from trireme.devices.cpu.kernels.lowering import Context, Operand, varies
from trireme.devices.cpu.patterns.views import Axis, StridedView, plain, size_of, split_axis
from trireme.ir.graph import Graph
from trireme.support.dtypes import Array
from trireme.support.records import dataclass

_MOST_KEYS = 4096
"""Keys whose scores for a block of queries stay in the L2 cache."""


@dataclass(frozen=True)
class AttentionWalk:
    """How an attention walks its operands at one shape.

    splits: the factors of each batch axis of the result; the shape's batch is all of them
    """

    shape: AttentionShape
    splits: tuple[tuple[int, ...], ...]


def walk_of(
    q: StridedView,
    k: StridedView,
    v: StridedView,
    out: StridedView,
    scales: tuple[float, float],
    guarded: bool,
) -> AttentionWalk | None:
    """Return how views are walked; None where the kernel cannot."""
    (queries, width), depth, keys = out.shape[-2:], q.shape[-1], k.shape[-2]
    splits = _splits([view.axes[:-2] for view in (out, q, k, v)])
    if splits is None or not depth or not keys or not math.prod(out.shape):
        return None
    if keys > _MOST_KEYS and not varies(keys):
        return None
    walks = [_strides_of(view, splits) for view in (q, k, v, out)]
    first, second, third, last = walks
    if first is None or second is None or third is None or last is None:
        return None
    if (first.column != 1 and depth > 1) or (last.column != 1 and width > 1):
        return None
    batch = tuple(size for split in splits for size in split)
    sizes = queries, keys, depth, width
    shape = AttentionShape(batch, *sizes, first, second, third, last, None, *scales)
    return AttentionWalk(replace(shape, guarded=guarded), splits)


def _splits(batches: Sequence[Sequence[Axis]]) -> tuple[tuple[int, ...], ...] | None:
    """Return the sizes that each batch axis of the first operand is cut into, for all to walk."""
    rank = len(batches[0])
    if any(len(batch) > rank for batch in batches):
        return None
    found = []
    for place in range(rank):
        axes = [batch[place - rank] for batch in batches if len(batch) >= rank - place]
        whole = size_of(axes[0])
        fitting = (axis for axis in axes if size_of(axis) == whole)
        found.append(tuple(size for size, _ in max(fitting, key=len)))
    return tuple(found)


def _strides_of(view: StridedView, splits: Sequence[Sequence[int]]) -> OperandStrides | None:
    """Return a view's strides along the cut batch axes, rows and columns; 0 where broadcast."""
    batch = _batch_strides(view.axes[:-2], splits)
    row, column = view.stride(-2), view.stride(-1)
    if batch is None or row is None or column is None:
        return None
    return OperandStrides(batch, row, column)


def _batch_strides(axes: Sequence[Axis], splits: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
    """Return the stride of each factor of cut axes; None where an operand does not fit them."""
    missing = len(splits) - len(axes)
    found: list[int] = []
    for place, sizes in enumerate(splits):
        axis = axes[place - missing] if place >= missing else ()
        if size_of(axis) == 1:
            found += [0] * len(sizes)
            continue
        split = split_axis(axis, sizes)
        if split is None:
            return None
        found += [stride for _, stride in split]
    return tuple(found)


def _mask_axes(graph: Graph, mask: int, walk: AttentionWalk) -> tuple[Axis, ...]:
    """Return the axes of a mask, of size 1 where it has none."""
    axes = plain(graph, mask).axes
    missing: tuple[Axis, ...] = (((1, 0),),) * (len(walk.splits) + 2 - len(axes))
    return missing + axes


def mask_fits(graph: Graph, mask: int, walk: AttentionWalk) -> bool:
    """Whether a mask is a constant, the same for all queries, or given for each key of each."""
    axes, shape = _mask_axes(graph, mask, walk), walk.shape
    if len(axes) != len(walk.splits) + 2 or _batch_strides(axes[:-2], walk.splits) is None:
        return False
    (rows, _), (columns, _) = (axis[0] for axis in axes[-2:])
    if rows not in (1, shape.queries) or columns not in (1, shape.keys):
        return False
    is_whole = (rows, columns) == (shape.queries, shape.keys)
    return graph.values[mask].is_constant or rows == 1 or is_whole


def lay_mask(context: Context, mask: int, walk: AttentionWalk) -> tuple[Operand, OperandStrides]:
    """Return a mask as the kernel reads it, keys along the rows, and its strides."""
    axes = _mask_axes(context.graph, mask, walk)
    sizes = tuple(axis[0][0] for axis in axes)
    by_query = is_mask_by_query(context.graph, mask)
    if sizes[-2] == 1 or by_query:
        return context.operand(mask), mask_walk(context.graph, mask, walk, by_query)
    lanes = context.isa.lanes
    room = -(-walk.shape.queries // lanes) * lanes

    def turn() -> Array:
        data = np.asarray(context.graph.values[mask].data).reshape(sizes)
        pads = [(0, 0)] * (len(sizes) - 1) + [(0, room - walk.shape.queries)]
        return aligned_copy(np.pad(np.swapaxes(data, -1, -2), pads))

    laid = context.pack(mask, f"mask {len(sizes)} {room}", turn)
    turned = (*sizes[:-2], sizes[-1], room)
    places = tuple(zip(turned, dense(turned), strict=True))
    batch = _batch_strides([(pair,) for pair in places[:-2]], walk.splits)
    row = places[-2][1] if sizes[-1] > 1 else 0
    return laid, OperandStrides(batch or (), row, 1)


def is_mask_by_query(graph: Graph, mask: int) -> bool:
    """Whether a mask is not known and has a row for each query."""
    shape = graph.type(mask).shape
    return not graph.values[mask].is_constant and len(shape) > 1 and shape[-2] != 1


def mask_walk(graph: Graph, mask: int, walk: AttentionWalk, by_query: bool) -> OperandStrides:
    """Return how a mask with a row for each query, or with one for all, is walked."""
    axes = _mask_axes(graph, mask, walk)
    batch = _batch_strides(axes[:-2], walk.splits) or ()
    (_, row), (columns, _) = (axis[0] for axis in axes[-2:])
    if by_query:
        return OperandStrides(batch, 1, row)
    return OperandStrides(batch, int(columns == walk.shape.keys), 0)
