"""The kernel of a recurrent layer: sequences > steps > blocks of hidden units.

The input's part of each gate is there already, for all steps. A kernel carries the states of a few
sequences through some steps in memory of its own thread. The output has two copies: one is read and
one is written. Each hidden unit's gates are summed and activated together.
"""

from __future__ import annotations

from collections.abc import Sequence

from trireme.devices.cpu.codegen.index import minus, plus, times
from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.recurrent_cell import (
    GateProduct,
    gru_gates,
    gru_linear,
    gru_rest,
    lstm,
    rnn,
)
from trireme.devices.cpu.kernels.f32.recurrent_layer import (
    LayerPart,
    operand_names,
    vectors_of,
)
from trireme.devices.cpu.kernels.lowering import finish
from trireme.devices.cpu.kernels.spans import SpanCut, begin_span
from trireme.support.records import dataclass


def recurrent_kernel(isa: Isa, part: LayerPart, cut: SpanCut) -> Code:
    """Return the kernel of some steps.

    Operands: what the input gives the gates [S*B,D,G*Hp], recurrent weights, the recurrent bias of
    separate gates [D,Hp], peepholes [D,3,Hp], lengths with a fault behind them, first states, the
    first step and the one after the last, y, y_h, y_c; states [states,D,B,Hp] from the kernel
    before come before y, those for the next after
    """
    return sequences_kernel(f"recurrent_{part.layer.cell.op}_f32", isa, part, cut, SequenceTile)


def sequences_kernel(
    name: str, isa: Isa, part: LayerPart, cut: SpanCut, made: type[SequenceTile]
) -> Code:
    """Return the kernel of some steps, which `made` writes for a tile of sequences."""
    names = operand_names(part)
    fn, operands, chunk, local, span = begin_span(name, isa, len(names), cut)
    part = fn.known(part)
    layer, tile = part.layer, part.layer.tile(isa)
    body = made(fn, part, dict(zip(names, operands, strict=True)), local)
    if layer.has_lengths and part.is_first:
        with fn.when(fn.compare("eq", chunk, 0)):
            body.check()
    tiles = fn.integer("udiv", plus(fn, layer.batch, tile - 1), tile)
    for item in fn.range(*span):
        direction, at = (fn.integer(op, item, tiles) for op in ("udiv", "urem"))
        first = times(fn, at, tile)
        rest = minus(fn, layer.batch, times(fn, minus(fn, tiles, 1), tile))
        if isinstance(rest, Value):
            left = fn.as_value("i64", fn.minimum(minus(fn, layer.batch, first), tile))
            for count in range(1, tile + 1):
                with fn.when(fn.compare("eq", left, count)):
                    body.sequences(direction, first, count)
            continue
        if rest == tile or isinstance(at, int):
            body.sequences(direction, first, rest if tiles == 1 else tile)
            continue
        for is_rest in fn.either(fn.compare("eq", at, minus(fn, tiles, 1))):
            body.sequences(direction, first, rest if is_rest else tile)
    return finish(fn)


@dataclass(frozen=True)
class Sequenced:
    """A sequence at a step: where its gates lie, its outputs go, and whether it is still live."""

    gates: Value
    y: Value
    live: Value | None


