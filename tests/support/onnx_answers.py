"""What ONNX Runtime makes of an op's sample, or ONNX's own evaluator where it has no kernel."""

import numpy as np
import onnxruntime
from onnx.reference import ReferenceEvaluator
from onnx_peer import peer_model


def peer_outputs(op, sample, types, by_evaluator=False):
    """Return the peer's outputs and how many of the op's they are."""
    model, feeds, count = peer_model(op, sample, types)
    if by_evaluator:
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
    """Return what ONNX's own evaluator makes of a model."""
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(model).run(None, feeds)
