"""fuse_pad, fuse_residual, fuse_activation: a node takes over the work of its neighbour.

Each keeps every bit: the fused op is defined as the steps one after another.
"""

from __future__ import annotations

import math

import numpy as np

from trireme.ir.graph import Graph, Node
from trireme.ir.op import OpDef, get_op
from trireme.ir.rewriter import GraphRewriter
from trireme.ir.rules import Rewritten, apply, rules_by_op
from trireme.ops.activation import ACTIVATIONS
from trireme.passes.algebra import clamp_limits, close, is_clamp, name_of_clamp, named_clamp
from trireme.passes.linear import channel_axis
from trireme.support.dtypes import FLOATS, Array


def fuse_pad(graph: Graph) -> Rewritten:
    """Move a pad into the conv or pool after it, where both pad with the same value."""
    return apply(graph, rules_by_op((["conv", "max_pool", "average_pool"], pad_into)))


def fuse_residual(graph: Graph) -> Rewritten:
    """Make the other operand of an add after conv or fully_connected its residual input."""
    return apply(graph, rules_by_op((["add"], residual_into)))


def fuse_activation(graph: Graph) -> Rewritten:
    """Fuse an activation into the node before it, when the value between has no other reader."""

    def is_activation(op: OpDef) -> bool:
        return op.name in ACTIVATIONS or is_clamp(op.name)

    return apply(graph, rules_by_op((is_activation, activation_into)))


