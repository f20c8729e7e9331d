"""A graph's nodes priced on every device: the problem that a search solves, and the way back.

`solve` makes a Pricing of a graph and a cost model. The search assigns a device to each node. The
Pricing makes the Placement of that assignment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from trireme.backend.device import Resident
from trireme.cost.model import CostModel
from trireme.ir.graph import Graph
from trireme.placement.bounds import Forest, LoadBound, makespan_bound
from trireme.placement.budget import memory_uses, streamed_s
from trireme.placement.copies import insert_copies
from trireme.placement.makespan import simulated_s
from trireme.placement.messages import price_bound
from trireme.placement.node_pricing import NodePricing, check_static, price_node
from trireme.placement.objective import LINEAR, UNIT, Scorer
from trireme.placement.placement import Choice, Placement, largest_values
from trireme.placement.problem import Assignment, Machine, Problem
from trireme.placement.score import Score
from trireme.placement.search import Search
from trireme.placement.stages import Tasks, tasks_of
from trireme.placement.unused_device import CheapestUse, least_uses
from trireme.support.errors import PlacementError
from trireme.support.records import dataclass


@dataclass(frozen=True)
class FixedNodes:
    """Fixed places of nodes: node id -> device, and node id -> the number of its task."""

    devices: Mapping[int, str]
    stages: Mapping[int, int]


@dataclass(frozen=True)
class Pricing:
    """A graph's nodes priced on every device, and the problem they make."""

    graph: Graph
    costs: CostModel
    nodes: Mapping[int, NodePricing]
    problem: Problem

    @classmethod
    def of(
        cls, graph: Graph, costs: CostModel, known: Mapping[int, NodePricing] | None = None
    ) -> Pricing:
        """Return the graph's prices; known: those of some nodes, by id.

        Errors: PlacementError, if a node can run on no device or a pin cannot be kept; PlanError,
        if a shape is not known
        """
        check_static(graph)
        specs = {name: device.spec for name, device in costs.devices.items()}
        launch_s = {name: costs.launch_s(name) for name in specs}
        nodes = {
            node.id: (known or {}).get(node.id) or price_node(graph, node, costs)
            for node in graph.nodes
        }
        machine = Machine.of(specs, launch_s, costs.links, costs.issue_s())
        seconds = [
            [nodes[n.id][0][d].seconds if d in nodes[n.id][0] else None for d in specs]
            for n in graph.nodes
        ]
        resident = [[nodes[n.id].resident.get(d, Resident()) for d in specs] for n in graph.nodes]
        return cls(graph, costs, nodes, Problem.of(graph, machine, seconds, resident))

    def assignment_of(self, held: FixedNodes | Placement) -> tuple[Assignment, Tasks | None]:
        """Return each node on its pin, else where it is fixed; and the tasks, if none moved.

        Errors: PlacementError, if a node cannot be there
        """
        if isinstance(held, Placement):
            devices = {node: choice.device for node, choice in held.choices.items()}
            held = FixedNodes(devices, held.stage_of)
        names = self.problem.machine.names
        where, moved = [], False
        for i, node in enumerate(self.graph.nodes):
            wanted = node.pin or held.devices.get(node.id, "")
            moved = moved or wanted != held.devices.get(node.id)
            d = names.index(wanted) if wanted in names else -1
            if d not in self.problem.able[i]:
                reason = self.nodes[node.id][1].get(wanted, "it is not among the devices")
                raise PlacementError(
                    f"{node.label} cannot be kept on {wanted or 'no device'}: {reason}",
                    fix="place the model anew",
                )
            where.append(d)
        if moved:
            return tuple(where), None
        stages = [held.stages.get(node.id, 0) for node in self.graph.nodes]
        return tuple(where), tasks_of(self.problem, where, stages)

    def placement_of(
        self,
        scorer: Scorer,
        assigned: Assignment,
        tasks: Tasks | None = None,
        search: Search | None = None,
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
        choices = {node.id: Choice(where[node.id], *self.nodes[node.id]) for node in graph.nodes}
        stage_of = {graph.nodes[i].id: t for t, (_, mine) in enumerate(tasks) for i in mine}
        bound, origin = lower_bound(scorer, assigned, value, search)
        score = Score(scorer.objective, UNIT[scorer.objective], value, bound, origin)
        streaming = streamed_s(problem, assigned, tasks)
        uses = least_uses(scorer, assigned, search.best_using if search else {})
        return Placement(
            source=graph,
            graph=placed,
            specs=specs,
            links=self.costs.links,
            launch_s=dict(zip(names, problem.machine.launch_s, strict=True)),
            choices=choices,
            device_of=device_of,
            memory_of=memory_of,
            stage_of=stage_of,
            makespan_s=simulated_s(problem, assigned, tasks),
            score=score,
            candidates=search.candidates if search else (),
            unused=self._unused(assigned, score, uses),
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
            refused = Counter(
                one.refusals[name] for one in self.nodes.values() if name in one.refusals
            )
            common = max(refused, key=lambda reason: (refused[reason], reason), default="")
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
    scorer: Scorer, assigned: Assignment, value: float, search: Search | None
) -> tuple[float, str]:
    """Return what no assignment scores below, and which bound says so.

    value: of the assignment; search: what has bounds of the problem already
    """
    problem = scorer.problem
    if not problem.n:
        return 0.0, ""
    if problem.has_one_place:
        return value, "the only device"
    if scorer.objective in LINEAR:
        messages = search.messages if search else None
        return price_bound(problem, scorer.prices, assigned, value, messages)
    load = search.load if search else None
    if scorer.objective == "throughput":
        return (load or LoadBound(Forest(problem))).seconds, "the load"
    return makespan_bound(problem, value, load)
