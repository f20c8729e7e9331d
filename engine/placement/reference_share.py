"""The share of a run's predicted time that nodes without a kernel take, for a warning.

Such nodes run on the numpy reference: right, and slow. A device that is asked for as the reference
(host) is no surprise and does not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from trireme.backend.device import HOST
from trireme.ir.graph import node_names
from trireme.placement.placement import Placement
from trireme.support.records import dataclass
from trireme.support.showing import clipped_name

LEAST_SHARE = 0.10
"""The share of the predicted time from which a user is told."""
_MOST_NODES = 3


@dataclass(frozen=True)
class ReferenceNode:
    """A node that runs on the numpy reference.

    share: of the predicted seconds of all nodes and copies
    why: the device's sentence on the kernel that it lacks
    """

    name: str
    op: str
    share: float
    why: str


@dataclass(frozen=True)
class _TimedNode:
    name: str
    op: str
    seconds: float
    why: str


def uses_reference(placement: Placement) -> bool:
    """Whether a node of a placement, or of a body in it, runs on the numpy reference."""
    return any(part.why for part in _parts(placement))


def reference_nodes(placements: Iterable[Placement]) -> list[ReferenceNode]:
    """Return the nodes on the numpy reference of placements that run in turn, the dearest first."""
    parts, total = [], 0.0
    for placement in placements:
        mine = list(_parts(placement))
        total += sum(part.seconds for part in mine) + placement.copies_s()
        parts += [part for part in mine if part.why]
    parts.sort(key=lambda part: -part.seconds)
    return [
        ReferenceNode(part.name, part.op, part.seconds / total if total else 0.0, part.why)
        for part in parts
    ]


def reference_note(model: str, nodes: Sequence[ReferenceNode], fix: str) -> str:
    """Return the sentence on nodes that take LEAST_SHARE of the time or more; "" if they do not.

    fix: what may spare the user the reference
    """
    share = sum(node.share for node in nodes)
    if share <= LEAST_SHARE:
        return ""
    shown = nodes[:_MOST_NODES]
    named = [f"{node.op} {clipped_name(node.name, 40)!r} {node.share:.0%}" for node in shown]
    why = "; ".join(dict.fromkeys(node.why for node in shown))
    more = f", and {len(nodes) - _MOST_NODES} more" if len(nodes) > _MOST_NODES else ""
    count = f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}"
    return (
        f"{clipped_name(model, 40)!r}: {count} without a kernel take {share:.0%} of the predicted "
        f"time: {', '.join(named)}{more} ({why}); fix: {fix}"
    )


def _parts(placement: Placement) -> Iterator[_TimedNode]:
    """Yield the nodes with their predicted seconds; in place of a node with bodies, theirs."""
    names = node_names(placement.source)
    for node in placement.source.nodes:
        choice = placement.choices[node.id]
        seconds = choice.estimates[choice.device].seconds
        inner = [part for body in placement.bodies_of(node).values() for part in _parts(body)]
        turn_s = sum(part.seconds for part in inner)
        if turn_s:
            for part in inner:
                yield _TimedNode(part.name, part.op, part.seconds * seconds / turn_s, part.why)
            continue
        why = "" if choice.device == HOST else choice.notes.get(choice.device, "")
        yield _TimedNode(names[node.id], node.op, seconds, why)
