"""Drive OpenVINO's CPU plugin: one stream, latency hint, float32 where the model says float32.

Left alone it computes in bfloat16 where the CPU can, which is another result: hence the precision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
Call = Callable[[], dict[str, Array]]


def open_engine(task: dict[str, Any], feeds: dict[str, Array]) -> tuple[Call, dict[str, Any]]:
    """Return a call of InferRequest.infer, inputs shared, outputs copied out."""
    import openvino

    core = openvino.Core()
    model = core.read_model(task["model"])
    names = [_name(port) for port in model.inputs]
    arrays = [feeds.get(n, a) for n, a in zip(names, feeds.values(), strict=True)]
    if any(port.partial_shape.is_dynamic for port in model.inputs):
        model.reshape({port: list(a.shape) for port, a in zip(model.inputs, arrays, strict=True)})
    settings: dict[str, Any] = {
        "INFERENCE_NUM_THREADS": task["threads"],
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "CACHE_DIR": task["cache"],
    }
    compiled = core.compile_model(model, "CPU", settings)
    request = compiled.create_infer_request()
    outputs = [_name(port) for port in compiled.outputs]

    def call() -> dict[str, Array]:
        results = request.infer(arrays, share_inputs=True)
        return dict(zip(outputs, results.values(), strict=True))

    return call, {"version": openvino.__version__.split("-")[0]}


def _name(port: Any) -> str:
    names = sorted(port.get_names())
    return names[0] if names else ""
