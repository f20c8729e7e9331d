"""Rules of ATen's reductions, sorts and running sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from trireme.converters.torch.elementwise import truth
from trireme.converters.torch.use import NumberRef, Use


def axes_of(use: Use, given: Any) -> tuple[int, ...]:
    """Return the axes that a reduction names; all of them when it names none."""
    rank = use.rank(use["self"])
    named = [given] if isinstance(given, int) else given or range(rank)
    return tuple(axis % max(rank, 1) for axis in named) if rank else ()


def reduced(use: Use, op: str, value: int, axes: Sequence[int], keepdims: Any) -> int:
    """Add a reduction over axes; over none it gives each element's own."""
    options = {"keepdims": int(bool(keepdims)), "noop_with_empty_axes": 1}
    return use.add(op, value, use.ints(*axes), **options)


def reduce(op: str) -> Any:
    """Return the rule of a reduction in the result's dtype."""

    def rule(use: Use) -> int:
        axes = axes_of(use, use.args.get("dim"))
        value = use.cast(use["self"], use.dtype)
        return reduced(use, op, value, axes, use.args.get("keepdim"))

    return rule


def reduce_truth(op: str) -> Any:
    """Return the rule of any or all."""

    def rule(use: Use) -> int:
        axes = axes_of(use, use.args.get("dim"))
        value = truth(use, use["self"])
        return use.cast(reduced(use, op, value, axes, use.args.get("keepdim")), use.dtype)

    return rule


def arg(op: str) -> Any:
    """Return the rule of argmax or argmin; without an axis, of all elements."""

    def rule(use: Use) -> int:
        x, axis, keep = use["self"], use.args["dim"], int(use["keepdim"])
        rank = use.rank(x)
        if axis is None:
            x, axis = use.reshape(x, [-1]), 0
            made = use.add(op, x, axis=0, keepdims=0)
            return use.reshape(made, [1] * rank) if keep else made
        if not rank:
            return use.constant(0, "int64")
        return use.add(op, x, axis=axis % rank, keepdims=keep)

    return rule


def ranked(rule: Any) -> Any:
    """Return a rule of values and places along an axis that takes a number too: itself, at 0."""

    def whole(use: Use) -> Any:
        if not use.rank(use["self"]):
            return use["self"], use.constant(0, "int64")
        return rule(use)

    return whole


def extreme(op: str, arg_op: str) -> Any:
    """Return the rule of max or min along an axis: values and indices."""

    def rule(use: Use) -> tuple[int | None, ...]:
        x = use["self"]
        axis, keep = use.axis("dim", use.rank(x)), int(use["keepdim"])
        values = reduced(use, op, x, [axis], keep)
        if not use.reads(1):
            return values, None
        return values, use.add(arg_op, x, axis=axis, keepdims=keep)

    return rule


def count_of(use: Use, axes: Sequence[int]) -> Any:
    """Return the number of elements along axes, a NumberRef when a run knows it."""
    dims = [use.shape_of("self")[axis] for axis in axes]
    known = math.prod(dim for dim in dims if isinstance(dim, int))
    if all(isinstance(dim, int) for dim in dims):
        return known
    total = use.ints(known)
    for axis, dim in zip(axes, dims, strict=True):
        if not isinstance(dim, int):
            total = use.add("mul", total, use.add("shape", use["self"], start=axis, end=axis + 1))
    return NumberRef(total)


def variance(use: Use) -> int:
    """var: the sum of squared distances from the mean over max(0, n - correction)."""
    return _moments(use)[0]


def variance_and_mean(use: Use) -> tuple[int, int]:
    """var_mean."""
    return _moments(use)


def _moments(use: Use) -> tuple[int, int]:
    x, keep = use["self"], use["keepdim"]
    axes = axes_of(use, use.args["dim"])
    correction = use.args.get("correction")
    correction = 1 if correction is None else correction
    mean = reduced(use, "reduce_mean", x, axes, True)
    apart = use.add("sub", x, mean)
    square = use.add("mul", apart, apart)
    if not keep:
        mean = reduced(use, "reduce_mean", x, axes, False)
    if correction == 0:
        return reduced(use, "reduce_mean", square, axes, keep), mean
    count = count_of(use, axes)
    total = reduced(use, "reduce_sum", square, axes, keep)
    if isinstance(count, NumberRef):
        left = use.add("sub", use.operand(count, use.dtype), use.constant(correction, use.dtype))
        left = use.add("max", left, use.constant(0, use.dtype))
    else:
        left = use.constant(max(count - correction, 0), use.dtype)
    return use.add("div", total, left), mean


