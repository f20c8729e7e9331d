"""Lift nodes of older opsets to the newest meaning, one small adapter per change.

Source: ONNX Changelog.md and Operators.md, the versions named in the table
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trireme.converters.onnx.scope import NodeUse

Adapter = Callable[[NodeUse], None]


def to_input(name: str, position: int, dtype: str = "int64") -> Adapter:
    """Return an adapter that turns an attribute into a constant input."""

    def adapt(use: NodeUse) -> None:
        value = use.take(name)
        if value is not None:
            use.set_input(position, use.constant(value, dtype))

    return adapt


def to_typed_input(name: str, position: int) -> Adapter:
    """Return the same, with the constant of the first input's dtype."""

    def adapt(use: NodeUse) -> None:
        value = use.take(name)
        if value is not None:
            use.set_input(position, use.constant(value, use.type().dtype))

    return adapt


def default(name: str, value: Any) -> Adapter:
    """Return an adapter for an attribute whose default was another value."""

    def adapt(use: NodeUse) -> None:
        use.attrs.setdefault(name, value)

    return adapt


def rename_choice(name: str, **renamed: str) -> Adapter:
    """Return an adapter for the words of an attribute's choices."""

    def adapt(use: NodeUse) -> None:
        if name in use.attrs:
            use.attrs[name] = renamed.get(use.attrs[name], use.attrs[name])

    return adapt


def refuse(name: str, wanted: Any, why: str) -> Adapter:
    """Return an adapter for an attribute that newer opsets lack: only one value has a meaning."""

    def adapt(use: NodeUse) -> None:
        if use.take(name, wanted) != wanted:
            raise use.error(why)

    return adapt


def ignore(name: str) -> Adapter:
    """Return an adapter for an attribute without effect on inference."""

    def adapt(use: NodeUse) -> None:
        use.take(name)

    return adapt


def split_evenly(use: NodeUse) -> None:
    """Split without sizes: into as many parts as there are outputs."""
    if use.input(1) is None:
        use.attrs.setdefault("num_outputs", len(use.outputs))


def flatten_first(use: NodeUse) -> None:
    """Softmax of opsets before 13 works on x flattened to a matrix at `axis`."""
    type = use.type()
    rank = len(type.shape)
    axis = use.take("axis", 1)
    axis = axis + rank if axis < 0 else axis
    if not 0 <= axis <= rank:
        raise use.error(f"axis {axis} is outside rank {rank}")
    if axis < rank and all(dim == 1 for dim in type.shape[axis + 1 :]):
        use.attrs["axis"] = axis
        return
    shape = use.add("shape", use.need(0))
    use.inputs[0] = use.add("flatten", use.need(0), axis=axis)
    use.attrs |= {"axis": -1, "restore": shape}


def old_resize(use: NodeUse) -> None:
    """Resize-10 has (x, scales) and its own coordinates."""
    use.inputs = [use.need(0), None, use.need(1)]
    use.attrs |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def upsample(use: NodeUse) -> None:
    """Upsample is Resize-10 by another name; before opset 9 its scales are an attribute."""
    use.op = "Resize"
    to_input("scales", 1, "float32")(use)
    old_resize(use)
    rename_choice("mode", bilinear="linear")(use)


def scale_per_channel(use: NodeUse) -> None:
    """GroupNormalization-18 has one scale and bias per group; the newest one per channel."""
    groups, channels = use.attrs["num_groups"], use.type().shape[1]
    if not isinstance(channels, int) or channels % groups:
        raise use.error(f"{channels} channels do not split into {groups} groups")
    for position in (1, 2):
        column = use.add("unsqueeze", use.need(position), use.constant([1], "int64"))
        wide = use.add("expand", column, use.constant([groups, channels // groups], "int64"))
        use.inputs[position] = use.add("reshape", wide, use.constant([channels], "int64"))


def dft_axis(use: NodeUse) -> None:
    """DFT-17 works along axis 1 by default; the newest along the last but one."""
    if use.input(2) is None:
        use.set_input(2, use.constant(1, "int64"))


def align(use: NodeUse) -> None:
    """Opset 6 broadcasts b only if `broadcast` is set; b aligns with a at `axis` or at the end."""
    axis = use.take("axis")
    if use.take("broadcast", 0) and axis is not None:
        a, b = len(use.type(0).shape), len(use.type(1).shape)
        if axis + b < a:
            ends = use.constant(range(b, a - axis), "int64")
            use.inputs[1] = use.add("unsqueeze", use.need(1), ends)


def slope_per_channel(use: NodeUse) -> None:
    """PRelu of opset 6 has one slope per channel, or one for all."""
    rank = len(use.type().shape)
    if use.type(1).shape != (1,) and rank > 2:
        ends = use.constant(range(1, rank - 1), "int64")
        use.inputs[1] = use.add("unsqueeze", use.need(1), ends)


_BINARY = ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor")
_AXES = to_input("axes", 1)
_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
ADAPTERS: dict[str, tuple[tuple[int, Adapter], ...]] = {
    **{f"Reduce{name}": ((18, _AXES),) for name in _REDUCTIONS},
    **{name: ((7, align),) for name in _BINARY},
    "BatchNormalization": (
        (7, ignore("is_test")),
        (9, refuse("spatial", 1, "statistics for each element are not supported")),
    ),
    "Clip": ((11, to_typed_input("min", 1)), (11, to_typed_input("max", 2))),
    "DFT": ((20, to_input("axis", 2)), (20, dft_axis)),
    "Gemm": ((7, ignore("broadcast")),),
    "GridSample": (
        (16, default("mode", "linear")),
        (20, rename_choice("mode", bilinear="linear", bicubic="cubic")),
    ),
    "GroupNormalization": ((21, scale_per_channel),),
    "Hardmax": ((13, flatten_first),),
    "LogSoftmax": ((13, flatten_first),),
    "PRelu": ((7, slope_per_channel),),
    "Pad": ((11, to_input("pads", 1)), (11, to_typed_input("value", 2))),
    "ReduceSum": ((13, _AXES),),
    "Resize": ((11, old_resize),),
    "Slice": (
        (10, to_input("starts", 1)),
        (10, to_input("ends", 2)),
        (10, to_input("axes", 3)),
    ),
    "Softmax": ((13, flatten_first),),
    "Split": ((13, to_input("split", 1)), (18, split_evenly)),
    "Squeeze": ((13, _AXES),),
    "TopK": ((10, to_input("k", 1)),),
    "Unsqueeze": ((13, _AXES),),
    "Upsample": ((99, upsample),),
}
"""The changes of each op: (first opset with today's meaning, adapter for older nodes)."""


def adapt(use: NodeUse) -> None:
    """Bring a node of the default domain up to the newest opset."""
    for below, adapter in ADAPTERS.get(use.op, ()):
        if use.version < below:
            adapter(use)
