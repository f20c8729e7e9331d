"""Try shards: parts are priced on their devices, all other nodes stay in place.

Nodes outside the shard keep their prices. Prices of parts are remembered by op, attributes and
types, so that another cut costs a few estimates.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from trireme.ir.graph import Graph, Node
from trireme.placement.node_pricing import NodePricing, price_node
from trireme.placement.objective import Objective, Scorer
from trireme.placement.pricing import Pricing
from trireme.placement.shards.shard import Kind, Parts, ShardSpec, extent, shard
from trireme.placement.shards.spec import Request
from trireme.support.errors import PlacementError
from trireme.support.records import dataclass

SURE = ("calibration", "device")
"""Sources of estimates that are measured or modelled, not read off a data sheet."""


@dataclass(frozen=True)
class ShardTrial:
    """A shard that was tried: the objective's value, and where every node of its graph is.

    is_measured: whether what the parts take was measured or modelled, not read off a data sheet
    """

    spec: ShardSpec
    parts: Parts
    value: float
    devices: Mapping[int, str]
    is_measured: bool


class Evaluator:
    """Tries shards of one graph, whose nodes are on the devices of `where`."""

    def __init__(
        self,
        base: Pricing,
        where: Mapping[int, str],
        objective: Objective,
        memo: dict[Hashable, NodePricing] | None = None,
    ) -> None:
        self.graph, self.costs, self.where, self.objective = (
            base.graph,
            base.costs,
            where,
            objective,
        )
        self.known = dict(base.nodes)
        self.names = base.problem.machine.names
        self.memo: dict[Hashable, NodePricing] = {} if memo is None else memo
        self.tried: dict[ShardSpec, ShardTrial | PlacementError] = {}

    def is_measured(self, nodes: Sequence[int], devices: Sequence[str]) -> bool:
        """Whether what nodes take, on devices that all run them, is no data sheet's figure."""
        return all(
            self.known[node][0][device].source in SURE for node in nodes for device in devices
        )

    def trial(self, wanted: ShardSpec) -> ShardTrial:
        """Return the trial of a shard.

        Errors: PlacementError, if it cannot be made or a device refuses its part
        """
        if wanted not in self.tried:
            try:
                self.tried[wanted] = self._tried(wanted)
            except PlacementError as error:
                self.tried[wanted] = error
        found = self.tried[wanted]
        if isinstance(found, PlacementError):
            raise found
        return found

    def _tried(self, wanted: ShardSpec) -> ShardTrial:
        parts = shard(self.graph, wanted)
        pricing = self.priced(parts)
        measured = all(
            pricing.nodes[node][0][device].source in SURE
            for node, device in parts.device_of.items()
        )
        best: ShardTrial | None = None
        for glue in _glue(pricing, parts, self.where):
            devices = {**self.where, **parts.device_of, **glue}
            assigned = tuple(self.names.index(devices[node.id]) for node in parts.graph.nodes)
            value = Scorer(pricing.problem, self.objective).evaluate(assigned)[0]
            if best is None or value < best.value:
                best = ShardTrial(wanted, parts, value, devices, measured)
        if best is None:
            raise PlacementError("no device can cut the inputs and join the parts")
        return best

    def priced(self, parts: Parts) -> Pricing:
        """Return the prices of a shard's graph.

        Errors: PlacementError, if a device refuses its part
        """
        known = {n.id: self.known[n.id] for n in parts.graph.nodes if n.id in self.known}
        for node in parts.graph.nodes:
            if node.id not in known:
                known[node.id] = options = self._options(parts.graph, node)
                device = parts.device_of.get(node.id, "")
                if device in options[1]:
                    raise PlacementError(
                        f"{node.label}: {device} cannot run its part: {options[1][device]}"
                    )
        return Pricing.of(parts.graph, self.costs, known)

    def _options(self, graph: Graph, node: Node) -> NodePricing:
        key = _key(graph, node)
        if key not in self.memo:
            self.memo[key] = price_node(graph, node, self.costs)
        return self.memo[key]


def _key(graph: Graph, node: Node) -> Hashable:
    """Return what the price of a node depends on."""
    values = [None if i is None else graph.values[i] for i in (*node.inputs, *node.outputs)]
    types = tuple(None if v is None else (v.type, v.is_constant) for v in values)
    small = tuple(
        v.data.tobytes() for v in values if v is not None and v.data is not None and v.data.size < 9
    )
    return node.op, repr(sorted(node.attrs.items())), types, small


