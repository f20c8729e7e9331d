"""Lower ops that rearrange elements to DMA: one rule for all of them.

The op's reference runs once on the numbers of the elements. The result gives the input element of
each output element. Along each axis the numbers fall into runs of equal steps, and every box of
runs is one strided copy. This covers transposes, slices, tiles, splits and nearest resizing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from trireme.devices.npu.compiler.jobs import BoxedValue, MoveJob
from trireme.devices.npu.compiler.layout import RankedBox, axes_of, fold, part
from trireme.devices.npu.compiler.lower import BOTH, QUANTISED, LoweringRow, NpuLowering, is_integer
from trireme.devices.npu.compiler.resize import lower_linear
from trireme.ir.graph import Node
from trireme.ir.op import Call, get_op
from trireme.ops import integer as q
from trireme.support.dtypes import Array
from trireme.support.errors import GraphError

MOST_COPIES = 1024
"""The most copies of one rearrangement."""


def lower_move(state: NpuLowering, node: Node, call: Call) -> None:
    """Lower an op that selects or repeats elements of its first input."""
    x = node.inputs[0]
    if x is None:
        raise GraphError("the input is missing")
    _same_types(call)
    shape = call.type(0).dims
    numbers = np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
    results = _rearranged(node.op, call, numbers)
    for out, index in zip(node.outputs, results, strict=False):
        type = state.graph.type(out)
        if type.elements == 0:
            continue
        _move(state, x, out, np.asarray(index).reshape(type.dims))


def _same_types(call: Call) -> None:
    for out in call.outputs:
        if out.dtype != call.type(0).dtype:
            raise GraphError(f"{call.type(0).dtype} becomes {out.dtype}")
        if call.type(0).quant != out.quant and out.quant is not None:
            raise GraphError("input and output must have the same quantisation")


def _rearranged(op: str, call: Call, numbers: Array) -> tuple[Array, ...]:
    rest = []
    for value in call.inputs[1:]:
        if value is not None and value.data is None:
            raise GraphError("inputs beside the first must be constants")
        rest.append(None if value is None else value.data)
    made = get_op(op).reference(numbers, *rest, **call.attrs)
    return made if isinstance(made, tuple) else (made,)


def _move(state: NpuLowering, x: int, out: int, index: Array) -> None:
    whole = np.array_equal(index.reshape(-1), np.arange(state.graph.type(x).elements))
    if whole and not state.graph.is_output(out):
        state.alias[out] = state.value(x)
        return
    y = axes_of(index.shape)
    if whole:
        copy_axes(state, x, out, [(axes_of(index.shape), y)])
        return
    copies = []
    for start, shape, source in pieces(index):
        place = part(y, start, shape, (1,) * len(shape))
        copies.append((source, _split_like(place, source)))
    copy_axes(state, x, out, copies)


def _split_like(place: RankedBox, source: RankedBox) -> RankedBox:
    """Return a dense place with its axes split as the source's are."""
    shape, strides = list(place.shape), list(place.strides)
    made: list[int] = []
    steps: list[int] = []
    wanted = list(source.shape)
    for size, stride in zip(shape, strides, strict=True):
        inner: list[int] = []
        while math.prod(inner) < size or (size == 1 and not inner):
            inner.append(wanted.pop(0))
        for position, count in enumerate(inner):
            made.append(count)
            steps.append(stride * math.prod(inner[position + 1 :]))
    made += wanted
    steps += [0] * len(wanted)
    return RankedBox(tuple(made), tuple(steps), place.offset)


def pieces(index: Array) -> list[tuple[tuple[int, ...], tuple[int, ...], RankedBox]]:
    """Return (start, shape, source axes) of the boxes in an array of element numbers.

    Errors: GraphError, if an axis depends on another or there are too many boxes
    """
    lines = [_line(index, axis) for axis in range(index.ndim)]
    first = int(index.reshape(-1)[0])
    rebuilt = np.array(first)
    for axis, line in enumerate(lines):
        rebuilt = rebuilt + line.reshape([-1 if i == axis else 1 for i in range(index.ndim)])
    if not np.array_equal(rebuilt.reshape(index.shape), index):
        raise GraphError("it is not a strided copy")
    runs = [_runs(line) for line in lines]
    if math.prod(len(found) for found in runs) > MOST_COPIES:
        raise GraphError(f"it takes more than {MOST_COPIES} copies")
    made = []
    for chosen in itertools.product(*runs):
        start = tuple(run[0] for run in chosen)
        shape = tuple(math.prod(run[1]) for run in chosen)
        offset = first + sum(int(line[run[0]]) for line, run in zip(lines, chosen, strict=True))
        sizes = tuple(itertools.chain.from_iterable(run[1] for run in chosen))
        strides = tuple(itertools.chain.from_iterable(run[2] for run in chosen))
        made.append((start, shape, RankedBox(sizes, strides, offset)))
    return made


def _line(index: Array, axis: int) -> Array:
    at: list[Any] = [0] * index.ndim
    at[axis] = slice(None)
    line = index[tuple(at)]
    return np.asarray(line - line[0])


Run = tuple[int, tuple[int, ...], tuple[int, ...]]
"""A run along an axis: (first position, shape, strides)."""


