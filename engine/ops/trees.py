"""Ensembles of decision trees, and the places of values in a list: classical machine learning."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from trireme.ir.axis_map import AxisMap, in_order
from trireme.ir.dtype_rules import Like
from trireme.ir.graph import Value
from trireme.ir.op import Attr, Call, Sample, define
from trireme.ops import axis_maps
from trireme.ops.shapes import Types, expect_dims, expect_rank, one
from trireme.support.dtypes import BOOL, TEXT, Array
from trireme.support.errors import RunError, ShapeError

_INDEX = frozenset({"int32"})
_FLOAT = frozenset({"float32", "float64"})
Counts = tuple[int, int, int, int]


def trees_fault(arrays: Sequence[Array], counts: Counts) -> str:
    """Return what is wrong with trees in a sentence, "" where nothing is.

    arrays: features, branches, roots, ends, targets
    counts: nodes, features of a row, weights, targets
    A branch that leads on leads to a later node, so every walk ends.
    """
    features, branches, roots, ends, targets = arrays
    nodes, width, weights, rows = counts
    own = np.arange(nodes)[:, None]
    is_leaf = (branches == own).all(1)
    if (((branches <= own) | (branches >= nodes)).any(1) & ~is_leaf).any():
        return "a branch leads to no later node"
    if ((features < 0) | (features >= width))[~is_leaf].any():
        return f"a feature lies outside the {width} of a row"
    if ((roots < 0) | (roots >= nodes)).any():
        return "a root is no node"
    if nodes and ((np.diff(ends, prepend=0) < 0).any() or ends[-1] != weights):
        return "the ends of the nodes' weights do not rise to their number"
    if ((targets < 0) | (targets >= rows)).any():
        return f"a target lies outside the {rows}"
    return ""


def _infer(
    x: Value,
    features: Value,
    thresholds: Value,
    branches: Value,
    missing: Value,
    roots: Value,
    ends: Value,
    targets: Value,
    weights: Value,
    *,
    num_targets: int,
    aggregate: str,
) -> Types:
    expect_rank("x", x, 2)
    expect_rank("features", features, 1)
    nodes = features.shape[0]
    for name, value in (("thresholds", thresholds), ("missing", missing), ("ends", ends)):
        expect_dims(name, value, nodes)
    expect_dims("branches", branches, nodes, 2)
    expect_rank("roots", roots, 1)
    expect_rank("targets", targets, 1)
    expect_dims("weights", weights, targets.shape[0])
    given = [value.data for value in (features, branches, roots, ends, targets)]
    arrays, width = [data for data in given if data is not None], x.shape[1]
    if isinstance(width, int) and isinstance(nodes, int) and len(arrays) == len(given):
        fault = trees_fault(arrays, (nodes, width, len(arrays[-1]), num_targets))
        if fault:
            raise ShapeError(fault)
    return one((x.shape[0], num_targets), weights.dtype)


def tree_ensemble(
    x: Array,
    features: Array,
    thresholds: Array,
    branches: Array,
    missing: Array,
    roots: Array,
    ends: Array,
    targets: Array,
    weights: Array,
    *,
    num_targets: int,
    aggregate: str,
) -> Array:
    """Return each row's weights, put together by target: see the op's doc."""
    counts = len(features), x.shape[1], len(weights), num_targets
    fault = trees_fault((features, branches, roots, ends, targets), counts)
    if fault:
        raise RunError(fault)
    rows = np.arange(len(x))[:, None]
    nodes = np.broadcast_to(roots, (len(x), len(roots)))
    while nodes.size:
        value = x[rows, np.where(branches[nodes, 0] == nodes, 0, features[nodes])]
        first = (value <= thresholds[nodes]) | (np.isnan(value) & missing[nodes])
        after = branches[nodes, np.where(first, 0, 1)]
        if (after == nodes).all():
            break
        nodes = after
    return _aggregated(nodes, ends, targets, weights, num_targets, aggregate)


def _aggregated(
    leaves: Array, ends: Array, targets: Array, weights: Array, num_targets: int, aggregate: str
) -> Array:
    """Return the weights of leaves [N,T], put together in float64 and rounded once."""
    start, joined = {
        "sum": (0.0, np.add),
        "min": (np.inf, np.minimum),
        "max": (-np.inf, np.maximum),
    }[aggregate]
    made = np.full((len(leaves), num_targets), start)
    is_made = np.zeros(made.shape, bool)
    starts = np.concatenate([[0], ends[:-1]])[leaves] if leaves.size else leaves
    counts = ends[leaves] - starts if leaves.size else leaves
    for k in range(int(counts.max(initial=0))):
        row, tree = np.nonzero(counts > k)
        weight = starts[row, tree] + k
        joined.at(made, (row, targets[weight]), weights[weight].astype(np.float64))
        is_made[row, targets[weight]] = True
    return np.where(is_made, made, 0.0).astype(weights.dtype)


def _flops(call: Call) -> int:
    roots, nodes = call.type(5).elements, max(call.type(1).elements, 1)
    depth = max(int(np.log2(max(nodes / max(roots, 1), 1))), 1)
    return call.outputs[0].elements + call.type(0).dims[0] * roots * depth * 3


def _rows(call: Call) -> AxisMap:
    return AxisMap(in_order(0, 1))


def drawn_trees(
    rng: np.random.Generator,
    trees: int,
    depth: int,
    width: int,
    num_targets: int,
    each: int = 1,
    missing: float = 0.0,
    dtype: str = "float32",
) -> tuple[Array, ...]:
    """Return the inputs of the op behind x for random trees: up to `each` weights a leaf."""
    features: list[int] = []
    thresholds: list[float] = []
    branches: list[tuple[int, int]] = []
    nan: list[bool] = []
    ends: list[int] = []
    targets: list[int] = []
    weights: list[float] = []
    roots: list[int] = []

    def grow(level: int) -> int:
        node = len(features)
        features.append(int(rng.integers(width)))
        thresholds.append(rng.standard_normal())
        nan.append(bool(rng.random() < missing))
        branches.append((node, node))
        ends.append(len(weights))
        if level < depth and rng.random() < 0.9:
            first = grow(level + 1)
            branches[node] = (first, grow(level + 1))
        else:
            count = int(rng.integers(1, each + 1))
            targets.extend(rng.integers(0, num_targets, count).tolist())
            weights.extend(rng.standard_normal(count).tolist())
            ends[node] = len(weights)
        return node

    for _ in range(trees):
        roots.append(grow(0))
    whole = [features, branches, roots, list(accumulate(ends, max)), targets]
    f, b, r, e, t = (np.array(part, np.int32) for part in whole)
    return (
        f,
        np.array(thresholds, dtype),
        b.reshape(-1, 2),
        np.array(nan, bool),
        r,
        e,
        t,
        np.array(weights, dtype),
    )


def _samples(rng: np.random.Generator) -> Iterable[Sample]:
    fixed = frozenset(range(1, 9))
    cases: list[tuple[int, int, int, int, int, float, str, str, str]] = [
        (5, 1, 1, 1, 1, 0, "float32", "sum", "stumps"),
        (7, 20, 4, 1, 1, 0, "float32", "sum", "one target"),
        (1, 33, 6, 3, 3, 0, "float32", "sum", "several weights a leaf"),
        (9, 17, 5, 4, 1, 0.5, "float32", "sum", "missing values"),
        (4, 9, 5, 2, 2, 0.5, "float64", "sum", "float64"),
        (6, 11, 3, 2, 2, 0, "float32", "min", "least"),
        (6, 11, 3, 3, 1, 0.2, "float32", "max", "most"),
        (3, 1, 9, 1, 1, 0, "float32", "sum", "one deep tree"),
    ]
    for rows, trees, depth, outputs, each, missing, dtype, aggregate, note in cases:
        x = rng.standard_normal((rows, 6)).astype(dtype)
        x[rng.random(x.shape) < (0.2 if missing else 0)] = np.nan
        inputs = drawn_trees(rng, trees, depth, 6, outputs, each, missing, dtype)
        attrs = {"num_targets": outputs, "aggregate": aggregate}
        yield Sample((x, *inputs), attrs, fixed, note=note)


define(
    "tree_ensemble",
    "x features thresholds branches missing roots ends targets weights",
    "Walk each row of x down every tree, and put the weights of the reached leaves together by "
    "target, in float64; a target without weights is 0. At a node a row takes the first branch "
    "where x[feature] <= threshold, or where it is NaN and `missing` holds, else the second. Both "
    "branches of a leaf are the leaf; others lead to later nodes. ends: of each node's weights, "
    "which follow each other. Shapes: x [N,F], features, thresholds, missing, ends [M], branches "
    "[M,2], roots [T], targets, weights [W] -> y [N, num_targets]. "
    "Source: ONNX ai.onnx.ml TreeEnsemble-5",
    _infer,
    tree_ensemble,
    attrs={
        "num_targets": Attr("int", least=1),
        "aggregate": Attr("str", "sum", ("sum", "min", "max")),
    },
    flops=_flops,
    family="trees",
    rtol=1e-6,
    axis_map=_rows,
    samples=_samples,
    dtypes=(_FLOAT, _INDEX, Like("x"), _INDEX, BOOL, _INDEX, _INDEX, _INDEX, _FLOAT),
)


def category_index(x: Array, keys: Array, *, strict: bool) -> Array:
    """Return where each element stands among the keys: see the op's doc."""
    if x.dtype == object:
        places = {key: k for k, key in reversed(list(enumerate(keys.tolist())))}
        found = np.array([places.get(text, -1) for text in x.reshape(-1).tolist()], np.int64)
        found = found.reshape(x.shape)
    else:
        order = np.argsort(keys, kind="stable")
        place = np.searchsorted(keys, x, sorter=order)
        near = order[np.minimum(place, len(keys) - 1)] if len(keys) else np.zeros_like(place)
        same = keys[near] == x if len(keys) else np.zeros(x.shape, bool)
        if x.dtype.kind == "f" and len(keys):
            same |= np.isnan(keys[near]) & np.isnan(x)
        found = np.where(same, near, -1).astype(np.int64)
    if strict and (found < 0).any():
        wrong = x.reshape(-1).tolist()[np.flatnonzero(found.reshape(-1) < 0)[0]]
        raise RunError(f"{wrong!r} is none of the {len(keys)} categories")
    return found


