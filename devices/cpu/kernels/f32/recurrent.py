"""rnn, gru and lstm: one product for all steps and directions, then the steps.

The input's part of the gates does not depend on the state, so it is one matrix product. The steps
follow in one kernel, whose chunks are directions and tiles of sequences (recurrent_body.py); long
ones are cut, in eight where sizes vary, so that Python handles signals in between. Kernels carry
the states on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from trireme.devices.cpu.codegen.index import known
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.panels import pack_panels, panel_bytes
from trireme.devices.cpu.kernels.f32.product_shape import (
    PACKED,
    MatmulShape,
    Strides,
)
from trireme.devices.cpu.kernels.f32.product_step import Operands, product_step
from trireme.devices.cpu.kernels.f32.products import constant_reason
from trireme.devices.cpu.kernels.f32.recurrent_body import recurrent_kernel
from trireme.devices.cpu.kernels.f32.recurrent_cell import ACTIVATIONS, Cell, CellActivation
from trireme.devices.cpu.kernels.f32.recurrent_layer import (
    Layer,
    LayerPart,
    local_bytes,
    vectors_of,
)
from trireme.devices.cpu.kernels.f32.tiling import Size
from trireme.devices.cpu.kernels.lowering import (
    TABLE,
    Context,
    KernelFault,
    Operand,
    Packed,
    Rule,
    SizedTemp,
    Step,
    Temp,
    deal,
    in_every_shape,
)
from trireme.devices.cpu.kernels.spans import Planned, SpanCut, SpanWork, Wiring, planned_step
from trireme.ir.graph import Graph, Node
from trireme.ops.recurrent_cells import KINDS, activations_of
from trireme.support.dtypes import Array
from trireme.support.errors import GraphError

LONGEST_S = 0.01
"""The most seconds of one kernel's steps: no native call may keep signals waiting longer."""
_OPEN_PARTS = 8
"""Kernels that long sequences are cut into where sizes vary."""
LayerOf = Callable[[Graph, Node], Layer]


def _given(node: Node, position: int) -> int | None:
    return node.inputs[position] if position < len(node.inputs) else None


def _activations(node: Node) -> list[tuple[CellActivation, ...]]:
    """Return the activations of each direction."""
    kind, attrs = KINDS[node.op], node.attrs
    count = 2 if attrs["direction"] == "bidirectional" else 1
    named = activations_of(kind, count, attrs)
    clip = attrs["clip"]
    made = [CellActivation(name, *numbers, clip) for name, numbers in named]
    each = len(kind.activations)
    return [tuple(made[d * each : (d + 1) * each]) for d in range(count)]


def _layer_of(graph: Graph, node: Node) -> Layer:
    """Return what decides about the kernel of a recurrent node."""
    kind, attrs = KINDS[node.op], node.attrs
    x, hidden = graph.type(node.used[0]).dims, graph.type(node.used[2]).dims[2]
    steps, batch = (x[1], x[0]) if attrs["layout"] else (x[0], x[1])
    backward = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    cell = Cell(
        node.op,
        kind.gates,
        kind.states,
        _activations(node)[0],
        bool(attrs.get("linear_before_reset")),
        bool(attrs.get("input_forget")),
        _given(node, 7) is not None,
    )
    states = tuple(_given(node, 5 + k) is not None for k in range(kind.states))
    return Layer(
        cell,
        hidden,
        steps,
        batch,
        backward[str(attrs["direction"])],
        bool(attrs["layout"]),
        _given(node, 4) is not None,
        states,
        len(node.outputs),
    )


def _data(context: Context, value: int | None) -> Array | None:
    return None if value is None else context.graph.values[value].data


def _padded(data: Array, gates: int, units: int) -> Array:
    """Return [D, gates*H, ..] as [D, gates, units, ..], filled up with zeros."""
    split = data.reshape(data.shape[0], gates, -1, *data.shape[2:])
    room = [(0, 0)] * split.ndim
    room[2] = (0, units - split.shape[2])
    return np.pad(split, room)


def _gates_product(isa: Isa, layer: Layer, depth: int) -> MatmulShape:
    """Return the product of all inputs with the weights of all gates and directions."""
    columns = layer.directions * layer.cell.gates * layer.padded(isa)
    size = Size(layer.steps * layer.batch, columns, depth)
    return MatmulShape(size, a=Strides(depth), b=PACKED, c=Strides(columns), bias=True)


