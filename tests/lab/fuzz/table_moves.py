"""Rows of the ops that move elements: shapes, slices, gathers, casts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import numpy_helper

from lab.fuzz.grower import DTYPES, INTS, MOST_ELEMENTS, Grower, Refused, Tensor
from lab.fuzz.rows import (
    ANY,
    NUMBER,
    REAL,
    Drawn,
    Row,
    filled,
    given,
    ints,
    maybe,
    maybe_axis,
    row,
    value,
)


def permutation(d: Drawn) -> Any:
    """An order of the axes, or the default."""
    return [int(a) for a in d.g.rng.permutation(d.x.rank)] if d.g.chance(0.9) else None


def new_shape(d: Drawn) -> Any:
    """A shape of as many elements: axes merged, split, inserted; 0 and -1 stand for some."""
    dims = list(d.x.shape)
    for _ in range(int(d.g.rng.integers(1, 4))):
        at = int(d.g.rng.integers(len(dims) + 1))
        if d.g.chance(0.2) or not dims:
            dims.insert(at, 1)
        elif d.g.chance(0.5) and at + 1 < len(dims):
            dims[at : at + 2] = [dims[at] * dims[at + 1]]
        elif at < len(dims):
            by = int(d.g.choose([k for k in (1, 2, 3) if dims[at] % k == 0]))
            dims[at : at + 1] = [by, dims[at] // by]
    dims = dims[:6] if math.prod(dims[:6]) == d.x.array.size else list(d.x.shape)
    if dims and d.g.chance(0.4) and 0 not in dims:
        dims[int(d.g.rng.integers(len(dims)))] = -1
    elif dims and d.x.rank and d.g.chance(0.2) and dims[0] == d.x.shape[0]:
        dims[0] = 0
    return dims


def expanded(d: Drawn) -> Any:
    """A shape that x broadcasts to."""
    dims = [int(d.g.rng.integers(1, 4)) if n == 1 else d.g.choose([1, n]) for n in d.x.shape]
    if d.g.chance(0.3):
        dims.insert(0, int(d.g.rng.integers(1, 4)))
    return dims


def ones(d: Drawn) -> Any:
    """The axes of size 1, some of them."""
    found = [a for a, n in enumerate(d.x.shape) if n == 1]
    if not found:
        raise Refused("no axis of size 1")
    return [a for a in found if d.g.chance(0.7)] or found


def places(d: Drawn) -> Any:
    """New axes, counted in the result: from its end as of opset 11. Before, ONNX Runtime takes such
    axes and makes another shape.
    """
    count = int(d.g.rng.integers(1, 3))
    rank = d.x.rank + count
    back = rank if d.g.opset >= 11 else 0
    return [int(a) - (back if d.g.chance(0.3) else 0) for a in d.g.rng.permutation(rank)[:count]]


def indices(shape: Any = None) -> Any:
    """Indices along the attribute `axis`, some counted from the end."""

    def make(d: Drawn) -> Any:
        size = d.x.shape[d.attrs.get("axis", 0)] if d.x.rank else 0
        if not size:
            raise Refused("nothing to gather")
        dims = shape(d) if shape else d.g.shape(int(d.g.choose([0, 0, 1, 1, 2])))
        dtype = d.g.choose([np.int32, np.int64])
        return np.asarray(d.g.rng.integers(-size, size, dims)).astype(dtype)

    return given(make, 0.7)


def element_shape(d: Drawn) -> Any:
    """x's shape, another size along the axis."""
    dims = list(d.x.shape)
    dims[d.attrs.get("axis", 0)] = int(d.g.rng.integers(1, 4))
    return dims


def concat(g: Grower) -> None:
    """Concat: values of one dtype whose shapes differ along the axis alone."""
    x = g.pick(g.choose([("float32",), ANY]), (1, 2, 3, 4, 5))
    at = int(g.rng.integers(-x.rank, x.rank))
    parts = [x]
    for _ in range(int(g.rng.integers(0, 3))):
        fit = [t for t in g.values if t.dtype == x.dtype and without(t, at) == without(x, at)]
        if g.chance(0.6):
            parts.append(g.choose(fit))
            continue
        dims = list(x.shape)
        dims[at] = int(g.rng.integers(0 if g.chance(0.1) else 1, 4))
        parts.append(g.operand(g.random(x.dtype, dims)))
    g.node("Concat", parts, {"axis": at}, rounds=False)


