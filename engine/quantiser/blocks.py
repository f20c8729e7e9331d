"""Weights in groups along their depth: codes of 4 or 8 bits, a scale and a zero point a group.

    w = (code - zero point) * scale

The scale of a group is the one with the least squared error: each candidate gives codes, and these
give the best scale in closed form, <w, d> / <d, d> with d = code - zero point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from trireme.support.dtypes import Array

_SHRINKS = {4: np.linspace(1.1, 0.6, 21), 8: np.linspace(1.0, 0.9, 5)}
"""Widths of the range that are tried, as shares of the whole range, by the bits of a code."""
_ENDS = {4: (1.0, 0.9, 0.8, 0.7), 8: (1.0, 0.97)}
"""Shares of either end of a range with a zero point of its own that are tried."""
_GAIN = 0.95
"""A zero point a group needs a byte: it must leave less than so much of the error."""
_CHUNK = 1 << 17
"""The most weights that are rounded at a time."""


@dataclass(frozen=True)
class RoundedBlocks:
    """Weights [O, K] as codes, with a scale and perhaps a zero point for each group.

    Shapes: codes uint8 [O, groups, group], scales float32 and zeros uint8 [O, groups]; zeros is
        None where every zero point is 2^(bits - 1)
    signal, noise: the sums of squares of the weights and of their error
    """

    codes: Array
    scales: Array
    zeros: Array | None
    bits: int
    signal: float
    noise: float

    def packed(self) -> Array:
        """Return the codes as bytes [O, groups, group * bits / 8], low bits first."""
        if self.bits == 8:
            return self.codes
        return np.asarray(self.codes[..., 0::2] | (self.codes[..., 1::2] << 4), np.uint8)

    def zero_points(self) -> Array:
        """Return the zero points [O, groups]."""
        if self.zeros is not None:
            return self.zeros
        return np.full(self.scales.shape, 1 << (self.bits - 1), np.uint8)


def rounded_blocks(w: Array, bits: int, group: int) -> RoundedBlocks:
    """Return weights rounded in groups along the last axis, the last group filled up with 0.

    A zero point a group is taken where it leaves clearly less error than none.

    Shapes: w [O, K]
    """
    even = _all(w, bits, group, _symmetric)
    free = _all(w, bits, group, _asymmetric)
    return free if free.noise < _GAIN * even.noise else even


def _all(w: Array, bits: int, group: int, rule: Rule) -> RoundedBlocks:
    groups = -(-w.shape[1] // group)
    codes = np.empty((len(w), groups, group), np.uint8)
    scales = np.empty((len(w), groups), np.float32)
    zeros = np.empty((len(w), groups), np.uint8)
    signal = noise = 0.0
    for start, stop in _rows(len(w), groups * group):
        part = np.zeros((stop - start, groups * group), np.float32)
        part[:, : w.shape[1]] = w[start:stop]
        x = part.reshape(-1, group)
        found = rule(x, bits)
        chosen = found.codes()
        made = ((chosen - found.zero) * found.scale).astype(np.float64)
        signal += float(np.vdot(x, x))
        noise += float(np.sum((x - made) ** 2))
        codes[start:stop] = chosen.reshape(-1, groups, group)
        scales[start:stop] = found.scale.reshape(-1, groups)
        zeros[start:stop] = found.zero.reshape(-1, groups)
    fixed = None if rule is _symmetric else zeros
    return RoundedBlocks(codes, scales, fixed, bits, signal, noise)


def _rows(count: int, width: int) -> Iterator[tuple[int, int]]:
    step = max(_CHUNK // max(width, 1), 1)
    for start in range(0, count, step):
        yield start, min(start + step, count)


class _BestScales:
    """The best scale and zero point so far of each row of x [rows, group]."""

    def __init__(self, x: Array, most: int) -> None:
        self.x, self.most = x, most
        self.scale, self.zero = (np.zeros((len(x), 1), np.float32) for _ in range(2))
        self.gain = np.full((len(x), 1), -1.0, np.float32)
        self._steps = np.empty_like(x)

    def offer(self, scale: Array, zero: Array) -> None:
        """Keep the best scale for the codes that a scale gives, where it leaves less error.

        The error of the best scale is |x|^2 - <x, d>^2 / <d, d>, so the last part is the gain.
        """
        d = self._rounded(scale, zero)
        product, square = _dots(self.x, d), np.maximum(_dots(d, d), np.float32(1e-30))
        gain = product * product / square
        better = gain > self.gain
        self.scale = np.where(better, product / square, self.scale)
        self.zero = np.where(better, zero, self.zero)
        self.gain = np.where(better, gain, self.gain)

    def _rounded(self, scale: Array, zero: Array) -> Array:
        """Return the codes less the zero point, in memory that the next call writes again."""
        d = self._steps
        with np.errstate(all="ignore"):
            np.multiply(self.x, np.where(scale == 0, 0, 1 / scale), out=d)
        np.rint(d, out=d)
        return np.clip(d, -zero, self.most - zero, out=d)

    def refine(self) -> None:
        """Round again with the best scales, which gives better ones."""
        self.offer(self.scale, self.zero)

    def codes(self) -> Array:
        """Return the codes of the best scales."""
        return self._rounded(self.scale, self.zero) + self.zero


Rule = Callable[[Array, int], _BestScales]
"""Rounds rows of weights to codes of so many bits."""


def _dots(a: Array, b: Array) -> Array:
    return np.asarray(np.einsum("ij,ij->i", a, b)[:, None])


def _symmetric(x: Array, bits: int) -> _BestScales:
    """Round around the middle code: the largest weight becomes the code 0, which is the farthest.

    The scale is negative where the largest weight is positive.
    """
    half = 1 << (bits - 1)
    best = _BestScales(x, 2 * half - 1)
    place = np.abs(x).argmax(axis=1)[:, None]
    peak = np.take_along_axis(x, place, 1)
    zero = np.full((len(x), 1), half, np.float32)
    for share in _SHRINKS[bits]:
        best.offer(peak * np.float32(share / -half), zero)
    for _ in range(2):
        best.refine()
    return best


def _asymmetric(x: Array, bits: int) -> _BestScales:
    """Round with a zero point of its own for each group."""
    most = (1 << bits) - 1
    best = _BestScales(x, most)
    low, high = (np.minimum(x.min(1), 0)[:, None], np.maximum(x.max(1), 0)[:, None])
    for below in _ENDS[bits]:
        for above in _ENDS[bits]:
            scale = (high * np.float32(above) - low * np.float32(below)) / np.float32(most)
            zero = np.rint(-low * np.float32(below) / np.where(scale == 0, 1, scale))
            best.offer(scale, np.clip(zero, 0, most).astype(np.float32))
    for _ in range(2):
        best.refine()
    return best
