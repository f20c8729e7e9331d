"""Choose a device for every node: the placement with the least predicted makespan that is found.

Candidates are every single device (nodes it refuses go to their cheapest alternative), each node
on its cheapest device, and a dynamic programme over the graph's order; the best are then improved
by moving nodes and whole runs of nodes. The search is deterministic and bounded by a number of
evaluations, so the same graph on the same machine is always placed alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from trireme.cost import CostModel, Estimate
from trireme.device import Device
from trireme.errors import PlacementError, PlanError
from trireme.graph import Graph, Node
from trireme.makespan import Machine, Makespan
from trireme.placement import Choice, Placement, insert_copies

Assignment = tuple[int, ...]
_NODE_VISITS = 400_000
"""Bound of the local search: evaluations times nodes."""


def place(graph: Graph, costs: CostModel) -> Placement:
    """Return the placement of a static graph over the cost model's devices.

    Errors: PlacementError, if a node can run on no device or a pin cannot be kept; PlanError, if a
    shape is not known
    """
    check_static(graph)
    devices = costs.devices
    specs = {name: device.spec for name, device in devices.items()}
    launch_s = {name: costs.launch_s(name) for name in devices}
    options = {node.id: node_options(graph, node, costs) for node in graph.nodes}
    machine = Machine.of(specs, launch_s, costs.links)
    seconds = [_row(options[node.id], machine.names) for node in graph.nodes]
    makespan = Makespan(graph, machine, seconds)
    search = _Search(makespan, seconds)
    best, candidates = search.run()
    assigned = {node.id: machine.names[d] for node, d in zip(graph.nodes, best, strict=True)}
    placed, device_of, memory_of = insert_copies(graph, assigned, specs)
    choices = {node.id: Choice(assigned[node.id], *options[node.id]) for node in graph.nodes}
    return Placement(
        graph, placed, specs, costs.links, launch_s, choices, device_of, memory_of,
        makespan(best), makespan.lower_bound(), candidates,
        _unused(machine.names, assigned, choices, search, makespan(best)),
    )  # fmt: skip


def check_static(graph: Graph) -> None:
    """Raise PlanError naming the first value whose shape is not all numbers."""
    for node in graph.nodes:
        for value in node.outputs:
            if not graph.type(value).is_static:
                raise _not_static(graph, value, node.label)
    for value in graph.inputs:
        if not graph.type(value).is_static:
            raise _not_static(graph, value, "graph input")


def _not_static(graph: Graph, value: int, where: str) -> PlanError:
    name = graph.values[value].name
    symbols = [dim for dim in graph.type(value).shape if isinstance(dim, str) and dim != "?"]
    fix = f"give the inputs' shapes, e.g. shapes={{'{name}': (1, ...)}}" if symbols else ""
    return PlanError(
        f"{where}: the shape of '{name}' is not known before it runs: {graph.type(value)}",
        facts=["trireme plans memory ahead, so every dimension must be a number"],
        fix=fix,
    )


def node_options(
    graph: Graph, node: Node, costs: CostModel
) -> tuple[dict[str, Estimate], dict[str, str], dict[str, str]]:
    """Return a node's estimate per device, the refusals of the others, and remarks.

    Errors: PlacementError, if no device is left or the pinned one refuses
    """
    estimates: dict[str, Estimate] = {}
    refusals: dict[str, str] = {}
    notes: dict[str, str] = {}
    for name, device in costs.devices.items():
        reason = _refusal(graph, node, name, device)
        if reason is not None:
            refusals[name] = reason
            continue
        estimates[name] = costs.node(graph, node, name)
        note = device.kernel_note(graph, node)
        if note:
            notes[name] = note
    if not estimates:
        types = ", ".join(str(graph.type(value)) for value in node.used)
        raise PlacementError(
            f"no device can run {node.label} on {types or 'no inputs'}",
            facts=[f"{name:8} {reason}" for name, reason in refusals.items()],
        )
    return estimates, refusals, notes


def _refusal(graph: Graph, node: Node, name: str, device: Device) -> str | None:
    if node.pin is not None and node.pin != name:
        return f"the node is pinned to {node.pin}"
    return device.unsupported_reason(graph, node)


def _row(
    options: tuple[Mapping[str, Estimate], Mapping[str, str], Mapping[str, str]],
    names: Sequence[str],
) -> list[float | None]:
    return [options[0][name].seconds if name in options[0] else None for name in names]


class _Search:
    """Candidates and local search over assignments (a device index for every node position)."""

    def __init__(self, makespan: Makespan, seconds: Sequence[Sequence[float | None]]) -> None:
        self.makespan, self.seconds = makespan, seconds
        self.names = makespan.machine.names
        self.evaluations_left = max(300, _NODE_VISITS // max(len(seconds), 1))
        self.seen: dict[Assignment, float] = {}
        self.best_using: dict[int, float] = {}

    def run(self) -> tuple[Assignment, dict[str, float]]:
        """Return the best assignment and the seconds of each named candidate."""
        named = dict(self.candidates())
        candidates = {name: self.cost(assigned) for name, assigned in named.items()}
        starts = sorted(set(named.values()), key=lambda a: (self.cost(a), a))[:3]
        best = min((self.improve(start) for start in starts), key=lambda a: (self.cost(a), a))
        candidates["search"] = self.cost(best)
        return best, candidates

    def cost(self, assigned: Assignment) -> float:
        if assigned not in self.seen:
            self.evaluations_left -= 1
            self.seen[assigned] = seconds = self.makespan(assigned)
            for device in set(assigned):
                known = self.best_using.get(device, seconds)
                self.best_using[device] = min(known, seconds)
        return self.seen[assigned]

    def candidates(self) -> Iterator[tuple[str, Assignment]]:
        devices = range(len(self.names))
        cheapest = tuple(
            min((s, d) for d, s in enumerate(row) if s is not None)[1] for row in self.seconds
        )
        for d in devices:
            single = tuple(
                d if row[d] is not None else other
                for row, other in zip(self.seconds, cheapest, strict=True)
            )
            if d in single or not single:
                whole = all(device == d for device in single)
                yield f"{self.names[d]} {'only' if whole else 'first'}", single
        if len(self.names) > 1:
            yield "each node at its cheapest", cheapest
            yield "dynamic programme", self._dynamic_programme()

    def _dynamic_programme(self) -> Assignment:
        """Return the assignment of least serial cost if the graph were a tree towards its outputs.

        least[i][d] is the cost of everything above node i when i runs on d. On a chain it is exact
        for the sum of node, copy and launch times.
        """
        span, machine = self.makespan, self.makespan.machine
        least: list[list[float]] = []
        back: list[list[dict[int, int]]] = []
        infinite = float("inf")
        for i, row in enumerate(self.seconds):
            costs, choices = [], []
            for d, own in enumerate(row):
                total, chosen = (infinite if own is None else own), {}
                for value, maker in span.inputs[i] if own is not None else ():
                    if maker < 0:
                        total += self._step(value, -1, d)
                        continue
                    ways = [
                        (least[maker][e] + self._step(value, e, d), e)
                        for e in range(len(machine.names))
                    ]
                    way, chosen[maker] = min(ways)
                    total += way
                costs.append(total)
                choices.append(chosen)
            least.append(costs)
            back.append(choices)
        leaving = {maker: value for value, maker in span.outputs}
        assigned: dict[int, int] = {}
        for i in range(len(self.seconds) - 1, -1, -1):
            if i not in assigned:
                ends = [
                    cost + (self._step(leaving[i], d, -1) if i in leaving else 0.0)
                    for d, cost in enumerate(least[i])
                ]
                assigned[i] = ends.index(min(ends))
            for maker, device in back[i][assigned[i]].items():
                assigned.setdefault(maker, device)
        return tuple(assigned[i] for i in range(len(self.seconds)))

    def _step(self, value: int, source: int, target: int) -> float:
        """Return the cost of a value going between devices; -1 is the host."""
        machine = self.makespan.machine
        if source == target:
            return 0.0
        launch = machine.launch_s[target] if target >= 0 else 0.0
        one = machine.memory[source] if source >= 0 else "host"
        two = machine.memory[target] if target >= 0 else "host"
        if one == two:
            return launch
        return launch + machine.links.seconds(self.makespan.nbytes[value], one, two)

    def improve(self, start: Assignment) -> Assignment:
        """Return a local optimum: no move of a node or of a run of nodes makes it faster."""
        best, improved = start, True
        while improved and self.evaluations_left > 0:
            improved = False
            for moved in self._moves(best):
                if self.evaluations_left <= 0:
                    break
                if self.cost(moved) < self.cost(best) * (1 - 1e-9):
                    best, improved = moved, True
                    break
        return best

    def _moves(self, assigned: Assignment) -> Iterator[Assignment]:
        """Yield neighbours: runs of equal device moved whole, then windows, then single nodes."""
        n = len(assigned)
        starts = [i for i in range(n) if i == 0 or assigned[i] != assigned[i - 1]]
        runs = list(zip(starts, [*starts[1:], n], strict=True))
        spans = [*runs, *((a, d) for (a, _), (_, d) in zip(runs, runs[2:], strict=False))]
        width = n
        while width >= 1:
            step = max(width // 2, 1)
            spans += [(i, min(i + width, n)) for i in range(0, n, step)]
            width //= 2
        for first, last in dict.fromkeys(spans):
            for device in range(len(self.names)):
                moved = self._moved(assigned, first, last, device)
                if moved != assigned:
                    yield moved

    def _moved(self, assigned: Assignment, first: int, last: int, device: int) -> Assignment:
        window = tuple(
            device if self.seconds[i][device] is not None else assigned[i]
            for i in range(first, last)
        )
        return assigned[:first] + window + assigned[last:]


def _unused(
    names: Sequence[str],
    assigned: Mapping[int, str],
    choices: Mapping[int, Choice],
    search: _Search,
    best_s: float,
) -> dict[str, str]:
    """Return, for each device without a node, the sentence that says why."""
    unused = {}
    for index, name in enumerate(names):
        if name in assigned.values():
            continue
        refusals = [c.refusals[name] for c in choices.values() if name in c.refusals]
        if len(refusals) == len(choices):
            common = max(set(refusals), key=lambda r: (refusals.count(r), r), default="")
            unused[name] = f"it refuses all {len(choices)} nodes ({common})"
        elif index in search.best_using:
            with_it = search.best_using[index]
            unused[name] = (
                f"the best placement found that uses it takes {with_it * 1e6:.1f} us, "
                f"{(with_it - best_s) * 1e6:.1f} us more"
            )
        else:
            unused[name] = "no placement that uses it was worth trying"
    return unused
