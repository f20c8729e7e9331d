"""Rules of whole layers: normalisations, pools, resizes and recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trireme.converters.torch.use import Use
from trireme.support.dtypes import Array


def _scale(use: Use, name: str, shape: Sequence[int], number: float = 1) -> int:
    """Return a weight, or ones (or zeros) of its shape where it is left out."""
    given = use[name]
    return use.constant(np.full(tuple(shape), number), use.dtype) if given is None else int(given)


def layer_norm(use: Use) -> int:
    """layer_norm over the last axes."""
    shape = use["normalized_shape"]
    scale = _scale(use, "weight", shape)
    attrs = {"axis": -len(shape), "epsilon": float(use["eps"])}
    return use.add("layer_normalization", use["input"], scale, use["bias"], **attrs)


def native_layer_norm(use: Use) -> tuple[int, None, None]:
    """native_layer_norm, of which only the first result is made."""
    _refuse_others(use)
    return layer_norm(use), None, None


def _refuse_others(use: Use) -> None:
    if use.reads(1) or use.reads(2):
        raise use.error("the statistics of a normalisation are not supported as results")


def rms_norm(use: Use) -> int:
    """rms_norm over the last axes; epsilon is the dtype's own when left out."""
    shape = use["normalized_shape"]
    eps = use["eps"]
    eps = float(np.finfo(np.float32).eps) if eps is None else float(eps)
    scale = _scale(use, "weight", shape)
    return use.add("rms_normalization", use["input"], scale, axis=-len(shape), epsilon=eps)


def group_norm(use: Use) -> int:
    """group_norm over groups of channels."""
    channels = int(use.shape_of("input")[1])
    scale, bias = _scale(use, "weight", [channels]), _scale(use, "bias", [channels], 0)
    attrs = {"num_groups": int(use["num_groups"]), "epsilon": float(use["eps"]), "layout": "NCHW"}
    return use.add("group_normalization", use["input"], scale, bias, **attrs)


def native_group_norm(use: Use) -> tuple[int, None, None]:
    """native_group_norm, of which only the first result is made."""
    _refuse_others(use)
    channels = int(use["C"])
    scale, bias = _scale(use, "weight", [channels]), _scale(use, "bias", [channels], 0)
    attrs = {"num_groups": int(use["group"]), "epsilon": float(use["eps"]), "layout": "NCHW"}
    return use.add("group_normalization", use["input"], scale, bias, **attrs), None, None


def instance_norm(use: Use) -> int:
    """instance_norm with the input's own statistics."""
    if not use["use_input_stats"]:
        raise use.error("instance_norm with running statistics is not supported")
    channels = int(use.shape_of("input")[1])
    scale, bias = _scale(use, "weight", [channels]), _scale(use, "bias", [channels], 0)
    attrs = {"epsilon": float(use["eps"]), "layout": "NCHW"}
    return use.add("instance_normalization", use["input"], scale, bias, **attrs)


def batch_norm(use: Use) -> tuple[int, None, None]:
    """Batch normalisation with the running statistics."""
    _refuse_others(use)
    channels = int(use.shape_of("input")[1])
    scale, bias = _scale(use, "weight", [channels]), _scale(use, "bias", [channels], 0)
    inputs = (use["input"], scale, bias, use["running_mean"], use["running_var"])
    attrs = {"epsilon": float(use["eps"]), "layout": "NCHW"}
    return use.add("batch_normalization", *inputs, **attrs), None, None


def batch_norm_of_batch(use: Use) -> tuple[int, None, None]:
    """Batch normalisation with the mean and variance of the batch itself."""
    _refuse_others(use)
    x, rank = use["input"], use.rank(use["input"])
    channels = int(use.shape_of("input")[1])
    axes = use.ints(*(axis for axis in range(rank) if axis != 1))
    apart = use.add("sub", x, use.add("reduce_mean", x, axes, keepdims=1))
    variance = use.add("reduce_mean", use.add("mul", apart, apart), axes, keepdims=1)
    spread = use.add("add", variance, use.constant(use["eps"], use.dtype))
    shape = [1, channels, *[1] * (rank - 2)]
    scale, bias = _scale(use, "weight", [channels]), _scale(use, "bias", [channels], 0)
    scale, bias = use.reshape(scale, shape), use.reshape(bias, shape)
    value = use.add("mul", use.add("div", apart, use.add("sqrt", spread)), scale)
    return use.add("add", value, bias), None, None


