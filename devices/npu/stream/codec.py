"""Command streams to bytes and back: FlatBuffers of schema/task.fbs.

The generated classes have the same fields in camel case, with enums as numbers. So one pair of
functions translates every command, by the fields' types.
"""

from __future__ import annotations

import struct
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import flatbuffers

from trireme.devices.npu.stream.commands import (
    BINARY_KINDS,
    DTYPES,
    ENGINES,
    FUNCTIONS,
    KINDS,
    POOL_KINDS,
    ROUNDINGS,
    WORKS,
    Command,
    CommandStream,
    NodeInfo,
    Region,
    ValueInfo,
    View,
    Window,
)
from trireme.schema.generated import task_generated as fbs
from trireme.support.errors import DeviceError

VERSION = 1

_ENUMS: dict[tuple[str, str], tuple[str, ...]] = {
    ("Barrier", "engine"): ENGINES,
    ("Matrix", "weights_dtype"): DTYPES,
    ("Matrix", "function"): FUNCTIONS,
    ("Pool", "kind"): POOL_KINDS,
    ("Pool", "function"): FUNCTIONS,
    ("Binary", "kind"): BINARY_KINDS,
    ("Binary", "function"): FUNCTIONS,
    ("Unary", "function"): FUNCTIONS,
    ("Region", "kind"): KINDS,
    **{(work, "rounding"): ROUNDINGS for work in ("Matrix", "Pool", "Binary", "Resize")},
}


def encode(task: CommandStream) -> bytes:
    """Return the stream as FlatBuffers of schema/task.fbs."""
    root = fbs.TaskT(version=VERSION, device=task.device)
    root.regions = [_to_fbs(region) for region in task.regions]
    root.nodes = [_to_fbs(node) for node in task.nodes]
    root.values = [_to_fbs(value) for value in task.values]
    root.commands = [_command_to_fbs(command) for command in task.commands]
    builder = flatbuffers.Builder(256 * (1 + len(task.commands)))
    builder.Finish(root.Pack(builder), file_identifier=b"TRNP")
    return bytes(builder.Output())


def decode(data: bytes) -> CommandStream:
    """Return the stream in a buffer.

    Errors: DeviceError, if the buffer is not a command stream of this version; `verify` finds the
        errors of a well-formed stream
    """
    if len(data) < 12 or data[4:8] != b"TRNP":
        raise DeviceError("not an NPU command stream: the identifier TRNP is missing")
    try:
        root = fbs.Task.GetRootAs(data, 0)
        counts = (root.CommandsLength(), root.RegionsLength(), root.NodesLength())
        if max(*counts, root.ValuesLength()) * 4 > len(data):
            raise ValueError("a list is longer than the stream")
        if root.Version() != VERSION:
            raise ValueError(f"version {root.Version()}, expected {VERSION}")
        made = fbs.TaskT.InitFromObj(root)
        return CommandStream(
            _text(made.device),
            tuple(_from_fbs(Region, region) for region in made.regions or ()),
            tuple(_from_fbs(NodeInfo, node) for node in made.nodes or ()),
            tuple(_from_fbs(ValueInfo, value) for value in made.values or ()),
            tuple(_command_from_fbs(command) for command in made.commands or ()),
        )
    except (
        ValueError,
        TypeError,
        IndexError,
        AttributeError,
        struct.error,
        OverflowError,
    ) as error:
        raise DeviceError(f"a damaged NPU command stream: {error}") from error


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


def _text(value: Any) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _to_fbs(value: Any) -> Any:
    kind = type(value).__name__
    if isinstance(value, View):
        n, h, w, c = value.shape
        sn, sh, sw, sc = value.strides
        return fbs.ViewT(
            value.offset, value.region, DTYPES.index(value.dtype), n, h, w, c, sn, sh, sw, sc
        )
    made = getattr(fbs, f"{kind}T")()
    for entry in fields(value):
        item = getattr(value, entry.name)
        if (kind, entry.name) in _ENUMS:
            item = _ENUMS[kind, entry.name].index(item)
        elif is_dataclass(item):
            item = _to_fbs(item)
        setattr(made, _camel(entry.name), item)
    return made


def _command_to_fbs(command: Command) -> Any:
    kind = type(command.work)
    return fbs.CommandT(
        workType=WORKS.index(kind) + 1, work=_to_fbs(command.work), node=command.node
    )


_HINTS = {cls: get_type_hints(cls) for cls in (*WORKS, Window, Region, NodeInfo, ValueInfo)}


def _from_fbs(cls: type, made: Any) -> Any:
    if cls is View:
        shape, strides = (
            (made.n, made.h, made.w, made.c),
            (made.strideN, made.strideH, made.strideW, made.strideC),
        )
        return View(made.region, made.offset, DTYPES[made.dtype], shape, strides)
    values = {}
    for name, hint in _HINTS[cls].items():
        item = getattr(made, _camel(name))
        if (cls.__name__, name) in _ENUMS:
            item = _ENUMS[cls.__name__, name][item]
        elif hint is View or (hint == View | None and item is not None):
            item = _from_fbs(View, item)
        elif hint is Window:
            item = _from_fbs(Window, item)
        elif hint is str:
            item = _text(item)
        elif hint is bool:
            item = bool(item)
        values[name] = item
    return cls(**values)


def _command_from_fbs(made: Any) -> Command:
    if not 1 <= made.workType <= len(WORKS):
        raise ValueError(f"unknown command {made.workType}")
    return Command(_from_fbs(WORKS[made.workType - 1], made.work), made.node)
