"""Large batches a part at a time: what flows between nodes stays in cache.

A batch of images runs layer by layer through memory that no cache holds. A layer of few operations
a byte then takes up to four times as long for each image as alone. So stretches of nodes that treat
the items of a batch alike are compiled for a part of the batch. Their steps run for one part after
the other. Inside a stretch values are as large as a part, and all parts use the same memory. Inputs
and outputs of the stretch are whole, and read and written in place.

Small values stay whole: weights are then read once for all items, and tiles have rows enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.compile.fusion import Group
from trireme.devices.cpu.compile.region import RegionProgram
from trireme.devices.cpu.kernels.lowering import At, Operand, Step, Temp
from trireme.ir.effects import uses_state
from trireme.ir.graph import Graph, Node, TensorType, Value
from trireme.placement.shards.rules import Piece, Span, piece, type_of
from trireme.support.errors import PlacementError
from trireme.support.records import dataclass

WHOLE = 4
"""A node may read and write so many times `room_bytes` before it is cut."""
MOST_PARTS = 64


@dataclass(frozen=True)
class BatchTile:
    """Groups of nodes that are done part by part.

    graph: the nodes for one part, under the ids that they and their values have in the whole graph
    parts: how often it is done
    """

    groups: tuple[Group, ...]
    graph: Graph
    parts: int


def room_bytes(isa: Isa) -> int:
    """Return the bytes of a part that a node reads and writes: those of the L2 cache.

    One thread's cache counts, so that kernels do not depend on the number of threads.
    """
    return isa.l2_bytes


def cut(graph: Graph, groups: Sequence[Group], isa: Isa) -> Iterator[Group | BatchTile]:
    """Yield the groups of a graph in order, those that are done part by part in stretches."""
    items = graph.type(graph.inputs[0]).dims[:1] if graph.inputs else ()
    if not items or items[0] < 2:
        yield from groups
        return
    waiting: list[Group] = []
    part = items[0]
    for group in groups:
        wanted = _part(graph, group, items[0], isa)
        if wanted < items[0]:
            waiting.append(group)
            part = min(part, wanted)
            continue
        yield from _stretch(graph, waiting, items[0], part)
        waiting, part = [], items[0]
        yield group
    yield from _stretch(graph, waiting, items[0], part)


def _stretch(
    graph: Graph, groups: list[Group], items: int, part: int
) -> Iterator[Group | BatchTile]:
    """Yield groups as one stretch; one group alone as it is."""
    if len(groups) < 2:
        yield from groups
    else:
        yield BatchTile(tuple(groups), _part_graph(graph, groups, part), items // part)


def _part(graph: Graph, group: Group, items: int, isa: Isa) -> int:
    """Return the items of the batch that a group is best done for at a time."""
    if not group.native or any(_piece(graph, node, items) is None for node in group.nodes):
        return items
    made = {value for node in group.nodes for value in node.outputs}
    read = {value for node in group.nodes for value in node.used} - made
    flowing = sum(
        graph.type(value).nbytes
        for value in (*read, *group.node.outputs)
        if not graph.values[value].is_constant
    )
    weights = sum(graph.type(value).nbytes for value in read if graph.values[value].is_constant)
    if flowing <= WHOLE * room_bytes(isa):
        return items
    # weights are read again for each part, so a part is to have as many bytes as they
    most = max(room_bytes(isa), weights) * items // flowing
    sizes = [items // parts for parts in range(MOST_PARTS, 1, -1) if items % parts == 0]
    return max([n for n in sizes if n <= most] or sizes[:1] or [items])


def _piece(graph: Graph, node: Node, items: int) -> Piece | None:
    """Return what one item of a node's outputs needs; None if it is not that item of its inputs."""
    if (
        node.after
        or uses_state(node)
        or any(graph.type(value).dims[:1] != (items,) for value in node.outputs)
    ):
        return None
    try:
        found = piece(graph, node, Span(0, 0, 1))
    except PlacementError:
        return None
    for value, need in zip(node.inputs, found.inputs, strict=True):
        if value is None or isinstance(need, np.ndarray):
            continue
        if graph.values[value].is_constant != (need is None) or need not in (None, Span(0, 0, 1)):
            return None
    return None if found.changed else found


def _part_graph(graph: Graph, groups: Sequence[Group], part: int) -> Graph:
    """Return the nodes of some groups for a part of the batch."""
    inside = {node.id for group in groups for node in group.nodes}
    values: dict[int, Value] = {}
    nodes = []
    fresh = max(graph.values) + 1
    for node in (node for node in graph.nodes if node.id in inside):
        found = piece(graph, node, Span(0, 0, part))
        inputs = list(node.inputs)
        for place, (value, need) in enumerate(zip(node.inputs, found.inputs, strict=True)):
            if isinstance(need, np.ndarray):
                type = TensorType(need.shape, str(need.dtype))
                values[fresh] = Value(fresh, f"shape {fresh}", type, need)
                inputs[place], fresh = fresh, fresh + 1
            elif value is not None:
                old = graph.values[value]
                values[value] = old if need is None else _shortened(old, part)
        values |= {value: _shortened(graph.values[value], part) for value in node.outputs}
        nodes.append(replace(node, inputs=tuple(inputs)))
    made = {value for node in nodes for value in node.outputs}
    entering = [v for v in values if v not in made and not values[v].is_constant]
    leaving = [
        v
        for v in made
        if graph.is_output(v) or any(user.id not in inside for user in graph.users(v))
    ]
    return replace(
        graph,
        inputs=tuple(entering),
        outputs=tuple(sorted(leaving)),
        nodes=tuple(nodes),
        values=values,
    )


def repeated(program: RegionProgram, parts: int) -> list[Step]:
    """Return the steps of a part of the batch for each part, on the memory of the whole batch."""
    graph, buffer_aliases, offsets = program.graph, program.buffer_aliases, program.offsets
    whole = {*graph.inputs, *graph.outputs}
    memory = Temp(f"parts from %{graph.nodes[0].outputs[0]}", program.scratch_bytes)

    def beginning(operand: int | Temp, part: int) -> At:
        if isinstance(operand, int) and buffer_aliases[operand] in whole:
            return At(buffer_aliases[operand], part * graph.type(buffer_aliases[operand]).nbytes)
        key = buffer_aliases[operand] if isinstance(operand, int) else operand.key
        return At(memory, offsets[key])

    def place(operand: Operand, part: int) -> Operand:
        if isinstance(operand, int) and graph.values[operand].is_constant:
            return operand
        if isinstance(operand, At):
            at = beginning(operand.of, part)
            return At(at.of, at.offset + operand.offset)
        return beginning(operand, part) if isinstance(operand, int | Temp) else operand

    return [
        replace(
            item,
            reads=tuple(place(operand, part) for operand in item.reads),
            writes=tuple(place(operand, part) for operand in item.writes),
        )
        for part in range(parts)
        for item in program.steps
    ]


def _shortened(value: Value, part: int) -> Value:
    return replace(value, type=type_of(value.type, Span(0, 0, part)))
