"""Rules for the support vector machines of ai.onnx.ml."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, combinations
from typing import Any

import numpy as np

from trireme.converters.onnx.ml.scores import Second, best, labels_of, matrix, pick, transformed
from trireme.converters.onnx.scope import NodeUse

_LEAST = 1e-7
"""The least probability of a class of a pair."""


def svm_classifier(use: NodeUse) -> Sequence[int]:
    """SVMClassifier(x): the label with the most votes of pairs of classes, and scores.

    The scores are the pairs' sums, or probabilities of classes where prob_a and prob_b are given.
    """
    how, sizes = use.take("post_transform", "NONE"), use.take("vectors_per_class") or ()
    prob_a, prob_b = use.take("prob_a") or (), use.take("prob_b") or ()
    rho = np.array(use.take("rho") or (0.0,), np.float32)
    labels = labels_of(use)
    classes = use.scope.builder.type(labels).shape[0]
    if not isinstance(classes, int) or classes < 2:
        raise use.error(f"it has {classes} classes, expected two or more")
    weights = np.array(use.take("coefficients") or (), np.float32)
    kernels = kernel_values(use, sum(sizes))
    if not sizes:
        table = weights.reshape(classes, -1).T.copy()
        sums = use.add("matmul", kernels, use.constant(table))
        scores = use.add("add", sums, use.constant(rho[0], "float32"))
        return pick(use, labels, best(use, scores)), transformed(use, scores, how)
    pairs = list(combinations(range(classes), 2))
    if len(sizes) != classes or len(rho) != len(pairs):
        raise use.error(f"{len(sizes)} groups of vectors and {len(rho)} rho for {classes} classes")
    sums = use.add("matmul", kernels, use.constant(_pair_weights(use, weights, sizes, pairs)))
    scores = use.add("add", sums, use.constant(rho))
    label = pick(use, labels, best(use, _votes(use, scores, pairs, classes)))
    if prob_a:
        chances = _chances(use, scores, prob_a, prob_b)
        scores = use.add("pair_probabilities", chances, classes=classes)
        return label, transformed(use, scores, how)
    second: Second = "" if classes > 2 else "opposite" if how == "NONE" else "complement"
    return label, transformed(use, scores, how, second)


def _pair_weights(
    use: NodeUse,
    given: np.ndarray[Any, Any],
    sizes: Sequence[int],
    pairs: Sequence[tuple[int, int]],
) -> np.ndarray[Any, Any]:
    """Return the weights [vectors, pairs]: a pair counts the vectors of its two classes."""
    vectors = sum(sizes)
    if given.size != (len(sizes) - 1) * vectors:
        raise use.error(f"it has {given.size} coefficients, expected {(len(sizes) - 1) * vectors}")
    rows, ends = given.reshape(-1, vectors), [0, *accumulate(sizes)]
    made = np.zeros((vectors, len(pairs)), np.float32)
    for k, (first, second) in enumerate(pairs):
        own, other = (slice(ends[c], ends[c + 1]) for c in (first, second))
        made[own, k], made[other, k] = rows[second - 1, own], rows[first, other]
    return made


def _votes(use: NodeUse, scores: int, pairs: Sequence[tuple[int, int]], classes: int) -> int:
    """Return how many pairs each class wins: the first of a pair where its sum is above 0."""
    gains, starts = np.zeros((len(pairs), classes), np.float32), np.zeros(classes, np.float32)
    for k, (first, second) in enumerate(pairs):
        gains[k, first], gains[k, second] = 1, -1
        starts[second] += 1
    wins = use.add("greater", scores, use.constant(0.0, "float32"))
    won = use.add("matmul", use.add("cast", wins, to="float32"), use.constant(gains))
    return use.add("add", won, use.constant(starts))


def _chances(use: NodeUse, scores: int, a: Sequence[float], b: Sequence[float]) -> int:
    """Return the probabilities of the first class of each pair, by Platt's formula."""
    scaled = use.add("mul", scores, use.constant(a, "float32"))
    turned = use.add("neg", use.add("add", scaled, use.constant(b, "float32")))
    chance = use.add("sigmoid", turned)
    ends = (use.constant(value, "float32") for value in (_LEAST, 1 - _LEAST))
    return use.add("clip", chance, *ends)


def svm_regressor(use: NodeUse) -> Sequence[int]:
    """SVMRegressor(x): the kernels of x and the support vectors, weighted; of one class a sign."""
    how, one_class = use.take("post_transform", "NONE"), use.take("one_class", 0)
    vectors, rho = use.take("n_supports", 0), use.take("rho") or (0.0,)
    weights = np.array(use.take("coefficients") or (), np.float32)
    kernels = kernel_values(use, vectors)
    if vectors and weights.size != vectors:
        raise use.error(f"it has {weights.size} coefficients, expected {vectors}")
    sums = use.add("matmul", kernels, use.constant(weights.reshape(-1, 1)))
    scores = use.add("add", sums, use.constant(rho[0], "float32"))
    if one_class:
        sign = use.add("greater", scores, use.constant(0.0, "float32"))
        one, other = (use.constant(value, "float32") for value in (1.0, -1.0))
        return (use.add("where", sign, one, other),)
    return (transformed(use, scores, how),)


def kernel_values(use: NodeUse, vectors: int) -> int:
    """Return the kernel [N,vectors] of each row and each support vector."""
    kind = use.take("kernel_type", "LINEAR")
    gamma, coef0, degree = use.take("kernel_params") or (0.0, 0.0, 0.0)
    x, support = matrix(use), np.array(use.take("support_vectors") or (), np.float32)
    if not vectors:
        return x
    if support.size % vectors:
        raise use.error(f"{support.size} numbers do not make {vectors} support vectors")
    table = support.reshape(vectors, -1)

    def number(value: float) -> int:
        return use.constant(value, "float32")

    if kind == "RBF":
        column = use.add("unsqueeze", x, use.constant([1], "int64"))
        apart = use.add("sub", column, use.constant(table[None]))
        square = use.add("reduce_sum", use.add("mul", apart, apart), use.constant([2], "int64"))
        distance = use.add("squeeze", square, use.constant([2], "int64"))
        return use.add("exp", use.add("mul", distance, number(-gamma)))
    product = use.add("matmul", x, use.constant(table.T.copy()))
    if kind == "LINEAR":
        return product
    inner = use.add("add", use.add("mul", product, number(gamma)), number(coef0))
    if kind == "POLY":
        return use.add("pow", inner, number(degree))
    if kind == "SIGMOID":
        return use.add("tanh", inner)
    raise use.error(f"kernel_type {kind!r} is unknown")