def without(t: Tensor, at: int) -> tuple[int, ...]:
    """The shape but for one axis; something no shape is where the axis is none of t's."""
    if not -t.rank <= at < t.rank:
        return (-1,)
    dims = list(t.shape)
    dims[at] = -2
    return tuple(dims)


def split(g: Grower) -> None:
    """Split into equal parts, or parts as said; not every part is read."""
    x = g.pick(g.choose([("float32",), ANY]), (1, 2, 3, 4))
    at = int(g.rng.integers(-x.rank, x.rank))
    size = x.shape[at]
    count = int(g.rng.integers(1, min(size, 4) + 1)) if size else 1
    if g.chance(0.5):
        cuts = np.sort(g.rng.integers(0 if g.chance(0.1) else 1, max(size, 2), count - 1))
        parts = np.diff([0, *cuts, size])
        g.node(
            "Split", [x, g.constant(np.asarray(parts, np.int64))], {"axis": at}, count, rounds=False
        )
        return
    even = {"num_outputs": count} if g.opset >= 18 else {}
    if g.opset < 18 and size % count:
        raise Refused("uneven parts")
    g.node("Split", [x], {"axis": at, **even}, count, rounds=False)


def slice_(g: Grower) -> None:
    """Slice: starts and ends inside and outside, steps of both signs."""
    x = g.pick(g.choose([("float32",), ANY]), (1, 2, 3, 4, 5))
    count = int(g.rng.integers(1, x.rank + 1))
    chosen = g.rng.permutation(x.rank)[:count]
    starts, ends, steps = [], [], []
    for a in chosen:
        n = x.shape[a]
        step = int(g.choose([1, 1, 1, 2, -1, -2]))
        first, last = sorted(int(v) for v in g.rng.integers(-n - 2, n + 3, 2))
        if g.chance(0.2):
            last = int(g.choose([2**31 - 1, 2**63 - 1]))
        if step < 0:
            first, last = last, (-(2**31) if g.chance(0.3) else first)
        starts.append(first)
        ends.append(last)
        steps.append(step)
    dtype = g.choose([np.int64, np.int64, np.int32])
    if dtype == np.int32:
        starts, ends = (np.clip(v, -(2**31), 2**31 - 1).tolist() for v in (starts, ends))
    operands = [g.constant(np.array(v, dtype)) for v in (starts, ends, chosen)]
    if any(step != 1 for step in steps):
        operands.append(g.constant(np.array(steps, dtype)))
    g.node("Slice", [x, *operands], rounds=False)


def pad(g: Grower) -> None:
    """Pad in every mode, with a value or none, negative pads too."""
    x = g.pick(g.choose([("float32",), NUMBER]), (1, 2, 3, 4))
    mode = g.choose(["constant", "constant", "constant", "reflect", "edge", None])
    most = [min(2, n - 1) if mode == "reflect" else 2 for n in x.shape] * 2
    if min(most) < 0:
        raise Refused("nothing to reflect")
    pads = [int(g.rng.integers(0, m + 1)) if g.chance(0.5) else 0 for m in most]
    if g.chance(0.1):
        pads[0] = -1
    fill = g.constant(g.random(x.dtype, ())) if mode == "constant" and g.chance(0.5) else None
    g.node("Pad", [x, g.constant(np.array(pads, np.int64)), fill], {"mode": mode}, rounds=False)


def cast(d: Drawn) -> int:
    """A dtype to cast to."""
    if d.g.chance(0.3):
        return DTYPES["float32"]
    wide = ("float32", "float64", "float16", "int32", "int64", "bool")
    low, high = (float(f(d.x.array)) if d.x.array.size else 0.0 for f in (np.min, np.max))
    narrow = [t for t in INTS if np.iinfo(t).min <= low and high < float(np.iinfo(t).max)]
    return DTYPES[d.g.choose([*wide, *narrow])]


