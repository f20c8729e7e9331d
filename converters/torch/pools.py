"""Rules of pools: windows that move by strides, and adaptive ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trireme.converters.torch.movement import padded
from trireme.converters.torch.use import Use, spread
from trireme.support.dtypes import Array


def _window(use: Use, rank: int) -> dict[str, Any]:
    kernel = spread(use["kernel_size"], rank)
    return {
        "kernel": kernel,
        "strides": spread(use["stride"], rank) or kernel,
        "pads": spread(use["padding"], rank) * 2,
        "dilations": spread(use.args.get("dilation", [1]), rank),
        "ceil_mode": int(use["ceil_mode"]),
        "layout": "NCHW",
    }


def _batched(use: Use, rank: int) -> int:
    """Return the input with an axis of batches, which torch lets be left out."""
    x = int(use["self"])
    return x if use.rank(x) == rank + 2 else use.add("unsqueeze", x, use.ints(0))


def _as_given(use: Use, made: int, rank: int) -> int:
    """Return a result without the axis that `_batched` added."""
    return made if len(use.shape) == rank + 2 else use.add("squeeze", made, use.ints(0))


def max_pool(rank: int) -> Any:
    """Return the rule of max_pool with indices, which count within each channel."""

    def rule(use: Use) -> tuple[int | None, ...]:
        x, attrs = _batched(use, rank), _window(use, rank)
        if not use.reads(1):
            return _as_given(use, use.add("max_pool", x, **attrs), rank), None
        y, places = use.add_node("max_pool", [x], attrs, 2)
        area = use.shape_of("self")[-rank:]
        if not all(isinstance(dim, int) for dim in area):
            raise use.error("indices of a pool over open dimensions are not supported")
        inside = use.add("mod", places, use.constant(int(np.prod(area)), "int64"))
        return _as_given(use, y, rank), _as_given(use, inside, rank)

    return rule


def average_pool(rank: int) -> Any:
    """Return the rule of avg_pool."""

    def rule(use: Use) -> int:
        if use["divisor_override"] is not None:
            return _sum_pool(use, rank)
        attrs = {**_window(use, rank), "count_include_pad": int(use["count_include_pad"])}
        return _as_given(use, use.add("average_pool", _batched(use, rank), **attrs), rank)

    return rule


def _sum_pool(use: Use, rank: int) -> int:
    """Return sums of windows over a divisor; zeros stand where windows leave the input."""
    attrs = _window(use, rank)
    sizes, wanted = use.shape_of("self")[-rank:], use.shape[-rank:]
    pads = attrs["pads"][:rank]
    if any(pads) or attrs["ceil_mode"]:
        if not all(isinstance(dim, int) for dim in (*sizes, *wanted)):
            raise use.error("a pool of open dimensions with pads and a divisor of its own")
        ends = [
            max((out - 1) * stride + kernel - size - pad, pad)
            for out, stride, kernel, size, pad in zip(
                wanted, attrs["strides"], attrs["kernel"], sizes, pads, strict=True
            )
        ]
        around = [pad for each in zip(pads, ends, strict=True) for pad in each]
        x = padded(use, [*np.array(around).reshape(-1, 2)[::-1].reshape(-1).tolist()], "constant")
    else:
        x = int(use["self"])
    if use.rank(x) != rank + 2:
        x = use.add("unsqueeze", x, use.ints(0))
    attrs |= {"pads": (0,) * 2 * rank, "ceil_mode": 0}
    mean = _as_given(use, use.add("average_pool", x, **attrs), rank)
    share = math.prod(attrs["kernel"]) / use["divisor_override"]
    return use.add("mul", mean, use.constant(share, use.dtype))


def adaptive_average(rank: int) -> Any:
    """Return the rule of adaptive_avg_pool: uneven windows are products with weights."""

    def rule(use: Use) -> int:
        sizes, wanted = use.shape_of("self")[-rank:], use.shape[-rank:]
        first = use.rank(use["self"]) - rank
        if all(dim == 1 for dim in wanted):
            axes = use.ints(*range(first, first + rank))
            return use.add("reduce_mean", use["self"], axes, keepdims=1)
        if not all(isinstance(dim, int) for dim in (*sizes, *wanted)):
            raise use.error(
                "an adaptive pool of open dimensions to more than one element",
                "give the sizes of the inputs' open dimensions with shapes=",
            )
        if all(size % out == 0 for size, out in zip(sizes, wanted, strict=True)):
            kernel = tuple(size // out for size, out in zip(sizes, wanted, strict=True))
            return _even_pool(use, "average_pool", kernel, rank)
        value = int(use["self"])
        for place, (size, out) in enumerate(zip(sizes, wanted, strict=True)):
            value = _weighted(use, value, first + place, _weights(size, out))
        return value

    return rule


def _even_pool(use: Use, op: str, kernel: tuple[int, ...], rank: int) -> int:
    zeros, ones = (0,) * 2 * rank, (1,) * rank
    attrs = {"kernel": kernel, "strides": kernel, "pads": zeros, "dilations": ones}
    return _as_given(use, use.add(op, _batched(use, rank), **attrs, layout="NCHW"), rank)


def _weights(size: int, out: int) -> Array:
    """Return the weights [size, out] of windows from floor(i size/out) to ceil((i+1) size/out)."""
    weights = np.zeros((size, out))
    for i in range(out):
        start, end = i * size // out, -(-(i + 1) * size // out)
        weights[start:end, i] = 1 / (end - start)
    return weights


def _weighted(use: Use, value: int, axis: int, weights: Array) -> int:
    last = use.rank(value) - 1
    order = [*(i for i in range(last + 1) if i != axis), axis]
    turned = use.transpose(value, *order)
    made = use.add("matmul", turned, use.constant(weights, use.dtype))
    return use.transpose(made, *np.argsort(order).tolist())


def adaptive_max(rank: int) -> Any:
    """Return the rule of adaptive_max_pool: uneven windows are gathered axis by axis."""

    def rule(use: Use) -> tuple[int | None, ...]:
        sizes, wanted = use.shape_of("self")[-rank:], use.shape[-rank:]
        if not all(isinstance(dim, int) for dim in (*sizes, *wanted)):
            raise use.error("an adaptive maximum of open dimensions is not supported")
        if all(size % out == 0 for size, out in zip(sizes, wanted, strict=True)):
            kernel = tuple(size // out for size, out in zip(sizes, wanted, strict=True))
            return _even_max(use, kernel, rank)
        if use.reads(1):
            return _uneven_max(use, sizes, wanted)
        value, first = int(use["self"]), use.rank(use["self"]) - rank
        for axis, (size, out) in enumerate(zip(sizes, wanted, strict=True), first):
            windows = use.add("gather", value, use.constant(_windows(size, out)), axis=axis)
            value = use.add("reduce_max", windows, use.ints(axis + 1), keepdims=0)
        return value, None

    return rule


def _uneven_max(use: Use, sizes: list[int], wanted: list[int]) -> tuple[int, int]:
    """Return the maxima of uneven windows and their places in each channel."""
    rank, first = len(sizes), use.rank(use["self"]) - len(sizes)
    value, place, windows = int(use["self"]), np.zeros((), np.int64), []
    for k, (size, out) in enumerate(zip(sizes, wanted, strict=True)):
        value = use.add("gather", value, use.constant(_windows(size, out)), axis=first + 2 * k)
        windows.append(_windows(size, out))
    for size, window in zip(sizes, windows, strict=True):
        place = place[..., None, None] * size + window
    outs, insides = [2 * k for k in range(rank)], [2 * k + 1 for k in range(rank)]
    order = [*range(first), *(first + k for k in (*outs, *insides))]
    kept = [0] * first + [*wanted]
    value = use.reshape(use.transpose(value, *order), [*kept, -1])
    best = use.add("arg_max", value, axis=-1, keepdims=0)
    table = place.transpose(*outs, *insides).reshape(-1)
    each = table.size // math.prod(wanted)
    starts = np.arange(math.prod(wanted)).reshape(wanted) * each
    flat = use.add("add", best, use.constant(starts))
    places = use.add("gather", use.constant(table), flat, axis=0)
    return use.add("reduce_max", value, use.ints(-1), keepdims=0), places


def _even_max(use: Use, kernel: tuple[int, ...], rank: int) -> tuple[int | None, ...]:
    if not use.reads(1):
        return _even_pool(use, "max_pool", kernel, rank), None
    zeros, ones = (0,) * 2 * rank, (1,) * rank
    attrs = {"kernel": kernel, "strides": kernel, "pads": zeros, "dilations": ones}
    y, places = use.add_node("max_pool", [_batched(use, rank)], {**attrs, "layout": "NCHW"}, 2)
    area = int(np.prod(use.shape_of("self")[-rank:]))
    inside = use.add("mod", places, use.constant(area, "int64"))
    return _as_given(use, y, rank), _as_given(use, inside, rank)


def _windows(size: int, out: int) -> Array:
    """Return the elements [out, longest] of the windows of `_weights`; short ones repeat an end."""
    starts = [i * size // out for i in range(out)]
    ends = [-(-(i + 1) * size // out) for i in range(out)]
    longest = max(end - start for start, end in zip(starts, ends, strict=True))
    steps = np.arange(longest)[None] + np.array(starts)[:, None]
    places: Array = np.minimum(steps, np.array(ends)[:, None] - 1)
    return places


POOLS: dict[str, Any] = {
    "_adaptive_avg_pool2d": adaptive_average(2),
    "_adaptive_avg_pool3d": adaptive_average(3),
    "adaptive_max_pool2d": adaptive_max(2),
    "adaptive_max_pool3d": adaptive_max(3),
    "avg_pool2d": average_pool(2),
    "avg_pool3d": average_pool(3),
    "max_pool2d_with_indices": max_pool(2),
    "max_pool3d_with_indices": max_pool(3),
}
