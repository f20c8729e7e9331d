"""The axis maps of ops: those that follow from other traits, and those of products and windows.

`axis_map_of` is what passes ask. An op whose map does not follow names its own in its OpDef.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from trireme.ir.axis_map import AxisMap, AxisUse, in_order
from trireme.ir.op import Call, OpDef
from trireme.ops.shapes import axes_of, axis_of, ints_of

Uses = dict[tuple[int, int], AxisUse]
_NO_INFINITY = "no stored integer stands for -infinity"


def axis_map_of(op: OpDef, call: Call) -> AxisMap | None:
    """Return the axis map of a call; None where nothing is known of the op."""
    if op.axis_map is not None:
        return op.axis_map(call)
    if op.elementwise:
        return elementwise(call)
    return None if op.axes is None else _DONE[op.axes.does](op, call)


def elementwise(call: Call) -> AxisMap:
    """Return the map of inputs that are broadcast to the output."""
    rank = len(call.outputs[0].shape)
    uses: Uses = {}
    for position, value in enumerate(call.inputs):
        if value is not None:
            uses |= in_order(position, len(value.shape), rank - len(value.shape))
    return AxisMap(uses)


def rows_alone(call: Call) -> AxisMap:
    """Return the map of a first input whose axes all go to the output's."""
    return AxisMap(in_order(0, len(call.type(0).shape)))


def _named(op: OpDef, call: Call) -> set[int] | None:
    """Return the axes of input 0 that a call works along; None where they are not known."""
    rank, named = len(call.type(0).shape), op.axes.named if op.axes else ""
    if named in ("axis", "axis and after"):
        axis = axis_of(call.attrs["axis"], rank)
        return {axis} if named == "axis" else set(range(axis, rank))
    if named == "axes":
        return set(axes_of(call.attrs["axes"], rank))
    given = call.input(1)
    numbers = ints_of(given)
    if given is not None and numbers is None:
        return None
    if not numbers:  # none is given: all, or none at all
        return set() if call.attrs.get("noop_with_empty_axes") else set(range(rank))
    return set(axes_of(numbers, rank))


def _normalised(op: OpDef, call: Call) -> AxisMap | None:
    named, rank = _named(op, call), len(call.type(0).shape)
    if named is None:
        return None
    uses = in_order(0, rank)
    for axis in named:
        uses[0, axis] = AxisUse(refused="its sums would count them")
        if op.fill is not None:
            uses[0, axis] = AxisUse(axis, needs=op.fill)
            if call.type(0).quant is not None and math.isinf(op.fill):
                uses[0, axis] = AxisUse(refused=_NO_INFINITY)
    return AxisMap(uses)


def shares(call: Call) -> AxisMap:
    """Return the map of softmax: an added -infinity gets the share 0."""
    rank = len(call.type(0).shape)
    uses, axis = in_order(0, rank), axis_of(call.attrs["axis"], rank)
    uses[0, axis] = AxisUse(axis, needs=-math.inf, leaves=0.0)
    if call.type(0).quant is not None:
        uses[0, axis] = AxisUse(refused=_NO_INFINITY)
    elif not call.attrs["beta"]:
        uses[0, axis] = AxisUse(refused="beta is 0")
    return AxisMap(uses)


def _reduced(op: OpDef, call: Call) -> AxisMap | None:
    named, rank = _named(op, call), len(call.type(0).shape)
    if named is None:
        return None
    kept, uses, to = bool(call.attrs.get("keepdims", 1)), Uses(), 0
    for axis in range(rank):
        if axis in named:
            counts = op.fill is None or call.attrs.get("select_last_index")
            refused = "its result would count them" if counts else ""
            uses[0, axis] = AxisUse(needs=op.fill, refused=refused)
            to += kept
        else:
            uses[0, axis] = AxisUse(to)
            to += 1
    return AxisMap(uses)


def _accumulated(op: OpDef, call: Call) -> AxisMap | None:
    uses = in_order(0, len(call.type(0).shape))
    named = _named(op, call)
    if named is None:
        return None
    if call.attrs["reverse"]:
        for axis in named:
            uses[0, axis] = AxisUse(axis, needs=op.fill)
    return AxisMap(uses)


def _joined(op: OpDef, call: Call) -> AxisMap:
    rank = len(call.type(0).shape)
    along, last = axis_of(call.attrs["axis"], rank), len(call.inputs) - 1
    uses: Uses = {}
    for position in range(len(call.inputs)):
        uses |= in_order(position, rank)
        after = "the elements of another input follow"
        use = AxisUse(along, resized=True) if position == last else AxisUse(refused=after)
        uses[position, along] = use
    return AxisMap(uses)


