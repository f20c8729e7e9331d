"""ONNX Runtime as the peer: run a model, and tell a refusal from a failure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
from litert import litert_run
from onnx import TensorProto


class Refused(Exception):
    """ONNX Runtime, or the grower itself, does not want this node or model."""


def run_model(model: Any, feeds: Mapping[str, Any], *, optimised: bool = False) -> list[Any]:
    """Return the outputs of a model.

    Errors: Refused
    """
    return open_model(model, optimised=optimised)(feeds)


def open_model(model: Any, *, optimised: bool) -> Any:
    """Return a function of feeds that runs the model on one thread, with or without fusions."""
    levels = onnxruntime.GraphOptimizationLevel
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = (
        levels.ORT_ENABLE_ALL if optimised else levels.ORT_DISABLE_ALL
    )
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        raise Refused(str(error)) from error
    return lambda feeds: _run(session, feeds)


def _run(session: Any, feeds: Mapping[str, Any]) -> list[Any]:
    names = [value.name for value in session.get_outputs()]
    try:
        if not any(array.dtype == ml_dtypes.bfloat16 for array in feeds.values()) and not any(
            "bfloat16" in value.type for value in session.get_outputs()
        ):
            return [np.asarray(made) for made in session.run(names, dict(feeds))]
        return _run_bound(session, feeds, names)
    except Exception as error:
        raise Refused(str(error)) from error


def _run_bound(session: Any, feeds: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    """Run with bfloat16 in or out, which numpy feeds cannot carry."""
    bound = {}
    for name, array in feeds.items():
        if array.dtype == ml_dtypes.bfloat16:
            bound[name] = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
                np.ascontiguousarray(array).view(np.uint16), TensorProto.BFLOAT16
            )
        else:
            bound[name] = onnxruntime.OrtValue.ortvalue_from_numpy(np.asarray(array, order="C"))
    made = session.run_with_ort_values(list(names), bound)
    return [_array(value) for value in made]


def _array(value: Any) -> Any:
    if "bfloat16" not in value.data_type():
        return value.numpy()
    raise Refused("bfloat16 outputs cannot be read")


def quiet_litert(content: bytes, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outputs of a .tflite model by name, on LiteRT's reference kernels.

    Errors: Refused
    """
    try:
        return litert_run(content, dict(feeds))
    except (RuntimeError, ValueError) as error:
        raise Refused(str(error)) from error
