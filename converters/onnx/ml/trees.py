"""Rules for the tree ensembles of ai.onnx.ml."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trireme.converters.onnx.ml.forest import FileNode, ForestArrays, ForestError, Key
from trireme.converters.onnx.ml.scores import (
    Second,
    above,
    best,
    column,
    labels_of,
    matrix,
    pick,
    transformed,
)
from trireme.converters.onnx.scope import NodeUse

_AGGREGATES = {"SUM": "sum", "AVERAGE": "sum", "MIN": "min", "MAX": "max"}
_NUMBERED = ("AVERAGE", "SUM", "MIN", "MAX")
_MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def tree_regressor(use: NodeUse) -> Sequence[int]:
    """TreeEnsembleRegressor(x): the trees' weights, put together by target, in float32."""
    targets = int(use.take("n_targets", 1))
    aggregate = use.take("aggregate_function", "SUM")
    forest = _forest(use, "target")
    scores = _sums(use, forest, targets, aggregate)
    scores = _with_base(use, scores, _numbers(use, "base_values"), targets)
    how = use.take("post_transform", "NONE")
    if targets == 1 and how != "PROBIT":
        return (scores,)  # as ONNX Runtime, which transforms several targets only
    return (transformed(use, scores, how),)


def tree_classifier(use: NodeUse) -> Sequence[int]:
    """TreeEnsembleClassifier(x): the label of the best class, and the scores, transformed."""
    how, base = use.take("post_transform", "NONE"), _numbers(use, "base_values")
    labels = labels_of(use)
    classes = use.scope.builder.type(labels).shape[0]
    if not isinstance(classes, int):
        raise use.error("the number of its classes is open")
    used = sorted(set(use.attrs.get("class_ids") or ()))
    weights = _numbers(use, "class_weights", keep=True)
    forest = _forest(use, "class")
    scores = _sums(use, forest, classes, "SUM")
    if classes != 2:
        if len(base):
            scores = use.add("add", scores, use.constant(_fill(base, classes), "float32"))
        return pick(use, labels, best(use, scores)), transformed(use, scores, how)
    is_lone, are_positive = len(used) == 1, bool((weights >= 0).all())
    return _binary(use, labels, scores, base, how, (used, is_lone, are_positive))


def _binary(
    use: NodeUse,
    labels: int,
    scores: int,
    base: np.ndarray[Any, Any],
    how: str,
    facts: tuple[list[int], bool, bool],
) -> Sequence[int]:
    """Return label and scores of two classes, as ONNX Runtime has them."""
    used, is_lone, are_positive = facts
    has_second = 1 in used
    first, second = column(use, scores, 0), column(use, scores, 1)
    if len(base) == 2 and has_second:
        second = use.add("add", first, use.constant(base[1], "float32"))
        first = use.add("neg", second)
    elif len(base) == 2:
        first = use.add("add", first, use.constant(base[0], "float32"))  # the second stays 0
    elif len(base) == 1:
        first = use.add("add", first, use.constant(base[0], "float32"))
    deciding = second if has_second else first
    least = 0.5 if is_lone and are_positive else 0.0
    label = pick(use, labels, above(use, deciding, least))
    if has_second or len(base) == 2:
        return label, transformed(use, use.add("concat", first, second, axis=1), how)
    extra: Second = "" if not is_lone else "complement" if are_positive else "opposite"
    return label, transformed(use, first, how, extra)


def tree_ensemble(use: NodeUse) -> Sequence[int]:
    """TreeEnsemble(x): as TreeEnsembleRegressor, with nodes and leaves in lists of their own."""
    attrs = use.attrs
    targets = int(use.take("n_targets", 1))
    aggregate = _numbered(use, "aggregate_function", _NUMBERED, 1)
    how = _numbered(use, "post_transform", _TRANSFORMS, 0)
    splits, modes = attrs["nodes_splits"].reshape(-1), attrs["nodes_modes"].reshape(-1)
    weights = attrs["leaf_weights"].reshape(-1)
    tracks = attrs.get("nodes_missing_value_tracks_true") or [0] * len(modes)
    members = _member_sets(attrs.get("membership_values"))
    nodes: dict[Key, FileNode] = {}
    for k, mode in enumerate(modes.tolist()):
        if not 0 <= mode < len(_MODES):
            raise use.error(f"the mode {mode} of a node is unknown")
        ends = [
            (bool(attrs[f"nodes_{side}leafs"][k]), attrs[f"nodes_{side}nodeids"][k])
            for side in ("true", "false")
        ]
        is_member = _MODES[mode] == "MEMBER"
        if is_member and not members:
            raise use.error("a node has no set of members")
        nodes[False, k] = FileNode(
            _MODES[mode],
            attrs["nodes_featureids"][k],
            float(splits[k]),
            yes=ends[0],
            no=ends[1],
            missing=bool(tracks[k]),
            members=members.pop(0) if is_member else (),
        )
    for k, target in enumerate(attrs["leaf_targetids"]):
        nodes[True, k] = FileNode("", weights=[(target, float(weights[k]))])
    forest = ForestArrays(str(splits.dtype))
    for root in attrs["tree_roots"]:
        node = nodes.get((False, root))
        if node is not None and node.yes == node.no:
            _grow(use, forest, nodes, node.yes)  # a tree of one leaf
        else:
            _grow(use, forest, nodes, (False, root))
    scores = _sums(use, forest, targets, aggregate, str(weights.dtype))
    return (transformed(use, scores, how),)