def _gates_operands(
    context: Context, node: Node, layer: Layer, depth: int, target: Temp
) -> Operands:
    """Return the operands of that product."""
    weight, cell, units = node.used[1], layer.cell, layer.padded(context.isa)
    columns = layer.directions * cell.gates * units

    def pack(width: int) -> Operand:
        def make() -> Array:
            whole = _padded(context.constant(weight), cell.gates, units)
            return pack_panels(whole.reshape(columns, depth).T[None], width)

        nbytes = panel_bytes(1, depth, columns, width)
        return context.pack_later(weight, f"gates {width}", nbytes, make)

    bias = _padded(_biases(context, node, layer)[0], cell.gates, units).reshape(-1)
    return Operands(context.operand(node.used[0]), pack, (bias,), target)


def _biases(context: Context, node: Node, layer: Layer) -> tuple[Array, Array]:
    """Return the bias [D,G*H] of the input's part, and that of the state's products."""
    size = layer.cell.gates * layer.hidden
    data = _data(context, _given(node, 3))
    if data is None:
        zero = np.zeros((layer.directions, size), np.float32)
        return zero, zero
    of_input, of_state = data[:, :size].astype(np.float64), data[:, size:]
    split = of_state.reshape(layer.directions, layer.cell.gates, layer.hidden).copy()
    for gate in layer.cell.separate:
        split[:, gate] = 0
    with np.errstate(invalid="ignore"):  # opposite infinities make NaN, as in the reference
        joined = of_input + split.reshape(of_state.shape)
    return joined.astype(np.float32), of_state


def _weights(context: Context, value: int, layer: Layer) -> Packed:
    """Return the recurrent weights as [D, stage, block, H, gates of it, units of a block]."""
    isa, cell, units = context.isa, layer.cell, layer.padded(context.isa)

    def make() -> Array:
        whole = _padded(context.constant(value), cell.gates, units)  # [D, G, units, H]
        return np.concatenate([pack_direction(isa, layer, one) for one in whole])

    nbytes = 4 * layer.directions * cell.gates * units * layer.hidden
    return context.pack_later(value, f"recurrent {cell.stages} {layer.batch == 1}", nbytes, make)


def pack_direction(isa: Isa, layer: Layer, weights: Array) -> Array:
    """Return recurrent weights [gates, units, H] of a direction as a kernel reads them."""
    parts = []
    for stage in layer.cell.stages:
        width = vectors_of(isa, stage, layer) * isa.lanes
        taken = weights[list(stage.gates)]
        for at in range(0, taken.shape[1], width):
            block = taken[:, at : at + width]  # [gates, units, H]
            steps = block.reshape(*block.shape[:2], -1, layer.cell.taps)
            parts.append(steps.transpose(2, 0, 1, 3).reshape(-1))
    return np.concatenate(parts)


def _constants(context: Context, node: Node, layer: Layer) -> list[Operand]:
    """Return the operands of a kernel that are neither gates, states nor outputs."""
    units, cell = layer.padded(context.isa), layer.cell
    found: list[Operand] = []
    for gate in cell.separate:
        of_state = _padded(_biases(context, node, layer)[1], cell.gates, units)
        found.append(np.ascontiguousarray(of_state[:, gate], np.float32))
    if cell.peepholes:
        peepholes = _given(node, 7)
        found.append(_padded(context.constant(peepholes or 0), 3, units))
    lengths, label = _given(node, 4), node.label
    if lengths is not None:
        steps = layer.steps if known(layer.steps) else "that of the steps"
        fault = KernelFault(
            lambda bad: f"{label}: a sequence length is {bad}, expected 0 to {steps}"
        )
        found += [context.operand(lengths), fault]
    for k in range(cell.states):
        state = _given(node, 5 + k)
        found += [] if state is None else [context.operand(state)]
    return found


def _gates_bytes(isa: Isa, layer: Layer) -> int:
    """Return the bytes of what the inputs give the gates."""
    rows = layer.steps * layer.batch * layer.directions
    return 4 * rows * layer.cell.gates * layer.padded(isa)


def _states_bytes(isa: Isa, layer: Layer) -> int:
    """Return the bytes of the states between kernels."""
    return 4 * layer.cell.states * layer.directions * layer.batch * layer.padded(isa)


def _lower(context: Context, node: Node) -> Sequence[Step]:
    isa, layer = context.isa, _layer_of(context.graph, node)
    gates = _temp(context, node, _layer_of, "gates", _gates_bytes)
    depth = context.type(node.used[1]).dims[2]

    def product_of(graph: Graph, node: Node) -> MatmulShape:
        return _gates_product(isa, _layer_of(graph, node), depth)

    operands = _gates_operands(context, node, layer, depth, gates)
    steps = [product_step(context, node, product_of, operands, "fully_connected")]
    weights = _weights(context, node.used[2], layer)
    constants = _constants(context, node, layer)
    given = Sequences(node, _layer_of, recurrent_kernel)
    return [*steps, *sequence_steps(context, given, [gates, weights, *constants])]


