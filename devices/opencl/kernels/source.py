"""Building blocks of OpenCL C source: vectors of any number of lanes, literals, activations.

One text serves scalars and vectors. `Lanes` spells types, loads and stores for a number of lanes.
Conditions are written `c ? a : b`, which OpenCL C applies lane by lane. To keep NaN, a clamp
compares `x < limit` and leaves x unchanged where that is false. Relaxed mathematics is never
enabled.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from trireme.devices.opencl.lowering import C_TYPES

PRELUDE = """\
#pragma OPENCL FP_CONTRACT OFF
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#if defined(TRIREME_FMA) || defined(FP_FAST_FMAF)
#define FMA fma
#else
#define FMA mad
#endif
"""

_SIZES = {
    "char": 1,
    "uchar": 1,
    "short": 2,
    "ushort": 2,
    "int": 4,
    "uint": 4,
    "float": 4,
    "long": 8,
    "ulong": 8,
}
_MASKS = {1: "char", 2: "short", 4: "int", 8: "long"}


def compute_type(dtype: str) -> str:
    """Return the C type that computes a dtype: float16 is stored as half, used as float."""
    return "float" if dtype == "float16" else C_TYPES[dtype]


_REQUANTIZE = """\
INT multiply_twice(INT x, INT m, INT s) {
  const INT left = max(s, (INT)(0)), right = max(-s, (INT)(0));
  const LONG p = TO_LONG(x << left) * TO_LONG(m);
  const INT h = TO_INT((p + (LONG)(1L << 30)) >> (LONG)(31));
  const INT mask = AS_INT((AS_UINT((INT)(1)) << AS_UINT(right)) - AS_UINT((INT)(1)));
  const INT up = (mask >> (INT)(1)) - (h >> (INT)(31));
  return (h >> right) - ((up - (h & mask)) >> (INT)(31));
}
INT multiply_away(INT x, INT m, INT s) {
  const LONG down = TO_LONG((INT)(31) - s), p = TO_LONG(x) * TO_LONG(m);
  const LONG middle = (LONG)(1L) << (down - (LONG)(1L));
  return TO_INT((p + middle + (p >> (LONG)(63))) >> down);
}
INT multiply_even(INT x, INT m, INT s) {
  const LONG down = TO_LONG((INT)(31) - s), p = TO_LONG(x) * TO_LONG(m);
  const LONG middle = (LONG)(1L) << (down - (LONG)(1L));
  return TO_INT((p + middle - (LONG)(1L) + ((p >> down) & (LONG)(1L))) >> down);
}
LONG divide_even(LONG x, LONG n) {
  const LONG cut = x / n, sign = (x - cut * n) >> (LONG)(63);
  const LONG whole = cut + sign, rest = x - cut * n + (sign & n);
  return whole - ((n - rest - (whole & (LONG)(1L)) - rest) >> (LONG)(63));
}
"""
"""trireme.ops.integer: multiply of each rounding, and divide to even, by lanes.

