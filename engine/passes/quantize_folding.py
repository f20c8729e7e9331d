"""quantize_folding: ONNX's Q/DQ nodes become quantised types, and the ops between them integer ops.

    dequantize_linear(w)                          -> dequantize of a constant of quantised type
    dequantize_linear(quantize_linear(x))         -> dequantize(quantize(x))
    quantize(op(dequantize(x), dequantize(w)))    -> op on quantised types

What is left are quantize and dequantize nodes where floats begin and end; the graph's own inputs
and outputs keep their types. Integer arithmetic is that of trireme.quantize: a fixed-point
multiplier, rounding half away from zero, where ONNX Runtime multiplies in float and rounds half to
even. An output differs by one unit at most, and seldom.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trireme.dtypes import Array
from trireme.graph import Graph, Node, Quant
from trireme.interpret import evaluate
from trireme.op import get_op
from trireme.passes.algebra import CLAMPS, NAMED_CLAMPS, clamp_limits
from trireme.quantize import TABLE_OPS, dequantized
from trireme.rewrite import Draft, Rewritten, apply, rules_by_op

EIGHT_BIT = ("int8", "uint8")
MOVES = (
    "reshape", "transpose", "squeeze", "unsqueeze", "flatten", "slice", "gather", "expand", "tile",
    "identity", "depth_to_space", "space_to_depth",
)  # fmt: skip
"""Ops that only move elements, and so may run before a dequantize as well as after it."""

SAME_QUANT = ("max_pool", "average_pool", "resize", "pad", "reduce_max", "reduce_min", "max", "min")
"""Ops whose integer form has one quantisation for input and output."""

OWN_QUANT = TABLE_OPS - {"quantize"} | {
    "add", "sub", "mul", "prelu", "softmax", "reduce_mean", "reduce_sum", "concat",
}  # fmt: skip
"""Ops whose integer form goes from any quantisation to any other."""

LINEAR = ("conv", "conv_transpose", "fully_connected", "matmul", "gemm")


def quantize_folding(graph: Graph) -> Rewritten:
    """Fold quantize_linear and dequantize_linear into quantised types and integer ops."""
    return apply(graph, QUANTIZE)


def quant_of_node(g: Draft, node: Node) -> tuple[Quant, str] | None:
    """Return the quantisation and the dtype that a Q or DQ node stands for.

    None where a quantised type cannot say it: parameters that are not constant, blocks, floats.
    """
    scale, zero = g.data(node.inputs[1]), None
    stored = g.type(node.used[0] if node.op == "dequantize_linear" else node.outputs[0]).dtype
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        zero = g.data(node.inputs[2])
        if zero is None:
            return None
    if scale is None or scale.ndim > 1 or scale.dtype != np.float32 or node.attrs.get("block_size"):
        return None
    if not np.all(np.isfinite(scale) & (scale > 0)) or stored not in (*EIGHT_BIT, "int32"):
        return None
    zeros = np.zeros(scale.shape, np.int64) if zero is None else zero.astype(np.int64)
    if zeros.size != scale.size:
        return None
    axis: int | None = None
    if scale.size > 1:
        axis = int(node.attrs["axis"]) % len(g.type(node.used[0]).shape)
    return Quant(tuple(scale.ravel().tolist()), tuple(zeros.ravel().tolist()), axis), stored


def constant_of_type(g: Draft, root: Node) -> tuple[int] | None:
    """dequantize_linear(constant) -> dequantize of a constant with that quantisation."""
    data, found = g.data(root.used[0]), quant_of_node(g, root)
    if data is None or found is None:
        return None
    typed = g.constant(data, g.values[root.used[0]].name, found[0])
    return (g.add("dequantize", [typed], {}, [root]),)


def pair_of_types(g: Draft, root: Node) -> tuple[int] | None:
    """dequantize_linear(quantize_linear(x)) -> dequantize(quantize(x)), both by a type."""
    first = g.made_by(root.used[0], root, "quantize_linear")
    if first is None:
        return None
    found, other = quant_of_node(g, root), quant_of_node(g, first)
    if found is None or found != other or found[1] not in EIGHT_BIT:
        return None
    quant, stored = found
    data = g.data(first.used[0])
    key = ("quantized", first.used[0], quant, stored)
    typed = g.memo.get(key)
    if data is not None:
        typed = g.constant(_run(g, first), g.values[first.used[0]].name, quant)
    elif (known := _typed(g, first.used[0], root)) is not None and _is(g, known, quant, stored):
        typed = known
    elif typed is None or g.producer(typed) is None:
        if quant.axis is not None:
            return None
        typed = g.add("quantize", [first.used[0]], {"dtype": stored}, [first], quant)
        g.memo[key] = typed
    return (g.add("dequantize", [typed], {}, [root]),)


def _is(g: Draft, value: int, quant: Quant, stored: str) -> bool:
    return (g.type(value).quant, g.type(value).dtype) == (quant, stored)


def _run(g: Draft, node: Node) -> Array:
    arrays = [g.data(i) for i in node.inputs]
    return evaluate(Graph("", (), (), (), g.values), node, arrays)[0]


def integers_from_outside(g: Draft, root: Node) -> tuple[int] | None:
    """dequantize_linear(x), x not quantised by type -> the same, through a quantised type.

    x is an input of the graph, say, and keeps its type; quantize gives back just its integers.
    """
    found = quant_of_node(g, root)
    if found is None or found[0].axis is not None or found[1] not in EIGHT_BIT:
        return None
    if g.producer(root.used[0]) is not None or g.data(root.used[0]) is not None:
        return None
    readers = g.graph.users(root.outputs[0])
    if not readers or all(reader.op in ("quantize", "quantize_linear") for reader in readers):
        return None
    real = g.add("dequantize_linear", root.inputs, root.attrs, [root])
    typed = g.add("quantize", [real], {"dtype": found[1]}, [root], found[0])
    return (g.add("dequantize", [typed], {}, [root]),)


def move_before(g: Draft, root: Node) -> tuple[int] | None:
    """move(dequantize(x)) -> dequantize(move(x)), one scale for all of x."""
    before = g.made_by(root.used[0], root, "dequantize")
    if before is None or len(root.outputs) != 1 or g.is_quantized(root):
        return None
    quant = g.type(before.used[0]).quant
    if quant is None:
        return None
    axis = _moved_axis(root, quant, len(g.type(root.used[0]).shape))
    if quant.axis is not None and axis is None:
        return None
    quant = Quant(quant.scales, quant.zero_points, axis)
    x = before.used[0]
    moved = g.add(root.op, [x, *root.inputs[1:]], root.attrs, [root], quant)
    node = g.producer(moved)
    if g.data(x) is not None and node and all(g.data(i) is not None for i in node.used):
        moved = g.constant(np.ascontiguousarray(_run(g, node)), g.values[x].name, quant)
    return (g.add("dequantize", [moved], {}, [before]),)


def _moved_axis(root: Node, quant: Quant, rank: int) -> int | None:
    """Return where a transpose takes the axis of the scales, None for other moves."""
    if quant.axis is None or root.op != "transpose":
        return None
    perm = root.attrs["perm"] or tuple(range(rank))[::-1]
    return tuple(perm).index(quant.axis)


def quantize_of_dequantize(g: Draft, root: Node) -> tuple[int] | None:
    """quantize(dequantize(x)) -> x where the types agree, else one quantize."""
    before = g.made_by(root.used[0], root, "dequantize")
    if before is None:
        return None
    x, quant = before.used[0], g.type(root.outputs[0]).quant
    if g.type(x) == g.type(root.outputs[0]):
        return (x,)
    inner = g.type(x).quant
    if inner is None or inner.axis is not None or quant is None or quant.axis is not None:
        return None
    if g.type(x).dtype not in EIGHT_BIT or g.data(x) is not None:
        return None
    return (g.add("quantize", [x], root.attrs, [before, root], quant),)


def integer_op(g: Draft, root: Node) -> tuple[int] | None:
    """quantize(op(dequantize(x), ...)) -> op on quantised types."""
    quant, stored = g.type(root.outputs[0]).quant, g.type(root.outputs[0]).dtype
    if quant is None or quant.axis is not None or stored not in EIGHT_BIT:
        return None
    return _one(_on_integers(g, root, root.used[0], quant, stored, [root]))


def integer_output(g: Draft, root: Node) -> tuple[int] | None:
    """quantize_linear(op(dequantize(x), ...)) that leaves the graph -> the same around integers."""
    found = quant_of_node(g, root)
    if found is None or found[0].axis is not None or found[1] not in EIGHT_BIT:
        return None
    typed = _on_integers(g, root, root.used[0], *found, [])
    if typed is None:
        return None
    real = g.add("dequantize", [typed], {}, [root])
    return (g.add("quantize_linear", [real, *root.inputs[1:]], root.attrs, [root]),)


def _one(value: int | None) -> tuple[int] | None:
    return None if value is None else (value,)


def _on_integers(
    g: Draft, root: Node, value: int, quant: Quant, stored: str, of: list[Node]
) -> int | None:
    """Return what a float value is as integers of a type, if the op that makes it can say."""
    attrs: dict[str, Any] = {}
    node = g.only_for(value, root, *FOLD)
    clamp = g.only_for(value, root, *CLAMPS)
    if clamp is not None:
        inner = g.only_for(clamp.used[0], root, *LINEAR, "add", "sub", "mul")
        limits = clamp_limits(g, clamp)
        name = next((key for key, pair in NAMED_CLAMPS.items() if pair == limits), None)
        if inner is not None and name and not inner.attrs.get("activation"):
            node, attrs, of = inner, {"activation": name}, [clamp, *of]
    if node is None or g.is_quantized(node):
        return None
    if node.attrs.get("activation", "") not in ("", *NAMED_CLAMPS):
        return None
    made = FOLD[node.op](g, node, quant, stored, attrs, [node, *of])
    if made is None or g.type(made).dtype != stored:
        return None
    return made


def _typed(g: Draft, value: int | None, root: Node) -> int | None:
    """Return the 8-bit value with one scale that a float value is the dequantized form of."""
    found = g.made_by(value, root, "dequantize")
    if found is None:
        return None
    type = g.type(found.used[0])
    if type.dtype not in EIGHT_BIT or type.quant is None or type.quant.axis is not None:
        return None
    return found.used[0]


def _fold_own(
    g: Draft, node: Node, quant: Quant, stored: str, attrs: dict[str, Any], of: list[Node]
) -> int | None:
    """Fold an op from any quantisation to any other; numbers such as axes stay as they are."""
    inputs: list[int | None] = []
    for value in node.inputs:
        is_real = value is not None and g.type(value).dtype == "float32"
        if is_real and not (node.op == "clip" and inputs):
            value = _typed(g, value, node)
            if value is None or (g.type(value).dtype != stored and node.op not in TABLE_OPS):
                return None
        inputs.append(value)
    if get_op(node.op).quantized is None:
        return None
    if node.op == "concat" and node.attrs["activation"]:
        return None
    return g.add(node.op, inputs, dict(node.attrs) | attrs, of, quant)


def _fold_same(
    g: Draft, node: Node, quant: Quant, stored: str, attrs: dict[str, Any], of: list[Node]
) -> int | None:
    """Fold an op that keeps its input's quantisation; a quantize after it makes any other."""
    op = get_op(node.op)
    if not (op.moves or op.quantized):
        return None
    inputs = [_typed(g, node.used[0], node), *node.inputs[1:]]
    if node.op in ("max", "min"):
        inputs = [_typed(g, value, node) for value in node.used]
    if inputs[0] is None or (node.op in ("max", "min") and None in inputs):
        return None
    if len({g.type(i) for i in inputs if i is not None and g.type(i).quant}) > 1:
        return None
    type = g.type(inputs[0])
    if node.op == "pad" and not _pads_with(g, node, inputs, type.quant):
        return None
    made = g.add(node.op, inputs, dict(node.attrs) | attrs, of, type.quant)
    if _is(g, made, quant, stored):
        return made
    return g.add("quantize", [made], {"dtype": stored}, of[-1:], quant)


