"""Probabilities of classes from those of pairs of classes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from trireme.ir.axis_map import AxisMap, in_order
from trireme.ir.graph import Value
from trireme.ir.op import Attr, Call, Sample, define
from trireme.ops.shapes import Types, expect, expect_rank, one
from trireme.support.dtypes import Array

_MOST_STEPS = 100


def _infer(r: Value, *, classes: int) -> Types:
    expect_rank("r", r, 2)
    expect("pairs", r.shape[1], classes * (classes - 1) // 2, "classes * (classes - 1) / 2")
    return one((r.shape[0], classes), r.dtype)


def pair_probabilities(r: Array, *, classes: int) -> Array:
    """Return the probabilities of classes: see the op's doc. Computed in float64."""
    first, second = np.triu_indices(classes, 1)
    wide = r.astype(np.float64)
    pairs = np.zeros((len(r), classes, classes))
    pairs[:, first, second], pairs[:, second, first] = wide, 1 - wide
    against = pairs.transpose(0, 2, 1)
    q = -against * pairs
    q[:, range(classes), range(classes)] = (against**2).sum(2)
    p = np.full((len(r), classes), 1 / classes)
    is_open = np.ones(len(r), bool)
    for _ in range(_MOST_STEPS):
        product = np.einsum("nij,nj->ni", q, p)
        energy = (p * product).sum(1)
        is_open &= np.abs(product - energy[:, None]).max(1, initial=0) >= 0.005 / classes
        if not is_open.any():
            break
        after, product, energy = p.copy(), product.copy(), energy.copy()
        for i in range(classes):
            diff = (energy - product[:, i]) / q[:, i, i]
            after[:, i] += diff
            grown = energy + diff * (diff * q[:, i, i] + 2 * product[:, i])
            energy = grown / (1 + diff) ** 2
            product = (product + diff[:, None] * q[:, i]) / (1 + diff)[:, None]
            after /= (1 + diff)[:, None]
        p = np.where(is_open[:, None], after, p)
    return p.astype(r.dtype)


def _rows(call: Call) -> AxisMap:
    return AxisMap(in_order(0, 1))


def _flops(call: Call) -> int:
    classes: int = call.attrs["classes"]
    return 20 * call.outputs[0].elements * classes


def _samples(rng: np.random.Generator) -> Iterable[Sample]:
    for rows, classes in ((5, 2), (3, 3), (7, 6)):
        r = rng.uniform(0.02, 0.98, (rows, classes * (classes - 1) // 2)).astype(np.float32)
        yield Sample((r,), {"classes": classes}, note=f"{classes} classes")


define(
    "pair_probabilities",
    "r",
    "The probabilities of classes, from those of the first class of each pair (0,1), (0,2), ..., "
    "(1,2), ... Found by steps from equal ones, until the error is below 0.005 / classes, at most "
    "100. Shapes: r [N, pairs] -> y [N, classes]. "
    "Source: Wu, Lin, Weng 2004, Probability estimates for multi-class classification by pairwise "
    "coupling, algorithm 2; ONNX ai.onnx.ml SVMClassifier-1",
    _infer,
    pair_probabilities,
    attrs={"classes": Attr("int", least=2)},
    flops=_flops,
    family="trees",
    rtol=1e-6,
    axis_map=_rows,
    samples=_samples,
    dtypes=(frozenset({"float32", "float64"}),),
)
