"""Compare every value of a run with the numpy references: which node is the first to differ?

Each node is judged on its actual inputs (`local`), so that an error shows at its origin. Beside it
(`total`) is the distance from a run wholly on the references.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trireme.ir.graph import Graph, Node
from trireme.ir.interpreter import evaluate
from trireme.ir.op import get_op
from trireme.runtime.loop.executors import WatchedTask
from trireme.runtime.session.session import Session
from trireme.support.dtypes import FLOATS, Array, dtype_name

FLOAT_FLOOR = 1e-5
"""The least tolerance of a float node: samples are small, sums in models are long."""


@dataclass(frozen=True)
class Deviation:
    """The distance of one array from another.

    kind: "relative" to the other's largest finite value (floats), "units" (integers), or "shape"
    differing: share of the elements that are not equal; NaN equals NaN
    """

    kind: str
    largest: float
    differing: float


def gap(ours: Array, theirs: Array) -> Deviation:
    """Return how far `ours` is from `theirs`; infinitely far when the shapes differ."""
    if ours.shape != theirs.shape:
        return Deviation(f"shape {ours.shape} against {theirs.shape}", float("inf"), 1.0)
    if not ours.size:
        return Deviation("empty", 0.0, 0.0)
    if ours.dtype.kind in "OSUc":
        differing = float(np.mean(ours != theirs))
        return Deviation("units", float(differing > 0), differing)
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(a - b))
    apart = np.where(np.isnan(apart), np.inf, apart)
    differing = float(1 - same.mean())
    if dtype_name(theirs.dtype) in FLOATS:
        finite = np.abs(b[np.isfinite(b)])
        scale = max(float(finite.max(initial=0.0)), 1e-30)
        return Deviation("relative", float(apart.max()) / scale, differing)
    return Deviation("units", float(apart.max()), differing)


@dataclass(frozen=True)
class NodeGap:
    """One value of a run: the node that made it and where, and how far it is from the references.

    local: from the reference on the arrays that the node was given; None where a sunk region hides
        some of them
    total: from a run on the references from the start
    """

    node: Node
    device: str
    value: str
    local: Deviation | None
    total: Deviation
    agrees: bool

    def __str__(self) -> str:
        local = "" if self.local is None else f"{self.local.largest:.3g} {self.local.kind}, "
        word = "ok   " if self.agrees else "APART"
        where = f"{self.node.label} on {self.device}: {self.value[-40:]}"
        return f"{word} {where}: {local}{self.total.largest:.3g} {self.total.kind} in all"

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain data."""
        return {
            "node": self.node.id,
            "op": self.node.op,
            "source": self.node.source,
            "device": self.device,
            "value": self.value,
            "agrees": self.agrees,
            "local": None if self.local is None else vars(self.local),
            "total": vars(self.total),
        }


def compare_nodes(
    session: Session,
    feeds: Mapping[str, Array],
    tolerance: float | None = None,
    units: int = 0,
) -> list[NodeGap]:
    """Return a row for every value that leaves a task, in the order of the run.

    tolerance: of floats, relative to the largest value; each op's own when None, at least 1e-5
    units: of integers
    In a session of execution "interactive" every value is compared; in a sunk one, those that
    leave each region, by their distance from the references' run alone.
    """
    watcher = _Watcher(session.plan.graph, feeds, tolerance, units)
    session.run_nodes(feeds, watcher)
    return watcher.rows


class _Watcher:
    """Runs the references beside a run: on the values of the run, and from the start."""

    def __init__(
        self, graph: Graph, feeds: Mapping[str, Array], tolerance: float | None, units: int
    ) -> None:
        self.graph, self.tolerance, self.units = graph, tolerance, units
        self.rows: list[NodeGap] = []
        self.seen: dict[int, Array] = {
            v.id: v.data for v in graph.values.values() if v.data is not None
        }
        self.seen.update((v.id, np.asarray(feeds[v.name])) for v in graph.input_values())
        self.right = dict(self.seen)
        self.left = {value: len(graph.users(value)) for value in graph.values}

    def __call__(self, step: WatchedTask) -> None:
        for node in step.task.nodes:
            self._references(node, step.values)
        single = len(step.task.nodes) == 1
        for node in step.task.nodes:
            local = self._local(node) if single and not get_op(node.op).random else None
            for position, value in enumerate(node.outputs):
                if value in step.values:
                    mine = local[position] if local else None
                    self._row(step, node, value, mine)
        self.seen.update(step.values)
        for node in step.task.nodes:
            self._forget(node)

    def _references(self, node: Node, made: Mapping[int, Array]) -> None:
        if get_op(node.op).random:  # what the run made is taken as right
            self.right.update((value, made[value]) for value in node.outputs if value in made)
            return
        arrays = [None if i is None else self.right[i] for i in node.inputs]
        self.right.update(zip(node.outputs, evaluate(self.graph, node, arrays), strict=True))

    def _local(self, node: Node) -> tuple[Array, ...]:
        """Return the reference's outputs on what the run gave the node."""
        given = [(self.seen[i], self.right[i]) for i in node.used]
        if all(a is b or a.tobytes() == b.tobytes() for a, b in given):
            return tuple(self.right[value] for value in node.outputs)
        arrays = [None if i is None else self.seen[i] for i in node.inputs]
        return evaluate(self.graph, node, arrays)

    def _row(self, step: WatchedTask, node: Node, value: int, local: Array | None) -> None:
        ours = step.values[value]
        total = gap(ours, self.right[value])
        mine = None if local is None else gap(ours, local)
        judged = mine or total
        limit = self._limit(node) if judged.kind == "relative" else self.units
        name = self.graph.values[value].name
        agrees = judged.largest <= limit
        self.rows.append(NodeGap(node, step.device, name, mine, total, agrees))

    def _limit(self, node: Node) -> float:
        if self.tolerance is not None:
            return self.tolerance
        return max(get_op(node.op).rtol, FLOAT_FLOOR)

    def _forget(self, node: Node) -> None:
        """Drop what no later node reads."""
        for value in set(node.used):
            self.left[value] -= 1
            if not self.left[value]:
                self.seen.pop(value, None)
                self.right.pop(value, None)
