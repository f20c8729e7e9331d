"""Rules for the linear models of ai.onnx.ml."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trireme.converters.onnx.ml.scores import (
    Second,
    above,
    best,
    labels_of,
    matrix,
    pick,
    transformed,
)
from trireme.converters.onnx.scope import NodeUse


def linear_regressor(use: NodeUse) -> Sequence[int]:
    """LinearRegressor(x): x @ coefficients + intercepts, transformed."""
    scores = _products(use, int(use.take("targets", 1)))
    return (transformed(use, scores, use.take("post_transform", "NONE")),)


def linear_classifier(use: NodeUse) -> Sequence[int]:
    """LinearClassifier(x): the label of the largest score, and the scores, transformed."""
    how = use.take("post_transform", "NONE")
    labels = labels_of(use)
    count = use.scope.builder.type(labels).dims[0]
    use.take("multi_class")
    intercepts, width = use.attrs.get("intercepts") or (), use.type(0).shape[-1]
    given = len(use.attrs["coefficients"])
    rows = len(intercepts) or (given // width if isinstance(width, int) and width else count)
    scores = _products(use, rows)
    if rows > 1:
        return pick(use, labels, best(use, scores)), transformed(use, scores, how)
    place = above(use, scores, 0.0)
    second: Second = "complement" if count == 2 else ""
    if count == 1:
        labels = use.constant([0, 1], "int64")
    return pick(use, labels, place), transformed(use, scores, how, second)


def _products(use: NodeUse, count: int) -> int:
    """Return the scores [N,count] of a linear model."""
    weights = np.array(use.take("coefficients") or (), np.float32)
    if not count or not weights.size or weights.size % count:
        raise use.error(f"{weights.size} coefficients do not fit {count} targets")
    scores = use.add("matmul", matrix(use), use.constant(weights.reshape(count, -1).T.copy()))
    intercepts = use.take("intercepts")
    if not intercepts:
        return scores
    if len(intercepts) != count:
        raise use.error(f"it has {len(intercepts)} intercepts, expected {count}")
    return use.add("add", scores, use.constant(intercepts, "float32"))
