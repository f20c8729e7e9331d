"""Build a graph node by node; types are inferred and checked as nodes are added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trireme.ir.device_scope import named_device
from trireme.ir.dims import symbols_of
from trireme.ir.effects import EffectOrder
from trireme.ir.graph import Graph, Node, Quant, TensorType, Value
from trireme.ir.op import OpDef, Sample, get_op
from trireme.ir.verify import check, check_value, infer_types
from trireme.support.arguments import check_arguments
from trireme.support.dtypes import Array, constant_array, dtype_name
from trireme.support.errors import GraphError


class GraphBuilder:
    """Collects values and nodes, then makes a checked Graph.

    Values are named by id. Effects keep the order in which they were added.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: dict[int, Value] = {}
        self.nodes: list[Node] = []
        self.inputs: list[int] = []
        self.symbols: dict[str, tuple[int, int | None]] = {}
        self._effects = EffectOrder()

    def input(self, name: str, type: TensorType) -> int:
        """Add a value that the caller feeds and return its id.

        Errors: GraphError, if the type has an unknown dtype or a dimension below 0
        """
        value = self._value(name, type)
        self.inputs.append(value)
        return value

    def constant(self, name: str, data: Array | np.generic, quant: Quant | None = None) -> int:
        """Add a constant, an array or a numpy scalar, and return its id.

        The data is kept, not copied, and read-only in the graph.
        """
        array = constant_array(data)
        return self._value(name, TensorType(array.shape, dtype_name(array.dtype), quant), array)

    def add(self, op: str, *inputs: int | None, **options: Any) -> int:
        """Add a node and return the id of its first output; see `add_node` for the options."""
        node_options = {key: options.pop(key) for key in _NODE_OPTIONS if key in options}
        return self.add_node(op, inputs, options, **node_options)[0]

    def add_node(
        self,
        op: str,
        inputs: Sequence[int | None],
        attrs: Mapping[str, Any],
        *,
        outputs: int = 1,
        names: Sequence[str] = (),
        quants: Sequence[Quant | None] = (),
        source: str = "",
        pin: str | None = None,
        after: Sequence[int] = (),
    ) -> tuple[int, ...]:
        """Add a node with `outputs` outputs and return their ids.

        `names` and `quants` name and quantise the outputs; `source` says where the node came from
        ("onnx:Conv_17"); `pin` names its device, that of a `with device(...)` block when None.
        Errors: GraphError or ShapeError, naming the source.
        """
        lists = (inputs, names, quants, after)
        if not all(
            type(each) in (tuple, list) for each in lists
        ):  # checking each element takes longer
            given = {"inputs": inputs, "names": names, "quants": quants, "after": after}
            check_arguments(GraphBuilder.add_node, given, GraphError, of=str(op))
        if not isinstance(outputs, int) or outputs < 0:
            raise GraphError(f"{op}: {outputs!r} outputs, expected a whole number")
        definition = get_op(op)
        where = f"{op} '{names[0]}' ({source})" if names else f"{op} ({source})"
        try:
            bound = definition.bind(attrs)
        except GraphError as error:
            raise GraphError(f"{where}: {error.summary}", facts=error.facts) from error
        operands = list(inputs)
        while operands and operands[-1] is None:
            operands.pop()
        values = [None if i is None else self._added(i, where) for i in operands]
        types = infer_types(definition, values, bound, outputs, where)
        made = []
        for position, inferred in enumerate(types):
            quant = quants[position] if position < len(quants) else inferred.quant
            name = names[position] if position < len(names) else ""
            made.append(
                self._value(
                    name or f"{op}_{len(self.values)}",
                    TensorType(inferred.shape, inferred.dtype, quant),
                )
            )
        node_id = len(self.nodes)
        waits = dict.fromkeys((*after, *self._effects.waits(definition, bound, node_id)))
        pin = named_device() if pin is None else pin
        self.nodes.append(
            Node(node_id, op, tuple(operands), tuple(made), bound, source, pin, tuple(waits))
        )
        return tuple(made)

    def _added(self, value: int, where: str) -> Value:
        try:
            return self.values[value]
        except (KeyError, TypeError):
            raise GraphError(f"{where}: no value of this graph has the id {value!r}") from None

    def type(self, value: int) -> TensorType:
        """Return the type of a value added so far."""
        return self.values[value].type

    def finish(self, *outputs: int) -> Graph:
        """Return the checked graph with these outputs."""
        symbols = {
            name: self.symbols.get(name, (0, None))
            for value in self.values.values()
            for dim in value.type.shape
            for name in sorted(symbols_of(dim))
        }
        return check(
            Graph(
                self.name,
                tuple(self.inputs),
                tuple(outputs),
                tuple(self.nodes),
                dict(self.values),
                symbols,
            )
        )

    def _value(self, name: str, type: TensorType, data: Array | None = None) -> int:
        value = Value(len(self.values), name, type, data)
        check_value(value)
        self.values[value.id] = value
        return value.id


_NODE_OPTIONS = ("names", "quants", "source", "pin", "after")


def scalar(value: float, dtype: str = "float32") -> Array:
    """Return a 0-d array, for constants of elementwise ops."""
    return np.asarray(value, dtype=dtype)


def graph_of_sample(op: OpDef, sample: Sample, outputs: int, source: str = "") -> Graph:
    """Return the graph of one node that computes a sample; its constants are in it."""
    b = GraphBuilder(op.name)
    operands: list[int | None] = []
    for position, data in enumerate(sample.inputs):
        quant = sample.quants[position] if position < len(sample.quants) else None
        if data is None:
            operands.append(None)
        elif position in sample.constants:
            operands.append(b.constant(f"c{position}", np.asarray(data), quant))
        else:
            type = TensorType(np.shape(data), dtype_name(np.asarray(data).dtype), quant)
            operands.append(b.input(f"x{position}", type))
    quants = sample.out_quants
    made = b.add_node(
        op.name, operands, sample.attrs, outputs=outputs, quants=quants, source=source
    )
    return b.finish(*made)
