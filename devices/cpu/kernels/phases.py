"""A transposed convolution as plain ones: outputs a stride apart see the same taps.

Along an axis, output o sums input i times weight k where o + pad = stride * i + dilation * k. The
outputs with (o + pad) % stride == r are phase r. They are a convolution of stride 1 by the weights
with dilation * k % stride == r, backwards. With dilation 1 neighbouring phases see the same inputs
if they have as many weights. So a run of them is one convolution with more channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import Array
from trireme.support.records import dataclass

Pair = tuple[int, int]


@dataclass(frozen=True)
class PhaseRange:
    """Phases first..first+count-1 of an axis: a window of stride 1 over the input.

    taps: the weight of each tap, for the first phase; the next phase has the next weights
    pad: input elements that the first window lies before the input
    """

    first: int
    count: int
    taps: tuple[int, ...]
    pad: int
    dilation: int


@dataclass(frozen=True)
class PhaseAxis:
    """An axis of a transposed convolution.

    windows: positions of the window, the same for all phases
    shift: of phase r and window t, the output is stride * t + r + shift
    """

    size: int
    out: int
    stride: int
    windows: int
    shift: int
    runs: tuple[PhaseRange, ...]

    @property
    def places(self) -> PhaseAxis:
        """The axis less what does not decide where results go: which weights they were made of."""
        runs = (PhaseRange(run.first, run.count, run.taps and (0,), 0, 1) for run in self.runs)
        return replace(self, size=0, runs=tuple(runs))


MOST_PHASES = 4096
"""The greatest stride: each phase of the output that it makes may be a kernel of its own."""


def axis_of(
    size: int, out: int, kernel: int, stride: int, pad: int, dilation: int, alone: bool
) -> PhaseAxis:
    """Return an axis with its phases in runs; `alone` gives each phase a run of its own.

    No window begins behind the input's first element.
    """
    furthest = {k * dilation % stride: k * dilation // stride for k in range(kernel)}
    start = min(pad // stride, *furthest.values())
    windows = (pad + out - 1) // stride - start + 1
    runs: list[PhaseRange] = []
    for phase in range(stride):
        weights = [k for k in range(kernel) if k * dilation % stride == phase]
        offsets = [(k * dilation - phase) // stride for k in weights]
        step = offsets[1] - offsets[0] if len(offsets) > 1 else 1
        last = runs[-1] if runs else None
        if last and not alone and dilation == 1 and len(last.taps) == len(weights):
            runs[-1] = PhaseRange(last.first, last.count + 1, last.taps, last.pad, step)
            continue
        before = offsets[-1] - start if offsets else 0
        runs.append(PhaseRange(phase, 1, tuple(reversed(weights)), before, step))
    return PhaseAxis(size, out, stride, windows, stride * start - pad, tuple(runs))


def axes_of(graph: Graph, node: Node, alone: bool) -> tuple[PhaseAxis, PhaseAxis]:
    """Return the two spatial axes of a conv_transpose; one of one axis has a height of 1."""
    x, w, y = (graph.type(v).dims for v in (node.used[0], node.used[1], node.outputs[0]))
    attrs = node.attrs
    found = [
        axis_of(
            x[i + 1],
            y[i + 1],
            w[i + 1],
            attrs["strides"][i],
            attrs["pads"][i],
            attrs["dilations"][i],
            alone,
        )
        for i in range(len(x) - 2)
    ]
    if len(found) == 1:
        found.insert(0, axis_of(1, 1, 1, 1, 0, 1, alone))
    return found[0], found[1]


def weights_of(w: Array, rows: PhaseRange, columns: PhaseRange) -> Array:
    """Return the weights of a pair of runs as [row, column, kernel row, kernel column, C, M].

    Shapes: w [C,KH,KW,M]; row and column count the phases of the runs
    """
    down = np.add.outer(np.arange(rows.count), np.array(rows.taps, np.intp))
    along = np.add.outer(np.arange(columns.count), np.array(columns.taps, np.intp))
    picked = w[:, down[:, None, :, None], along[None, :, None, :]]
    return np.moveaxis(picked, 0, -2)


def pairs(axes: Sequence[PhaseAxis]) -> list[tuple[PhaseRange, PhaseRange]]:
    """Return the runs of both axes that have weights, each a convolution."""
    return [
        (rows, columns)
        for rows in axes[0].runs
        for columns in axes[1].runs
        if rows.taps and columns.taps
    ]