def _pads_with(g: Draft, node: Node, inputs: list[int | None], quant: Quant | None) -> bool:
    """Make the value a pad fills with an integer of the type; say whether it could be."""
    value = inputs[2] if len(inputs) > 2 else None
    if value is None or quant is None or node.attrs["mode"] != "constant":
        return True
    real = g.data(value)
    if real is None or real.size != 1 or inputs[0] is None:
        return False
    stored = np.round(float(real.reshape(())) / quant.scale) + quant.zero_point
    limits = np.iinfo(g.type(inputs[0]).dtype)
    if not limits.min <= stored <= limits.max:
        return False
    inputs[2] = g.constant(np.asarray(stored, g.type(inputs[0]).dtype))
    return True


def _fold_linear(
    g: Draft, node: Node, quant: Quant, stored: str, attrs: dict[str, Any], of: list[Node]
) -> int | None:
    """Fold conv, fully_connected, matmul or gemm; the bias becomes int32 at the product's scale."""
    x, weights = _typed(g, node.used[0], node), g.made_by(node.used[1], node, "dequantize")
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if x is None or weights is None or len(node.inputs) > 3:
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
        w_or_none = _typed(g, node.used[1], node) if not attrs else None
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


def _rows(g: Draft, w: int, are_rows: bool) -> int | None:
    """Return constant weights [O,I], given those or [I,O]."""
    data, quant = g.data(w), g.type(w).quant
    if are_rows or data is None or quant is None:
        return w if data is not None else None
    axis = None if quant.axis is None else 1 - quant.axis
    turned = Quant(quant.scales, quant.zero_points, axis)
    return g.constant(np.ascontiguousarray(data.T), g.values[w].name, turned)


