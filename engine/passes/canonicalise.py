"""canonicalise: one form for expressions with several forms.

Products with constant weights become fully_connected. Constants before and after linear nodes go
into their weights and biases. x - c becomes x + (-c), and x / c becomes x * (1 / c) where c is a
power of two.

The last two rules and moves of weights keep every bit. Scaled and shifted weights are rounded once,
so results differ in the last place.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from trireme.ir.graph import Graph, Node, Quant
from trireme.ir.op import get_op
from trireme.ir.rewriter import GraphRewriter
from trireme.ir.rules import Rewritten, apply, rules_by_op
from trireme.passes.algebra import clamp_limits, scalar
from trireme.passes.linear import LINEAR, Linear, as_linear, channel_axis, per_channel
from trireme.passes.vectors import matmul_of_vector
from trireme.passes.windows import crop_window
from trireme.support.dtypes import FLOATS, Array, numpy_dtype
from trireme.support.records import dataclass


def canonicalise(graph: Graph) -> Rewritten:
    """Make fully_connected of products with constants; fold constants into linear nodes."""
    return apply(graph, CANONICAL)


def matmul_of_weights(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """matmul(x, constant [I,O]) -> fully_connected(x, its transpose [O,I])."""
    x, w = root.used
    quant = g.type(w).quant
    weights = g.data(w)
    if weights is None or weights.ndim != 2 or len(g.type(x).shape) < 2 or g.data(x) is not None:
        return None
    if quant is None and g.type(w).dtype not in FLOATS:
        return None
    transposed = _transposed_quant(quant)
    if quant is not None and (transposed is None or g.type(x).quant is None):
        return None
    key = ("transposed", w)  # weights that several products read stay one constant
    if key not in g.memo:
        g.memo[key] = g.constant(weights.T, quant=transposed)
    inputs = [x, g.memo[key]]
    return (g.add("fully_connected", inputs, {}, [root], g.type(root.outputs[0]).quant),)


def _transposed_quant(quant: Quant | None) -> Quant | None:
    """Return the quantisation of transposed weights, None if no op can have it."""
    if quant is None or quant.axis is None:
        return quant
    return replace(quant, axis=0) if quant.axis == 1 else None


def gemm_of_weights(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """alpha a b + beta c, b constant -> fully_connected(a, alpha b, beta c), or add after it."""
    a, b = root.used[:2]
    weights = g.data(b)
    c = root.used[2] if len(root.used) > 2 else None
    alpha, beta = root.attrs["alpha"], root.attrs["beta"]
    if weights is None or g.is_quantized(root) or g.type(b).dtype not in FLOATS:
        return None
    weights = weights if root.attrs["trans_b"] else weights.T
    if alpha != 1:
        weights = (weights.astype(np.float64) * alpha).astype(weights.dtype)
    if root.attrs["trans_a"]:
        a = g.add("transpose", [a], {"perm": (1, 0)}, [root])
    inputs = [a, g.constant(weights)]
    offset = _offset(g, c, beta)
    if (
        c is None
        or offset is not None
        and offset.size in (1, len(weights))
        and (offset.size == 1 or offset.shape[-1] == len(weights))
    ):
        if offset is not None:
            wide = np.broadcast_to(offset.reshape(-1), (len(weights),))
            inputs.append(g.constant(np.ascontiguousarray(wide)))
        return (g.add("fully_connected", inputs, {}, [root]),)
    product = g.add("fully_connected", inputs, {}, [root])
    if offset is not None:
        c = g.constant(offset)
    elif beta != 1:
        c = g.add("mul", [c, g.constant(np.asarray(beta, weights.dtype))], {}, [root])
    return (g.add("add", [product, c], {}, [root]),)


def _offset(g: GraphRewriter, c: int | None, beta: float) -> Array | None:
    data = g.data(c)
    if data is None or beta == 1:
        return data
    return (data.astype(np.float64) * beta).astype(data.dtype)


def gemm_quantized(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """Quantised gemm of constant weights, alpha = beta = 1 -> fully_connected."""
    weights, quant = g.data(root.used[1]), g.type(root.used[1]).quant
    plain = root.attrs["alpha"] == root.attrs["beta"] == 1 and not root.attrs["trans_a"]
    if weights is None or quant is None or not plain or not _is_vector(g, root.used[2:]):
        return None
    w = root.used[1]
    if not root.attrs["trans_b"]:
        transposed = _transposed_quant(quant)
        if transposed is None:
            return None
        w = g.constant(weights.T, quant=transposed)
    inputs = [root.used[0], w, *root.used[2:]]
    return (g.add("fully_connected", inputs, {}, [root], g.type(root.outputs[0]).quant),)


def _is_vector(g: GraphRewriter, values: tuple[int, ...]) -> bool:
    return all(len(g.type(i).shape) == 1 for i in values)


def bias_of_add(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """conv or fully_connected + constant a channel -> its bias."""
    for value, other in _operands(root):
        found = _linear_and_constant(g, root, value, other)
        if found is not None:
            linear, offset = found
            offset = -offset if root.op == "sub" else offset
            return _one(linear.shifted(offset).added_to(g, [linear.node, root], **_active(root)))
    return None


def weights_of_mul(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """conv or fully_connected * constant a channel -> its weights and bias."""
    for value, other in _operands(root):
        found = _linear_and_constant(g, root, value, other)
        if found is None or found[0].residual is not None:
            continue
        linear, factor = found
        if root.op == "div":
            if not np.all(factor):
                return None
            factor = 1 / factor
        return _one(linear.scaled(factor).added_to(g, [linear.node, root], **_active(root)))
    return None


def _operands(node: Node) -> list[tuple[int, int]]:
    a, b = node.used
    return [(a, b), (b, a)] if get_op(node.op).commutes else [(a, b)]


def _active(root: Node) -> dict[str, str]:
    return {"activation": root.attrs["activation"]}


def _one(value: int | None) -> tuple[int] | None:
    return None if value is None else (value,)


def _linear_and_constant(
    g: GraphRewriter, root: Node, value: int, other: int
) -> tuple[Linear, Array] | None:
    """Return a linear node that only the root reads and a constant of one number a channel."""
    data = g.data(other)
    if data is None or g.type(value) != g.type(root.outputs[0]):
        return None
    if root.attrs["activation"] and g.type(value).dtype not in FLOATS:
        return None
    linear = as_linear(g, g.only_for(value, root, *LINEAR))
    if linear is None:
        return None
    shape = g.type(value).shape
    vector = per_channel(data, shape, channel_axis(linear.node, len(shape)))
    return None if vector is None else (linear, vector)


def scale_before(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """conv or fully_connected of x * constant a channel -> its weights (0 stays 0 in the pads)."""
    found = _constant_before(g, root, "mul", "div")
    if found is None:
        return None
    linear, before, x, factor = found
    if before.op == "div":
        if not np.all(factor):
            return None
        factor = 1 / factor
    return _one(_reading(linear.scaled_input(factor), x).added_to(g, [before, root]))


def shift_before(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """conv without pads, or fully_connected, of x + constant a channel -> its bias."""
    if any(root.attrs.get("pads") or ()):
        return None
    found = _constant_before(g, root, "add", "sub")
    if found is None:
        return None
    linear, before, x, offset = found
    offset = -offset if before.op == "sub" else offset
    return _one(_reading(linear.shifted_input(offset), x).added_to(g, [before, root]))


def _reading(linear: Linear, x: int) -> Linear:
    node = linear.node
    inputs = (x, *node.inputs[1:])
    swapped = Node(node.id, node.op, inputs, node.outputs, node.attrs, node.source, node.pin)
    return Linear(swapped, linear.weights, linear.bias, linear.residual)


def _constant_before(
    g: GraphRewriter, root: Node, *ops: str
) -> tuple[Linear, Node, int, Array] | None:
    before = g.only_for(root.used[0], root, *ops)
    if before is None or before.attrs["activation"]:
        return None
    linear = as_linear(g, root, active=True)
    if linear is None:
        return None
    for x, other in _operands(before):
        data, type = g.data(other), g.type(x)
        if data is None or type != g.type(root.used[0]):
            continue
        vector = per_channel(data, type.shape, channel_axis(root, len(type.shape)))
        if vector is not None and np.all(np.isfinite(vector)):
            return linear, before, x, vector
    return None


def sub_to_add(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """x - c -> x + (-c): the same bits."""
    data = g.data(root.used[1])
    if data is None or g.type(root.used[0]).dtype not in FLOATS or g.is_quantized(root):
        return None
    return (g.add("add", [root.used[0], g.constant(-data)], root.attrs, [root]),)


def div_to_mul(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """x / c -> x * (1 / c) where every c is a power of two, so that no bit changes."""
    data = g.data(root.used[1])
    if data is None or g.type(root.used[0]).dtype not in FLOATS or g.is_quantized(root):
        return None
    with np.errstate(all="ignore"):
        mantissa, exponent = np.frexp(data.astype(np.float32))
    if not np.all((np.abs(mantissa) == 0.5) & (np.abs(exponent) < 14)):
        return None
    inverse = g.constant((1 / data).astype(data.dtype))
    return (g.add("mul", [root.used[0], inverse], root.attrs, [root]),)


def sum_of_two(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """sum(x, y) -> add(x, y)."""
    return (g.add("add", root.inputs, {}, [root]),) if len(root.used) == 2 else None


def constants_in_a_row(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """(x + b) + d -> x + (b + d); (x * a) * c -> x * (a c); (x * a + b) * c -> x * (a c) + b c.

    Constants are numbers, vectors, or numbers by channel of images. Others may be rows that the
    shape of a run decides, such as positions. Only a graph of one shape has those as constants, and
    it keeps the bits of the graph of all shapes.
    """
    outer = _by_constant(g, root)
    inner = _by_constant(g, g.only_for(outer.x, root, "add", "mul")) if outer else None
    if outer is None or inner is None or inner.node.attrs["activation"]:
        return None
    of = [inner.node, root]
    if outer.node.op == inner.node.op:
        together = outer.data + inner.data if root.op == "add" else outer.data * inner.data
        return _with_constants(g, inner.x, [(root.op, together)], of, root)
    first = _by_constant(g, g.only_for(inner.x, inner.node, "mul"))
    if root.op != "mul" or first is None or first.node.attrs["activation"]:
        return None
    steps = [("mul", first.data * outer.data), ("add", inner.data * outer.data)]
    return _with_constants(g, first.x, steps, [first.node, *of], root)


@dataclass(frozen=True)
class _ByConstant:
    """x op data, data in float64."""

    node: Node
    x: int
    data: Array


def _by_constant(g: GraphRewriter, node: Node | None) -> _ByConstant | None:
    """Return a float add or mul by a constant that keeps the type of x."""
    if node is None or g.is_quantized(node):
        return None
    for x, other in _operands(node):
        data = g.data(other)
        if data is None or not _is_by_channel(data, len(g.type(x).shape)):
            continue
        if g.type(x) == g.type(node.outputs[0]):
            return _ByConstant(node, x, data.astype(np.float64)) if _is_float(g, x) else None
    return None


def _is_by_channel(data: Array, rank: int) -> bool:
    """Whether a constant is a number, a vector, or has a number for each channel of images."""
    return data.size == 1 or data.ndim == 1 or (rank > 3 and max(data.shape) == data.size)


def _is_float(g: GraphRewriter, value: int) -> bool:
    return g.type(value).dtype in FLOATS


def _with_constants(
    g: GraphRewriter, x: int, steps: list[tuple[str, Array]], of: list[Node], root: Node
) -> tuple[int] | None:
    """Return x after these operations by constants; the last one has the root's activation."""
    for position, (op, data) in enumerate(steps):
        with np.errstate(all="ignore"):
            narrow = data.astype(numpy_dtype(g.type(x).dtype))
        if not np.all(np.isfinite(narrow)):
            return None
        is_last = position == len(steps) - 1
        x = g.add(op, [x, g.constant(narrow)], _active(root) if is_last else {}, of)
    return (x,)


