"""Constants of a .tflite file that are stored sparse: what is stored becomes the dense array.

A tensor's SparsityParameters give the levels of a tree. A dense level has the same number of
children under each node. A sparse one (CSR) lists its children. A leaf is an element, or part of
a block. `file` calls `dense_constant` while it reads a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tflite

from trireme.support.dtypes import Array

MOST_DENSE = 1 << 28
"""The most elements of all sparse tensors of a file, stored or not."""

_VECTORS = {
    tflite.SparseIndexVector.Int32Vector: tflite.Int32Vector,
    tflite.SparseIndexVector.Uint16Vector: tflite.Uint16Vector,
    tflite.SparseIndexVector.Uint8Vector: tflite.Uint8Vector,
}


@dataclass(frozen=True)
class Level:
    """A level of the tree: `size` children of each node, or those listed in CSR form.

    segments: the first child of each node in `indices`, and the end; None for a dense level
    """

    size: int
    segments: Array | None = None
    indices: Array | None = None


@dataclass(frozen=True)
class Sparsity:
    """How a sparse tensor is stored.

    order: the axis of each level; those from the rank on are axes within blocks
    blocked: the tensor's axis of each axis within blocks
    """

    order: tuple[int, ...]
    blocked: tuple[int, ...]
    levels: tuple[Level, ...]


def read_sparsity(table: Any) -> Sparsity:
    """Return a SparsityParameters table of the file; a field that is not there is a ValueError."""
    order = table.TraversalOrderAsNumpy() if table.TraversalOrderLength() else ()
    blocked = table.BlockMapAsNumpy() if table.BlockMapLength() else ()
    levels = tuple(_level(table.DimMetadata(i)) for i in range(table.DimMetadataLength()))
    return Sparsity(tuple(map(int, order)), tuple(map(int, blocked)), levels)


def _level(table: Any) -> Level:
    if table.Format() == tflite.DimensionType.DENSE:
        return Level(int(table.DenseSize()))
    segments = _vector(table.ArraySegmentsType(), table.ArraySegments())
    indices = _vector(table.ArrayIndicesType(), table.ArrayIndices())
    return Level(0, segments, indices)


def _vector(kind: int, table: Any) -> Array:
    if kind not in _VECTORS or table is None:
        raise ValueError(f"the type of a list of indices is {kind}")
    vector = _VECTORS[kind]()
    vector.Init(table.Bytes, table.Pos)
    values = vector.ValuesAsNumpy() if vector.ValuesLength() else np.zeros(0)
    return np.asarray(values, np.int64)


def dense_constant(values: Array, shape: Sequence[int], sparsity: Sparsity) -> Array:
    """Return the dense array of a sparse constant; what is not stored is 0.

    Shapes: values [stored elements] -> `shape`
    Errors: ValueError, where the parts do not fit each other
    Source: TensorFlow Lite, sparsity/format_converter.cc: SparseToDense
    """
    blocks = _block_sizes(len(shape), sparsity)
    places = _leaves(sparsity, len(values))
    at = [np.zeros(len(values), np.int64) for _ in shape]
    for axis, place in zip(sparsity.order, places, strict=True):
        if axis < len(shape):
            at[axis] += place * math.prod(s for a, s in blocks if a == axis)
        else:
            of, size = blocks[axis - len(shape)]
            if place.size and place.max() >= size:
                raise ValueError(f"an index within a block of {size} is {place.max()}")
            at[of] += place
    dense = np.zeros(shape, values.dtype)
    dense[tuple(at)] = values
    return dense


def _block_sizes(rank: int, sparsity: Sparsity) -> list[tuple[int, int]]:
    """Return (axis of the tensor, size) of each axis within blocks; each axis has one at most."""
    order, blocked, levels = sparsity.order, sparsity.blocked, sparsity.levels
    if sorted(order) != list(range(rank + len(blocked))) or len(levels) != len(order):
        raise ValueError(f"traversal order {list(order)}, {len(levels)} levels, rank {rank}")
    if len(set(blocked)) < len(blocked) or not all(0 <= axis < rank for axis in blocked):
        raise ValueError(f"block map {list(blocked)}, rank {rank}")
    inner = {axis: level.size for axis, level in zip(order, levels, strict=True)}
    return [(axis, inner[rank + i]) for i, axis in enumerate(blocked)]


def _leaves(sparsity: Sparsity, stored: int) -> list[Array]:
    """Return the index of each leaf on each level, if the tree has as many leaves as are stored."""
    nodes, places = 1, list[Array]()
    for level in sparsity.levels:
        if level.segments is None or level.indices is None:
            counts = np.full(nodes, level.size, np.int64)
            total = nodes * level.size
        else:
            counts, total = np.diff(level.segments), len(level.indices)
            ends = (level.segments[0], level.segments[-1])
            if len(counts) != nodes or counts.min(initial=0) < 0 or ends != (0, total):
                raise ValueError(f"the segments of a sparse level do not fit {nodes} nodes")
        if not 0 <= total <= stored:
            raise ValueError(f"a level has {total} nodes, {stored} elements are stored")
        own = level.indices
        if own is None:
            own = np.arange(total) % max(level.size, 1)
        if own.min(initial=0) < 0:
            raise ValueError(f"an index is {own.min()}")
        places = [np.repeat(place, counts) for place in places] + [own]
        nodes = total
    if nodes != stored:
        raise ValueError(f"the levels have {nodes} elements, {stored} are stored")
    return places
