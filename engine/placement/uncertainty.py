"""Decide whether a mixture of devices gains more than the uncertainty of its estimates.

The search compares predictions to the last digit. A mixture that is predicted to gain less than the
uncertainty of the estimates may be slower when it runs. `prefer_single_device` declines such a
mixture for the best single device, and says what that costs. `place` calls it after the search or
the proof: the search, the bounds and `explain` know virtual time alone.

Two things are certain. A virtual clock shows what the model says (the simulated NPU, described
machines). And what two placements have in common is wrong in both alike.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

from trireme.backend.device import HOST, DeviceSpec
from trireme.cost.estimate import Estimate, Source, interval
from trireme.cost.model import CostModel
from trireme.placement.makespan import copies_of
from trireme.placement.node_pricing import NodePricing
from trireme.placement.objective import Objective, Scorer
from trireme.placement.placement import Placement
from trireme.placement.pricing import Pricing
from trireme.placement.problem import Assignment
from trireme.placement.singles import choosing, is_single, singles
from trireme.placement.stages import Tasks
from trireme.support.records import dataclass

LEAST_GAIN = 0.05
"""The share of a device's time that sharing its work with another must be predicted to gain. No
estimate holds what sharing costs: threads fall asleep and caches cool while the other works."""
_STATES = 2.0
"""The most by which kernels take longer with the cores as far apart as possible."""
Side = tuple[Assignment, Tasks]
"""A placement as the search knows it: a device for every node, and the tasks."""


def prefer_single_device(placement: Placement, costs: CostModel) -> Placement:
    """Return the placement, or the best single device where the placement is an uncertain mixture.

    A mixture must gain LEAST_GAIN over the best single device, and more than the uncertainty of the
    parts that differ. Nodes that this device refuses run elsewhere. `fallback` names the declined
    mixture; `near_ties` names another device that may be as fast alone. Pins hold. Energy and
    virtual clocks are a description's figures, so they are left as they are.
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
    uncertain_s = _uncertainty_s(pricing, kept, mixed)
    if best.value - placement.score.value >= max(uncertain_s, LEAST_GAIN * best.value):
        return placement
    alone = pricing.placement_of(scorer, best.assigned, tasks=best.tasks)
    found = _single_device_placement(alone, best.device, placement, uncertain_s)
    return replace(found, near_ties=_near_ties(pricing, scorer, kept))


def _near_ties(pricing: Pricing, scorer: Scorer, kept: Side) -> str:
    """Return which other device alone may be as fast as the one that is kept; "" if none may.

    Each measured core latency is tried, since the system may put the cores nearer or further apart.
    """
    value, rivals = scorer.value(*kept), list(_rivals(pricing, scorer, kept))
    state_text, near = "", [row for row in rivals if row[0] < row[1]]
    if not near and any(more < (_STATES - 1) * value for more, _, _ in rivals):
        for state, other in _other_core_latencies(pricing):
            again = Scorer(other.problem, scorer.objective)
            near = [row for row in _rivals(other, again, kept) if row[0] < row[1]]
            if near:
                state_text, value = state, again.value(*kept)
                break
    if not near:
        return ""
    more, uncertain_s, name = min(near)
    return (
        f"{name} alone may be as fast{state_text}: predicted {_faster(-more / value)}, "
        f"uncertain by {uncertain_s / value:.1%} (--measure decides)"
    )


def _faster(gain: float) -> str:
    return f"{abs(gain):.1%} {'faster' if gain > 0 else 'slower'}"


def _rivals(pricing: Pricing, scorer: Scorer, kept: Side) -> Iterator[tuple[float, float, str]]:
    """Yield (extra_s, uncertainty_s, device) for every other single device."""
    value = scorer.value(*kept)
    for name, other in rivals(pricing, scorer, kept):
        yield scorer.value(*other) - value, _uncertainty_s(pricing, kept, other), name


def rivals(pricing: Pricing, scorer: Scorer, kept: Side) -> Iterator[tuple[str, Side]]:
    """Yield every other single device that fits its memory, by name.

    Nodes that the device refuses stay in place.
    """
    problem = pricing.problem
    for d in choosing(problem):
        rows = zip(kept[0], problem.able, strict=True)
        other = tuple(d if d in able else where for where, able in rows)
        if other != kept[0]:
            _, tasks = scorer.evaluate(other)
            if not scorer.overfull(other, tasks):
                yield problem.machine.names[d], (other, tasks)


def _other_core_latencies(pricing: Pricing) -> Iterator[tuple[str, Pricing]]:
    """Yield the prices with each other core latency that was measured, and its text."""
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
    """Return the found placement, or the held one where the gain is within the uncertainty.

    Both are placements of one graph. `fallback` names the declined gain.
    """
    if found.score.unit != "s" or found.device_of == held.device_of:
        return found
    uncertain_s = uncertainty_s(held, found, costs)
    if held.score.value - found.score.value >= uncertain_s:
        return found
    why = _why("kept around the parts", held, found, uncertain_s)
    return _with_knowledge_of(held, found, held.unused, why)


