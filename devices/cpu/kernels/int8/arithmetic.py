"""What kernels on 8-bit integers share: dot products, requantisation, and how rows are prepared.

Ways to multiply, by what the instruction set has. With VNNI, four unsigned bytes times four signed
ones are added to a 32-bit lane: inputs are kept as bytes with the sign bit flipped. Without it,
pairs of 16-bit integers: inputs are widened, zero points already subtracted; or, on x86, bytes
after all, where weights are such that words of 16 bits hold their sums (split.py).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal

from trireme.devices.cpu.codegen.ir import Function, Value
from trireme.devices.cpu.codegen.llvm_types import element_of, lanes_of, vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.ir.graph import Graph, Node, Rounding
from trireme.ops.integer import EIGHT_BIT
from trireme.support.errors import GraphError
from trireme.support.records import dataclass

ELEMENTS = {"int8": "i8", "uint8": "i8", "int16": "i16"}
"""The LLVM types of stored integers."""
CYCLES_PER_S = 3.5e9
"""What models in cycles take for the clock."""
_PMADD = {
    16: "llvm.x86.avx512.pmaddw.d.512",
    8: "llvm.x86.avx2.pmadd.wd",
    4: "llvm.x86.sse2.pmadd.wd",
}


_PMADD_BYTES = {
    16: "llvm.x86.avx512.pmaddubs.w.512",
    8: "llvm.x86.avx2.pmadd.ub.sw",
    4: "llvm.x86.ssse3.pmadd.ub.sw.128",
}


@dataclass(frozen=True)
class Dot:
    """How products are summed: `taps` neighbouring elements a 32-bit lane, `width` bytes each.

    run: steps of so many taps that are best summed together, before they are added to the lane
    cycles: about what a step of a vector of 256 bits takes, with all its additions
    spare: registers that are needed beside accumulators, weights and inputs
    """

    name: str
    taps: int
    width: int
    run: int = 1
    cycles: float = 1.0
    spare: int = 1

    @property
    def dtype(self) -> str:
        """The numpy dtype of prepared inputs."""
        return "int16" if self.width == 2 else "uint8"

    @property
    def element(self) -> str:
        """The LLVM type of a prepared input."""
        return "i16" if self.width == 2 else "i8"


QUADS, PAIRS = Dot("vnni", 4, 1, cycles=0.5), Dot("pairs", 2, 2, cycles=0.7)
BYTES = (
    Dot("bytes", 4, 1, cycles=0.95, spare=2),
    Dot("bytes_by2", 4, 1, run=2, cycles=0.82, spare=2),
    Dot("bytes_by4", 4, 1, run=4, cycles=0.76, spare=2),
)
"""Bytes in words of 16 bits: sums of one, two or four steps are widened at a time."""


@functools.cache
def dot_of(isa: Isa) -> Dot:
    """Return the way this instruction set multiplies, whatever the weights."""
    return QUADS if isa.vnni else PAIRS


def emit_dot(fn: Function, dot: Dot, acc: Value, x: Value, w: Value) -> Value:
    """Return acc + the dot products of x and w, both given as vectors of 32-bit lanes."""
    return emit_dots(fn, dot, acc, [x], [w])


def emit_dots(
    fn: Function, dot: Dot, acc: Value, xs: Sequence[Value], ws: Sequence[Value]
) -> Value:
    """Return acc + the dot products of steps; of not more than `dot.run` of them."""
    lanes = lanes_of(acc.type)
    narrow = vector(lanes * dot.taps, dot.element)
    steps = [
        (fn.convert("bitcast", x, narrow), fn.convert("bitcast", w, narrow))
        for x, w in zip(xs, ws, strict=True)
    ]
    if dot in BYTES:
        return acc + _widened(fn, _words(fn, steps))
    for x, w in steps:
        acc = _added(fn, dot, acc, x, w)
    return acc


def _words(fn: Function, steps: Sequence[tuple[Value, Value]]) -> Value:
    """Return the sums of products of bytes, in words of 16 bits: two for each 32-bit lane."""
    lanes = lanes_of(steps[0][0].type) // 4
    type = vector(lanes * 2, "i16")
    words = [fn.call(type, _PMADD_BYTES[lanes], x, w) for x, w in steps]
    return functools.reduce(lambda total, word: total + word, words)


def _widened(fn: Function, words: Value) -> Value:
    """Return the sums of neighbouring words."""
    lanes = lanes_of(words.type) // 2
    return fn.call(vector(lanes, "i32"), _PMADD[lanes], words, fn.as_value(words.type, 1))


def _added(fn: Function, dot: Dot, acc: Value, x: Value, w: Value) -> Value:
    """Return acc + the dot products of one step."""
    lanes = lanes_of(acc.type)
    if dot is QUADS:
        return fn.call(acc.type, f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", acc, x, w)
    if is_x86(fn.isa):
        return acc + fn.call(acc.type, _PMADD[lanes], x, w)
    wide = vector(lanes * 2, "i32")
    products = fn.convert("sext", x, wide) * fn.convert("sext", w, wide)
    even = fn.shuffle(products, products, range(0, 2 * lanes, 2))
    odd = fn.shuffle(products, products, range(1, 2 * lanes, 2))
    return acc + (even + odd)


def is_x86(isa: Isa) -> bool:
    """Whether code for the instruction set may use x86 intrinsics."""
    return isa.arch == "x86"


RoundingCode = Literal["short", "exact", "half_away", "half_even"]


ONCE: dict[Rounding, RoundingCode] = {
    Rounding.HALF_AWAY: "half_away",
    Rounding.HALF_EVEN: "half_even",
}
"""The roundings that round a product once."""


@dataclass(frozen=True)
class Scale:
    """The parameters of a requantisation as a kernel holds them: vectors of i32, one lane each.

    rounding: "short" rounds twice by adding half of the divisor; "exact" does so where that sum
    could overflow; the others round the 64-bit product once, where right is the whole shift of it
    left: None where no lane shifts left
    """

    multiplier: Value
    right: Value
    half: Value
    left: Value | None
    rounding: RoundingCode


def requantise(fn: Function, x: Value, scale: Scale) -> Value:
    """Return x * multiplier * 2**(shift - 31), rounded as the scale says, lane by lane.

    Source: trireme.ops.integer.multiply, in vectors
    """
    if scale.rounding in ("half_away", "half_even"):
        return multiply_once(fn, x, scale)
    if scale.left is not None:
        x = fn.emit(x.type, f"shl {x}, {scale.left.text}")
    high = high_multiply(fn, x, scale.multiplier)
    sign = fn.emit(x.type, f"ashr {high}, {high.text_of(31)}")
    if scale.rounding == "short":
        total = high + scale.half + sign
        return fn.emit(x.type, f"ashr {total}, {scale.right.text}")
    mask = fn.emit(x.type, f"shl {fn.as_value(x.type, 1)}, {scale.right.text}") + -1
    rest = fn.emit(x.type, f"and {high}, {mask.text}")
    threshold = fn.emit(x.type, f"lshr {mask}, {mask.text_of(1)}") - sign
    above = fn.compare("sgt", rest, threshold)
    floor = fn.emit(x.type, f"ashr {high}, {scale.right.text}")
    return floor - fn.convert("sext", above, x.type)


def multiply_once(fn: Function, x: Value, scale: Scale) -> Value:
    """Return (p + 2**(right - 1) - less) >> right of p = x * multiplier, in 64 bits.

    less: 1 where p is negative (half_away) or p >> right is even (half_even), so that halves fall
    """
    wide = vector(lanes_of(x.type), "i64")
    product = fn.convert("sext", x, wide) * fn.convert("sext", scale.multiplier, wide)
    right = fn.convert("zext", scale.right, wide)
    half = fn.emit(wide, f"shl {fn.as_value(wide, 1)}, {(right - 1).text}")
    if scale.rounding == "half_away":
        more = fn.emit(wide, f"ashr {product}, {product.text_of(63)}")
    else:
        floor = fn.emit(wide, f"ashr {product}, {right.text}")
        more = fn.emit(wide, f"and {floor}, {floor.text_of(1)}") - 1
    total = product + half + more
    return fn.convert("trunc", fn.emit(wide, f"ashr {total}, {right.text}"), x.type)


def divide_to_even(fn: Function, x: Value, count: Value | int) -> Value:
    """Return integers divided by a positive count, to nearest, halves to even.

    Source: trireme.ops.integer.divide
    """
    count = fn.as_value(x.type, count)
    cut = fn.emit(x.type, f"sdiv {x}, {count.text}")
    rest = x - cut * count
    sign = fn.convert("sext", fn.compare("slt", rest, 0), x.type)
    floor, rest = cut + sign, rest + fn.emit(x.type, f"and {sign}, {count.text}")
    odd = fn.emit(x.type, f"and {floor}, {floor.text_of(1)}")
    return floor - fn.convert("sext", fn.compare("sgt", rest, count - rest - odd), x.type)


def high_multiply(fn: Function, a: Value, b: Value) -> Value:
    """Return (a * b + 2**30) >> 31 of vectors of i32, through 64-bit products of even and odd."""
    lanes = lanes_of(a.type)
    wide = vector(lanes // 2, "i64")
    products = []
    for odd in (False, True):
        factors = []
        for operand in (a, b):
            pairs = fn.convert("bitcast", operand, wide)
            if not odd:
                pairs = fn.emit(wide, f"shl {pairs}, {pairs.text_of(32)}")
            factors.append(fn.emit(wide, f"ashr {pairs}, {pairs.text_of(32)}"))
        rounded = factors[0] * factors[1] + (1 << 30)
        shift = (
            f"shl {rounded}, {rounded.text_of(1)}"
            if odd
            else (f"lshr {rounded}, {rounded.text_of(31)}")
        )
        products.append(fn.convert("bitcast", fn.emit(wide, shift), a.type))
    order = [lane + lanes * (lane % 2) for lane in range(lanes)]
    return fn.shuffle(products[0], products[1], order)


def clamp_and_narrow(
    fn: Function, x: Value, zero: int, low: int, high: int, element: str = "i8"
) -> Value:
    """Return clamp(x + zero, low, high) as stored integers."""
    type = x.type
    name = f"v{lanes_of(type)}i32"
    shifted = x + zero if zero else x
    raised = fn.call(type, f"llvm.smax.{name}", shifted, fn.as_value(type, low))
    bounded = fn.call(type, f"llvm.smin.{name}", raised, fn.as_value(type, high))
    return fn.convert("trunc", bounded, vector(lanes_of(type), element))


def store_stored(fn: Function, value: Value, pointer: Value, count: int) -> None:
    """Store the first `count` lanes of a vector of stored integers, wherever they lie.

    A tail goes in powers of two, not through a mask: LLVM 22 stores four bytes where a constant
    mask of a truncated vector leaves one.
    """
    at = 0
    while count:
        part = 1 << (count.bit_length() - 1)
        place = fn.at(pointer, at, element_of(value.type))
        if part == lanes_of(value.type):
            fn.store(value, place, 1)
        elif part == 1:
            fn.store(fn.extract(value, at), place, 1)
        else:
            fn.store(fn.shuffle(value, value, range(at, at + part)), place, 1)
        at, count = at + part, count - part


def load_stored(fn: Function, pointer: Value, lanes: int, count: int, element: str = "i8") -> Value:
    """Load `count` stored integers and no more into a vector; the other lanes are zero."""
    type = vector(lanes, element)
    if count == lanes:
        return fn.load(type, pointer, 1)
    bits = ", ".join(f"i1 {'true' if lane < count else 'false'}" for lane in range(lanes))
    mask = Value(fn, f"<{lanes} x i1>", f"<{bits}>")
    zero = Value(fn, type, "zeroinitializer")
    name = f"llvm.masked.load.v{lanes}{element}.p0"
    return fn.call(type, name, pointer, Value(fn, "i32", "1"), mask, zero)


def widen(fn: Function, x: Value, dtype: str, element: str = "i32") -> Value:
    """Return stored integers as wider ones, by the sign that their dtype has."""
    op = "zext" if dtype == "uint8" else "sext"
    return fn.convert(op, x, vector(lanes_of(x.type), element))


def splat_scale(
    fn: Function, type: str, multiplier: int, shift: int, rounding: Rounding = Rounding.TWICE
) -> Scale:
    """Return the scale that all lanes share."""
    code = ONCE.get(rounding)
    if code is not None:
        number, none = fn.as_value(type, multiplier), fn.as_value(type, 0)
        return Scale(number, fn.as_value(type, 31 - shift), none, None, code)
    right = max(-shift, 0)
    return Scale(
        fn.as_value(type, multiplier),
        fn.as_value(type, right),
        fn.as_value(type, (1 << right) >> 1),
        fn.as_value(type, shift) if shift > 0 else None,
        "exact",
    )


def stored_reason(
    graph: Graph, node: Node, params: Any, dtypes: Sequence[str] = EIGHT_BIT
) -> str | None:
    """Say why a quantised node cannot run on a kernel for integers of these dtypes."""
    for value in (node.used[0], *node.outputs):
        type = graph.type(value)
        is_float = type.dtype == "float32" and type.quant is None
        if type.dtype not in dtypes and not is_float:
            return f"{node.op} has no native kernel for quantised {type.dtype}"
        if not type.elements:
            return f"{node.op} has no native kernel for empty tensors"
    try:
        params()
    except GraphError as error:
        return f"{node.op} has no native kernel: {error.summary}"
    return None
