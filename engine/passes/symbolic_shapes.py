"""symbolic_shapes: give open dimensions as expressions of symbols, where they follow from them.

A value that a node made with unknown dimensions gets dimensions such as "batch*seq", because the
shape tensors of the graph are followed. A reshape to computed sizes becomes one to constant
sizes where its input has the same symbols at the same places.
"""

from __future__ import annotations

from dataclasses import replace

from trireme.ir.contents import as_target, refined
from trireme.ir.graph import Graph, Node, TensorType, Value
from trireme.ir.rules import Rewritten
from trireme.support.dtypes import Array


def symbolic_shapes(graph: Graph) -> Rewritten:
    """Return the graph with the dimensions and constant reshapes that its symbols tell."""
    if all(value.type.is_static for value in graph.values.values()):
        return Rewritten(graph)
    types, known = refined(graph)
    changed = {value: type for value, type in types.items() if type != graph.type(value)}
    values = dict(graph.values)
    for value, type in changed.items():
        values[value] = replace(values[value], type=type)
    nodes, targets = list[Node](), 0
    for node in graph.nodes:
        target = _constant_target(node, values, known)
        if target is not None:
            fresh = max(values) + 1
            values[fresh] = Value(fresh, "shape", TensorType(target.shape, "int64"), target)
            node = replace(
                node, inputs=(node.inputs[0], fresh), attrs={**node.attrs, "allowzero": 0}
            )
            targets += 1
        nodes.append(node)
    counts = {"dimensions": len(changed), "reshape_targets": targets}
    counts = {name: count for name, count in counts.items() if count}
    if not counts:
        return Rewritten(graph)
    return Rewritten(replace(graph, nodes=tuple(nodes), values=values), counts)


def _constant_target(node: Node, values: dict[int, Value], known: dict[int, Array]) -> Array | None:
    """Return the constant sizes of a reshape to computed sizes, where there are such."""
    if node.op != "reshape" or node.inputs[1] not in known:
        return None
    dims = known[node.inputs[1]].reshape(-1).tolist()
    if node.attrs["allowzero"] and 0 in dims:
        return None
    return as_target(dims, values[node.used[0]].type)
