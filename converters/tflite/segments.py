"""TensorFlow Lite operators that write parts of a tensor: segments, diagonals, updates, boxes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from trireme.converters.tflite.use import Converter, OperatorUse
from trireme.ir.graph import TensorType
from trireme.support.dtypes import FLOATS, numpy_dtype
from trireme.support.errors import ModelFileError

_MOST_SEGMENTS = 64
"""The most segments of integers that are reduced each on its own."""


def _extreme(dtype: str, largest: bool) -> Any:
    info: Any = np.finfo(dtype) if dtype in FLOATS else np.iinfo(dtype)
    return info.max if largest else info.min


_START: dict[str, Callable[[str], Any]] = {
    "add": lambda dtype: 0,
    "mul": lambda dtype: 1,
    "max": lambda dtype: _extreme(dtype, False),
    "min": lambda dtype: _extreme(dtype, True),
}
"""The value of a segment without elements, by the reduction."""


def unsorted_segment(reduction: str) -> Converter:
    """Convert UNSORTED_SEGMENT_* (data, ids, count): ids below 0 are left out."""

    def convert(use: OperatorUse) -> None:
        _check_segments(use)
        count = use.add("reshape", use.sizes(2), use.int_constant([1]))
        if use.is_constant(1, 2) and _small_integers(use):
            _one_by_one(use, reduction)
            return
        ids = use.add("cast", use.value(1), to="int64")
        # a row behind the last takes what is left out; an id past the count has no row at all
        past = use.add("cast", use.add("greater_or_equal", ids, count), to="int64")
        low = use.add("less", ids, use.int_constant([0]))
        rows = use.add("where", low, count, use.add("add", ids, past))
        more = use.add("add", count, use.int_constant([1]))
        whole = _scattered(use, rows, more, reduction)
        use.done("slice", whole, use.int_constant([0]), count, use.int_constant([0]))

    return convert


def segment_sum(use: OperatorUse) -> None:
    """SEGMENT_SUM (data, ids): ids are sorted; the last one tells the count of segments."""
    _check_segments(use)
    ids = use.add("cast", use.value(1), to="int64")
    last = use.add("gather", ids, use.int_constant([-1]), axis=0)
    count = use.add("add", last, use.int_constant([1]))
    use.give(0, _scattered(use, ids, count, "add"))


def _check_segments(use: OperatorUse) -> None:
    data, ids = use.type(0), use.type(1)
    if use.quant(0) is not None:
        raise use.fail("segments of quantised values are not supported")
    if not ids.shape or len(ids.shape) > len(data.shape):
        raise ModelFileError(f"{use.source}: ids {ids} of data {data}")


def _small_integers(use: OperatorUse) -> bool:
    """Whether these are integers in few known segments: shape arithmetic, which is followed."""
    (count,) = use.ints(2)
    ids = use.constant(1)
    return (
        use.type(0).dtype in ("int32", "int64")
        and ids.ndim == 1
        and 0 < count <= _MOST_SEGMENTS
        and ids.size <= _MOST_SEGMENTS
        and all(0 <= int(one) < count for one in ids)
    )


def _one_by_one(use: OperatorUse, reduction: str) -> None:
    """Reduce each segment on its own."""
    ids, (count,), dtype = use.constant(1), use.ints(2), use.type(0).dtype
    op = {"add": "reduce_sum", "mul": "reduce_prod"}.get(reduction, f"reduce_{reduction}")
    parts = []
    for segment in range(count):
        places = np.flatnonzero(ids == segment)
        if places.size:
            part = use.add("gather", use.value(0), use.int_constant(places.tolist()), axis=0)
            parts.append(use.add(op, part, use.int_constant([0]), keepdims=1))
        else:
            rest = use.add("shape", use.value(0), start=1)
            shape = use.add("concat", use.int_constant([1]), rest, axis=0)
            start = use.builder.constant("start", np.asarray(_START[reduction](dtype), dtype))
            parts.append(use.add("expand", start, shape))
    use.done("concat", *parts, axis=0)


def _scattered(use: OperatorUse, rows: int, count: int, reduction: str) -> int:
    """Return [count, ..]: the data's elements reduced into the rows."""
    dtype, rank = use.type(0).dtype, len(use.type(1).shape)
    rest = use.add("shape", use.value(0), start=rank)
    shape = use.add("concat", count, rest, axis=0)
    start = np.asarray(_START[reduction](dtype), numpy_dtype(dtype))
    into = use.add("expand", use.builder.constant("start", start), shape)
    at = use.add("unsqueeze", rows, use.int_constant([-1]))
    return use.add("scatter_nd", into, at, use.value(0), reduction=reduction)


