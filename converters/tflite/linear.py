"""TensorFlow Lite operators with weights: convolutions and fully connected; explicit padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tflite

from trireme.converters.tflite.dynamic_range import dynamic_range
from trireme.converters.tflite.use import Converter, OperatorUse
from trireme.ir.dims import add, multiply, subtract
from trireme.ir.graph import Dim, Quant
from trireme.support.dtypes import Array
from trireme.support.errors import ModelFileError


def padding(
    use: OperatorUse,
    sizes: Sequence[Dim],
    kernel: list[int],
    strides: list[int],
    dilations: list[int],
) -> tuple[int, ...]:
    """Return explicit pads (top, left, bottom, right) of SAME or VALID; the odd one comes last.

    Errors: ConvertError, for SAME with a stride where the size is open
    """
    if not _is_same(use, kernel, strides, dilations):
        return (0,) * (2 * len(sizes))
    before, after = [], []
    for size, window, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        reach = (window - 1) * dilation + 1
        if isinstance(size, int):
            total = max((-(-size // stride) - 1) * stride + reach - size, 0)
        elif stride == 1:
            total = reach - 1
        else:
            raise use.fail(f"SAME padding with stride {stride} depends on {size}, which is open")
        before.append(total // 2)
        after.append(total - total // 2)
    return (*before, *after)


def _is_same(use: OperatorUse, kernel: list[int], strides: list[int], dilations: list[int]) -> bool:
    """Whether a window, which must be possible, has SAME padding."""
    kind = use.option("Padding")
    if kind not in (tflite.Padding.SAME, tflite.Padding.VALID):
        raise ModelFileError(f"{use.source}: padding is {kind}")
    if min(strides) < 1 or min(kernel) < 1 or min(dilations) < 1:
        raise ModelFileError(f"{use.source}: kernel {kernel}, strides {strides}, {dilations=}")
    return bool(kind == tflite.Padding.SAME)


def padded(
    use: OperatorUse,
    sizes: Sequence[Dim],
    kernel: list[int],
    strides: list[int],
    dilations: list[int],
    fill: Any = None,
    x: int | None = None,
) -> tuple[int, tuple[int, ...]]:
    """Return input 0, or x of the same sizes, and the explicit pads that a window takes of it.

    Where an open size decides the pads of SAME, the graph computes them from the shape of the
    input and pads the input, so every run has its own. The window takes no pads then.

    fill: what the input is padded with, None for 0 (a quantised value's zero point)
    """
    x = use.value(0) if x is None else x
    windows = list(zip(sizes, kernel, strides, dilations, strict=True))
    is_open = any(isinstance(size, str) and stride > 1 for size, _, stride, _ in windows)
    if not is_open or not _is_same(use, kernel, strides, dilations):
        return x, padding(use, sizes, kernel, strides, dilations)
    before, after = [], []
    for axis, (_, side, stride, dilation) in enumerate(windows):
        total = _same_total(use, x, axis + 1, (side - 1) * dilation + 1, stride)
        before.append(use.add("div", total, use.int_constant([2])))
        after.append(use.add("sub", total, before[-1]))
    ends = use.add("concat", *before, *after, axis=0)
    quant = use.quant(0)
    value = None
    if fill is not None:
        value = use.builder.constant("least", np.asarray(fill, use.type(0).dtype), quant)
    axes = use.int_constant(range(1, 1 + len(kernel)))
    x = use.add("pad", x, ends, value, axes, mode="constant", quant=quant)
    return x, (0,) * (2 * len(sizes))


def _same_total(use: OperatorUse, x: int, axis: int, reach: int, stride: int) -> int:
    """Return the padding of an axis, which the graph computes from the shape of x.

    It is max((ceil(n / s) - 1) s + r - n, 0) of n elements, a stride s and a window's reach r.
    """
    if reach == 1:
        return use.int_constant([0])
    if stride == 1:
        return use.int_constant([reach - 1])
    size = use.add("shape", x, start=axis, end=axis + 1)
    one, step = use.int_constant([1]), use.int_constant([stride])
    before = use.add("mul", use.add("div", use.add("sub", size, one), step), step)
    total = use.add("sub", use.add("add", before, use.int_constant([reach])), size)
    return total if reach >= stride else use.add("max", total, use.int_constant([0]))


def spatial(use: OperatorUse, position: int) -> list[Dim]:
    """Return the dimensions of an NHWC input between the first and the last."""
    dims = use.type(position).shape
    if len(dims) != 4 or 0 in dims:
        raise ModelFileError(f"{use.source}: input {position} has shape {list(dims)}")
    return list(dims[1:-1])


def kernel_sizes(use: OperatorUse) -> list[int]:
    """Return the height and width of a convolution's weights, which are input 1."""
    use.dims(1)
    return [int(size) for size in spatial(use, 1)]


def channels(use: OperatorUse) -> int:
    """Return the last dimension of input 0.

    Errors: ConvertError, if it is open
    """
    count = use.type(0).shape[-1]
    if not isinstance(count, int):
        raise use.fail(f"the channels of input 0 {use.type(0)} are not known")
    return count


def strides(use: OperatorUse) -> list[int]:
    """Return (height, width) strides."""
    return [use.option("StrideH"), use.option("StrideW")]


def symmetric(use: OperatorUse) -> Quant | None:
    """Return the quantisation of a convolution's weights; int8 has no zero point.

    Errors: ConvertError, where int8 has a zero point. LiteRT refuses such a CONV_2D. For
        DEPTHWISE_CONV_2D its fast kernels refuse, and the others read the zero point as 0, as all
        do for TRANSPOSE_CONV.
    Source: TensorFlow Lite 8-bit quantization specification
    """
    quant = use.quant(1)
    if (
        quant is not None
        and any(quant.zero_points)
        and use.builder.type(use.value(1)).dtype == "int8"
    ):
        point = next(point for point in quant.zero_points if point)
        raise use.fail(f"int8 weights with zero point {point}, expected 0")
    return quant


def linear(
    use: OperatorUse,
    op: str,
    x: int,
    data: Array,
    quant: Quant | None,
    *,
    axes: list[int],
    **attrs: Any,
) -> None:
    """Add the node of an operator with constant weights, or its dynamic-range form on float inputs.

    data, quant: the weights, in the form of `op`
    axes: the input's axes that share a range in the dynamic-range form
    """
    if quant is None or use.builder.type(x).quant is not None:
        weights = use.builder.constant(use.tensor(1).name, np.ascontiguousarray(data), quant)
        use.done(op, x, weights, use.optional(2), activation=use.activation(), **attrs)
        return
    asymmetric = use.option("AsymmetricQuantizeInputs", False) if op != "conv" else quant.axis == 0
    dynamic_range(
        use,
        op,
        x,
        data,
        quant,
        use.optional(2),
        axes=axes,
        asymmetric=asymmetric,
        activation=use.activation(),
        **attrs,
    )


def conv(use: OperatorUse) -> None:
    """CONV_2D: the weights are [O,KH,KW,C/groups] already."""
    quant = symmetric(use)
    sizes, window = spatial(use, 0), kernel_sizes(use)
    dilations = [use.option("DilationHFactor", 1), use.option("DilationWFactor", 1)]
    x, pads = padded(use, sizes, window, strides(use), dilations)
    attrs = {
        "strides": strides(use),
        "dilations": dilations,
        "layout": "NHWC",
        "pads": pads,
        "groups": max(channels(use) // use.dims(1)[-1], 1),
    }
    data = use.builder.values[use.value(1)].data
    if data is None:
        activation = use.activation()
        use.done("conv", x, use.value(1), use.optional(2), activation=activation, **attrs)
    else:
        linear(use, "conv", x, data, quant, axes=[1, 2, 3], **attrs)


def depthwise(use: OperatorUse) -> None:
    """DEPTHWISE_CONV_2D: weights [1,KH,KW,C*M] become [C*M,KH,KW,1] of a conv with C groups."""
    sizes, window = spatial(use, 0), kernel_sizes(use)
    dilations = [use.option("DilationHFactor", 1), use.option("DilationWFactor", 1)]
    data, quant = use.constant(1), symmetric(use)
    if data.shape[0] != 1:
        raise ModelFileError(f"{use.source}: depthwise weights have shape {list(data.shape)}")
    if quant is not None and quant.axis is not None:
        quant = Quant(quant.scales, quant.zero_points, 0)
    x, pads = padded(use, sizes, window, strides(use), dilations)
    linear(
        use,
        "conv",
        x,
        data.transpose(3, 1, 2, 0),
        quant,
        axes=[1, 2, 3],
        strides=strides(use),
        dilations=dilations,
        layout="NHWC",
        pads=pads,
        groups=channels(use),
    )


def transpose_conv(use: OperatorUse) -> None:
    """TRANSPOSE_CONV (output_shape, weights [O,KH,KW,C], x, bias?): pads from the output's size."""
    target, window, steps = use.numbers(0), kernel_sizes(use), strides(use)
    if len(target) != 4 or any(dim == 0 for dim in target) or min(steps) < 1:
        raise ModelFileError(f"{use.source}: output shape {list(target)}, strides {steps}")
    _is_same(use, window, steps, [1, 1])
    transposed(use, 2, target[1:3], steps)


def transposed(use: OperatorUse, position: int, target: Sequence[Dim], steps: list[int]) -> None:
    """Add the node of a transposed convolution whose pads follow from the output's size.

    The weights [O,KH,KW,C] are input 1, x is the input at `position`, and the bias the last one.
    target, steps: (height, width) of the output, and of the strides
    """
    sizes, window = spatial(use, position), kernel_sizes(use)
    totals = [
        _transposed_total(use, *one) for one in zip(sizes, steps, window, target, strict=True)
    ]
    before = [max(total, 0) // 2 for total in totals]
    after = [max(total, 0) - first for total, first in zip(totals, before, strict=True)]
    data, quant = use.constant(1), symmetric(use)
    if quant is not None and use.quant(position) is None:
        raise use.fail("int8 weights under a float input are not supported")
    if quant is not None and quant.axis is not None:
        quant = Quant(quant.scales, quant.zero_points, 3)
    turned = use.builder.constant(
        use.tensor(1).name, np.ascontiguousarray(data.transpose(3, 1, 2, 0)), quant
    )
    use.done(
        "conv_transpose",
        use.value(position),
        turned,
        use.optional(max(position, 1) + 1),
        strides=steps,
        pads=(*before, *after),
        dilations=(1, 1),
        layout="NHWC",
        activation=use.activation(),
        output_padding=[max(-total, 0) for total in totals],
    )


def _transposed_total(use: OperatorUse, size: Dim, step: int, reach: int, out: Dim) -> int:
    """Return the padding that cuts a transposed convolution of (size - 1) step + reach to `out`.

    Errors: ConvertError, if it depends on an open size
    """
    whole = add(multiply(subtract(size, 1), step), reach)
    total = subtract(whole, out)
    if not isinstance(total, int):
        raise use.fail(f"the padding from {whole} to {out} elements is open")
    return total


def _spatial_3d(use: OperatorUse, position: int, first: int) -> list[int]:
    """Return the three dimensions of an input of rank 5 from `first` on."""
    dims = use.dims(position)
    if len(dims) != 5 or 0 in dims:
        raise ModelFileError(f"{use.source}: input {position} has shape {list(dims)}")
    return list(dims[first : first + 3])


def _steps_3d(use: OperatorUse) -> tuple[list[int], list[int]]:
    """Return (depth, height, width) strides and dilations."""
    steps = [use.option(f"Stride{axis}") for axis in "DHW"]
    return steps, [use.option(f"Dilation{axis}Factor", 1) for axis in "DHW"]


def conv_3d(use: OperatorUse) -> None:
    """CONV_3D: weights [KD,KH,KW,C,O] become [O,KD,KH,KW,C]."""
    sizes, window, data = _spatial_3d(use, 0, 1), _spatial_3d(use, 1, 0), use.constant(1)
    steps, dilations = _steps_3d(use)
    weights = np.ascontiguousarray(data.transpose(4, 0, 1, 2, 3))
    use.done(
        "conv",
        use.value(0),
        use.builder.constant(use.tensor(1).name, weights),
        use.optional(2),
        strides=steps,
        dilations=dilations,
        layout="NHWC",
        pads=padding(use, sizes, window, steps, dilations),
        activation=use.activation(),
    )


def conv_3d_transpose(use: OperatorUse) -> None:
    """CONV_3D_TRANSPOSE (output_shape, weights [KD,KH,KW,O,C], x, bias?)."""
    target, window = use.ints(0), _spatial_3d(use, 1, 0)
    sizes, (steps, dilations) = _spatial_3d(use, 2, 1), _steps_3d(use)
    if len(target) != 5 or min(target) < 1 or min(steps) < 1:
        raise ModelFileError(f"{use.source}: output shape {target}, strides {steps}")
    padding(use, sizes, window, steps, dilations)
    totals = [
        (size - 1) * step + (reach - 1) * dilation + 1 - out
        for size, step, reach, dilation, out in zip(
            sizes, steps, window, dilations, target[1:4], strict=True
        )
    ]
    before = [max(total, 0) // 2 for total in totals]
    after = [max(total, 0) - first for total, first in zip(totals, before, strict=True)]
    weights = np.ascontiguousarray(use.constant(1).transpose(4, 0, 1, 2, 3))
    use.done(
        "conv_transpose",
        use.value(2),
        use.builder.constant(use.tensor(1).name, weights),
        use.optional(3),
        strides=steps,
        pads=(*before, *after),
        dilations=dilations,
        layout="NHWC",
        activation=use.activation(),
        output_padding=[max(-total, 0) for total in totals],
    )


def fully_connected(use: OperatorUse) -> None:
    """FULLY_CONNECTED: the input is flattened to the weights' columns where it has others."""
    if use.option("WeightsFormat") != tflite.FullyConnectedOptionsWeightsFormat.DEFAULT:
        raise use.fail("shuffled weights are not supported")
    x, columns = use.value(0), use.dims(1)[-1]
    type, rows = use.type(0), -1
    keep = bool(use.option("KeepNumDims", False))
    if type.shape[-1:] != (columns,) or (len(type.shape) != 2 and not keep):
        if type.is_static:
            if columns < 1 or type.elements % columns:
                raise ModelFileError(f"{use.source}: {type.elements} elements in rows of {columns}")
            rows = type.elements // columns
        shape = use.int_constant([rows, columns])
        x = use.add("reshape", x, shape, quant=use.quant(0))
    data = use.builder.values[use.value(1)].data
    if data is None:
        activation = use.activation()
        use.done("fully_connected", x, use.value(1), use.optional(2), activation=activation)
    else:
        linear(use, "fully_connected", x, data, use.quant(1), axes=[-1])


LINEAR: dict[str, Converter] = {
    "CONV_2D": conv,
    "CONV_3D": conv_3d,
    "CONV_3D_TRANSPOSE": conv_3d_transpose,
    "DEPTHWISE_CONV_2D": depthwise,
    "FULLY_CONNECTED": fully_connected,
    "TRANSPOSE_CONV": transpose_conv,
}
