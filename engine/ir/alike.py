"""Keys of nodes that are alike: what types alone decide about one of them is so for all.

Layers of a network repeat. Alike nodes have the same op, attributes, wiring and symbolic types, and
small constants of equal contents.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import Array

_MOST_INTEGERS = 256
_MOST_FLOATS = 8
"""The most elements of a constant whose contents may decide about sizes: a scale of each axis."""


def likeness(
    graph: Graph, nodes: Sequence[Node], decided: Mapping[int, Hashable]
) -> tuple[Hashable, ...]:
    """Return a key that is equal for groups of nodes that are alike.

    decided: what tells apart the contents of values that are known before a run, by value
    """
    names: dict[int, int] = {}
    values: list[Hashable] = []

    def name(value: int | None) -> int | None:
        if value is None or value in names:
            return None if value is None else names[value]
        names[value] = len(names)
        type, data = graph.type(value), graph.values[value].data
        values.append((type, decided.get(value) if data is None else _contents_key(value, data)))
        return names[value]

    rows: list[Hashable] = []
    for node in nodes:
        wires = tuple(map(name, node.inputs)), tuple(map(name, node.outputs))
        rows.append((node.op, repr(sorted(node.attrs.items())), wires))
    return (*rows, *values)


def _contents_key(value: int, data: Array) -> Hashable:
    """Return what tells the contents of a constant apart; large ones of a type are alike."""
    if data.dtype == object:
        return "constant", value
    most = _MOST_INTEGERS if data.dtype.kind in "iub" else _MOST_FLOATS
    return "constant", data.tobytes() if data.size <= most else None