def pad_into(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """conv(pad(x)) -> conv(x) with more pads; also for pooling."""
    pad = g.made_by(root.used[0], root, "pad")
    if pad is None or pad.attrs["mode"] != "constant" or len(root.outputs) > 1:
        return None
    rank = len(g.type(root.used[0]).shape)
    pads = _pads_by_axis(g, pad, rank)
    if pads is None or not _pads_alike(g, root, pad):
        return None
    channel = channel_axis(root, rank)
    spatial = [axis for axis in range(1, rank) if axis != channel]
    if np.any(pads < 0) or np.any(np.delete(pads, spatial, axis=1)):
        return None
    more = pads[:, spatial].ravel()
    together = [int(a) + int(b) for a, b in zip(root.attrs["pads"] or 0 * more, more, strict=True)]
    if root.op == "max_pool" and not _reaches_all(root, together):
        return None
    attrs = dict(root.attrs) | {"pads": tuple(together)}
    if root.op == "average_pool":
        attrs["count_include_pad"] = 1
    inputs = [pad.used[0], *root.inputs[1:]]
    return (g.add(root.op, inputs, attrs, [pad, root], g.type(root.outputs[0]).quant),)


def _pads_by_axis(g: GraphRewriter, pad: Node, rank: int) -> Array | None:
    """Return [2, rank]: elements before and after each axis, None when they are not constant."""
    inputs = (*pad.inputs, None, None)
    pads, axes = g.data(inputs[1]), g.data(inputs[3])
    if pads is None or (inputs[3] is not None and axes is None):
        return None
    wide = np.zeros((2, rank), np.int64)
    wide[:, np.arange(rank) if axes is None else axes % rank] = pads.reshape(2, -1)
    return wide


def _pads_alike(g: GraphRewriter, root: Node, pad: Node) -> bool:
    """Whether the root pads with the same value as the pad node."""
    inputs = (*pad.inputs, None, None)
    given = g.data(inputs[2])
    if inputs[2] is not None and (given is None or given.size != 1):
        return False
    value = 0 if given is None else given.reshape(()).item()
    quant = g.type(root.used[0]).quant
    if g.type(pad.used[0]).quant != quant:
        return False
    if root.op == "max_pool":
        low = -math.inf if quant is None and g.type(root.used[0]).dtype in FLOATS else None
        return value == low or (value == 0 and quant is None and _is_positive(g, pad.used[0]))
    if root.op == "average_pool" and not _counts_pads(root):
        return False
    return bool(value == (0 if quant is None else quant.zero_point))


def _counts_pads(root: Node) -> bool:
    """Whether padding the input is the same as padding the pooling and counting the pads."""
    own = any(root.attrs["pads"] or ())
    return not root.attrs["ceil_mode"] and (not own or bool(root.attrs["count_include_pad"]))


def _reaches_all(root: Node, pads: list[int]) -> bool:
    """Whether every window of a pooling holds at least one element of its input."""
    kernel = root.attrs["kernel"]
    shorter = all(p < k for p, k in zip(pads, (*kernel, *kernel), strict=True))
    return shorter and not root.attrs["ceil_mode"] and set(root.attrs["dilations"] or (1,)) == {1}


def _is_positive(g: GraphRewriter, value: int) -> bool:
    """Whether a value is known to be nowhere negative."""
    node = g.producer(value)
    if node is None or g.is_quantized(node):
        return False
    limits = clamp_limits(g, node)
    return limits is not None and limits[0] >= 0


def residual_into(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """conv(x, w, b) + y -> conv(x, w, b, y), for the later conv of two.

    The node runs in the conv's place if y exists by then. Otherwise it runs in the add's place, and
    the conv's inputs live longer than its output did. That is done only if it takes no more memory.
    """
    if g.is_quantized(root) or g.type(root.outputs[0]).dtype not in FLOATS:
        return None
    found = []
    for value, other in (root.used, root.used[::-1]):
        node = g.only_for(value, root, "conv", "fully_connected")
        if node is None or node.attrs["activation"] or len(node.inputs) > 3:
            continue
        if g.type(value) != g.type(other) or g.data(other) is not None or g.is_quantized(node):
            continue
        is_there = g.is_before(other, node)
        if is_there or _reads_no_more(g, node):
            found.append((is_there, node.id, node, other))
    if not found:
        return None
    is_there, _, node, other = max(found, key=lambda entry: entry[:2])
    inputs = [*node.inputs, None][:3] + [other]
    attrs = dict(node.attrs) | {"activation": root.attrs["activation"]}
    return (g.add(node.op, inputs, attrs, [node, root], at=node if is_there else None),)


def _reads_no_more(g: GraphRewriter, node: Node) -> bool:
    """Whether the run-time inputs of a node take no more memory than its outputs."""
    read = [g.type(value) for value in dict.fromkeys(node.used) if g.data(value) is None]
    made = g.type(node.outputs[0])
    if len(read) == 1 and (read[0].shape, read[0].dtype) == (made.shape, made.dtype):
        return True
    known = all(type.is_static for type in (*read, made))
    return known and sum(type.nbytes for type in read) <= made.nbytes


def activation_into(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """relu(conv(x)) -> conv(x) with activation relu; also for other pairs."""
    name = _activation_name(g, root)
    node = g.producer(root.used[0])
    if name is None or node is None or not _takes(node.op, name):
        return None
    if g.only_for(root.used[0], root, node.op) is None or node.attrs["activation"]:
        return None
    type, quant = g.type(root.outputs[0]), g.type(root.outputs[0]).quant
    if g.type(root.used[0]) != type or (quant is None and type.dtype not in FLOATS):
        return None
    if quant and g.is_quantized(node) and not (named_clamp(name) and _ends_in_a_clamp(node.op)):
        return None
    attrs = dict(node.attrs) | {"activation": name}
    return (g.add(node.op, node.inputs, attrs, [node, root], quant, at=node),)


def _activation_name(g: GraphRewriter, root: Node) -> str | None:
    """Return the name in ACTIVATIONS of a node's function, None when it has none."""
    name: str | None = root.op
    if root.op == "clip":
        name = name_of_clamp(clamp_limits(g, root))
    elif root.op == "gelu":
        name = "gelu_tanh" if root.attrs["approximate"] == "tanh" else "gelu"
    elif root.op == "hard_sigmoid":
        same = close(root.attrs["alpha"], 1 / 6) and root.attrs["beta"] == 0.5
        name = "hard_sigmoid" if same else None
    elif root.op == "swish" and root.attrs["alpha"] != 1:
        name = None
    return name


def _takes(op: str, activation: str) -> bool:
    attr = get_op(op).attrs.get("activation")
    return attr is not None and activation in attr.choices


def _ends_in_a_clamp(op: str) -> bool:
    """Whether an op's integer form ends in a clamp, which can fuse an activation.

    The form of concat does not: it copies stored integers.
    """
    return bool(get_op(op).integer_form) and op != "concat"
