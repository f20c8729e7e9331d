"""Convert ONNX's integer ops.

A QLinear op becomes its definition: dequantize, the float op, quantize. A pass then folds these
into one op on quantised types. An Integer op becomes the same op on int32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from trireme.converters.onnx.scope import NodeUse
from trireme.converters.onnx.window import conv_attrs

Rule = Callable[[NodeUse], Sequence[int | None]]


def real(use: NodeUse, first: int, axis: int = 0) -> int:
    """Return the real numbers of the quantised input at `first`, its scale and zero point after."""
    return _real(use, use.need(first), use.need(first + 1), use.input(first + 2), axis)


def _real(use: NodeUse, x: int, scale: int, zero: int | None, axis: int) -> int:
    types = use.scope.builder.type
    if types(scale).shape == (1,) and types(x).shape[axis : axis + 1] != (1,):
        scale, zero = _scalar(use, scale), None if zero is None else _scalar(use, zero)
    if len(types(scale).shape) > 1:
        wide = use.add("cast", x, to=types(scale).dtype)
        if zero is not None:
            wide = use.add("sub", wide, use.add("cast", zero, to=types(scale).dtype))
        return use.add("mul", wide, scale)
    axis = axis % max(len(types(x).shape), 1)
    return use.add("dequantize_linear", x, scale, zero, axis=axis)


def _scalar(use: NodeUse, value: int) -> int:
    return use.add("reshape", value, use.constant(np.zeros(0, np.int64)))


def stored(use: NodeUse, y: int, first: int) -> Sequence[int]:
    """Return y quantised by the scale and zero point at inputs `first` and after."""
    scale, zero = use.need(first), use.input(first + 1)
    if use.scope.builder.type(scale).shape == (1,):
        scale, zero = _scalar(use, scale), None if zero is None else _scalar(use, zero)
    return (_note(use, use.add("quantize_linear", y, scale, zero), scale, zero),)


def _note(use: NodeUse, y: int, scale: int, zero: int | None) -> int:
    if zero is not None:
        use.scope.stored[y] = (scale, zero)
    return y


def noting(rule: Rule) -> Rule:
    """Return the rule of QuantizeLinear that records its output's scale and zero point."""

    def wrapped(use: NodeUse) -> Sequence[int | None]:
        made = rule(use)
        if made[0] is not None and use.type(1).shape == ():
            _note(use, made[0], use.need(1), use.input(2))
        return made

    return wrapped


def on_stored(rule: Rule) -> Rule:
    """Return the rule of an op that moves or selects elements, for quantised integers too.

    The rule puts the op between dequantize and quantize of one scale. That changes no integer, and
    the pass that folds such pairs finds it.
    """

    def wrapped(use: NodeUse) -> Sequence[int | None]:
        place = use.scope.stored.get(use.need(0))
        value = _padding(use, *place) if use.op == "Pad" and place else None
        if place is None or len(use.outputs) != 1 or (use.op == "Pad" and value is None):
            return rule(use)
        use.inputs[0] = use.add("dequantize_linear", use.need(0), *place)
        if value is not None:
            use.set_input(2, value)
        (y,) = rule(use)
        return (_note(use, use.add("quantize_linear", y, *place), *place),)

    return wrapped


def _padding(use: NodeUse, scale: int, zero: int) -> int | None:
    """Return the fill value of stored integers as a real constant; None when not constant."""
    step, offset = (use.scope.builder.values[i].data for i in (scale, zero))
    value = use.array(2)
    if step is None or offset is None or (value is None and use.input(2) is not None):
        return None
    units = (0 if value is None else int(value.reshape(-1)[0])) - int(offset)
    return use.constant(np.asarray(units * step, step.dtype).reshape(()))


def qlinear_conv(use: NodeUse) -> Sequence[int]:
    """QLinearConv(x, x scale, x zero, w, w scale, w zero, y scale, y zero, bias?)."""
    weight = use.need(3)
    x, w = real(use, 0), real(use, 3)
    bias = use.input(8)
    if bias is not None:
        scale = use.add("mul", use.need(1), use.need(4))
        bias = _real(use, bias, scale, None, 0)
    attrs = conv_attrs(use, 0, use.scope.builder.type(weight).shape)
    return stored(use, use.add("conv", x, w, bias, **attrs), 6)


