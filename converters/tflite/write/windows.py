"""Write convolutions; pads of a window that are neither SAME nor VALID come before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tflite

from trireme.converters.tflite.write.activations import FUSED, activate, fused
from trireme.converters.tflite.write.use import NodeWriter, WriteRule
from trireme.ir.dims import add
from trireme.ir.graph import Dim, Quant, TensorType

SAME, VALID = tflite.Padding.SAME, tflite.Padding.VALID


@dataclass(frozen=True)
class WrittenWindow:
    """A window over the axes between batch and channels.

    sizes: the input's sizes; pads: before and after, of each axis
    """

    sizes: tuple[Dim, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]

    @property
    def is_valid(self) -> bool:
        """Whether there are no pads."""
        return not any(map(any, self.pads))

    @property
    def is_same(self) -> bool:
        """Whether the pads are those of SAME: as many as keep ceil(size / stride) windows."""
        axes = zip(self.sizes, self.kernel, self.strides, self.dilations, self.pads, strict=True)
        for size, kernel, stride, dilation, pads in axes:
            reach = (kernel - 1) * dilation + 1
            if isinstance(size, int):
                total = max((-(-size // stride) - 1) * stride + reach - size, 0)
            elif stride == 1:
                total = reach - 1
            else:
                return False
            if pads != (total // 2, total - total // 2):
                return False
        return True


def window_of(use: NodeWriter, kernel: Sequence[int]) -> WrittenWindow:
    """Return the window of an NHWC node; `ceil_mode` becomes pads behind.

    Errors: ConvertError, for another layout
    """
    attrs = use.attrs
    if attrs["layout"] != "NHWC":
        raise use.error("TensorFlow Lite's images are NHWC, this one is NCHW")
    sizes, count = use.type().shape[1:-1], len(kernel)
    pads = [(attrs["pads"][i], attrs["pads"][i + count]) for i in range(count)]
    if attrs.get("ceil_mode"):
        pads = [_grown(use, i, sizes[i], kernel[i], pads[i]) for i in range(count)]
    return WrittenWindow(sizes, tuple(kernel), attrs["strides"], attrs["dilations"], tuple(pads))


def _grown(
    use: NodeWriter, axis: int, size: Dim, kernel: int, pads: tuple[int, int]
) -> tuple[int, int]:
    """Return the pads with which the last window, which may begin inside them, is whole."""
    out = use.output().shape[1 + axis]
    if not isinstance(size, int) or not isinstance(out, int):
        raise use.error("ceil_mode over an open size is not written")
    reach = (kernel - 1) * use.attrs["dilations"][axis] + 1
    need = (out - 1) * use.attrs["strides"][axis] + reach - size - pads[0]
    return pads[0], max(need, 0)


def padded(
    use: NodeWriter, x: int, window: WrittenWindow, fill: float | None = None
) -> tuple[int, int]:
    """Return (x, SAME or VALID); x is padded before where the window's pads are neither.

    fill: the border's stored value; None for 0, or for the zero point of a quantised x
    """
    if window.is_valid:
        return x, VALID
    if window.is_same:
        return x, SAME
    if min(map(min, window.pads)) < 0:
        raise use.error("negative pads are not written")
    type = use.tensors.type_of(x)
    pairs = [(0, 0), *window.pads, (0, 0)]
    shape = tuple(add(dim, sum(pair)) for dim, pair in zip(type.shape, pairs, strict=True))
    to = TensorType(shape, type.dtype, type.quant)
    if fill is None:
        return use.add("PAD", [x, use.ints(pairs)], to, "PadOptions"), VALID
    border = use.tensors.constant(np.array(fill, type.dtype), f"{use.name}_border", type.quant)
    inputs = [x, use.ints(pairs), border]
    return use.add("PADV2", inputs, to, "PadV2Options"), VALID


def steps_of(window: WrittenWindow) -> dict[str, int]:
    """Return the options of a window's strides."""
    return dict(zip(("StrideH", "StrideW"), window.strides, strict=True))


def _dilations(window: WrittenWindow) -> dict[str, int]:
    return dict(zip(("DilationHFactor", "DilationWFactor"), window.dilations, strict=True))


def bias_of(use: NodeWriter) -> int:
    """Return the tensor of a bias; a quantised product's has the scales of x times w.

    Where there is none it holds zeros: LiteRT's CONV_2D demands one.
    """
    value, x, w = use.value(2), use.type(0), use.type(1)
    if x.quant is None and value is not None:
        return use.x(2)
    count = use.output().shape[-1]
    if value is None and not isinstance(count, int):
        raise use.error(f"{count} channels are open, and without a bias")
    if x.quant is None:
        return use.array(np.zeros(int(count), np.float32), None, f"{use.name}_bias")
    dtype = np.int64 if x.dtype == "int16" else np.int32
    data = np.zeros(int(count), dtype) if value is None else value.data
    if w.quant is None or data is None or data.dtype != dtype:
        given = value.type if value is not None else "none"
        raise use.error(f"a bias of {given} beside {x} has no form in TensorFlow Lite")
    name = f"{use.name}_bias" if value is None else value.first_name
    scales = tuple(float(np.float32(x.quant.scale) * np.float32(s)) for s in w.quant.scales)
    axis = None if w.quant.axis is None else 0
    quant = Quant(scales, (0,) * len(scales), axis)
    return use.array(data, quant, name)


