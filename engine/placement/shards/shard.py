"""Shard nodes over devices: Graph -> Graph in which each device makes a stretch of the result.

A region of nodes (one, a chain, the whole graph) is repeated once a device, each copy making its
own stretch of what leaves the region, and the stretches are joined by a concat. Walking backwards,
every part learns which stretch of each value it needs; rows that two parts need (a window's halo)
are made by both. Slices and concats are ordinary nodes, free to be placed anywhere.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np

from trireme.ir.graph import Graph, Node, TensorType, Value
from trireme.ir.op import get_op
from trireme.ir.verify import check
from trireme.placement.shards.rules import Piece, Span, alignment, piece, refusal, type_of
from trireme.support.dtypes import Array
from trireme.support.errors import PlacementError
from trireme.support.records import dataclass

Kind = Literal["rows", "channels", "batch"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Needed = dict[int, Span | None]


@dataclass(frozen=True)
class ShardSpec:
    """A region over devices.

    nodes: ids of the region, with every node on a path between two of them
    kind: the axis of what leaves the region: "rows" (the first after the batch, of three axes or
        more), "channels" (the last), "batch" (the first)
    cuts: where one device's stretch ends and the next one's begins; one less than devices
    """

    nodes: tuple[int, ...]
    kind: Kind
    devices: tuple[str, ...]
    cuts: tuple[int, ...]


@dataclass(frozen=True)
class Parts:
    """A graph after one of its regions was sharded.

    device_of: node id -> device of the nodes that make the parts
    slices, joins: ids of the nodes that cut inputs, with the part's device, and that join parts
    """

    graph: Graph
    device_of: Mapping[int, str]
    slices: Mapping[int, str]
    joins: tuple[int, ...]


def axis_of(kind: Kind, type: TensorType) -> int:
    """Return the axis that a kind of shard cuts of a value; -1 where it has none."""
    rank = len(type.shape)
    axis = {"rows": 1 if rank >= 3 else -1, "channels": rank - 1, "batch": 0}[kind]
    return axis if 0 <= axis < rank else -1


def leaving(graph: Graph, region: Iterable[int]) -> list[int]:
    """Return the values that a region makes for others."""
    inside = set(region)
    outputs = set(graph.outputs)
    return [
        value
        for node in graph.nodes
        if node.id in inside
        for value in node.outputs
        if value in outputs or any(user.id not in inside for user in graph.users(value))
    ]


def extent(graph: Graph, nodes: Sequence[int], kind: Kind) -> tuple[int, int]:
    """Return how long the axis is that a shard of a region would cut, and what cuts are multiples
    of.

    Errors: PlacementError, if it has no such axis
    """
    values = leaving(graph, nodes)
    last = graph.producer(values[0]) if values else None
    if last is None:
        raise PlacementError("nothing leaves the nodes that are to be sharded")
    sizes = set()
    for value in values:
        axis = axis_of(kind, graph.type(value))
        sizes.add(graph.type(value).dims[axis] if axis >= 0 else 0)
    if len(sizes) > 1 or 0 in sizes:
        found = ", ".join(str(graph.type(value)) for value in values)
        raise refusal(last, f"what leaves it has no {kind} in common: {found}")
    return sizes.pop(), alignment(graph, last, axis_of(kind, graph.type(values[0])))


def shard(graph: Graph, wanted: ShardSpec) -> Parts:
    """Return the graph with a region sharded over devices; ids of all other nodes and values stay.

    Errors: PlacementError, saying which node cannot be sharded so and why
    """
    region = _region(graph, wanted)
    size, _ = extent(graph, wanted.nodes, wanted.kind)
    edges = (0, *wanted.cuts, size)
    if len(edges) != len(wanted.devices) + 1 or any(a >= b for a, b in zip(edges, edges[1:])):  # noqa: B905
        raise refusal(
            region[-1], f"{size} {wanted.kind} over {', '.join(wanted.devices)} at {wanted.cuts}"
        )
    making = _Making(graph, wanted, region)
    for device, start, stop in zip(wanted.devices, edges, edges[1:], strict=False):
        making.part(device, start, stop)
    return making.finish()


def _region(graph: Graph, wanted: ShardSpec) -> list[Node]:
    """Return the nodes of a shard in order; raise PlacementError if they cannot be one."""
    inside = set(wanted.nodes)
    region = [node for node in graph.nodes if node.id in inside]
    waited = {other for node in graph.nodes for other in node.after}
    for node in region:
        if get_op(node.op).effect or node.after or node.id in waited:
            raise refusal(node, "its place in the order of effects is fixed")
        if node.pin:
            raise refusal(node, f"it is pinned to {node.pin}")
    below: set[int] = set()
    for node in graph.nodes:
        makers = {maker.id for maker in map(graph.producer, node.used) if maker is not None}
        if node.id in inside and makers & below:
            raise refusal(node, "a path leaves the region and comes back")
        if node.id not in inside and makers & (below | inside):
            below.add(node.id)
    return region


class _Making:
    """The new graph while it is made: one part after another."""

    def __init__(self, graph: Graph, wanted: ShardSpec, region: list[Node]) -> None:
        self.graph, self.wanted, self.region = graph, wanted, region
        self.values = dict(graph.values)
        self.next_value = max(graph.values, default=-1) + 1
        self.next_node = max((node.id for node in graph.nodes), default=-1) + 1
        self.made: list[Node] = []
        self.device_of: dict[int, str] = {}
        self.slices: dict[int, str] = {}
        self.own = {value for node in region for value in node.outputs}
        self.leaving = leaving(graph, wanted.nodes)
        self.stretches: dict[int, list[int]] = {value: [] for value in self.leaving}
        self.cut: dict[tuple[int, Span, str], int] = {}

    def part(self, device: str, start: int, stop: int) -> None:
        """Add the nodes with which a device makes its stretch."""
        self.label = f"[{self.wanted.kind} {start}:{stop}]"
        self.device = device
        pieces, spans = self._needs(start, stop)
        here: dict[int, int] = {}
        for node in self.region:
            if node.id in pieces:
                self._add(node, pieces[node.id], spans, here)
        for value in self.leaving:
            span = self._span(value, start, stop)
            self.stretches[value].append(self._stretch(here[value], spans[value], span, value))

    def _span(self, value: int, start: int, stop: int) -> Span:
        return Span(axis_of(self.wanted.kind, self.graph.type(value)), start, stop)

    def _needs(self, start: int, stop: int) -> tuple[dict[int, Piece], Needed]:
        """Return the piece of each node, and the stretch of each value, that a part needs."""
        spans: Needed = {v: self._span(v, start, stop) for v in self.leaving}
        pieces: dict[int, Piece] = {}
        for node in reversed(self.region):
            wanted = [spans[value] for value in node.outputs if value in spans]
            if not wanted:
                continue
            span = _hull(wanted)
            spans.update(dict.fromkeys(node.outputs, span))
            whole = (None,) * len(node.inputs)
            pieces[node.id] = made = Piece(whole) if span is None else piece(self.graph, node, span)
            for value, need in zip(node.inputs, made.inputs, strict=True):
                if value in self.own and value is not None and not isinstance(need, np.ndarray):
                    known = [spans[value]] if value in spans else []
                    spans[value] = _hull([*known, need])
        return pieces, spans

    def _add(self, node: Node, made: Piece, spans: Needed, here: dict[int, int]) -> None:
        inputs: list[int | None] = []
        for value, need in zip(node.inputs, made.inputs, strict=True):
            if isinstance(need, np.ndarray):
                inputs.append(self._constant(f"shape{self.label}", need))
            elif value is None:
                inputs.append(None)
            elif value in self.own:
                inputs.append(self._stretch(here[value], spans[value], need, value))
            else:
                inputs.append(self._stretch(value, None, need, value))
        outputs = []
        for value in node.outputs:
            span, old = spans[value], self.graph.values[value]
            type = old.type if span is None else type_of(old.type, span)
            outputs.append(
                here.setdefault(value, self._value(f"{old.first_name}{self.label}", type))
            )
        attrs = {**node.attrs, **made.changed}
        self._node(node.op, inputs, outputs, attrs, node.source, self.device_of)

    def _stretch(self, value: int, has: Span | None, need: Span | None, of: int) -> int:
        """Return the stretch `need` of the value `of`, given `value`, its stretch `has`."""
        if need is None or need == has:
            return value
        if has is not None and has.axis != need.axis:
            raise refusal(self.region[-1], f"'{self.values[of].name}' is cut along two axes")
        offset = has.start if has is not None else 0
        span = Span(need.axis, need.start - offset, need.stop - offset)
        if (span.start, span.stop) == (0, self.values[value].type.dims[span.axis]):
            return value
        key = (value, span, "" if self.values[value].is_constant else self.device)
        if key not in self.cut:
            self.cut[key] = self._slice(value, span)
        return self.cut[key]

    def _slice(self, value: int, span: Span) -> int:
        old = self.values[value]
        type = type_of(old.type, span)
        name = f"{old.first_name}[{span.start}:{span.stop} of axis {span.axis}]"
        if old.data is not None:
            index = [slice(None)] * len(old.shape)
            index[span.axis] = slice(span.start, span.stop)
            return self._value(name, type, old.data[tuple(index)])
        ends = [self._constant(name, np.array([n], np.int64)) for n in (span[1], span[2], span[0])]
        out = self._value(name, type)
        self._node("slice", [value, *ends], [out], {}, "shard", self.slices)
        return out

    def _constant(self, name: str, data: Array) -> int:
        data.flags.writeable = False
        return self._value(name, TensorType(data.shape, str(data.dtype)), data)

    def _value(self, name: str, type: TensorType, data: Array | None = None) -> int:
        made = self.next_value
        self.values[made] = Value(made, name, type, data)
        self.next_value += 1
        return made

    def _node(
        self,
        op: str,
        inputs: Sequence[int | None],
        outputs: Sequence[int],
        attrs: Mapping[str, Any],
        source: str,
        kept: dict[int, str],
    ) -> None:
        bound = get_op(op).bind(attrs)
        self.made.append(Node(self.next_node, op, tuple(inputs), tuple(outputs), bound, source))
        kept[self.next_node] = self.device
        self.next_node += 1

    def finish(self) -> Parts:
        """Join the stretches, and return the graph in an order in which it can run."""
        joins: dict[int, str] = {}
        for value, stretches in self.stretches.items():
            axis = axis_of(self.wanted.kind, self.graph.type(value))
            source = next(n.source for n in self.region if value in n.outputs)
            self._node("concat", stretches, [value], {"axis": axis}, source, joins)
        gone = set(self.wanted.nodes)
        kept = [node for node in self.graph.nodes if node.id not in gone]
        nodes = _sorted([*kept, *self.made], self._places())
        used = {i for node in nodes for i in (*node.used, *node.outputs)}
        used.update(self.graph.inputs, self.graph.outputs)
        values = {i: value for i, value in self.values.items() if i in used}
        graph = check(replace(self.graph, nodes=nodes, values=values))
        return Parts(graph, self.device_of, self.slices, tuple(joins))

    def _places(self) -> dict[int, float]:
        """Return where in the order a node would like to be: parts where the region began."""
        places = {node.id: float(i) for i, node in enumerate(self.graph.nodes)}
        first = places[self.region[0].id]
        steps = {node.id: first + i * 1e-6 for i, node in enumerate(self.made)}
        return {**places, **steps}


def _hull(spans: Sequence[Span | None]) -> Span | None:
    """Return the least stretch that holds all of them; None for everything."""
    found = [span for span in spans if span is not None]
    if len(found) < len(spans) or len({span.axis for span in found}) != 1:
        return None
    return Span(found[0].axis, min(s.start for s in found), max(s.stop for s in found))


def _sorted(nodes: Sequence[Node], places: Mapping[int, float]) -> tuple[Node, ...]:
    """Return nodes in an order in which they can run, each as near to its place as can be."""
    maker = {out: node.id for node in nodes for out in node.outputs}
    by_id = {node.id: node for node in nodes}
    waits = {n.id: {maker[i] for i in n.used if i in maker} | set(n.after) for n in nodes}
    users: dict[int, list[int]] = {}
    for node, before in waits.items():
        for other in before:
            users.setdefault(other, []).append(node)
    ready = [(places[i], i) for i, before in waits.items() if not before]
    heapq.heapify(ready)
    ordered = []
    while ready:
        _, current = heapq.heappop(ready)
        ordered.append(by_id[current])
        for user in users.get(current, ()):
            waits[user].discard(current)
            if not waits[user]:
                heapq.heappush(ready, (places[user], user))
    return tuple(ordered)