def vector_norm(use: Use) -> int:
    """linalg_vector_norm of any order but 0."""
    axes, keep, order = axes_of(use, use.args["dim"]), use["keepdim"], float(use["ord"])
    x = use.cast(use["self"], use.dtype)
    if order in (1.0, 2.0):
        return reduced(use, f"reduce_l{int(order)}", x, axes, keep)
    size = use.add("abs", x)
    if math.isinf(order):
        return reduced(use, "reduce_max" if order > 0 else "reduce_min", size, axes, keep)
    if not order:
        raise use.error("the norm of order 0 is not supported")
    powers = use.add("pow", size, use.constant(order, use.dtype))
    total = reduced(use, "reduce_sum", powers, axes, keep)
    return use.add("pow", total, use.constant(1 / order, use.dtype))


def running(op: str) -> Any:
    """Return the rule of cumsum or cumprod in the result's dtype."""

    def rule(use: Use) -> int:
        x = use.cast(use["self"], use.dtype)
        if not use.rank(x):
            return x
        return use.add(op, x, use.constant(use.axis("dim", use.rank(x)), "int64"))

    return rule


def top_k(use: Use) -> tuple[int, ...]:
    """topk along an axis."""
    x = use["self"]
    attrs = {
        "axis": use.axis("dim", use.rank(x)),
        "largest": int(use["largest"]),
        "sorted": int(use["sorted"]),
    }
    return use.add_node("top_k", [x, use.vector([use.args["k"]])], attrs, 2)


def sort(use: Use) -> tuple[int, ...]:
    """sort: a top_k of all elements, which keeps the order of equal ones."""
    x = use["self"]
    axis = use.axis("dim", use.rank(x))
    size = use.shape_of("self")[axis]
    if isinstance(size, int):
        count = use.ints(size)
    else:
        count = use.add("shape", x, start=axis, end=axis + 1)
    attrs = {"axis": axis, "largest": int(use["descending"]), "sorted": 1}
    return use.add_node("top_k", [x, count], attrs, 2)