def _window(use: Use, rank: int) -> dict[str, Any]:
    kernel = _spread(use["kernel_size"], rank)
    return {
        "kernel": kernel,
        "strides": _spread(use["stride"], rank) or kernel,
        "pads": _spread(use["padding"], rank) * 2,
        "dilations": _spread(use.args.get("dilation", [1]), rank),
        "ceil_mode": int(use["ceil_mode"]),
        "layout": "NCHW",
    }


def _spread(given: Any, rank: int) -> tuple[int, ...]:
    numbers = tuple(int(number) for number in given)
    return numbers * rank if len(numbers) == 1 else numbers


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
            raise use.error("a pool with a divisor of its own is not supported")
        attrs = {**_window(use, rank), "count_include_pad": int(use["count_include_pad"])}
        return _as_given(use, use.add("average_pool", _batched(use, rank), **attrs), rank)

    return rule


def adaptive_average(rank: int) -> Any:
    """Return the rule of adaptive_avg_pool: uneven windows are products with weights."""

    def rule(use: Use) -> int:
        sizes, wanted = use.shape_of("self")[-rank:], use.shape[-rank:]
        first = use.rank(use["self"]) - rank
        if all(dim == 1 for dim in wanted):
            axes = use.ints(*range(first, first + rank))
            return use.add("reduce_mean", use["self"], axes, keepdims=1)
        if not all(isinstance(dim, int) for dim in (*sizes, *wanted)):
            raise use.error("an adaptive pool of open dimensions to more than one element")
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
            raise use.error("indices of an adaptive pool with uneven windows are not supported")
        value, first = int(use["self"]), use.rank(use["self"]) - rank
        for axis, (size, out) in enumerate(zip(sizes, wanted, strict=True), first):
            windows = use.add("gather", value, use.constant(_windows(size, out)), axis=axis)
            value = use.add("reduce_max", windows, use.ints(axis + 1), keepdims=0)
        return value, None

    return rule


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


def resize(mode: str, coordinates: str = "half_pixel", nearest: str = "floor") -> Any:
    """Return the rule of an upsample: to a size, or by factors, which then place the samples."""

    def rule(use: Use) -> int:
        x = use["input"] if "input" in use.args else use["self"]
        rank, out = use.rank(x), use.shape
        axes = tuple(range(2, rank))
        attrs: dict[str, Any] = {"mode": mode, "axes": axes, "nearest_mode": nearest}
        aligned = bool(use.args.get("align_corners"))
        attrs["coordinate_transformation_mode"] = "align_corners" if aligned else coordinates
        attrs["antialias"] = int("_aa" in str(use.node.target))
        attrs["exclude_outside"] = attrs["antialias"]
        if mode == "cubic":
            attrs["cubic_coeff_a"] = -0.5 if attrs["antialias"] else -0.75
        factors = use.args.get("scale_factors")
        if factors and not aligned:
            scales = use.constant(np.array(factors), "float32")
            return use.add("resize", x, None, scales, **attrs)
        given = use.args.get("output_size") or [None] * len(axes)
        sizes = [
            dim if isinstance(dim, int) else own for dim, own in zip(out[2:], given, strict=True)
        ]
        if None in sizes:
            scales = use.constant(np.array(factors), "float32")
            return use.add("resize", x, None, scales, **attrs)
        return use.add("resize", x, None, None, use.vector(sizes), **attrs)

    return rule


def grid_sample(use: Use) -> int:
    """grid_sampler: modes are numbers."""
    mode = ("linear", "nearest", "cubic")[use["interpolation_mode"]]
    padding = ("zeros", "border", "reflection")[use["padding_mode"]]
    attrs = {"mode": mode, "padding_mode": padding, "align_corners": int(use["align_corners"])}
    return use.add("grid_sample", use["input"], use["grid"], **attrs)


