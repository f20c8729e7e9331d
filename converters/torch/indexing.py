"""Rules of ATen ops that read or write by index, with numpy's rules for several indices."""

from __future__ import annotations

from typing import Any

import numpy as np

from trireme.converters.torch.use import NumberRef, TensorRef, Use
from trireme.ir.graph import UNKNOWN
from trireme.support.dtypes import FLOATS, numpy_dtype

_FAR = 1 << 40
"""The end of every axis, to the slice op."""


def embedding(use: Use) -> int:
    """embedding: rows of the weight."""
    return use.add("gather", use["weight"], use["indices"], axis=0)


def embedding_bag(use: Use) -> tuple[int | None, ...]:
    """_embedding_bag: the sum, mean or maximum of the rows of each bag; an empty bag has zeros."""
    if any(map(use.reads, (1, 2, 3))):
        raise use.error("only the rows of an embedding bag are supported as results")
    indices, mode = use["indices"], int(use["mode"])
    rows = use.add("gather", use["weight"], indices, axis=0)
    inside = _in_bags(use, indices, use.cast(use["offsets"], "int64"))
    if int(use["padding_idx"]) >= 0:
        padding = use.constant(use["padding_idx"], use.type(indices).dtype)
        inside = use.add("and", inside, use.add("not", use.add("equal", indices, padding)))
    weights = use.cast(inside, use.dtype)
    if mode < 2:
        count = use.add("reduce_sum", weights, use.ints(1), keepdims=1)
        if use["per_sample_weights"] is not None:
            weights = use.add("mul", weights, use["per_sample_weights"])
        total = use.add("matmul", weights, rows)
        if mode == 1:
            total = use.add("div", total, use.add("max", count, use.constant(1, use.dtype)))
        return total, None, None, None
    each = use.add("unsqueeze", inside, use.ints(2))
    low = use.constant(-np.inf, use.dtype)
    most = use.add("where", each, use.add("unsqueeze", rows, use.ints(0)), low)
    most = use.add("reduce_max", most, use.ints(1), keepdims=0)
    is_empty = use.add("equal", most, low)
    return use.add("where", is_empty, use.constant(0, use.dtype), most), None, None, None


def _in_bags(use: Use, indices: int, starts: int) -> int:
    """Return whether each index is in each bag: bool[bags, indices]."""
    count = use.add("shape", indices)
    if use["include_last_offset"]:
        ends = use.add("slice", starts, use.ints(1), use.ints(_FAR), use.ints(0))
        starts = use.add("slice", starts, use.ints(0), use.ints(-1), use.ints(0))
    else:
        rest = use.add("slice", starts, use.ints(1), use.ints(_FAR), use.ints(0))
        ends = use.add("concat", rest, count, axis=0)
    zero, one = use.constant(0, "int64"), use.constant(1, "int64")
    places = use.add("range", zero, use.add("squeeze", count, use.ints(0)), one)
    begun, ended = (
        use.add("less_or_equal", use.add("unsqueeze", limits, use.ints(1)), places)
        for limits in (starts, ends)
    )
    return use.add("and", begun, use.add("not", ended))


def index_select(use: Use) -> int:
    """index_select: slices along an axis."""
    x, index = use["self"], use["index"]
    if not use.rank(index):
        index = use.reshape(index, [1])
    return use.add("gather", x, index, axis=use.axis("dim", use.rank(x)))


def gather(use: Use) -> int:
    """gather: one element for each index."""
    x = use["self"]
    if not use.rank(x):
        return use.add("expand", x, use.add("shape", use["index"]))
    return use.add("gather_elements", x, use["index"], axis=use.axis("dim", use.rank(x)))


