"""integer_lstm: the steps of one sequence a chunk, all its products in integers.

A step prepares the input and the state for the multiplier of the instruction set, then makes a
vector of units at a time: the sums of all gates, their tables, the cell. Tables of 16-bit numbers
are looked up by gathers. Long sequences are cut, so that Python looks after signals in between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from trireme.devices.cpu.codegen.ir import Function, Index, Value
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import lanes_of, mangled, vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.products import constant_reason
from trireme.devices.cpu.kernels.int8.arithmetic import (
    dot_of,
    requantise,
    splat_scale,
)
from trireme.devices.cpu.kernels.int8.recurrent_pack import (
    IntegerLayer,
    packed,
    packed_bias,
    padded,
)
from trireme.devices.cpu.kernels.int8.recurrent_parts import (
    block_sums,
    clamped,
    copy_bytes,
    prepare,
)
from trireme.devices.cpu.kernels.lowering import (
    TABLE,
    Context,
    Operand,
    Rule,
    Step,
    Temp,
    begin,
    finish,
)
from trireme.ir.graph import Graph, Node
from trireme.ops.integer.fixed_point import sigmoid_table, tanh_table
from trireme.ops.recurrent_integer import cycled

_LONGEST_S = 0.01
"""The most that the steps of one kernel take: no native call may keep signals waiting longer."""
_INT16 = (-32768, 32767)
_INT8 = (-128, 127)


def _looked_up(fn: Function, table: Value, x: Value) -> Value:
    """Return the table's 16-bit entries at vectors of i32 in -32768..32767, as i32."""
    lanes = lanes_of(x.type)
    offsets = fn.convert("sext", x + 32768, vector(lanes, "i64"))
    pointers = vector(lanes, "ptr")
    places = fn.emit(pointers, f"getelementptr i16, {table}, {offsets}")
    mask = Value(fn, vector(lanes, "i1"), "splat (i1 true)" if lanes > 1 else "true")
    name = f"llvm.masked.gather.{mangled(x.type)}.v{lanes}p0"
    found = fn.call(x.type, name, places, Value(fn, "i32", "1"), mask, fn.as_value(x.type, 0))
    high = fn.emit(x.type, f"shl {found}, {found.text_of(16)}")
    return fn.emit(x.type, f"ashr {high}, {high.text_of(16)}")


def _divided(fn: Function, x: Value, power: int) -> Value:
    """Return x / 2**power rounded to nearest, ties away from zero."""
    sign = fn.emit(x.type, f"ashr {x}, {x.text_of(31)}")
    total = x + (1 << power >> 1) + sign
    return fn.emit(x.type, f"ashr {total}, {total.text_of(power)}")


