"""Find what is moved only to become a state: one copy puts it there.

    assign(slice(x)) -> a copy from x to the state's memory

A streaming net keeps the last rows of a window so.
"""

from __future__ import annotations

from trireme.devices.cpu.kernels.lowering import Context, StateMemory, Step, native_reason
from trireme.devices.cpu.kernels.movement.move import MOVES, move_step
from trireme.ir.effects import writes_state
from trireme.ir.graph import Graph, Node
from trireme.ir.op import get_op
from trireme.support.records import dataclass


@dataclass(frozen=True)
class MovedAssign:
    """A node that moves elements by one copy, and the assign that alone reads its result."""

    nodes: tuple[Node, Node]

    def lower(self, context: Context) -> list[Step]:
        """Return the copy to the state's memory."""
        mover, assign = self.nodes
        (move,) = MOVES[mover.op](context.graph, mover)
        target = StateMemory(assign.attrs["state"])
        return [move_step(context, assign, move, lambda _: move.copy, target)]


def find_moved_assigns(graph: Graph) -> list[MovedAssign]:
    """Return the assigns of what one copy moves."""
    assigns = [node for node in graph.nodes if writes_state(node)]
    movers = [graph.producer(node.used[0]) for node in assigns]
    return [
        MovedAssign((mover, assign))
        for mover, assign in zip(movers, assigns, strict=True)
        if mover is not None and _is_one_copy(graph, mover, assign)
    ]


def _is_one_copy(graph: Graph, mover: Node, assign: Node) -> bool:
    """Whether nobody else needs either result, and the source is still there after all steps."""
    if mover.op not in MOVES or any(native_reason(graph, one) for one in (mover, assign)):
        return False
    is_alone = len(graph.users(mover.outputs[0])) == 1 and not graph.is_output(mover.outputs[0])
    is_unread = not graph.users(assign.outputs[0]) and not graph.is_output(assign.outputs[0])
    moves = MOVES[mover.op](graph, mover) if is_alone and is_unread else []
    return len(moves) == 1 and not _is_in_state(graph, moves[0].source)


def _is_in_state(graph: Graph, value: int) -> bool:
    """Whether a value may lie in a state's memory, which another assign writes.

    What only moves elements may be a view.
    """
    node = graph.producer(value)
    while node is not None and node.op != "variable" and get_op(node.op).moves:
        node = graph.producer(node.used[0])
    return node is not None and node.op == "variable"
