"""The optional inputs of an ONNX model: graph inputs with an initializer, which is their default.

From IR version 4 on a caller may feed them; before, every initializer was listed as an input too,
and none is optional. Source: ONNX IR, "Graphs"; ONNX Runtime 1.32 does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from trireme.converters.onnx.file import Files, read_model
from trireme.converters.onnx.tensors import sparse_array, tensor_array, tensor_type
from trireme.ir.graph import TensorType, Value
from trireme.support.dtypes import Array, dtype_name
from trireme.support.errors import ConvertError
from trireme.support.mapped import OnOpen, ignore_file

Decoder = Callable[[Any, Files, str], Array]
FIRST_IR_VERSION = 4
"""The first IR version in which an initializer need not be an input."""


def weights_of(graph: Any) -> Iterator[tuple[str, Any, Decoder]]:
    """Yield each initializer with its name and its decoder."""
    for weight in graph.initializer:
        yield weight.name, weight, tensor_array
    for sparse in graph.sparse_initializer:
        yield sparse.values.name, sparse, sparse_array


def optional_names(model: Any) -> list[str]:
    """Return the names of a model's optional inputs, in order."""
    if model.ir_version < FIRST_IR_VERSION:
        return []
    weights = {name for name, _, _ in weights_of(model.graph)}
    return [proto.name for proto in model.graph.input if proto.name in weights]


def check_optional(model: Any, names: Sequence[str]) -> None:
    """Refuse names that are no optional input of a model."""
    known = optional_names(model) if names else []
    unknown = [name for name in names if name not in known]
    if unknown:
        facts = [f"optional inputs: {', '.join(known) or 'none'}"]
        raise ConvertError(f"no optional input is called '{unknown[0]}'", facts=facts)


def optional_inputs(
    source: Any, use_mmap: bool = True, on_open: OnOpen = ignore_file
) -> list[Value]:
    """Return the optional inputs of a model file or its bytes; their data is the default.

    Errors: ModelFileError, if the file is damaged or not ONNX
    """
    model, files = read_model(source, use_mmap, on_open)
    names = optional_names(model)
    protos = {proto.name: proto for proto in model.graph.input}
    found = {}
    for name, weight, decode in weights_of(model.graph):
        if name in names:
            where = f"optional input '{name}'"
            data = decode(weight, files, where)
            type = TensorType(data.shape, dtype_name(data.dtype))
            if protos[name].type.tensor_type.HasField("shape"):
                type = tensor_type(protos[name], where)
            found[name] = Value(names.index(name), name, type, data)
    return [found[name] for name in names]
