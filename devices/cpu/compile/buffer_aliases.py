"""Whose memory each value lies in: an alias lies in its input's, an output may lend its own."""

from __future__ import annotations

from trireme.ir.graph import Graph, Node
from trireme.ir.op import get_op


def is_alias(graph: Graph, node: Node) -> bool:
    """Whether a node's output is its input's first bytes.

    So are a transpose that moves only axes of 1, and rows along the first axis that is longer.
    """
    if node.op not in ("transpose", "held_rows"):
        return get_op(node.op).alias
    shape = graph.type(node.used[0]).dims
    if node.op == "held_rows":
        return all(size == 1 for size in shape[: node.attrs["axis"] % len(shape)])
    order = [axis % len(shape) for axis in node.attrs["perm"] or range(len(shape))[::-1]]
    long = [axis for axis in order if shape[axis] != 1]
    return long == sorted(long)


def find_homes(
    graph: Graph, appends_in_place: bool = False
) -> tuple[dict[int, int], dict[int, tuple[int, int]]]:
    """Return whose memory each value lies in, and by node what the aliases that copy do copy.

    appends_in_place: whether rows are written where a buffer is, if it is a state's
    An alias lies in its input's memory; when it is an output of the graph, the input lies in the
    output's, unless that one is given or an output too, or has more bytes than the output.
    """
    buffer_aliases = {value: value for value in graph.values}
    shorter = set[int]()
    for node in graph.nodes:
        if is_alias(graph, node) or (appends_in_place and node.attrs.get("in_place")):
            buffer_aliases[node.outputs[0]] = buffer_aliases[node.used[0]]
            if node.op == "held_rows" or node.used[0] in shorter:
                shorter.add(node.outputs[0])
    given = {v.id for v in graph.values.values() if v.is_constant} | set(graph.inputs)
    outputs = dict.fromkeys(value for value in graph.outputs if value not in given)
    taken = {value: value for value in outputs if buffer_aliases[value] == value}
    copies: dict[int, tuple[int, int]] = {}
    for node in graph.nodes:
        output = node.outputs[0]
        if output not in outputs or output in taken:
            continue  # what is given the bound call copies
        home = buffer_aliases[output]
        if home in given or home in taken or output in shorter:
            copies[node.id] = (taken.get(home, home), output)
        else:
            taken[home] = output
    buffer_aliases = {value: taken.get(home, home) for value, home in buffer_aliases.items()}
    return buffer_aliases | {target: target for _, target in copies.values()}, copies
