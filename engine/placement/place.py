"""Choose a device for every node: the placement of least cost that is found, and a bound.

`place` prices every node on every device, hands the numbers to the search (`search`), bounds what
any placement could reach (`bounds`), and keeps the reasons. The same graph on the same machine is
always placed alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from trireme.backend.device import HOST, Device, Resident
from trireme.cost.model import CostModel, Estimate
from trireme.ir.bind_shapes import shape_advice
from trireme.ir.graph import Graph, Node
from trireme.ir.selectors import pinned
from trireme.placement.bounds import Forest, LoadBound, makespan_bound
from trireme.placement.budget import memory_uses, streamed_s
from trireme.placement.copies import insert_copies
from trireme.placement.makespan import makespan_s
from trireme.placement.messages import Messages, price_bound
from trireme.placement.objective import LINEAR, UNIT, Objective, Scorer, check_objective
from trireme.placement.placement import Choice, Placement, Score, largest_values
from trireme.placement.problem import Assignment, Machine, Problem
from trireme.placement.search import Search
from trireme.placement.stages import Tasks, tasks_of
from trireme.placement.unused_device import CheapestUse, least_uses
from trireme.support.arguments import checked
from trireme.support.errors import PlacementError, PlanError, from_device
from trireme.support.limits import host_memory_bytes


@checked(PlacementError)
def place(
    graph: Graph,
    costs: CostModel,
    objective: Objective = "makespan",
    pins: Mapping[int, str] | None = None,
    keep: HeldNodes | Placement | None = None,
) -> Placement:
    """Return the placement of a static graph over the cost model's devices.

    pins: node id -> device, beside the pins that nodes have
    keep: leave every node where this has it, but for pins: no search
    Errors: PlacementError, if a node can run on no device, a pin or what is kept cannot be, or no
    placement that fits the devices' memory was found; PlanError, if a shape is not known
    """
    task = Pricing.of(pinned(graph, pins), costs)
    check_objective(task.problem.machine, objective)
    if keep is not None:
        scorer = Scorer(task.problem, objective)
        assigned, tasks = task.kept(keep)
        return task.placed(scorer, assigned, tasks=tasks)
    return next(_searched(task, objective))


def place_several(
    graph: Graph,
    costs: CostModel,
    objective: Objective = "makespan",
    pins: Mapping[int, str] | None = None,
    count: int = 3,
) -> list[Placement]:
    """Return the best placement and further good ones, to be measured.

    Each has at least a twentieth of its nodes elsewhere than each of those before it.
    Errors: as `place`
    """
    task = Pricing.of(pinned(graph, pins), costs)
    check_objective(task.problem.machine, objective)
    return list(itertools.islice(_searched(task, objective), count))


def _searched(task: Pricing, objective: Objective) -> Iterator[Placement]:
    """Yield the placement that the search finds, then others that it met, by their scores."""
    forest = Forest(task.problem)
    load = None if objective in LINEAR or alone(task.problem) else LoadBound(forest)
    search = Search(task.problem, objective, forest, load)
    yield task.placed(search.scorer, search.best, search, forest, load, search.tasks)
    given, least = [search.best], max(task.problem.n // 20, 1)
    seen = search.scorer.seen
    for assigned in sorted(seen, key=lambda a: (seen[a], a)):
        apart = min(sum(x != y for x, y in zip(assigned, g, strict=True)) for g in given)
        tasks = search.scorer.evaluate(assigned)[1] if apart >= least else []
        if apart >= least and not search.scorer.overfull(assigned, tasks):
            given.append(assigned)
            yield task.placed(search.scorer, assigned, search, forest, load, tasks)


class NodeOptions(NamedTuple):
    """Of one node: its estimate per device, the refusals of the others, remarks, and what it keeps
    in each device's memory.
    """

    estimates: dict[str, Estimate]
    refusals: dict[str, str]
    notes: dict[str, str]
    resident: dict[str, Resident]


@dataclass(frozen=True)
class HeldNodes:
    """Where nodes are to be: node id -> device, and -> the number of its task."""

    devices: Mapping[int, str]
    stages: Mapping[int, int]


@dataclass(frozen=True)
class Pricing:
    """A graph's nodes priced on every device, and the problem they make."""

    graph: Graph
    costs: CostModel
    options: Mapping[int, NodeOptions]
    problem: Problem

    @classmethod
    def of(
        cls, graph: Graph, costs: CostModel, known: Mapping[int, NodeOptions] | None = None
    ) -> Pricing:
        """Return the graph's prices; known: those of some nodes, by id.

        Errors: PlacementError, if a node can run on no device or a pin cannot be kept; PlanError,
        if a shape is not known
        """
        check_static(graph)
        specs = {name: device.spec for name, device in costs.devices.items()}
        launch_s = {name: costs.launch_s(name) for name in specs}
        options = {
            node.id: (known or {}).get(node.id) or node_options(graph, node, costs)
            for node in graph.nodes
        }
        machine = Machine.of(specs, launch_s, costs.links, costs.issue_s())
        seconds = [
            [options[n.id][0][d].seconds if d in options[n.id][0] else None for d in specs]
            for n in graph.nodes
        ]
        resident = [[options[n.id].resident.get(d, Resident()) for d in specs] for n in graph.nodes]
        return cls(graph, costs, options, Problem.of(graph, machine, seconds, resident))

    def kept(self, held: HeldNodes | Placement) -> tuple[Assignment, Tasks | None]:
        """Return each node on its pin, else where it is held; and the tasks, if none moved.

        Errors: PlacementError, if a node cannot be there
        """
        if isinstance(held, Placement):
            devices = {node: choice.device for node, choice in held.choices.items()}
            held = HeldNodes(devices, held.stage_of)
        names = self.problem.machine.names
        where, moved = [], False
        for i, node in enumerate(self.graph.nodes):
            wanted = node.pin or held.devices.get(node.id, "")
            moved = moved or wanted != held.devices.get(node.id)
            d = names.index(wanted) if wanted in names else -1
            if d not in self.problem.able[i]:
                reason = self.options[node.id][1].get(wanted, "it is not among the devices")
                raise PlacementError(
                    f"{node.label} cannot be kept on {wanted or 'no device'}: {reason}",
                    fix="place the model anew",
                )
            where.append(d)
        if moved:
            return tuple(where), None
        stages = [held.stages.get(node.id, 0) for node in self.graph.nodes]
        return tuple(where), tasks_of(self.problem, where, stages)

    def placed(
        self,
        scorer: Scorer,
        assigned: Assignment,
        search: Search | None = None,
        forest: Forest | None = None,
        load: LoadBound | None = None,
        tasks: Tasks | None = None,
    ) -> Placement:
        """Return the placement of an assignment, in these tasks or those of the best rule."""
        if tasks is None:
            tasks = scorer.evaluate(assigned)[1]
        value = scorer.value(assigned, tasks)
        problem, graph = self.problem, self.graph
        self._check_fits(scorer, assigned, tasks)
        names = problem.machine.names
        where = {node.id: names[d] for node, d in zip(graph.nodes, assigned, strict=True)}
        specs = {name: device.spec for name, device in self.costs.devices.items()}
        placed, device_of, memory_of = insert_copies(graph, where, specs)
        choices = {node.id: Choice(where[node.id], *self.options[node.id]) for node in graph.nodes}
        stage_of = {graph.nodes[i].id: t for t, (_, mine) in enumerate(tasks) for i in mine}
        messages = search.messages if search else None
        bound, origin = lower_bound(scorer, assigned, value, forest, load, messages)
        score = Score(scorer.objective, UNIT[scorer.objective], value, bound, origin)
        streaming = streamed_s(problem, assigned, tasks)
        uses = least_uses(scorer, assigned, search.best_using if search else {})
        return Placement(
            graph,
            placed,
            specs,
            self.costs.links,
            dict(zip(names, problem.machine.launch_s, strict=True)),
            choices,
            device_of,
            memory_of,
            stage_of,
            makespan_s(problem, assigned, tasks),
            score,
            search.candidates if search else {},
            self._unused(assigned, score, uses),
            issue_s=self.costs.issue_s(),
            memory=tuple(memory_uses(problem, assigned, tasks, packed=True)),
            streamed_s={graph.nodes[i].id: s for i, s in streaming.items()},
        )

    def _unused(
        self, assigned: Assignment, score: Score, uses: Iterable[CheapestUse]
    ) -> dict[str, str]:
        """Return, for each device without a node, the sentence that says why."""
        names, unused = self.problem.machine.names, {}
        for name in (name for d, name in enumerate(names) if d not in assigned):
            refused = [
                refusals[name] for _, refusals, _, _ in self.options.values() if name in refusals
            ]
            common = max(set(refused), key=lambda r: (refused.count(r), r), default="")
            unused[name] = f"it refuses all {self.problem.n} nodes ({common})"
            if not self.problem.n:
                unused[name] = "the graph has no nodes"
        for use in uses:
            what = self.graph.nodes[use.node].label if use.node is not None else None
            unused[names[use.device]] = use.text(what, score.change(use.value - score.value))
        return unused

    def _check_fits(self, scorer: Scorer, assigned: Assignment, tasks: Tasks) -> None:
        overfull = scorer.overfull(assigned, tasks)
        if not overfull:
            return
        spaces = self.problem.machine.spaces
        facts = []
        for use in overfull:
            space = spaces.index(use.memory)
            mine = [
                node
                for node, d in zip(self.graph.nodes, assigned, strict=True)
                if self.problem.space[d] == space
            ]
            facts += [str(use), "largest: " + ", ".join(largest_values(self.graph, mine))]
        raise PlacementError(
            "no placement was found that fits the devices' memory",
            facts=facts,
            fix="leave out the device, or give it more memory",
        )