def tiled(d: Drawn) -> Any:
    """How often each axis is repeated."""
    return [int(d.g.choose([1, 1, 2, 3])) for _ in d.x.shape]


def top_k(g: Grower) -> None:
    """TopK of values that differ, as no order is defined of equals."""
    x = g.pick(NUMBER, (1, 2, 3, 4))
    at = int(g.rng.integers(-x.rank, x.rank))
    ordered = np.sort(x.array, axis=at)
    gaps = np.diff(ordered.astype(np.float64), axis=at)
    if not x.array.size or (np.abs(gaps) < 1e-3).any():
        raise Refused("some are equal")
    k = g.constant(np.array([int(g.rng.integers(1, x.shape[at] + 1))]))
    attrs = {"axis": at, "largest": g.choose([0, 1, None])} if g.opset >= 11 else {"axis": at}
    g.node("TopK", [x, k], attrs, 2)


def where(g: Grower) -> None:
    """Where: a condition, and two of one dtype that broadcast with it."""
    x = g.pick(g.choose([("float32",), ANY]))
    c = g.pick(("bool",))
    y = g.like(x)
    g.node("Where", g.choose([[c, x, y], [c, y, x]]), rounds=False)


def gather_nd(g: Grower) -> None:
    """GatherND: leading axes of x by the last axis of the indices."""
    x = g.pick(g.choose([("float32",), ANY]), (1, 2, 3, 4))
    batch = int(g.rng.integers(0, x.rank)) if g.opset >= 12 and g.chance(0.3) else 0
    depth = int(g.rng.integers(1, x.rank - batch + 1))
    sizes = x.shape[batch : batch + depth]
    if min(sizes) < 1:
        raise Refused("nothing to gather")
    lead = (*x.shape[:batch], *g.shape(int(g.choose([0, 1, 2]))), depth)
    found = np.stack([g.rng.integers(-n, n, lead[:-1]) for n in sizes], -1).astype(np.int64)
    attrs = {"batch_dims": batch} if batch else {}
    g.node("GatherND", [x, g.operand(found)], attrs, rounds=False)


def scatter_nd(g: Grower) -> None:
    """ScatterND at places that differ."""
    x = g.pick(g.choose([("float32",), NUMBER]), (1, 2, 3, 4))
    depth = int(g.rng.integers(1, x.rank + 1))
    total = math.prod(x.shape[:depth])
    if not total or x.array.size > MOST_ELEMENTS:
        raise Refused("nowhere to write")
    count = int(g.rng.integers(1, min(total, 4) + 1))
    flat = g.rng.permutation(total)[:count]
    found = np.stack(np.unravel_index(flat, x.shape[:depth]), -1).astype(np.int64)
    updates = g.operand(g.random(x.dtype, (count, *x.shape[depth:])))
    g.node("ScatterND", [x, g.operand(found), updates], rounds=False)


def scatter_elements(g: Grower) -> None:
    """ScatterElements at places that differ along the axis."""
    x = g.pick(g.choose([("float32",), NUMBER]), (1, 2, 3, 4))
    at = int(g.rng.integers(-x.rank, x.rank))
    if min(x.shape) < 1:
        raise Refused("nowhere to write")
    dims = [int(g.rng.integers(1, n + 1)) for n in x.shape]
    order = np.argsort(
        g.rng.random([x.shape[a] if a == at % x.rank else n for a, n in enumerate(dims)]), axis=at
    )
    found = np.take(order, range(dims[at]), axis=at)
    updates = g.operand(g.random(x.dtype, dims))
    if g.opset < 11:
        raise Refused("Scatter")
    g.node(
        "ScatterElements",
        [x, g.operand(found.astype(np.int64)), updates],
        {"axis": at},
        rounds=False,
    )