def square(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """x ^ 2 -> x * x."""
    x, exponent = root.used
    if scalar(g, exponent) != 2.0 or g.type(x).dtype not in FLOATS or g.is_quantized(root):
        return None
    return (g.add("mul", [x, x], {}, [root]),) if g.type(x) == g.type(root.outputs[0]) else None


def clip_to_relu(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """clip(x, 0) -> relu(x); clip(x) -> x."""
    low, high = clamp_limits(g, root) or (math.nan, math.nan)
    if high != math.inf or g.is_quantized(root):
        return None
    if low == -math.inf:
        return (root.used[0],)
    return (g.add("relu", [root.used[0]], {}, [root]),) if low == 0 else None


def max_to_relu(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """max(x, 0) -> relu(x)."""
    if len(root.used) != 2 or g.is_quantized(root):
        return None
    for x, other in (root.used, root.used[::-1]):
        if scalar(g, other) == 0 and g.type(x) == g.type(root.outputs[0]):
            return (g.add("relu", [x], {}, [root]),) if g.type(x).dtype in FLOATS else None
    return None


CANONICAL = rules_by_op(
    (["matmul"], matmul_of_weights),
    (["matmul"], matmul_of_vector),
    (["gemm"], gemm_of_weights),
    (["gemm"], gemm_quantized),
    (["add", "sub"], bias_of_add),
    (["mul", "div"], weights_of_mul),
    (["conv", "fully_connected"], scale_before),
    (["conv", "fully_connected"], shift_before),
    (["sub"], sub_to_add),
    (["div"], div_to_mul),
    (["sum"], sum_of_two),
    (["add", "mul"], constants_in_a_row),
    (["pow"], square),
    (["clip"], clip_to_relu),
    (["max"], max_to_relu),
    (["max_pool", "average_pool", "lp_pool"], crop_window),
)
