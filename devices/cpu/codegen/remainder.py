"""The remainder of floats, exact, by division; modulo and the quotient rounded down from it.

x - q y has no rounding error while x and q y are known exactly. For float32 they are in double
precision, if q has at most 29 bits: 29 + 24 bits are the 53 of a double. A quotient below 2^29 is
done in one step; of a larger one a step takes off 28 bits or more. For doubles a fused
multiply-add knows q y, if q is below 2^53; libm does the others.
"""

from __future__ import annotations

from collections.abc import Callable

from trireme.devices.cpu.codegen.ir import Function, Value, Var
from trireme.devices.cpu.codegen.llvm_types import lanes_of, mangled, vector
from trireme.devices.cpu.codegen.scalars import any_lane, bits

RestOf = Callable[[Function, Value, Value], Value]
"""(fn, a, b) -> a - trunc(a / b) b: `of_singles` or `of_doubles`."""
_UPPER = -1 << 24
"""Mask of a double's sign, exponent and the upper 28 of its 52 stored bits."""
_STEPS = 10
"""Steps beside the first for the largest quotient of float32 numbers, below 2^277."""


def of_singles(fn: Function, a: Value, b: Value) -> Value:
    """Return a - trunc(a / b) b of float32 values, of a's sign; NaN where b is 0 or a infinite."""
    wide = vector(lanes_of(a.type), "double")
    size, by = (fn.unary("fabs", fn.convert("fpext", v, wide)) for v in (a, b))
    rest = Var(fn, wide, _step(fn, size, by))
    is_large = fn.compare("oge", fn.unary("fabs", rest.get()), by)
    with fn.when(any_lane(fn, is_large)):
        for _ in fn.range(0, _STEPS):
            left = fn.compare("oge", fn.unary("fabs", rest.get()), by)
            with fn.when(any_lane(fn, left)):
                rest.set(_step(fn, rest.get(), by))
    found = fn.convert("fptrunc", _not_below_0(fn, rest.get(), by), a.type)
    return _with_sign(fn, found, a)


def _step(fn: Function, rest: Value, by: Value) -> Value:
    """Return the rest, where it is not below `by`, less the upper bits of the quotient times it."""
    quotient = fn.unary("trunc", rest / by)
    raw = vector(lanes_of(rest.type), "i64")
    upper = bits(fn, "and", fn.convert("bitcast", quotient, raw), _UPPER)
    less = rest - fn.convert("bitcast", upper, rest.type) * by
    return fn.select(fn.compare("olt", fn.unary("fabs", rest), by), rest, less)


def of_doubles(fn: Function, a: Value, b: Value) -> Value:
    """Return the same of doubles."""
    size, by = fn.unary("fabs", a), fn.unary("fabs", b)
    quotient = fn.unary("trunc", size / by)
    less = fn.call(a.type, f"llvm.fma.{mangled(a.type)}", -quotient, by, size)
    less = fn.select(fn.compare("olt", size, by), size, _not_below_0(fn, less, by))
    found = Var(fn, a.type, _with_sign(fn, less, a))
    with fn.when(any_lane(fn, fn.compare("oge", quotient, float(1 << 53)))):
        found.set(fn.emit(a.type, f"frem {a}, {b.text}"))
    return found.get()


def _not_below_0(fn: Function, rest: Value, by: Value) -> Value:
    """Return a rest whose quotient was rounded up, else the rest as it is."""
    return fn.select(fn.compare("olt", rest, 0.0), rest + by, rest)


def _with_sign(fn: Function, rest: Value, a: Value) -> Value:
    return fn.call(a.type, f"llvm.copysign.{mangled(a.type)}", rest, a)


def modulo(fn: Function, rest_of: RestOf, a: Value, b: Value, *, zero_of_b: bool) -> Value:
    """Return the remainder with the sign of b; a zero keeps a's sign unless `zero_of_b`."""
    rest = rest_of(fn, a, b)
    if zero_of_b:
        rest = fn.select(fn.compare("oeq", rest, 0.0), _with_sign(fn, rest, b), rest)
    return fn.select(_apart(fn, rest, b), rest + b, rest)


def _apart(fn: Function, rest: Value, b: Value) -> Value:
    """Whether a remainder is not 0 and has another sign than b."""
    signs = bits(fn, "xor", fn.compare("olt", rest, 0.0), fn.compare("olt", b, 0.0))
    return bits(fn, "and", signs, fn.compare("une", rest, 0.0))


def floor_divide(fn: Function, rest_of: RestOf, a: Value, b: Value) -> Value:
    """Return floor(a / b) of the exact quotient; a / b where b is 0.

    a - rest is a multiple of b but for its rounding, so the nearest whole number is meant.
    Source: ATen div_floor_floating, numpy floor_divide
    """
    rest, rounded = rest_of(fn, a, b), a / b
    quotient = (a - rest) / b
    quotient = fn.select(_apart(fn, rest, b), quotient - 1.0, quotient)
    floor = fn.unary("floor", quotient)
    floor = fn.select(fn.compare("ogt", quotient - floor, 0.5), floor + 1.0, floor)
    zero = _with_sign(fn, fn.as_value(a.type, 0.0), rounded)
    floor = fn.select(fn.compare("oeq", quotient, 0.0), zero, floor)
    return fn.select(fn.compare("oeq", b, 0.0), rounded, floor)