def index(use: Use) -> int:
    """index.Tensor: numpy's indexing; None keeps an axis whole."""
    x = use["self"]
    given = _with_masks_as_indices(use, use.args["indices"])
    axes = [axis for axis, one in enumerate(given) if one is not None]
    tensors = [one for one in given if one is not None]
    if len(axes) == 1:
        return use.add("gather", x, tensors[0], axis=axes[0])
    rest = [axis for axis in range(use.rank(x)) if axis not in axes]
    made = use.add("gather_nd", use.transpose(x, *axes, *rest), _stacked(use, tensors))
    width = max(use.rank(one) for one in tensors)
    if axes != list(range(axes[0], axes[-1] + 1)) or not axes[0]:
        return made  # indices that are apart put their axes in front
    before = [width + i for i in range(axes[0])]
    after = [width + i for i in range(axes[0], len(rest))]
    return use.transpose(made, *before, *range(width), *after)


def _with_masks_as_indices(use: Use, indices: Any) -> list[int | None]:
    """Return indices of integers: a mask becomes one for each of its axes."""
    made: list[int | None] = []
    for one in indices:
        if one is None:
            made.append(None)
        elif use.type(one.id).dtype in ("bool", "uint8"):
            places = use.add("non_zero", one.id)
            for axis in range(use.rank(one.id)):
                made.append(use.add("gather", places, use.constant(axis, "int64"), axis=0))
        else:
            made.append(use.cast(one.id, "int64"))
    return made


def _stacked(use: Use, tensors: list[int]) -> int:
    """Return indices broadcast together, side by side in a new last axis."""
    width = max(use.rank(one) for one in tensors)
    shapes = [use.type(one).shape for one in tensors]
    if len(set(shapes)) > 1 or UNKNOWN in shapes[0]:
        zero = use.constant(0, "int64")
        total = zero
        for one in tensors:  # zeros of the common shape
            total = use.add("add", total, use.add("mul", one, zero))
        tensors = [use.add("add", one, total) for one in tensors]
    last = use.ints(width)
    return use.add("concat", *(use.add("unsqueeze", one, last) for one in tensors), axis=width)


def index_put(use: Use) -> int:
    """index_put: x with elements replaced, or added to."""
    x, values = use["self"], use.cast(use["values"], use.dtype)
    given = use.args["indices"]
    masks = [one for one in given if one is not None and use.type(one.id).dtype == "bool"]
    if len(given) == len(masks) == 1 and use.shape_of("values") in ([], [1]):
        return _filled(use, x, masks[0].id, values)
    indices = _with_masks_as_indices(use, given)
    axes = [axis for axis, one in enumerate(indices) if one is not None]
    tensors = [one for one in indices if one is not None]
    rest = [axis for axis in range(use.rank(x)) if axis not in axes]
    order = [*axes, *rest]
    turned, places = use.transpose(x, *order), _stacked(use, tensors)
    is_inside = axes == list(range(axes[0], axes[-1] + 1)) and axes[0] > 0
    if is_inside:
        values = _fronted(use, values, use.rank(places) - 1, axes[0], len(rest))
    whole = use.add("shape", use.add("gather_nd", turned, places))
    values = use.add("expand", values, whole)
    reduction = "add" if use["accumulate"] else "none"
    made = use.add("scatter_nd", turned, places, values, reduction=reduction)
    return use.transpose(made, *np.argsort(order).tolist())


def _fronted(use: Use, values: int, width: int, before: int, rest: int) -> int:
    """Move the axes that indices make in front of the axes before them."""
    missing = width + rest - use.rank(values)
    if missing > 0:
        values = use.add("unsqueeze", values, use.ints(*range(missing)))
    moved = range(before, before + width)
    others = [axis for axis in range(width + rest) if axis not in moved]
    return use.transpose(values, *moved, *others)


def _filled(use: Use, x: int, mask: int, values: int) -> int:
    number = use.reshape(values, [])
    if use["accumulate"]:
        number = use.add("add", x, number)
    missing = use.rank(x) - use.rank(mask)
    if missing:
        axes = range(use.rank(mask), use.rank(x))
        mask = use.add("unsqueeze", mask, use.ints(*axes))
    return use.add("where", mask, number, x)


def scatter(reduction: str = "none") -> Any:
    """Return the rule of scatter and its kin: elements written by index along an axis."""

    def rule(use: Use) -> int:
        x, places = use["self"], use["index"]
        axis = use.axis("dim", use.rank(x))
        if "src" in use.args:
            values = _cut(use, use.cast(use["src"], use.dtype), places)
        else:
            number = use.operand(use.args["value"], use.dtype)
            values = use.add("expand", number, use.add("shape", places))
        return use.add("scatter_elements", x, places, values, axis=axis, reduction=reduction)

    return rule