def is_hybrid(use: NodeWriter) -> bool:
    """Whether a product of floats has int8 weights, as hybrid.py makes them."""
    return use.type(0).quant is None and use.type(1).quant is not None


def product_types(use: NodeWriter) -> None:
    """Refuse types that no kernel of products takes."""
    if is_hybrid(use):
        return
    x, w, y = use.type(0), use.type(1), use.output()
    if len({one.quant is None for one in (x, w, y)}) > 1:
        raise use.error(f"{x} by {w} gives {y}: all or none must be quantised")
    use.check_dtype(0, "float32 qint8 quint8 qint16")
    if w.dtype != ("int8" if x.dtype == "int16" else x.dtype) or y.dtype != x.dtype:
        raise use.error(f"{x.dtype} by {w.dtype} gives {y.dtype}, one dtype is needed")
    if w.quant is not None and w.dtype == "int8" and any(w.quant.zero_points):
        raise use.error("int8 weights have a zero point, expected 0")
    if use.op.name != "conv_transpose" and use.value(3) is not None and x.quant is not None:
        raise use.error("a residual of quantised values is not written")


def conv(use: NodeWriter) -> None:
    """Write CONV_2D, DEPTHWISE_CONV_2D or CONV_3D; a residual is added before the activation."""
    product_types(use)
    rank = len(use.type(0).shape) - 2
    if rank == 3:
        _conv_3d(use)
    elif rank == 2:
        _finish(use, *_conv_2d(use, use.x(0), window_of(use, _kernel(use))))
    elif rank == 1:
        _conv_1d(use)
    else:
        raise use.error(f"TensorFlow Lite has no convolution over {rank} axes")


def _kernel(use: NodeWriter) -> tuple[int, ...]:
    return use.type(1).dims[1:-1]


Call = tuple[str, list[int], str, dict[str, Any]]


def _conv_2d(use: NodeWriter, x: int, window: WrittenWindow) -> Call:
    """Return the operator of a convolution: code, inputs, kind of options, options."""
    groups, channels = use.attrs["groups"], use.type(0).shape[-1]
    x, padding = padded(use, x, window)
    options = {"Padding": padding, **steps_of(window), **_dilations(window)}
    if groups > 1 and groups == channels:
        w = _weights(use, window, (3, 1, 2, 0), 3)
        options["DepthMultiplier"] = use.type(1).dims[0] // groups
        return "DEPTHWISE_CONV_2D", [x, w, bias_of(use)], "DepthwiseConv2DOptions", options
    w = _weights(use, window, (0, 1, 2, 3), 0)
    return "CONV_2D", [x, w, bias_of(use)], "Conv2DOptions", options


def _weights(use: NodeWriter, window: WrittenWindow, perm: tuple[int, ...], axis: int) -> int:
    """Return the weights [O,KH,KW,I] with their axes in another order, quantised along `axis`."""
    value, quant = use.given(1), use.type(1).quant
    shape = (value.type.dims[0], *window.kernel, value.type.dims[-1])
    if quant is not None and quant.axis is not None:
        quant = Quant(quant.scales, quant.zero_points, axis)
    if value.data is not None:
        data = np.transpose(value.data.reshape(shape), perm)
        return use.array(data, quant, value.first_name)
    w = use.x(1) if value.shape == shape else use.reshaped(use.x(1), shape)
    return w if perm == (0, 1, 2, 3) else use.transposed(w, perm)


def _finish(use: NodeWriter, code: str, inputs: list[int], kind: str, options: Any) -> None:
    """Add the operator of a product, its residual and its activation."""
    if use.value(3) is None:
        fused(use, code, inputs, kind, **options)
    else:
        product = use.add(code, inputs, None, kind, **options)
        fused(use, "ADD", [product, use.x(3)], "AddOptions")


def _conv_1d(use: NodeWriter) -> None:
    """Write a convolution over one axis as one over two, of which the second has one element."""
    flat, y = window_of(use, _kernel(use)), use.output()
    window = WrittenWindow(
        (*flat.sizes, 1),
        (*flat.kernel, 1),
        (*flat.strides, 1),
        (*flat.dilations, 1),
        (*flat.pads, (0, 0)),
    )
    n, length, c = use.type(0).shape
    wide = TensorType((y.shape[0], y.shape[1], 1, y.shape[2]), y.dtype, y.quant)
    x = use.reshaped(use.x(0), (n, length, 1, c))
    code, inputs, kind, options = _conv_2d(use, x, window)
    activation = use.attrs["activation"] or ""
    if use.is_quantised:
        from_option = _fused_option(use, activation)
        made = use.add(code, inputs, wide, kind, FusedActivationFunction=from_option, **options)
        use.same(use.reshaped(made, y.shape))
        return
    made = use.reshaped(use.add(code, inputs, wide, kind, **options), y.shape)
    if use.value(3) is not None:
        fused(use, "ADD", [made, use.x(3)], "AddOptions")
    else:
        activate(use, made, activation)


