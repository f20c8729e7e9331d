"""Describe a model: names, shapes and types of its inputs and outputs, its metadata."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx

from trireme.ir.graph import UNKNOWN, Value
from trireme.support.dtypes import Array

_TYPES = {"float32": "float", "float64": "double"}
"""Types whose name differs in ONNX Runtime."""


@dataclass(frozen=True)
class NodeArg:
    """An input or output.

    shape: numbers, names of symbols, and None where the model says nothing
    type: "tensor(float)"
    """

    name: str
    shape: list[int | str | None]
    type: str

    def __str__(self) -> str:
        return f"NodeArg(name='{self.name}', type='{self.type}', shape={self.shape})"


@dataclass(frozen=True)
class ModelMetadata:
    """The metadata that the producer wrote into the model."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: Mapping[str, str] = field(default_factory=dict)


def type_text(dtype: str) -> str:
    """Return a dtype as ONNX Runtime spells it: "tensor(float)" of float32."""
    return f"tensor({_TYPES.get(dtype, dtype)})"


def arg_of(value: Value, declared: Mapping[str, Any]) -> NodeArg:
    """Return an input or output of a session; `declared` has the model's own names of sizes."""
    own = declared.get(value.name)
    if not value.type.has_rank:
        return NodeArg(value.name, list(own or []), type_text(value.dtype))
    shape: list[int | str | None] = [None if dim == UNKNOWN else dim for dim in value.shape]
    if own is not None and len(own) == len(shape):
        shape = [
            dim if isinstance(dim, int) or not isinstance(said, str | None) else said
            for dim, said in zip(shape, own, strict=True)
        ]
    return NodeArg(value.name, shape, type_text(value.dtype))


@dataclass(frozen=True)
class Declared:
    """The declarations of an ONNX file; empty for files of other formats.

    shapes: of inputs and outputs by name: numbers, names, and None for a size without either
    inputs: those of the inputs that are fed
    """

    metadata: ModelMetadata = ModelMetadata()
    shapes: Mapping[str, list[int | str | None]] = field(default_factory=dict)
    inputs: Mapping[str, list[int | str | None]] = field(default_factory=dict)


def declared_by(model: str | os.PathLike[str] | bytes) -> Declared:
    """Return what a model declares. Weights in other files are not read."""
    try:
        proto = (
            onnx.load_from_string(model)
            if isinstance(model, bytes)
            else onnx.load(model, load_external_data=False)
        )
    except Exception:  # another format: trireme's converters say what is wrong with it
        return Declared()
    graph = proto.graph
    if not graph.node and not graph.input:
        return Declared()
    shapes = {
        value.name: _dims(value)
        for value in (*graph.input, *graph.output)
        if value.type.tensor_type.HasField("shape")
    }
    metadata = ModelMetadata(
        proto.producer_name,
        graph.name,
        proto.domain,
        proto.doc_string,
        graph.doc_string,
        proto.model_version,
        {entry.key: entry.value for entry in proto.metadata_props},
    )
    constants = {one.name for one in graph.initializer}
    given = {one.name for one in graph.input} - constants
    inputs = {name: shape for name, shape in shapes.items() if name in given}
    return Declared(metadata, shapes, inputs)


def _dims(value: Any) -> list[int | str | None]:
    return [
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
        for dim in value.type.tensor_type.shape.dim
    ]


def element_dtype(element_type: Any) -> Any:
    """Return a numpy dtype for a dtype, or for the number of an ONNX type."""
    import numpy as np

    from trireme.compat.onnxruntime.errors import InvalidArgument

    if isinstance(element_type, int) and not isinstance(element_type, bool):
        try:
            return onnx.helper.tensor_dtype_to_np_dtype(element_type)
        except (KeyError, ValueError) as error:
            raise InvalidArgument(f"{element_type} is no ONNX element type") from error
    try:
        return np.dtype(element_type)
    except TypeError as error:
        raise InvalidArgument(f"{element_type!r} is no element type") from error


def element_number(array: Array) -> int:
    """Return the number of an array's type in ONNX."""
    if array.dtype == object:
        return int(onnx.TensorProto.STRING)
    return int(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))