def recurrent(op: str, gates: Sequence[int], states: int) -> Any:
    """Return the rule of an LSTM or GRU; `gates` puts torch's gates into our order."""

    def rule(use: Use) -> tuple[int, ...]:
        if not isinstance(use.args["hx"], list) and states == 2:
            raise use.error("a packed sequence is not supported")
        given = use.args["hx"] if states == 2 else [use.args["hx"]]
        first = [one.id for one in given]
        ways = 2 if use["bidirectional"] else 1
        weights = [one.id for one in use.args["params"]]
        step = 4 if use["has_biases"] else 2
        if len(weights) != step * ways * use["num_layers"]:
            raise use.error("projections of a recurrent layer are not supported")
        value = use["input"]
        if use["batch_first"]:
            value = use.transpose(value, 1, 0, 2)
        lasts: list[list[int]] = [[] for _ in range(states)]
        for layer in range(use["num_layers"]):
            own = weights[layer * step * ways : (layer + 1) * step * ways]
            start, end = use.ints(layer * ways), use.ints((layer + 1) * ways)
            begin = [use.add("slice", one, start, end, use.ints(0), use.ints(1)) for one in first]
            value, *last = _layer(use, op, value, own, begin, gates, ways, step)
            for kept, new in zip(lasts, last, strict=True):
                kept.append(new)
        if use["batch_first"]:
            value = use.transpose(value, 1, 0, 2)
        joined = (p[0] if len(p) == 1 else use.add("concat", *p, axis=0) for p in lasts)
        return value, *joined

    return rule


def _layer(
    use: Use,
    op: str,
    x: int,
    weights: Sequence[int],
    first: Sequence[int],
    gates: Sequence[int],
    ways: int,
    step: int,
) -> tuple[int, ...]:
    """Add one layer; its output's directions become the last axis."""
    parts: list[list[Array]] = []
    for way in range(ways):
        data = [use.data(one) for one in weights[way * step : (way + 1) * step]]
        if any(one is None for one in data):
            raise use.error("the weights of a recurrent layer are no constants")
        parts.append([_by_gate(one, gates) for one in data if one is not None])
    w, r = (np.stack([part[i] for part in parts]) for i in range(2))
    inputs = [x, use.constant(w), use.constant(r), None, None, *first]
    if step == 4:
        inputs[3] = use.constant(np.stack([np.concatenate(part[2:]) for part in parts]))
    hidden = int(r.shape[-1])
    attrs: dict[str, Any] = {"hidden_size": hidden}
    attrs["direction"] = "bidirectional" if ways == 2 else "forward"
    if op == "gru":
        attrs["linear_before_reset"] = 1
    y, *last = use.add_node(op, inputs, attrs, 1 + len(first))
    turned = use.transpose(y, 0, 2, 1, 3)
    return use.reshape(turned, [0, 0, ways * hidden]), *last


def _by_gate(data: Array, gates: Sequence[int]) -> Array:
    return np.concatenate([np.split(data, len(gates))[gate] for gate in gates])


_NEAREST = resize("nearest", "asymmetric")
_EXACT = resize("nearest", "half_pixel", "round_prefer_ceil")
_LINEAR = resize("linear")
_CUBIC = resize("cubic")

LAYERS: dict[str, Any] = {
    "_adaptive_avg_pool2d": adaptive_average(2),
    "_adaptive_avg_pool3d": adaptive_average(3),
    "_native_batch_norm_legit no_stats": batch_norm_of_batch,
    "_native_batch_norm_legit_no_training": batch_norm,
    "_upsample_bicubic2d_aa vec": _CUBIC,
    "_upsample_bilinear2d_aa vec": _LINEAR,
    "_upsample_nearest_exact1d vec": _EXACT,
    "_upsample_nearest_exact2d vec": _EXACT,
    "_upsample_nearest_exact3d vec": _EXACT,
    "adaptive_max_pool2d": adaptive_max(2),
    "adaptive_max_pool3d": adaptive_max(3),
    "avg_pool2d": average_pool(2),
    "avg_pool3d": average_pool(3),
    "grid_sampler_2d": grid_sample,
    "grid_sampler_3d": grid_sample,
    "group_norm": group_norm,
    "gru input": recurrent("gru", (1, 0, 2), 1),
    "instance_norm": instance_norm,
    "layer_norm": layer_norm,
    "lstm input": recurrent("lstm", (0, 3, 1, 2), 2),
    "max_pool2d_with_indices": max_pool(2),
    "max_pool3d_with_indices": max_pool(3),
    "native_group_norm": native_group_norm,
    "native_layer_norm": native_layer_norm,
    "rms_norm": rms_norm,
    "upsample_bicubic2d vec": _CUBIC,
    "upsample_bilinear2d vec": _LINEAR,
    "upsample_linear1d vec": _LINEAR,
    "upsample_nearest1d vec": _NEAREST,
    "upsample_nearest2d vec": _NEAREST,
    "upsample_nearest3d vec": _NEAREST,
    "upsample_trilinear3d vec": _LINEAR,
}