def median(use: Use) -> tuple[int, int]:
    """median along an axis: the lower of the two in the middle."""
    axis, size = use.axis("dim", use.rank(use["self"])), use.shape_of("self")[use["dim"]]
    if not isinstance(size, int):
        raise use.error("the median along an open dimension is not supported")
    return _ranked(use, use["self"], axis, (size + 1) // 2)


def median_of_all(use: Use) -> int:
    """median of all elements."""
    sizes = use.shape_of("self")
    if not all(isinstance(size, int) for size in sizes):
        raise use.error("the median of open dimensions is not supported")
    return _ranked(use, use.reshape(use["self"], [-1]), 0, (math.prod(sizes) + 1) // 2)[0]


def kth_value(use: Use) -> tuple[int, int]:
    """kthvalue: the k-th least element along an axis."""
    axis = use.axis("dim", use.rank(use["self"]))
    return _ranked(use, use["self"], axis, int(use["k"]))


def _ranked(use: Use, x: int, axis: int, rank: int) -> tuple[int, int]:
    """Return the element of a rank, counted from 1 and the least, and its index."""
    attrs = {"axis": axis, "largest": 0, "sorted": 1}
    parts = use.add_node("top_k", [x, use.ints(rank)], attrs, 2)
    place = use.ints(rank - 1) if use.args.get("keepdim") else use.constant(rank - 1, "int64")
    values, indices = (use.add("gather", part, place, axis=axis) for part in parts)
    return values, indices


def softmax(op: str) -> Any:
    """Return the rule of softmax or log_softmax in the result's dtype."""

    def rule(use: Use) -> int:
        x = use.cast(use["self"], use.dtype)
        if not use.rank(x):
            return use.constant(np.ones(()) if op == "softmax" else np.zeros(()), use.dtype)
        return use.add(op, x, axis=use.axis("dim", use.rank(x)))

    return rule


def bucketize(limits_name: str) -> Any:
    """Return the rule of bucketize or searchsorted, whose limits have one axis."""

    def rule(use: Use) -> int:
        sorter, side = use.args.get("sorter"), use.args.get("side")
        if use.rank(use[limits_name]) != 1 or sorter is not None:
            raise use.error("limits of several axes, or with a sorter, are not supported")
        return _count_below(use, use[limits_name], bool(use["right"]) or side == "right")

    return rule


def _count_below(use: Use, limits: int, right: bool) -> int:
    """Return the number of limits below each element, or up to it with `right`."""
    x = use.add("unsqueeze", use["self"], use.ints(-1))
    op = "less_or_equal" if right else "less"
    kind = "float64" if "float" in use.type(x).dtype + use.type(limits).dtype else "int64"
    below = use.add(op, use.cast(limits, kind), use.cast(x, kind))
    axes = use.ints(use.rank(use["self"]))
    return use.add("reduce_sum", use.cast(below, use.dtype), axes, keepdims=0)


def histogram(use: Use) -> int:
    """histc between limits: the count of each of equal bins, of which the last has its end."""
    low, high, bins = float(use["min"]), float(use["max"]), int(use["bins"])
    x = use.reshape(use["self"], [-1])
    if low == high == 0:
        lowest, highest = (
            use.add(op, x, use.ints(0), keepdims=1) for op in ("reduce_min", "reduce_max")
        )
    else:
        lowest, highest = use.constant([low], use.dtype), use.constant([high], use.dtype)
    width = use.add("sub", highest, lowest)
    is_point = use.add("equal", width, use.constant([0], use.dtype))
    half = use.cast(is_point, use.dtype)  # torch widens a range of one point by 1 on both sides
    lowest, highest = use.add("sub", lowest, half), use.add("add", highest, half)
    part = use.add("div", use.add("sub", x, lowest), use.add("sub", highest, lowest))
    place = use.add("floor", use.add("mul", part, use.constant(bins, use.dtype)))
    place = use.add("min", place, use.constant(bins - 1, use.dtype))
    inside = use.add(
        "and", *(use.add("less_or_equal", *pair) for pair in ((lowest, x), (x, highest)))
    )
    numbers = use.constant(np.arange(bins)[:, None], use.dtype)
    found = use.add("and", use.add("equal", numbers, place), inside)
    return use.add("reduce_sum", use.cast(found, use.dtype), use.ints(1), keepdims=0)


REDUCTION: dict[str, Any] = {
    "_log_softmax": softmax("log_softmax"),
    "_softmax": softmax("softmax"),
    "amax": reduce("reduce_max"),
    "amin": reduce("reduce_min"),
    "any default dim dims": reduce_truth("reduce_any"),
    "argmax": arg("arg_max"),
    "argmin": arg("arg_min"),
    "bucketize Tensor": bucketize("boundaries"),
    "cumprod": running("cum_prod"),
    "cumsum": running("cum_sum"),
    "histc": histogram,
    "kthvalue": ranked(kth_value),
    "linalg_vector_norm": vector_norm,
    "log_softmax int": softmax("log_softmax"),
    "max": reduce("reduce_max"),
    "max dim": ranked(extreme("reduce_max", "arg_max")),
    "mean default dim": reduce("reduce_mean"),
    "median": median_of_all,
    "median dim": ranked(median),
    "min": reduce("reduce_min"),
    "min dim": ranked(extreme("reduce_min", "arg_min")),
    "prod default dim_int": reduce("reduce_prod"),
    "searchsorted Tensor": bucketize("sorted_sequence"),
    "softmax int": softmax("softmax"),
    "sort default stable": ranked(sort),
    "sum dim_IntList": reduce("reduce_sum"),
    "topk": ranked(top_k),
    "var correction": variance,
    "var_mean correction": variance_and_mean,
}