def dynamic_update_slice(use: OperatorUse) -> None:
    """DYNAMIC_UPDATE_SLICE (x, update, start): the start is moved so that the update fits."""
    dims, own = use.dims(1), use.type(0).shape
    if len(dims) != len(own) or use.quant(0) != use.quant(1):
        raise ModelFileError(f"{use.source}: update {use.type(1)} of {use.type(0)}")
    open_axes = [axis for axis, size in enumerate(own) if size != dims[axis]]
    if not open_axes:
        use.give(0, use.value(1))
        return
    depth = open_axes[-1] + 1
    room = use.add("sub", use.add("shape", use.value(0), end=depth), use.int_constant(dims[:depth]))
    given = use.add("slice", use.sizes(2), use.int_constant([0]), use.int_constant([depth]))
    first = use.add("max", use.add("min", given, room), use.int_constant([0]))
    if math.prod(dims[:depth]) > 1 << 24:
        raise use.fail(f"an update of {math.prod(dims[:depth])} places is not supported")
    grid = np.moveaxis(np.indices(dims[:depth]), 0, -1).astype(np.int64)
    places = use.add("add", use.builder.constant(f"{use.source}_places", grid), first)
    use.done("scatter_nd", use.value(0), places, use.value(1))


def sparse_to_dense(use: OperatorUse) -> None:
    """SPARSE_TO_DENSE (indices, shape, values, default)."""
    indices, values = use.type(0), use.type(2)
    at = use.add("cast", use.value(0), to="int64")
    if len(indices.shape) == 0:
        at = use.add("reshape", at, use.int_constant([1, 1]))
    elif len(indices.shape) == 1:
        at = use.add("unsqueeze", at, use.int_constant([-1]))
    updates = use.value(2)
    if not values.shape:
        count = use.add("shape", at, start=0, end=1)
        updates = use.add("expand", updates, count)
    use.done("scatter_nd", use.add("expand", use.value(3), use.sizes(1)), at, updates)


def matrix_diag(use: OperatorUse) -> None:
    """MATRIX_DIAG: [..,N] on the diagonal of zeros [..,N,N]."""
    size = _side(use, use.type(0), 1)
    rows = use.add("unsqueeze", use.value(0), use.int_constant([-2]), quant=use.quant(0))
    zero = use.builder.constant("zero", np.zeros((), use.type(0).dtype), use.quant(0))
    use.done("where", use.builder.constant("diagonal", np.eye(size, dtype=bool)), rows, zero)


def matrix_set_diag(use: OperatorUse) -> None:
    """MATRIX_SET_DIAG (x [..,M,N], diagonal [..,min(M,N)])."""
    high, wide = _side(use, use.type(0), 2), _side(use, use.type(0), 1)
    least = min(high, wide)
    if use.quant(0) != use.quant(1) or use.type(1).shape[-1:] != (least,):
        raise ModelFileError(f"{use.source}: diagonal {use.type(1)} of {use.type(0)}")
    # one element of the diagonal for each column, or for each row where there are fewer
    axis = -2 if least == wide else -1
    line = use.add("unsqueeze", use.value(1), use.int_constant([axis]), quant=use.quant(1))
    mask = use.builder.constant("diagonal", np.eye(high, wide, dtype=bool))
    use.done("where", mask, line, use.value(0))


