"""Ops that cut out a part or add a border: slice and pad."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from trireme.ir.dims import add, floor_divide, larger, smaller, subtract
from trireme.ir.dtype_rules import Like
from trireme.ir.graph import UNKNOWN, Dim, Value
from trireme.ir.op import Attr, Sample
from trireme.ops import axis_maps, quantized
from trireme.ops.movement import draw, ints, move
from trireme.ops.quantized_samples import with_quantized
from trireme.ops.shapes import Shape, Types, axes_of, dims_of, ints_of, one, to_ints
from trireme.support.dtypes import ANY, INDICES, Array
from trireme.support.errors import ShapeError

Ints = tuple[int, ...]
_FAR = 1 << 31
_ENDS = (_FAR - 1, (1 << 63) - 1)
"""Starts that stand for the last element, beside -1."""


def slice_range(size: int, start: int, end: int, step: int) -> range:
    """Return the indices that a slice takes of an axis, clamped by the rules of ONNX Slice-13.

    A backward slice that starts before the first element takes the first element; numpy takes none.
    """
    return range(*slice_ends(size, start, end, step), step)


def slice_ends(size: int, start: int, end: int, step: int) -> tuple[int, int]:
    """Return the first index of `slice_range`, and where it ends."""
    if step == 0:
        raise ShapeError("a step is 0")
    if not size:
        return 0, 0
    first, last = (0, size) if step > 0 else (-1, size - 1)
    start, end = (at + size if at < 0 else at for at in (start, end))
    return min(max(start, 0), last), min(max(end, first), last)


def _sliced(dim: Dim, start: Dim, end: Dim, step: Dim) -> Dim:
    if isinstance(start, int) and isinstance(end, int) and isinstance(step, int):
        if isinstance(dim, int):
            return len(slice_range(dim, start, end, step))
        if step == 0:
            raise ShapeError("a step is 0")
    if not isinstance(step, int) or UNKNOWN in (dim, start, end):
        return UNKNOWN
    if step < 0:  # followed where the slice is the whole axis
        is_whole = isinstance(end, int) and end <= 1 - _FAR and start in (-1, *_ENDS)
        return floor_divide(add(dim, -step - 1), -step) if is_whole else UNKNOWN
    last = dim if isinstance(end, int) and end >= _FAR - 1 else _clamped(dim, end)
    room = subtract(last, _clamped(dim, start))
    return larger(room if step == 1 else floor_divide(add(room, step - 1), step), 0)


def _clamped(dim: Dim, at: Dim) -> Dim:
    """Return a position within an axis; one that is a number below 0 counts from the end."""
    if isinstance(at, int) and at < 0:
        return larger(add(dim, at), 0)
    return smaller(dim, at)


def _infer_slice(
    x: Value, starts: Value, ends: Value, axes: Value | None = None, steps: Value | None = None
) -> Types:
    rank, first, last = len(x.shape), dims_of(starts), dims_of(ends)
    where = tuple(range(len(first or ()))) if axes is None else ints_of(axes)
    stride: Shape | None = (1,) * len(first or ()) if steps is None else ints_of(steps)
    if where is None:
        return one((UNKNOWN,) * rank, x.dtype)
    shape = list(x.shape)
    places = axes_of(where, rank)
    if first is None or last is None or stride is None:
        touched = range(rank) if axes is None else places
        return one([UNKNOWN if i in touched else d for i, d in enumerate(shape)], x.dtype)
    if not len(first) == len(last) == len(places) == len(stride):
        raise ShapeError(f"starts {first}, ends {last}, axes {where}, steps {stride} differ")
    for axis, start, end, step in zip(places, first, last, stride, strict=True):
        shape[axis] = _sliced(shape[axis], start, end, step)
    return one(shape, x.dtype)


def _slice(
    x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
) -> Array:
    first, last = to_ints(starts), to_ints(ends)
    where = tuple(range(len(first))) if axes is None else axes_of(to_ints(axes), x.ndim)
    stride = (1,) * len(first) if steps is None else to_ints(steps)
    for axis, start, end, step in zip(where, first, last, stride, strict=True):
        taken = slice_range(x.shape[axis], start, end, step)
        x = x.take(np.arange(taken.start, taken.stop, taken.step), axis=axis)
    return x


def _slice_samples(rng: np.random.Generator) -> Iterable[Sample]:
    fixed = frozenset({1, 2, 3, 4})
    x = draw(rng, 5, 7, 9)
    yield Sample((x, ints(1, 2), ints(4, 99)), constants=fixed, note="leading axes")
    yield Sample((x, ints(-3), ints(-1), ints(-1)), constants=fixed, note="from the end")
    yield Sample(
        (x, ints(8, 5), ints(-99, 0), ints(2, 1), ints(-2, -3)), constants=fixed, note="backward"
    )
    yield Sample((x, ints(0), ints(99), ints(1), ints(3)), constants=fixed, note="step 3")


move(
    "slice",
    "x starts ends axes? steps?",
    "y = x[start:end:step] along each axis given, clamped to x. Source: ONNX Slice-13",
    _infer_slice,
    _slice,
    rearranges=True,
    samples=_slice_samples,
    axis_map=axis_maps.sliced,
    dtypes=(ANY, INDICES, INDICES, INDICES, INDICES),
)

NUMPY_MODES = {"reflect": "reflect", "symmetric": "symmetric", "edge": "edge", "wrap": "wrap"}


def _edges(rank: int, pads: Ints, axes: Ints | None) -> list[tuple[int, int]]:
    where = tuple(range(rank)) if axes is None else axes_of(axes, rank)
    _check_count(pads, where)
    edges = [(0, 0)] * rank
    for i, axis in enumerate(where):
        edges[axis] = (pads[i], pads[i + len(where)])
    return edges


def _infer_pad(
    x: Value, pads: Value, value: Value | None = None, axes: Value | None = None, *, mode: str
) -> Types:
    amounts, where = dims_of(pads), ints_of(axes)
    rank = len(x.shape)
    axis_of = list(range(rank) if where is None else axes_of(where, rank))
    if amounts is None or (axes is not None and where is None):
        open_axes = range(rank) if axes is not None and where is None else axis_of
        dims = (UNKNOWN if axis in open_axes else dim for axis, dim in enumerate(x.shape))
        return one(tuple(dims), x.dtype)
    _check_count(amounts, axis_of)
    shape = list(x.shape)
    for axis, *edge in zip(axis_of, amounts, amounts[len(axis_of) :], strict=False):
        shape[axis] = add(add(x.shape[axis], edge[0]), edge[1])
        if isinstance(size := shape[axis], int) and size < 0:
            raise ShapeError(
                f"pads {tuple(edge)} cut more than the {x.shape[axis]} elements there are"
            )
    return one(shape, x.dtype)


def _check_count(pads: Sequence[Dim], axes: Sequence[int]) -> None:
    if len(pads) != 2 * len(axes):
        raise ShapeError(f"pads has {len(pads)} entries, expected {2 * len(axes)}")


def pad(
    x: Array, pads: Array, value: Array | None = None, axes: Array | None = None, *, mode: str
) -> Array:
    """Return x with elements added (or, for negative pads, removed) at both ends."""
    edges = _edges(x.ndim, to_ints(pads), None if axes is None else to_ints(axes))
    if mode != "constant":
        cuts = (slice(-min(a, 0), n + min(b, 0)) for (a, b), n in zip(edges, x.shape, strict=True))
        grow = [(max(a, 0), max(b, 0)) for a, b in edges]
        return np.pad(x[tuple(cuts)], grow, mode=NUMPY_MODES[mode])  # type: ignore[call-overload, no-any-return]
    y = np.full(
        [n + a + b for n, (a, b) in zip(x.shape, edges, strict=True)],
        _fill(x.dtype) if value is None else value.reshape(()),
        dtype=x.dtype,
    )
    kept = [_kept(a, n, n + a + b) for (a, b), n in zip(edges, x.shape, strict=True)]
    sources = tuple(
        slice(to.start - a, to.stop - a) for to, (a, _) in zip(kept, edges, strict=True)
    )
    y[tuple(kept)] = x[sources]
    return y


def _kept(before: int, length: int, made: int) -> slice:
    """Return the range of an axis' elements in the padded axis; empty where all are removed."""
    start = min(max(before, 0), made)
    return slice(start, max(min(before + length, made), start))