def _fused_option(use: NodeWriter, activation: str) -> int:
    if activation not in FUSED:
        raise use.error(f"activation {activation} is not fused into quantised values")
    return int(FUSED[activation])


def _conv_3d(use: NodeWriter) -> None:
    """Write CONV_3D: weights [KD,KH,KW,I,O]."""
    use.check_dtype(0, "float32")
    if use.attrs["groups"] != 1:
        raise use.error("TensorFlow Lite's CONV_3D has no groups")
    window = window_of(use, _kernel(use))
    x, padding = padded(use, use.x(0), window)
    data = use.constant(1, "the weights of CONV_3D")
    w = use.array(np.transpose(data, (1, 2, 3, 4, 0)), None, use.given(1).first_name)
    options: dict[str, Any] = {"Padding": padding}
    for axis, stride, dilation in zip("DHW", window.strides, window.dilations, strict=True):
        options |= {f"Stride{axis}": stride, f"Dilation{axis}Factor": dilation}
    _finish(use, "CONV_3D", [x, w, bias_of(use)], "Conv3DOptions", options)


def conv_transpose(use: NodeWriter) -> None:
    """Write TRANSPOSE_CONV (output shape, weights [O,KH,KW,C], x, bias).

    The operator takes its pads from the shape of its output, by SAME or VALID. Other pads are cut
    from the whole result.
    """
    product_types(use)
    attrs, x, y = use.attrs, use.type(0), use.output()
    if attrs["layout"] != "NHWC" or len(x.shape) != 4:
        raise use.error("TRANSPOSE_CONV takes images [N,H,W,C]")
    if attrs["groups"] != 1 or set(attrs["dilations"]) != {1}:
        raise use.error("TRANSPOSE_CONV has no groups and no dilations")
    if not x.is_static or not y.is_static:
        raise use.error("TRANSPOSE_CONV of an open shape is not written")
    data, quant = use.constant(1, "the weights of TRANSPOSE_CONV"), use.type(1).quant
    if quant is not None and quant.axis is not None:
        quant = Quant(quant.scales, quant.zero_points, 0)
    w = use.array(np.transpose(data, (3, 1, 2, 0)), quant, use.given(1).first_name)
    padding, out = _transposed_padding(use)
    steps = {"StrideH": attrs["strides"][0], "StrideW": attrs["strides"][1], "Padding": padding}
    shape = (y.dims[0], *out, y.dims[3])
    inputs = [use.ints(shape), w, use.x(0), bias_of(use)]
    if shape == y.dims:
        fused(use, "TRANSPOSE_CONV", inputs, "TransposeConvOptions", **steps)
        return
    option = _fused_option(use, attrs["activation"] or "") if use.is_quantised else 0
    whole = TensorType(shape, y.dtype, y.quant)
    made = use.add(
        "TRANSPOSE_CONV",
        inputs,
        whole,
        "TransposeConvOptions",
        FusedActivationFunction=option,
        **steps,
    )
    begin = [0, attrs["pads"][0], attrs["pads"][1], 0]
    cut = use.add("SLICE", [made, use.ints(begin), use.ints(y.dims)], None, "SliceOptions")
    activate(use, cut, "" if use.is_quantised else attrs["activation"] or "")


def _transposed_padding(use: NodeWriter) -> tuple[int, tuple[int, ...]]:
    """Return the padding and the size of the operator's output."""
    attrs, space, y = use.attrs, use.type(0).dims[1:3], use.output().dims[1:3]
    kernel = use.type(1).dims[1:3]
    axes = list(zip(space, y, kernel, attrs["strides"], attrs["pads"][:2], strict=True))
    if all(pad == 0 and out >= (n - 1) * s + k for n, out, k, s, pad in axes):
        return VALID, y
    totals = [max((-(-out // s) - 1) * s + k - out, 0) for _, out, k, s, _ in axes]
    fits = all(-(-out // s) == n for n, out, _, s, _ in axes)
    if fits and all(total // 2 == axis[4] for total, axis in zip(totals, axes, strict=True)):
        return SAME, y
    return VALID, tuple(max((n - 1) * s + k, pad + out) for n, out, k, s, pad in axes)


WINDOWS: dict[str, WriteRule] = {
    "conv": conv,
    "conv_transpose": conv_transpose,
}
"""The rules of convolutions."""
