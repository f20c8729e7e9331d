"""detection_post_process: an SSD detector's boxes decoded, suppressed and sorted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from trireme.ir.dtype_rules import Like
from trireme.ir.graph import TensorType, Value
from trireme.ir.op import Attr, Call, Sample, define
from trireme.support.dtypes import FLOATING, Array
from trireme.support.errors import ShapeError

_DOC = """Turn an SSD detector's raw boxes and scores into detections (batch 1).

    y = box.y / scales[0] * anchor.h + anchor.y      x = box.x / scales[1] * anchor.w + anchor.x
    h = exp(box.h / scales[2]) * anchor.h            w = exp(box.w / scales[3]) * anchor.w

Boxes are visited by falling score (ties: the lower index first); one is kept unless it overlaps a
kept one by more than iou_threshold, or its score is below score_threshold. By default each anchor
takes part once, with its best class, and a kept anchor reports its max_classes_per_detection best
classes; with use_regular_nms each class is suppressed on its own (at most detections_per_class
each) and the best max_detections of all classes are reported. Entries past `count` are 0.

Shapes: boxes [1,A,4+] (y,x,h,w), scores [1,A,classes or classes + 1], anchors [A,4] (y,x,h,w) ->
        detections [1,D,4] (ymin,xmin,ymax,xmax), classes [1,D], scores [1,D], count [1], all
        float32, with D = max_detections * max_classes_per_detection
