"""Ops that rearrange: transpose, concat, split, expand, tile, reverse; and shape and size."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from trireme.ir.dtype_rules import Like
from trireme.ir.graph import UNKNOWN, TensorType, Value
from trireme.ir.op import Attr, Axes, OpDef, Sample, define, no_flops
from trireme.ops import axis_maps, quantized
from trireme.ops.activation import ACTIVATION, activate
from trireme.ops.quantized_samples import with_quantized
from trireme.ops.shapes import (
    MOST_PARTS,
    Shape,
    Types,
    axes_of,
    axis_of,
    broadcast,
    dims_as_many_as,
    dims_of,
    expect,
    ints_of,
    known_length,
    one,
    product,
    same_type,
    to_ints,
    total,
)
from trireme.support.dtypes import ANY, INDICES, REALS, Array
from trireme.support.errors import ShapeError

Ints = tuple[int, ...]


def draw(rng: np.random.Generator, *shape: int) -> Array:
    """Return a float32 array of normal values."""
    return rng.standard_normal(shape).astype(np.float32)


def ints(*values: int) -> Array:
    """Return an int64 array, for shape-like inputs."""
    return np.array(values, np.int64)


def move(
    name: str,
    inputs: str,
    doc: str,
    infer: Callable[..., Types],
    reference: Callable[..., Any],
    **options: Any,
) -> OpDef:
    """Define an op that only rearranges, selects or repeats elements."""
    options.setdefault("moves", True)
    return define(name, inputs, doc, infer, reference, flops=no_flops, family="move", **options)


def _order(rank: int, perm: Ints | None) -> Ints:
    order = tuple(reversed(range(rank))) if perm is None else axes_of(perm, rank, "perm")
    if len(order) != rank:
        raise ShapeError(f"perm {perm} has {len(order)} entries, expected {rank}")
    return order


def _infer_transpose(x: Value, *, perm: Ints | None) -> Types:
    return one(tuple(x.shape[i] for i in _order(len(x.shape), perm)), x.dtype)


def _transpose_samples(rng: np.random.Generator) -> Iterable[Sample]:
    yield Sample((draw(rng, 3, 5),), note="matrix")
    for perm in ((0, 2, 3, 1), (0, 3, 1, 2), (3, 1, 0, 2)):
        yield Sample((draw(rng, 2, 3, 5, 7),), {"perm": perm}, note=f"perm {perm}")


move(
    "transpose",
    "x",
    "y's axis i is x's axis perm[i]; reversed axes without. Source: ONNX",
    _infer_transpose,
    lambda x, perm: np.asarray(x.transpose(_order(x.ndim, perm)), order="C"),
    attrs={"perm": Attr("ints", None)},
    rearranges=True,
    axis_map=axis_maps.transposed,
    samples=_transpose_samples,
    dtypes=(ANY,),
)


def _infer_concat(*xs: Value, axis: int, activation: str) -> Types:
    rank = len(xs[0].shape)
    axis = axis_of(axis, rank)
    if activation and xs[0].dtype not in REALS:
        raise ShapeError(f"{activation} of {xs[0].dtype}, expected a real number")
    shape = list(xs[0].shape)
    for i, x in enumerate(xs):
        if len(x.shape) != rank:
            raise ShapeError(f"input {i} has rank {len(x.shape)}, expected {rank}")
        for j, dim in enumerate(x.shape):
            if j != axis:
                shape[j] = expect(f"input {i}'s dimension {j}", dim, shape[j], "as of input 0")
    shape[axis] = total([x.shape[axis] for x in xs])
    return one(shape, xs[0].dtype)


def _concat(*xs: Array, axis: int, activation: str) -> Array:
    return activate(activation, np.concatenate(xs, axis=axis))


def _concat_samples(rng: np.random.Generator) -> Iterable[Sample]:
    yield Sample((draw(rng, 2, 3), draw(rng, 2, 5)), {"axis": 1}, note="two")
    parts = tuple(draw(rng, 1, 4, 5, c) for c in (3, 8, 1))
    yield Sample(parts, {"axis": -1, "activation": "relu"}, note="three along channels")
    yield Sample((draw(rng, 2, 3, 4), draw(rng, 1, 3, 4)), {"axis": 0}, note="along batch")
    yield Sample((draw(rng, 3),), {"axis": 0}, note="one input")


move(
    "concat",
    "x xs*",
    "y = activation(the inputs one after another along `axis`). Source: ONNX",
    _infer_concat,
    _concat,
    attrs={"axis": Attr("int"), "activation": ACTIVATION},
    samples=with_quantized("concat", _concat_samples),
    moves=False,
    quantized=quantized.concat,
    axes=Axes("axis", "joins"),
    integer_form="own",
    dtypes=(ANY, Like("x")),
)


def _split_sizes(dim: int, sizes: Ints | None, parts: int | None) -> Ints:
    if sizes is None:
        if not parts or parts < 1:
            raise ShapeError("neither split nor num_outputs says how many parts there are")
        each = -(-dim // parts)
        return tuple(max(min(each, dim - i * each), 0) for i in range(parts))
    if sum(sizes) != dim or min(sizes, default=0) < 0:
        raise ShapeError(f"split {sizes} does not add up to {dim}")
    return sizes


def _infer_split(
    x: Value, split: Value | None = None, *, axis: int, num_outputs: int | None
) -> Types:
    axis = axis_of(axis, len(x.shape))
    dim, sizes = x.shape[axis], ints_of(split)
    if num_outputs is not None and num_outputs > MOST_PARTS:
        raise ShapeError(f"num_outputs is {num_outputs}, expected at most {MOST_PARTS}")
    lengths: Shape
    if split is not None and sizes is None:
        lengths = (UNKNOWN,) * known_length(split, "split")
    elif isinstance(dim, int):
        lengths = _split_sizes(dim, sizes, num_outputs)
    else:
        lengths = sizes or (UNKNOWN,) * (num_outputs or 0)
    return tuple(
        TensorType((*x.shape[:axis], length, *x.shape[axis + 1 :]), x.dtype) for length in lengths
    )


def _split(
    x: Array, split: Array | None = None, *, axis: int, num_outputs: int | None
) -> tuple[Array, ...]:
    sizes = _split_sizes(x.shape[axis], None if split is None else to_ints(split), num_outputs)
    return tuple(np.split(x, np.cumsum(sizes)[:-1], axis=axis))


def _split_samples(rng: np.random.Generator) -> Iterable[Sample]:
    yield Sample((draw(rng, 2, 9, 4),), {"axis": 1, "num_outputs": 3}, note="equal")
    yield Sample((draw(rng, 7, 4),), {"axis": 0, "num_outputs": 3}, note="short last part")
    yield Sample((draw(rng, 2, 9), ints(2, 0, 7)), {"axis": -1}, frozenset({1}), note="sizes")


move(
    "split",
    "x split?",
    "the parts of x along `axis`, of the sizes in `split` or num_outputs "
    "parts of ceil(dim / num_outputs). Source: ONNX Split-18",
    _infer_split,
    _split,
    outputs="y ys*",
    samples=_split_samples,
    attrs={"axis": Attr("int", 0), "num_outputs": Attr("int", None, least=1)},
    dtypes=(ANY, INDICES),
    rearranges=True,
    axes=Axes("axis", "cuts"),
)


def _infer_expand(x: Value, shape: Value) -> Types:
    wanted = dims_of(shape)
    if wanted is None:
        asked = TensorType(dims_as_many_as(shape, "shape"), x.dtype)
        is_wider = asked.has_rank and len(asked.shape) < len(x.shape)
        return one((UNKNOWN,) * len(x.shape) if is_wider else asked.shape, x.dtype)
    return one(broadcast(x.shape, wanted), x.dtype)


def _expand(x: Array, shape: Array) -> Array:
    return np.array(np.broadcast_to(x, np.broadcast_shapes(x.shape, to_ints(shape))))


move(
    "expand",
    "x shape",
    "y = x broadcast with `shape`. Source: ONNX Expand-13",
    _infer_expand,
    _expand,
    rearranges=True,
    axes=Axes("number each", "repeats"),
    samples=lambda rng: [
        Sample((draw(rng, 3, 1), ints(2, 1, 6)), constants=frozenset({1})),
        Sample((draw(rng, 3, 5), ints(1)), constants=frozenset({1}), note="already large"),
        Sample((draw(rng, 3, 1), ints(1, 4)), constants=frozenset({1}), note="one axis"),
    ],
    dtypes=(ANY, INDICES),
)


def _infer_tile(x: Value, repeats: Value) -> Types:
    counts = dims_of(repeats)
    if counts is None:
        return one((UNKNOWN,) * len(x.shape), x.dtype)
    if len(counts) != len(x.shape):
        raise ShapeError(f"repeats has {len(counts)} entries, expected {len(x.shape)}")
    return one([product(pair) for pair in zip(x.shape, counts, strict=True)], x.dtype)


move(
    "tile",
    "x repeats",
    "y = x repeated repeats[i] times along axis i. Source: ONNX Tile-13",
    _infer_tile,
    lambda x, repeats: np.tile(x, to_ints(repeats)),
    rearranges=True,
    axes=Axes("number each", "repeats"),
    samples=lambda rng: [
        Sample((draw(rng, 2, 3), ints(3, 2)), constants=frozenset({1})),
        Sample((draw(rng, 2, 3), ints(1, 2)), constants=frozenset({1}), note="one axis"),
    ],
    dtypes=(ANY, INDICES),
)


def _infer_shape(x: Value, *, start: int, end: int | None) -> Types:
    return one((len(x.shape[start:end]),), "int64")


_ENDS = {"start": Attr("int", 0), "end": Attr("int", None)}
move(
    "shape",
    "x",
    "y = x's dimensions [start:end] as int64. Source: ONNX Shape-25",
    _infer_shape,
    lambda x, start, end: ints(*x.shape[start:end]),
    attrs=_ENDS,
    samples=lambda rng: [Sample((draw(rng, 2, 3, 4),), {"start": 1})],
    dtypes=(ANY,),
)
move(
    "size",
    "x",
    "y = the number of x's elements as int64. Source: ONNX Size-25",
    lambda x: one((), "int64"),
    lambda x: np.array(x.size, np.int64),
    samples=lambda rng: [Sample((draw(rng, 2, 3, 4),))],
    dtypes=(ANY,),
)


def _infer_reverse(x: Value, *, axes: Ints) -> Types:
    axes_of(axes, len(x.shape))
    return same_type(x)


move(
    "reverse",
    "x",
    "y = x back to front along `axes`. Source: TFLite REVERSE_V2",
    _infer_reverse,
    lambda x, axes: np.ascontiguousarray(np.flip(x, axes)),
    attrs={"axes": Attr("ints")},
    rearranges=True,
    axes=Axes("axes", "reverses"),
    samples=lambda rng: [Sample((draw(rng, 2, 3, 5),), {"axes": a}) for a in ((0,), (1, -1))],
    dtypes=(ANY,),
)
