"""Values as views of memory: what transposes, reshapes and broadcasts make of another value.

`path_to` walks back from a value over the nodes that only look at memory in another way, and over
products with a number, which it multiplies. `ViewPath.at` walks the same path forwards for one
shape. An axis is a list of factors, because a reshape may join axes that do not lie in one stride:
heads that share keys, [4, 2 times the same] -> [8].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from trireme.devices.cpu.kernels.copies import dense
from trireme.ir.graph import Graph, Node
from trireme.ir.op import get_op
from trireme.support.records import dataclass

Factor = tuple[int, int]
"""Size and stride."""
Axis = tuple[Factor, ...]


def size_of(axis: Axis) -> int:
    """Return the size of an axis."""
    return math.prod(size for size, _ in axis)


@dataclass(frozen=True)
class StridedView:
    """A value as it lies in memory: the value there, and the factors of each axis."""

    value: int
    axes: tuple[Axis, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each axis."""
        return tuple(map(size_of, self.axes))

    def stride(self, axis: int) -> int | None:
        """Return the stride of an axis; None where it has none alone."""
        factors = self.axes[axis]
        return factors[0][1] if len(factors) == 1 else None

    def transposed(self, order: Sequence[int]) -> StridedView:
        """Return the view with its axes in another order."""
        return StridedView(self.value, tuple(self.axes[axis] for axis in order))


Step = Callable[[Graph, tuple[Axis, ...]], tuple[Axis, ...] | None]


@dataclass(frozen=True)
class ViewPath:
    """The way from memory to a value.

    nodes: in order; own: those that no other node needs, so that they go with the reader
    steps: what each node does to the axes
    scale: the number that the value in memory is multiplied by
    """

    value: int
    nodes: tuple[Node, ...]
    own: tuple[Node, ...]
    steps: tuple[Step, ...]
    scale: float

    def at(self, graph: Graph) -> StridedView | None:
        """Return the view for the shapes of a graph; None where it is no strided view."""
        axes: tuple[Axis, ...] | None = plain(graph, self.value).axes
        for step in self.steps:
            axes = step(graph, axes) if axes is not None else None
        return None if axes is None else StridedView(self.value, axes)


def plain(graph: Graph, value: int) -> StridedView:
    """Return a value as it lies in its own memory."""
    dims = graph.type(value).dims
    return StridedView(value, tuple((pair,) for pair in zip(dims, dense(dims), strict=True)))


def path_to(
    graph: Graph, value: int, reader: Node, takes: Callable[[Graph, Node], bool] | None = None
) -> ViewPath:
    """Return the longest way to an operand of a node whose rows and columns have one stride.

    It ends at a node that others need too.

    takes: whether the way may go over a node; by default floats alone
    """
    takes = takes or is_float
    nodes: list[Node] = []
    own: list[Node] = []
    steps: list[Step] = []
    scale = 1.0
    axes: tuple[Axis, ...] | None
    is_own = True
    while is_own:
        node = graph.producer(value)
        found = None
        if node is not None and takes(graph, node):
            found = _step_of(graph, node)
        if node is None or found is None:
            break
        step, source, number = found
        axes = plain(graph, source).axes
        for one in (step, *reversed(steps)):
            axes = one(graph, axes) if axes is not None else None
        if axes is None or any(len(axis) != 1 for axis in axes[-2:]):
            break
        is_own = _is_only_for(graph, node, reader)
        nodes.append(node)
        own += [node] if is_own else []
        steps.append(step)
        value, reader, scale = source, node, scale * number
    return ViewPath(value, tuple(nodes[::-1]), tuple(own[::-1]), tuple(steps[::-1]), scale)


def _is_only_for(graph: Graph, node: Node, reader: Node) -> bool:
    value = node.outputs[0]
    return not graph.is_output(value) and all(user is reader for user in graph.users(value))


def order_of(graph: Graph, node: Node) -> list[int]:
    """Return the order of a transpose's axes."""
    rank = len(graph.type(node.used[0]).shape)
    return [axis % rank for axis in node.attrs["perm"] or range(rank)[::-1]]


def scale_step(graph: Graph, node: Node) -> tuple[int, float] | None:
    """Read a node as a product with a number: the scaled value and the factor."""
    if node.op not in ("mul", "div") or len(node.used) != 2 or node.attrs.get("activation"):
        return None
    for value, other in (node.used, node.used[::-1]):
        data = graph.values[other].data
        same = graph.type(value).shape == graph.type(node.outputs[0]).shape
        if data is not None and data.size == 1 and same:
            number = float(data.reshape(-1)[0])
            if node.op == "div" and (other != node.used[1] or not number):
                return None
            return value, number if node.op == "mul" else 1 / number
    return None