class SequenceTile:
    """Writes the steps of a tile of sequences."""

    def __init__(
        self,
        fn: Function,
        part: LayerPart,
        at: dict[str, Value],
        local: Value,
    ) -> None:
        self.fn, self.part, self.layer, self.at = fn, part, part.layer, at
        self.is_first, self.is_last = part.is_first, part.is_last
        layer = part.layer
        self.lanes, self.element = fn.isa.lanes, layer.cell.weights
        self.type = vector(self.lanes, "float")
        self.sums = self.type if self.element == "float" else vector(self.lanes, "i32")
        self.padded, self.tile = layer.padded(fn.isa), layer.tile(fn.isa)
        room = self.tile * self.padded
        self.halves = local  # the output, read and written in turns
        self.inner = fn.at(local, 2 * room)  # an lstm's inner state, or a gru's update gate
        self.rest = fn.at(local, 3 * room)  # a gru's reset state

    def check(self) -> None:
        """Emit a look at all lengths; one outside 0..S is reported."""
        fn, layer = self.fn, self.layer
        for back in fn.range(0, layer.batch):
            at = fn.as_value("i64", minus(fn, layer.batch, 1)) - back
            length = self._length(at)
            with fn.when(fn.compare("ugt", length, layer.steps)):
                fn.store(fn.as_value("i64", 1), self.at["fault"], 8)
                fn.store(length, fn.at(self.at["fault"], 1, "i64"), 8)

    def _length(self, sequence: Index) -> Value:
        fn = self.fn
        narrow = fn.load("i32", fn.at(self.at["lengths"], sequence, "i32"))
        return fn.convert("sext", narrow, "i64")

    def sequences(self, direction: Index, first: Index, count: int) -> None:
        """Emit all steps of `count` sequences from `first` on, in one direction."""
        fn, layer = self.fn, self.layer
        self.count, self.direction = count, direction
        self.first_sequence = first
        low, high = self._span()
        self._enter(low)
        stages, weights = layer.cell.stages, self.at["weights"]
        whole = layer.cell.gates * layer.hidden * self.padded
        weights = fn.at(weights, fn.as_value("i64", direction) * whole, self.element)
        for t in fn.range(low, high):
            now = [self._sequence(plus(fn, first, r), t) for r in range(count)]
            self.old = self._half(t)
            self.new = self._half(fn.as_value("i64", t) + 1)
            self.begin_step()
            at = 0
            for stage in stages:
                self._stage(stage, fn.at(weights, at, self.element), now)
                at += len(stage.gates) * layer.hidden * self.padded
        self._leave(high)

    def _span(self) -> tuple[Index, Index]:
        """Return the first step and the one after the last."""
        if self.part.span is not None:
            return self.part.span
        fn, at = self.fn, self.at["span"]
        low, high = (fn.load("i64", fn.at(at, k, "i64"), 8) for k in (0, 1))
        return low, high

    def _half(self, t: Index) -> Value:
        """Return where the outputs lie that step t reads."""
        odd = self.fn.as_value("i64", self.fn.integer("and", self.fn.as_value("i64", t), 1))
        return self.fn.at(self.halves, odd * (self.tile * self.padded))

    def _sequence(self, sequence: Index, t: Index) -> Sequenced:
        """Return where a sequence is at step t: past its length, and backwards."""
        fn, layer = self.fn, self.layer
        sequence, t = fn.as_value("i64", sequence), fn.as_value("i64", t)
        length, live = fn.as_value("i64", layer.steps), None
        if layer.has_lengths:
            given = self._length(sequence)
            is_wrong = fn.compare("ugt", given, layer.steps)
            length = fn.select(is_wrong, fn.as_value("i64", 0), given)
            live = fn.compare("slt", t, length)
        place = t
        if any(layer.backward):
            mirrored = length - 1 - t
            if live is not None:
                mirrored = fn.select(live, mirrored, t)
            place = mirrored
            if not all(layer.backward):  # the second of two directions
                is_second = fn.compare("eq", fn.as_value("i64", self.direction), 1)
                place = fn.select(is_second, mirrored, t)
        row = place * layer.batch + sequence
        if layer.is_batch_first:
            row = sequence * layer.steps + place
        direction = fn.as_value("i64", self.direction)
        gates = (row * layer.directions + direction) * (layer.cell.gates * self.padded)
        if layer.is_batch_first:
            out = row * layer.directions + direction
        else:
            out = (place * layer.directions + direction) * layer.batch + sequence
        y = fn.at(self.at["y"], out * layer.hidden)
        return Sequenced(fn.at(self.at["gates"], gates), y, live)

    def _stage(self, stage: GateProduct, weights: Value, now: Sequence[Sequenced]) -> None:
        """Emit all blocks of hidden units of a stage; the last, narrower one by itself."""
        hidden, lanes = self.layer.hidden, self.lanes
        width = vectors_of(self.fn.isa, stage, self.layer)
        vectors = self.padded // lanes
        step = len(stage.gates) * hidden * lanes
        whole = (vectors - (hidden % lanes > 0)) // width * width
        for v in self.fn.range(0, whole, width):
            self._block(stage, self.fn.at(weights, v * step, self.element), v, width, now)
        for v in range(whole, vectors, width):
            block = min(width, vectors - v)
            self._block(stage, self.fn.at(weights, v * step, self.element), v, block, now)

    def _block(
        self, stage: GateProduct, weights: Value, v: Index, width: int, now: Sequence[Sequenced]
    ) -> None:
        """Emit the sums of a block of units, and what the cell makes of them."""
        fn, lanes, gates, taps = self.fn, self.lanes, len(stage.gates), self.layer.cell.taps
        sums = [
            [
                [Var(fn, self.sums, self.start(gate, one, (v + i) * lanes)) for i in range(width)]
                for gate in stage.gates
            ]
            for one in now
        ]
        source = self.source(stage)
        for k in fn.range(0, self.layer.hidden, taps):
            line = fn.at(weights, k * (gates * width * lanes), self.element)
            factors = [self.factor(source, k, r) for r in range(len(now))]
            for g in range(gates):
                for i in range(width):
                    at = (g * width + i) * lanes * taps
                    panel = self.panel(fn.at(line, at, self.element))
                    for r, factor in enumerate(factors):
                        sums[r][g][i].set(self.added(sums[r][g][i].get(), factor, panel))
        for r, one in enumerate(now):
            for i in range(width):
                parts = [gate[i].get() for gate in sums[r]]
                self.finish(stage, parts, one, r, (v + i) * lanes)

    def begin_step(self) -> None:
        """Emit what a step does before its products."""

    def source(self, stage: GateProduct) -> Value:
        """Return where the factors of a stage's products lie."""
        return self.rest if stage.reads_rest else self.old

    def factor(self, source: Value, k: Index, r: int) -> Value:
        """Load the k-th factor of a sequence, and those of further taps, for all lanes."""
        fn = self.fn
        return fn.splat(fn.load("float", fn.at(source, k + r * self.padded)), self.lanes)

    def panel(self, place: Value) -> Value:
        """Load the recurrent weights of a vector of units."""
        return self.fn.load(self.type, place, 4 * self.lanes)

    def added(self, total: Value, factor: Value, panel: Value) -> Value:
        """Return sums and the products of a factor and weights."""
        return self.fn.fma(factor, panel, total)

    def start(self, gate: int, one: Sequenced, unit: Index) -> Value:
        """Return the starts of a gate's sums: the input's part, or a bias."""
        if gate in self.layer.cell.separate:
            return self.constant("bias", 0, 1, unit)
        return self.given(gate, one, unit)

    def given(self, gate: int, one: Sequenced, unit: Index) -> Value:
        """Load what the input gives a gate of a vector of units."""
        place = self.fn.at(self.fn.at(one.gates, gate * self.padded), unit)
        return self.fn.load(self.type, place)

    def constant(self, name: str, which: int, of: int, unit: Index) -> Value:
        """Load a vector of a direction's constant, the which-th of so many."""
        fn = self.fn
        at = (fn.as_value("i64", self.direction) * of + which) * self.padded
        return fn.load(self.type, fn.at(fn.at(self.at[name], at), unit))

    def finish(
        self, stage: GateProduct, sums: Sequence[Value], one: Sequenced, r: int, unit: Index
    ) -> None:
        """Emit what the cell makes of a vector of units, and its stores."""
        fn, cell = self.fn, self.layer.cell

        def mine(base: Value) -> Value:
            return fn.at(fn.at(base, r * self.padded), unit)

        loads = {"h": fn.load(self.type, mine(self.old))}
        if cell.op == "lstm":
            loads["c"] = fn.load(self.type, mine(self.inner))
            if cell.peepholes:
                loads |= {f"p{k}": self.constant("peepholes", k, 3, unit) for k in range(3)}
            state, inner = lstm(fn, cell, sums, loads)
            fn.store(self._alive(one, inner, loads["c"]), mine(self.inner))
        elif cell.op == "rnn":
            (state,) = rnn(fn, cell, sums, loads)
        elif cell.linear:
            loads["x2"] = self.given(2, one, unit)
            (state,) = gru_linear(fn, cell, sums, loads)
        elif not stage.reads_rest:
            update, rest = gru_gates(fn, cell, sums, loads)
            fn.store(update, mine(self.inner))
            fn.store(rest, mine(self.rest))
            return
        else:
            loads["z"] = fn.load(self.type, mine(self.inner))
            (state,) = gru_rest(fn, cell, sums, loads)
        fn.store(self._alive(one, state, loads["h"]), mine(self.new))
        count = min(self.lanes, self.layer.hidden - unit) if isinstance(unit, int) else self.lanes
        made = self._alive(one, state, fn.as_value(self.type, 0.0))
        fn.store_some(made, fn.at(one.y, unit), count)

    def _alive(self, one: Sequenced, new: Value, old: Value) -> Value:
        """Return the new state, the old one past the sequence's length."""
        return new if one.live is None else self.fn.select(one.live, new, old)

    def _state(self, k: int, sequence: Index) -> Value:
        """Return where a sequence's state lies between kernels."""
        fn, layer = self.fn, self.layer
        row = (fn.as_value("i64", self.direction) + k * layer.directions) * layer.batch
        return fn.at(self.at["states"], (row + sequence) * self.padded)

    def _outside(self, base: Value, sequence: Index) -> Value:
        """Return where a sequence's state lies in a first or last state, [D,B,H] or [B,D,H]."""
        fn, layer = self.fn, self.layer
        direction = fn.as_value("i64", self.direction)
        if layer.is_batch_first:
            row = fn.as_value("i64", sequence) * layer.directions + direction
        else:
            row = direction * layer.batch + sequence
        return fn.at(base, row * layer.hidden)

    def _held(self, k: int, half: Value) -> Value:
        return half if k == 0 else self.inner

    def _enter(self, low: Index) -> None:
        """Emit the loads of the states that the first step sees."""
        fn, half = self.fn, self._half(low)
        zero = fn.as_value(self.type, 0.0)
        for k in range(self.layer.cell.states):
            given = self.at.get(f"first {k}") if self.is_first else None
            for r in range(self.count):
                sequence = plus(fn, self.first_sequence, r)
                target = fn.at(self._held(k, half), r * self.padded)
                if not self.is_first:
                    self._copy(self._state(k, sequence), target, self.padded)
                elif given is not None:
                    self._copy(self._outside(given, sequence), target, self.layer.hidden)
                else:
                    for at in fn.range(0, self.padded, self.lanes):
                        fn.store(zero, fn.at(target, at))

    def _leave(self, high: Index) -> None:
        """Emit the stores of the states that the last step leaves."""
        fn, half = self.fn, self._half(high)
        for k in range(self.layer.cell.states):
            base = self.at.get(f"last {k}")
            for r in range(self.count):
                sequence = plus(fn, self.first_sequence, r)
                source = fn.at(self._held(k, half), r * self.padded)
                if not self.is_last:
                    self._copy(source, self._state(k, sequence), self.padded)
                elif base is not None:
                    self._copy(source, self._outside(base, sequence), self.layer.hidden)

    def _copy(self, source: Value, target: Value, count: int) -> None:
        """Emit the copy of some units; a partial vector is filled up with zeros in registers."""
        fn = self.fn
        whole = count // self.lanes * self.lanes
        for at in fn.range(0, whole, self.lanes):
            fn.store(fn.load(self.type, fn.at(source, at)), fn.at(target, at))
        if whole < count:
            rest = count - whole
            tail = fn.load_some(self.type, fn.at(source, whole), rest)
            fn.store_some(tail, fn.at(target, whole), rest)
