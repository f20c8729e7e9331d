"""Rules that rewrite nodes with float weights into nodes with smaller weights, by form.

A rule adds nodes with the same result but for the rounding of the weights, and tells how the
weights are stored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from trireme.ir.graph import Node
from trireme.ir.rewriter import GraphRewriter
from trireme.quantiser.blocks import RoundedBlocks, rounded_blocks
from trireme.quantiser.measure import decibels
from trireme.quantiser.scheme import WeightScheme
from trireme.support.dtypes import Array
from trireme.support.errors import InternalError


@dataclass(frozen=True)
class Rewriting:
    """The input of a rule: the rewriter, the node, and the scheme with its group."""

    g: GraphRewriter
    node: Node
    scheme: WeightScheme
    group: int

    @property
    def weights_id(self) -> int:
        """The value that the weights of the node are."""
        return self.node.used[self.scheme.ops[self.node.op]]

    @property
    def weights(self) -> Array:
        """The weights of the node."""
        data = self.g.data(self.weights_id)
        if data is None:
            raise InternalError(f"{self.node.label} has no constant weights")
        return data

    @property
    def name(self) -> str:
        """The name of the weights."""
        return self.g.values[self.weights_id].first_name

    def with_group(self, group: int) -> Rewriting:
        """Return the same with groups of another size."""
        return replace(self, group=group)

    def add(self, op: str, *inputs: int | None, **attrs: object) -> int:
        """Add a node that does a part of the node's work."""
        return self.g.add(op, inputs, attrs, [self.node])

    def constant(self, data: Array, what: str) -> int:
        """Add a constant."""
        return self.g.constant(data, f"{self.name}_{what}")


@dataclass(frozen=True)
class Stored:
    """How weights are stored after a rule: the sentence, the bytes, the ratio to their error."""

    form: str
    nbytes: int
    snr_db: float


def matmul_blocks(use: Rewriting) -> tuple[int, Stored]:
    """fully_connected(x, w, bias, residual) -> matmul_nbits, then what was fused."""
    node, scheme = use.node, use.scheme
    found = rounded_blocks(use.weights, scheme.bits, use.group)
    zeros = None if found.zeros is None else use.constant(found.zeros, "zeros")
    codes, scales = use.constant(found.packed(), "codes"), use.constant(found.scales, "scales")
    x, bias, residual = (node.inputs[at] if at < len(node.inputs) else None for at in (0, 2, 3))
    attrs = {"bits": scheme.bits, "block_size": use.group, "accuracy_level": 0}
    y = use.add("matmul_nbits", x, codes, scales, zeros, bias, **attrs)
    return finished(use, y, residual), _stored(use, found)


def finished(use: Rewriting, y: int, residual: int | None) -> int:
    """Return a product after its residual and its activation."""
    if residual is not None:
        y = use.add("add", y, residual)
    activation = str(use.node.attrs.get("activation", ""))
    if activation == "gelu_tanh":
        return use.add("gelu", y, approximate="tanh")
    return use.add(activation, y) if activation else y


def gather_blocks(use: Rewriting) -> tuple[int, Stored]:
    """gather(w, i) -> the codes of the rows, taken apart as floats, scaled after they are gathered.

    Two codes a byte: high = floor(byte / 16), low = byte - 16 high, exact in float32.
    """
    g, node, bits = use.g, use.node, use.scheme.bits
    found = rounded_blocks(use.weights, bits, use.group)
    indices = node.used[1]
    packed = found.packed().reshape(len(found.codes), -1)
    rows = use.add("gather", use.constant(packed, "codes"), indices, axis=0)
    last = use.constant(np.array([-1]), "last")
    codes = use.add("cast", rows, to="float32")
    kept = (0,) * len(g.type(indices).shape)
    if bits == 4:
        high = use.add(
            "floor", use.add("mul", codes, use.constant(np.array([1 / 16], np.float32), "part"))
        )
        low = use.add(
            "sub", codes, use.add("mul", high, use.constant(np.array([16], np.float32), "whole"))
        )
        pair = [use.add("unsqueeze", half, last) for half in (low, high)]
        codes = use.add("concat", *pair, axis=-1)
    groups = np.array([*kept, found.scales.shape[1], use.group])
    codes = use.add("reshape", codes, use.constant(groups, "groups"))
    zero: int | None = use.constant(np.array([1 << (bits - 1)], np.float32), "middle")
    if found.zeros is not None:
        zero = _rows_of(use, found.zeros.astype(np.float32), "zeros", indices, last)
    step = _rows_of(use, found.scales, "scales", indices, last)
    w = use.add("mul", use.add("sub", codes, zero), step)
    whole = use.constant(np.array([*kept, use.weights.shape[1]]), "whole_rows")
    return use.add("reshape", w, whole), _stored(use, found)


def _rows_of(use: Rewriting, table: Array, what: str, indices: int, last: int) -> int:
    rows = use.add("gather", use.constant(table, what), indices, axis=0)
    return use.add("unsqueeze", rows, last)


def _stored(use: Rewriting, found: RoundedBlocks) -> Stored:
    zeros = 0 if found.zeros is None else found.zeros.nbytes
    where = "symmetric" if found.zeros is None else "with zero points"
    return Stored(
        f"int{found.bits} in groups of {use.group}, {where}",
        found.packed().nbytes + found.scales.nbytes + zeros,
        decibels(found.signal, found.noise),
    )
