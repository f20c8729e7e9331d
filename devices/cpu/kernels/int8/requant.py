"""Turn 32-bit sums into stored bytes: the end of every linear kernel on 8-bit integers.

`requantiser` packs what a layer's channels need into one table: the bias, which kernels start their
sums with, and either scale and addend in float32 where these give exactly the reference's result
(exact_requant.py), or the reference's multipliers and shifts. `numbers` turns a vector of sums into
a vector of y - y_zero; `store` clamps one, two or four such vectors and stores them as bytes.

On x86 vectors are narrowed by the saturating packs, which work on each 128 bits alone and so mix
the order. Nothing sorts that: `channel_order` says which channel belongs to which lane, and weights
and tables are packed in that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import KernelCache, form_of
from trireme.devices.cpu.codegen.llvm_types import lanes_of, vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.int8.arithmetic import (
    ONCE,
    RoundingCode,
    Scale,
    is_x86,
    requantise,
    store_stored,
)
from trireme.devices.cpu.kernels.int8.epilogue import Channels
from trireme.devices.cpu.kernels.int8.exact_requant import fit_once
from trireme.devices.cpu.kernels.lowering import Operand
from trireme.ops.integer import LinearParams
from trireme.support.dtypes import Array
from trireme.support.records import dataclass

Kind = RoundingCode | Literal["fit"]
_PACK_WORDS = {
    16: "llvm.x86.avx512.packssdw.512",
    8: "llvm.x86.avx2.packssdw",
    4: "llvm.x86.sse2.packssdw.128",
}
_PACK_BYTES = {
    (32, True): "llvm.x86.avx512.packsswb.512",
    (32, False): "llvm.x86.avx512.packuswb.512",
    (16, True): "llvm.x86.avx2.packsswb",
    (16, False): "llvm.x86.avx2.packuswb",
    (8, True): "llvm.x86.sse2.packsswb.128",
    (8, False): "llvm.x86.sse2.packuswb.128",
}


@dataclass(frozen=True, eq=False)
class Requantiser:
    """The conversion of a layer's sums to bytes.

    data: int32 rows, padded to whole vectors, in the order of the kernel's lanes: the bias, then
          with kind "fit" scale, addend and (sum, correction) an exception; else multiplier, right
          shift, half of the divisor, and a left shift if any lane has one
    kind: "fit", or the rounding of a Scale
    signed: the addend takes the sign of the sum
    """

    data: Array
    kind: Kind
    signed: bool
    dtype: str
    y_zero: int
    low: int
    high: int
    element: str = "i8"
    operands: tuple[Operand, ...] = ()
    shared: bool = True

    @property
    def form(self) -> Requantiser:
        """The facts that code depends on (Epilogue)."""
        return replace(self, data=form_of(self.data))

    def enter(
        self, fn: Function, operands: Sequence[Value], row: Index, channels: Channels | None = None
    ) -> Value | None:
        """Return whether sums of channels may need a correction (Epilogue)."""
        return None if channels is None else self._has_exceptions(fn, *channels)

    def start(self, fn: Function, channels: Channels, mark: Value | None) -> list[Value]:
        """Return what the sums of vectors of channels begin with: the bias (Epilogue)."""
        table, at, lanes, vectors = channels
        return [self.row(fn, table, 0, at + v * lanes, lanes) for v in range(vectors)]

    def finish(
        self,
        fn: Function,
        sums: Sequence[Value],
        channels: Channels,
        mark: Value | None,
        pointer: Value,
        count: int,
    ) -> None:
        """Store sums as bytes (Epilogue)."""
        table, at, _, _ = channels
        self.store(fn, self.numbers(fn, sums, table, at, mark), pointer, count)

    def row(self, fn: Function, table: Value, number: int, at: Index, lanes: int) -> Value:
        """Return a vector of one row of the table."""
        start = fn.at(table, number * self.data.shape[1], "i32")
        return fn.load(vector(lanes, "i32"), fn.at(start, at, "i32"), 4)

    def _has_exceptions(
        self, fn: Function, table: Value, at: Index, lanes: int, vectors: int
    ) -> Value | None:
        """Return whether any sum of some vectors of channels may need a correction; None: none."""
        rows = range(4, len(self.data), 2) if self.kind == "fit" else range(0)
        parts = [
            self.row(fn, table, number, at + v * lanes, lanes)
            for number in rows
            for v in range(vectors)
        ]
        if not parts:
            return None
        some = parts[0]
        for part in parts[1:]:
            some = fn.emit(some.type, f"or {some}, {part.text}")
        found = fn.call("i32", f"llvm.vector.reduce.or.v{lanes}i32", some)
        return fn.compare("ne", found, 0)

    def numbers(
        self,
        fn: Function,
        sums: Sequence[Value],
        table: Value,
        at: Index,
        exceptions: Value | None = None,
    ) -> list[Value]:
        """Return y - y_zero, not clamped, for the sums of some vectors of channels.

        exceptions: the result of `enter`, where a loop over many sums has it; without it the code
        always looks for corrections, which costs less than a new branch each time
        """
        lanes = lanes_of(sums[0].type)
        numbers = [self._number(fn, acc, table, at + v * lanes) for v, acc in enumerate(sums)]
        if exceptions is None:
            return [
                self._corrected(fn, number, acc, table, at + v * lanes)
                for v, (number, acc) in enumerate(zip(numbers, sums, strict=True))
            ]
        found = [Var(fn, number.type, number) for number in numbers]
        with fn.when(exceptions):
            for v, (acc, var) in enumerate(zip(sums, found, strict=True)):
                var.set(self._corrected(fn, var.get(), acc, table, at + v * lanes))
        return [var.get() for var in found]

    def _corrected(self, fn: Function, number: Value, acc: Value, table: Value, at: Index) -> Value:
        lanes = lanes_of(acc.type)
        for row in range(3, len(self.data) if self.kind == "fit" else 0, 2):
            hit = fn.compare("eq", acc, self.row(fn, table, row, at, lanes))
            correction = self.row(fn, table, row + 1, at, lanes)
            number = number + fn.select(hit, correction, fn.as_value(acc.type, 0))
        return number

    def _number(self, fn: Function, acc: Value, table: Value, at: Index) -> Value:
        lanes = lanes_of(acc.type)

        def row(number: int) -> Value:
            return self.row(fn, table, number, at, lanes)

        if self.kind != "fit":
            left = row(4) if len(self.data) > 4 else None
            return requantise(fn, acc, Scale(row(1), row(2), row(3), left, self.kind))
        real = vector(lanes, "float")
        x = fn.convert("sitofp", acc, real)
        scale, addend = (fn.convert("bitcast", row(number), real) for number in (1, 2))
        if self.signed:
            addend = fn.call(real, f"llvm.copysign.v{lanes}f32", addend, x)
        return nearest(fn, fn.call(real, f"llvm.fma.v{lanes}f32", x, scale, addend))

    def store(self, fn: Function, numbers: Sequence[Value], pointer: Value, count: int) -> None:
        """Clamp the numbers of a group of vectors, and store the first `count` as bytes."""
        store_stored(fn, self.narrow(fn, numbers), pointer, count)

    def narrow(self, fn: Function, numbers: Sequence[Value]) -> Value:
        """Return the stored bytes of a group of vectors of numbers."""
        if not is_x86(fn.isa):
            parts = [self._narrow_plainly(fn, n) for n in numbers]
            while len(parts) > 1:
                parts = [_joined(fn, *parts[i : i + 2]) for i in range(0, len(parts), 2)]
            return parts[0]
        words = [_packed_words(fn, *pair) for pair in _pairs(fn, numbers)]
        if self.low == self.y_zero:
            result = _packed_bytes(fn, words, signed=False)
            if self.high - self.low < 255:
                result = _bounded(fn, "umin", result, self.high - self.low)
            return result + self.low if self.low else result
        if self.y_zero:
            words = [_add_words(fn, w, self.y_zero) for w in words]
        signed = self.dtype == "int8"
        result = _packed_bytes(fn, words, signed)
        least, most = (-128, 127) if signed else (0, 255)
        if self.low > least:
            result = _bounded(fn, "smax" if signed else "umax", result, self.low)
        if self.high < most:
            result = _bounded(fn, "smin" if signed else "umin", result, self.high)
        return result

    def _narrow_plainly(self, fn: Function, number: Value) -> Value:
        name = f"v{lanes_of(number.type)}i32"
        number = number + self.y_zero
        for op, limit in (("smax", self.low), ("smin", self.high)):
            bound = fn.as_value(number.type, limit)
            number = fn.call(number.type, f"llvm.{op}.{name}", number, bound)
        return fn.convert("trunc", number, vector(lanes_of(number.type), "i8"))


def saturated_bytes(fn: Function, numbers: Sequence[Value]) -> Value:
    """Return one, two or four vectors of i32 as int8 with saturation, in their order (x86)."""
    lanes = lanes_of(numbers[0].type)
    words = [_packed_words(fn, *pair) for pair in _pairs(fn, numbers)]
    mixed = _packed_bytes(fn, words, signed=True)
    place = channel_order(fn.isa, lanes, len(numbers)).reshape(-1)
    return fn.shuffle(mixed, mixed, place.tolist())


def nearest(fn: Function, x: Value) -> Value:
    """Return floats as the nearest integers, ties to even."""
    lanes = lanes_of(x.type)
    return fn.call(vector(lanes, "i32"), f"llvm.lrint.v{lanes}i32.v{lanes}f32", x)


def _joined(fn: Function, a: Value, b: Value) -> Value:
    return fn.shuffle(a, b, range(2 * lanes_of(a.type)))


def _halves(fn: Function, x: Value) -> tuple[Value, Value]:
    half = lanes_of(x.type) // 2
    return fn.shuffle(x, x, range(half)), fn.shuffle(x, x, range(half, 2 * half))


def _pairs(fn: Function, vectors: Sequence[Value]) -> list[tuple[Value, Value]]:
    """Return the pairs to pack; one vector with its own upper half, where it has two."""
    if len(vectors) > 1:
        return [(vectors[i], vectors[i + 1]) for i in range(0, len(vectors), 2)]
    (x,) = vectors
    return [_halves(fn, x) if lanes_of(x.type) > 4 else (x, x)]


def _packed_words(fn: Function, a: Value, b: Value) -> Value:
    lanes = lanes_of(a.type)
    return fn.call(vector(2 * lanes, "i16"), _PACK_WORDS[lanes], a, b)


def _packed_bytes(fn: Function, words: Sequence[Value], signed: bool) -> Value:
    if len(words) > 1:
        a, b = words
    elif lanes_of(words[0].type) > 8:
        a, b = _halves(fn, words[0])
    else:
        a = b = words[0]
    lanes = lanes_of(a.type)
    return fn.call(vector(2 * lanes, "i8"), _PACK_BYTES[lanes, signed], a, b)


def _add_words(fn: Function, words: Value, number: int) -> Value:
    name = f"llvm.sadd.sat.v{lanes_of(words.type)}i16"
    return fn.call(words.type, name, words, fn.as_value(words.type, number))


def _bounded(fn: Function, op: str, x: Value, limit: int) -> Value:
    name = f"llvm.{op}.v{lanes_of(x.type)}i8"
    return fn.call(x.type, name, x, fn.as_value(x.type, limit))


def channel_order(isa: Isa, lanes: int, vectors: int) -> Array:
    """Return the channel, counted from the group's first, in each lane of a group of 1, 2, 4.

    Shapes: int64 [vectors, lanes]
    """
    place = np.arange(vectors * lanes).reshape(vectors, lanes)
    if not is_x86(isa):
        return place

    words = [_interleaved(*pair, per=4) for pair in _paired(list(place), 4)]
    ((a, b),) = _paired(words, 8)
    lane = _interleaved(a, b, per=8)[: vectors * lanes]  # whose channel each byte holds
    order = np.empty(vectors * lanes, np.int64)
    order[lane] = np.arange(vectors * lanes)
    return order.reshape(vectors, lanes)


def _paired(parts: list[Array], narrowest: int) -> list[tuple[Array, Array]]:
    """As `_pairs`, for arrays of the places of elements."""
    if len(parts) > 1:
        return [(parts[i], parts[i + 1]) for i in range(0, len(parts), 2)]
    (x,) = parts
    half = len(x) // 2
    return [(x[:half], x[half:]) if len(x) > narrowest else (x, x)]


def _interleaved(a: Array, b: Array, per: int) -> Array:
    """Return what packing does to the order: `per` elements of a, then of b, in turn."""
    return np.concatenate([a.reshape(-1, per), b.reshape(-1, per)], axis=1).reshape(-1)


def groups_of(vectors: int) -> list[int]:
    """Cut a number of vectors into groups of four, two and one, which are stored together."""
    return [4] * (vectors // 4) + [part for part in (2, 1) if vectors & part]


def lanes_to_channels(isa: Isa, lanes: int, vectors: int) -> Array:
    """Return the channel in each lane of neighbouring vectors, counted from the first, [lanes]."""
    parts, start = [], 0
    for group in groups_of(vectors):
        parts.append(start + channel_order(isa, lanes, group).reshape(-1))
        start += group * lanes
    return np.concatenate(parts)


def requantiser(
    isa: Isa,
    params: LinearParams,
    dtype: str,
    bias: Array,
    bounds: tuple[Array, Array],
    order: Array,
    recipes: KernelCache | None = None,
) -> Requantiser:
    """Return how the sums of a layer become bytes.

    bias: int64 [O], everything constant but the products
    bounds: least and greatest value of the whole sum, int64 [O]
    order: the channel in each lane of the kernel; lanes beyond the channels are padding
    recipes: knows earlier fits
    """
    found = fit_once(recipes, params, *bounds) if isa.fused else None  # counts on one rounding
    if found is not None:
        rows = [bias.astype(np.int32), found.scales.view(np.int32), found.addends.view(np.int32)]
        for pair in zip(found.sums, found.corrections, strict=True):
            rows += pair
        kind: Kind = "fit"
        signed = found.signed
    else:
        kind, rows = _reference_rows(params, bias, bounds)
        signed = False
    channels = len(bias)
    data = np.zeros((len(rows), len(order)), np.int32)
    inside = order < channels
    data[:, inside] = np.stack(rows)[:, order[inside]]
    if kind in ONCE.values():
        data[2, ~inside] = 31  # any shift that may be done
    return Requantiser(data, kind, signed, dtype, params.y_zero, params.low, params.high)


def _reference_rows(
    params: LinearParams, bias: Array, bounds: tuple[Array, Array]
) -> tuple[RoundingCode, list[Array]]:
    """Return the rounding and the rows of a table that follows the reference's own formula."""
    first = [bias.astype(np.int32), params.multipliers]  # the bias wraps as the sum does
    code = ONCE.get(params.rounding)
    if code is not None:
        return code, [*first, 31 - params.shifts, np.zeros_like(params.shifts)]
    right, left = np.maximum(-params.shifts, 0), np.maximum(params.shifts, 0)
    half = ((1 << right.astype(np.int64)) >> 1).astype(np.int32)
    most = max(int(np.abs(end).max(initial=0)) for end in bounds)
    if left.any():
        return "exact", [*first, right, half, left]
    short = bool((right >= 1).all()) and most < 1 << 30
    return "short" if short else "exact", [*first, right, half]
