"""The end of a product, before a vector is stored: bias, residual, activation, chain.

The nodes of a chain are the product's own node and the elementwise nodes fused behind it. An
operand has the output's shape, one element a channel, or one element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trireme.devices.opencl.kernels.expressions import statements
from trireme.devices.opencl.kernels.source import Lanes, activation
from trireme.devices.opencl.lowering import C_TYPES, Lowering, Pointer
from trireme.ir.graph import Graph, Node


class Finish(Protocol):
    """Finishes a vector of sums: statements, the tensors they read, and facts for kernel names."""

    tensors: list[Pointer]

    @property
    def scalars(self) -> dict[str, int]:
        """The int arguments that the statements read."""

    @property
    def kind(self) -> str:
        """The dtype in names of kernels."""

    def code(self, value: str, lanes: Lanes, at: str, o: str) -> list[str]:
        """Return statements that finish the variable `value` and store it at element `at`.

        `o` is the expression of the first channel. Every call reads the same operands, so that
        `tensors` is complete after the first.
        """

    def target(self) -> Pointer:
        """Return the tensor argument y to store to."""

    @property
    def fused(self) -> tuple[str, ...]:
        """The ops fused behind the product, for the kernel's name."""


@dataclass
class FloatEpilogue:
    """The float form: bias, residual, activation and fused elementwise nodes."""

    low: Lowering
    chain: Sequence[Node]
    tensors: list[Pointer] = field(default_factory=list)

    @property
    def scalars(self) -> dict[str, int]:
        """No int arguments."""
        return {}

    @property
    def kind(self) -> str:
        """The dtype in names of kernels."""
        return "f32"

    @property
    def output(self) -> int:
        """The value that is stored."""
        return self.chain[-1].outputs[0]

    def target(self) -> Pointer:
        """Return the tensor argument to store to."""
        dtype = self.low.graph.type(self.output).dtype
        return Pointer("y", C_TYPES[dtype], self.low.ref(self.output), writes=True)

    @property
    def fused(self) -> tuple[str, ...]:
        """The ops of the chain behind its first."""
        return tuple(node.op for node in self.chain[1:])

    def code(self, value: str, lanes: Lanes, at: str, o: str) -> list[str]:
        """Return statements that finish the float variable `value` and store it."""
        self.tensors = []
        graph, node = self.low.graph, self.chain[0]
        lines = []
        bias = node.inputs[2] if has_bias(node) else None
        if bias is not None:
            self.tensors.append(Pointer("bias", "float", self.low.ref(bias)))
            lines.append(f"{value} += {lanes.load('float32', f'bias + {o}')};")
        residual = node.inputs[3] if has_bias(node) and len(node.inputs) > 3 else None
        if residual is not None:
            lines.append(f"{value} += {self._operand(residual, lanes, at, o)};")
        fused = str(node.attrs.get("activation", ""))
        if fused:
            lines.append(f"{value} = {activation(fused, value, lanes)};")
        names = {node.outputs[0]: value}
        for i, each in enumerate(self.chain[1:]):
            operands = [
                None if v is None else names.get(v) or f"({self._operand(v, lanes, at, o)})"
                for v in each.inputs
            ]
            names[each.outputs[0]] = f"f{i}"
            lines += statements(graph, each, operands, f"f{i}", lanes)
        stored = names[self.output]
        lines.append(lanes.store(graph.type(self.output).dtype, stored, f"y + {at}"))
        return lines

    def _operand(self, value: int, lanes: Lanes, at: str, o: str) -> str:
        type = self.low.graph.type(value)
        name = f"e{len(self.tensors)}"
        self.tensors.append(Pointer(name, C_TYPES[type.dtype], self.low.ref(value)))
        if type.elements == 1:
            return lanes.splat("float", Lanes(1).load(type.dtype, name))
        whole = self.low.graph.type(self.chain[0].outputs[0])
        place = at if type.elements == whole.elements else o
        return lanes.load(type.dtype, f"{name} + {place}")


def has_bias(node: Node) -> bool:
    """Whether a node has a bias."""
    return node.op in ("conv", "fully_connected") and len(node.inputs) > 2


def fits(graph: Graph, product: Node, follower: Node) -> bool:
    """Whether an epilogue can read an elementwise node's operands."""
    dims = graph.type(product.outputs[0]).dims
    has_channels = product.op != "matmul" or len(graph.type(product.used[1]).dims) > 1
    for value in follower.used:
        shape = graph.type(value).dims
        per_channel = (
            has_channels and shape[-1:] == dims[-1:] and all(size == 1 for size in shape[:-1])
        )
        if not (graph.type(value).elements == 1 or shape == dims or per_channel):
            return False
    return True
