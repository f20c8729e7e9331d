"""Ops that are linear in their weights, for the passes: conv, conv_transpose, fully_connected.

Weights are changed in float64 and rounded once to their dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trireme.ir.graph import Dim, Node
from trireme.ir.rewriter import GraphRewriter
from trireme.support.dtypes import FLOATS, Array
from trireme.support.records import dataclass

LINEAR = ("conv", "conv_transpose", "fully_connected")


@dataclass(frozen=True)
class Linear:
    """A linear node of constant weights: y = activation(weights * x + bias + residual).

    Shapes: weights as the op has them, bias [O] or None
    """

    node: Node
    weights: Array
    bias: Array | None
    residual: int | None

    @property
    def groups(self) -> int:
        """The groups that channels come in."""
        return int(self.node.attrs.get("groups", 1))

    @property
    def channels(self) -> int:
        """The number of output channels, O."""
        if self.node.op != "conv_transpose":
            return int(self.weights.shape[0])
        return int(self.weights.shape[self._in_axis]) * self.groups

    @property
    def _in_axis(self) -> int:
        """The axis of the weights that is a group's other channels: C/g, or M/g transposed."""
        return 1 if self.node.attrs.get("layout") == "NCHW" else self.weights.ndim - 1

    def scaled(self, factor: Array) -> Linear:
        """Return the node with output channel o multiplied by factor[o]."""
        bias = None if self.bias is None else self.bias * factor
        if self.node.op == "conv_transpose":
            per_group = factor.reshape(self.groups, 1, -1)
            wide = np.broadcast_to(per_group, self._transposed_pairs)
            return replace(self, weights=self._times(wide), bias=bias)
        return replace(self, weights=_along(self.weights, factor, 0), bias=bias)

    def scaled_input(self, factor: Array) -> Linear:
        """Return the node with input channel c multiplied by factor[c] before it."""
        if self.node.op == "conv_transpose":
            return replace(self, weights=_along(self.weights, factor, 0))
        return replace(self, weights=self._times(self._per_pair(factor)))

    def shifted_input(self, offset: Array) -> Linear:
        """Return the node with offset[c] added to input channel c before it; no pads allowed."""
        pairs = np.moveaxis(self.weights, self._in_axis, 1).astype(np.float64)
        taps = pairs.reshape(*pairs.shape[:2], -1).sum(axis=2)
        extra = (taps * self._per_pair(offset)).sum(axis=1)
        return self.shifted(extra)

    def shifted(self, offset: Array) -> Linear:
        """Return the node with offset[o] added to output channel o."""
        return replace(self, bias=offset if self.bias is None else self.bias + offset)

    @property
    def _transposed_pairs(self) -> tuple[int, int, int]:
        groups = self.groups
        return groups, self.weights.shape[0] // groups, self.channels // groups

    def _per_pair(self, vector: Array) -> Array:
        """Return [O, C/g] with the entry of vector [C] for each pair of channels."""
        outputs = self.channels // self.groups
        return np.repeat(vector.reshape(self.groups, -1), outputs, axis=0)

    def _times(self, pairs: Array) -> Array:
        """Return the weights times [first axis, in axis] factors, given flat or by groups."""
        shape = [1] * self.weights.ndim
        shape[0], shape[self._in_axis] = self.weights.shape[0], self.weights.shape[self._in_axis]
        return self.weights * pairs.reshape(shape)

    def added_to(self, g: GraphRewriter, of: Sequence[Node], **attrs: Any) -> int | None:
        """Add the node to a rewriter; None when a weight would overflow."""
        kept = g.data(self.node.inputs[1])
        dtype = np.float32 if kept is None else kept.dtype
        with np.errstate(all="ignore"):
            arrays = [a if a is None else a.astype(dtype) for a in (self.weights, self.bias)]
        if not all(a is None or np.all(np.isfinite(a)) for a in arrays):
            return None
        weights, bias = (None if a is None else g.constant(a) for a in arrays)
        inputs = [self.node.inputs[0], weights, bias, self.residual]
        return g.add(self.node.op, inputs, dict(self.node.attrs) | attrs, of)


def _along(weights: Array, factor: Array, axis: int) -> Array:
    shape = [1] * weights.ndim
    shape[axis] = len(factor)
    return weights * factor.reshape(shape)


def as_linear(g: GraphRewriter, node: Node | None, active: bool = False) -> Linear | None:
    """Return the node as Linear if its weights are float constants.

    A node with an activation is refused unless `active`: no linear operation moves past an
    activation.
    """
    if node is None or g.is_quantized(node) or (node.attrs.get("activation") and not active):
        return None
    weights = g.data(node.inputs[1])
    inputs = (*node.inputs, None, None)
    bias = g.data(inputs[2])
    if weights is None or (inputs[2] is not None and bias is None):
        return None
    if g.type(node.used[1]).dtype not in FLOATS or not np.all(np.isfinite(weights)):
        return None
    wide = weights.astype(np.float64)
    return Linear(node, wide, None if bias is None else bias.astype(np.float64), inputs[3])


def channel_axis(node: Node, rank: int) -> int:
    """Return the axis of the channels of a linear, pooling or batch-norm node's x and y."""
    return 1 if node.attrs.get("layout") == "NCHW" else rank - 1


def per_channel(data: Array, shape: Sequence[Dim], axis: int) -> Array | None:
    """Return a constant as one number a channel of a value of that shape.

    None when it varies along another axis, or would make the value larger.
    """
    channels, rank = shape[axis], len(shape)
    if data.ndim > rank or not isinstance(channels, int) or data.dtype.kind == "O":
        return None
    wide = data.reshape((1,) * (rank - data.ndim) + data.shape)
    if any(dim != 1 for i, dim in enumerate(wide.shape) if i != axis):
        return None
    if wide.shape[axis] not in (1, channels):
        return None
    return np.broadcast_to(wide.reshape(-1).astype(np.float64), (channels,))
