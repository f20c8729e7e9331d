"""Why every node and copy is where it is: the alternatives, what each would cost, the refusals.

An alternative is priced by moving its nodes alone, all others held: `place` with pins and `keep`
predicts exactly what is stated here. What the search would make of a pin when all others may
move as well is asked for with `free`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from trireme.ir.effects import order_reason
from trireme.ir.graph import Graph, Node, node_names
from trireme.placement.move_cost import MoveEvaluator, Trial
from trireme.placement.placement import Placement
from trireme.support.arguments import checked
from trireme.support.cached import cached_property
from trireme.support.errors import PlacementError
from trireme.support.fault_events import FaultEvent, event_lines
from trireme.support.records import dataclass
from trireme.support.showing import WIDTH, clipped, clipped_name, wrapped
from trireme.support.units import bytes_text, time_text

SCREEN = 30
"""Lines of a screen, which hold a summary, a line on more and one on what was not measured."""
MOST_NODES, LEAST_NODES = 10, 3
"""How many nodes a summary lists, as a screen has room."""


@dataclass(frozen=True)
class Alternative:
    """One device for one node.

    estimate_s: the node's own predicted seconds there; None where the device refuses it
    run_s: the objective's value of the whole run if only this node were there, in seconds or joules
    free_s: the same if every other node may move as well; None unless it was asked for
    appears, vanishes: copies and launches that this device would add or spare
    binding: what speaks most against it: "its own time", "copies", "launches", "waiting", ...
    why: the sentence: why it was chosen, lost, or is refused
    """

    device: str
    estimate_s: float | None
    run_s: float | None
    why: str
    free_s: float | None = None
    appears: tuple[str, ...] = ()
    vanishes: tuple[str, ...] = ()
    binding: str = ""


@dataclass(frozen=True)
class CopyReason:
    """One copy: what it takes, and the ways to be rid of it."""

    value: str
    source: str
    target: str
    nbytes: int
    estimate_s: float
    ways: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """Why some nodes of a placement, and its copies, are where they are.

    Alternatives are priced when they are asked for: each takes a scoring of the whole graph.

    positions: the nodes that are explained, by place in the graph
    free: whether it says as well what each alternative comes to when every other node may move
    with_copies: whether copies are explained too
    events: the faults of devices that the placement's session met, and what became of each
    """

    placement: Placement
    positions: tuple[int, ...]
    free: bool = False
    with_copies: bool = True
    events: tuple[FaultEvent, ...] = ()

    @cached_property
    def nodes(self) -> tuple[tuple[Node, tuple[Alternative, ...]], ...]:
        """Each node that is explained and its alternatives, the chosen one first."""
        return tuple(map(self._row, self.positions))

    @cached_property
    def copies(self) -> tuple[CopyReason, ...]:
        """The copies, if they are explained."""
        return _copies(self._evaluator) if self.with_copies else ()

    @cached_property
    def _evaluator(self) -> MoveEvaluator:
        return MoveEvaluator(self.placement)

    def _row(self, position: int) -> tuple[Node, tuple[Alternative, ...]]:
        node = self.placement.source.nodes[position]
        return node, _alternatives(self._evaluator, position, node, self.free)

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as plain data."""
        names = node_names(self.placement.source)
        rows = [
            {
                "id": node.id,
                "name": names[node.id],
                "op": node.op,
                "source": node.source,
                "device": self.placement.choices[node.id].device,
                "after": self._order(node, names),
                "alternatives": [vars(alternative) for alternative in alternatives],
                "bodies": {
                    key: explain(body).to_json()
                    for key, body in self.placement.bodies_of(node).items()
                },
            }
            for node, alternatives in self.nodes
        ]
        copies = [vars(copy) for copy in self.copies]
        events = [one.to_json() for one in self.events]
        return {**self.placement.to_json(), "nodes": rows, "copies": copies, "events": events}

    def summary(self, advice: Sequence[str] = (), width: int | None = WIDTH) -> str:
        """Return one screen: the placement's summary, advice, and the nodes that cost most, each
        with its next best device.

        width: the most columns of a line; None: no line is cut
        """
        lines = [*self.placement.summary(width).split("\n"), *event_lines(self.events)]
        for text in advice:
            lines += wrapped(text, width, "  advice: ")
        most = max(min(MOST_NODES, SCREEN - len(lines) - 3), LEAST_NODES)
        dearest = sorted(self.positions, key=lambda position: -self._own_s(position))[:most]
        if dearest:
            lines.append(f"  nodes that cost most, of {len(self.positions)}:")
        names = node_names(self.placement.source)
        for node, (chosen, *others) in map(self._row, dearest):
            name = f"{node.op} {clipped_name(names[node.id], 43 - len(node.op))}"
            took = time_text(chosen.estimate_s or 0.0)
            lines.append(f"    {name:<45}{chosen.device:<8}{took:>8}  {self._next_best(others)}")
        return "\n".join(clipped(line, width) for line in lines)

    def _own_s(self, position: int) -> float:
        choice = self.placement.choices[self.placement.source.nodes[position].id]
        return choice.estimates[choice.device].seconds

    def _next_best(self, others: Sequence[Alternative]) -> str:
        """Return where a node would cost least among other devices, and how much more."""
        able = [one for one in others if one.run_s is not None]
        best = min(able, key=lambda one: one.run_s or 0.0, default=None)
        if best is None:
            return "no other device can run it" if others else ""
        score = self.placement.score
        return f"{best.device}: {score.change((best.run_s or 0.0) - score.value)}"

    def __str__(self) -> str:
        events = event_lines(self.events, len(self.events))
        return "\n".join([self.placement.full_text(), *events, "", self.pages()])

    def pages(self) -> str:
        """Return a page for each node: what it reads and makes, and every alternative."""
        lines, names = [], node_names(self.placement.source)
        for node, (chosen, *others) in self.nodes:
            lines.append(
                f"{node.label} {names[node.id]!r}, task {self.placement.stage_of[node.id]}"
            )
            lines += self._value_lines(node, names)
            for one in self._order(node, names):
                lines.append(f"    waits for {one['node']} on {one['device']}: {one['why']}")
            lines += _alternative_lines("*", chosen)
            for other in others:
                lines += _alternative_lines(" ", other)
            for key, body in self.placement.bodies_of(node).items():
                lines.append(f"  {key}: {body.as_body(key)}, placed by itself")
                lines.append(textwrap.indent(explain(body).pages(), "    "))
        for copy in self.copies:
            lines.append(
                f"copy {copy.value} {copy.source} -> {copy.target}: {bytes_text(copy.nbytes)}, "
                f"{time_text(copy.estimate_s)}"
            )
            lines += [f"    {way}" for way in copy.ways]
        return "\n".join(lines)

    def _order(self, node: Node, names: Mapping[int, str]) -> list[dict[str, str]]:
        """Return the nodes that a node waits for though no data comes from them, and why."""
        graph, device_of = self.placement.source, self.placement.device_of
        return [
            {
                "node": f"{before.op} {names[before.id]!r}",
                "device": device_of[before.id],
                "why": order_reason(node, before),
            }
            for before in map(graph.node, node.after)
        ]

    def _value_lines(self, node: Node, names: Mapping[int, str]) -> list[str]:
        """Return a line for each value that a node reads or makes, and where the other end is."""
        graph, device_of = self.placement.source, self.placement.device_of
        lines = []
        for value in node.used:
            made = graph.producer(value)
            origin = "a constant" if graph.values[value].is_constant else "an input"
            if made is not None:
                origin = f"from {made.op} {names[made.id]!r} on {device_of[made.id]}"
            lines.append(f"    reads {_value_text(graph, value)}, {origin}")
        for value in node.outputs:
            users = [f"{u.op} {names[u.id]!r} on {device_of[u.id]}" for u in graph.users(value)]
            users += ["the model's output"] if graph.is_output(value) else []
            more = f" and {len(users) - 3} more" if len(users) > 3 else ""
            readers = f", for {', '.join(users[:3])}{more}" if users else ""
            lines.append(f"    makes {_value_text(graph, value)}{readers}")
        return lines


