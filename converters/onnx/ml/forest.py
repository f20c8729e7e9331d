"""Trees as files have them, nodes under names and with six relations, as tree_ensemble's arrays."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field

import numpy as np

from trireme.support.dtypes import Array
from trireme.support.records import dataclass

Key = Hashable
Slots = list[tuple[int, int]]


@dataclass(frozen=True)
class FileNode:
    """A node as files have it.

    mode: "" of a leaf, else the relation of feature and threshold: LEQ, LT, GTE, GT, EQ, NEQ;
        or MEMBER of a set
    members: the set of a MEMBER
    yes, no: the nodes where it holds and where it does not
    missing: whether NaN goes where it holds
    weights: of a leaf, by target
    """

    mode: str
    feature: int = 0
    threshold: float = 0.0
    yes: Key = None
    no: Key = None
    missing: bool = False
    members: tuple[float, ...] = ()
    weights: Sequence[tuple[int, float]] = ()


class ForestError(ValueError):
    """Nodes that make no trees; its text says why."""


@dataclass
class ForestArrays:
    """The arrays of tree_ensemble, while trees are added."""

    dtype: str
    features: list[int] = field(default_factory=list)
    thresholds: list[float] = field(default_factory=list)
    branches: list[list[int]] = field(default_factory=list)
    missing: list[bool] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)

    def add(self, nodes: Mapping[Key, FileNode], root: Key) -> int:
        """Add a tree; return how many of the nodes it has.

        Errors: ForestError, if a node is missing, or is reached twice
        """
        self.roots.append(len(self.features))
        seen: set[Key] = set()
        waiting: list[tuple[Key, Slots]] = [(root, [])]
        while waiting:
            key, slots = waiting.pop()
            node = nodes.get(key)
            if node is None:
                raise ForestError(f"a branch leads to the node {key}, which is not there")
            if key in seen:
                raise ForestError(f"two branches lead to the node {key}")
            seen.add(key)
            for parent, slot in slots:
                self.branches[parent][slot] = len(self.features)
            if not node.mode:
                self._leaf(node)
                continue
            yes, no = self._inner(node)
            waiting += [(node.no, no), (node.yes, yes)]
        return len(seen)

    def _leaf(self, node: FileNode) -> None:
        own = len(self.features)
        self.targets += [target for target, _ in node.weights]
        self.weights += [weight for _, weight in node.weights]
        self._record(0, 0.0, False)
        self.branches[own] = [own, own]

    def _record(self, feature: int, threshold: float, missing: bool) -> int:
        self.features.append(feature)
        self.thresholds.append(threshold)
        self.missing.append(missing)
        self.branches.append([-1, -1])
        self.ends.append(len(self.weights))
        return len(self.features) - 1

    def _inner(self, node: FileNode) -> tuple[Slots, Slots]:
        """Add a node as tests for x <= threshold; return the open branches of yes and of no."""
        feature, threshold = node.feature, node.threshold
        if node.mode in ("LEQ", "GT"):
            is_same = node.mode == "LEQ"
            own = self._record(feature, threshold, node.missing if is_same else not node.missing)
            return ([(own, 0)], [(own, 1)]) if is_same else ([(own, 1)], [(own, 0)])
        if node.mode in ("LT", "GTE"):
            is_same = node.mode == "LT"
            below = self._below(threshold)
            own = self._record(feature, below, node.missing if is_same else not node.missing)
            return ([(own, 0)], [(own, 1)]) if is_same else ([(own, 1)], [(own, 0)])
        if node.mode == "EQ":
            return self._equal(feature, (threshold,), node.missing)
        if node.mode == "NEQ":
            no, yes = self._equal(feature, (threshold,), False)
            return yes, no
        if node.mode == "MEMBER":
            return self._equal(feature, node.members, node.missing)
        raise ForestError(f"the mode {node.mode!r} of a node is unknown")

    def _equal(self, feature: int, values: Sequence[float], missing: bool) -> tuple[Slots, Slots]:
        """Add tests for x being one of some values."""
        yes: Slots = []
        no: Slots = []
        ordered = sorted(values)
        for k, value in enumerate(ordered):
            at_most = self._record(feature, value, missing and not k)
            self.branches[at_most][0] = at_most + 1
            below = self._record(feature, self._below(value), False)
            no.append((below, 0))
            yes.append((below, 1))
            if k + 1 < len(ordered):
                self.branches[at_most][1] = below + 1
            else:
                no.append((at_most, 1))
        if not ordered:
            raise ForestError("a node's set of members is empty")
        return yes, no

    def _below(self, threshold: float) -> float:
        """Return the largest number below a threshold; NaN, which nothing reaches, below -inf."""
        if threshold == -np.inf:
            return np.nan
        kind = np.dtype(self.dtype).type
        return float(np.nextafter(kind(threshold), kind(-np.inf)))

    def inputs(self) -> tuple[Array, ...]:
        """Return the inputs of tree_ensemble behind x."""
        whole = [self.features, self.branches, self.roots, self.ends, self.targets]
        features, branches, roots, ends, targets = (np.array(part, np.int32) for part in whole)
        thresholds = np.array(self.thresholds, self.dtype)
        weights = np.array(self.weights, self.dtype)
        missing = np.array(self.missing, bool)
        branches = branches.reshape(-1, 2)
        return features, thresholds, branches, missing, roots, ends, targets, weights
