"""detection_post_process on the cpu device: ties, limits, classes, boxes that all overlap, NaN."""

import numpy as np
import pytest
from cpu_run import agree, node_graph

import trireme.ops  # noqa: F401
from trireme.devices.cpu.codegen.target import available_isas

SEED = 12
by_isa = pytest.mark.parametrize("isa", available_isas(variants=False))
ATTRS = {
    "num_classes": 5,
    "scales": (10.0, 10.0, 5.0, 5.0),
    "max_detections": 7,
    "max_classes_per_detection": 1,
    "use_regular_nms": False,
    "score_threshold": 0.2,
    "iou_threshold": 0.4,
}


def graph_of(rng, anchors, spread=1.0, columns=None, **more):
    attrs = {**ATTRS, **more}
    boxes = (rng.standard_normal((1, anchors, 4)) * spread).astype(np.float32)
    scores = rng.random((1, anchors, columns or attrs["num_classes"])).astype(np.float32)
    places = (rng.random((anchors, 4)) * [1, 1, 0.2, 0.2] + [0, 0, 0.1, 0.1]).astype(np.float32)
    return node_graph("detection_post_process", [boxes, scores, places], attrs, {2}, outputs=4)


@by_isa
@pytest.mark.parametrize(
    "anchors, more",
    [
        (300, {}),
        (1, {}),
        (17, {"max_detections": 30}),
        (100, {"score_threshold": 0.999}),
        (64, {"max_classes_per_detection": 3}),
        (64, {"max_classes_per_detection": 9}),
        (200, {"num_classes": 90, "columns": 91}),
        (500, {"iou_threshold": 0.0}),
        (50, {"score_threshold": 2.0}),
        (60, {"score_threshold": -1.0, "max_detections": 100}),
    ],
)
def test_detections(cpus, anchors, more, isa):
    print("seed", SEED)
    agree(cpus, isa, *graph_of(np.random.default_rng(SEED), anchors, **more))


def test_of_equal_scores_the_first_anchor_and_class_come_first(cpus):
    graph, feeds = graph_of(np.random.default_rng(SEED), 90, max_classes_per_detection=3)
    scores = feeds[graph.inputs[1]]
    scores[:] = np.round(scores * 3) / 3
    agree(cpus, available_isas()[0], graph, feeds)


def test_not_a_number_is_no_candidate_and_boxes_without_area_overlap_nothing(cpus):
    graph, feeds = graph_of(np.random.default_rng(SEED), 60, max_detections=50)
    boxes, scores = feeds[graph.inputs[0]], feeds[graph.inputs[1]]
    scores[0, 3, 2], scores[0, 9, 0], scores[0, 12] = np.nan, np.inf, -np.inf
    boxes[0, 20:30, 2:] = -np.inf
    boxes[0, 40, 0], boxes[0, 41, 3] = np.nan, np.inf
    agree(cpus, available_isas()[0], graph, feeds)


def test_regular_suppression_runs_on_the_reference(cpus):
    graph = graph_of(np.random.default_rng(SEED), 20, use_regular_nms=True)
    agree(cpus, available_isas()[0], *graph, native=False)
