"""conv_transpose: the gradient of conv with respect to its input, in either layout."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import numpy as np

from trireme.ir.dims import add, multiply
from trireme.ir.dtype_rules import BIAS, WEIGHT
from trireme.ir.graph import UNKNOWN, Dim, Value
from trireme.ir.op import Attr, Call, Sample, define
from trireme.ops import quantized
from trireme.ops.activation import ACTIVATION, activate
from trireme.ops.convolution import WINDOW, Index, Ints, check_parts, grouped_product, with_bias
from trireme.ops.layouts import channels, channels_last, from_channels_last, image_shape, spatial
from trireme.ops.quantized_samples import with_quantized
from trireme.ops.shapes import Types, expect, known_dims, one
from trireme.support.dtypes import REALS, Array
from trireme.support.errors import ShapeError


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
    rank = check_parts(
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
            space.append(add(multiply(strides[i], add(size, -1)), grown))
    if any(isinstance(dim, int) and dim < 1 for dim in space):
        raise ShapeError(f"the output would be {space} after cutting pads {pads}")
    each = channels(w.shape, layout)
    made: Dim = each * groups if isinstance(each, int) else UNKNOWN
    if bias is not None:
        if len(bias.shape) != 1:
            raise ShapeError(f"bias is {bias.type}, expected one dimension")
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
    y = with_bias(whole[(slice(None), *crop)], bias, "NHWC").astype(dtype)
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
    "conv_transpose",
    "x w bias?",
    "y = the transpose (gradient) of conv: every input element adds its product with the "
    "kernel to the output. Shapes: NHWC: x [N,H,W,C], w [C,KH,KW,M/groups]; NCHW: "
    "x [N,C,H,W], w [C,M/groups,KH,KW]; bias [M]; OH = stride (H-1) + dilation (KH-1) + 1 + "
    "output_padding - pads. Source: ONNX ConvTranspose-22",
    _infer_conv_transpose,
    _conv_transpose,
    attrs={**WINDOW, "output_padding": Attr("ints", None), "activation": ACTIVATION},
    flops=_transpose_flops,
    family="conv",
    rtol=1e-5,
    samples=with_quantized("conv_transpose", _transpose_samples),
    quantized=quantized.conv_transpose,
    layout_inputs=(0, 1),
    integer_form="linear",
    dtypes=(REALS, WEIGHT, BIAS),
)
