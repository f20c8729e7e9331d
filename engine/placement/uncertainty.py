"""Whether a mixture of devices is surely better than one device: estimates are not certain.

The search compares predictions to the last digit. A mixture that is predicted to gain less than the
estimates may be wrong by may as well lose, so `prefer_single_device` gives it up for the best
single device, in sight and with its price. It is asked after the search, or after a proof: `place`
itself, bounds and what `explain` prices are of virtual time.

What is certain: a time on a virtual clock, which shows what the model says (the simulated NPU,
described machines), and what two placements have in common, which is wrong in both alike.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from trireme.backend.device import HOST, DeviceSpec
from trireme.cost.model import CostModel, Estimate, Source, interval
from trireme.placement.makespan import copies_of
from trireme.placement.node_pricing import NodePricing
from trireme.placement.objective import Objective, Scorer
from trireme.placement.placement import Placement
from trireme.placement.pricing import Pricing
from trireme.placement.problem import Assignment
from trireme.placement.singles import choosing, is_single, singles
from trireme.placement.stages import Tasks

LEAST_GAIN = 0.05
"""The share of a device's time that sharing its work with another must be predicted to gain: it
costs what no estimate has. Threads fall asleep and caches cool while the other is at work."""
_STATES = 2.0
"""How many times longer kernels take with the cores as far apart as they can be, at most."""
Side = tuple[Assignment, Tasks]
"""A placement as the search knows it: a device for every node, and the tasks."""


def prefer_single_device(placement: Placement, costs: CostModel) -> Placement:
    """Return a placement, or the best single device (what it refuses elsewhere) if it is a mixture
    that gains less over it than LEAST_GAIN, or than the estimates of what differs may be wrong by;
    `fallback` says so, and `near_ties` if another device alone may as well be the better one.

    Pins hold. Joules and what is all on virtual clocks are a description's, and left as they are.
    """
    clocks = {spec.clock for spec in placement.specs.values()}
    if placement.score.unit != "s" or clocks == {"virtual"}:
        return placement
    objective = cast(Objective, placement.score.objective)
    pricing = priced(placement, costs)
    scorer = Scorer(pricing.problem, objective)
    assigned, tasks = pricing.assignment_of(placement)
    if is_single(pricing.problem, assigned):
        return replace(placement, near_ties=_near_ties(pricing, scorer, (assigned, tasks or [])))
    fitting = (
        one for one in singles(pricing, objective) if not scorer.overfull(one.assigned, one.tasks)
    )
    best = min(fitting, key=lambda one: one.value, default=None)
    if best is None:
        return placement
    kept, mixed = (best.assigned, best.tasks), (assigned, tasks or [])
    doubt = _doubt_s(pricing, kept, mixed)
    if best.value - placement.score.value >= max(doubt, LEAST_GAIN * best.value):
        return placement
    alone = pricing.placement_of(scorer, best.assigned, tasks=best.tasks)
    found = _single_device_placement(alone, best.device, placement, doubt)
    return replace(found, near_ties=_near_ties(pricing, scorer, kept))


def _near_ties(pricing: Pricing, scorer: Scorer, kept: Side) -> str:
    """Return which other device alone may take less than what is kept on one, as far as estimates
    tell, with the cores as far apart as they are priced for or otherwise; "" if none may.
    """
    value, rivals = scorer.value(*kept), list(_rivals(pricing, scorer, kept))
    told, near = "", [row for row in rivals if row[0] < row[1]]
    if not near and any(more < (_STATES - 1) * value for more, _, _ in rivals):
        for state, other in _otherwise(pricing):
            again = Scorer(other.problem, scorer.objective)
            near = [row for row in _rivals(other, again, kept) if row[0] < row[1]]
            if near:
                told, value = state, again.value(*kept)
                break
    if not near:
        return ""
    more, doubt, name = min(near)
    return (
        f"{name} alone may be as fast{told}: predicted {_faster(-more / value)}, uncertain by "
        f"{doubt / value:.1%} (--measure decides)"
    )


def _faster(gain: float) -> str:
    return f"{abs(gain):.1%} {'faster' if gain > 0 else 'slower'}"


def _rivals(pricing: Pricing, scorer: Scorer, kept: Side) -> Iterator[tuple[float, float, str]]:
    """Yield by how much more each other device alone takes than what is kept, by how much that may
    be wrong, and its name."""
    value = scorer.value(*kept)
    for name, other in rivals(pricing, scorer, kept):
        yield scorer.value(*other) - value, _doubt_s(pricing, kept, other), name


def rivals(pricing: Pricing, scorer: Scorer, kept: Side) -> Iterator[tuple[str, Side]]:
    """Yield each other device alone, by name, where it fits its memory. What the device refuses is
    left where it is kept."""
    problem = pricing.problem
    for d in choosing(problem):
        rows = zip(kept[0], problem.able, strict=True)
        other = tuple(d if d in able else where for where, able in rows)
        if other != kept[0]:
            _, tasks = scorer.evaluate(other)
            if not scorer.overfull(other, tasks):
                yield problem.machine.names[d], (other, tasks)


def _otherwise(pricing: Pricing) -> Iterator[tuple[str, Pricing]]:
    """Yield the prices with the cores of all devices near each other, and far, where either was
    measured and is not what they are priced for."""
    costs = pricing.costs
    specs = [device.spec for device in costs.devices.values()]
    known = [(spec, one) for spec in specs if (one := costs.calibration.of(spec))]
    for apart in sorted({state for _, one in known for state in one.cores}):
        calibration = costs.calibration
        for spec, one in known:
            calibration = calibration.at(spec, one.cores.get(apart))
        if any(one.apart not in ("", apart) for _, one in known):
            model = CostModel(costs.devices, calibration)
            yield f" with its cores {apart}", Pricing.of(pricing.graph, model)


def more_certain(held: Placement, found: Placement, costs: CostModel) -> Placement:
    """Return what was found, or what is held of the same graph if what was found moves gains less
    than the estimates of what differs may be wrong by; `fallback` says so.
    """
    if found.score.unit != "s" or found.device_of == held.device_of:
        return found
    doubt = doubt_s(held, found, costs)
    if held.score.value - found.score.value >= doubt:
        return found
    why = _why("kept around the parts", held, found, doubt)
    return _known(held, found, held.unused, why)


def _single_device_placement(
    kept: Placement, device: str, mixture: Placement, doubt: float
) -> Placement:
    """Return a device alone with what is known of the mixture: its bound, what it would gain."""
    why = _why(f"using {device} alone", kept, mixture, doubt)
    unused = {
        name: f"{device} alone is used" if mixture.nodes_on(name) else why
        for name, why in kept.unused.items()
    }
    return _known(kept, mixture, unused, why)


def _known(kept: Placement, found: Placement, unused: Mapping[str, str], why: str) -> Placement:
    """Return a placement with what is known of another, for which it was kept."""
    bound = max((kept.score, found.score), key=lambda score: score.lower_bound)
    score = replace(kept.score, lower_bound=bound.lower_bound, bound_from=bound.bound_from)
    declined = found.declined + max(kept.score.value - found.score.value, 0.0)
    return replace(
        kept,
        score=score,
        candidates=found.candidates,
        unused=dict(unused),
        fallback=why,
        declined=declined,
        price_pins=found.price_pins,
    )


def _why(what: str, kept: Placement, mixture: Placement, doubt: float) -> str:
    """Return the sentence that says why something is kept although a mixture may be faster."""
    value, gain = kept.score.value, kept.score.value - mixture.score.value
    parts = [f"{name} {count}" for name in mixture.specs if (count := len(mixture.nodes_on(name)))]
    why = f"uncertain by {doubt / value:.1%}"
    if gain >= doubt:
        why = f"less than the {LEAST_GAIN:.0%} asked of sharing the work"
    return (
        f"{what}: {' + '.join(parts)} is predicted {_faster(gain / value)}, {why} "
        "(--multi-device any)"
    )


def doubt_s(one: Placement, other: Placement, costs: CostModel) -> float:
    """Return by how many seconds the difference between two placements of a graph may be predicted
    wrongly.

    Each side's own tasks, copies and nodes have the interval of their sum (cost/model.py), and the
    two sides are wrong independently of each other.
    """
    pricing = priced(one, costs)
    sides = map(pricing.assignment_of, (one, other))
    ours, theirs = ((assigned, tasks or []) for assigned, tasks in sides)
    return _doubt_s(pricing, ours, theirs)


def priced(placement: Placement, costs: CostModel) -> Pricing:
    """Return the prices that a placement was made with."""
    known = {
        node: NodePricing(
            dict(choice.estimates), dict(choice.refusals), dict(choice.notes), dict(choice.resident)
        )
        for node, choice in placement.choices.items()
    }
    return Pricing.of(placement.source, costs, known)


def _doubt_s(pricing: Pricing, one: Side, other: Side) -> float:
    ours, theirs = Counter(_parts(pricing, *one)), Counter(_parts(pricing, *other))
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


def _parts(pricing: Pricing, assigned: Assignment, tasks: Tasks) -> Iterator[_Part]:
    """Yield what a placement does on the wall clock: nodes, launches and copies."""
    machine, problem, costs = pricing.problem.machine, pricing.problem, pricing.costs
    specs = [device.spec for device in costs.devices.values()]
    for node, d in zip(pricing.graph.nodes, assigned, strict=True):
        if specs[d].clock == "wall":
            yield _Part(node.id, _kind(specs[d]), pricing.nodes[node.id][0][machine.names[d]])
    for d in (d for d, _ in tasks if specs[d].clock == "wall"):
        own = Estimate(machine.launch_s[d], _source([specs[d]], costs))
        yield _Part("launch", _kind(specs[d]), own)
    for value, source, target in copies_of(problem, assigned):
        spaces = {machine.spaces[source], machine.spaces[target]} - {HOST}
        ends = [spec for spec in specs if spec.memory in spaces]
        if all(spec.clock == "wall" for spec in ends):
            way = f"{machine.spaces[source]}>{machine.spaces[target]}"
            own = Estimate(problem.copy_s(value, source, target), _source(ends, costs))
            yield _Part(value, way, own)


def _kind(spec: DeviceSpec) -> str:
    """Return what tells devices of the same curves: instances of a cpu are wrong alike."""
    return f"{spec.kind}: {spec.description}"


def _source(specs: Sequence[DeviceSpec], costs: CostModel) -> Source:
    """Return where what is known of launches and copies of these devices comes from."""
    measured = all(costs.calibration.of(spec) for spec in specs)
    return "calibration" if measured else "roofline"
