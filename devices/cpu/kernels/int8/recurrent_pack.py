"""integer_lstm: the parameters of its kernel, and the layout of its weights and biases."""

from __future__ import annotations

import numpy as np

from trireme.devices.cpu.kernels.int8.arithmetic import QUADS, Dot
from trireme.support.dtypes import Array
from trireme.support.records import dataclass

_PRODUCTS_PER_S = 1e10


@dataclass(frozen=True)
class IntegerLayer:
    """The parameters of the kernel of a layer.

    scales: (multiplier, shift) of the gates' inputs, of their recurrent sums, of 3 peepholes, of
        the hidden value, of the projection
    """

    steps: int
    batch: int
    inputs: int
    units: int
    outputs: int
    gates: int
    is_batch_first: bool
    has_peepholes: bool
    has_projection: bool
    scales: tuple[tuple[int, int], ...]
    cell_scale: int
    zeros: tuple[int, int]
    clips: tuple[int, int]

    def seconds(self) -> float:
        """Return an estimate of the time of one sequence on one thread."""
        products = self.gates * self.units * (self.inputs + self.outputs)
        products += self.units * self.outputs * self.has_projection
        return self.steps * (products / _PRODUCTS_PER_S + self.units * 2e-9 + 1e-7)


def padded(count: int, step: int) -> int:
    """Return the count, rounded up to whole steps."""
    return -(-count // step) * step


def packed(weights: Array, groups: int, dot: Dot, lanes: int) -> Array:
    """Return weights [groups*N, K] as [block of N, step of K, group, lane, tap]."""
    rows, depth = weights.shape[0] // groups, weights.shape[1]
    whole = np.zeros((groups, padded(rows, lanes), padded(depth, dot.taps)), np.int8)
    whole[:, :rows, :depth] = weights.reshape(groups, rows, depth)
    parts = whole.reshape(groups, -1, lanes, whole.shape[2] // dot.taps, dot.taps)
    packed = parts.transpose(1, 3, 0, 2, 4)
    return np.ascontiguousarray(packed, np.int8 if dot is QUADS else np.int16).reshape(-1)


def packed_bias(bias: Array, weights: Array, groups: int, dot: Dot, lanes: int) -> Array:
    """Return biases as [block of N, group, lane]; bytes with a flipped sign are 128 too large."""
    exact = bias.astype(np.int64)
    if dot is QUADS:
        exact = exact - 128 * weights.astype(np.int64).sum(axis=1)
    rows = exact.size // groups
    whole = np.zeros((groups, padded(rows, lanes)), np.int64)
    whole[:, :rows] = exact.reshape(groups, rows)
    return np.ascontiguousarray(
        whole.reshape(groups, -1, lanes).transpose(1, 0, 2).astype(np.int32)
    ).reshape(-1)