def qlinear_matmul(use: NodeUse) -> Sequence[int]:
    """QLinearMatMul(a, a scale, a zero, b, b scale, b zero, y scale, y zero)."""
    a, b = real(use, 0, -2), real(use, 3, -1)
    return stored(use, use.add("matmul", a, b), 6)


def qgemm(use: NodeUse) -> Sequence[int]:
    """QGemm(a, a scale, a zero, b, b scale, b zero, c?, y scale?, y zero?), c of int32."""
    columns = 0 if use.attrs.get("transB") else 1
    a, b, c = real(use, 0), real(use, 3, columns), use.input(6)
    alpha = use.attrs.get("alpha", 1.0)
    if c is not None:
        scale = use.add("mul", use.need(1), use.need(4))
        if alpha != 1:
            scale = use.add("mul", scale, use.constant(alpha, "float32"))
        c = _real(use, c, scale, None, -1)
    flags = {f"trans_{name.lower()}": use.attrs.get(f"trans{name}", 0) for name in "AB"}
    y = use.add("gemm", a, b, c, alpha=alpha, **flags)
    return (y,) if use.input(7) is None else stored(use, y, 7)


def on_real(op: str, inputs: int, **attrs: float) -> Rule:
    """Return the rule of a QLinear op that takes (x, scale, zero) for each input, then y's."""

    def rule(use: NodeUse) -> Sequence[int]:
        operands = [real(use, 3 * i) for i in range(inputs)]
        given = {key: use.attrs.get(key, default) for key, default in attrs.items()}
        return stored(use, use.add(op, *operands, **given), 3 * inputs)

    return rule


def qlinear_concat(use: NodeUse) -> Sequence[int]:
    """QLinearConcat(y scale, y zero, (x, scale, zero) ...)."""
    parts = [real(use, i) for i in range(2, len(use.inputs), 3)]
    return stored(use, use.add("concat", *parts, axis=use.attrs["axis"]), 0)


def qlinear_global_pool(use: NodeUse) -> Sequence[int]:
    """QLinearGlobalAveragePool, of NCHW or (channels_last) NHWC."""
    rank = len(use.type().shape)
    axes = range(1, rank - 1) if use.attrs.get("channels_last") else range(2, rank)
    x = real(use, 0)
    y = use.add("reduce_mean", x, use.constant(axes, "int64"), keepdims=1, noop_with_empty_axes=1)
    return stored(use, y, 3)


def whole(
    use: NodeUse, position: int, zero_position: int, column: bool = False, dtype: str = "int32"
) -> int:
    """Return an integer input less its zero point in a dtype; a `column` has one a row."""
    x = use.add("cast", use.need(position), to=dtype)
    zero = use.input(zero_position)
    if zero is None:
        return x
    zero = use.add("cast", zero, to=dtype)
    if column and len(use.scope.builder.type(zero).shape) == 1:
        zero = use.add("unsqueeze", zero, use.constant([1], "int64"))
    return use.add("sub", x, zero)


def conv_integer(use: NodeUse) -> Sequence[int]:
    """ConvInteger(x, w, x zero?, w zero?): a convolution of int32."""
    return integer_conv(use, conv_attrs(use, 0, use.type(1).shape))


def integer_conv(use: NodeUse, attrs: Mapping[str, Any]) -> Sequence[int]:
    """Return ConvInteger as a convolution of int32 with these attributes."""
    shape = use.type(1).shape
    x, w = whole(use, 0, 2), use.add("cast", use.need(1), to="int32")
    zero = use.input(3)
    if zero is not None:
        zero = use.add("cast", zero, to="int32")
        if len(use.scope.builder.type(zero).shape) == 1:
            ends = use.constant(range(1, len(shape)), "int64")
            zero = use.add("unsqueeze", zero, ends)
        w = use.add("sub", w, zero)
    return (use.add("conv", x, w, **attrs),)


def matmul_integer(use: NodeUse) -> Sequence[int]:
    """MatMulInteger(a, b, a zero?, b zero?): a product of int32, a's zero points one a row."""
    return (use.add("matmul", whole(use, 0, 2, True), whole(use, 1, 3)),)
