"""The nouns: Value, Node, Graph. Every stage of trireme turns one of these into another.

A Graph is frozen. Converters and passes make one with `GraphBuilder`. The results of an analysis
are side tables keyed by node or value id, never fields of these classes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Any

import numpy as np

from trireme.support.cached import cached_property
from trireme.support.dtypes import Array, itemsize
from trireme.support.errors import GraphError
from trireme.support.records import dataclass
from trireme.support.showing import clipped, clipped_name

UNKNOWN = "?"
"""A dimension that only a run can determine (the rows of non_zero, say)."""

Dim = int | str
"""A dimension: a number, the name of a symbol, or UNKNOWN."""


class _UnknownRank(tuple[Dim, ...]):
    """A shape whose dimensions nobody can count before a run: to ask for them is an error."""

    __slots__ = ()

    def __len__(self) -> int:
        raise GraphError(
            "the number of dimensions of a value is known only in a run",
            facts=["the branches of an `if` make values of unlike rank, or a squeeze has no axes"],
            fix="give the sizes that decide it: --shape, or shapes= in Python",
        )

    def __getitem__(self, index: Any) -> Any:
        len(self)

    def __reduce__(self) -> str:
        return "ANY_RANK"


ANY_DIMS = "..."
ANY_RANK: tuple[Dim, ...] = _UnknownRank((ANY_DIMS,))
"""The shape of a value whose rank only a run can determine. A `for` finds ANY_DIMS alone."""


class Rounding(StrEnum):
    """Which of two neighbouring integers a real result becomes.

    half_even: the nearest, ties to the even one (ONNX)
    half_away: the nearest, ties away from zero
    twice: the nearest multiple of a power of two, ties upwards, then the nearest integer, ties away
        from zero: the fixed-point product of TensorFlow Lite
    truncate: the next one toward zero
    """

    HALF_EVEN = "half_even"
    HALF_AWAY = "half_away"
    TWICE = "twice"
    TRUNCATE = "truncate"


@dataclass(frozen=True)
class Quant:
    """Affine quantisation: real = scale * (stored - zero_point), per tensor or along one axis.

    rounding: how an op rounds its results to these integers; None: as LiteRT's reference kernel of
        the op does (trireme.ops.integer)
    Shapes: one scale and zero point per tensor, or one of each per index along `axis`
    Source: TensorFlow Lite 8-bit quantization specification
    """

    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    axis: int | None = None
    rounding: Rounding | None = None

    @property
    def scale(self) -> float:
        """The scale of a per-tensor quantisation."""
        return self.scales[0]

    @property
    def zero_point(self) -> int:
        """The zero point of a per-tensor quantisation."""
        return self.zero_points[0]

    def __str__(self) -> str:
        if self.axis is None:
            return f"q({self.scale:.6g},{self.zero_point})"
        return f"q({len(self.scales)} scales, axis {self.axis})"


@dataclass(frozen=True)
class TensorType:
    """Shape, dtype and quantisation of a value."""

    shape: tuple[Dim, ...]
    dtype: str
    quant: Quant | None = None

    @property
    def has_rank(self) -> bool:
        """Whether the number of dimensions is known."""
        return self.shape != ANY_RANK

    @cached_property
    def is_static(self) -> bool:
        """Whether every dimension is a number."""
        return all(isinstance(dim, int) for dim in self.shape)

    @cached_property
    def dims(self) -> tuple[int, ...]:
        """The shape as numbers; only for a static type."""
        return tuple(int(dim) for dim in self.shape)

    @cached_property
    def elements(self) -> int:
        """The number of elements; only for a static type."""
        return math.prod(self.dims)

    @cached_property
    def nbytes(self) -> int:
        """The bytes the dense tensor takes; only for a static type."""
        return self.elements * itemsize(self.dtype)

    def without_quant(self) -> TensorType:
        """Return the same type with the quantisation left out."""
        return TensorType(self.shape, self.dtype) if self.quant else self

    def __str__(self) -> str:
        quant = f" {self.quant}" if self.quant else ""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]{quant}"


@dataclass(frozen=True, eq=False)
class Value:
    """One tensor of a graph. A constant has `data`: read-only, of any strides, often mapped."""

    id: int
    name: str
    type: TensorType
    data: Array | None = None

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The shape of the type."""
        return self.type.shape

    @property
    def dtype(self) -> str:
        """The dtype of the type."""
        return self.type.dtype

    @property
    def quant(self) -> Quant | None:
        """The quantisation of the type, if it has one."""
        return self.type.quant

    @property
    def first_name(self) -> str:
        """The name; of several names that TensorFlow joins by semicolons, the first."""
        return self.name.split(";")[0]

    @property
    def is_constant(self) -> bool:
        """Whether the value is known before a run."""
        return self.data is not None

    def __repr__(self) -> str:
        kind = "constant" if self.is_constant else "value"
        return f"<Value %{self.id}: {kind} {_end(self)}>"


@dataclass(frozen=True, eq=False)
class Node:
    """One use of an op. An optional input that is left out is None."""

    id: int
    op: str
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    pin: str | None = None
    after: tuple[int, ...] = ()

    @cached_property
    def used(self) -> tuple[int, ...]:
        """The ids of the inputs that are present, in order."""
        return tuple(i for i in self.inputs if i is not None)

    @property
    def label(self) -> str:
        """The node's name in messages: its op and source."""
        return f"{self.op} #{self.id} ({self.source})" if self.source else f"{self.op} #{self.id}"

    def __repr__(self) -> str:
        ends = [
            _few(["-" if i is None else f"%{i}" for i in ids])
            for ids in (self.inputs, self.outputs)
        ]
        return f"<Node {clipped(self.label)!r}: {' -> '.join(ends)}>"


