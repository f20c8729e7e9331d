"""Parts of the kernels of integer_lstm and integer_svdf: bytes prepared, multiplied and copied."""

from __future__ import annotations

from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.llvm_types import lanes_of, mangled, vector
from trireme.devices.cpu.kernels.int8.arithmetic import (
    QUADS,
    dot_of,
    emit_dot,
    load_stored,
    store_stored,
)
from trireme.devices.cpu.kernels.int8.recurrent_pack import padded


def clamped(fn: Function, x: Value, low: int, high: int) -> Value:
    """Return x between two limits."""
    raised = fn.call(x.type, f"llvm.smax.{mangled(x.type)}", x, fn.as_value(x.type, low))
    return fn.call(x.type, f"llvm.smin.{mangled(x.type)}", raised, fn.as_value(x.type, high))


def prepare(fn: Function, source: Value, target: Value, count: int) -> None:
    """Store `count` bytes as the multiplier takes them; weights of 0 meet what follows them."""
    width = fn.isa.lanes * dot_of(fn.isa).taps
    whole = count // width * width
    for i in fn.range(0, whole, width):
        loaded = fn.load(vector(width, "i8"), fn.at(source, i, "i8"), 1)
        _store_prepared(fn, loaded, target, i)
    if whole < count:
        tail = load_stored(fn, fn.at(source, whole, "i8"), width, count - whole)
        _store_prepared(fn, tail, target, whole)


def _store_prepared(fn: Function, x: Value, target: Value, index: Index) -> None:
    dot = dot_of(fn.isa)
    type = vector(lanes_of(x.type), dot.element)
    if dot is QUADS:
        x = fn.emit(type, f"xor {x}, {x.text_of(-128)}")
    else:
        x = fn.convert("sext", x, type)
    fn.store(x, fn.at(target, index, dot.element), 4)


def block_sums(
    fn: Function, x: Value, places: tuple[Value, Value], block: Index, groups: int, depth: int
) -> list[Value]:
    """Return the sums of a block of rows, by group.

    x: prepared bytes; places: packed weights and biases
    """
    lanes, dot = fn.isa.lanes, dot_of(fn.isa)
    wide, group_bytes = vector(lanes, "i32"), lanes * 4
    steps = padded(depth, dot.taps) // dot.taps
    weights, bias = places
    start = fn.at(bias, block * (groups * lanes), "i32")
    acc = [Var(fn, wide, fn.load(wide, fn.at(start, g * lanes, "i32"))) for g in range(groups)]
    base = fn.at(weights, block * (steps * groups * group_bytes), "i8")
    for k in fn.range(0, steps):
        here = fn.at(base, k * (groups * group_bytes), "i8")
        taps = fn.load("i32", fn.at(x, k * dot.taps, dot.element))
        value = fn.splat(taps, lanes)
        for g, var in enumerate(acc):
            column = fn.load(wide, fn.at(here, g * group_bytes, "i8"))
            var.set(emit_dot(fn, dot, var.get(), value, column))
    return [var.get() for var in acc]


def copy_bytes(fn: Function, source: Value, target: Value, count: int) -> None:
    """Copy `count` bytes, none beside them; the source may lie behind the target's beginning."""
    width = fn.isa.lanes * 4
    type, whole = vector(width, "i8"), count // width * width
    for i in fn.range(0, whole, width):
        fn.store(fn.load(type, fn.at(source, i, "i8"), 1), fn.at(target, i, "i8"), 1)
    if whole < count:
        tail = load_stored(fn, fn.at(source, whole, "i8"), width, count - whole)
        store_stored(fn, tail, fn.at(target, whole, "i8"), count - whole)
