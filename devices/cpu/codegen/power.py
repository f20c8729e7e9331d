"""x to the y of float32, in float64, with the special cases of C's pow (C23, F.10.4.4)."""

from __future__ import annotations

import math

from trireme.devices.cpu.codegen import mathfn
from trireme.devices.cpu.codegen.ir import Function, Value
from trireme.devices.cpu.codegen.llvm_types import lanes_of, vector
from trireme.devices.cpu.codegen.scalars import bits

_ROOT_BITS = 0x3FE6A09E667F3BCD  # of sqrt(1/2)
_MANTISSA = (1 << 52) - 1
# log2 m = 2 / ln 2 * s (1 + s^2/3 + s^4/5 + ..), s = (m - 1) / (m + 1), |s| < 0.172; error 2e-12
_LOG2 = tuple(2 / math.log(2) / (2 * k + 1) for k in range(8))
# 2^r = sum of (r ln 2)^k / k!, |r| <= 1/2; error 1e-11
_EXP2 = tuple(math.log(2) ** k / math.factorial(k) for k in range(10))
_FAR = 200.0
"""Powers of two beyond this are 0 or infinite in float32."""


def power(fn: Function, x: Value, y: Value) -> Value:
    """Return x to the y; x in float32, y in float64; right to a unit in the last place."""
    type = vector(lanes_of(x.type), "double")
    wide = fn.convert("fpext", x, type)
    size = fn.unary("fabs", wide)
    exponent = y * _log2(fn, size)
    one = bits(fn, "and", fn.compare("oeq", size, 1.0), fn.compare("ord", y, y))
    exponent = fn.select(one, fn.as_value(type, 0.0), exponent)
    made = fn.convert("fptrunc", _exp2(fn, exponent), x.type)
    whole = fn.compare("oeq", fn.unary("floor", y), y)
    half = y * 0.5
    odd = bits(fn, "and", whole, fn.compare("une", fn.unary("floor", half), half))
    negative = fn.compare("slt", fn.convert("bitcast", x, vector(lanes_of(x.type), "i32")), 0)
    made = fn.select(bits(fn, "and", odd, negative), -made, made)
    below = bits(fn, "and", fn.compare("olt", x, 0.0), fn.compare("ogt", x, -math.inf))
    fraction = bits(fn, "and", fn.compare("une", fn.unary("floor", y), y), fn.compare("ord", y, y))
    made = fn.select(bits(fn, "and", below, fraction), math.nan, made)
    always = bits(fn, "or", fn.compare("oeq", x, 1.0), fn.compare("oeq", y, 0.0))
    return fn.select(always, 1.0, made)


def _log2(fn: Function, size: Value) -> Value:
    """Return the logarithm of a float64 that is not negative; float32's denormals are normal."""
    integers = vector(lanes_of(size.type), "i64")
    shifted = fn.convert("bitcast", size, integers) - _ROOT_BITS
    e = fn.convert("sitofp", bits(fn, "ashr", shifted, 52), size.type)
    mantissa = bits(fn, "and", shifted, _MANTISSA) + _ROOT_BITS
    m = fn.convert("bitcast", mantissa, size.type)
    s = (m - 1.0) / (m + 1.0)
    found = fn.fma(s, mathfn.polynomial(fn, s * s, _LOG2), e)
    found = fn.select(fn.compare("oeq", size, 0.0), -math.inf, found)
    return fn.select(fn.compare("olt", size, math.inf), found, size)  # infinity, NaN: themselves


def _exp2(fn: Function, x: Value) -> Value:
    limited = mathfn.clamp(fn, x, -_FAR, _FAR)
    n = fn.unary("roundeven", limited)
    small = mathfn.polynomial(fn, limited - n, _EXP2)
    integers = vector(lanes_of(x.type), "i32")
    whole = fn.convert("fptosi", n, integers)
    whole = fn.emit(integers, f"freeze {whole}")  # a NaN converts to anything; `small` is NaN then
    wide = fn.convert("sext", whole, vector(lanes_of(x.type), "i64"))
    scale = bits(fn, "shl", wide + 1023, 52)
    return small * fn.convert("bitcast", scale, x.type)