def _are_weights(g: Draft, op: str, w: int) -> bool:
    """Whether quantised weights are ones that integer arithmetic takes."""
    type = g.type(w)
    if type.quant is None or type.dtype not in EIGHT_BIT:
        return False
    if op == "matmul":
        return type.quant.axis is None
    if g.data(w) is None or len(set(type.quant.zero_points)) > 1:
        return False
    return type.quant.axis in (None, 0) and not (op == "conv_transpose" and type.quant.axis == 0)


def _bias(g: Draft, bias: int, x: int, w: int, node: Node) -> int | None:
    """Return a constant bias as int32 at the scale of x times that of w; None if it has none."""
    real, typed = g.data(bias), g.made_by(bias, node, "dequantize")
    if typed is not None and (stored := g.data(typed.used[0])) is not None:
        real = dequantized(stored, g.type(typed.used[0]))
    x_quant, w_quant = g.type(x).quant, g.type(w).quant
    if real is None or x_quant is None or w_quant is None or real.dtype != np.float32:
        return None
    channels = real.size
    scales = np.float64(x_quant.scale) * np.array(w_quant.scales, np.float64)
    if real.ndim > 1 and real.shape[-1] != channels:
        return None
    if len(scales) not in (1, channels):
        return None
    integers = np.round(real.reshape(-1).astype(np.float64) / scales)
    limit = np.iinfo(np.int32)
    if not np.all((integers >= limit.min) & (integers <= limit.max)):
        return None
    axis = 0 if len(scales) > 1 else None
    quant = Quant(tuple(scales.tolist()), (0,) * len(scales), axis)
    return g.constant(integers.astype(np.int32), g.values[bias].name, quant)


Fold = Callable[[Draft, Node, Quant, str, dict[str, Any], list[Node]], int | None]
FOLD: Mapping[str, Fold] = {
    **dict.fromkeys(LINEAR, _fold_linear),
    **dict.fromkeys(sorted(OWN_QUANT), _fold_own),
    **dict.fromkeys(SAME_QUANT, _fold_same),
}
QUANTIZE = rules_by_op(
    (["dequantize_linear"], constant_of_type),
    (["dequantize_linear"], pair_of_types),
    (["dequantize_linear"], integers_from_outside),
    (MOVES, move_before),
    (["quantize"], quantize_of_dequantize),
    (["quantize"], integer_op),
    (["quantize_linear"], integer_output),
)
