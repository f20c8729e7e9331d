"""Small discrete Fourier transforms of vectors: the work of an fft's stage on a few points."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trireme.devices.cpu.codegen.ir import Function, Value

Complex = tuple[Value, Value]
"""A real and an imaginary part."""


def butterfly(fn: Function, points: Sequence[Complex]) -> list[Complex]:
    """Return X[k] = sum over n of x[n] e^(-2 pi i k n / N) of a few points."""
    if len(points) == 2:
        return _two(points[0], points[1])
    if len(points) == 4:
        return _four(points)
    return _odd(fn, points)


def _two(a: Complex, b: Complex) -> list[Complex]:
    return [(a[0] + b[0], a[1] + b[1]), (a[0] - b[0], a[1] - b[1])]


def _four(points: Sequence[Complex]) -> list[Complex]:
    even, odd = _two(points[0], points[2]), _two(points[1], points[3])
    first, third = _two(even[0], odd[0])
    (re, im), (turned_re, turned_im) = even[1], odd[1]
    second = (re + turned_im, im - turned_re)  # less i times the odd ones
    fourth = (re - turned_im, im + turned_re)
    return [first, second, third, fourth]


def _odd(fn: Function, points: Sequence[Complex]) -> list[Complex]:
    """Return the transform of an odd number of points: sums and differences of mirrored ones."""
    count, first = len(points), points[0]
    pairs = [_two(points[n], points[count - n]) for n in range(1, count // 2 + 1)]
    total = first
    for plus, _ in pairs:
        total = (total[0] + plus[0], total[1] + plus[1])
    made = [total] + [total] * (count - 1)
    for k in range(1, count // 2 + 1):
        (re, im), turned = first, None
        for n, (plus, minus) in enumerate(pairs, 1):
            angle = 2 * math.pi * (k * n % count) / count
            cos, sin = math.cos(angle), math.sin(angle)
            re, im = fn.fma(plus[0], cos, re), fn.fma(plus[1], cos, im)
            if turned is None:
                turned = (minus[0] * sin, minus[1] * sin)
            else:
                turned = (fn.fma(minus[0], sin, turned[0]), fn.fma(minus[1], sin, turned[1]))
        assert turned is not None
        made[k] = (re + turned[1], im - turned[0])
        made[count - k] = (re - turned[1], im + turned[0])
    return made
