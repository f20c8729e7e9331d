"""Placement as numbers: what the searches, bounds and proofs need to know of a graph and a machine.

`place` makes a Problem once; everything that tries assignments (a device index for every node
position) works on it alone. Memory spaces are small integers, 0 is the host's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import copy

from trireme.backend.device import HOST, DeviceSpec, Resident
from trireme.cost.links import Links
from trireme.ir.graph import Graph
from trireme.support.cached import cached_property
from trireme.support.records import dataclass

Assignment = tuple[int, ...]
CALLER = -1
"""The maker of graph inputs and the reader of graph outputs."""
MARGIN = 1.05
"""The factor by which a packed arena may exceed the bytes alive at once, in a search."""


@dataclass(frozen=True)
class Machine:
    """The devices of a search by index.

    memory, resource: of each device, its memory space and the silicon it takes turns on
    launch_s: seconds that a task costs on each device beyond its nodes
    budget: bytes of each memory space that has an end
    sram: bytes on the chip of each device, where what lives inside a task is first
    streams: memory spaces into which weights that find no room are fetched in every run
    issue_s: of each device that starts its own tasks one after another, the least seconds of a task
        that follows only such: it has no launch; None for the others
    power_w, link_j_per_byte: for the energy of a run; None where no description says
    """

    names: tuple[str, ...]
    memory: tuple[str, ...]
    resource: tuple[str, ...]
    launch_s: tuple[float, ...]
    links: Links
    budget: Mapping[str, int]
    power_w: tuple[float | None, ...]
    link_j_per_byte: Mapping[str, float | None]
    issue_s: tuple[float | None, ...] = ()
    sram: tuple[int, ...] = ()
    streams: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        specs: Mapping[str, DeviceSpec],
        launch_s: Mapping[str, float],
        links: Links,
        issue_s: Mapping[str, float] | None = None,
    ) -> Machine:
        """Return the machine of these devices."""
        limits: dict[str, int] = {}
        for spec in specs.values():
            if spec.memory_bytes:
                known = limits.get(spec.memory, spec.memory_bytes)
                limits[spec.memory] = min(known, spec.memory_bytes)
        return cls(
            tuple(specs),
            tuple(spec.memory for spec in specs.values()),
            tuple(spec.resource for spec in specs.values()),
            tuple(launch_s[name] for name in specs),
            links,
            limits,
            tuple(spec.power_w for spec in specs.values()),
            {spec.memory: spec.link_j_per_byte for spec in specs.values() if spec.memory != HOST},
            tuple((issue_s or {}).get(name) for name in specs),
            tuple(spec.sram_bytes for spec in specs.values()),
            frozenset(spec.memory for spec in specs.values() if spec.streams_weights),
        )

    @property
    def least_launch_s(self) -> tuple[float, ...]:
        """The least that a launch adds to a task on each device."""
        issue = self.issue_s or (None,) * len(self.names)
        return tuple(s if i is None else 0.0 for s, i in zip(self.launch_s, issue, strict=True))

    @property
    def spaces(self) -> tuple[str, ...]:
        """The memory spaces in the order of their numbers, the host's first."""
        return tuple(dict.fromkeys((HOST, *self.memory)))


