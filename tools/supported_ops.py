"""Which device has a kernel for which op: asked of the devices themselves, never written by hand.

Every sample of every op in the registry is shown to each device; what it refuses, it refuses with
the sentence that users see. SUPPORTED_OPS.md is this table; a test keeps it current.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from trireme.backend.device import Device
from trireme.backend.registry import device_names, kind_named, open_device
from trireme.ir.builder import graph_of_sample
from trireme.ir.graph import Graph
from trireme.ir.op import OpDef, Sample, all_ops
from trireme.support.errors import DeviceError, TriremeError
from trireme.tools.supported_formats import format_sections

_HEADER = """# Supported ops

Which device has a kernel for which op, by the dtype of the first input: `reference` runs on the
numpy reference inside the cpu device (every profile and `explain` say so), `-` is refused with a
sentence. int8 and uint8 are quantised types. The cpu runs some ops of float16 on the kernel of
float32, between conversions (docs/explanation/cpu-kernels.md). Printed by `trireme supported-ops`;
a test keeps it current. Control flow and effects run on the `host` device
(docs/explanation/execution.md).
"""


@dataclass(frozen=True)
class OpRow:
    """One op: its formula, and per device the dtypes with a kernel, or the reason for none."""

    op: str
    doc: str
    kernels: Mapping[str, str]


@dataclass(frozen=True)
class SupportTable:
    """The whole table; `absent` names devices that could not be opened.

    demands: the sentences with which a device refuses nodes, by device
    """

    rows: tuple[OpRow, ...]
    absent: Mapping[str, str]
    demands: Mapping[str, Sequence[str]]

    def to_json(self) -> dict[str, Any]:
        """Return the table as plain data."""
        return {
            "ops": [vars(row) for row in self.rows],
            "absent": dict(self.absent),
            "demands": {name: list(said) for name, said in self.demands.items()},
        }


class KernelLine(NamedTuple):
    """An op on a device in a layout: the first stage of dispatch, and the forms of the second."""

    device: str
    op: str
    layout: str
    forms: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.device:7} {self.op:24} {self.layout:5} {', '.join(self.forms)}"


def kernel_lines() -> list[KernelLine]:
    """Return the tables in which the devices that can be opened here find their kernels."""
    stages: dict[tuple[str, str, str], list[str]] = {}
    with _with_kernels() as (opened, _):
        for name, table in ((n, d.kernel_table) for n, d in opened.items()):
            for entry in () if table is None else table.entries():
                stages.setdefault((name, entry.op, entry.layout), []).append(str(entry.form))
    return [KernelLine(*key, tuple(forms)) for key, forms in sorted(stages.items())]


@contextmanager
def _with_kernels() -> Iterator[tuple[dict[str, Device], dict[str, str]]]:
    """Give the devices with a table of kernels, and why others could not be opened."""
    opened: dict[str, Device] = {}
    absent: dict[str, str] = {}
    with ExitStack() as closing:
        for name in device_names():
            try:
                device = open_device(name)
            except DeviceError as error:
                absent[name] = error.summary
                continue
            closing.callback(device.close)
            if device.kernel_table is not None:
                opened[name] = device
        yield opened, absent


def sample_graph(op: OpDef, sample: Sample, half: bool = False) -> Graph:
    """Return the graph of one node that a sample describes, its float32 made float16 by `half`."""
    if half:
        with np.errstate(over="ignore"):
            halved = (
                a.astype(np.float16) if a is not None and a.dtype == np.float32 else a
                for a in sample.inputs
            )
            sample = replace(sample, inputs=tuple(halved))
    return graph_of_sample(op, sample, max(len(sample.out_quants), op.out_arity[0], 1))


def support_table() -> SupportTable:
    """Return the table of the devices that can be opened here."""
    with _with_kernels() as (opened, absent):
        rows = tuple(_row(op, opened) for op in all_ops() if op.name != "copy")
        demands = {name: kind_named(name).demands() for name in opened}
    return SupportTable(rows, absent, {name: said for name, said in demands.items() if said})


def _row(op: OpDef, devices: Mapping[str, Device]) -> OpRow:
    graphs = []
    for sample in op.samples(np.random.default_rng(0)):
        for half in (False, True):
            try:
                graphs.append(sample_graph(op, sample, half))
            except TriremeError:
                continue
    return OpRow(op.name, op.doc, {name: _cell(d, graphs) for name, d in devices.items()})


def _cell(device: Device, graphs: list[Graph]) -> str:
    """Return the dtypes of the samples that run on a kernel, or "reference", or "-"."""
    native: dict[str, None] = {}
    reference = False
    for graph in graphs:
        node = graph.nodes[0]
        if device.unsupported_reason(graph, node) is not None:
            continue
        if device.kernel_note(graph, node):
            reference = True
            continue
        native[graph.type((*node.used, *node.outputs)[0]).dtype] = None
    if native:
        return ", ".join(sorted(native))
    return "reference" if reference else "-"


def table_text(table: SupportTable) -> str:
    """Return the table in Markdown."""
    names = list(table.rows[0].kernels)
    lines = [
        _HEADER,
        f"| op | {' | '.join(names)} | meaning |",
        f"|---|{'---|' * len(names)}---|",
    ]
    for row in table.rows:
        cells = " | ".join(row.kernels[name] for name in names)
        doc = " ".join(row.doc.split()).replace("|", "\\|")
        lines.append(f"| {row.op} | {cells} | {doc} |")
    for name, said in table.demands.items():
        lines += ["", f"## What {name} asks of a node", ""]
        lines += [f"* {sentence}" for sentence in said]
    lines += format_sections()
    lines += [f"\n{name} could not be opened: {why}" for name, why in table.absent.items()]
    return "\n".join(lines)
