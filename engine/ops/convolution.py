"""Convolutions of any spatial rank: conv and conv_transpose, in either layout.

Both are sums over the kernel's positions of a shifted input times that position's weights, in
double precision, which is exact for 8-bit integers too. A depthwise conv has groups == C.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator

import numpy as np

from trireme.ir.dtype_rules import BIAS, WEIGHT, Like
from trireme.ir.graph import UNKNOWN, Dim, Value
from trireme.ir.op import Attr, Call, OpDef, Sample, define
from trireme.ops.activation import ACTIVATION, ACTIVATIONS, activate
from trireme.ops.quantized import form
from trireme.ops.quantized_samples import with_quantized
from trireme.ops.shapes import (
    Shape,
    Types,
    expect,
    known_dims,
    one,
    spatial_attrs,
    windows,
)
from trireme.support.dtypes import REALS, Array
from trireme.support.errors import ShapeError

LAYOUT = Attr("str", "NHWC", ("NHWC", "NCHW"))
Ints = tuple[int, ...]
Index = tuple[slice | int, ...]


def spatial(shape: Shape, layout: str) -> Shape:
    """Return the spatial dimensions of an image or weight shape."""
    return shape[1:-1] if layout == "NHWC" else shape[2:]


def channels(shape: Shape, layout: str) -> Dim:
    """Return the channel dimension of an image or weight shape."""
    return shape[-1] if layout == "NHWC" else shape[1]


def image_shape(batch: Dim, space: Shape, depth: Dim, layout: str) -> Shape:
    """Return an image's shape in a layout."""
    return (batch, *space, depth) if layout == "NHWC" else (batch, depth, *space)


def channels_last(x: Array, layout: str) -> Array:
    """Return an image or weight array with its channels last."""
    return x if layout == "NHWC" else np.moveaxis(x, 1, -1)


def from_channels_last(y: Array, layout: str) -> Array:
    """Return an image with its channels last in a layout."""
    return y if layout == "NHWC" else np.ascontiguousarray(np.moveaxis(y, -1, 1))


def _placed(
    x: Array, strides: Ints, pads: Ints, dilations: Ints, kernel: Ints
) -> Iterator[tuple[Ints, Array]]:
    """Yield each kernel position with the part of x [N,*S,C] that it meets, [N,*OS,C]."""
    rank = len(kernel)
    padded = np.pad(x, [(0, 0), *zip(pads[:rank], pads[rank:], strict=True), (0, 0)])
    counts = [
        (size - dilation * (k - 1) - 1) // stride + 1
        for size, k, stride, dilation in zip(
            padded.shape[1:-1], kernel, strides, dilations, strict=True
        )
    ]
    for position in itertools.product(*map(range, kernel)):
        starts = [p * dilation for p, dilation in zip(position, dilations, strict=True)]
        cuts = tuple(
            slice(start, start + (count - 1) * stride + 1, stride)
            for start, count, stride in zip(starts, counts, strides, strict=True)
        )
        yield position, padded[(slice(None), *cuts)]


def grouped_product(x: Array, w: Array, groups: int) -> Array:
    """Return x [...,C] times w [O,C/groups], each group of channels with its own rows of w."""
    if groups == 1:
        return np.asarray(x @ w.T)
    depth, each = w.shape[0] // groups, w.shape[1]
    split, rows = x.reshape(*x.shape[:-1], groups, each), w.reshape(groups, depth, each)
    if each == 1:
        return np.asarray(split * rows[:, :, 0]).reshape(*x.shape[:-1], -1)
    front = np.moveaxis(split, -2, 0).reshape(groups, -1, each)
    out = np.moveaxis(front @ rows.transpose(0, 2, 1), 0, 1)
    return out.reshape(*x.shape[:-1], -1)


def conv_sum(
    x: Array, w: Array, strides: Ints, pads: Ints, dilations: Ints, groups: int, layout: str
) -> Array:
    """Return the cross-correlation of x with w in double precision, in the same layout.

    Exact for integers as long as sums stay under 2^53. Shapes as for conv.
    """
    x, w = channels_last(x, layout), channels_last(w, layout)
    x, w = x.astype(np.float64), w.astype(np.float64)
    total: Array | None = None
    for position, part in _placed(x, strides, pads, dilations, w.shape[1:-1]):
        index: Index = (slice(None), *position)
        product = grouped_product(part, w[index], groups)
        total = product if total is None else np.add(total, product, out=total)
    if total is None:
        raise ShapeError(f"weight {list(w.shape)} has an empty kernel")
    return from_channels_last(total, layout)


def _with_bias(y: Array, bias: Array | None, layout: str) -> Array:
    if bias is None:
        return y
    ones = (1,) * (y.ndim - 2)
    return y + bias.reshape((-1,) if layout == "NHWC" else (-1, *ones))