@dataclass(frozen=True, eq=False)
class Graph:
    """A static graph: nodes in an order in which they can run, and their values."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    nodes: tuple[Node, ...]
    values: Mapping[int, Value]
    symbols: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    """Bounds (least, most) of the symbols used as dimensions; most is None when it has no bound."""

    def type(self, value: int) -> TensorType:
        """Return the type of a value."""
        return self.values[value].type

    def node(self, node: int) -> Node:
        """Return the node with that id."""
        return self._node_by_id[node]

    def producer(self, value: int) -> Node | None:
        """Return the node that makes the value; None for an input or a constant."""
        return self._producers.get(value)

    def users(self, value: int) -> tuple[Node, ...]:
        """Return the nodes that read the value, in graph order, each once."""
        return self._users.get(value, ())

    def is_output(self, value: int) -> bool:
        """Whether the value is an output of the graph."""
        return value in self._output_set

    def input_values(self) -> Iterator[Value]:
        """Yield the graph's inputs."""
        return (self.values[i] for i in self.inputs)

    def output_values(self) -> Iterator[Value]:
        """Yield the graph's outputs."""
        return (self.values[i] for i in self.outputs)

    @cached_property
    def _node_by_id(self) -> Mapping[int, Node]:
        return {node.id: node for node in self.nodes}

    @cached_property
    def _output_set(self) -> frozenset[int]:
        return frozenset(self.outputs)

    @cached_property
    def _producers(self) -> Mapping[int, Node]:
        return {out: node for node in self.nodes for out in node.outputs}

    @cached_property
    def _users(self) -> Mapping[int, tuple[Node, ...]]:
        users: dict[int, dict[int, Node]] = {}
        for node in self.nodes:
            for value in node.used:
                users.setdefault(value, {})[node.id] = node
        return {value: tuple(nodes.values()) for value, nodes in users.items()}

    def __str__(self) -> str:
        return graph_text(self)

    def __repr__(self) -> str:
        ends = [_few(list(map(_end, row))) for row in (self.input_values(), self.output_values())]
        name = clipped_name(self.name, _NAME)
        return f"<Graph {name!r}: {_counted(self.nodes)}, {' -> '.join(ends)}>"


_NAME, _ENDS = 40, 3
"""The most columns of a name, and the most values on either side of an arrow, in a `repr`."""


def _counted(nodes: Sequence[Node]) -> str:
    return f"{len(nodes):,} node{'s' * (len(nodes) != 1)}"


def _end(value: Value) -> str:
    return f"{clipped_name(value.first_name, _NAME)!r} {value.type}"


def _few(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _ENDS} more" if len(texts) > _ENDS else ""
    return f"{', '.join(texts[:_ENDS]) or 'nothing'}{more}"


def node_names(graph: Graph) -> dict[int, str]:
    """Return a name for each node: its first output's, numbered where two are equal.

    Of several names that TensorFlow joins by semicolons, the first counts.
    """
    names: dict[int, str] = {}
    count: dict[str, int] = {}
    for node in graph.nodes:
        name = graph.values[node.outputs[0]].first_name
        count[name] = count.get(name, 0) + 1
        names[node.id] = name if count[name] == 1 else f"{name}#{count[name]}"
    return names


def graph_text(graph: Graph) -> str:
    """Return the graph as text: one line a node, the same text for the same graph."""

    def show(value: int) -> str:
        return f"%{value}:{graph.values[value].type}"

    lines = [f"graph {graph.name}({', '.join(map(show, graph.inputs))}):"]
    for node in graph.nodes:
        inputs = ", ".join("-" if i is None else _operand(graph, i) for i in node.inputs)
        attrs = " ".join(f"{key}={_attr_text(node.attrs[key])}" for key in sorted(node.attrs))
        text = f"  {', '.join(map(show, node.outputs))} = {node.op}({inputs})"
        text = f"{text} {{{attrs}}}" if attrs else text
        lines.append(f"{text} after {_ids(node.after)}" if node.after else text)
    lines.append(f"  return {', '.join(f'%{i}' for i in graph.outputs)}")
    return "\n".join(lines)


def _ids(nodes: tuple[int, ...]) -> str:
    return ", ".join(f"#{node}" for node in nodes)


def _operand(graph: Graph, value: int) -> str:
    return f"{graph.values[value].type}const" if graph.values[value].is_constant else f"%{value}"


def _attr_text(value: Any) -> str:
    return f"graph:{value.name}" if isinstance(value, Graph) else repr(value).replace(" ", "")


def graph_of(graph: Graph, node: Node) -> Graph:
    """Return the graph of one node."""
    values = {value: graph.values[value] for value in (*node.used, *node.outputs)}
    inputs = dict.fromkeys(v for v in node.used if not values[v].is_constant)
    return Graph(node.label, tuple(inputs), node.outputs, (node,), values)


def digest(data: Array) -> Hashable:
    """Return a key of an array's elements; arrays of one type with equal keys are equal."""
    if data.dtype == object:
        return tuple(data.ravel().tolist())
    return hashlib.blake2b(np.ascontiguousarray(data).tobytes(), digest_size=16).digest()


def hashable(value: Any) -> Hashable:
    """Return a hashable key of an attribute; a graph equals only itself."""
    if isinstance(value, Mapping):
        return tuple((key, hashable(value[key])) for key in sorted(value))
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, digest(value))
    if isinstance(value, (tuple, list)):
        return tuple(map(hashable, value))
    if isinstance(value, float):  # -0.0 == 0.0, but they are not the same attribute
        return ("float", value.hex())
    return value if isinstance(value, Hashable) else id(value)