def constant_of_shape(g: Grower) -> None:
    """ConstantOfShape of a constant shape."""
    dims = g.constant(np.array(g.shape(int(g.rng.integers(0, 4))), np.int64))
    dtype = g.choose(["float32", "float32", "int64", "int32", "bool", "float16"])
    fill = numpy_helper.from_array(g.random(dtype, (1,)), "value")
    g.node("ConstantOfShape", [dims], {"value": fill} if g.chance(0.8) else {}, rounds=False)


def range_(g: Grower) -> None:
    """Range of constants."""
    dtype = g.choose(["int64", "int32", "float32"])
    first, step = int(g.rng.integers(-3, 4)), int(g.choose([1, 2, -1]))
    numbers = (first, first + step * int(g.rng.integers(0, 7)), step)
    g.node("Range", [g.constant(np.array(v, dtype)) for v in numbers], rounds=False)


def one_hot(g: Grower) -> None:
    """OneHot: indices of a graph's value or fed, a depth and two values."""
    depth = int(g.rng.integers(1, 5))
    dims = g.shape(int(g.rng.integers(0, 3)))
    dtype = g.choose(["int64", "int64", "int32", "float32"])
    x = g.operand(np.asarray(g.rng.integers(-depth, depth, dims)).astype(dtype), 0.3)
    d = np.array(depth if g.chance(0.7) else [depth], "int64")
    pair = g.constant(g.random(g.choose(["float32", "int64"]), (2,)))
    attrs = {"axis": int(g.rng.integers(-len(dims) - 1, len(dims) + 1))} if g.chance(0.7) else {}
    g.node("OneHot", [x, g.constant(d), pair], attrs, rounds=False)


MOVED = (*REAL, *ANY)
ROWS: tuple[Row, ...] = (
    row("Transpose", value(MOVED), attrs={"perm": permutation}, rounds=False, weight=3),
    row("Reshape", value(MOVED), ints(new_shape), rounds=False, weight=3),
    row("Flatten", value(MOVED), attrs={"axis": maybe_axis}, rounds=False),
    row("Squeeze", value(MOVED), maybe(ints(ones), 0.8), rounds=False),
    row("Unsqueeze", value(MOVED), ints(places), rounds=False),
    row("Expand", value(MOVED), ints(expanded), rounds=False),
    row("Tile", value(MOVED), ints(tiled), rounds=False),
    row("Gather", value(MOVED), indices(), attrs={"axis": maybe_axis}, rounds=False, weight=2),
    row(
        "GatherElements",
        value(MOVED),
        indices(element_shape),
        attrs={"axis": maybe_axis},
        rounds=False,
    ),
    row("Cast", value(MOVED), attrs={"to": cast}, weight=2),
    row("Shape", value(MOVED), rounds=False, attrs={"start": (None, None, 1, -1)}),
    row("Size", value(MOVED), rounds=False, weight=0.3),
    row(
        "Trilu",
        value(MOVED),
        maybe(given(lambda d: np.array(d.g.rng.integers(-2, 3)))),
        attrs={"upper": (0, 1, None)},
        rounds=False,
        weight=0.6,
    ),
    row(
        "ReverseSequence",
        filled(MOVED, (2, 3, 4)),
        ints(lambda d: d.g.rng.integers(1, d.x.shape[0] + 1, d.x.shape[1])),
        weight=0.3,
        rounds=False,
    ),
    row(
        "EyeLike",
        value(NUMBER, (2,)),
        rounds=False,
        weight=0.3,
        attrs={"k": (None, 1, -1), "dtype": (None, DTYPES["float32"])},
    ),
    row("NonZero", value(("float32", "bool", "int64")), weight=0.05),
    Row("Concat", concat, 3),
    Row("Split", split, 2),
    Row("Slice", slice_, 3),
    Row("Pad", pad, 2),
    Row("TopK", top_k),
    Row("Where", where, 2),
    Row("GatherND", gather_nd),
    Row("ScatterND", scatter_nd),
    Row("ScatterElements", scatter_elements),
    Row("ConstantOfShape", constant_of_shape, 0.5),
    Row("Range", range_, 0.5),
    Row("OneHot", one_hot, 0.5),
)