def _cut(op: OpDef, call: Call) -> AxisMap:
    rank = len(call.type(0).shape)
    along = axis_of(call.attrs["axis"], rank)
    uses = in_order(0, rank)
    uses[0, along] = AxisUse(refused="it cuts the axis in parts")
    return AxisMap(uses)


def _reversed(op: OpDef, call: Call) -> AxisMap:
    uses = in_order(0, len(call.type(0).shape))
    for axis in _named(op, call) or ():
        uses[0, axis] = AxisUse(refused="it reverses the axis")
    return AxisMap(uses)


def _repeated(op: OpDef, call: Call) -> AxisMap:
    """Return the map of a repetition: only whole axes keep their order."""
    rank, made = len(call.type(0).shape), call.outputs[0].shape
    shift = len(made) - rank
    uses: Uses = {}
    for axis, dim in enumerate(call.type(0).shape):
        same = dim == made[axis + shift]
        refused = "" if same else "it repeats the axis"
        uses[0, axis] = AxisUse(axis + shift if same else None, refused=refused)
    return AxisMap(uses, frozenset({1}))


_DONE: Mapping[str, Callable[[OpDef, Call], AxisMap | None]] = {
    "normalises": _normalised,
    "reduces": _reduced,
    "accumulates": _accumulated,
    "joins": _joined,
    "cuts": _cut,
    "reverses": _reversed,
    "repeats": _repeated,
}


def product(call: Call) -> AxisMap:
    """Return the map of matmul: rows and columns go on, and a sum takes added zeros."""
    left, right, rank = len(call.type(0).shape), len(call.type(1).shape), len(call.outputs[0].shape)
    outer = rank - (left > 1) - (right > 1)
    uses: Uses = {(0, left - 1): AxisUse(needs=0.0), (1, max(right - 2, 0)): AxisUse(needs=0.0)}
    if left > 1:
        uses[0, left - 2] = AxisUse(outer)
    if right > 1:
        uses[1, right - 1] = AxisUse(rank - 1)
    for position, own in ((0, left), (1, right)):
        for axis in range(own - 2):
            uses[position, axis] = AxisUse(axis + outer - (own - 2))
    return AxisMap(uses)


def gemm_product(call: Call) -> AxisMap:
    """Return the map of gemm, with its transposed operands."""
    rows, columns = int(bool(call.attrs["trans_a"])), int(not call.attrs["trans_b"])
    uses: Uses = {
        (0, rows): AxisUse(0),
        (0, 1 - rows): AxisUse(needs=0.0),
        (1, columns): AxisUse(1),
        (1, 1 - columns): AxisUse(needs=0.0),
    }
    added = call.input(2)
    if added is not None:
        uses |= in_order(2, len(added.shape), 2 - len(added.shape))
    return AxisMap(uses)


def rows_times_weight(call: Call) -> AxisMap:
    """Return the map of fully_connected: all axes of x and the residual but the last go on."""
    rank = len(call.type(0).shape)
    uses: Uses = in_order(0, rank - 1) | {(0, rank - 1): AxisUse(needs=0.0)}
    residual = call.input(3)
    if residual is not None:
        uses |= in_order(3, len(residual.shape), rank - len(residual.shape))
    return AxisMap(uses)


def rows_times_blocks(call: Call) -> AxisMap:
    """Return the map of matmul_nbits: all axes of a but the last go on."""
    rank = len(call.type(0).shape)
    return AxisMap(in_order(0, rank - 1) | {(0, rank - 1): AxisUse(needs=0.0)})


def windowed(call: Call, fill: float | None) -> AxisMap:
    """Return the map of windows over images, whose first input has a layout.

    fill: the value that added elements must have where a window may reach past the end of x
    """
    rank = len(call.type(0).shape)
    first = 1 if call.attrs["layout"] == "NHWC" else 2
    uses: Uses = {(0, 0): AxisUse(0)}
    pads, count = call.attrs["pads"], rank - 2
    for i in range(count):
        inside = pads[count + i] <= 0 and not call.attrs.get("ceil_mode")
        refused = "" if inside or fill is not None else "its windows would count them"
        axis = first + i
        uses[0, axis] = AxisUse(axis, None if inside else fill, refused, resized=True)
    if call.input(3) is not None:
        uses |= in_order(3, rank)
    return AxisMap(uses)


def convolved(call: Call) -> AxisMap:
    """Return the map of conv: an element outside x counts as 0."""
    return windowed(call, 0.0)


def greatest(call: Call) -> AxisMap | None:
    """Return the map of max_pool; None with indices, which are places in the whole image."""
    if len(call.outputs) > 1:
        return None
    uses = dict(windowed(call, -math.inf).uses)
    return AxisMap(uses | _channels(call))