class Problem:
    """A graph on a machine, by node position.

    seconds[i][d]: of node i on device d, None where it cannot run
    work_s[d][i]: the same by device, 0.0 where it cannot run; able[i]: the devices where it can
    inputs[i]: (value, maker) of what it reads, constants left out; CALLER makes graph inputs
    before[i]: the nodes it must follow, for data or for effects
    readers[maker]: (value, reader) of what is read of it, in the order of the readers
    reads: the same as a list, the caller's last
    space[d]: the memory space of each device; nbytes: of each value that may be copied
    resident[i][d]: what node i keeps in the memory of device d; empty where that is not counted
    links[s][t]: (latency in seconds, seconds a byte) between memory spaces
    """

    def __init__(
        self,
        machine: Machine,
        seconds: Sequence[Sequence[float | None]],
        inputs: Sequence[Sequence[tuple[int, int]]],
        after: Sequence[Sequence[int]],
        outputs: Sequence[tuple[int, int]],
        nbytes: Mapping[int, int],
        resident: Sequence[Sequence[Resident]] = (),
    ) -> None:
        self.machine = machine
        self.resident = resident
        self.inputs, self.after, self.outputs, self.nbytes = inputs, after, outputs, nbytes
        self.n, self.k = len(seconds), len(machine.names)
        self.devices = range(self.k)
        spaces = machine.spaces
        self.space = [spaces.index(memory) for memory in machine.memory]
        self.spaces = len(spaces)
        groups = tuple(dict.fromkeys(machine.resource))
        self.group = [groups.index(resource) for resource in machine.resource]
        self.groups = len(groups)
        self.before = [
            sorted({maker for _, maker in read if maker != CALLER} | set(more))
            for read, more in zip(inputs, after, strict=True)
        ]
        self.next: list[list[int]] = [[] for _ in seconds]
        for i, earlier in enumerate(self.before):
            for j in earlier:
                self.next[j].append(i)
        self.readers = self._readers()
        self.reads = [self.readers.get(i, []) for i in (*range(self.n), CALLER)]
        self.links = [
            [_line(machine.links, source, target) for target in spaces] for source in spaces
        ]
        self._set_seconds(seconds)

    def _set_seconds(self, seconds: Sequence[Sequence[float | None]]) -> None:
        self.seconds = seconds
        self.able = [[d for d in self.devices if row[d] is not None] for row in seconds]
        self.work_s = [[row[d] or 0.0 for row in seconds] for d in self.devices]

    @classmethod
    def of(
        cls,
        graph: Graph,
        machine: Machine,
        seconds: Sequence[Sequence[float | None]],
        resident: Sequence[Sequence[Resident]] = (),
    ) -> Problem:
        """Return the problem of a static graph whose i-th node takes seconds[i]."""
        at = {node.id: i for i, node in enumerate(graph.nodes)}
        maker = {out: at[node.id] for node in graph.nodes for out in node.outputs}
        inputs = [
            [
                (value, maker.get(value, CALLER))
                for value in dict.fromkeys(node.used)
                if not graph.values[value].is_constant
            ]
            for node in graph.nodes
        ]
        after = [[at[other] for other in node.after] for node in graph.nodes]
        leaving = dict.fromkeys(value for value in graph.outputs if value in maker)
        outputs = [(value, maker[value]) for value in leaving]
        nbytes = {value: graph.type(value).nbytes for value in [*maker, *graph.inputs]}
        return cls(machine, seconds, inputs, after, outputs, nbytes, resident)

    def with_seconds(self, seconds: Sequence[Sequence[float | None]]) -> Problem:
        """Return the problem with other seconds for the nodes: None where one may not be.

        The two share what the graph and the machine alone decide.
        """
        made = copy(self)
        made._set_seconds(seconds)
        return made

    @property
    def has_one_place(self) -> bool:
        """Whether one device in host memory is all: then one task of everything is best."""
        return self.k == 1 and self.spaces == 1

    @cached_property
    def copies_s(self) -> dict[int, list[float]]:
        """Of each value, the seconds of a copy, at source * spaces + target."""
        ways = [line for row in self.links for line in row]
        return {value: [a + nbytes * b for a, b in ways] for value, nbytes in self.nbytes.items()}

    @cached_property
    def _made(self) -> list[list[tuple[int, list[int]]]]:
        made: list[list[tuple[int, list[int]]]] = [[] for _ in range(self.n)]
        for value, maker, readers in self.values():
            if maker != CALLER:
                made[maker].append((value, readers))
        return made

    @cached_property
    def may_stream(self) -> bool:
        """Whether weights may have to be streamed, all nodes and values being in one memory."""
        limits = [self.machine.budget.get(space, 0) for space in self.machine.streams]
        return any(0 < limit < self.most_bytes for limit in limits)

    @cached_property
    def most_bytes(self) -> int:
        """The bytes of all values, and the most that weights and code of all nodes can take."""
        kept = sum(max(one.weights + one.code for one in row) for row in self.resident)
        return math.ceil(sum(self.nbytes.values()) * MARGIN) + kept

    def made(self, i: int) -> list[tuple[int, list[int]]]:
        """Return (value, readers) of each value of node i that is read."""
        return self._made[i]

    def _readers(self) -> dict[int, list[tuple[int, int]]]:
        readers: dict[int, list[tuple[int, int]]] = {}
        for i, inputs in enumerate(self.inputs):
            for value, maker in inputs:
                readers.setdefault(maker, []).append((value, i))
        for value, maker in self.outputs:
            readers.setdefault(maker, []).append((value, CALLER))
        return readers

    def values(self) -> Iterator[tuple[int, int, list[int]]]:
        """Yield (value, maker, readers) of each value that is read, the caller's among both."""
        for maker, reads in self.readers.items():
            by_value: dict[int, list[int]] = {}
            for value, reader in reads:
                by_value.setdefault(value, []).append(reader)
            for value, readers in by_value.items():
                yield value, maker, readers

    def copy_s(self, value: int, source: int, target: int) -> float:
        """Return the predicted seconds of copying a value between two memory spaces."""
        latency_s, s_per_byte = self.links[source][target]
        return latency_s + self.nbytes[value] * s_per_byte

    def own_s(self, i: int, device: int) -> float:
        """Return the seconds of node i on a device that can run it."""
        seconds = self.seconds[i][device]
        return float("inf") if seconds is None else seconds


def _line(links: Links, source: str, target: str) -> tuple[float, float]:
    """Return the latency in seconds, and the seconds a byte, between two memory spaces."""
    if source == target:
        return 0.0, 0.0
    latency_s = links.seconds(0, source, target)
    return latency_s, (links.seconds(1 << 20, source, target) - latency_s) / (1 << 20)