def _side(use: OperatorUse, type: TensorType, back: int) -> int:
    size = type.shape[-back] if len(type.shape) >= back else None
    if not isinstance(size, int) or size > 1 << 12:
        raise use.fail(f"a diagonal of {type} is not supported")
    return size


def broadcast_args(use: OperatorUse) -> None:
    """BROADCAST_ARGS: the shape of two broadcast tensors, from their shapes."""
    sizes = [use.sizes(0), use.sizes(1)]
    ranks = [use.type(0).shape[0], use.type(1).shape[0]]
    if not all(isinstance(rank, int) for rank in ranks):
        raise use.fail("the rank of a shape is not known")
    rank = max(int(r) for r in ranks)
    ones = [use.int_constant([1] * (rank - int(r))) for r in ranks]
    a, b = (use.add("concat", one, own, axis=0) for one, own in zip(ones, sizes, strict=True))
    chosen = use.add("where", use.add("equal", a, use.int_constant([1])), b, a)
    use.done("cast", chosen, to=use.output().dtype)


def bucketize(use: OperatorUse) -> None:
    """BUCKETIZE: how many of the sorted boundaries an element has reached; all, for a NaN."""
    count = use.option("BoundariesLength")
    limits = np.asarray(use.option("BoundariesAsNumpy") if count else [], np.float32)
    dtype = use.type(0).dtype
    x = use.value(0) if dtype == "float32" else use.add("cast", use.value(0), to="float32")
    line = use.add("unsqueeze", x, use.int_constant([-1]))
    below = use.add("less", line, use.builder.constant("boundaries", limits))
    reached = use.add("cast", use.add("not", below), to="int32")
    use.done("reduce_sum", reached, use.int_constant([-1]), keepdims=0)


def unique(use: OperatorUse) -> None:
    """UNIQUE of a vector: elements in the order of their first places, and where each one is."""
    if len(use.type(0).shape) != 1 or use.quant(0) is not None:
        raise use.fail(f"UNIQUE of {use.type(0)} is not supported")
    made = use.builder.add_node(
        "unique", [use.value(0)], {"sorted": 0}, outputs=3, source=use.source
    )
    use.give(0, made[0])
    places = use.add("cast", made[2], to=use.output(1).dtype)
    use.give(1, places)


def suppression(*, soft: bool) -> Converter:
    """Convert NON_MAX_SUPPRESSION_V4, or V5 whose scores decay with the overlap.

    Inputs: boxes, scores, the most boxes, the least overlap, the least score, sigma of V5.
    Outputs: indices; the scores of V5; how many there are
    """

    def convert(use: OperatorUse) -> None:
        if any(use.type(position).dtype != "float32" for position in (0, 1, 3, 4)):
            raise use.fail("boxes and scores that are not float32 are not supported")
        (most,) = use.ints(2)
        numbers = [use.value(position) for position in range(3, 6 if soft else 5)]
        made = use.builder.add_node(
            "soft_non_max_suppression",
            [use.value(0), use.value(1), *numbers],
            {"max_output": most},
            outputs=3,
            source=use.source,
        )
        for position, value in enumerate(made if soft else (made[0], made[2])):
            use.give(position, value)

    return convert


SEGMENTS: dict[str, Converter] = {
    "BROADCAST_ARGS": broadcast_args,
    "BUCKETIZE": bucketize,
    "DYNAMIC_UPDATE_SLICE": dynamic_update_slice,
    "MATRIX_DIAG": matrix_diag,
    "MATRIX_SET_DIAG": matrix_set_diag,
    "NON_MAX_SUPPRESSION_V4": suppression(soft=False),
    "NON_MAX_SUPPRESSION_V5": suppression(soft=True),
    "SEGMENT_SUM": segment_sum,
    "SPARSE_TO_DENSE": sparse_to_dense,
    "UNIQUE": unique,
    "UNSORTED_SEGMENT_MAX": unsorted_segment("max"),
    "UNSORTED_SEGMENT_MIN": unsorted_segment("min"),
    "UNSORTED_SEGMENT_PROD": unsorted_segment("mul"),
    "UNSORTED_SEGMENT_SUM": unsorted_segment("add"),
}
