"""Ops between dequantize and quantize become one op on integers.

quantize_folding calls `on_integers` with the value before a quantize, and the type of the result.
The trait `integer_form` of an op selects one of three functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from trireme.ir.graph import Graph, Node, Quant
from trireme.ir.op import IntegerForm, call_of, get_op
from trireme.ir.rewriter import GraphRewriter
from trireme.ops.integer import dequantized, whole_positions
from trireme.passes.algebra import clamp_before, clamp_limits, name_of_clamp, named_clamp
from trireme.support.dtypes import Array, numpy_dtype

EIGHT_BIT = ("int8", "uint8")


def has_type(g: GraphRewriter, value: int, quant: Quant, stored: str) -> bool:
    """Whether a value has that quantisation and dtype."""
    return (g.type(value).quant, g.type(value).dtype) == (quant, stored)


def on_integers(
    g: GraphRewriter, root: Node, value: int, quant: Quant, stored: str, of: list[Node]
) -> int | None:
    """Return a float value as integers of a type, if its op has an integer form.

    A clamp between the op and the value becomes the op's activation.
    """
    attrs: dict[str, Any] = {}
    node = _foldable_producer(g, value, root)
    clamp = g.only_for(value, root, *clamp_before(g, value))
    if clamp is not None:
        inner = _foldable_producer(g, clamp.used[0], root)
        name = name_of_clamp(clamp_limits(g, clamp))
        fuses = inner is not None and (is_linear(inner.op) or inner.op in NUMBERS)
        if inner is not None and fuses and name and not inner.attrs.get("activation"):
            node, attrs, of = inner, {"activation": name}, [clamp, *of]
    if node is None or g.is_quantized(node):
        return None
    activation = node.attrs.get("activation", "")
    if activation and not named_clamp(activation):
        return None
    fold = fold_of(node.op)
    made = fold(g, node, quant, stored, attrs, [node, *of]) if fold else None
    if made is None or g.type(made).dtype != stored or not _stays_below(g, made):
        return None
    return made


def _foldable_producer(g: GraphRewriter, value: int, root: Node) -> Node | None:
    """Return the node that makes a value for the root alone, if its op can be folded."""
    node = g.producer(value)
    return g.only_for(value, root, node.op) if node and fold_of(node.op) else None


_ROOM = 2.0**27
"""Steps of the output that a result may take before it is clamped: integer arithmetic wraps at
2^31, and shifts left before it multiplies.
"""


def _stays_below(g: GraphRewriter, made: int) -> bool:
    """Whether no result of an op on integers is beyond _ROOM steps of its output."""
    node, quant = g.producer(made), g.type(made).quant
    if node is None or quant is None:
        return True
    types = [g.type(i) for i in node.used if g.type(i).dtype in EIGHT_BIT]
    scales = [max(type.quant.scales) for type in types if type.quant is not None]
    multiplies = is_linear(node.op) or node.op == "mul"
    most = math.prod(scales) if multiplies else max(scales, default=0.0)
    if most < min(quant.scales):  # a sum is made smaller
        return True
    terms = 1
    if is_linear(node.op):
        dims = types[0].shape[-1:] if node.op == "matmul" else types[1].shape[1:]
        terms = math.prod(dim for dim in dims if isinstance(dim, int))
    factors = len(scales) if multiplies else 1
    return most * 2.0 ** (8 * factors) * terms < _ROOM * min(quant.scales)


def integers_of(g: GraphRewriter, value: int | None, root: Node) -> int | None:
    """Return the 8-bit value with one scale whose dequantized form is this float value."""
    found = g.made_by(value, root, "dequantize")
    if found is None:
        return None
    type = g.type(found.used[0])
    if type.dtype not in EIGHT_BIT or type.quant is None or type.quant.axis is not None:
        return None
    return found.used[0]


def real_data(g: GraphRewriter, value: int | None, root: Node) -> Array | None:
    """Return the floats of a constant, or of a dequantize of one."""
    found = g.made_by(value, root, "dequantize")
    if found is not None and (stored := g.data(found.used[0])) is not None:
        return dequantized(stored, g.type(found.used[0]))
    return g.data(value)


def _fold_own(
    g: GraphRewriter, node: Node, quant: Quant, stored: str, attrs: dict[str, Any], of: list[Node]
) -> int | None:
    """Fold an op from any quantisation to any other; numbers such as axes stay as they are."""
    op = "mul" if node.op == "div" else node.op
    if get_op(op).quantized is None or (op == "concat" and node.attrs["activation"]):
        return None
    inputs: list[int | None] = []
    for position, value in enumerate(node.inputs):
        is_real = value is not None and g.type(value).dtype == "float32"
        if is_real and not (op == "clip" and inputs):
            divides = node.op == "div" and position == 1
            typed = None if divides else integers_of(g, value, node)
            if typed is None and op in NUMBERS:
                typed = _number(g, value, node, stored, divides)
            if typed is None or g.type(typed).dtype != stored:
                return None
            value = typed
        inputs.append(value)
    return g.add(op, inputs, dict(node.attrs) | attrs, of, quant)


NUMBERS = ("add", "sub", "mul")
"""Ops with at most one operand that is an unquantised number: the number gets a scale of
its own."""


def _number(
    g: GraphRewriter, value: int | None, root: Node, stored: str, divides: bool
) -> int | None:
    """Return a constant of one number (or one over it) at a scale of its own.

    The stored integer is the greatest power of two: it keeps exact halves exact, and products of
    small integers are rounded coarsely.
    """
    data = real_data(g, value, root)
    if data is None or data.size != 1 or not np.isfinite(data).all() or not data.all():
        return None
    number = float(data.reshape(()))
    most = 128 if stored == "uint8" else 64
    scale = float(np.float32((1 / abs(number) if divides else abs(number)) / most))
    zero = most if stored == "uint8" and number < 0 else 0
    one = np.full(data.shape, zero + (most if number > 0 else -most), numpy_dtype(stored))
    return g.constant(one, quant=Quant((scale,), (zero,))) if 0 < scale < np.inf else None


def _fold_same(
    g: GraphRewriter, node: Node, quant: Quant, stored: str, attrs: dict[str, Any], of: list[Node]
) -> int | None:
    """Fold an op that keeps its input's quantisation; a quantize after it makes any other."""
    op = get_op(node.op)
    if not (op.moves or op.quantized):
        return None
    inputs = [integers_of(g, node.used[0], node), *node.inputs[1:]]
    takes_any_number = op.arity[1] is None
    if takes_any_number:
        inputs = [integers_of(g, value, node) for value in node.used]
    if inputs[0] is None or (takes_any_number and None in inputs):
        return None
    if len({g.type(i) for i in inputs if i is not None and g.type(i).quant}) > 1:
        return None
    type = g.type(inputs[0])
    if _overshoots(node) and (type.quant, type.dtype) != (quant, stored):
        return None
    if node.op == "pad" and not _pads_with(g, node, inputs, type.quant):
        return None
    made = g.add(node.op, inputs, dict(node.attrs) | attrs, of, type.quant)
    if has_type(g, made, quant, stored):
        return made if _is_exact(g, made) else None
    if _rounds(node):
        return None
    return g.add("quantize", [made], {"dtype": stored}, of[-1:], quant)


