"""dynamic_range_lstm: an LSTM whose hidden values are rounded to 8 bits before each product.

The kernel is that of an lstm (f32/recurrent_body.py). A step begins with the range and the levels
of the hidden values; the sums of the products are of integers, and are scaled.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trireme.devices.cpu.codegen import mathfn
from trireme.devices.cpu.codegen.ir import Index, Value
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.dynamic_range.dynamic_quantize import (
    LevelRounding,
    LineLayout,
    QuantizeKernel,
)
from trireme.devices.cpu.kernels.f32.recurrent import Sequences, pack_direction, sequence_steps
from trireme.devices.cpu.kernels.f32.recurrent_body import (
    Sequenced,
    SequenceTile,
    sequences_kernel,
)
from trireme.devices.cpu.kernels.f32.recurrent_cell import Cell, CellActivation, GateProduct
from trireme.devices.cpu.kernels.f32.recurrent_layer import Layer, LayerPart
from trireme.devices.cpu.kernels.int8.arithmetic import PAIRS, emit_dot
from trireme.devices.cpu.kernels.lowering import (
    TABLE,
    Context,
    Operand,
    Rule,
    Step,
    in_every_shape,
)
from trireme.devices.cpu.kernels.spans import SpanCut
from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import Array

_GATES = 4
_WHOLE_VECTORS = 16
"""Hidden units come in vectors of the widest instruction set."""
_ACTIVATIONS = tuple(CellActivation(name, 0.0, 0.0, None) for name in ("sigmoid", "tanh", "tanh"))


def _reason(graph: Graph, node: Node) -> str | None:
    """Say why the node has no native kernel, None when it has."""
    (steps, batch, _), hidden = (graph.type(value).dims for value in node.used[:2])
    if any(graph.values[value].data is None for value in node.used[1:4]):
        return f"{node.op} needs constant weights, scales and zero points"
    if batch != 1 or not steps:
        return f"{node.op} has native kernels for one sequence only"
    if hidden[0] % _WHOLE_VECTORS or not hidden[0]:
        return f"{node.op} has native kernels for multiples of {_WHOLE_VECTORS} units only"
    return None


def _whole_weights(graph: Graph, node: Node) -> Array:
    """Return the weights [H,4H] less their zero points, in the narrowest integers."""
    r, zero = (np.asarray(graph.values[node.used[k]].data) for k in (1, 3))
    whole: Array = r.astype(np.int16) - zero
    narrow: Array = whole.astype(np.int8)
    return narrow if (narrow == whole).all() else whole


def _lower(context: Context, node: Node) -> Sequence[Step]:
    isa, graph = context.isa, context.graph
    weights = _whole_weights(graph, node)
    hidden, element = len(weights), f"i{8 * weights.itemsize}"
    cell = Cell("lstm", _GATES, 2, _ACTIVATIONS, weights=element, taps=PAIRS.taps)

    def layer_of(graph: Graph, node: Node) -> Layer:
        steps, back = graph.type(node.used[0]).dims[0], bool(node.attrs["reverse"])
        return Layer(cell, hidden, steps, 1, (back,), False, False, (True, True), 3)

    layer = layer_of(graph, node)

    def pack() -> Array:
        whole = _whole_weights(graph, node).T.reshape(_GATES, hidden, hidden)
        return pack_direction(isa, layer, whole)

    packed = context.pack_later(node.used[1], f"recurrent {element}", weights.nbytes, pack)
    scales = np.resize(np.asarray(graph.values[node.used[2]].data), _GATES * hidden)
    states = (context.operand(value) for value in node.used[4:6])
    operands: list[Operand] = [context.operand(node.used[0]), packed, scales, *states]
    return sequence_steps(context, Sequences(node, layer_of, levels_kernel), operands)


def levels_kernel(isa: Isa, part: LayerPart, cut: SpanCut) -> Code:
    """Return the kernel of some steps; operands: as of `recurrent_kernel`, scales [4H] third."""
    return sequences_kernel("recurrent_lstm_levels", isa, part, cut, _OnLevels)


class _OnLevels(SequenceTile):
    """Writes the steps of a sequence whose hidden values are rounded; the levels are in `rest`.

    step: of the levels, in every lane
    """

    step: Value

    def begin_step(self) -> None:
        """Emit the range of the hidden values, and their levels."""
        fn, isa, lanes = self.fn, self.fn.isa, self.lanes
        layout = LineLayout(1, 1, self.padded, (0, 0, 0, 0), PAIRS)
        kernel = QuantizeKernel(isa, layout, LevelRounding("unsigned", 1.0))
        bits = kernel.extent(fn, self.old, 0, 1)
        high, low = (fn.convert("bitcast", fn.splat(b, lanes), self.type) for b in bits)
        self.step, point = kernel.step_and_point(fn, high, low)
        point = point + 128.0
        for at in fn.range(0, self.padded, lanes):
            x = fn.load(self.type, fn.at(self.old, at))
            level = fn.unary("roundeven", x / self.step) + point
            whole = fn.convert("fptosi", mathfn.clamp(fn, level, 0.0, 255.0) - point, self.sums)
            stored = fn.convert("trunc", whole, vector(lanes, PAIRS.element))
            fn.store(stored, fn.at(self.rest, at, PAIRS.element))

    def source(self, stage: GateProduct) -> Value:
        """Return where the levels lie."""
        return self.rest

    def factor(self, source: Value, k: Index, r: int) -> Value:
        """Load a pair of levels for all lanes."""
        fn = self.fn
        return fn.splat(fn.load("i32", fn.at(source, k, PAIRS.element)), self.lanes)

    def panel(self, place: Value) -> Value:
        """Load pairs of weights."""
        fn, count = self.fn, PAIRS.taps * self.lanes
        stored = fn.load(vector(count, self.element), place, count)
        wide = vector(count, PAIRS.element)
        return stored if stored.type == wide else fn.convert("sext", stored, wide)

    def added(self, total: Value, factor: Value, panel: Value) -> Value:
        """Return sums and the products of a pair of levels and pairs of weights."""
        return emit_dot(self.fn, PAIRS, total, factor, panel)

    def start(self, gate: int, one: Sequenced, unit: Index) -> Value:
        """Return 0: sums of integers are scaled before they meet what the input gives."""
        return self.fn.as_value(self.sums, 0)

    def finish(
        self, stage: GateProduct, sums: Sequence[Value], one: Sequenced, r: int, unit: Index
    ) -> None:
        """Emit the gates of a vector of units, and what the cell makes of them."""
        scaled = []
        for gate, total in enumerate(sums):
            factor = self.step * self.constant("scales", gate, _GATES, unit)
            product = self.fn.convert("sitofp", total, self.type) * factor
            scaled.append(self.given(gate, one, unit) + product)
        super().finish(stage, scaled, one, r, unit)


TABLE.add("dynamic_range_lstm", Rule(_reason, _lower, in_every_shape), ["float32"])
