"""Starts of the search: assignments worth improving, each by a rule with a name.

Single devices, the fastest device of each node, the dynamic programme over a forest of the graph,
and the assignment that balances the resources' loads. Others were tried and earned nothing
(docs/experiments/placement.md).
"""

from __future__ import annotations

from collections.abc import Iterator

from trireme.placement.bounds import Forest, LoadBound
from trireme.placement.candidate import CandidateKind
from trireme.placement.prices import Prices
from trireme.placement.problem import Assignment, Problem


def single_device(problem: Problem, device: int) -> Assignment:
    """Return all the device can run on it, and the rest wherever it is cheapest."""
    return tuple(
        device if device in able else min(able, key=lambda d: (problem.own_s(i, d), d))
        for i, able in enumerate(problem.able)
    )


def starts(
    problem: Problem, prices: Prices, forest: Forest, load: LoadBound | None
) -> Iterator[tuple[str, CandidateKind, Assignment]]:
    """Yield (name, kind, assignment); each can run, and the order is the same every time."""
    names = problem.machine.names
    if not problem.n:
        yield "no nodes", "start", ()
        return
    for d in problem.devices:
        whole = single_device(problem, d)
        if d in whole:
            only = all(device == d for device in whole)
            yield f"{names[d]} {'only' if only else 'first'}", "single", whole
    if problem.k == 1:
        return
    fastest = tuple(
        min(able, key=lambda d: (problem.own_s(i, d), d)) for i, able in enumerate(problem.able)
    )
    yield "each node at its fastest", "start", fastest
    yield "dynamic programme", "start", forest.solve(prices)[1]
    if load is not None:
        yield "balanced", "start", load.balanced