def _infer_category(x: Value, keys: Value, *, strict: bool) -> Types:
    expect_rank("keys", keys, 1)
    return one(x.shape, "int64")


def _category_samples(rng: np.random.Generator) -> Iterable[Sample]:
    keys = np.array([5, -3, 7, 0], np.int64)
    x = rng.integers(-4, 8, (3, 5)).astype(np.int64)
    yield Sample((x, keys), constants=frozenset({1}))
    floats = np.array([0.5, np.nan, -1, 2], np.float32)
    wanted = np.array([np.nan, 0.5, 3, -0.0, 2], np.float32)
    yield Sample((wanted, floats), constants=frozenset({1}), note="NaN equals NaN")
    yield Sample((keys[::-1].copy(), keys), {"strict": True}, note="all known")


def _least_work(call: Call) -> int:
    return call.outputs[0].elements * max(int(np.log2(call.type(1).elements + 1)), 1)


define(
    "category_index",
    "x keys",
    "The first place of each element of x in keys [K], -1 where it is none of them; NaN equals "
    "NaN. strict: that is an error. Source: ONNX ai.onnx.ml LabelEncoder-4, OneHotEncoder-1",
    _infer_category,
    category_index,
    attrs={"strict": Attr("bool", False)},
    flops=_least_work,
    family="gather",
    axis_map=axis_maps.rows_alone,
    samples=_category_samples,
    dtypes=(_FLOAT | TEXT | frozenset({"int32", "int64"}), Like("x")),
)
