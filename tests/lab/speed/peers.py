"""Sessions of other runtimes, as the programs beside this one compare with them."""

from __future__ import annotations

import importlib.util

import onnxruntime


def onnx_session(model: object, threads: int = 1) -> onnxruntime.InferenceSession:
    """Return a session of ONNX Runtime with all its optimisations, from a path or bytes."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def has_openvino() -> bool:
    """Return whether OpenVINO is installed."""
    return importlib.util.find_spec("openvino") is not None


def openvino_model(model: object, threads: int = 1, hint: str = "LATENCY"):
    """Return a model compiled by OpenVINO, in float32 where the model is.

    OpenVINO itself would choose bfloat16 where the CPU has it.
    """
    import openvino

    config = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": hint,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    return openvino.Core().compile_model(model, "CPU", config)
