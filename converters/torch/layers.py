"""Rules of whole layers: normalisations, resizes and recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trireme.converters.torch.pools import POOLS
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
    """instance_norm with the input's own statistics; with running ones a batch_norm."""
    channels = int(use.shape_of("input")[1])
    scale, bias = _scale(use, "weight", [channels]), _scale(use, "bias", [channels], 0)
    attrs = {"epsilon": float(use["eps"]), "layout": "NCHW"}
    if not use["use_input_stats"]:
        inputs = (use["input"], scale, bias, use["running_mean"], use["running_var"])
        return use.add("batch_normalization", *inputs, **attrs)
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
        if aligned and attrs["antialias"]:
            raise use.error("antialias with align_corners=True is not supported")
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
    **POOLS,
    "_native_batch_norm_legit no_stats": batch_norm_of_batch,
    "_native_batch_norm_legit_no_training": batch_norm,
    "_upsample_bicubic2d_aa vec": _CUBIC,
    "_upsample_bilinear2d_aa vec": _LINEAR,
    "_upsample_nearest_exact1d vec": _EXACT,
    "_upsample_nearest_exact2d vec": _EXACT,
    "_upsample_nearest_exact3d vec": _EXACT,
    "grid_sampler_2d": grid_sample,
    "grid_sampler_3d": grid_sample,
    "group_norm": group_norm,
    "gru input": recurrent("gru", (1, 0, 2), 1),
    "instance_norm": instance_norm,
    "layer_norm": layer_norm,
    "lstm input": recurrent("lstm", (0, 3, 1, 2), 2),
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
