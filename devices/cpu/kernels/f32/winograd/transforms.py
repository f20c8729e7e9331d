"""Winograd's minimal filtering for small square kernels: the matrices, and the code around them.

A tile of m x m outputs of a convolution depends on i x i inputs, i = (m - 1) stride + kernel. It is

    Y = A^T [(G g G^T) * (B^T d B)] A

with p * p multiplications instead of kernel^2 m^2. For stride 1, p = m + kernel - 1: 36 instead of
144 for 4 x 4 outputs of a 3x3 kernel. For stride 2, even and odd inputs meet different taps of the
kernel and are transformed apart: of a 3x3 kernel two taps and one, so p = (m + 1) + m. Summed over
channels the product between is p * p matrix products (kernel.py). G g G^T is computed
once, at load, in float64.

Rounding: both algorithms are exact in real numbers, so only rounding differs. With the textbook's
points 0, +-1, +-2 the entries of A and B reach 8 and 5, and the worst error of F(4x4, 3x3) grows to
five times that of the sum of products. With 0, +-sqrt(1/2), +-sqrt(2) they stay below 2.83 and 2.5,
and the worst error is that of the sum itself (tests/devices/cpu/test_winograd.py: below 5e-6 of the
largest output up to 512 channels, where conv's tolerance is 1e-5). F(6x6, 3x3) needs seven points,
exceeds that tolerance at 256 channels and would save a tenth of the multiplications: it is left
out.

Source: Lavin & Gray 2015, "Fast Algorithms for Convolutional Neural Networks" (the algorithm);
Barabasz et al. 2020, "Error analysis and improving the accuracy of Winograd convolution" (points)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from trireme.devices.cpu.codegen.aligned_memory import aligned_bytes
from trireme.devices.cpu.codegen.ir import Function, Value
from trireme.support.dtypes import Array
from trireme.support.errors import InternalError
from trireme.support.records import dataclass

_FOUR, _FIVE = (0.0, 1.0, -1.0), (0.4, -0.4, 1.3, -1.3)
_SIX = (0.0, math.sqrt(0.5), -math.sqrt(0.5), math.sqrt(2.0), -math.sqrt(2.0))
POINTS: dict[tuple[int, int], dict[int, tuple[float, ...]]] = {
    (3, 1): {2: _FOUR, 3: _FIVE, 4: _SIX},
    (5, 1): {2: _SIX},
    (3, 2): {2: (0.0, 1.0), 4: _FIVE},
}
"""The points of evaluation beside infinity, by kernel and stride, by m; found by trial."""


@dataclass(frozen=True)
class WinogradMatrix:
    """A matrix as rows; `pairs` are rows (or columns) that belong to a point and its negative."""

    rows: tuple[tuple[float, ...], ...]
    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Scheme:
    """F(m x m, kernel x kernel): sides of input and output tiles, and the three matrices.

    outputs, inputs, points: m, i and p
    to_input: B^T [points, inputs]; to_output: A^T [outputs, points]
    to_weights: G [points, kernel], float64
    """

    outputs: int
    inputs: int
    points: int
    kernel: int
    stride: int
    to_input: WinogradMatrix
    to_weights: Array
    to_output: WinogradMatrix


@functools.cache
def scheme(kernel: int, stride: int, outputs: int) -> Scheme:
    """Return F(outputs x outputs, kernel x kernel) for a stride of 1, or of 2 by two phases."""
    points = POINTS[kernel, stride][outputs]
    inputs = (outputs - 1) * stride + kernel
    parts = []
    for phase in range(stride):  # taps and inputs that meet: phase, phase + stride, ...
        taps = np.arange(phase, kernel, stride)
        parts.append(
            (taps, np.arange(phase, inputs, stride), _matrices(points, outputs, len(taps)))
        )
    size = sum(len(matrices[0]) for _, _, matrices in parts)
    to_input, to_weights = np.zeros((size, inputs)), np.zeros((size, kernel))
    to_output = np.zeros((outputs, size))
    row = 0
    for taps, places, (part_input, part_weights, part_output) in parts:
        rows = np.arange(row, row + len(part_input))
        to_input[np.ix_(rows, places)] = part_input
        to_weights[np.ix_(rows, taps)] = part_weights
        to_output[:, rows] = part_output
        row += len(rows)
    pairs = tuple((k, k + 1) for k in range(len(points) - 1) if points[k] == -points[k + 1] != 0)
    return Scheme(
        outputs,
        inputs,
        size,
        kernel,
        stride,
        WinogradMatrix(_rows(to_input), pairs),
        to_weights,
        WinogradMatrix(_rows(to_output), pairs),
    )


def _matrices(points: Sequence[float], outputs: int, taps: int) -> tuple[Array, Array, Array]:
    """Return B^T, G and A^T in one dimension after Toom and Cook, on the points and infinity."""
    if taps == 1:
        return np.eye(outputs), np.ones((outputs, 1)), np.eye(outputs)
    size = outputs + taps - 1
    others = [[q for q in points if q is not p] for p in points]
    to_input = np.zeros((size, size))
    for row, roots in enumerate(others):
        to_input[row, : size - 1] = _polynomial(roots)
    to_input[-1] = _polynomial(points)
    to_weights = np.zeros((size, taps))
    for row, (point, roots) in enumerate(zip(points, others, strict=True)):
        to_weights[row] = point ** np.arange(taps) / math.prod(point - q for q in roots)
    to_weights[-1, -1] = 1
    to_output = np.zeros((outputs, size))
    to_output[:, :-1] = np.array(points)[None] ** np.arange(outputs)[:, None]
    to_output[-1, -1] = 1
    return to_input, to_weights, to_output


def _polynomial(roots: Sequence[float]) -> Array:
    """Return the coefficients of the product of (x - root), the constant first."""
    product = np.ones(1)
    for root in roots:
        product = np.convolve(product, [-root, 1.0])
    return product


def _rows(matrix: Array) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(np.float32(v)) for v in row) for row in matrix)


def panels_shape(made: Scheme, outputs: int, channels: int, width: int) -> tuple[int, ...]:
    """Return the shape of the array that `transform_weights` returns."""
    return -(-outputs // width), made.points**2, channels, width


def transform_weights(weights: Array, made: Scheme, width: int) -> Array:
    """Return the weights of p * p products, in panels.

    Shapes: weights [O,kernel,kernel,C] -> [ceil(O / width), p * p, C, width], zero-padded
    """
    outputs, *kernel, channels = weights.shape
    shape = panels_shape(made, outputs, channels, width)
    result = aligned_bytes(4 * math.prod(shape)).view(np.float32).reshape(shape)
    both = np.kron(made.to_weights, made.to_weights)  # G g G^T as one product, [p * p, kernel^2]
    for panel, transformed in enumerate(result):  # one at a time: all in float64 would be large
        part = weights[panel * width : (panel + 1) * width]
        taps = np.zeros((*kernel, channels, width))
        taps[..., : len(part)] = part.transpose(1, 2, 3, 0)
        transformed[...] = (both @ taps.reshape(len(both[0]), -1)).reshape(transformed.shape)
    return result


def emit_input(fn: Function, transform: WinogradMatrix, values: Sequence[Value]) -> list[Value]:
    """Emit B^T d for one vector d: rows of a pair share their even and odd parts."""
    found: dict[int, Value] = {}
    rows = transform.rows
    for plus, minus in transform.pairs:
        even = [(p + q) / 2 for p, q in zip(rows[plus], rows[minus], strict=True)]
        odd = [(p - q) / 2 for p, q in zip(rows[plus], rows[minus], strict=True)]
        factor = odd[max(k for k, v in enumerate(odd) if v)]
        same = combine(fn, list(zip(even, values, strict=True)))
        other = combine(fn, [(c / factor, v) for c, v in zip(odd, values, strict=True)])
        found[plus] = combine(fn, [(1.0, same), (factor, other)])
        found[minus] = combine(fn, [(1.0, same), (-factor, other)])
    for k, row in enumerate(rows):
        if k not in found:
            found[k] = combine(fn, list(zip(row, values, strict=True)))
    return [found[k] for k in range(len(rows))]


def emit_output(
    fn: Function, transform: WinogradMatrix, values: Sequence[Value], first: Value | None = None
) -> list[Value]:
    """Emit first + A^T v for one vector v; columns of a pair share sum, difference.

    first: what every sum begins with, the bias
    """
    paired = {k for pair in transform.pairs for k in pair}
    sums = [(values[p] + values[q], values[p] - values[q]) for p, q in transform.pairs]
    results = []
    for row in transform.rows:
        terms = [] if first is None else [(1.0, first)]
        terms += [(row[k], v) for k, v in enumerate(values) if k not in paired]
        for (p, q), (total, difference) in zip(transform.pairs, sums, strict=True):
            terms.append((row[p], total if row[p] == row[q] else difference))
        results.append(combine(fn, terms))
    return results


def combine(fn: Function, terms: Sequence[tuple[float, Value]]) -> Value:
    """Emit the sum of coefficient * value, beginning with a coefficient of 1 where there is one."""
    used = sorted(((c, v) for c, v in terms if abs(c) > 1e-12), key=lambda term: term[0] != 1)
    if not used:
        raise InternalError("a Winograd transform has a row of zeros")
    factor, value = used[0]
    total = value if factor == 1 else -value if factor == -1 else value * _single(factor)
    for factor, value in used[1:]:
        if abs(factor) == 1:
            total = total + value if factor > 0 else total - value
        else:
            total = fn.fma(value, _single(factor), total)
    return total


def _single(factor: float) -> float:
    return float(np.float32(factor))