_REDUCTIONS = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}


def scatter_reduce(use: Use) -> int:
    """scatter_reduce: elements combined by index along an axis, with those of x or without."""
    places = use["index"]
    return _reduced(use, places, _cut(use, use.cast(use["src"], use.dtype), places))


def index_reduce(use: Use) -> int:
    """index_reduce: like scatter_reduce, by one index for each slice."""
    source, rank = use.cast(use["source"], use.dtype), use.rank(use["self"])
    axis = use.axis("dim", rank)
    places = use.reshape(use["index"], [-1 if k == axis else 1 for k in range(rank)])
    return _reduced(use, use.add("expand", places, use.add("shape", source)), source)


def _reduced(use: Use, places: int, values: int) -> int:
    x, how, dtype = use["self"], use["reduce"], use.dtype
    attrs = {"axis": use.axis("dim", use.rank(x)), "reduction": _REDUCTIONS[how]}
    own = int(bool(use["include_self"]))
    shape = use.add("shape", places)
    if not own:  # what values replace begins as what changes nothing
        start = use.add("expand", use.constant(_neutral(how, dtype), dtype), shape)
        x = use.add("scatter_elements", x, places, start, axis=attrs["axis"])
    made = use.add("scatter_elements", x, places, values, **attrs)
    if how != "mean":
        return made
    ones = use.add("expand", use.constant(1, dtype), shape)
    counts = use.add("expand", use.constant(own, dtype), use.add("shape", x))
    counts = use.add("scatter_elements", counts, places, ones, **attrs)
    counts = use.add("max", counts, use.constant(1, dtype))
    return use.add("div" if dtype in FLOATS else "floor_div", made, counts)


def _neutral(how: str, dtype: str) -> Any:
    """Return the number that changes nothing in a reduction."""
    if how in ("sum", "mean", "prod"):
        return int(how == "prod")
    if dtype in FLOATS:
        return -np.inf if how == "amax" else np.inf
    info = np.iinfo(numpy_dtype(dtype))
    return info.min if how == "amax" else info.max


def repeat_interleave(use: Use) -> int:
    """repeat_interleave of numbers of repeats: each one's place as often as it says.

    The place at a position is the number of repeats that end at it or before it.
    """
    repeats = use.cast(use["repeats"], "int64")
    ends = use.add("cum_sum", repeats, use.constant(0, "int64"))
    count = use.add("reduce_sum", repeats, use.ints(0), keepdims=0)
    numbers = use.add("range", use.constant(0, "int64"), count, use.constant(1, "int64"))
    is_past = use.add("greater_or_equal", use.add("unsqueeze", numbers, use.ints(1)), ends)
    places = use.add("reduce_sum", use.cast(is_past, "int64"), use.ints(1), keepdims=0)
    return use.cast(places, use.dtype)


def _cut(use: Use, source: int, places: int) -> int:
    """Return the part of a source that indices of a smaller shape read."""
    wanted, have = use.shape_of("index"), use.shape_of("src")
    for axis, (size, whole) in enumerate(zip(wanted, have, strict=True)):
        if size != whole:
            end = use.add("shape", places, start=axis, end=axis + 1)
            axes, ones = use.ints(axis), use.ints(1)
            source = use.add("slice", source, use.ints(0), end, axes, ones)
    return source


def nonzero(use: Use) -> int:
    """nonzero: a row of indices for each element that is not 0."""
    return use.transpose(use.add("non_zero", use["self"]), 1, 0)


def unique(use: Use) -> tuple[int, int, int]:
    """_unique2 and unique_dim: distinct elements or slices, each element's place, and counts."""
    x, axis = use["self"], use.args.get("dim")
    attrs = {"axis": axis, "sorted": 1}
    if axis is not None:
        attrs["axis"] = use.axis("dim", use.rank(x))
    y, _, places, counts = use.add_node("unique", [x], attrs, 4)
    if axis is None:
        places = use.add("reshape", places, use.add("shape", x))
    return y, places, counts