def _glue(pricing: Pricing, parts: Parts, where: Mapping[int, str]) -> list[dict[int, str]]:
    """Return ways to place slices and joins: slices with their part, or with the cut value's maker;
    joins together, on any device that can.
    """
    graph, options = parts.graph, pricing.nodes
    fallback = min(next(iter(options.values()))[0], default="") if options else ""
    ways = []
    for with_part in (True, False):
        cuts = {}
        for node, device in parts.slices.items():
            maker = graph.producer(graph.node(node).used[0])
            home = parts.device_of.get(maker.id, where.get(maker.id, "")) if maker else ""
            liked = (device, home) if with_part else (home, device)
            able = options[node][0]
            cuts[node] = next((d for d in (*liked, *able) if d in able), fallback)
        for device in dict.fromkeys(d for join in parts.joins for d in options[join][0]):
            joins = {
                join: device if device in options[join][0] else next(iter(options[join][0]))
                for join in parts.joins
            }
            ways.append({**cuts, **joins})
    return ways


def even_cuts(size: int, step: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Return cuts at multiples of `step` that give each part about its share, and at least one.

    Errors: PlacementError, if there are too few to go round
    """
    units, count = size // step, len(shares)
    if units < count:
        raise PlacementError(f"{size} in steps of {step} are too few for {count} devices")
    cuts: list[int] = []
    done, total = 0.0, sum(shares) or 1.0
    for i, share in enumerate(shares[:-1]):
        done += share
        least = (cuts[-1] if cuts else 0) + 1
        cuts.append(min(max(round(units * done / total), least), units - (count - 1 - i)))
    return tuple(cut * step for cut in cuts)


def balanced(tries: Evaluator, wanted: Request, worth: float = float("inf")) -> ShardTrial:
    """Return the trial of a shard whose cuts suit the objective best: a search by halving steps.

    It starts from shares by the devices' speeds on the whole region. It goes no further where these
    take more than `worth`.
    Errors: PlacementError, if no cut that was tried can be made
    """
    if wanted.cuts:
        return tries.trial(ShardSpec(wanted.nodes, wanted.kind, wanted.devices, wanted.cuts))
    size, step = extent(tries.graph, wanted.nodes, wanted.kind)
    step = _liked_step(size, step, wanted)
    cuts = even_cuts(size, step, speeds(tries, wanted))
    best = tries.trial(ShardSpec(wanted.nodes, wanted.kind, wanted.devices, cuts))
    width = max(size // step // 4, 1) if best.value <= worth else 0
    while width:
        moved = _nearby(tries, best, size, width * step)
        if moved is None:
            width //= 2
        else:
            best = moved
    return best


_LIKED: Mapping[Kind, tuple[int, ...]] = {"channels": (16, 8, 4), "rows": (4, 2), "batch": ()}
"""Multiples at which kernels like cuts: vectors of channels, tiles of rows."""
_CHOICES = 4
"""Steps a device that there must be for a coarser step to be taken."""


def _liked_step(size: int, step: int, wanted: Request) -> int:
    """Return the largest step that kernels like and that leaves enough choice of cuts."""
    least = _CHOICES * len(wanted.devices)
    liked = (s for s in _LIKED[wanted.kind] if s % step == 0 and size // s >= least)
    return next(liked, step)


def speeds(tries: Evaluator, wanted: Request) -> list[float]:
    """Return regions a second of each device, launches and copies left out.

    Errors: PlacementError, if a device refuses a node
    """
    found = []
    for device in wanted.devices:
        seconds = 0.0
        for node in wanted.nodes:
            known = tries.known[node]
            if device in known.refusals:
                label = tries.graph.node(node).label
                raise PlacementError(f"{label}: {device} cannot run it: {known.refusals[device]}")
            seconds += known.estimates[device].seconds
        found.append(1 / max(seconds, 1e-12))
    return found


def _nearby(tries: Evaluator, best: ShardTrial, size: int, width: int) -> ShardTrial | None:
    """Return a better trial with one cut moved by `width`; None if there is none."""
    for i in range(len(best.spec.cuts)):
        for change in (width, -width):
            cuts = list(best.spec.cuts)
            cuts[i] += change
            edges = (0, *cuts, size)
            if any(a >= b for a, b in zip(edges, edges[1:], strict=False)):
                continue
            one = ShardSpec(best.spec.nodes, best.spec.kind, best.spec.devices, tuple(cuts))
            try:
                moved = tries.trial(one)
            except PlacementError:
                continue
            if moved.value < best.value * (1 - 1e-9):
                return moved
    return None