def _value_text(graph: Graph, value: int) -> str:
    type = graph.type(value)
    size = f" ({bytes_text(type.nbytes)})" if type.is_static else ""
    return f"{graph.values[value].first_name} {type}{size}"


def _alternative_lines(mark: str, one: Alternative) -> list[str]:
    lines = [f"  {mark} {one.device:8} {_us(one.estimate_s)}  {one.why}"]
    margin = " " * 26
    if one.vanishes:
        lines.append(f"{margin}vanishes: {', '.join(one.vanishes)}")
    if one.appears:
        lines.append(f"{margin}appears: {', '.join(one.appears)}")
    return lines


def _us(seconds: float | None) -> str:
    return f"{'-' if seconds is None else time_text(seconds):>12}"


@checked(PlacementError)
def explain(
    placement: Placement,
    nodes: Collection[int] | None = None,
    free: bool = False,
    events: Sequence[FaultEvent] = (),
) -> Explanation:
    """Return the reasons of a placement.

    nodes: the ids of the nodes to explain; all of them, and the copies, when None
    free: say as well what each alternative comes to when every other node may move: a search each
    events: of the session that runs the placement (`Session.events`), to be shown beside it
    """
    positions = tuple(
        position
        for position, node in enumerate(placement.source.nodes)
        if nodes is None or node.id in nodes
    )
    return Explanation(placement, positions, free, nodes is None, tuple(events))


