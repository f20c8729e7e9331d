"""Turn a placement into a plan: tasks in order, their waits, and the memory of their values.

A task is one copy, or the nodes of one task of the placement. A task waits for the data that it
reads, for every earlier task that touches bytes it writes, and for effects. Any order that respects
the waits gives the same result, bit for bit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from itertools import accumulate

from trireme.backend.arena import LiveRange, MemoryUse, Packing, pack
from trireme.backend.device import HOST
from trireme.backend.links import link_ends
from trireme.ir.graph import Graph, Node
from trireme.placement.placement import Placement
from trireme.placement.virtual_time import hidden_launch_s, timeline
from trireme.plan.memory import beside_arena, check_fits
from trireme.plan.subgraphs import Execution, Subgraphs, TaskGroup, group_nodes
from trireme.support.records import dataclass
from trireme.support.units import bytes_text


@dataclass(frozen=True)
class Task:
    """One launch. `device` runs it; for a copy it is "from>to". `waits` are earlier task indices.

    resource: the device's silicon, or the link, that the task occupies in virtual time
    effects: the part of `waits` that keeps the order of effects
    inputs / outputs: value ids read and made for others, constants and internals left out
    estimate_s: predicted seconds, launch included
    subgraph: the number of the region that the task runs, belongs to, or copies for
    """

    index: int
    device: str
    resource: str
    level: int
    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    estimate_s: float
    waits: tuple[int, ...] = ()
    effects: tuple[int, ...] = ()
    subgraph: int = 0

    @property
    def is_copy(self) -> bool:
        """Whether the task is one copy between memory spaces."""
        return self.nodes[0].op == "copy"


@dataclass(frozen=True)
class Slot:
    """The place of a value: a memory space, an offset and a size in bytes."""

    memory: str
    offset: int
    nbytes: int

    def overlaps(self, other: Slot) -> bool:
        """Whether the two slots share a byte."""
        return (
            self.memory == other.memory
            and self.offset < other.offset + other.nbytes
            and other.offset < self.offset + self.nbytes
        )


@dataclass(frozen=True)
class Plan:
    """Tasks in an order in which they can run, a slot for every value, an arena a memory space.

    memory: predicted need of each memory space
    bodies: the plan of one turn of each body of control flow, by body
    """

    placement: Placement
    tasks: tuple[Task, ...]
    slots: Mapping[int, Slot]
    arenas: Mapping[str, Packing]
    memory: Mapping[str, MemoryUse] = field(default_factory=dict)
    bodies: Mapping[Graph, Plan] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        """The placed graph, copies included."""
        return self.placement.graph

    def __str__(self) -> str:
        lines = [f"plan of {self.graph.name!r}: {len(self.tasks)} tasks"]
        for task in self.tasks:
            what = (
                f"copy {self.graph.values[task.inputs[0]].first_name}"
                if task.is_copy
                else (f"{len(task.nodes)} nodes: {_ops_text(task.nodes)}")
            )
            waits = ",".join(map(str, task.waits)) or "-"
            lines.append(f"  {task.index:3} {task.device:12} waits {waits:8} {what}")
        for memory, packing in self.arenas.items():
            lines.append(
                f"  arena {memory}: {bytes_text(packing.nbytes)}, "
                f"lower bound {bytes_text(packing.lower_bound)}"
            )
        return "\n".join(lines)


def _ops_text(nodes: Sequence[Node]) -> str:
    counts: dict[str, int] = {}
    for node in nodes:
        counts[node.op] = counts.get(node.op, 0) + 1
    return ", ".join(f"{op} x{n}" if n > 1 else op for op, n in counts.items())


def make_plan(
    placement: Placement, subgraphs: Subgraphs = "merged", execution: Execution = "sunk"
) -> Plan:
    """Return the plan of a placement; the module `subgraphs` explains the two options.

    Errors: PlanError, if a device's memory is too small for arena, scratch, weights and code
    """
    tasks = _make_tasks(placement, group_nodes(placement, subgraphs, execution))
    arenas, slots, memory = _pack(placement, tasks, overlaps=subgraphs == "merged")
    safe = _with_byte_waits(tasks, slots)
    ordered = _serialise_subgraphs(safe) if subgraphs == "split" else safe
    bodies = {b: make_plan(one, subgraphs, execution) for b, one in placement.bodies.items()}
    return Plan(placement, ordered, slots, arenas, memory, bodies)


def _make_tasks(placement: Placement, groups: Sequence[TaskGroup]) -> list[Task]:
    graph = placement.graph
    task_of = {node.id: index for index, group in enumerate(groups) for node in group.nodes}
    maker = {v: index for index, g in enumerate(groups) for node in g.nodes for v in node.outputs}
    outputs = set(graph.outputs)
    tasks = []
    for index, group in enumerate(groups):
        made = {out: None for node in group.nodes for out in node.outputs}
        read = {
            value: None
            for node in group.nodes
            for value in node.used
            if value not in made and not graph.values[value].is_constant
        }
        leaving = tuple(
            value
            for value in made
            if value in outputs or any(task_of[u.id] != index for u in graph.users(value))
        )
        others = {task_of[other] for node in group.nodes for other in node.after} - {index}
        spec = placement.specs.get(group.device)
        tasks.append(
            Task(
                index=index,
                device=group.device,
                resource=spec.resource if spec else group.device,
                level=group.level,
                nodes=group.nodes,
                inputs=tuple(read),
                outputs=leaving,
                estimate_s=_estimate(placement, group.device, group.nodes),
                waits=tuple(sorted(others.union(maker[value] for value in read if value in maker))),
                effects=tuple(sorted(others)),
                subgraph=group.subgraph,
            )
        )
    return _with_hidden_launches(placement, tasks)


def _estimate(placement: Placement, device: str, nodes: Sequence[Node]) -> float:
    if nodes[0].op == "copy":
        source, target = link_ends(device)
        nbytes = placement.graph.type(nodes[0].outputs[0]).nbytes
        return placement.links.seconds(nbytes, source, target)
    own = sum(placement.choices[node.id].estimates[device].seconds for node in nodes)
    own += sum(placement.streamed_s.get(node.id, 0.0) for node in nodes)
    return placement.launch_s[device] + own


def _with_hidden_launches(placement: Placement, tasks: Sequence[Task]) -> list[Task]:
    """Take the launch off the estimate of each task that waits for tasks of its own device alone.

    This applies to devices that start their tasks by themselves: a rule of `virtual_time`.
    """
    given = set(placement.graph.inputs)
    done = []
    for task in tasks:
        issue_s = placement.issue_s.get(task.device)
        before = {tasks[other].device for other in task.waits}
        if issue_s is not None and before == {task.device} and given.isdisjoint(task.inputs):
            launch_s = placement.launch_s[task.device]
            task = replace(task, estimate_s=hidden_launch_s(task.estimate_s, launch_s, issue_s))
        done.append(task)
    return done


def _pack(
    placement: Placement, tasks: Sequence[Task], overlaps: bool
) -> tuple[dict[str, Packing], dict[int, Slot], dict[str, MemoryUse]]:
    """Return an arena a memory space, the slots in it, and the predicted need of each space.

    overlaps: whether tasks may run at the same time. Then two values share bytes only if they also
        live at different times in the predicted run, where there is memory for that.
    """
    graph, memory_of = placement.graph, placement.memory_of
    first = dict.fromkeys(graph.inputs, 0)
    last = dict(first)
    for task in tasks:
        first.update(dict.fromkeys(task.outputs, task.index))
        last.update(dict.fromkeys((*task.inputs, *task.outputs), task.index))
    last.update((value, len(tasks)) for value in graph.outputs if value in first)
    held = _last_in_prediction(tasks, last) if overlaps else last
    arenas: dict[str, Packing] = {}
    slots: dict[int, Slot] = {}
    uses: dict[str, MemoryUse] = {}
    regions = [(task.device, task.nodes, task.outputs) for task in tasks]
    for memory in dict.fromkeys([HOST, *(spec.memory for spec in placement.specs.values())]):
        mine = [v for v in first if memory_of[v] == memory]
        specs = [spec for spec in placement.specs.values() if spec.memory == memory]
        alignment = max((spec.alignment for spec in specs), default=64)
        beside = beside_arena(placement, regions, memory)
        for until in (held, last):
            ranges = [LiveRange(v, first[v], until[v], graph.type(v).nbytes) for v in mine]
            packing = pack(ranges, alignment)
            use = replace(beside, arena=packing.nbytes)
            if not use.excess:
                break
        check_fits(placement, use, packing.lower_bound)
        arenas[memory], uses[memory] = packing, use
        for v in mine:
            slots[v] = Slot(memory, packing.offsets[v], graph.type(v).nbytes)
    return arenas, slots, uses


def _last_in_prediction(tasks: Sequence[Task], last: Mapping[int, int]) -> dict[int, int]:
    """Return, for each value, the last task that begins in the predicted run while the value lives.

    Without this rule two values could share bytes although both live at once in the predicted run.
    Their two devices would then take turns for want of memory.
    """
    slices = timeline(tasks, [task.estimate_s for task in tasks])
    start = [piece.start_s for piece in slices]
    over: dict[int, float] = {}
    for task, piece in zip(tasks, slices, strict=True):
        for value in (*task.inputs, *task.outputs):
            over[value] = max(over.get(value, 0.0), piece.end_s)
    by_start = sorted(range(len(tasks)), key=start.__getitem__)
    starts = [start[i] for i in by_start]
    latest = list(accumulate(by_start, max, initial=0))
    return {
        value: max(task, latest[bisect_left(starts, over.get(value, 0.0))])
        for value, task in last.items()
    }


def _with_byte_waits(tasks: Sequence[Task], slots: Mapping[int, Slot]) -> tuple[Task, ...]:
    """Add the waits for bytes: a task waits for the earlier users of bytes that it writes."""
    done: list[Task] = []
    memories: defaultdict[str, _Users] = defaultdict(_Users)
    for task in tasks:
        waits = set(task.waits)
        for value in task.outputs:
            waits.update(memories[slots[value].memory].write(slots[value], task.index))
        done.append(replace(task, waits=tuple(sorted(waits - {task.index}))))
        for value in task.inputs:
            if value in slots:
                memories[slots[value].memory].read(slots[value], task.index)
    return tuple(done)


class _Users:
    """Which tasks used each byte of a memory since its last write, the writer included.

    Spans begin at `starts` and end where the next begins. A writer waits for all older users of its
    bytes, so later tasks need only wait for the writer.
    """

    def __init__(self) -> None:
        self._starts: list[int] = [0]
        self._users: list[list[int]] = [[]]

    def read(self, slot: Slot, task: int) -> None:
        """Note that a task reads a slot."""
        first, end = self._split_at(slot)
        for k in range(first, end):
            self._users[k].append(task)

    def write(self, slot: Slot, task: int) -> set[int]:
        """Note that a task writes a slot; return the earlier users of its bytes."""
        first, end = self._split_at(slot)
        users = {user for k in range(first, end) for user in self._users[k]}
        self._starts[first:end], self._users[first:end] = [slot.offset], [[task]]
        return users

    def _split_at(self, slot: Slot) -> tuple[int, int]:
        """Split spans so that a slot covers whole ones; return the first and the one behind."""
        return self._border(slot.offset), self._border(slot.offset + max(slot.nbytes, 1))

    def _border(self, offset: int) -> int:
        at = bisect_left(self._starts, offset)
        if at == len(self._starts) or self._starts[at] != offset:
            self._starts.insert(at, offset)
            self._users.insert(at, list(self._users[at - 1]))
        return at


def _serialise_subgraphs(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """Make the first tasks of every subgraph wait for the last tasks of the one before."""
    members: dict[int, list[Task]] = {}
    for task in tasks:
        members.setdefault(task.subgraph, []).append(task)
    done = list(tasks)
    last: set[int] = set()
    for _, mine in sorted(members.items()):
        inside = {task.index for task in mine}
        for task in mine:
            if inside.isdisjoint(task.waits):
                done[task.index] = replace(task, waits=tuple(sorted(last.union(task.waits))))
        last = inside.difference(*(task.waits for task in mine))
    return tuple(done)