def _rounds(node: Node) -> bool:
    """Whether an op that keeps its input's quantisation rounds: a quantize after it would again."""
    return node.op == "average_pool" or (node.op == "resize" and node.attrs["mode"] == "linear")


def _is_exact(g: GraphRewriter, made: int) -> bool:
    """Whether stored integers hold the result of the op: linear resizing has whole 1024ths only."""
    node = g.producer(made)
    if node is None or node.op != "resize" or node.attrs["mode"] != "linear":
        return True
    return whole_positions(call_of(Graph("", (), (), (), g.values), node))


def _overshoots(node: Node) -> bool:
    """Whether an op's results may exceed its input's range, where stored integers end."""
    return node.op == "resize" and node.attrs["mode"] == "cubic"


def _pads_with(g: GraphRewriter, node: Node, inputs: list[int | None], quant: Quant | None) -> bool:
    """Convert the fill value of a pad to an integer of the type; return whether it fits."""
    value = inputs[2] if len(inputs) > 2 else None
    if node.attrs["mode"] != "constant":
        inputs[2:] = [None, *inputs[3:]] if len(inputs) > 2 else []
        return True
    if value is None or quant is None:
        return True
    real = real_data(g, value, node)
    if real is None or real.size != 1 or inputs[0] is None:
        return False
    stored = np.round(float(real.reshape(())) / quant.scale) + quant.zero_point
    limits = np.iinfo(g.type(inputs[0]).dtype)
    if not limits.min <= stored <= limits.max:
        return False
    inputs[2] = g.constant(np.asarray(stored, g.type(inputs[0]).dtype))
    return True


