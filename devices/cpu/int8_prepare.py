"""Prepare a quantised image for multiplication: border added, bytes in the form the products want.

With VNNI the bytes become unsigned (the sign bit flipped) and the border is the zero point; without
it they become 16-bit with the zero point subtracted, and the border is 0. Where nothing is to be
done the input itself is used.
"""

from __future__ import annotations

from dataclasses import dataclass

from trireme.devices.cpu.int8 import BYTES, QUADS, Dot, load_bytes, store_bytes, widen
from trireme.devices.cpu.ir import Function, Value, vector
from trireme.devices.cpu.kernels import (
    Context,
    Operand,
    Step,
    Temp,
    begin,
    finish,
    split_evenly,
)
from trireme.graph import Node

SLACK_BYTES = 64
"""Bytes that may be read beyond the last prepared row, times weights that are zero."""


@dataclass(frozen=True)
class Prepared:
    """Where the prepared input is, and the steps that make it."""

    operand: Operand
    steps: tuple[Step, ...]


def prepare(
    context: Context, node: Node, shape: tuple[int, ...], pads: tuple[int, int, int, int],
    zero: int, dot: Dot,
) -> Prepared:  # fmt: skip
    """Return the input of a node, seen as [N,H,W,C], with its border."""
    value = node.used[0]
    dtype = context.type(value).dtype
    n, height, width, channels = shape
    bordered = any(pads)
    as_is = dot is BYTES or (dot is QUADS and dtype == "uint8" and channels % 4 == 0)
    if as_is and not bordered:
        return Prepared(context.operand(value), ())
    top, left, bottom, right = pads
    rows, row = n * (height + top + bottom), (width + left + right) * channels
    temp = Temp(f"prepared {node.id}", rows * row * dot.width + SLACK_BYTES)
    fn, (x, out), chunk, _ = begin(f"prepare_{dot.name}", context.isa, 2)
    size, chunks = split_evenly(rows, max(1, (32 << 10) // max(row, 1)))
    first = chunk * size
    tall = height + top + bottom
    for at in fn.range(first, fn.minimum(first + size, rows)):
        target = fn.at(out, at * row, dot.element)
        if not bordered:
            _span(fn, fn.at(x, at * row, "i8"), target, row, (dtype, zero, dot))
            continue
        y = fn.integer("urem", at, tall) if n > 1 else at
        image = fn.integer("udiv", at, tall) if n > 1 else 0
        line = y - top
        inside = fn.compare("ult", fn.as_value("i64", line), height)
        for is_inside in fn.either(inside):
            if is_inside:
                source = fn.at(x, (image * height + line) * (width * channels), "i8")
                _fill(fn, target, left * channels, (dtype, zero, dot))
                middle = fn.at(target, left * channels, dot.element)
                _span(fn, source, middle, width * channels, (dtype, zero, dot))
                end = fn.at(target, (left + width) * channels, dot.element)
                _fill(fn, end, right * channels, (dtype, zero, dot))
            else:
                _fill(fn, target, row, (dtype, zero, dot))
    step = Step(
        finish(fn), (context.operand(value),), (temp,), chunks,
        seconds=rows * row / 2e10, nodes=(node.id,),
    )  # fmt: skip
    return Prepared(temp, (step,))


def _span(
    fn: Function, source: Value, target: Value, count: int, how: tuple[str, int, Dot]
) -> None:
    """Convert `count` bytes."""
    dtype, zero, dot = how
    lanes = fn.isa.lanes * (4 // dot.width)
    whole = count // lanes * lanes
    for i in fn.range(0, whole, lanes):
        _convert(fn, fn.at(source, i, "i8"), fn.at(target, i, dot.element), lanes, how)
    rest = count - whole
    at = whole
    while rest:  # powers of two, so that no instruction set needs masks
        part = 1 << (rest.bit_length() - 1)
        _convert(fn, fn.at(source, at, "i8"), fn.at(target, at, dot.element), part, how)
        at, rest = at + part, rest - part


def _convert(
    fn: Function, source: Value, target: Value, lanes: int, how: tuple[str, int, Dot]
) -> None:
    dtype, zero, dot = how
    x = load_bytes(fn, source, lanes, lanes) if lanes > 1 else fn.load("i8", source, 1)
    if dot.width == 1:
        if dot is QUADS and dtype == "int8":
            x = fn.emit(x.type, f"xor {x}, {x.text_of(-128)}")
        if lanes > 1:
            store_bytes(fn, x, target, lanes)
        else:
            fn.store(x, target, 1)
        return
    wide = widen(fn, x, dtype, "i16") if lanes > 1 else fn.convert(
        "sext" if dtype == "int8" else "zext", x, "i16"
    )  # fmt: skip
    fn.store(wide - zero, target, 2)


def _fill(fn: Function, target: Value, count: int, how: tuple[str, int, Dot]) -> None:
    """Write the border: `count` elements that stand for zero."""
    dtype, zero, dot = how
    value = 0 if dot.width == 2 else zero
    if dot is QUADS and dtype == "int8":
        value += 128
    lanes = fn.isa.lanes * (4 // dot.width)
    whole = count // lanes * lanes
    element, align = (dot.element, dot.width)
    text = value - 256 if value > 127 else value
    for i in fn.range(0, whole, lanes):
        fn.store(fn.as_value(vector(lanes, element), text), fn.at(target, i, element), align)
    rest, at = count - whole, whole
    while rest:
        part = 1 << (rest.bit_length() - 1)
        fn.store(fn.as_value(vector(part, element), text), fn.at(target, at, element), align)
        at, rest = at + part, rest - part
