"""known_branches: control flow with a constant decision becomes plain nodes.

An `if` with a constant condition becomes the nodes of its branch. A `scan` of a known length
becomes its steps one after another, up to MOST_UNROLLED nodes. So does a `loop` of a known number
of turns, up to MOST_TURNED nodes: it runs inside native code anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trireme.ir.graph import Graph, Node
from trireme.ir.op import get_op
from trireme.ir.rewriter import GraphRewriter
from trireme.ir.rules import Rewritten, apply, rewritten, rules_by_op
from trireme.ops.repeats import bodies_of
from trireme.support.dtypes import Array

MOST_UNROLLED = 1000
"""The most nodes of an unrolled scan."""
MOST_TURNED = 8
"""The most nodes of an unrolled loop. On small tensors, a loop of so many takes 1.2 to 1.9 times as
long: it costs two microseconds beside its turns. Devices that take no loop may take the nodes. A
longer chain of elementwise nodes, fused, was slower than turns.
"""


def known_branches(graph: Graph) -> Rewritten:
    """Replace an if by its branch, and a short scan or loop by its steps, where they are known."""
    rules = rules_by_op(
        (["if"], branch_taken), (["scan"], steps_of_scan), (["loop"], turns_of_loop)
    )
    return apply(graph, rules)


def without_branch(graph: Graph, node: int, branch: str) -> Graph:
    """Return a graph with the other branch in place of an `if`; as it is where that has effects."""

    def other(g: GraphRewriter, root: Node) -> tuple[int, ...] | None:
        if root.id != node or None in root.inputs:
            return None
        return _branch(g, root, "else_branch" if branch == "then_branch" else "then_branch")

    return rewritten(graph, rules_by_op((["if"], other)))


def branch_taken(g: GraphRewriter, root: Node) -> tuple[int, ...] | None:
    """if(constant) -> the outputs of then_branch or of else_branch."""
    condition = g.data(root.used[0])
    if condition is None or condition.size != 1 or None in root.inputs:
        return None
    return _branch(g, root, "then_branch" if condition.reshape(()) else "else_branch")


def _branch(g: GraphRewriter, root: Node, name: str) -> tuple[int, ...] | None:
    """Return the outputs of a branch of an `if`; None where the branch has effects."""
    body: Graph = root.attrs[name]
    if not _is_plain(body):
        return None
    return tuple(_inlined(g, root, body, root.used[1:])[: len(root.outputs)])


def steps_of_scan(g: GraphRewriter, root: Node) -> tuple[int, ...] | None:
    """scan of a known length -> its steps: each takes its slices, and the last states stay."""
    body: Graph = root.attrs["body"]
    carried, scanned = root.attrs["carried"], root.attrs["num_scan_inputs"]
    count = _steps(g, root)
    if not 0 < count * len(body.nodes) <= MOST_UNROLLED or not _is_plain(body):
        return None
    if None in root.inputs or g.is_quantized(root):
        return None
    states = list(root.used[:carried])
    captures = root.used[carried + scanned :]
    made: list[list[int]] = []
    for step in range(count):
        slices = [_slice(g, root, k, step, count) for k in range(scanned)]
        outputs = _inlined(g, root, body, [*states, *slices, *captures])
        states = outputs[:carried]
        made.append(outputs[carried:])
    stacks = [_stack(g, root, k, [row[k] for row in made]) for k in range(len(made[0]))]
    return tuple(_distinct(g, root, [*states, *stacks])[: len(root.outputs)])


def turns_of_loop(g: GraphRewriter, root: Node) -> tuple[int, ...] | None:
    """loop of a known trip count that no condition ends -> its turns one after another."""
    body: Graph = root.attrs["body"]
    carried, values = root.attrs["carried"], [one for one in root.inputs[2:] if one is not None]
    count = _turns(g, root)
    if not 0 < count * _nodes_in(body) <= MOST_TURNED or not _is_plain(body):
        return None
    if None in root.inputs[2:] or g.is_quantized(root):
        return None
    states, captures = values[:carried], values[carried:]
    made: list[list[int]] = []
    for turn in range(count):
        first = [g.constant(np.array(turn, np.int64)), g.constant(np.array(True))]
        outputs = _inlined(g, root, body, [*first, *states, *captures])
        states = outputs[1 : 1 + carried]
        made.append(outputs[1 + carried :])
    stacks = [_joined(g, root, [row[k] for row in made], 0, False) for k in range(len(made[0]))]
    return tuple(_distinct(g, root, [*states, *stacks])[: len(root.outputs)])


def _turns(g: GraphRewriter, root: Node) -> int:
    """Return the turns of a loop, 0 where they are unknown."""
    trips, condition = (*root.inputs, None, None)[:2]
    known = g.data(trips)
    if known is None or (condition is not None and not _is_true(g.data(condition))):
        return 0
    body: Graph = root.attrs["body"]
    goes_on = body.outputs[0] == body.inputs[1] or _is_true(body.values[body.outputs[0]].data)
    return int(known.reshape(-1)[0]) if goes_on else 0


def _is_true(data: Array | None) -> bool:
    return data is not None and bool(data.reshape(-1)[0])


def _nodes_in(body: Graph) -> int:
    """Return the number of nodes of a body, those of bodies inside included."""
    inner = (one for node in body.nodes for one in bodies_of(node).values())
    return len(body.nodes) + sum(map(_nodes_in, inner))


def _is_plain(body: Graph) -> bool:
    """Whether a body is free of effects."""
    return not any(node.after or get_op(node.op).effect for node in body.nodes)


def _inlined(g: GraphRewriter, root: Node, body: Graph, operands: Sequence[int]) -> list[int]:
    """Add the nodes of a body, given its inputs, and return its outputs."""
    values = dict(zip(body.inputs, operands, strict=True))
    for value in body.values.values():
        if value.data is not None:
            values[value.id] = g.constant(value.data, value.name, value.quant)
    for node in body.nodes:
        inputs = [None if i is None else values[i] for i in node.inputs]
        quants = [body.type(out).quant for out in node.outputs]
        made = g.add_many(node.op, inputs, node.attrs, [node], quants)
        values.update(zip(node.outputs, made, strict=True))
    return [values[out] for out in body.outputs]


def _axis(root: Node, name: str, k: int, rank: int) -> int:
    return int((root.attrs[name] or (0,) * (k + 1))[k]) % rank


def _steps(g: GraphRewriter, root: Node) -> int:
    """Return the length of a scan, 0 where it is unknown."""
    first = root.attrs["carried"]
    if not root.attrs["num_scan_inputs"]:
        return 0
    shape = g.type(root.used[first]).shape
    dim = shape[_axis(root, "scan_input_axes", 0, len(shape))]
    return dim if isinstance(dim, int) else 0


def _slice(g: GraphRewriter, root: Node, k: int, step: int, count: int) -> int:
    """Return a step's slice of the k-th scanned tensor."""
    x = root.used[root.attrs["carried"] + k]
    axis = _axis(root, "scan_input_axes", k, len(g.type(x).shape))
    is_reversed = (root.attrs["scan_input_directions"] or (0,) * (k + 1))[k]
    at = count - 1 - step if is_reversed else step
    start, end, along = (g.constant(np.array([number])) for number in (at, at + 1, axis))
    part = g.add("slice", [x, start, end, along], {}, [root])
    return g.add("squeeze", [part, along], {}, [root])


def _stack(g: GraphRewriter, root: Node, k: int, parts: Sequence[int]) -> int:
    """Return the k-th output of all steps, stacked along a new axis."""
    axis = _axis(root, "scan_output_axes", k, len(g.type(parts[0]).shape) + 1)
    is_reversed = (root.attrs["scan_output_directions"] or (0,) * (k + 1))[k]
    return _joined(g, root, parts, axis, bool(is_reversed))


def _joined(
    g: GraphRewriter, root: Node, parts: Sequence[int], axis: int, is_reversed: bool
) -> int:
    """Return the values of all turns, stacked along a new axis."""
    place = g.constant(np.array([axis]))
    rows = [g.add("unsqueeze", [part, place], {}, [root]) for part in parts]
    return g.add("concat", rows[::-1] if is_reversed else rows, {"axis": axis}, [root])


def _distinct(g: GraphRewriter, root: Node, values: Sequence[int]) -> list[int]:
    """Return distinct values made by nodes, with an identity where needed."""
    made: list[int] = []
    for value in values:
        plain = value not in made and value not in root.used and g.producer(value) is not None
        made.append(value if plain else g.add("identity", [value], {}, [root]))
    return made