def lower_bound(
    scorer: Scorer,
    assigned: Assignment,
    value: float,
    forest: Forest | None,
    load: LoadBound | None,
    messages: Messages | None,
) -> tuple[float, str]:
    """Return what no assignment scores below, and which bound says so; value: of a known one."""
    problem = scorer.problem
    if not problem.n:
        return 0.0, ""
    if alone(problem):
        return value, "the only device"
    if scorer.objective in LINEAR:
        return price_bound(problem, scorer.prices, assigned, value, messages)
    if scorer.objective == "throughput":
        return (load or LoadBound(forest or Forest(problem))).seconds, "the load"
    return makespan_bound(problem, value, load)


def alone(problem: Problem) -> bool:
    """Whether there is but one device, in host memory: one task of everything is the best."""
    return problem.k == 1 and problem.spaces == 1


def check_static(graph: Graph) -> None:
    """Raise PlanError naming the first value whose shape is not all numbers."""
    for value in graph.inputs:
        if not graph.type(value).is_static:
            raise _not_static(graph, value, "graph input")
    for node in graph.nodes:
        for value in node.outputs:
            if not graph.type(value).is_static:
                raise _not_static(graph, value, node.label)


def _not_static(graph: Graph, value: int, where: str) -> PlanError:
    name = graph.values[value].name
    return PlanError(
        f"{where}: the shape of '{name}' is not known before it runs: {graph.type(value)}",
        facts=["trireme plans memory ahead, so every dimension must be a number"],
        fix=shape_advice(graph.input_values()),
    )


