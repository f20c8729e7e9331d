"""Write the quantised graph: taken nodes on integers, the others on floats, conversions between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, Node, Quant, TensorType
from trireme.ir.op import get_op
from trireme.quantiser.encode import bias_of, per_tensor, stored, weights_of
from trireme.quantiser.half import HALF, REAL, add_half
from trireme.quantiser.memo import EncodingMemo
from trireme.quantiser.scheme import QuantScheme, channel_axis, form_of, is_product
from trireme.quantiser.select import Selection, data_inputs, half_of
from trireme.support.dtypes import Array
from trireme.support.errors import InternalError


@dataclass(frozen=True)
class Emitted:
    """A quantised graph, and its values of integers by the id of the float value that they are.

    integers: what products make as floats is among them
    switches: the inputs of a switched graph that say whether a node is on integers, by node id, or
        in float16, by `half_of` the id
    """

    graph: Graph
    integers: Mapping[int, int]
    switches: Mapping[int, str] = field(default_factory=dict)


def emit(
    graph: Graph,
    selection: Selection,
    quants: Mapping[int, Quant],
    scheme: QuantScheme,
    *,
    name: str,
    integer_io: bool = False,
    apart: bool = False,
    switched: bool = False,
    memo: EncodingMemo | None = None,
) -> Emitted:
    """Return the graph with the taken nodes on integers.

    quants: of the values that taken nodes read and make
    integer_io: whether inputs and outputs of the graph are integers where a taken node has them
    apart: whether each taken node reads integers made of the float values, beside the float graph,
        so that its integers have the error that is made there alone
    switched: whether each taken node is there on floats and on integers, and those of `halves` in
        float16 too. Inputs of the graph say which result later nodes read, so that one graph shows
        any choice of nodes
    memo: the weights encoded before, and those encoded now
    """
    found = memo or EncodingMemo()
    emitter = _Emitter(graph, selection, quants, scheme, name, integer_io, apart or switched, found)
    return emitter.switched() if switched else emitter.run()


class _Emitter:
    def __init__(
        self,
        graph: Graph,
        selection: Selection,
        quants: Mapping[int, Quant],
        scheme: QuantScheme,
        name: str,
        integer_io: bool,
        apart: bool,
        memo: EncodingMemo,
    ) -> None:
        self.graph, self.quants, self.scheme = graph, quants, scheme
        self.taken, self.to_floats = selection.taken, selection.to_floats
        self.halves = selection.halves
        self.integer_io, self.apart, self.memo = integer_io, apart, memo
        self.builder = GraphBuilder(name)
        self.real: dict[int, int] = {}
        self.typed: dict[tuple[int, Quant], int] = {}
        self.own: dict[int, int] = {}
        self.made: set[int] = set()
        self.half: dict[int, int] = {}
        self.floats: dict[int, int] = {}
        self.switches: dict[int, str] | None = None

    def switched(self) -> Emitted:
        """Return the graph with each taken node on floats and on integers, and its switches."""
        self.switches = {}
        return replace(self.run(), switches=self.switches)

    def run(self) -> Emitted:
        """Return the whole graph."""
        for value in self.graph.input_values():
            self._input(value.id)
        alone: dict[int, int] = {}
        for node in self.graph.nodes:
            if self.apart or not (node.id in self.taken or node.id in self.halves):
                self._float_node(node)
            if node.id in self.taken:
                made = self._integer_node(node)
                alone.update(made)
                if self.switches is not None:
                    self._switch(node, made, self.switches)
                if not self.apart:
                    self._keep(node, made)
            if node.id in self.halves and (self.switches is not None or not self.apart):
                self._half_node(node)
        if self.apart:
            return Emitted(self.builder.finish(*self._real_outputs()), alone)
        outputs = [self._output(value) for value in self.graph.outputs]
        self.builder.symbols = dict(self.graph.symbols)
        return Emitted(self.builder.finish(*outputs), self.own | self.floats)

    def _real_outputs(self) -> list[int]:
        return [self._as_real(value) for value in self.graph.outputs]

    def _keep(self, node: Node, made: Mapping[int, int]) -> None:
        """Let later nodes read what a node made of integers."""
        if node.id in self.to_floats:
            self.real.update(made)
            self.floats.update(made)
            return
        for out, new in made.items():
            self.own[out] = self.typed[out, self.quants[out]] = new
            self.made.add(out)

    def _switch(self, node: Node, made: Mapping[int, int], switches: dict[int, str]) -> None:
        """Let later nodes read the integers that a node made where its switch is on."""
        is_float = node.id in self.to_floats
        floats = {
            out: new if is_float else self.builder.add("dequantize", new)
            for out, new in made.items()
        }
        self._choose(node.id, floats, switches)

    def _choose(self, unit: int, floats: Mapping[int, int], switches: dict[int, str]) -> None:
        """Let later nodes read values of a form of a node where the switch of the form is on."""
        name = f"switch {unit}"
        while any(name == value.name for value in self.graph.input_values()):
            name += "_"
        switches[unit] = name
        switch = self.builder.input(name, TensorType((1,), "bool"))
        for out, new in floats.items():
            self.real[out] = self.builder.add("where", switch, new, self.real[out])

    def _half_node(self, node: Node) -> None:
        """Add a node in float16; of a switched graph its floats are chosen by its switch."""
        outputs = add_half(self.builder, self.graph, node, self._as_half)
        made = dict(zip(node.outputs, outputs, strict=True))
        if self.switches is None:
            self.half.update(made)
            return
        floats = {out: self.builder.add("cast", new, to=REAL) for out, new in made.items()}
        self._choose(half_of(node.id), floats, self.switches)

    def _as_half(self, value: int) -> int:
        """Return a value as float16; one of another dtype stays."""
        if self.graph.type(value).dtype != REAL:
            return self._as_real(value)
        if value not in self.half:
            self.half[value] = self.builder.add("cast", self._as_real(value), to=HALF)
        return self.half[value]

    def _input(self, value: int) -> None:
        known = self.graph.values[value]
        readers = self.graph.users(value)
        inside = readers and all(reader.id in self.taken for reader in readers)
        if self.integer_io and inside and value in self.quants and not self.graph.is_output(value):
            quant = self.quants[value]
            kind = TensorType(known.shape, self.scheme.activations, quant)
            self.own[value] = self.typed[value, quant] = self.builder.input(known.name, kind)
            self.made.add(value)
        else:
            self.real[value] = self.builder.input(known.name, known.type)

    def _output(self, value: int) -> int:
        if self.integer_io and value in self.made and value not in self.real:
            return self.own[value]
        return self._as_real(value)

    def _data(self, value: int) -> Array | None:
        return self.graph.values[value].data

    def _as_real(self, value: int) -> int:
        """Return a value as floats, made of its integers where only they are there."""
        if value in self.real:
            return self.real[value]
        known = self.graph.values[value]
        data = self._data(value)
        if data is not None:
            made = self.builder.constant(known.name, data)
        elif value in self.half and value not in self.made:
            made = self.builder.add("cast", self.half[value], to=REAL, names=[known.name])
        else:
            source = "quantiser:dequantize"
            made = self.builder.add(
                "dequantize", self.own[value], names=[known.name], source=source
            )
        self.real[value] = made
        return made

    def _as_integers(self, value: int, quant: Quant) -> int:
        """Return a value in a quantisation; another quantisation is converted."""
        if (value, quant) in self.typed:
            return self.typed[value, quant]
        known, dtype = self.graph.values[value], self.scheme.activations
        data = self._data(value)
        if data is not None:
            made = self.builder.constant(known.name, stored(data, quant, dtype), quant)
        else:
            made = self.builder.add(
                "quantize",
                self.own[value] if value in self.made else self._as_real(value),
                dtype=dtype,
                quants=[quant],
                names=[f"{known.first_name}_{dtype}"],
                source="quantiser:quantize",
            )
            self.own.setdefault(value, made)
        self.typed[value, quant] = made
        return made

    def _float_node(self, node: Node) -> None:
        inputs = [None if i is None else self._as_real(i) for i in node.inputs]
        names = [self.graph.values[out].name for out in node.outputs]
        made = self.builder.add_node(
            node.op,
            inputs,
            node.attrs,
            outputs=len(node.outputs),
            names=names,
            source=node.source,
            pin=node.pin,
        )
        self.real.update(zip(node.outputs, made, strict=True))

    def _integer_node(self, node: Node) -> dict[int, int]:
        """Add a node on integers; return its outputs by the float values that they are."""
        inputs = self._product_inputs(node) if is_product(node) else self._data_inputs(node)
        is_float = node.id in self.to_floats
        quants = [None if is_float else self.quants[out] for out in node.outputs]
        values = self.graph.values
        names = [
            values[out].name if is_float and not self.apart else self._integer_name(out)
            for out in node.outputs
        ]
        made = self.builder.add_node(
            node.op,
            inputs,
            node.attrs,
            outputs=len(node.outputs),
            quants=quants,
            names=names,
            source=node.source,
            pin=node.pin,
        )
        return dict(zip(node.outputs, made, strict=True))

    def _integer_name(self, value: int) -> str:
        """Return the name of a value's integers; an output of floats keeps the name for them."""
        name = self.graph.values[value].name
        outside = any(reader.id not in self.taken for reader in self.graph.users(value))
        leaves = self.graph.is_output(value) and not self.integer_io
        return f"{name}_{self.scheme.activations}" if outside or leaves else name

    def _product_inputs(self, node: Node) -> list[int | None]:
        """Return x, weights and bias of a product, which share the scales of its sums."""
        x_quant = self.quants[node.used[0]]
        x = self._as_integers(node.used[0], x_quant)
        bias_id = node.inputs[2] if len(node.inputs) > 2 else None
        bias = None if bias_id is None else self._data(bias_id)
        is_float, values = node.id in self.to_floats, self.graph.values
        integers, quant = self._weights(node, x_quant.scale, None if is_float else bias)
        w = self.builder.constant(values[node.used[1]].name, integers, quant)
        if is_float:
            return [x, w, self._float_bias(node, len(integers))]
        if bias is None or bias_id is None:
            return [x, w]
        whole, bias_quant = bias_of(bias, x_quant.scale, quant, self.scheme.bias)
        return [x, w, self.builder.constant(values[bias_id].name, whole, bias_quant)]

    def _weights(self, node: Node, x_scale: float, bias: Array | None) -> tuple[Array, Quant]:
        """Return the weights of a product as integers; `bias` must fit their scales."""
        key = (node.id, x_scale, node.id in self.to_floats)
        if key not in self.memo.weights:
            real = self._data(node.used[1])
            if real is None:
                raise InternalError(f"{node.label} has no constant weights")
            axis = channel_axis(node.op, real.ndim)
            dtypes = (self.scheme.weights, self.scheme.bias)
            self.memo.weights[key] = weights_of(real, axis, x_scale, bias, dtypes)
        return self.memo.weights[key]

    def _float_bias(self, node: Node, channels: int) -> int:
        """Return the bias that makes a product's result float; zeros where the node has none."""
        if len(node.inputs) > 2 and node.inputs[2] is not None:
            return self._as_real(node.inputs[2])
        name = f"{self.graph.values[node.used[1]].first_name}_bias"
        return self.builder.constant(name, np.zeros(channels, np.float32))

    def _data_inputs(self, node: Node) -> list[int | None]:
        """Return the inputs of a node with data in integers and the other inputs as they are."""
        data = set(data_inputs(node))
        shared = self.quants[node.outputs[0]] if form_of(get_op(node.op)) == "same" else None
        if node.op == "concat":
            shared = self.quants[node.outputs[0]]
        inputs: list[int | None] = []
        for position, value in enumerate(node.inputs):
            if value is None:
                inputs.append(None)
            elif value in data and (position == 0 or len(data) > 1):
                inputs.append(self._as_integers(value, shared or self._quant(value)))
            elif node.op == "pad" and position == 2:
                inputs.append(self._fill(value, self.quants[node.outputs[0]]))
            else:
                inputs.append(self._as_real(value))
        return inputs

    def _fill(self, value: int, quant: Quant) -> int | None:
        """Return the fill of a pad as a stored integer; left out it is the zero point."""
        data = self._data(value)
        if data is None or not data.any():
            return None
        number = stored(data.reshape(()), quant, self.scheme.activations)
        return self.builder.constant(f"{self.graph.values[value].name}_fill", number)

    def _quant(self, value: int) -> Quant:
        """Return the quantisation of a value, a constant's by its own range."""
        data = self._data(value)
        if data is None:
            return self.quants[value]
        return per_tensor(float(data.min()), float(data.max()), self.scheme.activations)
