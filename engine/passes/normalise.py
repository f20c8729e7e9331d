"""Patterns of normalisation: layer norm, RMS norm and softmax written out in small ops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trireme.ir.graph import Node
from trireme.ir.op import has_op
from trireme.ir.rewriter import GraphRewriter, Rule
from trireme.passes.algebra import close, scalar
from trireme.support.dtypes import Array, numpy_dtype


def layer_norm(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """(x - mean x) / sqrt(mean (x - mean x)^2 + epsilon) -> layer_normalization(x, 1)."""
    found = _over_deviation(g, root)
    if found is None:
        return None
    centred, square_mean, epsilon, nodes = found
    centre = _centre(g, centred, root)
    spread = _mean_of_square(g, square_mean, root)
    if centre is None or spread is None:
        return None
    x, axis, centre_nodes = centre
    deviation, spread_axis, spread_nodes = spread
    again = (x, axis, centre_nodes) if deviation == centred else _centre(g, deviation, root)
    if again is None or again[:2] != (x, axis) or spread_axis != axis:
        return None
    scale = _ones(g, x, axis)
    if scale is None:
        return None
    attrs = {"axis": axis, "epsilon": epsilon}
    of = [*centre_nodes, *again[2], *spread_nodes, *nodes]
    return (g.add("layer_normalization", [x, scale], attrs, of),)


def rms_norm(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """x / sqrt(mean x^2 + epsilon) -> rms_normalization(x, 1)."""
    found = _over_deviation(g, root)
    if found is None or not has_op("rms_normalization"):
        return None
    x, square_mean, epsilon, nodes = found
    spread = _mean_of_square(g, square_mean, root)
    if spread is None or spread[0] != x:
        return None
    scale = _ones(g, x, spread[1])
    if scale is None:
        return None
    attrs = {"axis": spread[1], "epsilon": epsilon}
    return (g.add("rms_normalization", [x, scale], attrs, [*spread[2], *nodes]),)


def _over_deviation(g: GraphRewriter, root: Node) -> tuple[int, int, float, list[Node]] | None:
    """Return (d, v, epsilon, nodes) if the root is d / sqrt(v + epsilon), however written."""
    if root.attrs.get("activation") or g.is_quantized(root):
        return None
    if g.type(root.outputs[0]).dtype != "float32":
        return None
    a, b = root.used
    orders = [(a, b)] if root.op == "div" else [(a, b), (b, a)]
    for d, factor in orders:
        root_of = _square_root(g, factor, root, inverse=root.op == "mul")
        if root_of is None:
            continue
        shifted = g.made_by(root_of[0], root, "add")
        if shifted is None or shifted.attrs.get("activation"):
            continue
        for v, other in (shifted.used, shifted.used[::-1]):
            epsilon = scalar(g, other)
            if epsilon is not None and 0 <= epsilon < 1:
                return d, v, epsilon, [shifted, *root_of[1], root]
    return None


def _square_root(
    g: GraphRewriter, value: int, root: Node, inverse: bool
) -> tuple[int, list[Node]] | None:
    """Return (x, nodes) if the value is sqrt(x), or 1 / sqrt(x) when `inverse`."""
    node = g.made_by(value, root, "rsqrt" if inverse else "sqrt", "pow", "reciprocal", "div")
    if node is None:
        return None
    if node.op == "pow":
        exponent = scalar(g, node.used[1])
        return (node.used[0], [node]) if exponent == (-0.5 if inverse else 0.5) else None
    if node.op in ("rsqrt", "sqrt"):
        return node.used[0], [node]
    if not inverse or (node.op == "div" and scalar(g, node.used[0]) != 1.0):
        return None
    inner = _square_root(g, node.used[-1], root, inverse=False)
    return (inner[0], [*inner[1], node]) if inner else None


def _mean_of_square(g: GraphRewriter, value: int, root: Node) -> tuple[int, int, list[Node]] | None:
    """Return (x, first axis, nodes) if the value is the mean of x^2 over the last axes."""
    mean = g.made_by(value, root, "reduce_mean")
    axis = _last_axes(g, mean) if mean else None
    square = g.made_by(mean.used[0], root, "pow", "mul", "square") if mean else None
    if mean is None or square is None or axis is None or square.attrs.get("activation"):
        return None
    x, other = square.used[0], square.used[-1]
    is_square = scalar(g, other) == 2.0 if square.op == "pow" else x == other
    return (x, axis, [square, mean]) if is_square else None


def layer_norm_in_two(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """x f + (bias - mean f), f = scale / sqrt(variance + epsilon) -> layer_normalization.

    As TensorFlow writes it: mean is of x, variance of squared_difference(x, mean).
    """
    if root.attrs.get("activation") or g.is_quantized(root):
        return None
    for left, right in (root.used, root.used[::-1]):
        product, rest = g.only_for(left, root, "mul"), g.only_for(right, root, "sub")
        if product is None or rest is None:
            continue
        shift = g.only_for(rest.used[1], root, "mul")
        for x, factor in (product.used, product.used[::-1]):
            if shift is not None and factor in shift.used:
                mean = shift.used[0] if shift.used[1] == factor else shift.used[1]
                found = _scaled_by_deviation(g, root, x, mean, factor)
                if found is not None:
                    return _norm_in_two(g, root, x, rest, found, [product, shift, rest])
    return None


def _scaled_by_deviation(
    g: GraphRewriter, root: Node, x: int, mean: int, factor: int
) -> tuple[Array, int, float, list[Node]] | None:
    """Return (scale, first axis, epsilon, nodes) if factor is scale / sqrt(variance of x + e)."""
    scaled = g.made_by(factor, root, "mul")
    average = g.made_by(mean, root, "reduce_mean")
    if scaled is None or average is None or average.used[0] != x:
        return None
    for inverse, other in (scaled.used, scaled.used[::-1]):
        scale = g.data(other)
        power = _square_root(g, inverse, root, inverse=True) if scale is not None else None
        shifted = g.made_by(power[0], root, "add") if power else None
        if scale is None or power is None or shifted is None:
            continue
        for variance, number in (shifted.used, shifted.used[::-1]):
            epsilon, spread = scalar(g, number), g.made_by(variance, root, "reduce_mean")
            square = g.made_by(spread.used[0], root, "squared_difference") if spread else None
            if epsilon is None or spread is None or square is None:
                continue
            axis = _last_axes(g, spread)
            if {*square.used} == {x, mean} and axis is not None and axis == _last_axes(g, average):
                return scale, axis, epsilon, [average, square, spread, shifted, *power[1], scaled]
    return None


def _norm_in_two(
    g: GraphRewriter,
    root: Node,
    x: int,
    rest: Node,
    found: tuple[Array, int, float, list[Node]],
    of: list[Node],
) -> tuple[int] | None:
    scale, axis, epsilon, nodes = found
    bias, shape = g.data(rest.used[0]), g.type(x).shape[axis:]
    if bias is None or scale.shape != shape or bias.shape != shape:
        return None
    inputs = [x, g.constant(scale), g.constant(bias)]
    attrs = {"axis": axis, "epsilon": epsilon}
    return (g.add("layer_normalization", inputs, attrs, [*nodes, *of, root]),)


def _centre(g: GraphRewriter, value: int, root: Node) -> tuple[int, int, list[Node]] | None:
    """Return (x, first axis, nodes) if the value is x minus its mean over the last axes."""
    minus = g.made_by(value, root, "sub")
    if minus is None or minus.attrs.get("activation"):
        return None
    mean = g.made_by(minus.used[1], root, "reduce_mean")
    axis = _last_axes(g, mean) if mean else None
    if mean is None or axis is None or mean.used[0] != minus.used[0]:
        return None
    return minus.used[0], axis, [mean, minus]


def _last_axes(g: GraphRewriter, node: Node) -> int | None:
    """Return -n when a reduction that keeps its dimensions goes over the last n axes."""
    axes = g.data(node.inputs[1]) if len(node.inputs) > 1 else None
    if axes is None or not node.attrs["keepdims"]:
        return None
    rank = len(g.type(node.used[0]).shape)
    numbers = sorted(int(a) % rank for a in axes.ravel())
    return -len(numbers) if numbers and numbers == list(range(numbers[0], rank)) else None


def _ones(g: GraphRewriter, x: int, axis: int) -> int | None:
    type = g.type(x)
    dims = type.shape[axis:]
    if not all(isinstance(dim, int) for dim in dims):
        return None
    return g.constant(np.ones([int(dim) for dim in dims], numpy_dtype(type.dtype)))


def norm_scale(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """layer_normalization(x, scale) * constant -> layer_normalization(x, scale * constant)."""
    found = _norm_and_constant(g, root)
    if found is None:
        return None
    norm, factor = found
    scale = g.data(norm.used[1])
    if scale is None or len(norm.used) > 2:
        return None
    inputs = [norm.used[0], g.constant(scale * factor)]
    return (g.add(norm.op, inputs, norm.attrs, [norm, root]),)


def norm_bias(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """layer_normalization(x, scale) + constant -> layer_normalization(x, scale, constant)."""
    found = _norm_and_constant(g, root)
    if found is None or found[0].op != "layer_normalization" or len(found[0].used) > 2:
        return None
    norm, bias = found
    inputs = [*norm.used, g.constant(np.array(bias))]
    return (g.add(norm.op, inputs, norm.attrs, [norm, root]),)


def _norm_and_constant(g: GraphRewriter, root: Node) -> tuple[Node, Array] | None:
    """Return a normalisation only the root reads and a constant of its scale's shape."""
    if root.attrs.get("activation") or g.is_quantized(root):
        return None
    for value, other in (root.used, root.used[::-1]):
        norm = g.only_for(value, root, "layer_normalization", "rms_normalization")
        data = g.data(other)
        if norm is None or data is None or g.type(value) != g.type(root.outputs[0]):
            continue
        shape = g.type(norm.used[1]).dims
        if data.ndim > len(shape) and set(data.shape[: data.ndim - len(shape)]) <= {1}:
            data = data.reshape(data.shape[data.ndim - len(shape) :])
        if data.ndim <= len(shape) and np.broadcast_shapes(data.shape, shape) == shape:
            return norm, np.broadcast_to(data, shape)
    return None


