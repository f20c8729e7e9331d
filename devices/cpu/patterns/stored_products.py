"""Find products of two stored activations whose operands or result only lie in another order.

    [views of] a, b; matmul(a, b) on 8-bit integers -> [transpose]

A node belongs when nobody outside reads its result. Transposes and reshapes are walked through as
strides (views.py), which the kernel of the product reads and writes.
"""

from __future__ import annotations

from collections.abc import Sequence

from trireme.devices.cpu.kernels.int8.matmul import StoredOperands, matmul_steps
from trireme.devices.cpu.kernels.int8.matmul_layout import MatmulLayout, MatrixStrides
from trireme.devices.cpu.kernels.lowering import Context, Step, native_reason
from trireme.devices.cpu.patterns.views import (
    Axis,
    StridedView,
    is_stored,
    order_of,
    path_to,
    plain,
)
from trireme.ir.graph import Graph, Node
from trireme.support.records import dataclass


@dataclass(frozen=True)
class StoredProduct:
    """A product in a graph: its nodes in order, and where its operands lie."""

    nodes: tuple[Node, ...]
    values: StoredOperands
    layout: MatmulLayout

    def lower(self, context: Context) -> list[Step]:
        """Return the steps that compute it."""
        return matmul_steps(context, self.values, self.layout)


def find_stored_products(graph: Graph) -> list[StoredProduct]:
    """Return the products with nodes beside the matmul that become strides."""
    found = (_product(graph, node) for node in graph.nodes if _multiplies(graph, node))
    return [one for one in found if one is not None]


def _multiplies(graph: Graph, node: Node) -> bool:
    is_matmul = node.op == "matmul" and graph.type(node.used[0]).quant is not None
    return is_matmul and native_reason(graph, node) is None


def _product(graph: Graph, node: Node) -> StoredProduct | None:
    left, right = (path_to(graph, value, node, is_stored) for value in node.used)
    if not (left.own or right.own or _transpose_after(graph, node)):
        return None
    for after in dict.fromkeys((_transpose_after(graph, node), None)):
        views = [left.at(graph), right.at(graph), _output(graph, node, after)]
        layout = None if None in views else _layout([view for view in views if view is not None])
        if layout is not None:
            nodes = {*left.own, *right.own, node} | ({after} if after else set())
            values = [view.value for view in views if view is not None]
            order = [one for one in graph.nodes if one in nodes]
            return StoredProduct(tuple(order), StoredOperands(node, *values), layout)
    return None


def _transpose_after(graph: Graph, node: Node) -> Node | None:
    """Return the transpose that alone reads a product's result."""
    value = node.outputs[0]
    users = graph.users(value)
    if graph.is_output(value) or len(users) != 1 or users[0].op != "transpose":
        return None
    return users[0] if is_stored(graph, users[0]) else None


def _output(graph: Graph, node: Node, after: Node | None) -> StridedView | None:
    """Return the product's result as it lies in the memory of what is made."""
    if after is None:
        return plain(graph, node.outputs[0])
    order = order_of(graph, after)
    made = plain(graph, after.outputs[0])
    return made.transposed([order.index(axis) for axis in range(len(order))])


def _layout(views: Sequence[StridedView]) -> MatmulLayout | None:
    """Return the layout of left, right and output; None where the kernel cannot walk them."""
    left, right, output = views
    rank = len(output.axes) - 2
    sizes = output.shape[:rank]
    sides = []
    for view in views:
        axes: tuple[Axis, ...] = (((1, 0),),) * (rank + 2 - len(view.axes)) + view.axes
        if any(len(axis) != 1 for axis in axes):
            return None
        strides = [step if size > 1 else 0 for ((size, step),) in axes[:rank]]
        row, column = axes[rank][0][1], axes[rank + 1][0][1]
        sides.append(MatrixStrides(row, column, tuple(strides)))
    across = [side.column for side in (sides[0], sides[2])]
    if across != [1, 1] or 1 not in (sides[1].row, sides[1].column):
        return None
    rows, columns = output.shape[rank:]
    return MatmulLayout(rows, left.shape[-1], columns, sizes, *sides).with_rows_joined()
