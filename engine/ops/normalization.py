"""Normalisations over layers, channels, groups and neighbours."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from trireme.ir.dtype_rules import Like
from trireme.ir.graph import TensorType, Value
from trireme.ir.op import Attr, Axes, Sample, define
from trireme.ops import axis_maps
from trireme.ops.layouts import LAYOUT, channels, channels_last, from_channels_last
from trireme.ops.movement import draw
from trireme.ops.shapes import (
    Types,
    axes_of,
    axis_of,
    expect,
    expect_dims,
    expect_spread,
    same_type,
)
from trireme.ops.softmax import AXIS, flops_each
from trireme.support.dtypes import FLOATING, Array, numpy_dtype
from trireme.support.errors import ShapeError

EPSILON = Attr("float", 1e-5)


def _infer_layer_norm(
    x: Value,
    scale: Value,
    bias: Value | None = None,
    *,
    axis: int,
    epsilon: float,
    stash_type: str,
) -> Types:
    rank = len(x.shape)
    first = axis_of(axis, rank)
    for part in (scale, bias):
        if part is not None:
            expect_spread("scale" if part is scale else "bias", part, x.shape)
    stats = TensorType((*x.shape[:first], *[1] * (rank - first)), stash_type)
    return (*same_type(x), stats, stats)


def _layer_norm(
    x: Array,
    scale: Array,
    bias: Array | None = None,
    *,
    axis: int,
    epsilon: float,
    stash_type: str,
) -> tuple[Array, ...]:
    axes = tuple(range(axis % x.ndim, x.ndim))
    wide = x.astype(np.float64)
    mean = wide.mean(axis=axes, keepdims=True)
    inverse = 1 / np.sqrt(wide.var(axis=axes, keepdims=True) + epsilon)
    y = (wide - mean) * inverse * scale
    stash = numpy_dtype(stash_type)
    y = y if bias is None else y + bias
    return y.astype(x.dtype), mean.astype(stash), inverse.astype(stash)


def _layer_samples(rng: np.random.Generator) -> Iterable[Sample]:
    fixed = frozenset({1, 2})
    yield Sample((draw(rng, 2, 7, 19) + 3, draw(rng, 19), draw(rng, 19)), constants=fixed)
    yield Sample((draw(rng, 2, 5, 7), draw(rng, 5, 7)), {"axis": 1}, fixed, note="two axes")
    yield Sample((draw(rng, 3, 1), draw(rng, 1), draw(rng, 1)), constants=fixed, note="one")
    yield Sample((draw(rng, 3, 8), draw(rng, 8)), {"epsilon": 0.1}, fixed, note="epsilon")


_STASH = Attr("str", "float32")
define(
    "layer_normalization",
    "x scale bias?",
    "y = (x - mean) / sqrt(variance + epsilon) * scale + bias over the axes from `axis` on; "
    "mean and 1/sqrt(variance + epsilon) are outputs too. Source: ONNX LayerNormalization-17",
    _infer_layer_norm,
    _layer_norm,
    outputs="y mean? inv_std_dev?",
    attrs={"axis": AXIS, "epsilon": EPSILON, "stash_type": _STASH},
    axes=Axes("axis and after", "normalises"),
    flops=flops_each(8),
    samples=_layer_samples,
    family="normalize",
    rtol=1e-5,
    dtypes=(FLOATING, Like("x"), Like("x")),
)


def _infer_rms_norm(x: Value, scale: Value, *, axis: int, **attrs: object) -> Types:
    axis_of(axis, len(x.shape))
    expect_spread("scale", scale, x.shape)
    return same_type(x)


def _rms_norm(x: Array, scale: Array, *, axis: int, epsilon: float) -> Array:
    wide = x.astype(np.float64)
    square = np.square(wide).mean(axis=tuple(range(axis % x.ndim, x.ndim)), keepdims=True)
    return np.asarray(wide / np.sqrt(square + epsilon) * scale).astype(x.dtype)


define(
    "rms_normalization",
    "x scale",
    "y = x / sqrt(mean of x^2 + epsilon) * scale over the axes from `axis` on. "
    "Source: ONNX RMSNormalization-23",
    _infer_rms_norm,
    _rms_norm,
    attrs={"axis": AXIS, "epsilon": EPSILON},
    axes=Axes("axis and after", "normalises"),
    flops=flops_each(5),
    samples=lambda rng: [
        Sample((draw(rng, 2, 7, 19), draw(rng, 19)), constants=frozenset({1})),
        Sample((draw(rng, 2, 5, 7), draw(rng, 5, 7)), {"axis": 1}, frozenset({1})),
        Sample((draw(rng, 3, 7), draw(rng, 7)), {"epsilon": 0.25}, frozenset({1})),
    ],
    family="normalize",
    rtol=1e-5,
    dtypes=(FLOATING, FLOATING),
)


def _per_channel(x: Value, layout: str, **parts: Value) -> None:
    if len(x.shape) < 2:
        raise ShapeError(f"x has rank {len(x.shape)}, expected 2 or more")
    for name, part in parts.items():
        if len(part.shape) != 1:
            raise ShapeError(f"{name} is {part.type}, expected one dimension")
        expect(f"the length of {name}", part.shape[0], channels(x.shape, layout), "channels")


def _infer_batch_norm(
    x: Value, scale: Value, bias: Value, mean: Value, var: Value, *, layout: str, **attrs: object
) -> Types:
    parts = {"scale": scale, "bias": bias, "mean": mean, "var": var}
    if len(x.shape) > 1:
        _per_channel(x, layout, **parts)
    else:  # one channel
        for name, part in parts.items():
            expect_dims(name, part, 1)
    return (*same_type(x), mean.type.without_quant(), var.type.without_quant())


def _batch_norm(
    x: Array,
    scale: Array,
    bias: Array,
    mean: Array,
    var: Array,
    *,
    epsilon: float,
    momentum: float,
    training_mode: int,
    layout: str,
) -> tuple[Array, ...]:
    image = channels_last(x, layout).astype(np.float64) if x.ndim > 1 else x[:, None]
    running = (mean, var)
    if training_mode:
        axes = tuple(range(image.ndim - 1))
        now = (image.mean(axis=axes), image.var(axis=axes))
        running = (
            (mean * momentum + now[0] * (1 - momentum)).astype(mean.dtype),
            (var * momentum + now[1] * (1 - momentum)).astype(var.dtype),
        )
        mean, var = now
    factor = scale / np.sqrt(var.astype(np.float64) + epsilon)
    y = ((image - mean) * factor + bias).astype(x.dtype)
    return from_channels_last(y, layout).reshape(x.shape), *running


def _batch_norm_samples(rng: np.random.Generator) -> Iterable[Sample]:
    def parts(depth: int) -> tuple[Array, ...]:
        scale, bias, mean, var = draw(rng, 4, depth)
        return scale, bias, mean, np.abs(var) + np.float32(0.1)

    fixed = frozenset({1, 2, 3, 4})
    yield Sample((draw(rng, 2, 5, 3, 19), *parts(19)), constants=fixed, note="odd")
    yield Sample((draw(rng, 1, 8), *parts(8)), {"epsilon": 0.1}, fixed, note="matrix")
    yield Sample((draw(rng, 2, 5, 4, 3), *parts(5)), {"layout": "NCHW"}, fixed, note="NCHW")


define(
    "batch_normalization",
    "x scale bias mean var",
    "y = (x - mean) / sqrt(var + epsilon) * scale + bias, one of each a channel; in "
    "training_mode with the batch's own mean and var, returning the running ones. "
    "Source: ONNX BatchNormalization-15",
    _infer_batch_norm,
    _batch_norm,
    outputs="y running_mean? running_var?",
    attrs={
        "epsilon": EPSILON,
        "momentum": Attr("float", 0.9),
        "training_mode": Attr("int", 0),
        "layout": LAYOUT,
    },
    layout_inputs=(0,),
    flops=flops_each(2),
    samples=_batch_norm_samples,
    axis_map=axis_maps.all_but_channels,
    family="normalize",
    rtol=1e-5,
    dtypes=(FLOATING, FLOATING, FLOATING, FLOATING, FLOATING),
)


def _infer_channel_norm(x: Value, scale: Value, bias: Value, *, layout: str, **attrs: int) -> Types:
    _per_channel(x, layout, scale=scale, bias=bias)
    depth, groups = channels(x.shape, layout), attrs.get("num_groups", 1)
    if isinstance(depth, int) and (groups < 1 or depth % groups):
        raise ShapeError(f"{depth} channels do not divide into {groups} groups")
    return same_type(x)


def _group_norm(
    x: Array, scale: Array, bias: Array, *, num_groups: int, epsilon: float, layout: str
) -> Array:
    image = channels_last(x, layout).astype(np.float64)
    if not image.size:
        return x
    split = image.reshape(image.shape[0], -1, num_groups, image.shape[-1] // num_groups)
    mean, var = (f(split, axis=(1, 3), keepdims=True) for f in (np.mean, np.var))
    whole = ((split - mean) / np.sqrt(var + epsilon)).reshape(image.shape)
    return from_channels_last((whole * scale + bias).astype(x.dtype), layout)


def _channel_samples(rng: np.random.Generator) -> Iterable[Sample]:
    fixed = frozenset({1, 2})
    x = draw(rng, 2, 5, 3, 6) + 2
    yield Sample((x, draw(rng, 6), draw(rng, 6)), constants=fixed)
    yield Sample((draw(rng, 2, 6, 5), draw(rng, 6), draw(rng, 6)), {"layout": "NCHW"}, fixed)
    flat = (draw(rng, 1, 3, 4, 6), draw(rng, 6), draw(rng, 6))
    yield Sample(flat, {"epsilon": 0.25}, fixed, note="a large epsilon")


def _group_samples(rng: np.random.Generator) -> Iterable[Sample]:
    for sample in _channel_samples(rng):
        attrs = {**sample.attrs, "num_groups": 3}
        yield Sample(sample.inputs, attrs, sample.constants, note="3 groups")
    yield Sample(sample.inputs, {"num_groups": 2}, sample.constants, note="2 groups")


define(
    "instance_normalization",
    "x scale bias",
    "y = (x - mean) / sqrt(variance + epsilon) * scale + bias, mean and variance over the "
    "image of each channel. Source: ONNX InstanceNormalization-22",
    _infer_channel_norm,
    lambda x, scale, bias, epsilon, layout: _group_norm(
        x, scale, bias, num_groups=scale.size, epsilon=epsilon, layout=layout
    ),
    attrs={"epsilon": EPSILON, "layout": LAYOUT},
    layout_inputs=(0,),
    flops=flops_each(8),
    samples=_channel_samples,
    family="normalize",
    rtol=1e-5,
    dtypes=(FLOATING, Like("x"), Like("x")),
)
define(
    "group_normalization",
    "x scale bias",
    "as instance_normalization, with mean and variance over each group of channels; scale and "
    "bias [C]. Source: ONNX GroupNormalization-21",
    _infer_channel_norm,
    _group_norm,
    attrs={"num_groups": Attr("int"), "epsilon": EPSILON, "layout": LAYOUT},
    layout_inputs=(0,),
    flops=flops_each(8),
    samples=_group_samples,
    family="normalize",
    rtol=1e-5,
    dtypes=(FLOATING, Like("x"), Like("x")),
)


def _lrn(x: Array, *, alpha: float, beta: float, bias: float, size: int, layout: str) -> Array:
    image = channels_last(x, layout).astype(np.float64)
    before, after, depth = (size - 1) // 2, size - 1 - (size - 1) // 2, image.shape[-1]
    edges = [(0, 0)] * (image.ndim - 1)
    squares = np.pad(np.square(image), [*edges, (before, after)])
    sums = sum(squares[..., i : i + depth] for i in range(size))
    y = image / (bias + alpha / size * sums) ** beta
    return from_channels_last(np.asarray(y).astype(x.dtype), layout)


define(
    "lrn",
    "x",
    "y = x / (bias + alpha/size * sum of x^2 over `size` neighbouring channels)^beta. "
    "Source: ONNX LRN-13",
    same_type,
    _lrn,
    flops=flops_each(15),
    family="normalize",
    rtol=1e-5,
    attrs={
        "alpha": Attr("float", 1e-4),
        "beta": Attr("float", 0.75),
        "bias": Attr("float", 1.0),
        "size": Attr("int", least=1),
        "layout": LAYOUT,
    },
    layout_inputs=(0,),
    samples=lambda rng: [
        Sample((draw(rng, 2, 3, 4, 9),), {"size": 5, "alpha": 0.1}),
        Sample((draw(rng, 1, 7, 3, 2),), {"size": 3, "alpha": 0.1, "layout": "NCHW"}),
        Sample((draw(rng, 1, 2, 3, 5),), {"size": 3, "alpha": 0.3, "beta": 0.5, "bias": 2.0}),
    ],
    dtypes=(FLOATING,),
)


def _infer_mean_variance(x: Value, *, axes: tuple[int, ...]) -> Types:
    axes_of(axes, len(x.shape))
    return same_type(x)


def _mean_variance(x: Array, *, axes: tuple[int, ...]) -> Array:
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=axes, keepdims=True)
    spread = np.sqrt(np.square(centred).mean(axis=axes, keepdims=True))
    return np.asarray(centred / (spread + 1e-9)).astype(x.dtype)


define(
    "mean_variance_normalization",
    "x",
    "y = (x - mean) / standard deviation over `axes`. Source: ONNX, opset 13",
    _infer_mean_variance,
    _mean_variance,
    attrs={"axes": Attr("ints", (0, 2, 3))},
    axes=Axes("axes", "normalises"),
    flops=flops_each(6),
    family="normalize",
    rtol=1e-5,
    dtypes=(FLOATING,),
    samples=lambda rng: [
        Sample((draw(rng, 2, 3, 4, 5),)),
        Sample((draw(rng, 2, 3, 4),), {"axes": (1, 2)}),
    ],
)
