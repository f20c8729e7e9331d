"""Why every node is where it is: the alternatives, what each would cost, and the refusals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trireme.graph import Node
from trireme.makespan import Machine, Makespan
from trireme.placement import Placement


@dataclass(frozen=True)
class Alternative:
    """One device for one node.

    estimate_s: the node's own predicted seconds there; None where the device refuses it
    run_s: predicted seconds of the whole run if only this node were there
    why: the sentence: why it was chosen, lost, or is refused
    """

    device: str
    estimate_s: float | None
    run_s: float | None
    why: str


@dataclass(frozen=True)
class Explanation:
    """For each node of a placement, in order: the node and its alternatives, the chosen first."""

    placement: Placement
    nodes: tuple[tuple[Node, tuple[Alternative, ...]], ...]

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as plain data."""
        rows = [
            {
                "id": node.id,
                "op": node.op,
                "source": node.source,
                "device": self.placement.choices[node.id].device,
                "alternatives": [vars(alternative) for alternative in alternatives],
            }
            for node, alternatives in self.nodes
        ]
        return {**self.placement.to_json(), "nodes": rows}

    def __str__(self) -> str:
        lines = [str(self.placement), ""]
        for node, (chosen, *others) in self.nodes:
            types = ", ".join(str(self.placement.source.type(v)) for v in node.outputs)
            lines.append(f"{node.label} -> {types}")
            lines.append(f"  * {chosen.device:8} {_us(chosen.estimate_s)}  {chosen.why}")
            lines += [f"    {o.device:8} {_us(o.estimate_s)}  {o.why}" for o in others]
        for copy in self.placement.to_json()["copies"]:
            lines.append(
                f"copy {copy['value']} {copy['from']} -> {copy['to']}: {copy['bytes']} bytes, "
                f"{copy['estimate_s'] * 1e6:.1f} us"
            )
        return "\n".join(lines)


def _us(seconds: float | None) -> str:
    return f"{'-':>12}" if seconds is None else f"{seconds * 1e6:9.1f} us"


def explain(placement: Placement) -> Explanation:
    """Return the reasons of a placement; each alternative is priced by moving that node alone."""
    names = tuple(placement.specs)
    machine = Machine.of(placement.specs, placement.launch_s, placement.links)
    seconds = [
        [_seconds(placement, node, name) for name in names] for node in placement.source.nodes
    ]
    makespan = Makespan(placement.source, machine, seconds)
    assigned = [names.index(placement.choices[node.id].device) for node in placement.source.nodes]
    rows = []
    for position, node in enumerate(placement.source.nodes):
        moved = {}
        for index, name in enumerate(names):
            if seconds[position][index] is not None and index != assigned[position]:
                trial = (*assigned[:position], index, *assigned[position + 1 :])
                moved[name] = makespan(trial)
        rows.append((node, _alternatives(placement, node, moved)))
    return Explanation(placement, tuple(rows))


def _seconds(placement: Placement, node: Node, device: str) -> float | None:
    estimate = placement.choices[node.id].estimates.get(device)
    return None if estimate is None else estimate.seconds


def _alternatives(
    placement: Placement, node: Node, moved: Mapping[str, float]
) -> tuple[Alternative, ...]:
    choice = placement.choices[node.id]
    best = placement.makespan_s
    own = choice.estimates[choice.device]
    why = "no other device can run it" if not moved else "the run is fastest with it here"
    if node.pin:
        why = f"pinned to {node.pin}"
    note = choice.notes.get(choice.device)
    chosen = Alternative(
        choice.device, own.seconds, best, f"{why} ({own.source}{'; ' + note if note else ''})"
    )
    others = []
    for name in placement.specs:
        if name in choice.refusals:
            others.append(Alternative(name, None, None, choice.refusals[name]))
        elif name in moved:
            change = moved[name] - best
            verb = "slower" if change >= 0 else "faster"
            sentence = f"the run would be {abs(change) * 1e6:.1f} us {verb} with it here"
            seconds = choice.estimates[name].seconds
            others.append(Alternative(name, seconds, moved[name], sentence))
    return (chosen, *others)
