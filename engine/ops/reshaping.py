"""Ops that give the same elements another shape: reshape, squeeze, unsqueeze, flatten."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from trireme.ir.dims import exact_divide
from trireme.ir.graph import ANY_RANK, UNKNOWN, Dim, Value
from trireme.ir.op import Attr, Sample
from trireme.ops.movement import Ints, draw, ints, move
from trireme.ops.shapes import (
    Shape,
    Types,
    axes_of,
    dims_as_many_as,
    dims_of,
    expect,
    ints_of,
    known_length,
    one,
    product,
    to_ints,
)
from trireme.support.dtypes import ANY, INDICES, Array
from trireme.support.errors import ShapeError


def resolve_shape(shape: Shape, wanted: Shape, allowzero: bool) -> Shape:
    """Return the shape a reshape makes: 0 copies a dimension, -1 takes the rest.

    Errors: ShapeError, if the element counts cannot be equal. Source: ONNX Reshape-25
    """
    if wanted.count(-1) > 1 or any(isinstance(w, int) and w < -1 for w in wanted):
        raise ShapeError(f"shape {wanted} may hold one -1 and nothing below")
    made: list[Dim] = []
    for i, dim in enumerate(wanted):
        if dim == 0 and not allowzero:
            if i >= len(shape):
                raise ShapeError(f"shape {wanted}: entry {i} copies a dimension that is not there")
            made.append(shape[i])
        else:
            made.append(dim)
    rest = [dim for i, dim in enumerate(made) if wanted[i] != -1]
    if -1 in wanted:
        made[wanted.index(-1)] = _left_over(shape, rest, wanted)
    elif all(isinstance(dim, int) for dim in (*shape, *made)) and product(shape) != product(made):
        raise ShapeError(f"{product(shape)} elements do not reshape to {wanted}")
    return tuple(made)


def _left_over(shape: Shape, rest: list[Dim], wanted: Shape) -> Dim:
    """Return the elements left for one dimension: those of the shape over those of the rest.

    A 0 cancels a 0 as a symbol cancels itself, so the answer for an open size holds where it is 0.
    """
    left, used = list(shape), list[Dim]()
    for dim in rest:
        if (dim == 0 or isinstance(dim, str) and dim != UNKNOWN) and dim in left:
            left.remove(dim)
        else:
            used.append(dim)
    have, taken = product(left), product(used)
    if isinstance(have, int) and isinstance(taken, int):
        if taken == 0 or have % taken:
            raise ShapeError(f"{have} elements do not reshape to {wanted}")
        return have // taken
    return exact_divide(have, taken)


def _infer_reshape(x: Value, shape: Value, *, allowzero: int) -> Types:
    wanted = dims_of(shape)
    if wanted is None:
        return one(dims_as_many_as(shape, "shape"), x.dtype)
    return one(resolve_shape(x.shape, wanted, bool(allowzero)), x.dtype)


def _reshape(x: Array, shape: Array, *, allowzero: int) -> Array:
    made = resolve_shape(x.shape, to_ints(shape), bool(allowzero))
    return x.reshape(tuple(int(dim) for dim in made))


def _reshape_samples(rng: np.random.Generator) -> Iterable[Sample]:
    fixed = frozenset({1})
    yield Sample((draw(rng, 2, 3, 4), ints(4, -1)), constants=fixed)
    yield Sample((draw(rng, 2, 3, 4), ints(0, 12, 1)), constants=fixed, note="copied dimension")
    yield Sample((draw(rng, 2, 0, 3), ints(0, 6)), {"allowzero": 1}, fixed, note="allowzero")


move(
    "reshape",
    "x shape",
    "y = x's elements in order in another shape: 0 copies a dimension (unless allowzero), -1 "
    "takes the rest. Source: ONNX Reshape-25",
    _infer_reshape,
    _reshape,
    rearranges=True,
    alias=True,
    attrs={"allowzero": Attr("int", 0)},
    samples=_reshape_samples,
    dtypes=(ANY, INDICES),
)


def _infer_squeeze(x: Value, axes: Value | None = None) -> Types:
    if axes is not None and axes.data is None:
        return one((UNKNOWN,) * (len(x.shape) - known_length(axes, "axes")), x.dtype)
    if axes is None and not x.type.is_static:
        return one(ANY_RANK, x.dtype)
    return one(_squeezed(x.shape, ints_of(axes)), x.dtype)


def _squeezed(shape: Shape, axes: Ints | None) -> Shape:
    if axes is None:
        return tuple(dim for dim in shape if dim != 1)
    drop = axes_of(axes, len(shape))
    for axis in drop:
        expect(f"dimension {axis}", shape[axis], 1, "to be squeezed")
    return tuple(dim for i, dim in enumerate(shape) if i not in drop)


def _squeeze(x: Array, axes: Array | None = None) -> Array:
    made = _squeezed(x.shape, None if axes is None else to_ints(axes))
    return x.reshape(tuple(int(dim) for dim in made))


move(
    "squeeze",
    "x axes?",
    "y = x without the axes of length 1 (all, or those given). Source: ONNX",
    _infer_squeeze,
    _squeeze,
    rearranges=True,
    alias=True,
    samples=lambda rng: [
        Sample((draw(rng, 1, 3, 1, 5), ints(0, -2)), constants=frozenset({1})),
        Sample((draw(rng, 1, 3, 1),), note="all"),
    ],
    dtypes=(ANY, INDICES),
)


def _unsqueezed(shape: Shape, axes: Ints) -> Shape:
    rank = len(shape) + len(axes)
    added, rest = axes_of(axes, rank), iter(shape)
    return tuple(1 if i in added else next(rest) for i in range(rank))


def _infer_unsqueeze(x: Value, axes: Value) -> Types:
    wanted = ints_of(axes)
    if wanted is None:
        return one(dims_as_many_as(axes, "axes", len(x.shape)), x.dtype)
    return one(_unsqueezed(x.shape, wanted), x.dtype)


move(
    "unsqueeze",
    "x axes",
    "y = x with new axes of length 1 at `axes` of y. Source: ONNX",
    _infer_unsqueeze,
    lambda x, axes: x.reshape(tuple(int(d) for d in _unsqueezed(x.shape, to_ints(axes)))),
    samples=lambda rng: [Sample((draw(rng, 3, 5), ints(0, -2)), constants=frozenset({1}))],
    dtypes=(ANY, INDICES),
    rearranges=True,
    alias=True,
)


def _flattened(shape: Shape, axis: int) -> Shape:
    rank = len(shape)
    if not -rank <= axis <= rank:
        raise ShapeError(f"axis {axis} is outside rank {rank}")
    axis = axis + rank if axis < 0 else axis
    return product(shape[:axis]), product(shape[axis:])


move(
    "flatten",
    "x",
    "y = x as a matrix: axes before `axis` are rows, the rest columns. Source: ONNX Flatten-25",
    lambda x, axis: one(_flattened(x.shape, axis), x.dtype),
    lambda x, axis: x.reshape(tuple(int(d) for d in _flattened(x.shape, axis))),
    attrs={"axis": Attr("int", 1)},
    samples=lambda rng: [Sample((draw(rng, 2, 3, 4),), {"axis": a}) for a in (0, 2, -1)],
    rearranges=True,
    alias=True,
    dtypes=(ANY,),
)