def _numbered(use: NodeUse, name: str, words: Sequence[str], default: int) -> str:
    """Return the word that an attribute gives by its number."""
    number = int(use.take(name, default))
    if not 0 <= number < len(words):
        raise use.error(f"{name} {number} is unknown")
    return words[number]


def _member_sets(values: np.ndarray[Any, Any] | None) -> list[tuple[float, ...]]:
    """Return the sets of members, which end with NaN each."""
    sets: list[tuple[float, ...]] = []
    current: list[float] = []
    for value in [] if values is None else values.reshape(-1).tolist():
        if np.isnan(value):
            sets.append(tuple(current))
            current = []
        else:
            current.append(value)
    return [*sets, tuple(current)] if current else sets


def _grow(use: NodeUse, forest: ForestArrays, nodes: dict[Key, FileNode], root: Key) -> int:
    try:
        return forest.add(nodes, root)
    except ForestError as error:
        raise use.error(str(error)) from error


def _numbers(use: NodeUse, name: str, keep: bool = False) -> np.ndarray[Any, Any]:
    """Return a list of floats, or the tensor that stands for it."""
    take = use.attrs.get if keep else use.take
    plain, tensor = take(name), take(f"{name}_as_tensor")
    if tensor is not None:
        return np.asarray(tensor).reshape(-1)
    return np.array(plain or (), np.float32)


def _forest(use: NodeUse, what: str) -> ForestArrays:
    """Return the trees of nodes and weights that are named by tree and number."""
    attrs, values = use.attrs, _numbers(use, "nodes_values")
    modes = attrs["nodes_modes"]
    lists = {name: attrs[f"nodes_{name}"] for name in ("treeids", "nodeids", "featureids")}
    ends = attrs["nodes_truenodeids"], attrs["nodes_falsenodeids"]
    tracks = attrs.get("nodes_missing_value_tracks_true") or [0] * len(modes)
    count = len(modes)
    wrong = [name for name, listed in (*lists.items(), ("values", values)) if len(listed) != count]
    if wrong or len(ends[0]) != count or len(ends[1]) != count or len(tracks) != count:
        raise use.error("the lists of its nodes have different lengths")
    weights: dict[Key, list[tuple[int, float]]] = {}
    numbers = _numbers(use, f"{what}_weights")
    places = zip(
        *(attrs.get(f"{what}_{name}") or () for name in ("treeids", "nodeids", "ids")),
        numbers.tolist(),
        strict=True,
    )
    for tree, number, target, weight in places:
        weights.setdefault((tree, number), []).append((target, weight))
    nodes: dict[Any, dict[Key, FileNode]] = {}
    led: set[Key] = set()
    for k, mode in enumerate(modes):
        tree = lists["treeids"][k]
        key = tree, lists["nodeids"][k]
        own = nodes.setdefault(tree, {})
        if key in own:
            raise use.error(f"two nodes of tree {tree} have the number {key[1]}")
        if mode == "LEAF":
            own[key] = FileNode("", weights=weights.get(key, ()))
            continue
        yes, no = (tree, ends[0][k]), (tree, ends[1][k])
        led |= {yes, no}
        mode = mode.removeprefix("BRANCH_")
        feature, value, missing = lists["featureids"][k], float(values[k]), bool(tracks[k])
        own[key] = FileNode(mode, feature, value, yes, no, missing)
    forest = ForestArrays(str(values.dtype))
    for tree, own in nodes.items():
        roots = [key for key in own if key not in led]
        if len(roots) != 1:
            raise use.error(f"tree {tree} has {len(roots)} roots")
        if _grow(use, forest, own, roots[0]) < len(own):
            raise use.error(f"tree {tree} has nodes that its root does not lead to")
    return forest


def _sums(
    use: NodeUse, forest: ForestArrays, targets: int, aggregate: str, kind: str = "float32"
) -> int:
    """Return the weights of the reached leaves by target, [N,targets]."""
    if aggregate not in _AGGREGATES:
        raise use.error(f"aggregate_function {aggregate!r} is unknown")
    if not forest.roots:
        raise use.error("it has no trees")
    x = matrix(use, forest.dtype)
    inputs = [use.constant(array) for array in forest.inputs()]
    how = _AGGREGATES[aggregate]
    y = use.add("tree_ensemble", x, *inputs, num_targets=targets, aggregate=how)
    if aggregate == "AVERAGE":
        y = use.add("div", y, use.constant(len(forest.roots), forest.dtype))
    return y if forest.dtype == kind else use.add("cast", y, to=kind)


def _with_base(use: NodeUse, scores: int, base: np.ndarray[Any, Any], targets: int) -> int:
    """Add a number for each target, where there are as many."""
    if len(base) != targets:
        return scores
    return use.add("add", scores, use.constant(base, "float32"))


def _fill(base: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    return np.concatenate([base, np.zeros(max(count - len(base), 0))])[:count]
