"""The predicted makespan of an assignment of nodes to devices, fast enough to search with.

Nodes of one device at one level (the most device changes on any path to them) run as one task.
Tasks and copies are then run in virtual time: devices of a resource group take turns, copies take
turns on their link and overlap with compute. `plan` makes the same tasks for real.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trireme.cost import Links
from trireme.device import HOST, DeviceSpec
from trireme.graph import Graph


@dataclass(frozen=True)
class Machine:
    """The devices of a search by index: what the makespan needs to know of them."""

    names: tuple[str, ...]
    memory: tuple[str, ...]
    resource: tuple[str, ...]
    launch_s: tuple[float, ...]
    links: Links

    @classmethod
    def of(
        cls, specs: Mapping[str, DeviceSpec], launch_s: Mapping[str, float], links: Links
    ) -> Machine:
        """Return the machine of these devices."""
        return cls(
            tuple(specs),
            tuple(spec.memory for spec in specs.values()),
            tuple(spec.resource_group or spec.name for spec in specs.values()),
            tuple(launch_s[name] for name in specs),
            links,
        )


class Makespan:
    """Evaluates assignments of one graph on one machine.

    `seconds[i][d]` is the estimate of the i-th node on device d, None where it cannot run.
    """

    def __init__(
        self, graph: Graph, machine: Machine, seconds: Sequence[Sequence[float | None]]
    ) -> None:
        self.machine = machine
        self.seconds = seconds
        at = {node.id: i for i, node in enumerate(graph.nodes)}
        maker = {out: at[node.id] for node in graph.nodes for out in node.outputs}
        self.inputs: list[list[tuple[int, int]]] = [
            [
                (value, maker.get(value, -1))
                for value in dict.fromkeys(node.used)
                if not graph.values[value].is_constant
            ]
            for node in graph.nodes
        ]
        self.after = [[at[other] for other in node.after] for node in graph.nodes]
        self.outputs = [(value, maker[value]) for value in graph.outputs if value in maker]
        self.readers = self._readers()
        self.nbytes = {value: graph.type(value).nbytes for value in [*maker, *graph.inputs]}
        self._copy_s: dict[tuple[int, str, str], float] = {}

    def levels(self, assigned: Sequence[int]) -> list[int]:
        """Return the level of each node: the most device changes on any path to it."""
        memory = self.machine.memory
        levels: list[int] = []
        for i, device in enumerate(assigned):
            level = 0
            for _, maker in self.inputs[i]:
                if maker < 0:
                    above = int(memory[device] != HOST)
                else:
                    above = levels[maker] + (assigned[maker] != device)
                level = max(level, above)
            for other in self.after[i]:
                level = max(level, levels[other] + (assigned[other] != device))
            levels.append(level)
        return levels

    def _readers(self) -> dict[int, list[tuple[int, int]]]:
        """Return, by maker (-1 for the caller), who reads what: (value, reader), -1 the caller."""
        readers: dict[int, list[tuple[int, int]]] = {}
        for i, inputs in enumerate(self.inputs):
            for value, maker in inputs:
                readers.setdefault(maker, []).append((value, i))
        for value, maker in self.outputs:
            readers.setdefault(maker, []).append((value, -1))
        return readers

    def __call__(self, assigned: Sequence[int]) -> float:
        """Return the predicted seconds of a run; every node must have an estimate there."""
        machine, levels = self.machine, self.levels(assigned)
        tasks: dict[tuple[int, int], list[int]] = {}
        for i, device in enumerate(assigned):
            tasks.setdefault((levels[i], device), []).append(i)
        finish = [0.0] * len(assigned)
        free = dict.fromkeys(machine.resource, 0.0)
        copies = _Copies(self, assigned)
        copies.issue(-1, 0.0)
        for key in sorted(tasks, key=lambda key: key[0]):
            level, device = key
            target = machine.memory[device]
            ready, work = 0.0, machine.launch_s[device]
            for i in tasks[key]:
                work += self.seconds[i][device] or 0.0
                for value, maker in self.inputs[i]:
                    if maker >= 0 and levels[maker] == level and assigned[maker] == device:
                        continue
                    made = finish[maker] if maker >= 0 else 0.0
                    ready = max(ready, copies.arrival.get((value, target), made))
                for other in self.after[i]:
                    ready = max(ready, finish[other])
            resource = machine.resource[device]
            end = free[resource] = max(ready, free[resource]) + work
            for i in tasks[key]:
                finish[i] = end
                copies.issue(i, end)
        return max([*finish, *copies.arrival.values()], default=0.0)

    def copy_s(self, value: int, source: str, target: str) -> float:
        """Return the predicted seconds of copying a value between two memory spaces."""
        key = (value, source, target)
        if key not in self._copy_s:
            self._copy_s[key] = self.machine.links.seconds(self.nbytes[value], source, target)
        return self._copy_s[key]

    def lower_bound(self) -> float:
        """Return seconds that no assignment beats.

        The larger of the critical path, each node at its fastest, and the load: for any weights of
        the resources that sum to one, the sum over nodes of the least weighted time is a bound (the
        Lagrangian dual of balancing the load); a few subgradient steps look for good weights.
        """
        machine = self.machine
        least_launch = min(machine.launch_s, default=0.0)
        best = [min((s for s in row if s is not None), default=0.0) for row in self.seconds]
        path: list[float] = []
        for i, own in enumerate(best):
            above = max((path[m] for _, m in self.inputs[i] if m >= 0), default=0.0)
            path.append(above + own)
        critical = max(path, default=0.0)
        return max(critical, self._load_bound()) + (least_launch if best else 0.0)

    def _load_bound(self, steps: int = 40) -> float:
        groups = sorted(set(self.machine.resource))
        weights = dict.fromkeys(groups, 1 / len(groups)) if groups else {}
        best = 0.0
        for step in range(1, steps + 1):
            load = dict.fromkeys(groups, 0.0)
            total = 0.0
            for row in self.seconds:
                options = [
                    (weights[self.machine.resource[d]] * s, s, self.machine.resource[d])
                    for d, s in enumerate(row)
                    if s is not None
                ]
                if options:
                    weighted, own, group = min(options)
                    total += weighted
                    load[group] += own
            best = max(best, total)
            mean = sum(load.values()) / len(load) if load else 0.0
            scale = max(load.values(), default=0.0) or 1.0
            moved = {g: max(weights[g] + (load[g] - mean) / scale / step, 0.0) for g in groups}
            norm = sum(moved.values()) or 1.0
            weights = {g: w / norm for g, w in moved.items()}
        return best


class _Copies:
    """The copies of one evaluation: issued when a value is made, taking turns on each link."""

    def __init__(self, makespan: Makespan, assigned: Sequence[int]) -> None:
        self.makespan, self.assigned = makespan, assigned
        self.arrival: dict[tuple[int, str], float] = {}
        self.free: dict[tuple[str, str], float] = {}

    def issue(self, maker: int, made_s: float) -> None:
        """Start copies of what `maker` made to every memory in which somebody reads it."""
        memory = self.makespan.machine.memory
        source = memory[self.assigned[maker]] if maker >= 0 else HOST
        for value, reader in self.makespan.readers.get(maker, ()):
            target = memory[self.assigned[reader]] if reader >= 0 else HOST
            if target == source or (value, target) in self.arrival:
                continue
            start = max(made_s, self.free.get((source, target), 0.0))
            end = start + self.makespan.copy_s(value, source, target)
            self.arrival[value, target] = self.free[source, target] = end