class Sequences(NamedTuple):
    """The steps of a node: what gives the layer of a graph, and the maker of their kernels."""

    node: Node
    layer_of: LayerOf
    make: Callable[[Isa, LayerPart, SpanCut], Code]


def sequence_steps(context: Context, given: Sequences, operands: Sequence[Operand]) -> list[Step]:
    """Return the steps of the kernels of all steps of a layer.

    operands: gates, weights and what follows up to the first states
    """
    isa, (node, layer_of, _) = context.isa, given
    layer = layer_of(context.graph, node)
    states = _temp(context, node, layer_of, "states", _states_bytes)
    steps: list[Step] = []
    parts = _OPEN_PARTS
    if not context.is_open:
        parts = max(1, min(layer.steps, math.ceil(layer.seconds(isa) / LONGEST_S)))
    for part in range(parts):
        first = operands[: len(operands) - sum(layer.has_states)] if part else operands
        span = [] if context.is_open else [np.array(_span(layer, part, parts), np.int64)]
        reads = (*first, *span, *([states] if part else []))
        handed_on: tuple[Operand, ...] = (states,) if part < parts - 1 else ()
        wiring = Wiring(reads, (*node.outputs, *handed_on), (node.id,), "recurrent")
        steps.append(_part_step(context, given, wiring, part, parts))
    return steps


def _span(layer: Layer, part: int, parts: int) -> tuple[int, int]:
    return layer.steps * part // parts, layer.steps * (part + 1) // parts


def _temp(
    context: Context,
    node: Node,
    layer_of: LayerOf,
    name: str,
    nbytes: Callable[[Isa, Layer], int],
) -> Temp:
    """Return memory between steps: of the layer, or where sizes vary of a usual one."""
    isa, key, layer = context.isa, f"%{node.outputs[0]} {name}", layer_of(context.graph, node)
    if not context.is_open:
        return Temp(key, nbytes(isa, layer))
    usual = nbytes(isa, replace(layer, steps=64, batch=4))
    return SizedTemp(key, usual, lambda graph: nbytes(isa, layer_of(graph, node)))


def _part_step(context: Context, given: Sequences, wiring: Wiring, part: int, most: int) -> Step:
    """Return the step of one of the kernels.

    most: kernels there are; where sizes vary, the first does all steps where they are short
    """
    isa, (node, layer_of, make) = context.isa, given
    sample = layer_of(context.graph, node)
    tile, room = sample.tile(isa), local_bytes(isa, sample)

    def plan_of(layer: Layer, parts: int) -> LayerPart:
        span = _span(layer, part, parts) if context.is_open else None
        return LayerPart(layer, part == 0, part == parts - 1, span)

    def planned(graph: Graph) -> Planned[LayerPart]:
        layer = layer_of(graph, node)
        seconds, parts = layer.seconds(isa), most
        if context.is_open and (seconds <= LONGEST_S or layer.steps < most):
            parts = 1
        items = layer.directions * -(-layer.batch // tile)
        if part >= parts:
            return Planned(plan_of(layer, most), SpanWork(items, seconds, room, lambda *_: (1, 0)))
        if context.is_open:
            return Planned(plan_of(layer, parts), SpanWork(items, seconds / parts, room))
        work = SpanWork(items, seconds / parts, room, lambda units, _: deal(units, seconds))
        return Planned(plan_of(layer, parts), work)

    samples = [plan_of(sample, most), *([plan_of(sample, 1)] if part == 0 else [])]
    return planned_step(context, wiring, planned, samples, make)


def _reason(graph: Graph, node: Node) -> str | None:
    """Say why a recurrent layer has no native kernel, None when it has."""
    for value in (*node.used[:3], *node.outputs):
        type = graph.type(value)
        if type.dtype != "float32" or type.quant is not None:
            return f"{node.op} has no native kernel for {type.dtype}"
        if not type.elements:
            return f"{node.op} has no native kernel for empty tensors"
    lengths = _given(node, 4)
    if lengths is not None and graph.type(lengths).dtype != "int32":
        return f"{node.op} has native kernels for lengths of int32 only"
    for position in (1, 2, 3, 7):
        if _given(node, position) is not None:
            missing = constant_reason(graph, node, position, "weights and biases")
            if missing:
                return missing
    try:
        found = _activations(node)
    except GraphError as error:
        return error.summary
    unknown = [one.name for each in found for one in each if one.name not in ACTIVATIONS]
    if unknown:
        return f"{node.op} has no native kernel with {unknown[0]}"
    if len(set(found)) > 1:
        return f"{node.op} has native kernels for the same activations in both directions only"
    return None


TABLE.add(("rnn", "gru", "lstm"), Rule(_reason, _lower, in_every_shape), ["float32"])
