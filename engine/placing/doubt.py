"""Whether a mixture of devices is surely better than one device: estimates are not certain.

The search compares predictions to the last digit. A mixture that is predicted to gain less than
the estimates may be wrong by may as well lose, so `surely` gives it up for the best single device,
in sight and with its price. It is asked after the search, or after a proof: `place` itself, bounds
and what `explain` prices are of virtual time.

What is certain: a time on a virtual clock, which shows what the model says (the simulated NPU,
described machines), and what two placements have in common, which is wrong in both alike.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

from trireme.cost import CostModel, Estimate, Source, interval
from trireme.device import HOST, DeviceSpec
from trireme.place import Pricing
from trireme.placement import Placement
from trireme.placing.objective import Objective, Scorer
from trireme.placing.singles import is_single, singles

Mixtures = Literal["sure", "any"]
"""Which mixtures of devices are taken: those that gain more than the estimates may be wrong by, or
all that are predicted to gain."""


def surely(placement: Placement, costs: CostModel) -> Placement:
    """Return a placement, or the best single device (what it refuses elsewhere) if it is a mixture
    that gains less over it than the estimates of what differs may be wrong by; `unmixed` says so.

    Pins hold. Joules are a description's, and left as they are.
    """
    if placement.score.unit != "s":
        return placement
    objective = cast(Objective, placement.score.objective)
    known = {
        node: (dict(choice.estimates), dict(choice.refusals), dict(choice.notes))
        for node, choice in placement.choices.items()
    }
    pricing = Pricing.of(placement.source, costs, known)
    assigned, _ = pricing.kept(placement)
    if is_single(pricing.problem, assigned):
        return placement
    scorer = Scorer(pricing.problem, objective)
    fitting = (one for one in singles(pricing, objective)
               if not scorer.overfull(one.assigned, one.tasks))  # fmt: skip
    best = min(fitting, key=lambda one: one.value, default=None)
    if best is None:
        return placement
    kept = pricing.placed(scorer, best.assigned, tasks=best.tasks)
    doubt = doubt_s(kept, placement, costs)
    if best.value - placement.score.value >= doubt:
        return placement
    return _instead(kept, best.device, placement, doubt)


def surer(held: Placement, found: Placement, costs: CostModel) -> Placement:
    """Return what was found, or what is held of the same graph if what was found moves gains less
    than the estimates of what differs may be wrong by; `unmixed` says so.
    """
    if found.score.unit != "s" or found.device_of == held.device_of:
        return found
    doubt = doubt_s(held, found, costs)
    if held.score.value - found.score.value >= doubt:
        return found
    why = _why("kept around the parts: the best placement found", held, found, doubt)
    return _known(held, found, held.unused, why)


def _instead(kept: Placement, device: str, mixture: Placement, doubt: float) -> Placement:
    """Return a device alone with what is known of the mixture: its bound, what it would gain."""
    why = _why(f"kept on {device}: the best mixture found", kept, mixture, doubt)
    unused = {
        name: f"{device} was kept to, as a mixture is not surely better"
        if mixture.nodes_on(name) else why
        for name, why in kept.unused.items()
    }  # fmt: skip
    return _known(kept, mixture, unused, why)


def _known(kept: Placement, found: Placement, unused: Mapping[str, str], why: str) -> Placement:
    """Return a placement with what is known of another, for which it was kept."""
    bound = max((kept.score, found.score), key=lambda score: score.lower_bound)
    score = replace(kept.score, lower_bound=bound.lower_bound, bound_from=bound.bound_from)
    return replace(
        kept, score=score, candidates=found.candidates, unused=dict(unused), unmixed=why
    )  # fmt: skip


def _why(what: str, kept: Placement, mixture: Placement, doubt: float) -> str:
    """Return the sentence that says why something is kept to, and not to a mixture."""
    mine, gain = kept.score, kept.score.value - mixture.score.value
    counts = ", ".join(f"{name} {len(mixture.nodes_on(name))}" for name in mixture.specs)
    return (
        f"{what} ({counts} nodes in {mixture.tasks} tasks) is predicted to take {mine.text(gain)} "
        f"less ({gain / mine.value:.1%}), and the estimates of what differs may be wrong by "
        f"{mine.text(doubt)} ({doubt / mine.value:.1%})"
    )


def doubt_s(one: Placement, other: Placement, costs: CostModel) -> float:
    """Return by how many seconds the difference between two placements may be predicted wrongly.

    Each side's own tasks, copies and nodes have the interval of their sum (cost.py), and the two
    sides are wrong independently of each other.
    """
    ours, theirs = Counter(_parts(one, costs)), Counter(_parts(other, costs))
    gone, added = list((ours - theirs).elements()), list((theirs - ours).elements())
    low = sum(part.own.seconds for part in gone) - interval(part.own for part in gone)[0]
    high = interval(part.own for part in added)[1] - sum(part.own.seconds for part in added)
    return math.hypot(low, high)


@dataclass(frozen=True)
class _Part:
    """A node, a task's launch or a copy: what it is, the kind of device that does it, and how long
    it takes. Two placements have it in common if all three are the same."""

    what: object
    where: str
    own: Estimate


def _parts(placement: Placement, costs: CostModel) -> Iterator[_Part]:
    """Yield what a placement does on the wall clock: nodes, launches and copies."""
    wall = {name: spec for name, spec in placement.specs.items() if spec.clock == "wall"}
    for id, choice in placement.choices.items():
        if choice.device in wall:
            yield _Part(id, _kind(wall[choice.device]), choice.estimates[choice.device])
    tasks = {placement.stage_of[id]: one.device for id, one in placement.choices.items()}
    for device in tasks.values():
        if device in wall:
            own = Estimate(placement.launch_s[device], _source([wall[device]], costs))
            yield _Part("launch", _kind(wall[device]), own)
    for copy in placement.copies():
        way = placement.device_of[copy.id]
        source, target = way.split(">")
        ends = [s for s in placement.specs.values() if s.memory in {source, target} - {HOST}]
        if all(spec.clock == "wall" for spec in ends):
            nbytes = placement.graph.type(copy.outputs[0]).nbytes
            own = Estimate(placement.links.seconds(nbytes, source, target), _source(ends, costs))
            yield _Part(copy.used[0], way, own)


def _kind(spec: DeviceSpec) -> str:
    """Return what tells devices of the same curves: instances of a cpu are wrong alike."""
    return f"{spec.kind}: {spec.description}"


def _source(specs: Sequence[DeviceSpec], costs: CostModel) -> Source:
    """Return where what is known of launches and copies of these devices comes from."""
    measured = all(costs.calibration.of(spec) for spec in specs)
    return "calibration" if measured else "roofline"
