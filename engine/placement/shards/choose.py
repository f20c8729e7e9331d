"""Shard regions where that gains.

The cost model tries the most promising candidates (`candidates`), copies, launches and joins
included. The best is done, and the search goes on in its graph. At the end everything that is no
part is placed anew, and the answer is never predicted worse than the placement it began with.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from trireme.cost.model import CostModel
from trireme.ir.graph import Graph
from trireme.placement.node_pricing import NodePricing
from trireme.placement.objective import UNIT, MultiDevice, Objective
from trireme.placement.placement import Placement, Shard
from trireme.placement.pricing import FixedNodes, Pricing
from trireme.placement.score import Score
from trireme.placement.shards.candidates import (
    LEAST_GAIN_S,
    UNMEASURED_GAIN,
    ShardCandidate,
    asked,
    shard_candidates,
)
from trireme.placement.shards.evaluate import Evaluator, ShardTrial, balanced
from trireme.placement.shards.shard import ShardSpec, shard
from trireme.placement.shards.spec import parse, text_of
from trireme.placement.solve import solve, solve_fixed
from trireme.placement.uncertainty import (
    LEAST_GAIN,
    more_certain,
)
from trireme.support.errors import PlacementError
from trireme.support.units import time_text

_ROUNDS, _TRIED, _MOST_NODES = 4, 12, 400
_FAR = 1.15
"""A shard whose shares by speed take more than this times the wanted time is not balanced further.
Balancing gains a few percent."""


def shard_as_asked(plain: Placement, costs: CostModel, texts: Sequence[str]) -> Placement:
    """Return a placement with its graph sharded as the texts say, one after another.

    Errors: PlacementError, if a shard cannot be made, with the reason
    """
    graph, objective = plain.source, cast(Objective, plain.score.objective)
    where = {node: choice.device for node, choice in plain.choices.items()}
    memo = dict[Hashable, NodePricing]()
    done: list[Shard] = []
    parts: dict[int, str] = {}
    for text in texts:
        tries = Evaluator(Pricing.of(graph, costs), where, objective, memo)
        found = balanced(tries, parse(graph, text, costs.devices))
        done.append(Shard(text_of(graph, found.spec), "it was asked for"))
        graph, where = found.parts.graph, dict(found.devices)
        parts = {node: d for node, d in parts.items() if node in where}
        parts |= dict(found.parts.device_of)
    if not done:
        return plain
    placed = _settled(graph, costs, objective, parts, where)
    gain = _gain(plain.score.value, placed.score.value, objective)
    last = Shard(done[-1].text, f"it was asked for; the run takes {gain} with all shards")
    return replace(placed, shards=(*done[:-1], last), price_pins=plain.price_pins)


def shard_where_it_gains(
    plain: Placement, costs: CostModel, multi_device: MultiDevice = "any"
) -> Placement:
    """Return a placement with regions sharded over devices, where that is predicted to gain
    LEAST_GAIN or UNMEASURED_GAIN and more; `shards` says which and why, `no_shard` why no more.

    multi_device: with "significant", a run that is known is not left for a device never measured,
        and around the parts nothing is placed anew unless the gain is significant
    """
    objective: Objective = plain.score.objective  # type: ignore[assignment]
    reason = _why_none_can_gain(plain)
    if reason:
        return replace(plain, no_shard=f"nothing is sharded: {reason}")
    graph, value = plain.source, plain.score.value
    where = {node: choice.device for node, choice in plain.choices.items()}
    parts, memo = dict[int, str](), dict[Hashable, NodePricing]()
    fixed: set[int] = set()
    done: list[Shard] = []
    closest = ""
    for _ in range(_ROUNDS):
        tries = Evaluator(Pricing.of(graph, costs), where, objective, memo)
        candidate, found = _best(tries, plain, value, fixed, multi_device)
        if candidate is None or found is None or not _pays(candidate, found, value, objective):
            closest = _closest(plain, graph, candidate, found, value)
            break
        gain = _gain(value, found.value, objective)
        done.append(Shard(text_of(graph, found.spec), f"the run takes {gain}"))
        graph, where, value = found.parts.graph, dict(found.devices), found.value
        fixed.update(found.parts.device_of, found.parts.slices, found.parts.joins)
        parts = {node: d for node, d in parts.items() if node in where}
        parts |= dict(found.parts.device_of)
    if not done:
        return replace(plain, no_shard=f"nothing is sharded: {closest}")
    placed = _settled(graph, costs, objective, parts, where, multi_device)
    if placed.score.value > plain.score.value * (1 - LEAST_GAIN):
        return replace(plain, no_shard="nothing is sharded: no shard fits the devices' memory")
    more = f"nothing more is sharded: {closest}" if closest else ""
    return replace(placed, shards=tuple(done), no_shard=more, price_pins=plain.price_pins)


def shard_as(graph: Graph, texts: Sequence[str], devices: Collection[str]) -> Graph:
    """Return the graph with shards of known cuts done: the same texts, the same ids.

    Errors: PlacementError, if one cannot be made
    """
    for text in texts:
        one = parse(graph, text, devices)
        if not one.cuts:
            raise PlacementError(f"shard {text!r} does not say where to cut")
        graph = shard(graph, ShardSpec(one.nodes, one.kind, one.devices, one.cuts)).graph
    return graph


def _settled(
    graph: Graph,
    costs: CostModel,
    objective: Objective,
    parts: Mapping[int, str],
    where: Mapping[int, str],
    multi_device: MultiDevice = "any",
) -> Placement:
    """Return the better of a search around the parts and of everything held in place. Pins are left
    out, so that the alternatives of the parts have prices too.

    multi_device: with "significant", the search's moves must gain significantly
    """
    searched = solve(graph, costs, objective, parts)
    kept = solve_fixed(graph, costs, objective, FixedNodes(where, {}))
    if kept.score.value < searched.score.value:
        return kept
    devices = {node: choice.device for node, choice in searched.choices.items()}
    free = solve_fixed(graph, costs, objective, FixedNodes(devices, searched.stage_of))
    found = replace(free, candidates=searched.candidates)
    return more_certain(kept, found, costs) if multi_device == "significant" else found


def _why_none_can_gain(plain: Placement) -> str:
    """Return why no shard could gain anything, or ""."""
    groups = {spec.resource for spec in plain.specs.values()}
    if len(groups) < 2:
        what = "device" if len(plain.specs) == 1 else "resource group"
        return f"there is one {what}, {next(iter(groups))}"
    if not plain.source.nodes:
        return "there are no nodes"
    if plain.score.objective in ("serial", "energy"):
        return f"parts on several devices cannot lower {plain.score.objective}"
    if len(plain.source.nodes) > _MOST_NODES:
        return f"the graph has more than {_MOST_NODES} nodes; --shard REGION does so by hand"
    return ""


def _gain(before: float, after: float, objective: str) -> str:
    score = Score(objective, UNIT[cast(Objective, objective)], before, 0.0)
    return f"{score.change(after - before)} ({score.text(before)} -> {score.text(after)})"


def _closest(
    plain: Placement,
    graph: Graph,
    candidate: ShardCandidate | None,
    found: ShardTrial | None,
    value: float,
) -> str:
    """Return why nothing, or nothing more, is sharded: what the best that was tried comes to, or
    what the most promising could, where none was worth a try."""
    if candidate is None:
        return "no region can be sharded so that a second device would help"
    after, wanted, objective = value - candidate.seconds, candidate.request, plain.score.objective
    what = ShardSpec(wanted.nodes, wanted.kind, wanted.devices, wanted.cuts)
    said, is_measured = "the most promising", candidate.is_measured
    if found is not None:
        after, what = found.value, found.spec
        said, is_measured = "the best tried", found.is_measured
    real = any(plain.specs[name].clock == "wall" for name in wanted.devices)
    whose = "devices never measured: trireme calibrate" if real else "figures of a description"
    asked_text = ""
    if candidate.asked == math.inf:
        asked_text = f"; the run as it is would be left for {whose}"
    elif after < value and not is_measured:
        asked_text = f"; {UNMEASURED_GAIN:.0%} is asked of {whose}"
    elif after < value:
        asked_text = f"; {LEAST_GAIN:.0%} is asked, and {time_text(LEAST_GAIN_S)} of a time"
    most = "" if found is not None else " at most"
    gain = _gain(value, after, objective)
    return f"{said} would take {gain}{most}: {text_of(graph, what)}{asked_text}"


def _pays(candidate: ShardCandidate, found: ShardTrial, value: float, objective: Objective) -> bool:
    least = max(candidate.asked, asked(found.is_measured, value, objective))
    return value - found.value >= least


def _best(
    tries: Evaluator, plain: Placement, value: float, fixed: set[int], multi_device: MultiDevice
) -> tuple[ShardCandidate | None, ShardTrial | None]:
    """Return the best trial of the most promising candidates, one that pays before all others; or
    the most promising, if it could gain at all, where none could gain what is asked."""
    promising = sorted(
        shard_candidates(tries, plain, value, fixed, multi_device), key=lambda h: -h.seconds
    )
    promising = [candidate for candidate in promising if candidate.seconds >= value * LEAST_GAIN]
    rows: list[tuple[ShardCandidate, ShardTrial]] = []
    seen: dict[tuple[int, str], int] = {}
    for candidate in promising:
        alike = (len(candidate.request.nodes).bit_length(), candidate.request.kind)
        if candidate.seconds < candidate.asked or seen.get(alike, 0) >= 3 or len(rows) >= _TRIED:
            continue
        try:
            found = balanced(tries, candidate.request, (value - candidate.asked) * _FAR)
        except PlacementError:
            continue
        seen[alike] = seen.get(alike, 0) + 1
        rows.append((candidate, found))
    if not rows:
        return next(iter(promising), None), None
    paying = [row for row in rows if _pays(*row, value, tries.objective)]
    return min(paying or rows, key=lambda row: row[1].value)
