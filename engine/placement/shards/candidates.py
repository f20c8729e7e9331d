"""Candidates of shards with their largest possible gain; `choose` tries the most promising.

They are regions between two nodes, of one node up to the whole graph. Each comes with every kind of
shard and every set of devices that do not share silicon.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from trireme.backend.device import HOST
from trireme.ir.graph import Graph
from trireme.ir.selectors import reach
from trireme.placement.objective import UNIT, MultiDevice, Objective
from trireme.placement.placement import Placement
from trireme.placement.shards.evaluate import Evaluator
from trireme.placement.shards.rules import can_be_sharded
from trireme.placement.shards.shard import KINDS, extent, leaving
from trireme.placement.shards.spec import Request
from trireme.placement.uncertainty import LEAST_GAIN
from trireme.support.errors import PlacementError
from trireme.support.records import dataclass

UNMEASURED_GAIN = 0.25
"""LEAST_GAIN of a shard where what its parts take is neither measured nor modelled, but read off
data sheets, which may be wrong by more."""
LEAST_GAIN_S = 10e-6
"""And the seconds: what the host takes to start parts one after another is in no price."""


def asked(is_measured: bool, value: float, objective: Objective) -> float:
    """Return the least gain of a shard, in the objective's unit."""
    share = value * (LEAST_GAIN if is_measured else UNMEASURED_GAIN)
    return max(share, LEAST_GAIN_S) if UNIT[objective] == "s" else share


@dataclass(frozen=True)
class ShardCandidate:
    """A candidate, its largest possible gain, and the gain that it must have; infinite rules it
    out.

    is_measured: whether what its parts would take was measured or modelled
    """

    seconds: float
    asked: float
    request: Request
    is_measured: bool


def shard_candidates(
    tries: Evaluator,
    plain: Placement,
    value: float,
    fixed: set[int],
    multi_device: MultiDevice = "any",
) -> Iterator[ShardCandidate]:
    """Yield every candidate that could gain."""
    sets = list(_device_sets(plain))
    for nodes in _regions(tries.graph, fixed):
        outline = _Outline.of(tries, plain, nodes)
        for kind in KINDS:
            try:
                size, step = extent(tries.graph, nodes, kind)
            except PlacementError:
                continue
            for devices in sets:
                if size // step < len(devices) or not outline.own_s.keys() >= set(devices):
                    continue
                gain = outline.gain_s(devices)
                if gain > 0:
                    is_measured = tries.is_measured(nodes, devices)
                    least = asked(is_measured, value, tries.objective)
                    if multi_device == "significant" and _is_gamble(tries, plain, nodes, devices):
                        least = math.inf
                    yield ShardCandidate(
                        gain, least, Request(nodes, kind, devices, ()), is_measured
                    )


def _is_gamble(
    tries: Evaluator, plain: Placement, nodes: Sequence[int], devices: Sequence[str]
) -> bool:
    """Whether nodes of known time would go to a device whose times are a data sheet's."""

    def unsure(node: int, device: str) -> bool:
        wall = plain.specs[device].clock == "wall"
        return wall and not tries.is_measured([node], [device])

    return not any(unsure(node, tries.where[node]) for node in nodes) and any(
        unsure(node, device) for node in nodes for device in devices
    )


