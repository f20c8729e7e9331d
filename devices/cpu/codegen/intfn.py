"""Functions of vectors of integers, with the results of the ops' references where C has none.

A division by 0 gives 0, the least number divided by -1 itself, a shift by all bits 0 (or the sign),
and powers wrap around.
"""

from __future__ import annotations

from trireme.devices.cpu.codegen.ir import Function, Value, Var
from trireme.devices.cpu.codegen.llvm_types import element_of, lanes_of, vector
from trireme.devices.cpu.codegen.scalars import bits


def maximum(fn: Function, a: Value, b: Value, *, signed: bool) -> Value:
    """Return the larger."""
    return fn.select(fn.compare("sgt" if signed else "ugt", a, b), a, b)


def minimum(fn: Function, a: Value, b: Value, *, signed: bool) -> Value:
    """Return the smaller."""
    return fn.select(fn.compare("slt" if signed else "ult", a, b), a, b)


def negative(fn: Function, x: Value) -> Value:
    """Return 0 - x."""
    return fn.as_value(x.type, 0) - x


def absolute(fn: Function, x: Value) -> Value:
    """Return |x|; the least number stays."""
    return fn.select(fn.compare("slt", x, 0), negative(fn, x), x)


def divide(fn: Function, a: Value, b: Value, *, signed: bool) -> Value:
    """Return a / b cut toward zero."""
    zero = fn.compare("eq", b, 0)
    if not signed:
        quotient = _quotient(fn, a, fn.select(zero, 1, b), signed)
        return fn.select(zero, 0, quotient)
    back = fn.compare("eq", b, -1)
    quotient = _quotient(fn, a, fn.select(bits(fn, "or", zero, back), 1, b), signed)
    return fn.select(zero, 0, fn.select(back, negative(fn, a), quotient))


def _quotient(fn: Function, a: Value, b: Value, signed: bool) -> Value:
    """Return a / b, b neither 0 nor -1: in floats, which hold the quotient of up to 32 bits.

    A quotient p / q that is no integer is 1 / q from the next one, more than half a unit of its
    last place as long as p has fewer bits than the float.
    """
    width = int(element_of(a.type)[1:])
    if width == 64:
        return bits(fn, "sdiv" if signed else "udiv", a, b)
    wide = vector(lanes_of(a.type), "float" if width <= 16 else "double")
    to, back = ("sitofp", "fptosi") if signed else ("uitofp", "fptoui")
    return fn.convert(back, fn.convert(to, a, wide) / fn.convert(to, b, wide), a.type)


def floor_divide(fn: Function, a: Value, b: Value, *, signed: bool) -> Value:
    """Return floor(a / b)."""
    quotient = divide(fn, a, b, signed=signed)
    if not signed:
        return quotient
    below = bits(fn, "and", _apart(fn, a - quotient * b, b), fn.compare("ne", b, 0))
    return fn.select(below, quotient - 1, quotient)


def modulo(fn: Function, a: Value, b: Value, *, signed: bool, of_a: bool) -> Value:
    """Return a mod b, with the sign of b, or of a; 0 where b is 0."""
    rest = a - divide(fn, a, b, signed=signed) * b
    if signed and not of_a:
        rest = fn.select(_apart(fn, rest, b), rest + b, rest)
    return fn.select(fn.compare("eq", b, 0), 0, rest)


def _apart(fn: Function, rest: Value, b: Value) -> Value:
    """Whether a remainder is not 0 and has another sign than b."""
    signs = fn.compare("slt", bits(fn, "xor", rest, b), 0)
    return bits(fn, "and", signs, fn.compare("ne", rest, 0))


def sign(fn: Function, x: Value, *, signed: bool) -> Value:
    """Return -1, 0 or 1."""
    above = fn.select(fn.compare("ne", x, 0), fn.as_value(x.type, 1), fn.as_value(x.type, 0))
    return fn.select(fn.compare("slt", x, 0), -1, above) if signed else above


def shift(fn: Function, a: Value, b: Value, *, signed: bool, left: bool) -> Value:
    """Return a << b or a >> b; b counts as unsigned."""
    width = int(element_of(a.type)[1:])
    inside = fn.compare("ult", b, width)
    if signed and not left:
        return bits(fn, "ashr", a, fn.select(inside, b, width - 1))
    amount = fn.select(inside, b, fn.as_value(b.type, 0))
    moved = bits(fn, "shl" if left else "lshr", a, amount)
    return fn.select(inside, moved, fn.as_value(a.type, 0))


def power(fn: Function, a: Value, b: Value, *, signed: bool) -> Value:
    """Return a to the b of the same type by repeated squaring, modulo 2^bits.

    Of b < 0: 1 for a = 1, 1 or -1 for a = -1, infinity's cast for a = 0, else 0.
    """
    width = int(element_of(a.type)[1:])
    rest, square, made = (Var(fn, a.type, v) for v in (b, a, 1))
    for _ in fn.range(0, width):
        odd = fn.compare("ne", bits(fn, "and", rest.get(), 1), 0)
        made.set(fn.select(odd, made.get() * square.get(), made.get()))
        square.set(square.get() * square.get())
        rest.set(bits(fn, "lshr", rest.get(), 1))
    if not signed:
        return made.get()
    alternating = fn.select(fn.compare("eq", bits(fn, "and", b, 1), 0), 1, a)
    inverse = fn.select(fn.compare("eq", a, -1), alternating, fn.as_value(a.type, 0))
    inverse = fn.select(fn.compare("eq", a, 1), a, inverse)
    if width >= 32:
        inverse = fn.select(fn.compare("eq", a, 0), -(1 << width - 1), inverse)
    return fn.select(fn.compare("slt", b, 0), inverse, made.get())