x >> 31 is -1 where x is negative: comparisons are written so, which are 1 in scalars but -1 in
vectors (and 255 in Oclgrind, where they are widened).
"""


def _requantize(n: int) -> str:
    lanes = "" if n == 1 else str(n)
    text = re.sub(r"\b(multiply|divide)_[a-z]+", rf"\g<0>{n}", _REQUANTIZE)
    for name, ctype in (
        ("TO_LONG", "convert_long"),
        ("TO_INT", "convert_int"),
        ("AS_INT", "as_int"),
        ("AS_UINT", "as_uint"),
        ("LONG", "long"),
        ("INT", "int"),
    ):
        text = re.sub(rf"\b{name}\b", f"{ctype}{lanes}", text)
    return text


PRELUDE += "".join(_requantize(n) for n in (1, 2, 4, 8, 16))
"""The text before all kernels: a*b+c is contracted only where a kernel calls fma."""


@dataclass(frozen=True)
class Lanes:
    """A scalar (n = 1) or a vector of 2, 4, 8 or 16 lanes, as OpenCL C spells them."""

    n: int

    def type(self, ctype: str) -> str:
        """Return the type of that many lanes: float8, or float."""
        return ctype if self.n == 1 else f"{ctype}{self.n}"

    def splat(self, ctype: str, value: str) -> str:
        """Return a scalar expression in every lane."""
        return f"({self.type(ctype)})({value})"

    def load(self, dtype: str, pointer: str) -> str:
        """Return an expression that loads consecutive elements of a dtype."""
        if dtype == "float16":
            return f"vload_half{self.n if self.n > 1 else ''}(0, {pointer})"
        return f"*({pointer})" if self.n == 1 else f"vload{self.n}(0, {pointer})"

    def store(self, dtype: str, value: str, pointer: str) -> str:
        """Return the statement that stores lanes to consecutive elements."""
        if dtype == "float16":
            return f"vstore_half{self.n if self.n > 1 else ''}_rte({value}, 0, {pointer});"
        if self.n == 1:
            return f"*({pointer}) = {value};"
        return f"vstore{self.n}({value}, 0, {pointer});"

    def convert(self, ctype: str, value: str) -> str:
        """Return lanes converted to another element type."""
        return f"convert_{self.type(ctype)}({value})"

    def mask(self, ctype: str) -> str:
        """Return the type of a comparison of lanes of that type."""
        return "int" if self.n == 1 else f"{_MASKS[_SIZES[ctype]]}{self.n}"

    def as_bool(self, condition: str) -> str:
        """Return a comparison as 0 or 1 in uchar lanes."""
        return f"({self.convert('uchar', condition)} & {self.splat('uchar', '1')})"


def lanes_for(size: int, most: int) -> int:
    """Return the greatest power of two up to both `size` and `most`."""
    return 1 << (max(min(size, most), 1).bit_length() - 1)


def c_float(value: float) -> str:
    """Return a float32 literal that is exactly the value rounded to float32."""
    rounded = float(np.float32(value))
    if math.isnan(rounded):
        return "NAN"
    if math.isinf(rounded):
        return "INFINITY" if rounded > 0 else "(-INFINITY)"
    text = f"{rounded.hex()}f"
    return f"({text})" if rounded < 0 else text


def literal(ctype: str, value: float) -> str:
    """Return a literal of a type."""
    if ctype == "float":
        return c_float(value)
    return f"({int(value)}{'L' if ctype in ('long', 'ulong') else ''})"


def clamped(value: str, low: str, high: str) -> str:
    """Return an expression of {T} lanes: the value within limits; NaN stays."""
    low, high = f"{{T}}({low})", f"{{T}}({high})"
    return f"({value} < {low} ? {low} : ({value} > {high} ? {high} : {value}))"


_SIGMOID = "({T}(1.0f) / ({T}(1.0f) + exp(-{x})))"
_HARD_SIGMOID = clamped("({x} * {T}(0x1.555556p-3f) + {T}(0.5f))", "0.0f", "1.0f")
_CUBIC = "({x} + 0x1.6e4e26p-5f * {x} * {x} * {x})"

ACTIVATIONS = {
    "": "{x}",
    "relu": "({x} < {T}(0) ? {T}(0) : {x})",
    "relu6": clamped("{x}", "0", "6"),
    "relu_n1_to_1": clamped("{x}", "-1", "1"),
    "tanh": "tanh({x})",
    "sigmoid": _SIGMOID,
    "hard_sigmoid": _HARD_SIGMOID,
    "hard_swish": f"({{x}} * {_HARD_SIGMOID})",
    "swish": f"({{x}} * {_SIGMOID})",
    "gelu": "({x} * 0.5f * (1.0f + erf({x} * 0x1.6a09e6p-1f)))",
    "gelu_tanh": f"({{x}} / (1.0f + exp(-0x1.988454p+0f * {_CUBIC})))",
}
"""An activation as an expression of a variable {x}; {T} casts to its type.

(1 + tanh z) / 2 is 1 / (1 + exp(-2 z)): a driver's tanh of -infinity need not be -1.
"""


def activation(name: str, x: str, lanes: Lanes) -> str:
    """Return the activation of a variable as an expression."""
    return ACTIVATIONS[name].format(x=x, T=f"({lanes.type('float')})")