def masked_select(use: Use) -> int:
    """masked_select: the elements where the mask holds."""
    x, mask = use["self"], use["mask"]
    both = use.add("shape", use.add("where", mask, x, x))
    x, mask = (use.add("expand", one, both) for one in (x, mask))
    return use.add("compress", use.reshape(x, [-1]), use.reshape(mask, [-1]), axis=0)


def masked_scatter(use: Use) -> int:
    """masked_scatter: where the mask holds, the source's elements one after another."""
    x, source = use["self"], use.cast(use["source"], use.dtype)
    if use.shape_of("self") != use.shape:
        x = use.add("expand", x, use.add("shape", use["mask"]))
    mask = use.add("expand", use["mask"], use.add("shape", x))
    flat = use.cast(use.reshape(mask, [-1]), "int64")
    places = use.add("cum_sum", flat, use.constant(0, "int64"), exclusive=1)
    last = use.add("sub", use.add("size", source), use.constant(1, "int64"))
    safe = use.add("min", places, last)
    taken = use.add("gather", use.reshape(source, [-1]), safe, axis=0)
    return use.add("where", mask, use.add("reshape", taken, use.add("shape", x)), x)


def arange(use: Use) -> int:
    """arange: a constant where its limits are known."""
    start, end, step = use.args.get("start", 0), use.args["end"], use.args.get("step", 1)
    if not any(isinstance(one, (NumberRef, TensorRef)) for one in (start, end, step)):
        return use.constant(np.arange(start, end, step), use.dtype)
    is_float = "float" in use.dtype
    limits = (use.operand(one, use.dtype if is_float else "int64") for one in (start, end, step))
    return use.cast(use.add("range", *limits), use.dtype)


def full(use: Use) -> int:
    """full: a tensor of one number."""
    sizes = use.args["size"]
    known = zip(use.shape, sizes, strict=True)
    shape = [dim if isinstance(dim, int) else own for dim, own in known]
    return use.fill(shape, use.args.get("fill_value", 0), use.dtype)


def full_like(use: Use) -> int:
    """full_like and its kin: a tensor of one number, of a tensor's shape."""
    number, shape = use.args.get("fill_value", use.args.get("value", 0)), use.shape
    if all(isinstance(dim, int) for dim in shape):
        return use.fill(shape, number, use.dtype)
    return use.add("expand", use.operand(number, use.dtype), use.add("shape", use["self"]))


def triangle_indices(k: int) -> Any:
    """Return the rule of tril_indices (k 0) or triu_indices (k 1): constants."""

    def rule(use: Use) -> int:
        inside = np.tri(use["row"], use["col"], use["offset"] - k, dtype=np.bool_)
        places = np.nonzero(~inside if k else inside)
        return use.constant(np.stack(places), use.dtype)

    return rule


def scalar_tensor(use: Use) -> int:
    """scalar_tensor: a number as a tensor."""
    return use.operand(use.args["s"], use.dtype)


INDEXING: dict[str, Any] = {
    "_embedding_bag": embedding_bag,
    "_embedding_bag_forward_only": embedding_bag,
    "_unique2": unique,
    "unique_dim": unique,
    "arange start_step": arange,
    "embedding": embedding,
    "empty memory_format": full,
    "empty_permuted": full,
    "empty_strided": full,
    "fill Scalar Tensor": full_like,
    "full": full,
    "full_like": full_like,
    "gather": gather,
    "index Tensor": index,
    "index_put": index_put,
    "index_reduce": index_reduce,
    "index_select": index_select,
    "masked_scatter": masked_scatter,
    "masked_select": masked_select,
    "nonzero": nonzero,
    "repeat_interleave Tensor": repeat_interleave,
    "scalar_tensor": scalar_tensor,
    "scatter src value": scatter(),
    "scatter_add": scatter("add"),
    "scatter_reduce two": scatter_reduce,
    "tril_indices": triangle_indices(0),
    "triu_indices": triangle_indices(1),
}
