"""Ops that read or write elements by index: gather and scatter in their three kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from trireme.ir.dtype_rules import Like
from trireme.ir.graph import UNKNOWN, Dim, Value
from trireme.ir.op import Attr, Sample
from trireme.ops import axis_maps
from trireme.ops.bounds import wrap_indices
from trireme.ops.movement import draw, ints, move
from trireme.ops.shapes import Types, axis_of, expect, expect_dims, one, same_type
from trireme.support.dtypes import ANY, INDICES, Array
from trireme.support.errors import ShapeError


def _infer_gather(x: Value, indices: Value, *, axis: int, batch_dims: int) -> Types:
    axis = axis_of(axis, len(x.shape))
    if not 0 <= batch_dims <= min(axis, len(indices.shape)):
        raise ShapeError(f"batch_dims {batch_dims} is outside 0..{axis}")
    same_batch(x, indices, batch_dims)
    inner = indices.shape[batch_dims:]
    return one((*x.shape[:axis], *inner, *x.shape[axis + 1 :]), x.dtype)


def same_batch(x: Value, indices: Value, batch_dims: int) -> None:
    """Raise ShapeError unless the batch axes of both have the same lengths."""
    for i in range(batch_dims):
        expect(f"indices' dimension {i}", indices.shape[i], x.shape[i], "as of x, a batch")


def _gather(x: Array, indices: Array, *, axis: int, batch_dims: int) -> Array:
    axis = axis % x.ndim
    found = wrap_indices(indices, x.shape[axis])
    if not batch_dims:
        return x.take(found, axis=axis)
    lead = x.shape[:batch_dims]
    rows = x.reshape(-1, *x.shape[batch_dims:])
    picks = found.reshape(-1, *found.shape[batch_dims:])
    parts = [row.take(pick, axis=axis - batch_dims) for row, pick in zip(rows, picks, strict=True)]
    return np.stack(parts).reshape(*lead, *parts[0].shape)


def _gather_samples(rng: np.random.Generator) -> Iterable[Sample]:
    x = draw(rng, 5, 4, 3)
    yield Sample((x, ints(4, 0, -1)), {"axis": 0}, frozenset({1}), note="rows")
    yield Sample((x, ints(1, 1, 0, 3).reshape(2, 2)), {"axis": 1}, note="matrix of indices")
    yield Sample((x, np.array(2, np.int64)), {"axis": -1}, frozenset({1}), note="scalar index")
    yield Sample((draw(rng, 50, 7), rng.integers(0, 50, (2, 9))), note="embedding")
    picks = rng.integers(0, 4, (5, 2))
    yield Sample((x, picks), {"axis": 1, "batch_dims": 1}, note="indices for each row")


move(
    "gather",
    "x indices",
    "y = x's slices at `indices` along `axis`; the first batch_dims axes of both go together. "
    "Shapes: x [..A,D,B..], indices [I..] -> y [..A,I..,B..]. Source: ONNX Gather-13, TFLite",
    _infer_gather,
    _gather,
    rearranges=True,
    samples=_gather_samples,
    axis_map=axis_maps.gathered,
    attrs={"axis": Attr("int", 0), "batch_dims": Attr("int", 0)},
    dtypes=(ANY, INDICES),
)


def _infer_gather_elements(x: Value, indices: Value, *, axis: int) -> Types:
    expect_inside(x, indices, axis)
    return one(indices.shape, x.dtype)


def expect_same_rank(x: Value, indices: Value) -> int:
    """Return the rank both share; raise ShapeError when they differ."""
    if len(x.shape) != len(indices.shape):
        raise ShapeError(f"indices have rank {len(indices.shape)}, expected {len(x.shape)}")
    return len(x.shape)


def expect_inside(x: Value, indices: Value, axis: int) -> None:
    """Raise ShapeError if indices are longer than x along another axis than theirs."""
    own = axis_of(axis, expect_same_rank(x, indices))
    for i, (found, limit) in enumerate(zip(indices.shape, x.shape, strict=True)):
        if i != own and isinstance(found, int) and isinstance(limit, int) and found > limit:
            raise ShapeError(f"indices' dimension {i} is {found}, x has {limit}")


def element_places(indices: Array, shape: tuple[int, ...], axis: int) -> tuple[Array, ...]:
    """Return the index arrays at which gather_elements reads and scatter_elements writes."""
    places: list[Array] = list(np.indices(indices.shape, sparse=True))
    places[axis] = wrap_indices(indices, shape[axis])
    return tuple(places)


move(
    "gather_elements",
    "x indices",
    "y[i,j,..] = x[i,..,indices[i,j,..],..], the index standing at `axis`. Source: ONNX",
    _infer_gather_elements,
    lambda x, indices, axis: x[element_places(indices, x.shape, axis % x.ndim)],
    rearranges=True,
    axis_map=axis_maps.gathered_elements,
    attrs={"axis": Attr("int", 0)},
    samples=lambda rng: [
        Sample((draw(rng, 3, 4), ints(2, 0, -1, 1).reshape(1, 4)), {"axis": 0}),
        Sample((draw(rng, 3, 4), ints(2, 0, 1, 3, 3, -4).reshape(3, 2)), {"axis": 1}),
    ],
    dtypes=(ANY, INDICES),
)


def _infer_gather_nd(x: Value, indices: Value, *, batch_dims: int) -> Types:
    if not indices.shape:
        raise ShapeError("indices are a scalar, expected at least one dimension")
    depth = indices.shape[-1]
    if not isinstance(depth, int):
        raise ShapeError("the last dimension of indices is not known")
    if not depth:
        raise ShapeError("the last dimension of indices is 0, expected 1 or more")
    if not 0 <= batch_dims < len(indices.shape) or batch_dims + depth > len(x.shape):
        raise ShapeError(f"indices of {depth} after {batch_dims} batch dims exceed x's rank")
    same_batch(x, indices, batch_dims)
    return one((*indices.shape[:-1], *x.shape[batch_dims + depth :]), x.dtype)


def nd_places(indices: Array, shape: tuple[int, ...]) -> tuple[Array, ...]:
    """Return the last axis of indices as one index array for each leading axis of a shape."""
    return tuple(wrap_indices(indices[..., i], shape[i]) for i in range(indices.shape[-1]))


def _gather_nd(x: Array, indices: Array, *, batch_dims: int) -> Array:
    """Return x at the places; the batch axes become further index arrays."""
    outer = indices.shape[:-1]
    batch = np.indices(outer[:batch_dims], sparse=True)
    ones = (1,) * (len(outer) - batch_dims)
    own = nd_places(indices, x.shape[batch_dims:])
    places = (*(lead.reshape(*lead.shape, *ones) for lead in batch), *own)
    found = np.asarray(x[places])
    return found if own else np.array(np.broadcast_to(found, (*outer, *x.shape[batch_dims:])))


move(
    "gather_nd",
    "x indices",
    "y[i..] = x[indices[i..]], the last axis of indices naming leading axes of x after the "
    "batch_dims that go together. Source: ONNX GatherND-13",
    _infer_gather_nd,
    _gather_nd,
    rearranges=True,
    axis_map=axis_maps.gathered_nd,
    attrs={"batch_dims": Attr("int", 0)},
    samples=lambda rng: [
        Sample((draw(rng, 3, 4, 5), ints(0, 1, 2, -1).reshape(2, 2))),
        Sample((draw(rng, 2, 4, 5), ints(3, 0).reshape(2, 1)), {"batch_dims": 1}, note="batch"),
        Sample(
            (draw(rng, 2, 1, 3, 5), ints(2, 0, 1, 1).reshape(2, 1, 2, 1)),
            {"batch_dims": 2},
            note="two batch axes",
        ),
        Sample((draw(rng, 0, 2, 5), ints().reshape(0, 2, 3, 1)), {"batch_dims": 2}, note="empty"),
    ],
    dtypes=(ANY, INDICES),
)

_COMBINE: dict[str, Callable[..., None]] = {
    "add": np.add.at,
    "mul": np.multiply.at,
    "max": np.maximum.at,
    "min": np.minimum.at,
}
_REDUCTION = {"reduction": Attr("str", "none", ("none", *_COMBINE))}


def _write(x: Array, places: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    y = x.copy()
    if reduction == "none":
        y[places] = updates
    else:
        _COMBINE[reduction](y, places, updates)
    return y


def _infer_scatter_elements(
    x: Value, indices: Value, updates: Value, *, axis: int, reduction: str
) -> Types:
    expect_inside(x, indices, axis)
    expect_dims("updates", updates, *indices.shape)
    return same_type(x)


def _scatter_elements(
    x: Array, indices: Array, updates: Array, *, axis: int, reduction: str
) -> Array:
    return _write(x, element_places(indices, x.shape, axis % x.ndim), updates, reduction)


move(
    "scatter_elements",
    "x indices updates",
    "y = x, but y[i,..,indices[i,j,..],..] = updates[i,j,..] (or combined with what is there). "
    "Source: ONNX ScatterElements-18",
    _infer_scatter_elements,
    _scatter_elements,
    attrs={"axis": Attr("int", 0), **_REDUCTION},
    samples=lambda rng: [
        Sample((draw(rng, 3, 4), ints(2, 0, 1, 1).reshape(1, 4), draw(rng, 1, 4)), {"axis": 0}),
        Sample(
            (draw(rng, 3, 4), ints(0, 0, 1, 1, -1, -1).reshape(3, 2), draw(rng, 3, 2)),
            {"axis": 1, "reduction": "add"},
        ),
    ],
    dtypes=(ANY, INDICES, Like("x")),
)


def _infer_scatter_nd(x: Value, indices: Value, updates: Value, *, reduction: str) -> Types:
    depth: Dim = indices.shape[-1] if indices.shape else UNKNOWN
    if isinstance(depth, int):
        if not 1 <= depth <= len(x.shape):
            raise ShapeError(f"indices name {depth} axes of x, which has {len(x.shape)}")
        wanted = (*indices.shape[:-1], *x.shape[depth:])
        if len(updates.shape) != len(wanted):
            raise ShapeError(f"updates have rank {len(updates.shape)}, expected {len(wanted)}")
        for i, dim in enumerate(updates.shape):
            expect(f"updates' dimension {i}", dim, wanted[i])
    return same_type(x)


move(
    "scatter_nd",
    "x indices updates",
    "y = x, but y[indices[i..]] = updates[i..] (or combined with what is there). "
    "Source: ONNX ScatterND-18",
    _infer_scatter_nd,
    lambda x, indices, updates, reduction: _write(
        x, nd_places(indices, x.shape), updates, reduction
    ),
    attrs=_REDUCTION,
    samples=lambda rng: [
        Sample((draw(rng, 5, 3), ints(4, 1).reshape(2, 1), draw(rng, 2, 3))),
        Sample((draw(rng, 5, 3), ints(0, 0).reshape(2, 1), draw(rng, 2, 3)), {"reduction": "add"}),
    ],
    dtypes=(ANY, INDICES, Like("x")),
)
