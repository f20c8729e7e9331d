"""Advice where a graph is shattered: which refusals break regions, what lifting one would save.

For every device and every (op, reason) that it refuses, the nodes concerned are priced by the
device's roofline as if it had them, and the graph is placed again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trireme.cost import roofline_s, work_of
from trireme.graph import Node
from trireme.placement import Placement
from trireme.placing.reprice import Repricer


@dataclass(frozen=True)
class Advice:
    """One kind of refusal, and what the placement would be without it.

    regions: tasks of the device now and then; saved: of the objective, in seconds or joules
    assumed_s: what the nodes are assumed to take there in all, by the roofline
    """

    device: str
    op: str
    reason: str
    nodes: tuple[str, ...]
    regions: tuple[int, int]
    saved: float
    assumed_s: float
    text: str

    def __str__(self) -> str:
        return self.text


def advise(placement: Placement, least: float = 0.005, most: int = 12) -> list[Advice]:
    """Return advice that saves at least a share `least` of the score, the most saving first.

    Only the `most` commonest kinds of refusal are looked at: each takes a search.
    """
    kinds: dict[tuple[str, str, str], list[int]] = {}
    for position, node in enumerate(placement.source.nodes):
        for device, reason in placement.choices[node.id].refusals.items():
            if node.pin is None:
                kinds.setdefault((device, node.op, _general(reason)), []).append(position)
    if not kinds:
        return []
    repricer = Repricer(placement)
    commonest = sorted(kinds, key=lambda kind: (-len(kinds[kind]), kind))[:most]
    found = [_advice(repricer, kind, kinds[kind]) for kind in commonest]
    worth = [advice for advice in found if advice.saved > least * repricer.value]
    return sorted(worth, key=lambda advice: -advice.saved)


def _general(reason: str) -> str:
    """Return the part of a refusal that is common to nodes of its kind."""
    return reason.split(" (here")[0]


def _advice(repricer: Repricer, kind: tuple[str, str, str], nodes: list[int]) -> Advice:
    device, op, reason = kind
    placement = repricer.placement
    index = repricer.names.index(device)
    seconds = [list(row) for row in repricer.seconds]
    for i in nodes:
        seconds[i][index] = _assumed_s(placement, placement.source.nodes[i], device)
    assumed_s = sum(seconds[i][index] or 0.0 for i in nodes)
    value, _, tasks = repricer.searched(seconds)
    now = sum(d == index for d, _ in repricer.tasks)
    then = sum(d == index for d, _ in tasks)
    saved = repricer.value - value
    joined = f"its {now} regions would be {then}" if now else f"it would get {then} regions"
    text = (
        f"{device} refuses {len(nodes)} {op} ({reason}): with them {joined}, and the run would "
        f"take {repricer.text(saved)} less ({saved / repricer.value:.0%}), at an assumed "
        f"{assumed_s * 1e6:.1f} us for all of them"
    )
    labels = tuple(placement.source.nodes[i].label for i in nodes)
    return Advice(device, op, reason, labels, (now, then), saved, assumed_s, text)


def _assumed_s(placement: Placement, node: Node, device: str) -> float:
    return roofline_s(work_of(placement.source, node), placement.specs[device])


def advice_json(advice: list[Advice]) -> list[dict[str, Any]]:
    """Return advice as plain data."""
    return [vars(one) for one in advice]
