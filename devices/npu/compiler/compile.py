"""Turn a graph into a command stream: lower, arrange, emit, encode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from trireme.backend.kernel_table import ANY, KernelTable
from trireme.devices.npu.compiler.emit import Emitter
from trireme.devices.npu.compiler.jobs import PackedConstants, Site
from trireme.devices.npu.compiler.lower import Lower, NpuLowering, lower_graph
from trireme.devices.npu.compiler.lower_maps import MAP_OPS
from trireme.devices.npu.compiler.lower_matrix import MATRIX_OPS
from trireme.devices.npu.compiler.lower_moves import MOVE_OPS
from trireme.devices.npu.compiler.lower_pools import POOL_OPS
from trireme.devices.npu.compiler.residency import Residency, arrange
from trireme.devices.npu.spec import NpuSpec
from trireme.devices.npu.stream.commands import (
    ARGUMENTS,
    Command,
    CommandStream,
    NodeInfo,
    Region,
    ValueInfo,
    View,
    dense,
)
from trireme.ir.graph import Graph
from trireme.ir.op import get_op
from trireme.support.errors import CompileError, GraphError


def has_window(op: str) -> bool:
    """Whether an op slides a window over an image, whose channels are last here."""
    return "strides" in get_op(op).attrs


def _filled() -> KernelTable[Lower]:
    table: KernelTable[Lower] = KernelTable("npu")
    for ops, lower, forms in (*MATRIX_OPS, *POOL_OPS, *MAP_OPS, *MOVE_OPS):
        for op in ops:
            table.add(op, lower, forms, "NHWC" if has_window(op) else ANY)
    return table


TABLE = _filled()
"""The function that lowers each op, by the form of its data; a machine may lack some dtypes."""
WINDOWS = tuple(filter(has_window, TABLE.ops()))


@dataclass(frozen=True)
class Compiled:
    """A task and the constants of its stream, which `constants.build()` makes.

    sram_bytes: of each node, the most SRAM in use while it runs, by live intermediates and its
        tiles; 0 for a node without commands
    """

    task: CommandStream
    constants: PackedConstants
    scratch_bytes: int
    sram_bytes: tuple[int, ...]


def compile_graph(spec: NpuSpec, graph: Graph, *, arguments_inside: bool = False) -> Compiled:
    """Return the command stream of a graph.

    arguments_inside: treat inputs and outputs as intermediates. The stream then has the cost of a
        node inside a region, for estimates, and cannot run.
    Errors: CompileError, if a node cannot be lowered or does not fit SRAM
    """
    constants = PackedConstants(spec.alignment)
    try:
        state = lower_graph(graph, spec, constants, TABLE)
    except GraphError as error:
        raise CompileError(error.summary, facts=error.facts) from error
    arguments = _arguments(graph, state)
    places = dict(state.places) if arguments_inside else {**state.places, **arguments}
    site = Site(spec, constants, places)
    residency = arrange(site, state.jobs, state.stored)
    site = replace(site, places=residency.places)
    out, sram_bytes = _emit(state, site, residency, len(graph.nodes))
    regions = (
        Region("sram", out.peak_bytes),
        Region("constants", constants.nbytes),
        Region("scratch", residency.scratch_bytes),
        *(Region("argument", graph.type(value).nbytes) for value in _argument_ids(graph)),
    )
    task = CommandStream(
        spec.name,
        regions,
        tuple(NodeInfo(n.id, n.label) for n in graph.nodes),
        _values(graph, state, residency.places),
        tuple(out.commands),
    )
    return Compiled(task, constants, residency.scratch_bytes, sram_bytes)


def _argument_ids(graph: Graph) -> tuple[int, ...]:
    return (*graph.inputs, *graph.outputs)


def _arguments(graph: Graph, state: NpuLowering) -> dict[int, View]:
    """Return the places of the graph's inputs and outputs, in their own element types."""
    made = {}
    for index, value in enumerate(_argument_ids(graph)):
        type = graph.type(value)
        made[value] = dense(ARGUMENTS + index, 0, type.dtype, (1, 1, 1, type.elements))
    for out in graph.outputs:
        if graph.producer(out) is None:
            raise CompileError(f"output %{out} is not made by a node of the region")
    return made


def _emit(
    state: NpuLowering, site: Site, residency: Residency, nodes: int
) -> tuple[Emitter, tuple[int, ...]]:
    """Return the commands of all jobs, and the most SRAM in use by node."""
    out, in_use = Emitter(), [0] * nodes
    read = {value for job in state.jobs for value in job.reads}
    rows = zip(state.jobs, residency.workspaces, residency.live_bytes, strict=True)
    for job, (start, end), live_bytes in rows:
        out.node = job.node
        out.open_workspace(start, end)
        low, high = out.mark()
        job.emit(out, site, high - low)
        in_use[job.node] = max(in_use[job.node], live_bytes + out.tile_bytes)
        if job.writes not in read:
            out.flush()  # no command waits for the last store, but traces read the value
    out.flush()
    return out, tuple(in_use)


def _values(graph: Graph, state: NpuLowering, places: Mapping[int, View]) -> tuple[ValueInfo, ...]:
    """Return the place of every value that a node makes, for traces."""
    maker = {value: index for index, node in enumerate(graph.nodes) for value in node.outputs}
    made = []
    for value, index in maker.items():
        origin = state.alias.get(value, value)
        place = places.get(origin)
        if place is not None:
            made.append(ValueInfo(value, maker.get(origin, index), place))
    return tuple(made)


def node_kernels(graph: Graph, commands: tuple[Command, ...]) -> dict[int, str]:
    """Return a summary of each node's commands, by node id: "npu matrix x4, dma x6"."""
    counts: list[dict[str, int]] = [{} for _ in graph.nodes]
    for command in commands:
        kind = type(command.work).__name__.lower()
        if kind != "barrier":
            counts[command.node][kind] = counts[command.node].get(kind, 0) + 1
    return {
        node.id: "npu " + (", ".join(f"{kind} x{n}" for kind, n in own.items()) or "alias")
        for node, own in zip(graph.nodes, counts, strict=True)
    }
