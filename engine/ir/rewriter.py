"""A graph during a rewrite: one walk offers each node to the rules of its op.

A rule gets a GraphRewriter, the half-rewritten graph, and one of its nodes, the root of a pattern.
The rule looks at the nodes before the root. It returns None to leave the root. Otherwise it adds
nodes that do the same work, and returns the values that replace the root's outputs.

The GraphRewriter keeps the graph valid. Unread nodes go. Types are inferred anew where inputs
changed. Graph outputs keep their names. A rule never gets a node that takes part in effects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trireme.ir.dims import symbols_of
from trireme.ir.graph import Graph, Node, Quant, TensorType, Value
from trireme.ir.op import get_op
from trireme.ir.partial_types import fits, still_known
from trireme.ir.verify import check_value, infer_types
from trireme.support.dtypes import Array, constant_array, dtype_name


class GraphRewriter:
    """A graph during a rewrite: the nodes kept so far, in order, and the readers of each value."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values: dict[int, Value] = dict(graph.values)
        self.nodes: dict[int, Node] = {}
        self.outputs = list(graph.outputs)
        self._output_places: dict[int, list[int]] = {}
        for place, value in enumerate(graph.outputs):
            self._output_places.setdefault(value, []).append(place)
        self.counts: Counter[str] = Counter()
        self.memo: dict[Hashable, Any] = {}
        """Results that rules keep for the length of one walk."""
        self._producers: dict[int, Node] = {}
        self._uses = Counter(i for node in graph.nodes for i in node.used)
        self._uses.update(graph.outputs)
        self._read: Counter[int] = Counter()
        self._stand_in: dict[int, int] = {}
        self._retyped: set[int] = set()
        self._fresh: set[int] = set()
        self._late = {v.id for v in graph.values.values() if not v.type.has_rank}
        self._ordered = {i for node in graph.nodes for i in node.after}
        self._waits: dict[int, tuple[int, ...]] = {}
        self._places: dict[int, int] = {}
        self._next_value = max(graph.values, default=-1) + 1
        self._next_node = max((node.id for node in graph.nodes), default=-1) + 1

    # Queries for rules.

    def type(self, value: int) -> TensorType:
        """Return the type of a value."""
        return self.values[value].type

    def data(self, value: int | None) -> Array | None:
        """Return the data of a constant; None for any other value, or a left-out one."""
        return None if value is None else self.values[value].data

    def producer(self, value: int | None) -> Node | None:
        """Return the node that makes the value, in its current form.

        None where the node works on a value of unknown rank: rules read shapes.
        """
        node = None if value is None else self._producers.get(value)
        return None if node is None or self._is_late(node) else node

    def is_output(self, value: int) -> bool:
        """Whether the value is an output of the graph."""
        return value in self._output_places

    def uses(self, value: int) -> int:
        """Return how many inputs of nodes and outputs of the graph are this value."""
        return self._uses[value]

    def is_read(self, value: int) -> bool:
        """Whether the value is an output, or a node before the walk's place reads it."""
        return self._read[value] > 0 or self.is_output(value)

    def is_quantized(self, node: Node) -> bool:
        """Whether a node works on stored integers."""
        return any(self.values[i].type.quant is not None for i in (*node.used, *node.outputs))

    def is_free(self, node: Node) -> bool:
        """Whether the node may be replaced: it has no effect and no place in an effect order."""
        return not node.after and node.id not in self._ordered and not get_op(node.op).effect

    def _is_late(self, node: Node) -> bool:
        """Whether the node works on a value of unknown rank; the bodies of one may be plain."""
        if not self._late or get_op(node.op).has_body:
            return False
        return not self._late.isdisjoint((*node.used, *node.outputs))

    def made_by(self, value: int | None, root: Node, *ops: str) -> Node | None:
        """Return the producer of a value if it is one of `ops`, is free, and has the root's pin."""
        node = self.producer(value)
        if node is None or node.op not in ops or node.pin != root.pin or not self.is_free(node):
            return None
        return node

    def only_for(self, value: int | None, root: Node, *ops: str) -> Node | None:
        """Return the same as `made_by`, if one input of the root is the value's only reader."""
        node = self.made_by(value, root, *ops)
        if node is None or value is None or self._uses[value] != 1 or len(node.outputs) != 1:
            return None
        return node

    # Changes by rules.

    def constant(self, data: Array | np.generic, name: str = "", quant: Quant | None = None) -> int:
        """Add a constant, an array or a numpy scalar, and return its id."""
        array = constant_array(data)
        return self._value(name, TensorType(array.shape, dtype_name(array.dtype), quant), array)

    def add(
        self,
        op: str,
        inputs: Sequence[int | None],
        attrs: Mapping[str, Any],
        of: Sequence[Node],
        quant: Quant | None = None,
        at: Node | None = None,
    ) -> int:
        """Add a node that does the work of the nodes `of`; return the id of its output.

        at: the node of `of` in whose place it runs, once all its operands exist; by default the
            root. An earlier place frees the operands of that node earlier.
        """
        made = self.add_many(op, inputs, attrs, of, (quant,))[0]
        if at is not None:
            self._places[self._producers[made].id] = self._places[at.id]
        return made

    def add_many(
        self,
        op: str,
        inputs: Sequence[int | None],
        attrs: Mapping[str, Any],
        of: Sequence[Node],
        quants: Sequence[Quant | None],
    ) -> tuple[int, ...]:
        """Add a node with an output for each of `quants`; return their ids."""
        definition, source = get_op(op), merged_source(of)
        operands = list(inputs)
        while operands and operands[-1] is None:
            operands.pop()
        bound = definition.bind(attrs)
        values = [None if i is None else self.values[i] for i in operands]
        types = infer_types(definition, values, bound, len(quants), f"{op} ({source})")
        outputs = tuple(
            self._value("", TensorType(type.shape, type.dtype, quant))
            for type, quant in zip(types, quants, strict=True)
        )
        pin = next((node.pin for node in of), None)
        self._keep(Node(self._new_node(), op, tuple(operands), outputs, bound, source, pin))
        self._uses.update(i for i in operands if i is not None)
        return outputs

    # The walk.

    def walk(self, rules: Rules) -> None:
        """Offer every node to the rules of its op, in graph order."""
        for old in self.graph.nodes:
            node = self._current(old)
            shown = self.is_free(node) and not self._is_late(node)
            if not (shown and self._offer(node, rules.get(node.op, ()))):
                self._keep(node)

    def _offer(self, node: Node, rules: Sequence[Rule]) -> bool:
        for rule in rules:
            self._fresh.clear()
            made = rule(self, node)
            if made is not None and self._replace(node, tuple(made)):
                self.counts[rule.__name__.replace("_", " ")] += 1
                return True
            self._drop_unread(tuple(self._fresh))
        return False

    def _current(self, node: Node) -> Node:
        """Return the node with replaced inputs, its outputs' types inferred anew."""
        if any(i in self._stand_in for i in node.used):
            inputs = tuple(None if i is None else self.resolve(i) for i in node.inputs)
            node = replace(node, inputs=inputs)
        elif not any(i in self._retyped for i in node.used):
            return node
        values = [None if i is None else self.values[i] for i in node.inputs]
        types = infer_types(get_op(node.op), values, node.attrs, len(node.outputs), node.label)
        for out, type in zip(node.outputs, types, strict=True):
            self._retype(out, still_known(type, self.type(out)))
        return node

    def resolve(self, value: int) -> int:
        """Return the value that replaces a value of the original graph."""
        while value in self._stand_in:
            value = self._stand_in[value]
        return value

    def _retype(self, value: int, type: TensorType) -> None:
        if type != self.values[value].type:
            self.values[value] = replace(self.values[value], type=type)
            self._retyped.add(value)
            if type.has_rank:
                self._late.discard(value)

    def _replace(self, root: Node, made: tuple[int, ...]) -> bool:
        if not any(self._uses[old] or self.is_output(old) for old in root.outputs):
            return False  # what replaces a dead node would be dropped with it
        if not all(self._can_replace(o, n) for o, n in zip(root.outputs, made, strict=True)):
            return False
        for old, new in zip(root.outputs, made, strict=True):
            if self.is_output(old) or new in self._fresh:
                self.values[new] = replace(self.values[new], name=self.values[old].name)
            self._take_output(old, new)
            self._uses[new] += self._uses.pop(old, 0)
            self._stand_in[old] = new
        self._release(root.used)
        self._drop_unread(made)
        return True

    def _take_output(self, old: int, new: int) -> None:
        """Make the outputs of the graph that are `old` be `new`."""
        places = self._output_places.pop(old, [])
        for place in places:
            self.outputs[place] = new
        if places:
            self._output_places.setdefault(new, []).extend(places)

    def _can_replace(self, old: int, new: int) -> bool:
        """Whether a value may replace another: a graph output keeps its name and its type."""
        if not fits(self.type(new), self.type(old)):
            return False
        if not self.is_output(old):
            return True
        return new in self._producers and not self.is_output(new)

    def _drop_unread(self, values: Iterable[int]) -> None:
        for value in values:
            if not self._uses[value]:
                self._drop_producer(value)

    def _release(self, values: Iterable[int]) -> None:
        for value in values:
            self._uses[value] -= 1
            if not self._uses[value]:
                self._drop_producer(value)

    def _drop_producer(self, value: int) -> None:
        """Drop the producer of a value without readers, and the nodes that only it needed."""
        work = [value]
        while work:
            node = self._producers.get(work.pop())
            if node is None or node.id not in self.nodes or get_op(node.op).effect:
                continue
            if any(self._uses[out] for out in node.outputs):
                continue
            del self.nodes[node.id]
            self._read.subtract(node.used)
            self._waits[node.id] = node.after
            for out in node.outputs:
                del self._producers[out]
            for i in node.used:
                self._uses[i] -= 1
                if not self._uses[i]:
                    work.append(i)

    def drop_dead(self) -> int:
        """Drop every node without an effect whose outputs nothing reads; return how many."""
        before = len(self.nodes)
        for node in reversed(list(self.nodes.values())):
            if node.id in self.nodes:
                self._drop_unread(node.outputs[:1])
        return before - len(self.nodes)

    def is_before(self, value: int, node: Node) -> bool:
        """Whether a value exists when a node of the rewritten graph runs."""
        maker = self._producers.get(value)
        return maker is None or self._places[maker.id] < self._places[node.id]

    def _keep(self, node: Node) -> None:
        self.nodes[node.id] = node
        self._places[node.id] = len(self._places)
        self._read.update(node.used)
        for out in node.outputs:
            self._producers[out] = node

    def _value(self, name: str, type: TensorType, data: Array | None = None) -> int:
        value = Value(self._next_value, name, type, data)
        check_value(value)
        self.values[value.id] = value
        self._fresh.add(value.id)
        if not type.has_rank:
            self._late.add(value.id)
        self._next_value += 1
        return value.id

    def _new_node(self) -> int:
        self._next_node += 1
        return self._next_node - 1

    def finish(self) -> Graph:
        """Return the graph, ids counted anew from 0 in the order of first appearance.

        The caller checks it, once all rewrites are done (`verify.check`).
        """
        self.nodes = dict(sorted(self.nodes.items(), key=lambda entry: self._places[entry[0]]))
        ids: dict[int, int] = {}
        for value in self._appearance():
            ids.setdefault(value, len(ids))
        node_ids = {old: new for new, old in enumerate(self.nodes)}
        nodes = tuple(
            Node(
                node_ids[node.id],
                node.op,
                tuple(None if i is None else ids[i] for i in node.inputs),
                tuple(ids[i] for i in node.outputs),
                node.attrs,
                node.source,
                node.pin,
                tuple(sorted({node_ids[i] for i in self._waited(node.after)})),
            )
            for node in self.nodes.values()
        )
        values = {new: self._named(old, new) for old, new in ids.items()}
        return Graph(
            self.graph.name,
            tuple(ids[i] for i in self.graph.inputs),
            tuple(ids[i] for i in self.outputs),
            nodes,
            values,
            _symbols(self.graph, values),
        )

    def read_values(self) -> set[int]:
        """Return the values of the finished graph."""
        return set(self._appearance())

    def _appearance(self) -> Iterable[int]:
        yield from self.graph.inputs
        for node in self.nodes.values():
            yield from node.used
            yield from node.outputs
        yield from self.outputs

    def _named(self, old: int, new: int) -> Value:
        value = self.values[old]
        return replace(value, id=new, name=value.name or f"v{new}")

    def _waited(self, nodes: Iterable[int]) -> Iterable[int]:
        """Yield the kept nodes that must run before later effects, once all of `nodes` have run."""
        for node in nodes:
            if node in self.nodes:
                yield node
            else:
                yield from self._waited(self._waits.get(node, ()))


Rule = Callable[[GraphRewriter, Node], Sequence[int] | None]
"""Returns the values that replace the root's outputs, or None where the pattern does not match."""

Rules = Mapping[str, Sequence[Rule]]
"""The rules of each op."""


def merged_source(nodes: Iterable[Node]) -> str:
    """Return one source for several nodes.

    "onnx:Conv_17" and "onnx:Relu_18" make "onnx:Conv_17+Relu_18".
    """
    parts: dict[str, None] = {}
    prefix = ""
    for node in nodes:
        head, colon, names = node.source.rpartition(":")
        prefix = prefix or head + colon
        for name in names.split("+") if head + colon == prefix else [node.source]:
            if name:
                parts.setdefault(name)
    return prefix + "+".join(parts) if parts else ""


def _symbols(graph: Graph, values: Mapping[int, Value]) -> dict[str, tuple[int, int | None]]:
    used = {name for value in values.values() for dim in value.shape for name in symbols_of(dim)}
    known = {name: bounds for name, bounds in graph.symbols.items() if name in used}
    return known | {name: (0, None) for name in sorted(used - set(known))}