def _runs(line: Array) -> list[Run]:
    """Return the runs of an axis: one, nested if necessary, where its steps are regular."""
    regular = _nested(line)
    if regular is not None:
        return [(0, *regular)]
    runs: list[Run] = []
    start = 0
    while start < len(line):
        end = start + 1
        step = int(line[end] - line[start]) if end < len(line) else 0
        while step >= 0 and end < len(line) and line[end] - line[end - 1] == step:
            end += 1
        runs.append((start, (end - start,), (max(step, 0),)))
        start = end
    return runs


def _nested(line: Array) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return (shape, strides) if the line is a sum of regular steps, the outermost first."""
    if len(line) == 1:
        return (1,), (0,)
    step = int(line[1] - line[0])
    if step < 0:
        return None
    same = np.diff(line) == step
    count = len(line) if same.all() else int(np.argmin(same)) + 1
    if count == len(line):
        return (count,), (step,)
    if len(line) % count:
        return None
    blocks = line.reshape(-1, count)
    if not np.array_equal(blocks - blocks[:, :1], np.broadcast_to(blocks[0], blocks.shape)):
        return None
    outer = _nested(blocks[:, 0] - blocks[0, 0])
    if outer is None:
        return None
    return (*outer[0], count), (*outer[1], step)


def copy_axes(
    state: NpuLowering,
    x: int,
    out: int,
    copies: Sequence[tuple[RankedBox, RankedBox]],
    fill: tuple[RankedBox, float] | None = None,
) -> None:
    """Add a job that copies boxes of x into boxes of out, after a fill."""
    source, target = state.value(x), state.value(out)
    pairs = [
        (BoxedValue(source, a), BoxedValue(target, b)) for pair in copies for a, b in fold(pair)
    ]
    filled = None
    if fill is not None:
        layouts = [layout for (layout,) in fold([fill[0]])]
        filled = (BoxedValue(target, layouts[0]), fill[1])
    state.jobs.append(MoveJob(state.node, (source,), target, pairs, filled))


def place_part(state: NpuLowering, out: int, axis: int, start: int, size: int) -> RankedBox:
    """Return a range of one axis of a value."""
    shape = state.graph.type(out).dims
    begin = [0] * len(shape)
    begin[axis] = start
    cut = (*shape[:axis], size, *shape[axis + 1 :])
    return part(axes_of(shape), begin, cut, (1,) * len(shape))


def lower_pad(state: NpuLowering, node: Node, call: Call) -> None:
    """Lower pad: fill the output with the value, then copy the input into it."""
    x, out = node.inputs[0], node.outputs[0]
    if x is None:
        raise GraphError("the input is missing")
    if call.attrs["mode"] != "constant":
        lower_move(state, node, call)
        return
    if is_integer(call):
        value = float(q.pad_value(call))
    else:
        given = call.input(2)
        if given is not None and given.data is None:
            raise GraphError("the value must be a constant")
        value = 0.0 if given is None or given.data is None else float(given.data.reshape(-1)[0])
    shape = call.type(0).dims
    ones = np.arange(1, math.prod(shape) + 1, dtype=np.int64).reshape(shape)
    inputs = [None if v is None else v.data for v in call.inputs]
    pads, axes = inputs[1], inputs[3] if len(inputs) > 3 else None
    if pads is None or (len(node.inputs) > 3 and node.inputs[3] is not None and axes is None):
        raise GraphError("pads and axes must be constants")
    zero = np.zeros((), np.int64)
    index = np.asarray(get_op("pad").reference(ones, pads, zero, axes, **call.attrs)) - 1
    _pad(state, x, out, index, value)


def _pad(state: NpuLowering, x: int, out: int, index: Array, value: float) -> None:
    kept = np.argwhere(index >= 0)
    fill = (axes_of(index.shape), value)
    if not len(kept):
        copy_axes(state, x, out, [], fill)
        return
    start, end = kept.min(0), kept.max(0) + 1
    inside = index[tuple(slice(a, b) for a, b in zip(start, end, strict=True))]
    y = axes_of(index.shape)
    copies = []
    for begin, shape, source in pieces(inside):
        first = [int(a) + b for a, b in zip(start, begin, strict=True)]
        place = part(y, first, shape, (1,) * len(shape))
        copies.append((source, _split_like(place, source)))
    copy_axes(state, x, out, copies, fill)


def lower_resize(state: NpuLowering, node: Node, call: Call) -> None:
    """Lower nearest resizing as a move, linear as a command of its own."""
    if call.attrs["mode"] == "nearest":
        lower_move(state, node, call)
    elif call.attrs["mode"] == "linear":
        lower_linear(state, node, call)
    else:
        raise GraphError(f"mode {call.attrs['mode']!r} (nearest and linear are supported)")


MOVE_OPS = (
    LoweringRow(
        (
            "reshape",
            "flatten",
            "squeeze",
            "unsqueeze",
            "transpose",
            "slice",
            "split",
            "expand",
            "tile",
            "space_to_depth",
            "depth_to_space",
            "batch_to_space",
            "gather",
            "identity",
            "reverse",
        ),
        lower_move,
        (*BOTH, *QUANTISED),
    ),
    LoweringRow(("pad",), lower_pad),
    LoweringRow(("resize",), lower_resize),
)
