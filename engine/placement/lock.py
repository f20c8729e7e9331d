"""A placement written down: which node runs where and why, and the options it was made with.

`lockfile` writes a Lock to a file and reads it; `lock_changes` compares two; `place` holds one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace

from trireme.backend.device import HOST
from trireme.ir.graph import Graph, node_names
from trireme.ir.op import ops_with
from trireme.ops.repeats import bodies_of
from trireme.placement.explain import explain
from trireme.placement.placement import Placement
from trireme.placement.pricing import FixedNodes
from trireme.support.errors import PlacementError
from trireme.support.records import dataclass


@dataclass(frozen=True)
class LockedNode:
    """One line: the node's name (its first output's), op, device and task, and why it is there.

    body: the bodies of control flow that hold the node, outermost first: names of nodes, each with
        an attribute
    """

    name: str
    op: str
    device: str
    task: int
    us: float
    why: str
    body: tuple[str, ...] = ()


@dataclass(frozen=True)
class LockedOptions:
    """The options that a placement was made with; whoever holds the lock uses them again.

    devices: the names asked for, in order; none where the lock is of devices opened by hand
    batch, threads: None where they were not given
    pins: a node's name, FIRST..LAST, `*` or `op:softmax` -> device
    soc, figures: the described machine, and those of its figures that were changed; "" where the
        placement is of this machine
    calibration: digest of the measured curves that priced the placement; "" where there were none
    """

    devices: tuple[str, ...] = ()
    batch: int | None = None
    threads: int | None = None
    pins: Mapping[str, str] = field(default_factory=dict)
    soc: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    calibration: str = ""


@dataclass(frozen=True)
class Lock:
    """A locked placement; devices: name -> description of the very device; shards: what several
    devices share, in the form that `--shard` takes; measured: whether it was chosen by trying it,
    so that placing the model anew may well say otherwise; options: what it was made with.
    """

    model: str
    trireme: str
    objective: str
    predicted: float
    lower_bound: float
    unit: str
    devices: Mapping[str, str]
    nodes: tuple[LockedNode, ...]
    shards: tuple[str, ...] = ()
    measured: bool = False
    options: LockedOptions = LockedOptions()

    def fixed_nodes(self, graph: Graph) -> FixedNodes:
        """Return where the nodes of a graph are to be.

        Errors: PlacementError, if its nodes are not those that were locked
        """
        locked = {node.name: node for node in self.nodes if not node.body}
        names = node_names(graph)
        facts = [
            f"{names[n.id]}: {n.op} now, "
            + (f"{locked[names[n.id]].op} in the lock" if names[n.id] in locked else "not there")
            for n in graph.nodes
            if names[n.id] not in locked or locked[names[n.id]].op != n.op
        ]
        gone = sorted(set(locked) - set(names.values()))
        facts += [f"{name}: {locked[name].op} in the lock, not in the graph" for name in gone]
        if facts:
            raise PlacementError(
                f"the locked placement is of another graph: {len(facts)} nodes differ",
                facts=facts[:8],
                fix="place the model anew: trireme place MODEL --lock FILE",
            )
        rows = {node.id: locked[names[node.id]] for node in graph.nodes}
        return FixedNodes(
            {node: row.device for node, row in rows.items()},
            {node: row.task for node, row in rows.items()},
        )

    def of_body(self, name: str, attribute: str) -> Lock | None:
        """Return what is locked of a body of a node; None for a body that was not placed."""
        mine = [node for node in self.nodes if node.body[:2] == (name, attribute)]
        nodes = tuple(replace(node, body=node.body[2:]) for node in mine)
        return replace(self, nodes=nodes, shards=()) if nodes else None


def devices_of(locked: Lock) -> list[str]:
    """Return the names that a lock's devices are opened by; not the host's if it had nothing but
    states and control flow, for which it is there by itself."""
    if locked.options.devices:
        return list(locked.options.devices)
    ops = {node.op for node in locked.nodes if node.device == HOST and not node.body}
    keeper = bool(ops) and ops <= set(ops_with(lambda op: op.is_host_only))
    return [name for name in locked.devices if not (keeper and name == HOST)]


def lock(placement: Placement, version: str = "", options: LockedOptions | None = None) -> Lock:
    """Return what there is to lock of a placement; version: of the program that writes it."""
    score = placement.score
    devices = {name: spec.description for name, spec in placement.specs.items()}
    return Lock(
        model=placement.source.name,
        trireme=version,
        objective=score.objective,
        predicted=score.value,
        lower_bound=score.lower_bound,
        unit=score.unit,
        devices=devices,
        nodes=tuple(_nodes(placement, ())),
        shards=tuple(one.text for one in placement.shards),
        measured=any(one.kept for one in placement.measured),
        options=options or LockedOptions(),
    )


def _nodes(placement: Placement, body: tuple[str, ...]) -> Iterable[LockedNode]:
    """Yield the lines of a placement, those of its bodies after each node."""
    names = node_names(placement.source)
    for node, (chosen, *_) in explain(placement).nodes:
        name, us = names[node.id], (chosen.estimate_s or 0.0) * 1e6
        task = placement.stage_of[node.id]
        yield LockedNode(name, node.op, chosen.device, task, us, chosen.why, body)
        for attribute, inner in bodies_of(node).items():
            if inner in placement.bodies:
                yield from _nodes(placement.bodies[inner], (*body, name, attribute))