def _conv(
    x: Array,
    w: Array,
    bias: Array | None = None,
    residual: Array | None = None,
    *,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    groups: int,
    layout: str,
    activation: str,
) -> Array:
    y = conv_sum(x, w, strides, pads, dilations, groups, layout)
    y = _with_bias(y, bias, layout)
    if residual is not None:
        y = y + residual
    return activate(activation, y.astype(x.dtype))


def _check_parts(x: Value, w: Value, layout: str, groups: int, **lists: Ints) -> int:
    """Return the spatial rank after checking ranks, attribute lists and groups."""
    rank = len(x.shape) - 2
    if rank < 1 or len(w.shape) != rank + 2:
        raise ShapeError(f"x has rank {rank + 2} and w rank {len(w.shape)}, expected 3 or more")
    spatial_attrs(rank, **lists)
    if groups < 1:
        raise ShapeError(f"groups is {groups}, expected 1 or more")
    return rank


def _infer_conv(
    x: Value,
    w: Value,
    bias: Value | None = None,
    residual: Value | None = None,
    *,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    groups: int,
    layout: str,
    activation: str,
) -> Types:
    rank = _check_parts(x, w, layout, groups, strides=strides, pads=pads, dilations=dilations)
    depth, each = w.shape[0], channels(w.shape, layout)
    if isinstance(depth, int) and depth % groups:
        raise ShapeError(f"{depth} output channels do not divide into {groups} groups")
    if isinstance(each, int):
        order = "OHWI" if layout == "NHWC" else "OIHW"
        expect(
            "the input's channel count",
            channels(x.shape, layout),
            each * groups,
            f"weight {each} x groups {groups}",
            fix=f"weights are {order} for layout {layout}; another order gives this",
        )
    kernel = known_dims("the kernel", spatial(w.shape, layout))
    if not all(kernel):
        raise ShapeError(f"w is {w.type}: the kernel is empty")
    space = tuple(
        windows(size, kernel[i], strides[i], (pads[i], pads[i + rank]), dilations[i])
        for i, size in enumerate(spatial(x.shape, layout))
    )
    shape = image_shape(x.shape[0], space, depth, layout)
    if bias is not None:
        if len(bias.shape) != 1:
            raise ShapeError(f"bias is {bias.type}, expected one dimension")
        expect("the bias' length", bias.shape[0], depth, "output channels")
    if residual is not None:
        if len(residual.shape) != len(shape):
            raise ShapeError(f"residual is {residual.type}, expected rank {len(shape)}")
        for axis, dim in enumerate(shape):
            expect(f"the residual's dimension {axis}", residual.shape[axis], dim)
    return one(shape, x.dtype)


def conv_flops(call: Call) -> int:
    """Return the multiply-adds of a conv, times two."""
    each = math.prod(call.type(1).dims[1:])
    return 2 * call.outputs[0].elements * each


_WINDOW = {
    "strides": Attr("ints"),
    "pads": Attr("ints"),
    "dilations": Attr("ints"),
    "groups": Attr("int", 1),
    "layout": LAYOUT,
}


