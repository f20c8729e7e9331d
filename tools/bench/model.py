"""Rewrite a model file for another batch, so that every engine reads the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from trireme.support.errors import ConvertError


def set_batch(model: str, batch: int, target: Path) -> str:
    """Write the model with inputs whose first dimension is `batch`; return the new file.

    Constant shapes of reshapes that begin with 1 get the batch too. A model that has its batch
    elsewhere among its constants stays wrong, and its reader says so.
    Errors: ConvertError, if it is neither an ONNX nor a TFLite model
    """
    rewrite = {".onnx": _rewrite_onnx, ".tflite": _rewrite_tflite}.get(Path(model).suffix.lower())
    if rewrite is None:
        raise ConvertError(f"{model}: --batch rewrites .onnx and .tflite files only")
    rewrite(model, batch, target)
    return str(target)


def _rewrite_onnx(model: str, batch: int, target: Path) -> None:
    """As set_batch; what the file records of other shapes is dropped, to be inferred again."""
    import onnx

    proto: Any = onnx.load(model)
    graph = proto.graph
    del graph.value_info[:]
    weights = {tensor.name: tensor for tensor in graph.initializer}
    for value in (*(v for v in graph.input if v.name not in weights), *graph.output):
        dims = value.type.tensor_type.shape.dim
        if dims:
            dims[0].dim_value = batch
    constants = [node for node in graph.node if node.op_type == "Constant" and node.attribute]
    weights |= {node.output[0]: node.attribute[0].t for node in constants}
    for number, node in enumerate(node for node in graph.node if node.op_type == "Reshape"):
        if node.input[1] in weights and node.input[0] not in weights:
            shape = onnx.numpy_helper.to_array(weights[node.input[1]]).copy()
            if shape.size > 1 and shape[0] == 1:
                shape[0], name = batch, f"shape of batch {number}"
                graph.initializer.append(onnx.numpy_helper.from_array(shape, name))
                node.input[1] = name
    onnx.save(proto, str(target))


def _rewrite_tflite(model: str, batch: int, target: Path) -> None:
    """As set_batch; the numbers are written over in the file's bytes."""
    import tflite

    data = bytearray(Path(model).read_bytes())
    root: Any = tflite.Model.GetRootAs(data, 0)
    for index in range(root.SubgraphsLength()):
        graph = root.Subgraphs(index)
        tensors = [graph.Tensors(i) for i in range(graph.TensorsLength())]
        constant = [root.Buffers(tensor.Buffer()).DataLength() > 0 for tensor in tensors]
        kept = [np.array(tensor.ShapeAsNumpy()) for tensor in tensors]
        for tensor, is_constant in zip(tensors, constant, strict=True):
            if not is_constant:
                for shape in (tensor.ShapeAsNumpy(), tensor.ShapeSignatureAsNumpy()):
                    _set_first(shape, batch)
        for tensor, is_constant, shape in zip(tensors, constant, kept, strict=True):
            if is_constant and not np.array_equal(shape, tensor.ShapeAsNumpy()):
                raise ConvertError(f"{model}: a weight and an activation share one shape")
        for number in range(graph.OperatorsLength()):
            _set_reshape(root, graph.Operators(number), tensors, constant, batch)
    target.write_bytes(data)


def _set_reshape(
    root: Any, operator: Any, tensors: list[Any], constant: list[bool], batch: int
) -> None:
    """Write the batch into the shape of a reshape, as an input and as an option."""
    import tflite

    code = root.OperatorCodes(operator.OpcodeIndex())
    kind = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
    if kind != tflite.BuiltinOperator.RESHAPE or constant[operator.Inputs(0)]:
        return
    if operator.InputsLength() > 1 and constant[operator.Inputs(1)]:
        buffer = root.Buffers(tensors[operator.Inputs(1)].Buffer())
        _set_first(buffer.DataAsNumpy().view(np.int32), batch)
    table = operator.BuiltinOptions()
    if table is not None:
        options = tflite.ReshapeOptions()
        options.Init(table.Bytes, table.Pos)
        _set_first(options.NewShapeAsNumpy(), batch)


def _set_first(shape: Any, batch: int) -> None:
    """Write the batch over a leading 1 of a shape of two or more dimensions."""
    if isinstance(shape, np.ndarray) and shape.size > 1 and shape[0] == 1:
        shape[0] = batch
