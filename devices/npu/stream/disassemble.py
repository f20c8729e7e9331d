"""Print a command stream: for people, and for tests that show the effect of a change."""

from __future__ import annotations

from dataclasses import fields

from trireme.devices.npu.stream.codec import decode
from trireme.devices.npu.stream.commands import (
    ENGINE_OF,
    FUNCTIONS,
    SRAM,
    Barrier,
    View,
    Window,
    Work,
)


def disassemble(stream: bytes) -> str:
    """Return a stream as text, one command a line, grouped by node.

    Errors: DeviceError, if the bytes are not a command stream
    """
    task = decode(stream)
    lines = [f"task for {task.device}: {len(task.commands)} commands"]
    for index, region in enumerate(task.regions):
        lines.append(f"  region {index} {region.kind}: {region.nbytes} bytes")
    node = -1
    for index, command in enumerate(task.commands):
        if command.node != node:
            node = command.node
            label = task.nodes[node].label if node < len(task.nodes) else "?"
            lines.append(f"{label}:")
        lines.append(f"  {index:5} {_text(command.work)}")
    return "\n".join(lines)


def _text(work: Work) -> str:
    if isinstance(work, Barrier):
        waits = ", ".join(f"{e} >= {n}" for e, n in _waits(work) if n)
        return f"barrier  {work.engine} waits for {waits}"
    words = [f"{ENGINE_OF[type(work)]:8} {type(work).__name__.lower()}"]
    for entry in fields(work):
        value = getattr(work, entry.name)
        if value is None or value is False or value in (0, "none", FUNCTIONS[0]):
            continue
        words.append(f"{entry.name}={_value(entry.name, value)}")
    return " ".join(words)


def _waits(work: Barrier) -> list[tuple[str, int]]:
    return [("dma", work.dma), ("matrix", work.matrix), ("vector", work.vector)]


def _value(name: str, value: object) -> str:
    if isinstance(value, View) and value.region == SRAM:
        shape = "x".join(map(str, value.shape))
        return f"[{value.offset:#x} {value.dtype} {shape}]"
    if isinstance(value, View):
        return f"[{value}]"
    if isinstance(value, Window):
        return (
            f"{value.kernel_h}x{value.kernel_w}/{value.stride_h},{value.stride_w}"
            f" d{value.dilation_h},{value.dilation_w} p{value.pad_top},{value.pad_left}"
        )
    return f"{value:#x}" if name in ("weights", "scales", "table", "accumulators") else f"{value}"