def _fill(dtype: np.dtype[np.generic]) -> object:
    return "" if dtype.kind == "O" else np.zeros((), dtype)


def _pad_samples(rng: np.random.Generator) -> Iterable[Sample]:
    fixed = frozenset({1, 2, 3})
    x = draw(rng, 2, 4, 5, 3)
    image = ints(0, 1, 2, 0, 0, 1, 0, 0)
    yield Sample((x, image), constants=fixed, note="zeros around an image")
    yield Sample((x, image, np.array(-1.5, np.float32)), constants=fixed, note="value")
    yield Sample((x, ints(2, 1), None, ints(1)), constants=fixed, note="one axis")
    yield Sample((x, ints(-5, 7), None, ints(1)), constants=fixed, note="all cut off, and more")
    row, half = draw(rng, 3), np.array(0.5, np.float32)
    yield Sample((row, ints(1, 0), half), constants=fixed, note="one element before a row")
    yield Sample((x, ints(0, -1, 1, 0, 0, -2, 0, 1)), constants=fixed, note="negative cuts")
    for mode in ("reflect", "edge", "wrap"):
        yield Sample((x, image), {"mode": mode}, fixed, note=mode)


move(
    "pad",
    "x pads value? axes?",
    "y = x with pads[i] elements before and pads[i+n] after along each axis: the value (0), or "
    "x reflected without or with (symmetric) its edge, its edge, or wrapped. Source: ONNX Pad-25",
    _infer_pad,
    pad,
    samples=with_quantized("pad", _pad_samples),
    moves=False,
    quantized=quantized.pad,
    integer_form="same",
    axis_map=axis_maps.padded,
    attrs={"mode": Attr("str", "constant", ("constant", *NUMPY_MODES))},
    dtypes=(ANY, INDICES, Like("x"), INDICES),
)