def node_options(graph: Graph, node: Node, costs: CostModel) -> NodeOptions:
    """Return what placing needs to know of a node.

    Errors: PlacementError, if no device is left or the pinned one refuses
    """
    estimates: dict[str, Estimate] = {}
    refusals: dict[str, str] = {}
    notes: dict[str, str] = {}
    resident: dict[str, Resident] = {}
    for name, device in costs.devices.items():
        with from_device(name, f"price {node.label}"):
            reason = _refusal(graph, node, name, device)
            if reason is not None:
                refusals[name] = reason
                continue
            note = device.kernel_note(graph, node)
            estimates[name] = costs.node(graph, node, name, note)
            resident[name] = device.resident(graph, node)
            if note:
                notes[name] = note
    if not estimates:
        types = ", ".join(str(graph.type(value)) for value in node.used)
        raise PlacementError(
            f"no device can run {node.label} on {types or 'no inputs'}",
            facts=[f"{name:8} {reason}" for name, reason in refusals.items()],
            fix=""
            if node.pin or HOST in costs.devices
            else "add a device that has it: host has every op, slowly",
        )
    return NodeOptions(estimates, refusals, notes, resident)


def _refusal(graph: Graph, node: Node, name: str, device: Device) -> str | None:
    if node.pin is not None and node.pin != name:
        return f"the node is pinned to {node.pin}"
    return _too_large(graph, node, device) or device.unsupported_reason(graph, node)


def _too_large(graph: Graph, node: Node, device: Device) -> str | None:
    """Say which operand alone is larger than the device's memory.

    Asked before the device is: it would tile the operand, piece after piece.
    """
    spec = device.spec
    limit = spec.memory_bytes or host_memory_bytes()
    for value in (*node.used, *node.outputs):
        type = graph.type(value)
        flows = not graph.values[value].is_constant and type.is_static
        if flows and type.dtype != "string" and type.nbytes > limit:
            return f"{type} takes {type.nbytes:,} bytes, {spec.memory} has {limit:,}"
    return None