def _fold_linear(
    g: GraphRewriter, node: Node, quant: Quant, stored: str, attrs: dict[str, Any], of: list[Node]
) -> int | None:
    """Fold conv, fully_connected, matmul or gemm; the bias becomes int32 at the product's scale."""
    x, weights = integers_of(g, node.used[0], node), g.made_by(node.used[1], node, "dequantize")
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if x is None or weights is None or len(node.inputs) > 3 or g.type(x).dtype != stored:
        return None
    op, w = node.op, weights.used[0]
    kept = dict(node.attrs) | attrs
    if op == "gemm":
        plain = kept.pop("alpha") == kept.pop("beta") == 1 and not kept.pop("trans_a")
        w_or_none = _rows(g, w, bool(kept.pop("trans_b"))) if plain else None
        op = "fully_connected"
    elif op == "matmul" and g.data(w) is not None and len(g.type(w).shape) == 2:
        op, w_or_none = "fully_connected", _rows(g, w, False)
    elif op == "matmul":
        w_or_none = integers_of(g, node.used[1], node) if not attrs else None
    else:
        w_or_none = w
    if w_or_none is None or not _are_weights(g, op, w_or_none):
        return None
    inputs = [x, w_or_none]
    if bias is not None:
        integers = _bias(g, bias, x, w_or_none, node)
        if integers is None:
            return None
        inputs.append(integers)
    return g.add(op, inputs, kept, of, quant)


def _rows(g: GraphRewriter, w: int, are_rows: bool) -> int | None:
    """Return constant weights as [O,I], given [O,I] or [I,O]."""
    data, quant = g.data(w), g.type(w).quant
    if are_rows or data is None or quant is None:
        return w if data is not None else None
    axis = None if quant.axis is None else 1 - quant.axis
    transposed = replace(quant, axis=axis)
    return g.constant(np.ascontiguousarray(data.T), g.values[w].name, transposed)


def _are_weights(g: GraphRewriter, op: str, w: int) -> bool:
    """Whether integer arithmetic takes these quantised weights."""
    type = g.type(w)
    if type.quant is None or type.dtype not in EIGHT_BIT:
        return False
    if op == "matmul":
        return type.quant.axis is None
    if g.data(w) is None or len(set(type.quant.zero_points)) > 1:
        return False
    return type.quant.axis in (None, 0) and not (op == "conv_transpose" and type.quant.axis == 0)


def _bias(g: GraphRewriter, bias: int, x: int, w: int, node: Node) -> int | None:
    """Return a constant bias as int32 at the scale of x times that of w; None if it has none."""
    real = real_data(g, bias, node)
    x_quant, w_quant = g.type(x).quant, g.type(w).quant
    if real is None or x_quant is None or w_quant is None or real.dtype != np.float32:
        return None
    channels = real.size
    scales = np.float64(x_quant.scale) * np.array(w_quant.scales, np.float64)
    if real.ndim > 1 and real.shape[-1] != channels:
        return None
    if len(scales) not in (1, channels):
        return None
    integers = _stored_bias(g, bias, scales, node)
    if integers is None:
        integers = np.round(real.reshape(-1).astype(np.float64) / scales)
    limit = np.iinfo(np.int32)
    if not np.all((integers >= limit.min) & (integers <= limit.max)):
        return None
    axis = 0 if len(scales) > 1 else None
    quant = Quant(tuple(scales.tolist()), (0,) * len(scales), axis)
    return g.constant(integers.astype(np.int32), g.values[bias].name, quant)


_SCALE_ERROR = 2.0**-22
"""The relative error of a product of two scales in float32, with room for their own rounding."""


def _stored_bias(g: GraphRewriter, bias: int, scales: Array, node: Node) -> Array | None:
    """Return the stored int32 of a bias that has those scales but for their rounding to float32.

    Floats would lose digits of integers beyond 2^24.
    """
    found = g.made_by(bias, node, "dequantize")
    if found is None:
        return None
    data, type = g.data(found.used[0]), g.type(found.used[0])
    if data is None or type.dtype != "int32" or type.quant is None or any(type.quant.zero_points):
        return None
    theirs = np.array(type.quant.scales, np.float64)
    same = len(theirs) in (1, len(scales)) and np.all(abs(theirs / scales - 1) <= _SCALE_ERROR)
    return data.reshape(-1) if same else None


Fold = Callable[[GraphRewriter, Node, Quant, str, dict[str, Any], list[Node]], int | None]
_BY_FORM: Mapping[IntegerForm, Fold] = {
    "linear": _fold_linear,
    "table": _fold_own,
    "own": _fold_own,
    "same": _fold_same,
}
_OWN: Mapping[str, Fold] = {"div": _fold_own, "gemm": _fold_linear}
"""Ops with the integer form of another op: of mul, of fully_connected."""


def fold_of(op: str) -> Fold | None:
    """Return the function that folds an op on dequantized values; None for quantize."""
    return None if op == "quantize" else _OWN.get(op) or _BY_FORM.get(get_op(op).integer_form)


def is_linear(op: str) -> bool:
    """Whether an op multiplies values with weights, so that its bias is int32."""
    return fold_of(op) is _fold_linear
