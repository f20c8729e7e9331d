"""Drive LiteRT: XNNPACK by default; its reference kernels where exact integers are wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
Call = Callable[[], dict[str, Array]]


def open_engine(task: dict[str, Any], feeds: dict[str, Array]) -> tuple[Call, dict[str, Any]]:
    """Return a call of Interpreter.invoke, inputs copied in, outputs copied out."""
    import ai_edge_litert
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    kinds = OpResolverType
    kernels = kinds.BUILTIN_REF if task.get("reference") else kinds.AUTO
    interpreter: Any = Interpreter(
        model_path=task["model"],
        num_threads=task["threads"],
        experimental_op_resolver_type=kernels,
    )
    inputs = interpreter.get_input_details()
    arrays = [feeds.get(d["name"], a) for d, a in zip(inputs, feeds.values(), strict=True)]
    for detail, array in zip(inputs, arrays, strict=True):
        if tuple(detail["shape"]) != array.shape:
            interpreter.resize_tensor_input(detail["index"], array.shape)
    interpreter.allocate_tensors()
    places = [(d["index"], a) for d, a in zip(inputs, arrays, strict=True)]
    results = [(d["name"], d["index"]) for d in interpreter.get_output_details()]
    set_tensor, get_tensor = interpreter.set_tensor, interpreter.get_tensor

    def call() -> dict[str, Array]:
        for index, array in places:
            set_tensor(index, array)
        interpreter.invoke()
        return {name: get_tensor(index) for name, index in results}

    return call, {"version": getattr(ai_edge_litert, "__version__", "")}
