"""Turn a placement into tasks and memory: what runs when, what it waits for, where values live.

A task is one copy, or all nodes of one device at one level. It waits for the data it reads, for
every earlier task that touches bytes it writes, and for effects; any order that respects the waits
gives the same result, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trireme.device import HOST, DeviceSpec
from trireme.errors import PlanError
from trireme.graph import Graph, Node
from trireme.memory import LiveRange, Packing, pack
from trireme.placement import Placement, crosses


@dataclass(frozen=True)
class Task:
    """One launch. `device` runs it; for a copy it is "from>to". `waits` are earlier task indices.

    inputs / outputs: value ids read and made for others, constants and internals left out
    estimate_s: predicted seconds, launch included
    """

    index: int
    device: str
    level: int
    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    estimate_s: float
    waits: tuple[int, ...] = ()

    @property
    def is_copy(self) -> bool:
        """Whether the task is one copy between memory spaces."""
        return self.nodes[0].op == "copy"


@dataclass(frozen=True)
class Slot:
    """Where a value lives: a memory space, an offset and a size in bytes."""

    memory: str
    offset: int
    nbytes: int

    def overlaps(self, other: Slot) -> bool:
        """Whether the two share a byte."""
        return (
            self.memory == other.memory
            and self.offset < other.offset + other.nbytes
            and other.offset < self.offset + self.nbytes
        )


@dataclass(frozen=True)
class Plan:
    """Tasks in an order in which they can run, a slot for every value, an arena a memory space."""

    placement: Placement
    tasks: tuple[Task, ...]
    slots: Mapping[int, Slot]
    arenas: Mapping[str, Packing]

    @property
    def graph(self) -> Graph:
        """The placed graph, copies included."""
        return self.placement.graph

    def __str__(self) -> str:
        lines = [f"plan of {self.graph.name!r}: {len(self.tasks)} tasks"]
        for task in self.tasks:
            what = f"copy {self.graph.values[task.inputs[0]].name}" if task.is_copy else (
                f"{len(task.nodes)} nodes: {_ops_text(task.nodes)}"
            )  # fmt: skip
            waits = ",".join(map(str, task.waits)) or "-"
            lines.append(f"  {task.index:3} {task.device:12} waits {waits:8} {what}")
        for memory, packing in self.arenas.items():
            lines.append(
                f"  arena {memory}: {packing.nbytes} bytes, lower bound {packing.lower_bound}"
            )
        return "\n".join(lines)


def _ops_text(nodes: Sequence[Node]) -> str:
    counts: dict[str, int] = {}
    for node in nodes:
        counts[node.op] = counts.get(node.op, 0) + 1
    return ", ".join(f"{op} x{n}" if n > 1 else op for op, n in counts.items())


def make_plan(placement: Placement) -> Plan:
    """Return the plan of a placement.

    Errors: PlanError, if a device's memory is too small for its arena
    """
    tasks = _make_tasks(placement)
    arenas, slots = _pack(placement, tasks)
    return Plan(placement, _with_waits(tasks, slots), slots, arenas)


def _make_tasks(placement: Placement) -> list[Task]:
    groups = _group(placement)
    graph = placement.graph
    task_of = {node.id: index for index, group in enumerate(groups) for node in group[2]}
    outputs = set(graph.outputs)
    tasks = []
    for index, (device, level, nodes) in enumerate(groups):
        made = {out: None for node in nodes for out in node.outputs}
        read = {
            value: None
            for node in nodes
            for value in node.used
            if value not in made and not graph.values[value].is_constant
        }
        leaving = tuple(
            value
            for value in made
            if value in outputs or any(task_of[u.id] != index for u in graph.users(value))
        )
        tasks.append(
            Task(
                index, device, level, tuple(nodes), tuple(read), leaving,
                _estimate(placement, device, nodes),
            )
        )  # fmt: skip
    return [replace(task, waits=_effect_waits(task, task_of)) for task in tasks]


def _estimate(placement: Placement, device: str, nodes: Sequence[Node]) -> float:
    if nodes[0].op == "copy":
        source, target = device.split(">")
        nbytes = placement.graph.type(nodes[0].outputs[0]).nbytes
        return placement.links.seconds(nbytes, source, target)
    own = sum(placement.choices[node.id].estimates[device].seconds for node in nodes)
    return placement.launch_s[device] + own


def _effect_waits(task: Task, task_of: Mapping[int, int]) -> tuple[int, ...]:
    others = {task_of[other] for node in task.nodes for other in node.after}
    return tuple(sorted(others - {task.index}))


def _group(placement: Placement) -> list[tuple[str, int, list[Node]]]:
    """Group nodes into tasks: by device and level, each copy by itself, as early as it can start.

    An edge between two groups always raises the level, so there is no cycle whatever the graph.
    """
    levels = node_levels(placement)
    groups: dict[tuple[int, str], list[Node]] = {}
    copies: dict[int | None, list[Node]] = {}
    graph = placement.graph
    for node in graph.nodes:
        if node.op == "copy":
            producer = graph.producer(node.used[0])
            copies.setdefault(producer.id if producer else None, []).append(node)
        else:
            groups.setdefault((levels[node.id], placement.device_of[node.id]), []).append(node)

    def after(node: Node | None, level: int) -> list[tuple[str, int, list[Node]]]:
        mine = copies.get(node.id if node else None, ())
        return [(placement.device_of[copy.id], level, [copy]) for copy in mine]

    ordered = after(None, 0)
    for (level, device), nodes in sorted(groups.items(), key=lambda group: group[0][0]):
        ordered.append((device, level, nodes))
        ordered += [copy for node in nodes for copy in after(node, level)]
    return ordered


def node_levels(placement: Placement) -> dict[int, int]:
    """Return the level of each node that is not a copy: the most device changes on a path to it."""
    graph, specs = placement.graph, placement.specs
    levels: dict[int, int] = {}
    device_of = placement.device_of
    for node in graph.nodes:
        if node.op == "copy":
            continue
        level, device = 0, device_of[node.id]
        for value in node.used:
            if graph.values[value].is_constant:
                continue
            maker = graph.producer(value)
            if maker is not None and maker.op == "copy":
                maker = graph.producer(maker.used[0])
            source = device_of[maker.id] if maker else None
            above = levels[maker.id] if maker else 0
            level = max(level, above + crosses(specs, source, device))
        for other in node.after:
            level = max(level, levels[other] + (device_of[other] != device))
        levels[node.id] = level
    return levels


def _pack(
    placement: Placement, tasks: Sequence[Task]
) -> tuple[dict[str, Packing], dict[int, Slot]]:
    graph, memory_of = placement.graph, placement.memory_of
    first = dict.fromkeys(graph.inputs, 0)
    last = dict(first)
    for task in tasks:
        first.update(dict.fromkeys(task.outputs, task.index))
        last.update(dict.fromkeys((*task.inputs, *task.outputs), task.index))
    last.update((value, len(tasks)) for value in graph.outputs if value in first)
    arenas: dict[str, Packing] = {}
    slots: dict[int, Slot] = {}
    for memory in dict.fromkeys([HOST, *(spec.memory for spec in placement.specs.values())]):
        mine = [v for v in first if memory_of[v] == memory]
        ranges = [LiveRange(v, first[v], last[v], graph.type(v).nbytes) for v in mine]
        specs = [spec for spec in placement.specs.values() if spec.memory == memory]
        packing = pack(ranges, max((spec.alignment for spec in specs), default=64))
        _check_fits(specs, packing)
        arenas[memory] = packing
        for v in mine:
            slots[v] = Slot(memory, packing.offsets[v], graph.type(v).nbytes)
    return arenas, slots


def _check_fits(specs: Sequence[DeviceSpec], packing: Packing) -> None:
    for spec in specs:
        if spec.memory_bytes and packing.nbytes > spec.memory_bytes:
            raise PlanError(
                f"{spec.name}: the arena takes {packing.nbytes} bytes, "
                f"its memory has {spec.memory_bytes}",
                facts=[f"no order of packing takes less than {packing.lower_bound} bytes"],
            )


def _with_waits(tasks: Sequence[Task], slots: Mapping[int, Slot]) -> tuple[Task, ...]:
    """Add the waits for data and for bytes: every earlier task that touches what a task writes."""
    done: list[Task] = []
    touched: list[tuple[int, Slot]] = []
    maker: dict[int, int] = {}
    for task in tasks:
        waits = set(task.waits)
        waits.update(maker[value] for value in task.inputs if value in maker)
        for value in task.outputs:
            mine = slots[value]
            waits.update(index for index, slot in touched if mine.overlaps(slot))
        done.append(replace(task, waits=tuple(sorted(waits))))
        maker.update(dict.fromkeys(task.outputs, task.index))
        touched += [(task.index, slots[v]) for v in (*task.inputs, *task.outputs) if v in slots]
    return tuple(done)
