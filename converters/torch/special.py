"""Rules of ATen's special functions, made of ops so that no result overflows or cancels."""

from __future__ import annotations

from trireme.converters.torch.use import Use, op_dtype

_ERFC = (
    -1.3026537197817094,
    6.4196979235649026e-1,
    1.9476473204185836e-2,
    -9.561514786808631e-3,
    -9.46595344482036e-4,
    3.66839497852761e-4,
    4.2523324806907e-5,
    -2.0278578112534e-5,
    -1.624290004647e-6,
    1.303655835580e-6,
    1.5626441722e-8,
    -8.5238095915e-8,
    6.529054439e-9,
    5.059343495e-9,
    -9.91364156e-10,
    -2.27365122e-10,
    9.6467911e-11,
    2.394038e-12,
    -6.886027e-12,
    8.94487e-13,
    3.13092e-13,
    -1.12708e-13,
)
"""Chebyshev coefficients of ln(erfc(z) / t) + z^2 over 4 t - 2, t = 2 / (2 + z).

Source: Numerical Recipes (3rd edition), section 6.2.2
"""
_SHORT = 12
"""The coefficients that float32 can tell: 1e-8 of the result."""


def erfc(use: Use) -> int:
    """erfc: t e^(p(t) - z^2) of z = |x|, subtracted from 2 where x < 0; small results are exact."""
    dtype = op_dtype(use.dtype)
    x = use.cast(use["self"], dtype)
    z, two = use.add("abs", x), use.constant(2, dtype)
    t = use.add("div", two, use.add("add", z, two))
    at = use.add("sub", use.add("mul", t, use.constant(4, dtype)), two)
    terms = _ERFC if dtype == "float64" else _ERFC[:_SHORT]
    last = before = use.constant(0, dtype)
    for number in reversed(terms[1:]):  # Clenshaw's recurrence
        term = use.add("sub", use.add("mul", at, last), before)
        last, before = use.add("add", term, use.constant(number, dtype)), last
    sum_ = use.add("add", use.add("mul", at, last), use.constant(terms[0], dtype))
    power = use.add("sub", use.add("mul", sum_, use.constant(0.5, dtype)), before)
    power = use.add("sub", power, use.add("mul", z, z))
    found = use.add("mul", t, use.add("exp", power))
    below = use.add("less", x, use.constant(0, dtype))
    return use.cast(use.add("where", below, use.add("sub", two, found), found), use.dtype)


def hypot(use: Use) -> int:
    """hypot: the larger size times the root of 1 and the squared ratio; no square overflows."""
    dtype = op_dtype(use.dtype)
    sizes = [use.add("abs", use.cast(use[name], dtype)) for name in ("self", "other")]
    large, small = use.add("max", *sizes), use.add("min", *sizes)
    ratio, one = use.add("div", small, large), use.constant(1, dtype)
    found = use.add("sqrt", use.add("add", one, use.add("mul", ratio, ratio)))
    found = use.add("mul", large, found)
    is_zero = use.add("equal", large, use.constant(0, dtype))
    found = use.add("where", is_zero, large, found)
    infinite = use.add("or", *(use.add("is_inf", size) for size in sizes))  # beside NaN too
    found = use.add("where", infinite, use.constant(float("inf"), dtype), found)
    return use.cast(found, use.dtype)


def sign(use: Use) -> int:
    """sign: 1, 0 or -1; of NaN and -0 it is 0."""
    x, dtype = use["self"], use.dtype
    if dtype == "bool":
        return int(x)
    if op_dtype(dtype) not in ("float32", "float64"):
        return use.add("sign", x)
    zero = use.constant(0, dtype)
    above, below = (use.cast(use.add(op, x, zero), dtype) for op in ("greater", "less"))
    return use.add("sub", above, below)


def round_decimals(use: Use) -> int:
    """round to a number of decimals."""
    dtype = op_dtype(use.dtype)
    factor, x = use.constant(10.0 ** use["decimals"], dtype), use.cast(use["self"], dtype)
    found = use.add("div", use.add("round", use.add("mul", x, factor)), factor)
    return use.cast(found, use.dtype)