def group_norm(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """reshape(instance_normalization(reshape(x, [N,G,rest])), as x) -> group_normalization(x).

    As PyTorch exports it; the scale and bias of a group are those of all its channels.
    """
    norm = g.only_for(root.used[0], root, "instance_normalization")
    shaped = g.only_for(norm.used[0], root, "reshape") if norm else None
    if norm is None or shaped is None or norm.attrs["layout"] != "NCHW":
        return None
    x = shaped.used[0]
    whole, rows, made = g.type(x), g.type(norm.used[0]), g.type(root.outputs[0])
    parts = [g.data(value) for value in norm.used[1:]]
    if whole.shape != made.shape or not (whole.is_static and rows.is_static):
        return None
    if len(whole.dims) < 3 or whole.dims[0] != rows.dims[0] or whole.dims[1] % rows.dims[1]:
        return None
    each = whole.dims[1] // rows.dims[1]
    inputs = [x, *(g.constant(np.repeat(part, each)) for part in parts if part is not None)]
    if len(inputs) < 3:
        return None
    attrs = {**norm.attrs, "num_groups": rows.dims[1]}
    return (g.add("group_normalization", inputs, attrs, [shaped, norm, root]),)


def channel_scale(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """norm(x, scale, bias) * constant, one a channel -> norm(x, scale * constant, ...)."""
    found = _channel_norm_and_constant(g, root)
    if found is None:
        return None
    norm, factor = found
    parts = [g.data(value) for value in norm.used[1:]]
    inputs = [norm.used[0], *(g.constant(part * factor) for part in parts if part is not None)]
    return (g.add(norm.op, inputs, norm.attrs, [norm, root]),) if len(inputs) == 3 else None


def channel_bias(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """norm(x, scale, bias) + constant, one a channel -> norm(x, scale, bias + constant)."""
    found = _channel_norm_and_constant(g, root)
    bias = g.data(found[0].used[2]) if found else None
    if found is None or bias is None:
        return None
    norm, constant = found
    inputs = [*norm.used[:2], g.constant(bias + constant)]
    return (g.add(norm.op, inputs, norm.attrs, [norm, root]),)


def _channel_norm_and_constant(g: GraphRewriter, root: Node) -> tuple[Node, Array] | None:
    """Return a norm over groups that only the root reads, and a constant of one a channel."""
    if root.attrs.get("activation") or g.is_quantized(root):
        return None
    for value, other in (root.used, root.used[::-1]):
        norm = g.only_for(value, root, "group_normalization", "instance_normalization")
        data = g.data(other)
        if norm is None or data is None or g.type(value) != g.type(root.outputs[0]):
            continue
        rank = len(g.type(value).shape)
        axis = 1 if norm.attrs["layout"] == "NCHW" else rank - 1
        depth = g.type(norm.used[1]).shape[0]
        wide = data.reshape((1,) * (rank - data.ndim) + data.shape)
        if wide.size in (1, depth) and wide.shape[axis] == wide.size:
            return norm, np.broadcast_to(wide.reshape(-1), (int(depth),))
    return None


def softmax(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """exp(x - max x) / sum exp(x - max x) -> softmax(x)."""
    if root.attrs.get("activation") or g.is_quantized(root):
        return None
    total = g.made_by(root.used[1], root, "reduce_sum")
    power = g.made_by(root.used[0], root, "exp")
    axis = _one_axis(g, total) if total else None
    if total is None or power is None or axis is None or total.used[0] != root.used[0]:
        return None
    minus = g.made_by(power.used[0], root, "sub")
    most = g.made_by(minus.used[1], root, "reduce_max") if minus else None
    if minus is None or most is None or most.used[0] != minus.used[0]:
        return None
    if minus.attrs.get("activation") or _one_axis(g, most) != axis:
        return None
    of = [most, minus, power, total, root]
    return (g.add("softmax", [minus.used[0]], {"axis": axis}, of),)


def _one_axis(g: GraphRewriter, node: Node) -> int | None:
    axes = g.data(node.inputs[1]) if len(node.inputs) > 1 else None
    if axes is None or axes.size != 1 or not node.attrs["keepdims"]:
        return None
    return int(axes.ravel()[0]) % len(g.type(node.used[0]).shape)


def softmax_beta(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """softmax(c x), c > 0 -> softmax(x) with beta c."""
    scaled = g.only_for(root.used[0], root, "mul", "div")
    if scaled is None or scaled.attrs.get("activation") or g.is_quantized(root):
        return None
    for x, other in (scaled.used, scaled.used[::-1])[: 2 if scaled.op == "mul" else 1]:
        number = scalar(g, other)
        if number is None or not 0 < number < float("inf") or g.type(x) != g.type(root.used[0]):
            continue
        factor = number if scaled.op == "mul" else 1 / number
        attrs = dict(root.attrs) | {"beta": root.attrs["beta"] * factor}
        return (g.add("softmax", [x], attrs, [scaled, root]),)
    return None


def log_softmax(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """log(softmax(x)) -> log_softmax(x)."""
    inner = g.only_for(root.used[0], root, "softmax")
    if inner is None or g.is_quantized(root) or not close(inner.attrs["beta"], 1.0):
        return None
    return (g.add("log_softmax", [inner.used[0]], {"axis": inner.attrs["axis"]}, [inner, root]),)


NORMALISE: Sequence[tuple[Sequence[str], Rule]] = (
    (["div", "mul"], layer_norm),
    (["add"], layer_norm_in_two),
    (["div", "mul"], rms_norm),
    (["mul"], norm_scale),
    (["add"], norm_bias),
    (["reshape"], group_norm),
    (["mul"], channel_scale),
    (["add"], channel_bias),
    (["div"], softmax),
    (["softmax"], softmax_beta),
    (["log"], log_softmax),
)
