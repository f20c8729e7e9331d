"""Each op's numpy reference against an independent runtime, and its inferred types."""

import numpy as np
import pytest
from op_samples import assert_close, interpreted, op_samples

onnx = pytest.importorskip("onnx", reason="the references' peer is ONNX")
onnxruntime = pytest.importorskip("onnxruntime", reason="the references' peer is ONNX Runtime")

from onnx.reference import ReferenceEvaluator  # noqa: E402
from onnx_peer import peer_model  # noqa: E402

OF_LITERT = {"complex_abs", "detection_post_process", "rfft2d"}
"""Ops that ONNX has not; LiteRT is their peer, and that of quantised samples: test_tflite_ops."""

CASES = [
    pytest.param(op, sample, id=name)
    for op, sample, name in op_samples(lambda op: not op.effect)  # states: test_effects
    if not sample.quants and not sample.out_quants and op.name not in OF_LITERT
]
LOOSE = 3e-6
"""Peers compute in float32 where the references do in float64, so every op is given this much."""


NOT_IN_ONNX = {
    name: "ONNX has no such op; LiteRT is its peer in test_tflite_zoo.py"
    for name in ("complex_abs", "detection_post_process", "rfft2d")
}
ALL_OUTPUTS = {"top_k": 2, "unique": 4, "rnn": 2, "gru": 2, "lstm": 3}
BY_EVALUATOR = {
    ("clip", "no upper limit"): "ONNX Runtime clips infinity to the greatest finite number",
    ("clip", "no lower limit"): "ONNX Runtime clips infinity to the greatest finite number",
    ("max_pool", "NaN, infinities"): "ONNX Runtime's max_pool drops NaN",
}


def peer_outputs(op, sample, types):
    """What ONNX Runtime makes of the sample, or ONNX's own evaluator where it has no kernel."""
    model, feeds, count = peer_model(op, sample, types)
    if (op.name, sample.note) in BY_EVALUATOR:
        return evaluated(model, feeds), count
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return session.run(None, feeds), count
    except Exception:  # no kernel: the evaluator's own error is the one to see
        return evaluated(model, feeds), count


def evaluated(model, feeds):
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(model).run(None, feeds)


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_reference_equals_peer(op, sample):
    if op.name in NOT_IN_ONNX:
        pytest.skip(NOT_IN_ONNX[op.name])
    graph, outputs = interpreted(op, sample, ALL_OUTPUTS.get(op.name))
    types = [graph.type(value) for value in graph.outputs]
    wanted, count = peer_outputs(op, sample, types)
    for found, peer in zip(outputs[:count], wanted, strict=True):
        assert_close(found, np.asarray(peer), max(op.rtol, LOOSE), op.name)


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_inferred_types_are_the_arrays(op, sample):
    graph, outputs = interpreted(op, sample)
    for value, array in zip(graph.outputs, outputs, strict=True):
        inferred = graph.type(value).shape
        assert len(inferred) == array.ndim
        assert all(dim in ("?", size) for dim, size in zip(inferred, array.shape, strict=True))