def _step_of(graph: Graph, node: Node) -> tuple[Step, int, float] | None:
    """Return what a node does to the axes, the value that it looks at, and its factor."""
    step: Step | None = None
    if node.op == "transpose":
        step = _turn(graph, node)
    elif node.op == "expand":
        step = _expansion(graph, node)
    elif node.op == "held_rows":
        step = _first_rows(node)
    elif get_op(node.op).alias:
        step = _regrouping(graph, node)
    if step is not None:
        return step, node.used[0], 1.0
    scaled = scale_step(graph, node)
    return None if scaled is None else ((lambda _, axes: axes), *scaled)


def is_float(graph: Graph, node: Node) -> bool:
    """Whether what a node reads and makes is float32 and not quantised."""
    types = [graph.type(i) for i in (node.used[0], *node.outputs)]
    return all(type.dtype == "float32" and type.quant is None for type in types)


def is_stored(graph: Graph, node: Node) -> bool:
    """Whether a node moves stored 8-bit integers and keeps their quantisation."""
    before, after = graph.type(node.used[0]), graph.type(node.outputs[0])
    same = before.quant == after.quant and before.dtype == after.dtype
    moves = node.op in ("transpose", "expand") or get_op(node.op).alias
    return moves and same and before.quant is not None and before.dtype in ("int8", "uint8")


def _turn(graph: Graph, node: Node) -> Step:
    order = order_of(graph, node)
    return lambda _, axes: tuple(axes[axis] for axis in order)


def _first_rows(node: Node) -> Step:
    """Return the step to the first rows of a buffer, whose strides they keep."""
    axis, out = node.attrs["axis"], node.outputs[0]

    def step(graph: Graph, axes: tuple[Axis, ...]) -> tuple[Axis, ...] | None:
        place = axis % len(axes)
        if len(axes[place]) != 1:
            return None
        rows = ((graph.type(out).dims[place], axes[place][0][1]),)
        return (*axes[:place], rows, *axes[place + 1 :])

    return step


def _expansion(graph: Graph, node: Node) -> Step:
    source, out = node.used[0], node.outputs[0]
    before, after = graph.type(source).dims, graph.type(out).dims
    missing = len(after) - len(before)
    repeated = [
        axis < missing or (before[axis - missing] == 1 and size != 1)
        for axis, size in enumerate(after)
    ]

    def step(graph: Graph, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        sizes = graph.type(out).dims
        return tuple(
            ((sizes[axis], 0),) if again else axes[axis - missing]
            for axis, again in enumerate(repeated)
        )

    return step


def _runs(before: Sequence[int], after: Sequence[int]) -> list[tuple[int, int]] | None:
    """Return how many axes become how many: n become 1, 1 becomes n; 0 for an axis of 1."""
    runs: list[tuple[int, int]] = []
    i = j = 0
    while i < len(before) or j < len(after):
        x = before[i] if i < len(before) else 1
        y = after[j] if j < len(after) else 1
        if i < len(before) and j < len(after) and x == y:
            run = (1, 1)
        elif j < len(after) and y == 1:
            run = (0, 1)
        elif i < len(before) and x == 1:
            run = (1, 0)
        elif i < len(before) and j < len(after) and 0 not in (x, y):
            joins = x < y
            many, whole = (before[i:], y) if joins else (after[j:], x)
            count = _count(many, whole)
            if count is None:
                return None
            run = (count, 1) if joins else (1, count)
        else:
            return None
        runs.append(run)
        i, j = i + run[0], j + run[1]
    return runs


def _count(sizes: Sequence[int], whole: int) -> int | None:
    """Return how many of the first sizes have that product."""
    made = 1
    for count, size in enumerate(sizes, 1):
        made *= size
        if made == whole:
            return count
    return None


def _regrouping(graph: Graph, node: Node) -> Step | None:
    out = node.outputs[0]
    found = _runs(graph.type(node.used[0]).dims, graph.type(out).dims)
    if found is None:
        return None
    runs = found

    def step(graph: Graph, axes: tuple[Axis, ...]) -> tuple[Axis, ...] | None:
        sizes = graph.type(out).dims
        made: list[Axis] = []
        i = 0
        for taken, given in runs:
            parts = sizes[len(made) : len(made) + given]
            if taken == 0:
                made.append(((1, 0),))
            elif given == 1:
                made.append(tuple(factor for axis in axes[i : i + taken] for factor in axis))
            elif given:
                split = split_axis(axes[i], parts)
                if split is None:
                    return None
                made += [(factor,) for factor in split]
            i += taken
        return tuple(made)

    return step


def split_axis(axis: Axis, sizes: Sequence[int]) -> Axis | None:
    """Return an axis as factors of these sizes; None where they do not fit."""
    if len(axis) == 1 and axis[0][0] == math.prod(sizes):
        return tuple(
            (size, step * axis[0][1]) for size, step in zip(sizes, dense(sizes), strict=True)
        )
    return axis if [size for size, _ in axis] == list(sizes) else None