class _IntegerLstmEmitter:
    """Emits the parts of the kernel; `places` are the addresses of its operands."""

    def __init__(self, fn: Function, layer: IntegerLayer, places: dict[str, Value]) -> None:
        self.fn, self.layer, self.places = fn, layer, places
        self.lanes, self.dot = fn.isa.lanes, dot_of(fn.isa)
        self.wide = vector(self.lanes, "i32")
        gates = layer.gates
        scales = [splat_scale(fn, self.wide, *pair) for pair in layer.scales]
        self.of_input, self.of_state = scales[:gates], scales[gates : 2 * gates]
        self.of_peepholes = scales[2 * gates : 2 * gates + 3]
        self.of_hidden, self.of_projection = scales[-2:]

    def unit_block(self, x: Value, h: Value, cell: Value, hidden: Value, block: Index) -> None:
        """Make a vector of units: the new cell in its place, and the hidden bytes."""
        fn, layer, lanes = self.fn, self.layer, self.lanes
        gates = layer.gates
        first = block_sums(
            fn, x, (self.places["w"], self.places["x_bias"]), block, gates, layer.inputs
        )
        second = block_sums(
            fn, h, (self.places["r"], self.places["r_bias"]), block, gates, layer.outputs
        )
        totals = []
        for k in range(gates):
            total = clamped(fn, requantise(fn, first[k], self.of_input[k]), *_INT16)
            total = requantise(fn, second[k], self.of_state[k]) + total
            totals.append(clamped(fn, total, *_INT16))
        names = ("input", "forget", "cell", "output")[4 - gates :]
        sums = dict(zip(names, totals, strict=True))
        narrow = vector(lanes, "i16")
        place = fn.at(cell, block * lanes, "i16")
        old = fn.convert("sext", fn.load(narrow, place, 2), self.wide)

        def gate(name: str, peephole: int, state: Value) -> Value:
            total = sums[name]
            if layer.has_peepholes:
                at = block * lanes + peephole * padded(layer.units, lanes)
                weight = fn.load(narrow, fn.at(self.places["peepholes"], at, "i16"), 2)
                seen = fn.convert("sext", weight, self.wide) * state
                total = requantise(fn, seen, self.of_peepholes[peephole]) + total
                total = clamped(fn, total, *_INT16)
            return _looked_up(fn, self.places["sigmoid"], total)

        forget = gate("forget", 1, old)
        made = _looked_up(fn, self.places["tanh"], sums["cell"])
        enter = 32767 - forget if gates == 3 else gate("input", 0, old)
        entered = _divided(fn, enter * made, 30 + layer.cell_scale)
        new = clamped(fn, _divided(fn, forget * old, 15) + entered, *_INT16)
        if layer.clips[0] > 0:
            new = clamped(fn, new, -layer.clips[0], layer.clips[0])
        fn.store(fn.convert("trunc", new, narrow), place, 2)
        squashed = _looked_up(fn, self.places["squash"], new)
        value = requantise(fn, gate("output", 2, new) * squashed, self.of_hidden)
        value = clamped(fn, value + layer.zeros[0], *_INT8)
        bytes_ = fn.convert("trunc", value, vector(lanes, "i8"))
        fn.store(bytes_, fn.at(hidden, block * lanes, "i8"), 1)

    def project(self, hidden: Value, state: Value) -> None:
        """Make the bytes of the state from the prepared hidden value."""
        fn, layer, lanes = self.fn, self.layer, self.lanes
        for block in fn.range(0, padded(layer.outputs, lanes) // lanes):
            (total,) = block_sums(
                fn,
                hidden,
                (self.places["projection"], self.places["projection_bias"]),
                block,
                1,
                layer.units,
            )
            value = requantise(fn, total, self.of_projection) + layer.zeros[1]
            value = clamped(fn, value, *_INT8)
            if layer.clips[1] > 0:
                value = clamped(fn, value, -layer.clips[1], layer.clips[1])
            bytes_ = fn.convert("trunc", value, vector(lanes, "i8"))
            fn.store(bytes_, fn.at(state, block * lanes, "i8"), 1)


def _names(layer: IntegerLayer) -> list[str]:
    """Return the operands that a kernel reads, in order."""
    names = ["x", "w", "r", "x_bias", "r_bias"]
    names += ["peepholes"] * layer.has_peepholes
    names += ["projection", "projection_bias"] * layer.has_projection
    return [*names, "sigmoid", "tanh", "squash", "span", "h", "c"]


def integer_lstm_kernel(isa: Isa, layer: IntegerLayer) -> tuple[Code, int]:
    """Return the kernel of some steps of a sequence, and the bytes of its local memory."""
    names = [*_names(layer), "y", "last_h", "last_c"]
    fn, operands, chunk, local = begin("integer_lstm", isa, len(names))
    places = dict(zip(names, operands, strict=True))
    lanes, dot, wide = isa.lanes, dot_of(isa), isa.lanes * 4
    sizes = {
        "x": dot.width * padded(layer.inputs, wide),
        "h": dot.width * padded(layer.outputs, wide),
        "hidden": dot.width * padded(layer.units, wide),
        "cell": 2 * padded(layer.units, wide),
        "bytes": padded(layer.units, wide),
        "state": padded(layer.outputs, wide),
    }
    buffers, nbytes = {}, 0
    for name, size in sizes.items():
        buffers[name], nbytes = fn.at(local, nbytes, "i8"), nbytes + padded(size, 64)
    if layer.has_peepholes:
        rows = 3 * padded(layer.units, lanes)
        places["peepholes"] = fn.at(places["peepholes"], chunk * rows, "i16")
    emit = _IntegerLstmEmitter(fn, layer, places)
    own = {name: fn.at(places[name], chunk * layer.outputs, "i8") for name in ("h", "last_h")}
    own |= {name: fn.at(places[name], chunk * (2 * layer.units), "i8") for name in ("c", "last_c")}
    copy_bytes(fn, own["h"], buffers["state"], layer.outputs)
    copy_bytes(fn, own["c"], buffers["cell"], 2 * layer.units)
    low, high = (fn.load("i64", fn.at(places["span"], k, "i64"), 8) for k in range(2))
    for t in fn.range(low, high):
        row = chunk * layer.steps + t if layer.is_batch_first else t * layer.batch + chunk
        prepare(fn, fn.at(places["x"], row * layer.inputs, "i8"), buffers["x"], layer.inputs)
        prepare(fn, buffers["state"], buffers["h"], layer.outputs)
        for block in fn.range(0, padded(layer.units, lanes) // lanes):
            emit.unit_block(buffers["x"], buffers["h"], buffers["cell"], buffers["bytes"], block)
        if layer.has_projection:
            prepare(fn, buffers["bytes"], buffers["hidden"], layer.units)
            emit.project(buffers["hidden"], buffers["state"])
        else:
            copy_bytes(fn, buffers["bytes"], buffers["state"], layer.outputs)
        copy_bytes(
            fn, buffers["state"], fn.at(places["y"], row * layer.outputs, "i8"), layer.outputs
        )
    copy_bytes(fn, buffers["state"], own["last_h"], layer.outputs)
    copy_bytes(fn, buffers["cell"], own["last_c"], 2 * layer.units)
    return finish(fn), nbytes


def _given(node: Node, position: int) -> int | None:
    return node.inputs[position] if position < len(node.inputs) else None


def layer_of(graph: Graph, node: Node) -> IntegerLayer:
    """Return what decides about the kernel of an integer_lstm."""
    attrs, time_axis = node.attrs, node.attrs["time_axis"]
    x, w = graph.type(node.used[0]).dims, graph.type(node.used[1]).dims
    (batch, outputs), units = graph.type(node.used[5]).dims, graph.type(node.used[6]).dims[1]
    gates = w[0] // units
    pairs = list(zip(attrs["multipliers"], attrs["shifts"], strict=True))
    return IntegerLayer(
        x[time_axis],
        batch,
        x[2],
        units,
        outputs,
        gates,
        time_axis == 1,
        _given(node, 7) is not None,
        _given(node, 10) is not None,
        (*pairs[: 2 * gates], *pairs[3 * gates :]),
        attrs["cell_scale"],
        (attrs["hidden_zero"], attrs["output_zero"]),
        (attrs["cell_clip"], attrs["projection_clip"]),
    )


def _constants(context: Context, node: Node, layer: IntegerLayer) -> list[Operand]:
    lanes, dot = context.isa.lanes, dot_of(context.isa)
    w, r, x_bias, r_bias = (context.constant(node.used[k]) for k in range(1, 5))
    kind = f"{dot.name} {lanes}"
    found: list[Operand] = [
        context.pack(node.used[k], f"{kind} {k}", partial(packed, w, layer.gates, dot, lanes))
        for k, w in ((1, w), (2, r))
    ]
    found += [
        packed_bias(bias, weights, layer.gates, dot, lanes)
        for bias, weights in ((x_bias, w), (r_bias, r))
    ]
    peepholes, projection = _given(node, 7), _given(node, 10)
    if peepholes is not None:
        shape, alone = (layer.batch, layer.units), layer.is_batch_first
        rows = [cycled(row, shape, layer.outputs, alone) for row in context.constant(peepholes)]
        whole = np.zeros((layer.batch, 3, padded(layer.units, lanes)), np.int16)
        whole[:, :, : layer.units] = np.stack(rows, axis=1)
        found.append(whole)
    if projection is not None:
        data, given = context.constant(projection), _given(node, 11)
        bias = np.zeros(len(data), np.int32) if given is None else context.constant(given)
        found.append(context.pack(projection, f"{kind} 1", partial(packed, data, 1, dot, lanes)))
        found.append(packed_bias(bias, data, 1, dot, lanes))
    tables = (sigmoid_table(), tanh_table(3), tanh_table(15 + layer.cell_scale))
    return [*found, *(np.append(table, table[-1:]) for table in tables)]


def _lower(context: Context, node: Node) -> Sequence[Step]:
    layer, key = layer_of(context.graph, node), f"%{node.outputs[0]}"
    code, local_bytes = context.kernel(integer_lstm_kernel, layer)
    constants = _constants(context, node, layer)
    h = Temp(f"{key} h", layer.batch * layer.outputs)
    c = Temp(f"{key} c", 2 * layer.batch * layer.units)
    seconds = layer.seconds()
    parts = max(1, min(layer.steps, math.ceil(seconds / _LONGEST_S)))
    edges = [layer.steps * k // parts for k in range(parts + 1)]
    steps = []
    for k, span in enumerate(zip(edges[:-1], edges[1:], strict=True)):
        first: tuple[Operand, ...] = (h, c) if k else (node.used[5], node.used[6])
        last: tuple[Operand, ...] = (h, c) if k < parts - 1 else node.outputs[1:]
        reads = (context.operand(node.used[0]), *constants, np.array(span, np.int64))
        states = tuple(context.operand(one) if isinstance(one, int) else one for one in first)
        steps.append(
            Step(
                code,
                (*reads, *states),
                (node.outputs[0], *last),
                layer.batch,
                local_bytes,
                layer.batch * seconds / parts,
                family="recurrent",
            )
        )
    return steps


def _reason(graph: Graph, node: Node) -> str | None:
    if _given(node, 8) is not None:
        return "integer_lstm has no native kernel with layer normalisation"
    for value in (*node.used[:3], *node.outputs):
        if not graph.type(value).elements:
            return "integer_lstm has no native kernel for empty tensors"
    for position in (1, 2, 3, 4, 7, 10, 11):
        if _given(node, position) is not None:
            missing = constant_reason(graph, node, position, "weights and biases")
            if missing:
                return missing
    most = max(abs(shift) for shift in node.attrs["shifts"])
    if most > 31 or max(node.attrs["multipliers"]) > 2**31 - 1:
        return "integer_lstm has no native kernel for multipliers beyond 31 bits"
    limits = [node.attrs[name] for name in ("hidden_zero", "output_zero")]
    limits += [node.attrs["cell_clip"], node.attrs["projection_clip"]]
    if max(map(abs, limits)) > 32767:
        return "integer_lstm has no native kernel for zero points and clips beyond 16 bits"
    return None


TABLE.add("integer_lstm", Rule(_reason, _lower))