def averaged(call: Call) -> AxisMap:
    """Return the map of average_pool, whose divisor counts the elements inside x."""
    uses = dict(windowed(call, None).uses)
    return AxisMap(uses | _channels(call))


def _channels(call: Call) -> Uses:
    axis = len(call.type(0).shape) - 1 if call.attrs["layout"] == "NHWC" else 1
    return {(0, axis): AxisUse(axis)}


def all_but_channels(call: Call) -> AxisMap | None:
    """Return the map of batch_normalization, whose numbers stand for channels unless it trains."""
    if call.attrs["training_mode"]:
        return None
    rank = len(call.type(0).shape)
    channel = rank - 1 if call.attrs["layout"] == "NHWC" else 1
    return AxisMap({(0, axis): AxisUse(axis) for axis in range(rank) if axis != channel})


def transposed(call: Call) -> AxisMap:
    """Return the map of transpose."""
    rank = len(call.type(0).shape)
    perm = call.attrs["perm"] or tuple(reversed(range(rank)))
    return AxisMap({(0, axis): AxisUse(to) for to, axis in enumerate(perm)})


def gathered(call: Call) -> AxisMap:
    """Return the map of gather."""
    rank, picks = len(call.type(0).shape), len(call.type(1).shape)
    axis, batch = axis_of(call.attrs["axis"], rank), call.attrs["batch_dims"]
    uses: Uses = {(0, i): AxisUse(i) for i in range(axis)}
    uses[0, axis] = AxisUse(places=1)
    uses |= {(0, i): AxisUse(i - 1 + picks - batch) for i in range(axis + 1, rank)}
    uses |= {(1, i): AxisUse(i) for i in range(batch)}
    uses |= {(1, i): AxisUse(axis + i - batch) for i in range(batch, picks)}
    return AxisMap(uses)


def gathered_elements(call: Call) -> AxisMap:
    """Return the map of gather_elements, whose output is as the indices are."""
    rank = len(call.type(0).shape)
    axis = axis_of(call.attrs["axis"], rank)
    uses = in_order(1, rank)
    uses |= {(0, i): AxisUse(i, resized=True) for i in range(rank)}
    uses[0, axis] = AxisUse(places=1)
    return AxisMap(uses)


def gathered_nd(call: Call) -> AxisMap:
    """Return the map of gather_nd."""
    rank, picks, batch = len(call.type(0).shape), len(call.type(1).shape), call.attrs["batch_dims"]
    depth = call.type(1).shape[-1]
    if not isinstance(depth, int):
        return AxisMap({})
    uses = in_order(1, picks - 1)
    uses |= {(0, i): AxisUse(i) for i in range(batch)}
    uses |= {(0, batch + i): AxisUse(places=1, part=i) for i in range(depth)}
    left = range(batch + depth, rank)
    return AxisMap(uses | {(0, i): AxisUse(picks - 1 + i - batch - depth) for i in left})


def sliced(call: Call) -> AxisMap:
    """Return the map of slice: an axis keeps its order where places count from the start."""
    rank = len(call.type(0).shape)
    uses = in_order(0, rank)
    starts, steps = ints_of(call.input(1)), ints_of(call.input(4))
    given = call.input(3)
    axes = ints_of(given)
    if starts is None or (given is not None and axes is None):
        return AxisMap({(0, i): AxisUse(refused="its starts are not known") for i in range(rank)})
    steps = steps or (1,) * len(starts)
    where = axes_of(axes, rank) if axes is not None else tuple(range(len(starts)))
    for axis, start, step in zip(where, starts, steps, strict=True):
        from_start = start >= 0 and step > 0
        refused = "" if from_start else "it counts from the end"
        uses[0, axis] = AxisUse(axis if from_start else None, refused=refused, resized=True)
    return AxisMap(uses, frozenset({2}))


def padded(call: Call) -> AxisMap:
    """Return the map of pad: what it adds must be what is there already."""
    rank = len(call.type(0).shape)
    pads, value, given = ints_of(call.input(1)), call.input(2), call.input(3)
    axes = ints_of(given)
    if pads is None or (given is not None and axes is None):
        return AxisMap({})
    where = axes_of(axes, rank) if axes is not None else tuple(range(rank))
    fill = 0.0 if value is None else None if value.data is None else float(value.data.reshape(()))
    uses = in_order(0, rank)
    for i, axis in enumerate(where):
        before, after = pads[i], pads[len(where) + i]
        if before or after:
            wrong = call.attrs["mode"] != "constant" or (after > 0 and fill is None)
            refused = "it pads with elements of the axis" if wrong else ""
            uses[0, axis] = AxisUse(axis, fill if after > 0 else None, refused, resized=True)
    return AxisMap(uses)
