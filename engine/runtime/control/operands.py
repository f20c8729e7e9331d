"""The memory of a control node's operands and outputs, as a driver finds it."""

from __future__ import annotations

from collections.abc import Sequence

from trireme.backend.device import Buffer, host_view
from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import Array
from trireme.support.errors import InternalError, RunError
from trireme.support.records import dataclass


@dataclass(frozen=True)
class ControlOperands:
    """Where the operands and outputs of a node lie, in host memory.

    inputs: of each operand, None where one is left out
    """

    graph: Graph
    node: Node
    inputs: Sequence[Buffer | None]
    outputs: Sequence[Buffer]

    def view(self, position: int) -> Array | None:
        """Return an operand as an array; None where it is left out."""
        if position >= len(self.inputs):
            return None
        buffer, value = self.inputs[position], self.node.inputs[position]
        if buffer is None or value is None:
            return None
        return host_view(buffer, self.graph.type(value))

    def array(self, position: int) -> Array:
        """Return an operand that must be there as an array."""
        found = self.view(position)
        if found is None:
            raise InternalError(f"{self.node.label}: operand {position} is missing")
        return found

    def buffer(self, position: int) -> Buffer:
        """Return the memory of an operand that must be there."""
        found = self.inputs[position]
        if found is None:
            raise InternalError(f"{self.node.label}: operand {position} is missing")
        return found

    def output(self, position: int) -> Array:
        """Return the place of an output as an array."""
        return host_view(self.outputs[position], self.graph.type(self.node.outputs[position]))


def timed_out(node: Node, turns: int, timeout_s: float) -> RunError:
    """Return the error of a loop that takes longer than it may."""
    return RunError(
        f"{node.label} did not end within {timeout_s:g} s: {turns:,} turns are done",
        fix="a larger timeout_s, or a trip count",
    )


def endless(node: Node) -> RunError:
    """Return the error of a loop that nothing can end."""
    return RunError(
        f"{node.label} has no end: it has no trip count, and its condition stays true",
        fix="a trip count, or a condition that a turn computes",
    )
