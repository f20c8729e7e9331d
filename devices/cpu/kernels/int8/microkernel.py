"""The inner steps of products of 8-bit integers: one or a few steps of depth for a whole tile."""

from __future__ import annotations

from collections.abc import Sequence

from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.kernels.int8.arithmetic import QUADS, Dot, emit_dot, emit_dots, load_stored
from trireme.devices.cpu.kernels.int8.pack import Int8MatmulShape


def rank_update(
    fn: Function,
    dot: Dot,
    acc: Sequence[Sequence[Var]],
    places: Sequence[Value],
    base: Value,
    steps: tuple[Index, int],
) -> None:
    """Emit the products of a tile in some steps: the first one's number, and how many.

    places, base: where each row's inputs and the weights of the tile begin at step 0
    """
    first, count = steps
    lanes = fn.isa.lanes
    type, vector_bytes = vector(lanes, "i32"), lanes * 4
    step_bytes = vector_bytes * len(acc[0])
    start = fn.at(base, first * step_bytes, "i8")
    columns = [
        [
            fn.load(
                type,
                fn.at(start, i * step_bytes + v * vector_bytes, "i8"),
                64 if lanes == 16 else 16,
            )
            for i in range(count)
        ]
        for v in range(len(acc[0]))
    ]
    for row, place in zip(acc, places, strict=True):
        here = fn.at(place, first * dot.taps, dot.element)
        xs = [
            fn.splat(fn.load("i32", fn.at(here, i * dot.taps, dot.element), 1), lanes)
            for i in range(count)
        ]
        for var, column in zip(row, columns, strict=True):
            var.set(emit_dots(fn, dot, var.get(), xs, column))


def row_sum(fn: Function, product: Int8MatmulShape, start: Value, factor: int) -> Value:
    """Return the sum of a row's inputs times a factor, in every lane; with VNNI alone."""
    lanes = fn.isa.lanes
    type = vector(lanes, "i32")
    ones = fn.convert("bitcast", fn.as_value(vector(lanes * 4, "i8"), 1), type)
    total = Var(fn, type, 0)
    for offset, length in product.spans:
        place = fn.at(start, offset, "i8")
        whole = length // (lanes * 4) * (lanes * 4)
        for k in fn.range(0, whole, lanes * 4):
            loaded = fn.load(vector(lanes * 4, "i8"), fn.at(place, k, "i8"), 1)
            x = fn.convert("bitcast", loaded, type)
            total.set(emit_dot(fn, QUADS, total.get(), x, ones))
        if whole < length:
            tail = load_stored(fn, fn.at(place, whole, "i8"), lanes * 4, length - whole)
            x = fn.convert("bitcast", tail, type)
            total.set(emit_dot(fn, QUADS, total.get(), x, ones))
    name = f"llvm.vector.reduce.add.v{lanes}i32"
    return fn.splat(fn.call("i32", name, total.get()) * factor, lanes)