def _single_device_placement(
    kept: Placement, device: str, mixture: Placement, uncertain_s: float
) -> Placement:
    """Return a device alone with the facts of the mixture: its bound and its gain."""
    why = _why(f"using {device} alone", kept, mixture, uncertain_s)
    unused = {
        name: f"{device} alone is used" if mixture.nodes_on(name) else why
        for name, why in kept.unused.items()
    }
    return _with_knowledge_of(kept, mixture, unused, why)


def _with_knowledge_of(
    kept: Placement, found: Placement, unused: Mapping[str, str], why: str
) -> Placement:
    """Return a placement with the facts of another, which it replaces."""
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


def _why(what: str, kept: Placement, mixture: Placement, uncertain_s: float) -> str:
    """Return the sentence that says why something is kept although a mixture may be faster."""
    value, gain = kept.score.value, kept.score.value - mixture.score.value
    parts = [f"{name} {count}" for name in mixture.specs if (count := len(mixture.nodes_on(name)))]
    why = f"uncertain by {uncertain_s / value:.1%}"
    if gain >= uncertain_s:
        why = f"less than the {LEAST_GAIN:.0%} asked of sharing the work"
    return (
        f"{what}: {' + '.join(parts)} is predicted {_faster(gain / value)}, {why} "
        "(--multi-device any)"
    )


def uncertainty_s(one: Placement, other: Placement, costs: CostModel) -> float:
    """Return the uncertainty of the predicted difference between two placements of a graph.

    The tasks, copies and nodes of one side alone have the interval of their sum (cost/model.py).
    The two sides are wrong independently of each other.
    """
    pricing = priced(one, costs)
    sides = map(pricing.assignment_of, (one, other))
    ours, theirs = ((assigned, tasks or []) for assigned, tasks in sides)
    return _uncertainty_s(pricing, ours, theirs)


def priced(placement: Placement, costs: CostModel) -> Pricing:
    """Return the prices that a placement was made with."""
    known = {
        node: NodePricing(
            dict(choice.estimates), dict(choice.refusals), dict(choice.notes), dict(choice.resident)
        )
        for node, choice in placement.choices.items()
    }
    return Pricing.of(placement.source, costs, known)


def _uncertainty_s(pricing: Pricing, one: Side, other: Side) -> float:
    ours, theirs = Counter(_parts(pricing, *one)), Counter(_parts(pricing, *other))
    gone, added = list((ours - theirs).elements()), list((theirs - ours).elements())
    low = sum(part.own.seconds for part in gone) - interval(part.own for part in gone)[0]
    high = interval(part.own for part in added)[1] - sum(part.own.seconds for part in added)
    return math.hypot(low, high)


@dataclass(frozen=True)
class _TimedPart:
    """A node, a task's launch or a copy: its identity, the kind of its device, and its estimate.
    Two placements have it in common if all three are the same.
    """

    what: object
    where: str
    own: Estimate


def _parts(pricing: Pricing, assigned: Assignment, tasks: Tasks) -> Iterator[_TimedPart]:
    """Yield the nodes, launches and copies of a placement on the wall clock."""
    machine, problem, costs = pricing.problem.machine, pricing.problem, pricing.costs
    specs = [device.spec for device in costs.devices.values()]
    for node, d in zip(pricing.graph.nodes, assigned, strict=True):
        if specs[d].clock == "wall":
            yield _TimedPart(node.id, _kind(specs[d]), pricing.nodes[node.id][0][machine.names[d]])
    for d in (d for d, _ in tasks if specs[d].clock == "wall"):
        own = Estimate(machine.launch_s[d], _source([specs[d]], costs))
        yield _TimedPart("launch", _kind(specs[d]), own)
    for value, source, target in copies_of(problem, assigned):
        spaces = {machine.spaces[source], machine.spaces[target]} - {HOST}
        ends = [spec for spec in specs if spec.memory in spaces]
        if all(spec.clock == "wall" for spec in ends):
            way = f"{machine.spaces[source]}>{machine.spaces[target]}"
            own = Estimate(problem.copy_s(value, source, target), _source(ends, costs))
            yield _TimedPart(value, way, own)


def _kind(spec: DeviceSpec) -> str:
    """Return what tells devices of the same curves: instances of a cpu are wrong alike."""
    return f"{spec.kind}: {spec.description}"


def _source(specs: Sequence[DeviceSpec], costs: CostModel) -> Source:
    """Return the source of the figures of launches and copies of these devices."""
    measured = all(costs.calibration.of(spec) for spec in specs)
    return "calibration" if measured else "roofline"
