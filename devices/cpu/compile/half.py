"""Float16 nodes without a kernel: the kernel of float32 runs them, between conversions.

`widened` rewrites a region before its nodes are lowered. A product or a norm of float16 then reads
float32, and its result is rounded to float16 once. Its reference does the same in float64. Nodes
with kernels of float16, such as elementwise ones, stay, and join the conversions in one kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from trireme.devices.cpu.compile.buffer_aliases import is_alias
from trireme.devices.cpu.compile.table import native_reason
from trireme.ir.effects import uses_state
from trireme.ir.graph import Graph, Node, TensorType, Value, graph_of
from trireme.ir.op import get_op
from trireme.ir.verify import infer_types
from trireme.support.errors import TriremeError

HALF, REAL = "float16", "float32"
_SMALL = 4096
"""Elements of a constant whose numbers a rule may look at; of larger ones only the type counts."""


def kernel_reason(graph: Graph, node: Node) -> str | None:
    """Return why no kernel runs a node, neither one of its dtypes nor one of float32."""
    reason = native_reason(graph, node)
    return None if reason is None or _is_widened(graph, node) else reason


def _is_widened(graph: Graph, node: Node) -> bool:
    """Whether a node without a kernel has one once its float16 values are float32."""
    values = [graph.values[value] for value in (*node.used, *node.outputs)]
    if not any(value.dtype == HALF for value in values) or _is_bound_to_its_dtypes(node):
        return False
    alone = graph_of(graph, node)
    wide = replace(alone, values={value.id: _wide(value, only_type=True) for value in values})
    operands = [None if value is None else wide.values[value] for value in node.inputs]
    try:
        types = infer_types(
            get_op(node.op), operands, get_op(node.op).bind(node.attrs), len(node.outputs), ""
        )
    except TriremeError:
        return False
    dtypes = [wide.type(value).dtype for value in node.outputs]
    return [type.dtype for type in types] == dtypes and native_reason(wide, node) is None


def _is_bound_to_its_dtypes(node: Node) -> bool:
    """Whether a node keeps its dtypes: an attribute names one, or memory outside has it."""
    if uses_state(node) or get_op(node.op).has_body:
        return True
    return any(isinstance(value, str) and value == HALF for value in node.attrs.values())


def _wide(value: Value, only_type: bool = False) -> Value:
    """Return a value as float32 if it is float16.

    only_type: leave zeros for the numbers of a large constant
    """
    if value.dtype != HALF:
        return value
    data = value.data
    if data is not None and only_type and data.size > _SMALL:
        data = np.broadcast_to(np.float32(0), data.shape)
    elif data is not None:
        data = data.astype(np.float32)
    return replace(value, type=TensorType(value.type.shape, REAL), data=data)


def widened(graph: Graph) -> tuple[Graph, Mapping[int, int]]:
    """Return a graph whose float16 nodes all have kernels, where there is one of float32.

    Ids stay. The second result has the id of the node that each added conversion serves.
    """
    if all(value.dtype != HALF for value in graph.values.values()):
        return graph, {}
    chosen = {
        node.id
        for node in graph.nodes
        if not is_alias(graph, node)
        and native_reason(graph, node) is not None
        and _is_widened(graph, node)
    }
    return _Widening(graph, chosen).run() if chosen else (graph, {})


class _Widening:
    """A graph while some of its nodes become float32."""

    def __init__(self, graph: Graph, chosen: set[int]) -> None:
        self.graph, self.chosen = graph, chosen
        self.values = dict(graph.values)
        self.nodes: list[Node] = []
        self.serves: dict[int, int] = {}
        self._wide: dict[int, int] = {}
        self._next_value = max(graph.values) + 1
        self._next_node = max(node.id for node in graph.nodes) + 1

    def run(self) -> tuple[Graph, Mapping[int, int]]:
        """Return the graph and the node that each conversion serves."""
        for node in self.graph.nodes:
            if node.id in self.chosen:
                self._add_wide(node)
            else:
                self.nodes.append(node)
        return replace(self.graph, nodes=tuple(self.nodes), values=self.values), self.serves

    def _add_wide(self, node: Node) -> None:
        inputs = tuple(None if value is None else self._read(node, value) for value in node.inputs)
        made = {v: self._fresh(v) for v in node.outputs if self.values[v].dtype == HALF}
        outputs = tuple(made.get(value, value) for value in node.outputs)
        self.nodes.append(replace(node, inputs=inputs, outputs=outputs))
        for value, wide in made.items():
            self._convert(node, wide, value, HALF)

    def _read(self, node: Node, value: int) -> int:
        """Return the float32 of a value; all nodes that read it share one."""
        if self.values[value].dtype != HALF:
            return value
        if value not in self._wide:
            self._wide[value] = self._fresh(value)
            if self.values[value].data is None:
                self._convert(node, value, self._wide[value], REAL)
        return self._wide[value]

    def _fresh(self, value: int) -> int:
        """Add the float32 form of a value."""
        id = self._next_value
        self._next_value += 1
        self.values[id] = replace(_wide(self.graph.values[value]), id=id)
        return id

    def _convert(self, node: Node, source: int, target: int, dtype: str) -> None:
        attrs = get_op("cast").bind({"to": dtype})
        made = Node(self._next_node, "cast", (source,), (target,), attrs, node.source)
        self._next_node += 1
        self.serves[made.id] = node.id
        self.nodes.append(made)