Source: TensorFlow Lite, detection_postprocess.cc
"""


def _infer(
    boxes: Value,
    scores: Value,
    anchors: Value,
    *,
    num_classes: int,
    scales: tuple[float, ...],
    **attrs: Any,
) -> tuple[TensorType, ...]:
    if len(scales) != 4:
        raise ShapeError(f"{len(scales)} scales, expected 4: y, x, h, w")
    b, s, a = boxes.shape, scores.shape, anchors.shape
    if len(b) != 3 or len(s) != 3 or len(a) != 2 or b[0] != 1 or s[0] != 1:
        raise ShapeError("expected boxes [1,A,4], scores [1,A,C] and anchors [A,4]")
    if b[1] != s[1] or b[1] != a[0] or a[1] != 4 or not isinstance(b[2], int) or b[2] < 4:
        raise ShapeError("boxes, scores and anchors must agree on A and have 4 coordinates")
    if num_classes < 1 or s[2] not in (num_classes, num_classes + 1):
        raise ShapeError(f"scores have {s[2]} columns for {num_classes} classes")
    d = attrs["max_detections"] * attrs["max_classes_per_detection"]
    if not 0 < d <= 1 << 20:
        raise ShapeError(f"{d} detections asked for")
    kinds = [(1, d, 4), (1, d), (1, d), (1,)]
    return tuple(TensorType(shape, "float32") for shape in kinds)


def detection_post_process(
    boxes: Array,
    scores: Array,
    anchors: Array,
    *,
    num_classes: int,
    scales: tuple[float, ...],
    use_regular_nms: bool,
    max_detections: int,
    max_classes_per_detection: int,
    detections_per_class: int,
    score_threshold: float,
    iou_threshold: float,
) -> tuple[Array, ...]:
    """Return (detections, classes, scores, count): see the op's doc."""
    corners = decode_boxes(boxes[0], anchors, scales)
    by_class = scores[0][:, scores.shape[2] - num_classes :]
    best = max_classes_per_detection
    if use_regular_nms:
        found = _each_class(
            corners, by_class, detections_per_class, max_detections, score_threshold, iou_threshold
        )
    else:
        kept = suppress(
            corners, by_class.max(axis=1), max_detections, score_threshold, iou_threshold
        )
        found = [
            (row, int(column))
            for row in kept
            for column in np.argsort(-by_class[row], kind="stable")[:best]
        ]
    each = 1 if use_regular_nms else min(best, num_classes)
    stride = 1 if use_regular_nms else best
    out = np.zeros((max_detections * best, 6), np.float32)
    for i, (row, column) in enumerate(found):
        out[i // each * stride + i % each] = (*corners[row], column, by_class[row, column])
    count = len(found) // each
    return (
        out[None, :, :4].copy(),
        out[None, :, 4].copy(),
        out[None, :, 5].copy(),
        np.array([count], np.float32),
    )


def decode_boxes(boxes: Array, anchors: Array, scales: tuple[float, ...]) -> Array:
    """Return corners (ymin,xmin,ymax,xmax) of centre-size encoded boxes.

    Centres and half sizes are computed in float64 and rounded to float32 before they are added.

    Shapes: boxes [A,4+], anchors [A,4] -> [A,4] float32
    """
    b, a = boxes[:, :4].astype(np.float64), anchors.astype(np.float64)
    scale = np.array(scales, np.float32).astype(np.float64)
    centre = (b[:, :2] / scale[:2] * a[:, 2:] + a[:, :2]).astype(np.float32)
    half = (0.5 * np.exp(b[:, 2:] / scale[2:]) * a[:, 2:]).astype(np.float32)
    return np.concatenate([centre - half, centre + half], axis=1)


def suppress(corners: Array, scores: Array, most: int, least_score: float, iou: float) -> list[int]:
    """Return the rows that survive greedy non-maximum suppression, best first, at most `most`.

    Shapes: corners [A,4], scores [A]
    """
    candidates = np.flatnonzero(scores >= np.float32(least_score))
    order = candidates[np.argsort(-scores[candidates], kind="stable")]
    kept: list[int] = []
    for first in range(0, len(order), _BLOCK):
        if len(kept) >= most:
            break
        block = order[first : first + _BLOCK]
        if kept:
            block = block[~_covers(corners[kept], corners[block], iou).any(axis=0)]
        covers = _covers(corners[block], corners[block], iou)
        left = np.ones(len(block), bool)
        for place, row in enumerate(block.tolist()):
            if left[place] and len(kept) < most:
                kept.append(row)
                left &= ~covers[place]
    return kept


_BLOCK = 64
"""Boxes that are compared with each other at once."""


def _covers(kept: Array, others: Array, iou: float) -> Array:
    """Return whether each box overlaps each other one by more than iou: [kept, others]."""
    return np.asarray(~(overlap(kept.T[:, :, None], others) <= np.float32(iou)))


def overlap(box: Array, others: Array) -> Array:
    """Return intersection over union of boxes with others; 0 for boxes without area.

    Shapes: box [4] or [4,A,1], others [B,4] -> [B] or [A,B] float32
    """
    area = (box[2] - box[0]) * (box[3] - box[1])
    areas = (others[:, 2] - others[:, 0]) * (others[:, 3] - others[:, 1])
    y, x = (
        np.minimum(box[axis + 2], others[:, axis + 2]) - np.maximum(box[axis], others[:, axis])
        for axis in (0, 1)
    )
    common = np.maximum(y, np.float32(0)) * np.maximum(x, np.float32(0))
    empty = (areas <= 0) | (area <= 0)
    union = np.where(empty, np.float32(1), area + areas - common)
    return np.asarray(np.where(empty, np.float32(0), common / union))


def _each_class(
    corners: Array, scores: Array, per_class: int, most: int, least_score: float, iou: float
) -> list[tuple[int, int]]:
    """The best (row, class) pairs of a suppression class by class."""
    best: list[tuple[int, int]] = []
    for column in range(scores.shape[1]):
        rows = suppress(corners, scores[:, column], per_class, least_score, iou)
        best += [(row, column) for row in rows]
        best = sorted(best, key=lambda pair: -scores[pair])[:most]
    return best


def _flops(call: Call) -> int:
    anchors = call.type(0).elements // call.type(0).dims[-1]
    return 20 * anchors + 12 * anchors * int(call.attrs["max_detections"])


def _samples(rng: np.random.Generator) -> Iterable[Sample]:
    attrs = {
        "num_classes": 3,
        "scales": (10.0, 10.0, 5.0, 5.0),
        "max_detections": 5,
        "max_classes_per_detection": 1,
        "detections_per_class": 4,
        "use_regular_nms": False,
        "score_threshold": 0.1,
        "iou_threshold": 0.5,
    }
    for extra in ({}, {"max_classes_per_detection": 2}, {"use_regular_nms": True}):
        boxes = rng.standard_normal((1, 19, 4)).astype(np.float32)
        scores = rng.random((1, 19, 4)).astype(np.float32)
        anchors = rng.random((19, 4)).astype(np.float32)
        yield Sample((boxes, scores, anchors), {**attrs, **extra}, frozenset({2}), note=str(extra))


define(
    "detection_post_process",
    "boxes scores anchors",
    _DOC,
    _infer,
    detection_post_process,
    outputs="detections classes scores count",
    attrs={
        "num_classes": Attr("int"),
        "scales": Attr("floats"),
        "max_detections": Attr("int"),
        "max_classes_per_detection": Attr("int", 1),
        "detections_per_class": Attr("int", 100, least=0),
        "use_regular_nms": Attr("bool", False),
        "score_threshold": Attr("float", 0.0, finite=False),
        "iou_threshold": Attr("float", 0.5),
    },
    flops=_flops,
    samples=_samples,
    family="other",
    rtol=1e-6,
    dtypes=(FLOATING, Like("boxes"), Like("boxes")),
)