def _conv_sample(
    rng: np.random.Generator,
    x: Ints,
    w: Ints,
    note: str,
    *,
    bias: bool = True,
    strides: Ints = (1, 1),
    pads: Ints = (0, 0, 0, 0),
    dilations: Ints = (1, 1),
    groups: int = 1,
    residual: Ints = (),
    activation: str = "",
    layout: str = "NHWC",
) -> Sample:
    def draw(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    inputs = [draw(*x), draw(*w), draw(w[0]) if bias else None]
    if residual:
        inputs.append(draw(*residual))
    attrs = {
        "strides": strides,
        "pads": pads,
        "dilations": dilations,
        "groups": groups,
        "layout": layout,
        "activation": activation,
    }
    return Sample(tuple(inputs), attrs, frozenset({1, 2}), note=note)


def conv_samples(rng: np.random.Generator) -> Iterable[Sample]:
    """Yield convs of every kind that devices meet: see the notes."""
    same, wide = (1, 1, 1, 1), (2, 2, 2, 2)
    yield _conv_sample(rng, (1, 6, 7, 5), (19, 1, 1, 5), "pointwise, odd channels")
    yield _conv_sample(rng, (1, 8, 8, 16), (32, 1, 1, 16), "pointwise", activation="relu6")
    yield _conv_sample(rng, (2, 9, 7, 3), (8, 3, 3, 3), "batch 2, same", pads=same)
    yield _conv_sample(
        rng,
        (1, 9, 8, 3),
        (17, 3, 3, 3),
        "stride 2, uneven pads",
        strides=(2, 2),
        pads=(0, 0, 1, 1),
        activation="relu",
    )
    yield _conv_sample(
        rng, (1, 11, 10, 4), (6, 3, 3, 4), "dilated", dilations=(2, 3), pads=(2, 3, 2, 3)
    )
    yield _conv_sample(
        rng, (1, 7, 7, 4), (3, 5, 1, 4), "5x1, strides 1,3, no bias", strides=(1, 3), bias=False
    )
    yield _conv_sample(rng, (1, 6, 6, 12), (9, 3, 3, 4), "3 groups", groups=3, pads=same)
    yield _conv_sample(rng, (1, 3, 3, 2), (4, 3, 3, 2), "one output pixel")
    yield _conv_sample(rng, (1, 4, 4, 2), (4, 5, 5, 2), "mostly padding", pads=wide)
    yield _conv_sample(
        rng, (2, 8, 7, 19), (19, 3, 3, 1), "depthwise", groups=19, pads=same, activation="relu6"
    )
    yield _conv_sample(
        rng, (1, 9, 9, 8), (8, 3, 3, 1), "depthwise, stride 2", groups=8, strides=(2, 2), pads=same
    )
    yield _conv_sample(
        rng,
        (1, 9, 9, 8),
        (8, 5, 5, 1),
        "depthwise 5x5, dilated",
        groups=8,
        dilations=(2, 2),
        pads=(4, 4, 4, 4),
    )
    yield _conv_sample(rng, (1, 5, 5, 6), (12, 3, 3, 1), "depth multiplier 2", groups=6)
    yield _conv_sample(
        rng,
        (1, 5, 6, 7),
        (5, 3, 3, 7),
        "residual",
        pads=same,
        residual=(1, 5, 6, 5),
        activation="relu",
    )
    for name in ACTIVATIONS:
        if name:
            yield _conv_sample(rng, (1, 4, 5, 3), (5, 1, 1, 3), name, activation=name)
    broken = _conv_sample(rng, (1, 5, 5, 3), (4, 3, 3, 3), "NaN and infinities", activation="relu")
    image = broken.inputs[0]
    if image is not None:
        image[0, 0, 0, 0], image[0, 4, 4, 1], image[0, 0, 4, 2] = np.nan, np.inf, -np.inf
    yield broken
    yield _conv_sample(
        rng, (1, 9, 3), (4, 3, 3), "one spatial axis", strides=(2,), pads=(1, 1), dilations=(1,)
    )
    yield _conv_sample(
        rng,
        (1, 4, 5, 3, 2),
        (3, 2, 3, 1, 2),
        "three spatial axes",
        strides=(1, 1, 2),
        pads=(0, 1, 0, 0, 1, 0),
        dilations=(1, 1, 1),
    )
    yield _conv_sample(rng, (1, 3, 7, 6), (4, 3, 3, 3), "NCHW", layout="NCHW", pads=same)
    yield _conv_sample(
        rng, (2, 6, 7, 5), (6, 1, 3, 3), "NCHW depthwise", layout="NCHW", pads=same, groups=6
    )


define(
    OpDef(
        "conv",
        "x w bias? residual?",
        "y = activation(cross-correlation of x with w + bias + residual). Shapes: NHWC: "
        "x [N,H,W,C], w [O,KH,KW,C/groups], y and residual [N,OH,OW,O]; NCHW: x [N,C,H,W], "
        "w [O,C/groups,KH,KW], y [N,O,OH,OW]; bias [O]; any spatial rank; depthwise when groups "
        "is C. Pads are (top, left, .., bottom, right, ..). Source: ONNX Conv-22",
        _infer_conv,
        _conv,
        attrs={**_WINDOW, "activation": ACTIVATION},
        flops=conv_flops,
        samples=with_quantized("conv", conv_samples),
        family="conv",
        rtol=1e-5,
        quantized=form("conv"),
        layout_inputs=(0, 1, 3),
        integer_form="linear",
        dtypes=(REALS, WEIGHT, BIAS, Like("x")),
    )
)


def _infer_conv_transpose(
    x: Value,
    w: Value,
    bias: Value | None = None,
    *,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    groups: int,
    output_padding: Ints | None,
    layout: str,
    activation: str,
) -> Types:
    extra = output_padding or (0,) * (len(x.shape) - 2)
    rank = _check_parts(
        x, w, layout, groups, strides=strides, pads=pads, dilations=dilations, output_padding=extra
    )
    depth = expect("the input's channel count", channels(x.shape, layout), w.shape[0], "weight")
    if isinstance(depth, int) and depth % groups:
        raise ShapeError(f"{depth} input channels do not divide into {groups} groups")
    kernel = known_dims("the kernel", spatial(w.shape, layout))
    space: list[Dim] = []
    for i, size in enumerate(spatial(x.shape, layout)):
        grown = dilations[i] * (kernel[i] - 1) + 1 + extra[i] - pads[i] - pads[i + rank]
        if isinstance(size, int):
            space.append(strides[i] * (size - 1) + grown)
        else:
            space.append(size if strides[i] == 1 and grown == 1 else UNKNOWN)
    if any(isinstance(dim, int) and dim < 1 for dim in space):
        raise ShapeError(f"the output would be {space} after cutting pads {pads}")
    each = channels(w.shape, layout)
    made: Dim = each * groups if isinstance(each, int) else UNKNOWN
    if bias is not None:
        expect("the bias' length", bias.shape[0], made, "output channels")
    return one(image_shape(x.shape[0], tuple(space), made, layout), x.dtype)


def _conv_transpose(
    x: Array,
    w: Array,
    bias: Array | None = None,
    *,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    groups: int,
    output_padding: Ints | None,
    layout: str,
    activation: str,
) -> Array:
    dtype = x.dtype
    x, w = channels_last(x, layout).astype(np.float64), channels_last(w, layout)
    kernel, rank = w.shape[1:-1], x.ndim - 2
    extra = output_padding or (0,) * rank
    sizes = [
        strides[i] * (x.shape[i + 1] - 1) + dilations[i] * (kernel[i] - 1) + 1 + extra[i]
        for i in range(rank)
    ]
    each = w.shape[-1]
    whole = np.zeros((x.shape[0], *sizes, each * groups))
    for position in itertools.product(*map(range, kernel)):
        index: Index = (slice(None), *position)
        part = w[index].astype(np.float64)  # [C, M/g]
        turned = part.reshape(groups, -1, each).transpose(0, 2, 1).reshape(groups * each, -1)
        cuts = tuple(
            slice(start, start + strides[i] * (x.shape[i + 1] - 1) + 1, strides[i])
            for i, start in enumerate(p * d for p, d in zip(position, dilations, strict=True))
        )
        whole[(slice(None), *cuts)] += grouped_product(x, turned, groups)
    crop = tuple(slice(pads[i], sizes[i] - pads[i + rank]) for i in range(rank))
    y = _with_bias(whole[(slice(None), *crop)], bias, "NHWC").astype(dtype)
    return activate(activation, from_channels_last(y, layout))


def _transpose_flops(call: Call) -> int:
    return 2 * call.type(0).elements * math.prod(call.type(1).dims[1:])


def _transpose_samples(rng: np.random.Generator) -> Iterable[Sample]:
    def sample(note: str, x: Ints, w: Ints, outputs: int, **attrs: object) -> Sample:
        draws = [rng.standard_normal(shape).astype(np.float32) for shape in (x, w, (outputs,))]
        full = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), **attrs}
        return Sample(tuple(draws), full, frozenset({1, 2}), note=note)

    yield sample("stride 1", (1, 4, 5, 3), (3, 3, 3, 7), 7)
    yield sample(
        "stride 2",
        (2, 4, 5, 3),
        (3, 3, 3, 5),
        5,
        strides=(2, 2),
        pads=(1, 1, 1, 1),
        output_padding=(1, 1),
    )
    yield sample("kernel 2, stride 2", (1, 3, 3, 8), (8, 2, 2, 19), 19, strides=(2, 2))
    yield sample("stride past the kernel", (1, 3, 4, 2), (2, 2, 1, 3), 3, strides=(3, 2))
    yield sample("groups", (1, 3, 4, 6), (6, 3, 3, 2), 6, groups=3, dilations=(2, 1))
    yield sample("NCHW", (1, 3, 4, 5), (3, 2, 3, 3), 2, strides=(2, 2), layout="NCHW")
    yield sample(
        "longer below",
        (1, 3, 4, 2),
        (2, 3, 3, 3),
        3,
        strides=(2, 3),
        output_padding=(1, 0),
        activation="relu",
    )


define(
    OpDef(
        "conv_transpose",
        "x w bias?",
        "y = the transpose (gradient) of conv: every input element adds its product with the "
        "kernel to the output. Shapes: NHWC: x [N,H,W,C], w [C,KH,KW,M/groups]; NCHW: "
        "x [N,C,H,W], w [C,M/groups,KH,KW]; bias [M]; OH = stride (H-1) + dilation (KH-1) + 1 + "
        "output_padding - pads. Source: ONNX ConvTranspose-22",
        _infer_conv_transpose,
        _conv_transpose,
        attrs={**_WINDOW, "output_padding": Attr("ints", None), "activation": ACTIVATION},
        flops=_transpose_flops,
        family="conv",
        rtol=1e-5,
        samples=with_quantized("conv_transpose", _transpose_samples),
        quantized=form("conv_transpose"),
        layout_inputs=(0, 1),
        integer_form="linear",
        dtypes=(REALS, WEIGHT, BIAS),
    )
)
