"""Rules of activations, and of values that training rounds as if they were quantised."""

from __future__ import annotations

from typing import Any

from trireme.converters.torch.elementwise import unary, with_attrs
from trireme.converters.torch.use import Use


def rrelu(use: Use) -> tuple[int, None]:
    """rrelu outside of training: a leaky_relu of the mean slope."""
    if use["training"] or use.reads(1):
        raise use.error("rrelu draws random slopes in training, which is not supported")
    slope = (float(use["lower"]) + float(use["upper"])) / 2
    return use.add("leaky_relu", use["self"], alpha=slope), None


def fake_quantize(use: Use) -> tuple[int, None]:
    """fake_quantize_per_tensor_affine, or per channel: round(x / scale) within the limits."""
    if use.reads(1):
        raise use.error("the mask of a fake quantisation is not supported")
    scale, zero = (use.operand(use.args[name], use.dtype) for name in ("scale", "zero_point"))
    if "axis" in use.args:
        rank = use.rank(use["self"])
        shape = [-1 if axis == use.axis("axis", rank) else 1 for axis in range(rank)]
        scale, zero = use.reshape(scale, shape), use.reshape(zero, shape)
    steps = use.add("mul", use["self"], use.add("div", use.constant(1, use.dtype), scale))
    level = use.add("add", use.add("round", steps), zero)
    limits = (use.constant(use[name], use.dtype) for name in ("quant_min", "quant_max"))
    level = use.add("clip", level, *limits)
    return use.add("mul", use.add("sub", level, zero), scale), None


def hardtanh(use: Use) -> int:
    """hardtanh: a clamp."""
    limits = (use.constant(use[name], use.dtype) for name in ("min_val", "max_val"))
    return use.add("clip", use["self"], *limits)


def gelu(use: Use) -> int:
    """gelu, exact or with tanh."""
    return use.add("gelu", use["self"], approximate=use["approximate"])


def elu(use: Use) -> int:
    """elu with scales of its output and of its input."""
    alpha, scale, inner = (float(use[n]) for n in ("alpha", "scale", "input_scale"))
    if inner != 1:
        raise use.error(f"elu with input_scale {inner} is not supported")
    made = use.add("elu", use["self"], alpha=alpha)
    return made if scale == 1 else use.add("mul", made, use.constant(scale, use.dtype))


def softplus(use: Use) -> int:
    """softplus of beta x over beta; beyond the threshold, x itself."""
    beta, threshold, x = float(use["beta"]), float(use["threshold"]), use["self"]
    if beta == 1 and threshold == 20 and use.dtype != "float64":  # float32 has x from 16 on
        return use.add("softplus", x)
    scaled = use.add("mul", x, use.constant(beta, use.dtype))
    made = use.add("div", use.add("softplus", scaled), use.constant(beta, use.dtype))
    beyond = use.add("greater", scaled, use.constant(threshold, use.dtype))
    return use.add("where", beyond, x, made)


def prelu(use: Use) -> int:
    """prelu with a slope for each channel, the second axis."""
    slope, rank = use["weight"], use.rank(use["self"])
    if rank == 0:
        slope = use.reshape(slope, [])
    if rank > 1 and use.shape_of("weight") != [1]:
        slope = use.reshape(slope, [-1, *[1] * (rank - 2)])
    return use.add("prelu", use["self"], slope)


ACTIVATIONS: dict[str, Any] = {
    "celu": with_attrs("celu", alpha="alpha"),
    "elu": elu,
    "fake_quantize_per_channel_affine_cachemask": fake_quantize,
    "fake_quantize_per_tensor_affine_cachemask": fake_quantize,
    "gelu": gelu,
    "hardsigmoid": unary("hard_sigmoid", alpha=1 / 6, beta=0.5),
    "hardswish": unary("hard_swish"),
    "hardtanh": hardtanh,
    "leaky_relu": with_attrs("leaky_relu", alpha="negative_slope"),
    "prelu": prelu,
    "rrelu_with_noise_functional": rrelu,
    "selu": unary("selu"),
    "softplus": softplus,
}
