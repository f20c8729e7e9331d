"""Advice on fragmentation: which refusals break regions, and what lifting one would save.

A device refuses an op for a reason. The advice prices the nodes that this concerns by the device's
roofline, as if it had a kernel, and searches again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trireme.backend.refusal import rule_of
from trireme.cost.work import roofline_s, work_of
from trireme.ir.graph import Node
from trireme.placement.move_cost import MoveEvaluator
from trireme.placement.placement import Placement
from trireme.placement.stages import Tasks
from trireme.support.units import time_text


@dataclass(frozen=True)
class Advice:
    """One kind of refusal, and what the placement would be without it.

    regions: tasks of the device without and with the nodes; saved: of the objective, in seconds or
        joules, of the best that is found without them
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
                kinds.setdefault((device, node.op, rule_of(reason)), []).append(position)
    if not kinds:
        return []
    evaluator = MoveEvaluator(placement)
    commonest = sorted(kinds, key=lambda kind: (-len(kinds[kind]), kind))[:most]
    base = _best(evaluator)
    found = [_advice(evaluator, base, kind, kinds[kind]) for kind in commonest]
    worth = [advice for advice in found if advice.saved > least * evaluator.value]
    return sorted(worth, key=lambda advice: -advice.saved)


def _best(evaluator: MoveEvaluator) -> tuple[float, Tasks]:
    """Return the score and tasks of the placement, or of a search where that finds better: of a
    mixture that was given up. Advice does not count its gain as an op's.
    """
    value, _, tasks = evaluator.searched(evaluator.seconds)
    return min((evaluator.value, evaluator.tasks), (value, tasks), key=lambda one: one[0])


def _advice(
    evaluator: MoveEvaluator,
    base: tuple[float, Tasks],
    kind: tuple[str, str, str],
    nodes: list[int],
) -> Advice:
    device, op, reason = kind
    placement = evaluator.placement
    index = evaluator.names.index(device)
    seconds = [list(row) for row in evaluator.seconds]
    for i in nodes:
        seconds[i][index] = _assumed_s(placement, placement.source.nodes[i], device)
    assumed_s = sum(seconds[i][index] or 0.0 for i in nodes)
    value, _, tasks = evaluator.searched(seconds)
    now = sum(d == index for d, _ in base[1])
    then = sum(d == index for d, _ in tasks)
    saved = base[0] - value
    text = (
        f"{device} refuses {len(nodes)} {op} ({reason}): with them {_joined(now, then)}, and the "
        f"run would take {evaluator.change(-saved)} ({saved / base[0]:.0%}), at an assumed "
        f"{time_text(assumed_s)} for all of them"
    )
    labels = tuple(placement.source.nodes[i].label for i in nodes)
    return Advice(device, op, reason, labels, (now, then), saved, assumed_s, text)


def _joined(now: int, then: int) -> str:
    """Return what becomes of a device's regions."""
    if not now:
        return f"it would get {then} region{'s' * (then != 1)}"
    regions = f"{now} region{'s' * (now != 1)}"
    return f"its {regions} would be {then}" if now != then else f"it would keep its {regions}"


def _assumed_s(placement: Placement, node: Node, device: str) -> float:
    return roofline_s(work_of(placement.source, node), placement.specs[device])


def advice_json(advice: list[Advice]) -> list[dict[str, Any]]:
    """Return advice as plain data."""
    return [vars(one) for one in advice]
