"""Functions of vectors as instructions: exp, log, tanh, erf and their combinations.

Each is right to a few units in the last place and for NaN, infinities and -0. The polynomials were
fitted for these ranges by weighted least squares in float64; their known errors stand beside them.
Range reductions follow W. Cody and W. Waite, Software Manual for the Elementary Functions, 1980.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from trireme.devices.cpu.codegen.ir import Function, Operand, Value
from trireme.devices.cpu.codegen.llvm_types import lanes_of, vector

_LN2_HIGH = 0.693359375  # 9 bits, so that n * _LN2_HIGH is exact for |n| < 2**15
_LN2_LOW = math.log(2) - _LN2_HIGH
# e^r = 1 + r + r^2 P(r), |r| <= ln2 / 2; error 7e-9
_EXP = (0.5, 0.16666576266288757, 0.04166637361049652, 0.008363175205886364, 0.0013941109646111727)
# e^r = 1 + r P(r), |r| <= ln2 / 2; error 1e-7
_EXP_SHORT = (
    1.0,
    0.9999997019767761,
    0.4999914765357971,
    0.1666763871908188,
    0.04189816117286682,
    0.008290272206068039,
)
_ROUND = 1.5 * 2.0**23
"""Added to a small number it leaves the nearest integer in the low bits."""
# tanh x = x + x^3 P(x^2), x^2 <= 0.42; error 2e-8
_TANH = (
    -0.333333283662796,
    0.13332633674144745,
    -0.05383007973432541,
    0.02089880406856537,
    -0.005955418571829796,
)
# erf x = x P(x^2) / Q(x^2), |x| <= _ERF_ONE; error 2e-8, 4e-7 with rounding
_ERF_TOP = (
    1.1283791065216064,
    0.18961945176124573,
    0.05266289785504341,
    0.0037365893367677927,
    0.0002850718447007239,
    2.067505192826502e-06,
)
_ERF_BOTTOM = (
    1.0,
    0.5013786554336548,
    0.11380035430192947,
    0.014910746365785599,
    0.001157039892859757,
    3.8281152228591964e-05,
)
_ERF_ONE = math.sqrt(15.2)
# log2(1 - erf x) = P(x), 0 <= x <= 5.6; error 3e-7 for x < 1.5, of 1 - erf x a few times that
_ERFC = (
    2.937240708433819e-07,
    -1.6279264688491821,
    -0.9182376861572266,
    -0.14914239943027496,
    0.029396019876003265,
    -0.0017641849117353559,
    -0.001093885162845254,
    0.0004182250704616308,
    -7.229978655232117e-05,
    6.483371635113144e-06,
    -2.42308004771985e-07,
)
_ERFC_ZERO = 5.6
# log(1 + f) = f - f^2 / 2 + f^3 P(f), sqrt(1/2) <= 1 + f <= sqrt(2); error 1e-9
_LOG = (
    0.3333331048488617,
    -0.24999986588954926,
    0.20002226531505585,
    -0.16669251024723053,
    0.14218658208847046,
    -0.1238434836268425,
    0.11872976273298264,
    -0.11789807677268982,
    0.06915368139743805,
)


def maximum(fn: Function, x: Value, other: Operand) -> Value:
    """Return the larger; NaN when either is NaN."""
    y = fn.as_value(x.type, other)
    larger = fn.select(fn.compare("ogt", y, x), y, x)  # x when x is NaN
    return larger if not isinstance(other, Value) else _keep_nan(fn, y, larger)


def minimum(fn: Function, x: Value, other: Operand) -> Value:
    """Return the smaller; NaN when either is NaN."""
    y = fn.as_value(x.type, other)
    smaller = fn.select(fn.compare("olt", y, x), y, x)
    return smaller if not isinstance(other, Value) else _keep_nan(fn, y, smaller)


def _keep_nan(fn: Function, y: Value, result: Value) -> Value:
    return fn.select(fn.compare("uno", y, y), y, result)


def clamp(fn: Function, x: Value, low: float, high: float) -> Value:
    """Return x limited to [low, high]; an infinite limit costs nothing."""
    if low != -math.inf:
        x = maximum(fn, x, low)
    return minimum(fn, x, high) if high != math.inf else x


def polynomial(fn: Function, x: Value, coefficients: Sequence[float]) -> Value:
    """Return the polynomial with these coefficients, lowest power first, by Horner's rule."""
    total = fn.as_value(x.type, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = fn.fma(total, x, coefficient)
    return total


def exp(fn: Function, x: Value) -> Value:
    """Return e to the x: n = round(x / ln 2), e^x = 2^n e^(x - n ln 2), denormals included."""
    limited = clamp(fn, x, -104.0, 89.0)
    n = fn.unary("floor", fn.fma(limited, 1 / math.log(2), 0.5))
    r = fn.fma(n, -_LN2_LOW, fn.fma(n, -_LN2_HIGH, limited))
    y = fn.fma(r * r, polynomial(fn, r, _EXP), r + 1.0)
    return _scale(fn, y, n)


def expm1_below(fn: Function, x: Value) -> Value:
    """Return e to the x, less 1, of x <= 1, to 1e-7 of it: 2^n (e^r - 1) + 2^n - 1, r as in exp."""
    limited = clamp(fn, x, -20.0, 1.0)  # less is -1
    n = fn.unary("floor", fn.fma(limited, 1 / math.log(2), 0.5))
    r = fn.fma(n, -_LN2_LOW, fn.fma(n, -_LN2_HIGH, limited))
    whole = fn.convert("fptosi", n, _int_type(n))
    power = _power_of_two(fn, fn.emit(whole.type, f"freeze {whole}"))
    return fn.fma(power, fn.fma(r * r, polynomial(fn, r, _EXP), r), power - 1.0)


def expm1(fn: Function, x: Value) -> Value:
    """Return e to the x, less 1, of any x."""
    return fn.select(fn.compare("olt", x, 1.0), expm1_below(fn, x), exp(fn, x) - 1.0)


def exp_short(fn: Function, x: Value, most: float = math.inf, sign: int = 1) -> Value:
    """Return e to the sign x to 2e-7 of it, in two thirds of the instructions of `exp`.

    most: the largest value of sign x, if known
    Where 2^n leaves the normal numbers its bits are those of 0 and infinity: results below 2^-126.5
    are 0, above 2^127.5 infinite.
    """
    low, high = -88.3, 88.6 if most > 88.6 else math.inf
    limited = clamp(fn, x, *((low, high) if sign > 0 else (-high, -low)))
    biased = fn.fma(limited, sign / math.log(2), _ROUND + 127.0)
    bits = fn.convert("bitcast", biased, _int_type(x))
    power = fn.convert("bitcast", _as_value(fn.integer("shl", bits, 23)), x.type)
    n = biased - (_ROUND + 127.0)
    if fn.isa.fused:
        r = fn.fma(n, -sign * math.log(2), limited)
    else:
        r = fn.fma(n, -sign * _LN2_LOW, fn.fma(n, -sign * _LN2_HIGH, limited))
    return polynomial(fn, r, [c * sign**k for k, c in enumerate(_EXP_SHORT)]) * power


def _scale(fn: Function, y: Value, n: Value) -> Value:
    """Return y 2^n in two steps, as 2^n itself may be too large or too small; NaN stays NaN."""
    whole = fn.convert("fptosi", n, _int_type(n))
    whole = fn.emit(whole.type, f"freeze {whole}")  # a NaN converts to anything; y is NaN then
    half = _as_value(fn.integer("ashr", whole, 1))
    return y * _power_of_two(fn, half) * _power_of_two(fn, whole - half)


def _power_of_two(fn: Function, n: Value) -> Value:
    bits = _as_value(fn.integer("shl", n + 127, 23))
    return fn.convert("bitcast", bits, vector(lanes_of(n.type), "float"))


def _as_value(value: Value | int) -> Value:
    assert isinstance(value, Value)
    return value


def _int_type(x: Value) -> str:
    return vector(lanes_of(x.type), "i32")


def log(fn: Function, x: Value) -> Value:
    """Return the natural logarithm: x = m 2^e with m near 1, log x = log m + e ln 2."""
    tiny = fn.compare("olt", x, 2.0**-126)
    mantissa, e = _split(fn, fn.select(tiny, x * 2.0**23, x))
    result = _log_of(fn, mantissa, fn.select(tiny, e - 23.0, e))
    result = fn.select(fn.compare("oeq", x, 0.0), -math.inf, result)
    result = fn.select(fn.compare("olt", x, 0.0), math.nan, result)
    ordinary = fn.compare("olt", x, math.inf)
    return fn.select(ordinary, result, x)  # infinity and NaN are their own


def log_normal(fn: Function, x: Value) -> Value:
    """Return the natural logarithm of a normal number above 0, of infinity or NaN."""
    result = _log_of(fn, *_split(fn, x))
    return fn.select(fn.compare("olt", x, math.inf), result, x)


def log1p_unit(fn: Function, p: Value) -> Value:
    """Return log(1 + p), 0 <= p <= 1, to 2e-7 of it: what 1 + p loses of p is added behind."""
    u = p + 1.0
    return log_normal(fn, u) + (p - (u - 1.0)) / u


def _split(fn: Function, x: Value) -> tuple[Value, Value]:
    """Return m and e of x = m 2^e, sqrt(1/2) <= m < sqrt(2)."""
    shifted = fn.convert("bitcast", x, _int_type(x)) - 0x3F3504F3  # the bits of sqrt(1/2)
    e = fn.convert("sitofp", _as_value(fn.integer("ashr", shifted, 23)), x.type)
    mantissa = _as_value(fn.integer("and", shifted, 0x007FFFFF)) + 0x3F3504F3
    return fn.convert("bitcast", mantissa, x.type), e


def _log_of(fn: Function, mantissa: Value, e: Value) -> Value:
    f = mantissa - 1.0
    f2 = f * f
    small = fn.fma(e, _LN2_LOW, fn.fma(f2 * f, polynomial(fn, f, _LOG), f2 * -0.5))
    return fn.fma(e, _LN2_HIGH, f + small)


def tanh(fn: Function, x: Value) -> Value:
    """Return the hyperbolic tangent: a polynomial near 0, 1 - 2 / (e^2|x| + 1) elsewhere."""
    u = x * x
    near = fn.fma(u * x, polynomial(fn, u, _TANH), x)
    size = fn.unary("fabs", x)
    far = 1.0 - 2.0 / (exp_short(fn, size + size) + 1.0)
    return copysign(fn, fn.select(fn.compare("olt", size, 0.625), near, far), x)  # of -0 it is -0


def copysign(fn: Function, size: Value, sign: Value) -> Value:
    """Return size with the sign of `sign`."""
    lanes = lanes_of(size.type)
    name = f"llvm.copysign.v{lanes}f32" if lanes > 1 else "llvm.copysign.f32"
    return fn.call(size.type, name, size, sign)


def sigmoid(fn: Function, x: Value) -> Value:
    """Return 1 / (1 + e^-x)."""
    return 1.0 / (exp_short(fn, x, sign=-1) + 1.0)


def swish(fn: Function, x: Value) -> Value:
    """Return x / (1 + e^-x)."""
    return x / (exp_short(fn, x, sign=-1) + 1.0)


def erf(fn: Function, x: Value) -> Value:
    """Return the error function: a quotient of polynomials up to where it is 1 in float32."""
    x = clamp(fn, x, -_ERF_ONE, _ERF_ONE)
    u = x * x
    quotient = x * polynomial(fn, u, _ERF_TOP) / polynomial(fn, u, _ERF_BOTTOM)
    return clamp(fn, quotient, -1.0, 1.0)


def gelu(fn: Function, x: Value) -> Value:
    """Return x/2 (1 + erf(x / sqrt 2)) as max(x, 0) - |x|/2 (1 - erf(|x| / sqrt 2)): where that
    is small, nothing cancels.
    """
    size = fn.unary("fabs", x)
    a = size * math.sqrt(0.5)
    power = polynomial(fn, minimum(fn, a, _ERFC_ZERO), _ERFC)
    n = fn.unary("floor", power + 0.5)
    r = (power - n) * math.log(2)
    small = fn.fma(r * r, polynomial(fn, r, _EXP), r + 1.0)
    whole = fn.convert("fptosi", n, _int_type(n))
    rest = size * 0.5 * (small * _power_of_two(fn, fn.emit(whole.type, f"freeze {whole}")))
    far = fn.select(fn.compare("olt", x, 0.0), size * 0.0, 0.0)  # NaN for -infinity, as 0 x inf
    rest = fn.select(fn.compare("oge", a, _ERFC_ZERO), far, rest)
    return fn.select(fn.compare("uno", x, x), x, clamp(fn, x, 0.0, math.inf) - rest)