@dataclass(frozen=True)
class _Outline:
    """A region as far as any shard of it goes: from when its inputs are there to when what it makes
    is where it is read.

    now_s: as it is, one node after another, with copies and launches inside
    here: the devices that its nodes are on
    own_s: what they take on each device that can run them all
    inputs: (memory space, bytes) of what it reads from others
    outputs, readers: bytes of what it makes for others, and the memory spaces these are in
    """

    plain: Placement
    now_s: float
    here: frozenset[str]
    own_s: Mapping[str, float]
    inputs: Sequence[tuple[str, int]]
    outputs: int
    readers: frozenset[str]

    @classmethod
    def of(cls, tries: Evaluator, plain: Placement, nodes: Sequence[int]) -> _Outline:
        """Return the outline of some nodes of the graph that is sharded."""
        graph, inside = tries.graph, set(nodes)
        rows = [tries.known[node][0] for node in nodes]
        own_s = {
            name: sum(row[name].seconds for row in rows)
            for name in plain.specs
            if all(name in row for row in rows)
        }
        spaces = {node: plain.specs[device].memory for node, device in tries.where.items()}
        now_s = sum(row[tries.where[node]].seconds for node, row in zip(nodes, rows, strict=True))
        inputs = []
        for value in dict.fromkeys(v for node in nodes for v in graph.node(node).used):
            maker, nbytes = graph.producer(value), graph.type(value).nbytes
            if graph.values[value].is_constant:
                continue
            source = spaces[maker.id] if maker else HOST
            mine = [user.id for user in graph.users(value) if user.id in inside]
            now_s += _copies_s(plain, nbytes, source, {spaces[node] for node in mine})
            if maker and maker.id in inside:
                others = {tries.where[node] for node in mine} - {tries.where[maker.id]}
                now_s += sum(plain.launch_s[device] for device in others)
            else:
                inputs.append((source, nbytes))
        outputs, readers = 0, set[str]()
        for value in leaving(graph, nodes):
            maker, nbytes = graph.producer(value), graph.type(value).nbytes
            away = {spaces[user.id] for user in graph.users(value) if user.id not in inside}
            away |= {HOST} if graph.is_output(value) else set()
            now_s += _copies_s(plain, nbytes, spaces[maker.id], away) if maker else 0.0
            outputs, readers = outputs + nbytes, readers | away
        here = frozenset(tries.where[node] for node in nodes)
        return cls(plain, now_s, here, own_s, inputs, outputs, frozenset(readers))

    def gain_s(self, devices: Sequence[str]) -> float:
        """Return what a shard could gain at most if all else waits for it: were slices, joins and
        halos free, and did nodes take their share of their time.
        """
        spaces = {self.plain.specs[device].memory for device in devices} | self.readers
        return self.now_s - min(self._joined_s(devices, space) for space in spaces)

    def _joined_s(self, devices: Sequence[str], space: str) -> float:
        """Return the seconds of parts that are joined in a memory space, and then read."""
        over_s = _balance([self._part(device, space) for device in devices])
        copies = (_copies_s(self.plain, self.outputs, space, {reader}) for reader in self.readers)
        return over_s + max(copies, default=0.0)

    def _part(self, device: str, joined: str) -> tuple[float, float]:
        """Return the seconds of a part on a device, of no share, and what they grow by for all."""
        links, space = self.plain.links, self.plain.specs[device].memory
        fixed_s = 0.0 if device in self.here else self.plain.launch_s[device]
        whole_s = self.own_s[device]
        ways = [(nbytes, source, space) for source, nbytes in self.inputs]
        for nbytes, source, target in [*ways, (self.outputs, space, joined)]:
            if source != target:
                start_s = links.seconds(0, source, target)
                fixed_s += start_s
                whole_s += links.seconds(nbytes, source, target) - start_s
        return fixed_s, max(whole_s, 1e-12)


def _copies_s(plain: Placement, nbytes: int, source: str, targets: Collection[str]) -> float:
    return sum(plain.links.seconds(nbytes, source, t) for t in targets if t != source)


def _balance(parts: Sequence[tuple[float, float]]) -> float:
    """Return when parts are over that begin together and take (fixed, whole) a + share x b seconds,
    if the shares, which are none below 0, make them end together."""
    rates = sum(1 / whole for _, whole in parts)
    return max(
        (1 + sum(fixed / whole for fixed, whole in parts)) / rates, max(fixed for fixed, _ in parts)
    )


def _device_sets(plain: Placement) -> Iterator[tuple[str, ...]]:
    """Yield sets of devices that share no silicon: pairs first, then larger ones."""
    names = list(plain.specs)
    for count in range(2, len(names) + 1):
        for some in itertools.combinations(names, count):
            groups = {plain.specs[name].resource for name in some}
            if len(groups) == count:
                yield some


def _regions(graph: Graph, fixed: set[int]) -> Iterator[tuple[int, ...]]:
    """Yield single nodes, and the nodes between two through which everything flows."""
    able = {n.id for n in graph.nodes if can_be_sharded(n.op) and n.id not in fixed and not n.pin}
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
