"""Keys of nodes that are alike: what types alone decide about one of them is so for all.

Layers of a network repeat. Alike nodes have the same op, attributes, wiring and symbolic types, and
small constants of equal contents. The same graph may be made again, for other shapes around it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from trireme.ir.graph import Graph, Node, digest, hashable
from trireme.support.dtypes import Array
from trireme.support.records import dataclass

_MOST_DIGESTED = 1 << 16
"""The most elements of a constant that is compared by its contents."""
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


@dataclass(frozen=True, eq=False)
class _Itself:
    """An array that equals itself alone, as a key that keeps it alive."""

    array: Array

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.array is self.array

    def __hash__(self) -> int:
        return id(self.array)


def _told_apart(data: Array) -> Hashable:
    return digest(data) if data.size <= _MOST_DIGESTED else _Itself(data)


class Sameness:
    """A key of many parts, which is hashed once: a graph's key is looked up in every run."""

    def __init__(self, parts: tuple[Hashable, ...]) -> None:
        self.parts, self._hash = parts, hash(parts)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Sameness) and self.parts == other.parts)

    def __hash__(self) -> int:
        return self._hash


def sameness(graph: Graph) -> Sameness:
    """Return a key that is equal for graphs that compute the same, but for the ids and names.

    A large constant is the same only where the array is.
    """
    nodes = {node.id: k for k, node in enumerate(graph.nodes)}
    made = (out for node in graph.nodes for out in node.outputs)
    read = (value for node in graph.nodes for value in node.used)
    order = dict.fromkeys((*graph.inputs, *made, *read, *graph.outputs))
    places: dict[int | None, int] = {value: k for k, value in enumerate(order)}
    values = []
    for value in order:
        type, data = graph.type(value), graph.values[value].data
        contents = None if data is None else _told_apart(data)
        values.append((type, contents))
    rows = []
    for node in graph.nodes:
        attrs = tuple(
            (name, sameness(value) if isinstance(value, Graph) else hashable(value))
            for name, value in sorted(node.attrs.items())
        )
        wires = tuple(map(places.get, node.inputs)), tuple(map(places.get, node.outputs))
        rows.append((node.op, wires, attrs, node.pin, tuple(nodes.get(n) for n in node.after)))
    ends = tuple(places[value] for value in (*graph.inputs, *graph.outputs))
    symbols = tuple(sorted(graph.symbols.items()))
    return Sameness((len(graph.inputs), ends, tuple(values), tuple(rows), symbols))
