"""Fused float ops of ONNX Runtime: norms of sums, activations, products, convolutions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trireme.converters.onnx import window
from trireme.converters.onnx.microsoft_attention import count_up, extent, unsqueeze
from trireme.converters.onnx.scope import NodeUse
from trireme.converters.onnx.table import our_name

SKIP_EPSILON = float(np.float32(1e-12))
_CONV_ACTIVATIONS = {
    "Clip": ("min", "max"),
    "HardSigmoid": ("alpha", "beta"),
    "HardSwish": (),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
}
_GEMM_ACTIVATIONS = {
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Selu": ("alpha", "gamma"),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "Tanh": (),
    "ThresholdedRelu": ("alpha",),
}
"""The activations that ONNX Runtime fuses, and their numbers."""


def fused_matmul(use: NodeUse) -> Sequence[int]:
    """FusedMatMul: alpha times the product, of sides whose axes may be in another order."""
    sides = [_side(use, position, name) for position, name in ((0, "A"), (1, "B"))]
    return (_scaled(use, use.add("matmul", *sides), "alpha"),)


def _scaled(use: NodeUse, y: int, name: str) -> int:
    factor = use.attrs.get(name, 1.0)
    return y if factor == 1 else use.add("mul", y, use.constant(factor, use.type().dtype))


def _side(use: NodeUse, position: int, side: str) -> int:
    """Return a side; transBatch moves the first axis behind the other batch axes."""
    rank = len(use.type(position).shape)
    perm = list(range(rank))
    if use.attrs.get(f"transBatch{side}") and rank > 2:
        perm = [*range(1, rank - 1), 0, rank - 1]
    if use.attrs.get(f"trans{side}") and rank > 1:
        perm[-2:] = perm[:-3:-1]
    if perm == list(range(rank)):
        return use.need(position)
    return use.add("transpose", use.need(position), perm=perm)


def bias_gelu(use: NodeUse) -> Sequence[int]:
    """BiasGelu and FastGelu: GELU of x plus an optional bias."""
    x = use.need(0) if use.input(1) is None else use.add("add", use.need(0), use.need(1))
    approximate = "tanh" if use.op == "FastGelu" else "none"
    return (use.add("gelu", x, approximate=approximate),)


def quick_gelu(use: NodeUse) -> Sequence[int]:
    """QuickGelu: x sigmoid(alpha x)."""
    return (use.add("swish", use.need(0), alpha=use.attrs.get("alpha", 1.702)),)


def fused_conv(use: NodeUse) -> Sequence[int]:
    """FusedConv(x, w, b?, z?): an activation of the convolution plus z."""
    attrs = window.conv_attrs(use, 0, use.type(1).shape)
    y = use.add("conv", *use.inputs[:3], **attrs)
    if use.input(3) is not None:
        y = use.add("add", y, use.need(3))
    name, numbers = use.attrs.get("activation", ""), use.attrs.get("activation_params", ())
    known = _CONV_ACTIVATIONS.get(name, ())
    if name in _CONV_ACTIVATIONS and len(numbers) != len(known):
        raise use.error(f"{name} has {len(numbers)} activation_params, expected {len(known)}")
    given = dict(zip(known, numbers, strict=False))
    return (_activated(use, y, name, given, tuple(_CONV_ACTIVATIONS)),)


def fused_gemm(use: NodeUse) -> Sequence[int]:
    """FusedGemm(a, b, c?): an activation of Gemm."""
    attrs = {name: use.attrs.get(name, 1.0) for name in ("alpha", "beta")}
    attrs |= {f"trans_{name.lower()}": use.attrs.get(f"trans{name}", 0) for name in "AB"}
    y = use.add("gemm", *use.inputs[:3], **attrs)
    name = use.attrs.get("activation", "")
    known = _GEMM_ACTIVATIONS.get(name, ())
    keys = [key for key in known if f"activation_{key}" in use.attrs]
    given = {key: use.attrs[f"activation_{key}"] for key in keys}
    return (_activated(use, y, name, given, tuple(_GEMM_ACTIVATIONS)),)


def _activated(
    use: NodeUse, y: int, name: str, numbers: dict[str, float], known: tuple[str, ...]
) -> int:
    """Return an activation of y."""
    if not name:
        return y
    if name not in known:
        raise use.error(f"activation {name!r} is unknown; {', '.join(known)} are known")
    if name == "Clip":
        limits = (use.constant(numbers[key], "float32") for key in ("min", "max"))
        return use.add("clip", y, *limits)
    return use.add_node(our_name(name), [y], numbers)[0]


def skip_layer_normalization(use: NodeUse) -> Sequence[int | None]:
    """SkipLayerNormalization(x, skip, scale, shift?, bias?): of x + skip + bias, also an output."""
    total = _sum(use, 4)
    attrs = {"axis": -1, "epsilon": use.attrs.get("epsilon", SKIP_EPSILON)}
    inputs = [total, use.need(2), use.input(3)]
    made = use.add_node("layer_normalization", inputs, attrs, min(max(len(use.outputs), 1), 3))
    return [*made, *[None] * (3 - len(made)), total]


def skip_rms_normalization(use: NodeUse) -> Sequence[int | None]:
    """SkipSimplifiedLayerNormalization(x, skip, scale, bias?): the root of the mean square."""
    if any(use.outputs[1:3]):
        raise use.error("the outputs mean and inv_std_var are not supported")
    total = _sum(use, 3)
    epsilon = use.attrs.get("epsilon", SKIP_EPSILON)
    return use.add("rms_normalization", total, use.need(2), epsilon=epsilon), None, None, total


def _sum(use: NodeUse, bias: int) -> int:
    total = use.add("add", use.need(0), use.need(1))
    return total if use.input(bias) is None else use.add("add", total, use.need(bias))


def embed_layer_normalization(use: NodeUse) -> Sequence[int | None]:
    """EmbedLayerNormalization(ids, segments?, words, places, parts?, scale, shift, mask?, at?)."""
    ids, at = use.need(0), use.input(8)
    if at is None:
        at = unsqueeze(use, count_up(use, extent(use, ids, 1)), 0)
    total = use.add("add", use.add("gather", use.need(2), ids), use.add("gather", use.need(3), at))
    if use.input(1) is not None and use.input(4) is not None:
        total = use.add("add", total, use.add("gather", use.need(4), use.need(1)))
    epsilon = use.attrs.get("epsilon", SKIP_EPSILON)
    y = use.add("layer_normalization", total, use.need(5), use.need(6), epsilon=epsilon)
    return y, _valid_lengths(use) if any(use.outputs[1:2]) else None, total


def _valid_lengths(use: NodeUse) -> int:
    """Return the number of ones of each row of the mask as int32, zeros without a mask."""
    if use.input(7) is None:
        batch = use.add("cast", extent(use, use.need(0), 0), to="int64")
        zero = use.constant(0, "int32")
        return use.add("expand", zero, use.add("reshape", batch, use.constant([1], "int64")))
    mask = use.add("cast", use.need(7), to="int32")
    return use.add("reduce_sum", mask, use.constant([1], "int64"), keepdims=0)
