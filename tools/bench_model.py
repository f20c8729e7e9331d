"""Rewrite an ONNX file for another batch, so that every engine reads the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx

from trireme.errors import ConvertError


def set_batch(model: str, batch: int, target: Path) -> str:
    """Write the model with inputs whose first dimension is `batch`; return the new file.

    What the model recorded of other shapes is dropped, for its reader to infer again. A model that
    has its batch among its constants stays wrong, and its reader says so.
    Errors: ConvertError, if it is not an ONNX model
    """
    if Path(model).suffix.lower() != ".onnx":
        raise ConvertError(f"{model}: --batch rewrites .onnx files only")
    proto: Any = onnx.load(model)
    graph = proto.graph
    del graph.value_info[:]
    weights = {tensor.name for tensor in graph.initializer}
    for value in (*(v for v in graph.input if v.name not in weights), *graph.output):
        dims = value.type.tensor_type.shape.dim
        if dims:
            dims[0].dim_value = batch
    onnx.save(proto, str(target))
    return str(target)
