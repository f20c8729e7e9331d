"""Attention of few queries, each by itself, as a decoder asks for one token after another.

softmax(scale q K^T + mask) V. The lanes of a vector are the depth of q, then neighbouring keys,
then the width of a value. So keys and values are read in whole vectors, and no lane is idle where
attention.py would fill its lanes with queries. Heads that share keys read them from the L2 cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from trireme.devices.cpu.codegen import mathfn
from trireme.devices.cpu.codegen.index import minus, plus, times
from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.kernels.f32.attention_shape import AttentionShape, OperandStrides
from trireme.devices.cpu.kernels.f32.rows import across

_MOST_SUMS = 8
"""Sums of a result's vectors that run side by side, to hide the latency of multiply-adds."""


def batch_offset(fn: Function, shape: AttentionShape, batch: Index, walk: OperandStrides) -> Index:
    """Return the element offset of an operand's matrices of the batch-th combination."""
    offset = fn.as_value("i64", 0)
    for axis in reversed(range(len(walk.batch))):
        index = fn.integer("urem", batch, shape.batch[axis]) if axis else batch
        batch = fn.integer("udiv", batch, shape.batch[axis]) if axis else 0
        offset = offset + fn.as_value("i64", index) * walk.batch[axis]
    return offset


class RowAttentionEmitter:
    """Writes one attention kernel: item (a query of a batch) > scores, exponentials, sums."""

    def __init__(
        self, fn: Function, shape: AttentionShape, operands: Sequence[Value], local: Value
    ) -> None:
        self.fn, self.shape, self.operands, self.scores = fn, shape, operands, local
        self.lanes = fn.isa.lanes
        self.type = vector(self.lanes, "float")

    def item(self, item: Index) -> None:
        """Emit one query of one batch."""
        fn, shape = self.fn, self.shape
        batch, query = (fn.integer(op, item, shape.queries) for op in ("udiv", "urem"))
        walks = [shape.q, shape.k, shape.v, *([shape.mask] if shape.mask else []), shape.out]
        q, k, v, *masks, out = (
            fn.at(base, batch_offset(fn, shape, batch, walk))
            for base, walk in zip(self.operands, walks, strict=True)
        )
        q = fn.at(q, times(fn, query, shape.q.row))
        out = fn.at(out, times(fn, query, shape.out.row))
        mask = None
        if shape.mask:
            mask = fn.at(masks[0], times(fn, query, shape.mask.column))
        largest = self._scores(q, k, mask)
        total = self._exponentials(largest)
        self._sums(v, out, total)

    def _vectors(self, count: int) -> list[tuple[int, int]]:
        """Return the first element and the lanes of each vector of so many elements."""
        return [(at, min(self.lanes, count - at)) for at in range(0, count, self.lanes)]

    def _each_vector(self, emit: Callable[[Index, Index], None]) -> None:
        """Emit something for each vector of keys, given its first key and its lanes."""
        fn, keys, lanes = self.fn, self.shape.keys, self.lanes
        rest = fn.integer("urem", keys, lanes)
        whole = minus(fn, keys, rest)
        for at in fn.range(0, whole, lanes):
            emit(at, lanes)
        if isinstance(rest, Value):
            with fn.when(fn.compare("ne", rest, 0)):
                emit(whole, rest)
        elif rest:
            emit(whole, rest)

    def _scores(self, q: Value, k: Value, mask: Value | None) -> Value:
        """Emit the scores; returns the largest in every lane. NaN is left out."""
        fn, shape = self.fn, self.shape
        parts = self._vectors(shape.depth)
        query = [fn.load_some(self.type, fn.at(q, at), n) * shape.scale for at, n in parts]
        top = Var(fn, self.type, -math.inf)

        def one(key: Index) -> Value:
            line = fn.at(k, times(fn, key, shape.k.row))
            total: Value | None = None
            for (at, n), factor in zip(parts, query, strict=True):
                element = fn.load_some(self.type, fn.at(line, at), n)
                total = element * factor if total is None else fn.fma(element, factor, total)
            assert total is not None
            return total

        def emit(at: Index, count: Index) -> None:
            last = minus(fn, shape.keys, 1)
            is_whole = count is self.lanes
            keys = [plus(fn, at, lane) for lane in range(self.lanes)]
            keys = keys if is_whole else [fn.minimum(key, last) for key in keys]
            value = _summed(fn, [one(key) for key in keys])
            if mask is not None:
                value = value + self._mask(mask, at, count)
            above = fn.compare("ogt", value, top.get())
            if not is_whole:
                above = fn.select(fn.mask(self.lanes, count), above, _never(fn, self.lanes))
            top.set(fn.select(above, value, top.get()))
            fn.store(value, fn.at(self.scores, at))

        self._each_vector(emit)
        return across(fn, top.get(), _larger(fn))

    def _mask(self, mask: Value, at: Index, count: Index) -> Value:
        """Load the mask of some keys."""
        fn, walk, scale = self.fn, self.shape.mask, self.shape.mask_scale
        assert walk is not None
        if walk.row == 0:
            value = fn.splat(fn.load("float", mask), self.lanes)
        elif walk.row == 1:
            value = fn.load_some(self.type, fn.at(mask, at), count)
        else:
            value = self._apart(mask, at, walk.row)
        return value if scale == 1 else value * scale

    def _apart(self, mask: Value, at: Index, stride: Index) -> Value:
        """Load the mask of keys that lie apart; beyond the last key, that of the last."""
        fn, last = self.fn, minus(self.fn, self.shape.keys, 1)
        made = fn.as_value(self.type, 0.0)
        for lane in range(self.lanes):
            key = fn.minimum(plus(fn, at, lane), last)
            element = fn.load("float", fn.at(mask, times(fn, key, stride)))
            made = fn.emit(self.type, f"insertelement {made}, {element}, i32 {lane}")
        return made

    def _exponentials(self, largest: Value) -> Value:
        """Emit e to the scores less the largest; returns their sum in every lane."""
        fn = self.fn
        total = Var(fn, self.type, 0.0)

        def emit(at: Index, count: Index) -> None:
            place = fn.at(self.scores, at)
            power = mathfn.exp_short(fn, fn.load(self.type, place) - largest, most=0.0)
            if count is not self.lanes:
                power = fn.select(fn.mask(self.lanes, count), power, 0.0)
            fn.store(power, place)
            total.set(total.get() + power)

        self._each_vector(emit)
        found = across(fn, total.get(), lambda a, b: a + b)
        return self._guarded(found) if self.shape.guarded else found

    def _guarded(self, total: Value) -> Value:
        """Emit 0 for all exponentials where their sum is NaN."""
        fn = self.fn
        wrong = fn.compare("uno", total, total)
        with fn.when(fn.extract(wrong, 0)):
            self._each_vector(
                lambda at, _: fn.store(fn.as_value(self.type, 0.0), fn.at(self.scores, at))
            )
        return fn.select(wrong, 1.0, total)

    def _sums(self, v: Value, out: Value, total: Value) -> None:
        """Emit the result: exponentials times V, over their sum."""
        fn, shape = self.fn, self.shape
        parts = self._vectors(shape.width)
        walks = next(n for n in (4, 2, 1) if n * len(parts) <= _MOST_SUMS or n == 1)
        sums = [[Var(fn, self.type, 0.0) for _ in parts] for _ in range(walks)]

        def step(key: Index, which: int) -> None:
            line = fn.at(v, times(fn, key, shape.v.row))
            weight = fn.splat(fn.load("float", fn.at(self.scores, key)), self.lanes)
            for (at, n), part in zip(parts, sums[which], strict=True):
                part.set(fn.fma(fn.load_some(self.type, fn.at(line, at), n), weight, part.get()))

        whole = minus(fn, shape.keys, fn.integer("urem", shape.keys, walks))
        for key in fn.range(0, whole, walks):
            for which in range(walks):
                step(plus(fn, key, which), which)
        for key in fn.range(whole, shape.keys):
            step(key, 0)
        scale = 1.0 / total
        for column, (at, n) in zip(zip(*sums, strict=True), parts, strict=True):
            found = [part.get() for part in column]
            while len(found) > 1:
                found = [a + b for a, b in zip(found[::2], found[1::2], strict=True)]
            fn.store_some(found[0] * scale, fn.at(out, at), n)


def _summed(fn: Function, lines: Sequence[Value]) -> Value:
    """Return the sum of the lanes of each vector, one after the other in one vector."""
    lanes = len(lines)
    made, count = list(lines), lanes
    while count > 1:
        # The sums of two vectors' neighbours side by side: those of the first, then the second's.
        even = [2 * k for k in range(lanes)]
        odd = [k + 1 for k in even]
        pairs = zip(made[::2], made[1::2], strict=True)
        made = [fn.shuffle(a, b, even) + fn.shuffle(a, b, odd) for a, b in pairs]
        count //= 2
    return made[0]


def _larger(fn: Function) -> Callable[[Value, Value], Value]:
    return lambda a, b: fn.select(fn.compare("ogt", b, a), b, a)


def _never(fn: Function, lanes: int) -> Value:
    return Value(fn, f"<{lanes} x i1>", "zeroinitializer")
