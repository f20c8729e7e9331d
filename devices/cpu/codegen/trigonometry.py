"""sine, cosine and tangent of float32, in float64, right to a unit in the last place.

x = n pi / 2 + r with |r| <= pi / 4. Up to 2^20 the parts of pi / 2 are subtracted n times, as in
W. Cody and W. Waite, Software Manual for the Elementary Functions, 1980. Beyond it x is multiplied
by 2 / pi in pieces of 24 bits. Each product is exact in float64, so its whole part comes off
exactly (M. Payne and R. Hanek, Radian Reduction for Trigonometric Functions, 1983).
"""

from __future__ import annotations

import math

from trireme.devices.cpu.codegen import mathfn
from trireme.devices.cpu.codegen.ir import Function, Value, Var
from trireme.devices.cpu.codegen.llvm_types import lanes_of, vector
from trireme.devices.cpu.codegen.scalars import any_lane

_FAR = float(1 << 20)
_HALF_PI_HIGH = float.fromhex("0x1.921fb544p+0")  # 33 bits, so that n times it is exact
_HALF_PI_LOW = float.fromhex("0x1.0b4611a626331p-34")
_2_PI_BITS = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041
"""2 / pi, the first 192 bits behind the point."""
_PIECES = tuple(math.ldexp(_2_PI_BITS >> (192 - 24 * k) & 0xFFFFFF, -24 * k) for k in range(1, 9))
# sin r = r + r^3 P(r^2), cos r = P(r^2); Taylor, |r| <= pi / 4; errors 7e-12 and 4e-13
_SIN = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(1, 6))
_COS = tuple((-1) ** k / math.factorial(2 * k) for k in range(7))


def sin(fn: Function, x: Value) -> Value:
    """Return the sine; NaN of an infinity."""
    quadrant, sine, cosine = _parts(fn, x)
    is_odd = _is_odd(fn, quadrant)
    size = fn.select(is_odd, cosine, sine)
    made = fn.select(fn.compare("oge", quadrant, 2.0), -size, size)
    return fn.convert("fptrunc", made, x.type)


def cos(fn: Function, x: Value) -> Value:
    """Return the cosine; NaN of an infinity."""
    quadrant, sine, cosine = _parts(fn, x)
    size = fn.select(_is_odd(fn, quadrant), sine, cosine)
    middle = fn.compare("olt", fn.unary("fabs", quadrant - 1.5), 1.0)
    return fn.convert("fptrunc", fn.select(middle, -size, size), x.type)


def tan(fn: Function, x: Value) -> Value:
    """Return the tangent; NaN of an infinity."""
    quadrant, sine, cosine = _parts(fn, x)
    is_odd = _is_odd(fn, quadrant)
    above, below = fn.select(is_odd, -cosine, sine), fn.select(is_odd, sine, cosine)
    return fn.convert("fptrunc", above / below, x.type)


def _parts(fn: Function, x: Value) -> tuple[Value, Value, Value]:
    """Return n modulo 4, and the sine and cosine of r, as float64."""
    wide = fn.convert("fpext", x, vector(lanes_of(x.type), "double"))
    n = fn.unary("roundeven", wide * (2 / math.pi))
    rest = fn.fma(n, -_HALF_PI_LOW, fn.fma(n, -_HALF_PI_HIGH, wide))
    r = Var(fn, wide.type, fn.select(fn.compare("oeq", n, 0.0), wide, rest))
    turns = Var(fn, wide.type, n)
    is_far = fn.compare("ogt", fn.unary("fabs", wide), _FAR)
    with fn.when(any_lane(fn, is_far)):
        whole, part = _reduced(fn, wide)
        r.set(fn.select(is_far, part, r.get()))
        turns.set(fn.select(is_far, whole, turns.get()))
    angle = r.get()
    square = angle * angle
    sine = fn.fma(square * angle, mathfn.polynomial(fn, square, _SIN), angle)
    sine = fn.select(fn.compare("oeq", angle, 0.0), angle, sine)
    return _modulo_4(fn, turns.get()), sine, mathfn.polynomial(fn, square, _COS)


def _reduced(fn: Function, x: Value) -> tuple[Value, Value]:
    """Return n, or another number that is the same modulo 4, and r."""
    turns, rest = fn.as_value(x.type, 0.0), fn.as_value(x.type, 0.0)
    for piece in _PIECES:
        product = x * piece
        whole = fn.unary("roundeven", product)
        rest = rest + (product - whole)
        turns = turns + _modulo_4(fn, whole)
    more = fn.unary("roundeven", rest)
    return turns + more, (rest - more) * (math.pi / 2)


def _modulo_4(fn: Function, whole: Value) -> Value:
    return whole - fn.unary("floor", whole * 0.25) * 4.0


def _is_odd(fn: Function, quadrant: Value) -> Value:
    return fn.compare("oeq", fn.unary("fabs", quadrant - 2.0), 1.0)
