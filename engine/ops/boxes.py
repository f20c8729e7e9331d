"""non_max_suppression, as ONNX has it: boxes picked by score for each class of each image."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from trireme.ir.dims import smaller
from trireme.ir.dtype_rules import Like
from trireme.ir.graph import UNKNOWN, Dim, Value
from trireme.ir.op import Attr, Call, Sample, define
from trireme.ops.detection import suppress
from trireme.ops.shapes import Types, expect, expect_rank, ints_of, one, product
from trireme.support.dtypes import FLOATING, INDICES, Array


def _infer(boxes: Value, scores: Value, *limits: Value | None, center_point_box: int) -> Types:
    expect_rank("boxes", boxes, 3)
    expect_rank("scores", scores, 3)
    expect("the boxes' last dimension", boxes.shape[2], 4)
    expect("the batch of scores", scores.shape[0], boxes.shape[0], "as of boxes")
    expect("the count of scores", scores.shape[2], boxes.shape[1], "boxes")
    return one((UNKNOWN, 3), "int64")


def _corners(boxes: Array, center: bool) -> Array:
    """Return boxes [M,4] as (least y, least x, greatest y, greatest x)."""
    if center:
        x, y, width, height = boxes.T
        ends = [y - height / 2, x - width / 2, y + height / 2, x + width / 2]
    else:
        a, b, c, d = boxes.T
        ends = [np.minimum(a, c), np.minimum(b, d), np.maximum(a, c), np.maximum(b, d)]
    return np.stack(ends, axis=1)


def _non_max_suppression(
    boxes: Array,
    scores: Array,
    most: Array | None = None,
    iou: Array | None = None,
    least: Array | None = None,
    *,
    center_point_box: int,
) -> Array:
    count = 0 if most is None else int(most.reshape(()))
    limit = 0.0 if iou is None else float(iou.reshape(()))
    floor = -np.inf
    if least is not None:  # the least score above it, since an equal one is dropped
        floor = float(np.nextafter(np.float32(least.reshape(())), np.float32(np.inf)))
    picked = []
    for batch, rows in enumerate(boxes.astype(np.float32)):
        corners = _corners(rows, bool(center_point_box))
        for kind, line in enumerate(scores[batch]):
            picked += [(batch, kind, row) for row in suppress(corners, line, count, floor, limit)]
    return np.array(picked, np.int64).reshape(-1, 3)


def _most_kept(call: Call) -> Dim:
    """Return how many boxes there may be: of each class of each image, no more than are asked."""
    images, classes, boxes = call.type(1).shape
    asked = ints_of(call.input(2))
    each = smaller(boxes, max(asked[0], 0)) if asked else boxes
    return product((images, classes, each))


def _samples(rng: np.random.Generator) -> Iterable[Sample]:
    ends = np.sort(rng.random((2, 12, 2, 2)), axis=2).reshape(2, 12, 4).astype(np.float32)
    scores = rng.random((2, 3, 12)).astype(np.float32)
    limits = (np.array(3, np.int64), np.array(0.3, np.float32), np.array(0.2, np.float32))
    fixed = frozenset({2, 3, 4})
    yield Sample((ends, scores, *limits), constants=fixed, note="corners")
    yield Sample((ends, scores, *limits), {"center_point_box": 1}, fixed, note="centres")


define(
    "non_max_suppression",
    "boxes scores max_output_boxes_per_class? iou_threshold? score_threshold?",
    "y = (image, class, box) of the boxes kept: by falling score, above score_threshold, "
    "and overlapping no box kept before by more than iou_threshold. Shapes: boxes [N,M,4], "
    "scores [N,C,M] -> y [kept,3]. Source: ONNX NonMaxSuppression-11",
    _infer,
    _non_max_suppression,
    attrs={"center_point_box": Attr("int", 0)},
    flops=lambda call: 20 * call.type(1).elements,
    most=_most_kept,
    samples=_samples,
    family="other",
    dtypes=(FLOATING, Like("boxes"), INDICES, FLOATING, FLOATING),
)
