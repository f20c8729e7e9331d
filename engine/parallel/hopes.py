"""What a split could gain at most: the candidates of which `choose` tries the most promising.

Regions between two nodes, of one node up to the whole graph, by every kind of split and every set
of devices that do not share silicon.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trireme.errors import PlacementError
from trireme.graph import Graph
from trireme.naming import reach
from trireme.parallel.evaluate import Evaluator
from trireme.parallel.rules import splittable
from trireme.parallel.spec import Request
from trireme.parallel.split import KINDS, extent, leaving
from trireme.placement import Placement
from trireme.placing.objective import UNIT, Objective

LEAST_GAIN, UNMEASURED_GAIN = 0.02, 0.25
"""Shares of the objective below which a split is not worth its trouble: where what its parts take
was measured or modelled, and where it is read off data sheets, which may be wrong by more."""
LEAST_GAIN_S = 10e-6
"""And the seconds: what the host takes to start parts one after another is in no price."""


def asked(is_measured: bool, value: float, objective: Objective) -> float:
    """Return what a split must gain, in the objective's unit."""
    share = value * (LEAST_GAIN if is_measured else UNMEASURED_GAIN)
    return max(share, LEAST_GAIN_S) if UNIT[objective] == "s" else share


@dataclass(frozen=True)
class Hope:
    """A candidate, the seconds that it could gain at most, and what it must gain to be done."""

    seconds: float
    asked: float
    request: Request


def hopes(tries: Evaluator, plain: Placement, value: float, fixed: set[int]) -> Iterator[Hope]:
    """Yield every candidate with the most it could gain: its time shared out by speed, with the
    copies of what a part reads and makes, and their launches."""
    sets = list(_device_sets(plain))
    for nodes in _regions(tries.graph, fixed):
        for kind in KINDS:
            try:
                size, step = extent(tries.graph, nodes, kind)
            except PlacementError:
                continue
            for devices in sets:
                if size // step >= len(devices):
                    gain = _ideal(tries, plain, nodes, devices)
                    if gain > 0:
                        least = asked(tries.is_measured(nodes, devices), value, tries.objective)
                        yield Hope(gain, least, Request(nodes, kind, devices, ()))


def _ideal(
    tries: Evaluator, plain: Placement, nodes: Sequence[int], devices: Sequence[str]
) -> float:
    rates = []
    for device in devices:
        if any(device not in tries.known[node][0] for node in nodes):
            return 0.0
        own = sum(tries.known[node][0][device].seconds for node in nodes)
        rates.append(1 / max(own, 1e-12))
    now = sum(tries.known[node][0][tries.where[node]].seconds for node in nodes)
    latest = max(plain.launch_s[device] + _latency(plain, device) for device in devices)
    return now - 1 / sum(rates) - latest


def _latency(plain: Placement, device: str) -> float:
    memory = plain.specs[device].memory
    return plain.links.seconds(0, "host", memory) if memory != "host" else 0.0


def _device_sets(plain: Placement) -> Iterator[tuple[str, ...]]:
    """Yield sets of devices that share no silicon: pairs first, then larger ones."""
    names = list(plain.specs)
    for count in range(2, len(names) + 1):
        for some in itertools.combinations(names, count):
            groups = {plain.specs[name].resource_group or name for name in some}
            if len(groups) == count:
                yield some


def _regions(graph: Graph, fixed: set[int]) -> Iterator[tuple[int, ...]]:
    """Yield single nodes, and the nodes between two through which everything flows."""
    able = {n.id for n in graph.nodes if splittable(n.op) and n.id not in fixed and not n.pin}
    work = [node for node in graph.nodes if node.id in able]
    for node in work:
        yield (node.id,)
    above, below = reach(graph)
    at = {node.id: i for i, node in enumerate(graph.nodes)}
    for length in (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, max(len(work), 2)):
        for i in range(0, len(work) - length + 1, max(length // 8, 1)):
            some = work[i : i + length]
            nodes = tuple(node.id for node in some)
            both = below[nodes[0]] & above[nodes[-1]]
            if both == sum(1 << at[node] for node in nodes) and len(leaving(graph, nodes)) == 1:
                yield nodes
