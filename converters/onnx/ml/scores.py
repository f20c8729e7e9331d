"""From the scores of classes to what a classifier returns: labels and transformed scores.

Where ONNX is vague, ONNX Runtime decides.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from trireme.converters.onnx.scope import NodeUse

Second = Literal["", "complement", "opposite"]
"""How a lone score becomes two: 1 - s and s; -s and s; or not at all."""


def matrix(use: NodeUse, dtype: str = "float32") -> int:
    """Return input 0 as [N,F] of a float dtype; one row of a vector."""
    x = use.need(0)
    if len(use.type(0).shape) == 1:
        x = use.add("unsqueeze", x, use.constant([0], "int64"))
    return x if use.type(0).dtype == dtype else use.add("cast", x, to=dtype)


def labels_of(use: NodeUse) -> int:
    """Return the labels of the classes as a constant."""
    texts = use.take("classlabels_strings") or ()
    numbers = use.take("classlabels_int64s", use.take("classlabels_ints")) or ()
    if not texts and not numbers:
        raise use.error("it has no labels of classes")
    return use.constant(np.array(texts, object) if texts else np.array(numbers, np.int64))


def pick(use: NodeUse, labels: int, places: int) -> int:
    """Return the labels at places [N]."""
    return use.add("gather", labels, places, axis=0)


def best(use: NodeUse, scores: int) -> int:
    """Return the place of the largest score of each row."""
    return use.add("arg_max", scores, axis=1, keepdims=0)


def above(use: NodeUse, scores: int, least: float) -> int:
    """Return 1 for each row whose only score is above a number, else 0."""
    flat = use.add("squeeze", scores, use.constant([1], "int64"))
    larger = use.add("greater", flat, use.constant(least, "float32"))
    return use.add("cast", larger, to="int64")


def column(use: NodeUse, scores: int, place: int) -> int:
    """Return one column [N,1] of scores."""
    return use.add("gather", scores, use.constant([place], "int64"), axis=1)


def transformed(use: NodeUse, scores: int, how: str, second: Second = "") -> int:
    """Return scores after a post_transform, with a second column where a lone one needs it."""
    columns = use.scope.builder.type(scores).shape[1]
    if columns == 1 and how != "PROBIT" and second:
        return _two(use, scores, how, second)
    if how == "NONE":
        return scores
    if how == "LOGISTIC":
        return use.add("sigmoid", scores)
    if how == "SOFTMAX":
        return use.add("softmax", scores, axis=1)
    if how == "SOFTMAX_ZERO":
        return _softmax_zero(use, scores)
    if how == "PROBIT":
        return _probit(use, scores)
    raise use.error(f"post_transform {how!r} is unknown")


def _two(use: NodeUse, score: int, how: str, second: Second) -> int:
    if how == "LOGISTIC":
        score, second = use.add("sigmoid", score), "complement"
    other = use.add("neg", score)
    if second == "complement":
        other = use.add("add", other, use.constant(1.0, "float32"))
    return use.add("concat", other, score, axis=1)


def _softmax_zero(use: NodeUse, scores: int) -> int:
    """Softmax over the scores that are not nearly 0; a nearly 0 one s becomes s * exp(-max)."""
    last = use.constant([1], "int64")
    most = use.add("reduce_max", scores, last)
    size = use.add("abs", scores)
    counts = use.add("greater", size, use.constant(1e-7, "float32"))
    power = use.add("exp", use.add("sub", scores, most))
    kept = use.add("where", counts, power, use.constant(0.0, "float32"))
    little = use.add("mul", scores, use.add("exp", use.add("neg", most)))
    total = use.add("reduce_sum", kept, last)
    return use.add("div", use.add("where", counts, power, little), total)


def _probit(use: NodeUse, scores: int) -> int:
    """The quantile of the normal distribution, by Winitzki's formula for the inverse of erf."""

    def number(value: float) -> int:
        return use.constant(value, "float32")

    x = use.add("sub", use.add("mul", scores, number(2.0)), number(1.0))
    rest = use.add("mul", use.add("sub", number(1.0), x), use.add("add", number(1.0), x))
    log = use.add("log", rest)
    half = use.add("add", use.add("mul", log, number(0.5)), number(2 / (3.14159 * 0.147)))
    square = use.add("mul", half, half)
    root = use.add("sqrt", use.add("sub", square, use.add("mul", log, number(1 / 0.147))))
    size = use.add("sqrt", use.add("sub", root, half))
    sign = use.add("where", use.add("less", x, number(0.0)), number(-1.0), number(1.0))
    return use.add("mul", use.add("mul", sign, size), number(1.41421356))