def _alternatives(
    evaluator: MoveEvaluator, position: int, node: Node, free: bool
) -> tuple[Alternative, ...]:
    placement = evaluator.placement
    choice = placement.choices[node.id]
    trials = {
        name: evaluator.moved({position: d})
        for d, name in enumerate(evaluator.names)
        if d in evaluator.problem.able[position] and name != choice.device
    }
    others = []
    for name in placement.specs:
        if name in choice.refusals:
            others.append(Alternative(name, None, None, choice.refusals[name]))
        elif name in trials:
            found = evaluator.free(position, evaluator.names.index(name)) if free else None
            others.append(
                _alternative(evaluator, choice.estimates[name].seconds, name, trials[name], found)
            )
    return (_chosen(evaluator, node, trials), *others)


def _chosen(evaluator: MoveEvaluator, node: Node, trials: Mapping[str, Trial]) -> Alternative:
    choice = evaluator.placement.choices[node.id]
    own = choice.estimates[choice.device]
    if node.pin:
        why = f"pinned to {node.pin}"
    elif not trials:
        why = "no other device can run it"
    else:
        near = min(trials, key=lambda name: trials[name].value)
        more = trials[near].value - evaluator.value
        why = f"next best is {near}, {evaluator.change(more)}"
        why += f", for {trials[near].binding}" if more > 0 else ""
    note = choice.notes.get(choice.device)
    remark = f" ({own.source}{'; ' + note if note else ''})"
    return Alternative(choice.device, own.seconds, evaluator.value, why + remark)


def _alternative(
    evaluator: MoveEvaluator, estimate_s: float, name: str, trial: Trial, free: float | None
) -> Alternative:
    change = trial.value - evaluator.value
    why = f"the run would take {evaluator.change(change)} with it here"
    if change > 0:
        why += f", for {trial.binding}"
    if free is not None:
        why += f"; {evaluator.change(free - evaluator.value)} with all others placed anew"
    return Alternative(
        name, estimate_s, trial.value, why, free, trial.appears, trial.vanishes, trial.binding
    )


def _copies(evaluator: MoveEvaluator) -> tuple[CopyReason, ...]:
    """Return each copy, with what it would cost to move its readers, or its maker, instead."""
    placement, problem = evaluator.placement, evaluator.problem
    reasons = []
    for value, source, target in evaluator.copies:
        spaces = problem.machine.spaces
        maker, readers = evaluator.ends(value, target)
        ways = []
        if maker >= 0:
            ways.append(_way(evaluator, [maker], target, "its maker"))
        if readers:
            ways.append(_way(evaluator, readers, source, "its readers"))
        reasons.append(
            CopyReason(
                placement.source.values[value].first_name,
                spaces[source],
                spaces[target],
                problem.nbytes[value],
                problem.copy_s(value, source, target),
                tuple(ways),
            )
        )
    return tuple(reasons)


def _way(evaluator: MoveEvaluator, nodes: list[int], space: int, who: str) -> str:
    """Return the sentence of what moving some nodes to a memory space would come to."""
    problem, graph = evaluator.problem, evaluator.placement.source
    where = problem.machine.spaces[space]
    best: Trial | None = None
    for d in (d for d in problem.devices if problem.space[d] == space):
        if all(d in problem.able[i] for i in nodes):
            trial = evaluator.moved(dict.fromkeys(nodes, d))
            best = trial if best is None or trial.value < best.value else best
    labels = ", ".join(graph.nodes[i].label for i in nodes[:3]) + (
        ", ..." if len(nodes) > 3 else ""
    )
    if best is None:
        return f"{who} ({labels}) cannot all run in {where}"
    return f"with {who} ({labels}) in {where}: {evaluator.change(best.value - evaluator.value)}"
