"""soft_non_max_suppression, as TensorFlow Lite has it: boxes of one image and one class."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from trireme.ir.graph import TensorType, Value
from trireme.ir.op import Attr, Call, Sample, define
from trireme.ops.detection import overlap
from trireme.ops.shapes import Types, expect, expect_rank, expect_single
from trireme.support.dtypes import Array
from trireme.support.errors import ShapeError
from trireme.support.limits import MOST_SAMPLES

_FLOAT32 = frozenset({"float32"})
_Candidate = tuple[int, np.float32, int]
"""A box, its score, and the first of the chosen boxes that its score does not count yet."""


def _infer(
    boxes: Value,
    scores: Value,
    iou: Value,
    least: Value,
    sigma: Value | None = None,
    *,
    max_output: int,
) -> Types:
    expect_rank("boxes", boxes, 2)
    expect_rank("scores", scores, 1)
    expect("the boxes' last dimension", boxes.shape[1], 4)
    expect("the count of scores", scores.shape[0], boxes.shape[0], "boxes")
    expect_single("the iou threshold", iou)
    expect_single("the score threshold", least)
    if sigma is not None:
        expect_single("sigma", sigma)
    if not 0 <= max_output <= MOST_SAMPLES:
        raise ShapeError(f"{max_output} boxes asked for")
    return (
        TensorType((max_output,), "int32"),
        TensorType((max_output,), "float32"),
        TensorType((), "int32"),
    )


class _Heap:
    """A heap by score. It has the order of LiteRT's among equal scores, so that results agree.

    Source: the C++ standard library of LiteRT's builds (libstdc++): the hole of the first element
        sinks along the larger children, the right one of equals; then the last element rises
    """

    def __init__(self) -> None:
        self._items: list[_Candidate] = []

    def __len__(self) -> int:
        return len(self._items)

    def push(self, item: _Candidate) -> None:
        """Add an element."""
        self._items.append(item)
        self._rise(len(self._items) - 1, item)

    def pop(self) -> _Candidate:
        """Remove an element of the highest score and return it."""
        items = self._items
        top, last = items[0], items.pop()
        if not items:
            return top
        hole = 0
        while 2 * hole + 2 < len(items):
            child = 2 * hole + 2
            if items[child][1] < items[child - 1][1]:
                child -= 1
            items[hole], hole = items[child], child
        if 2 * hole + 2 == len(items):
            items[hole], hole = items[-1], 2 * hole + 1
        self._rise(hole, last)
        return top

    def _rise(self, at: int, item: _Candidate) -> None:
        items = self._items
        while at and items[(at - 1) // 2][1] < item[1]:
            items[at] = items[(at - 1) // 2]
            at = (at - 1) // 2
        items[at] = item


def _soft_non_max_suppression(
    boxes: Array,
    scores: Array,
    iou: Array,
    least: Array,
    sigma: Array | None = None,
    *,
    max_output: int,
) -> tuple[Array, ...]:
    limit, floor = np.float32(iou.reshape(())), np.float32(least.reshape(()))
    soft = np.float32(0 if sigma is None else sigma.reshape(()))
    decay = np.float32(-0.5) / soft if soft > 0 else np.float32(0)
    ends = np.stack([boxes[:, (0, 2)], boxes[:, (1, 3)]], axis=1)
    corners = np.concatenate([ends.min(axis=2), ends.max(axis=2)], axis=1).astype(np.float32)
    heap = _Heap()
    for place in np.flatnonzero(scores > floor):
        heap.push((int(place), scores[place], 0))
    most = min(max_output, len(heap))
    chosen: list[int] = []
    results = np.zeros(max_output, np.float32)
    while heap and len(chosen) < most:
        index, before, first = heap.pop()
        # the newest of the chosen boxes come first: they have the closest scores
        overlaps = overlap(corners[index], corners[chosen[first:]][::-1])
        score = _decayed(before, overlaps, limit, floor, decay) if overlaps.size else before
        if score is None:
            continue
        seen = len(chosen)
        if score == before:
            results[seen] = score
            chosen.append(index)
        if score > floor:
            heap.push((index, score, seen))
    indices = np.zeros(max_output, np.int32)
    indices[: len(chosen)] = chosen
    return indices, results, np.array(len(chosen), np.int32)


def _decayed(
    score: np.float32, overlaps: Array, limit: np.float32, floor: np.float32, decay: np.float32
) -> np.float32 | None:
    """Return the score of a box beside chosen ones; None where one of them suppresses the box."""
    for each in overlaps:
        if each >= limit:
            return None
        if decay < 0:
            # the exponential of C is within half a unit of the last place, numpy's is not
            score = score * np.float32(np.exp(np.float64(decay * each * each)))
        if score <= floor:
            break
    return score


def _flops(call: Call) -> int:
    return 20 * call.type(0).elements * max(int(call.attrs["max_output"]), 1)


def _samples(rng: np.random.Generator) -> Iterable[Sample]:
    boxes = rng.random((14, 4)).astype(np.float32)
    scores = (rng.integers(0, 6, 14) / 5).astype(np.float32)
    hard, soft = (
        [np.array(number, np.float32) for number in numbers]
        for numbers in ((0.3, 0.1), (0.9, 0.1, 0.5))
    )
    yield Sample((boxes, scores, *hard), {"max_output": 6}, frozenset({2, 3}), note="hard")
    yield Sample((boxes, scores, *soft), {"max_output": 6}, frozenset({2, 3, 4}), note="soft")
    yield Sample((boxes, scores, *hard), {"max_output": 0}, note="none")


define(
    "soft_non_max_suppression",
    "boxes scores iou_threshold score_threshold sigma?",
    """Return the boxes that survive greedy suppression by score, and the scores they end with.

    A box above score_threshold is dropped where it overlaps a chosen one by iou_threshold or more.
    Where sigma > 0, its score is multiplied by e^(-overlap^2 / (2 sigma)) for each chosen box, and
    the box waits for its turn. Entries past `count` are 0.

    Shapes: boxes [N,4] (two corners y,x,y,x in any order), scores [N], numbers [] ->
            indices [max_output] int32, scores [max_output], count [] int32
    Source: Bodla et al., Soft-NMS (arXiv:1704.04503); TensorFlow Lite, NON_MAX_SUPPRESSION_V5
    """,
    _infer,
    _soft_non_max_suppression,
    attrs={"max_output": Attr("int")},
    flops=_flops,
    samples=_samples,
    family="other",
    dtypes=(_FLOAT32, _FLOAT32, _FLOAT32, _FLOAT32, _FLOAT32),
)
