"""Why a device is unused: what its cheapest use would add to a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trireme.placement.objective import Scorer
from trireme.placement.problem import CALLER, Assignment, Problem
from trireme.support.records import dataclass

_ESTIMATED = 12
"""Nodes of least local price that are scored by the rules that matter most."""
_EVALUATED = 2
"""The best of these, which are scored by all rules."""


@dataclass(frozen=True)
class CheapestUse:
    """The score of a run with a device in use: for one node, by its position; or, where that is
    None, in a placement that the search met.
    """

    device: int
    node: int | None
    value: float

    def text(self, label: str | None, change: str) -> str:
        """Return the sentence of it; label: of the node; change: "48.0 us more"."""
        if label is None:
            return f"the best run found with it takes {change}"
        return f"with {label} alone there, the run takes {change}"


def least_uses(
    scorer: Scorer, assigned: Assignment, met: Mapping[int, float]
) -> Iterator[CheapestUse]:
    """Yield the cheapest use that is found of each device that could have a node and has none.

    met: device -> the least score that a search met with it in use
    """
    problem = scorer.problem
    for d in problem.devices:
        nodes = [i for i in range(problem.n) if d in problem.able[i]]
        if not nodes or d in assigned:
            continue
        ranked = sorted(nodes, key=lambda i: (_local(problem, assigned, i, d), i))[:_ESTIMATED]
        moved = {i: (*assigned[:i], d, *assigned[i + 1 :]) for i in ranked}
        best = sorted(ranked, key=lambda i: (scorer.estimate(moved[i]), i))[:_EVALUATED]
        settled = {i: scorer.evaluate(moved[i])[0] for i in best}
        node = min(settled, key=lambda i: (settled[i], i))
        searched = met.get(d, float("inf"))
        by_node = CheapestUse(d, node, settled[node])
        yield by_node if by_node.value <= searched else CheapestUse(d, None, searched)


def _local(problem: Problem, assigned: Assignment, node: int, device: int) -> float:
    """Return the extra seconds of a node and the copies around it on a device."""
    return _around(problem, assigned, node, device) - _around(
        problem, assigned, node, assigned[node]
    )


def _around(problem: Problem, assigned: Assignment, node: int, device: int) -> float:
    space, seconds = problem.space, problem.seconds[node][device] or 0.0
    crossing = {
        (value, 0 if maker == CALLER else space[assigned[maker]], space[device])
        for value, maker in problem.inputs[node]
    } | {
        (value, space[device], 0 if reader == CALLER else space[assigned[reader]])
        for value, reader in problem.reads[node]
    }
    return seconds + sum(problem.copy_s(v, s, t) for v, s, t in crossing if s != t)
