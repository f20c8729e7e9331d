"""The tensors of a .tflite file while it is written, by the values of the graph that they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tflite

from trireme.converters.fresh_names import FreshNames
from trireme.converters.tflite.write.records import WrittenGraph, WrittenOperator, WrittenTensor
from trireme.ir.dims import substituted, symbols_of
from trireme.ir.graph import UNKNOWN, Dim, Graph, Quant, TensorType, Value
from trireme.support.dtypes import Array, dtype_name
from trireme.support.errors import ConvertError

DTYPES = (
    "float32",
    "float16",
    "int8",
    "uint8",
    "int16",
    "int32",
    "int64",
    "uint32",
    "bool",
    "complex64",
)
"""The dtypes of tensors that are written."""


def first_shape(shape: Sequence[Dim]) -> tuple[int, ...]:
    """Return a shape with symbols of size 1, which a runtime has until it is given another."""
    return tuple(_first(dim) for dim in shape)


def _first(dim: Dim) -> int:
    if isinstance(dim, int):
        return dim
    sized = dim if dim == UNKNOWN else substituted(dim, dict.fromkeys(symbols_of(dim), 1))
    return max(sized, 1) if isinstance(sized, int) else 1


class WrittenTensors:
    """The tensors of a graph; a constant becomes a tensor when a node first reads it.

    symmetric: products of floats by int8 whose kernel rounds without a zero point (hybrid.py)
    """

    def __init__(self, graph: Graph, symmetric: frozenset[int] = frozenset()) -> None:
        self.graph = graph
        self.symmetric = symmetric
        self.file = WrittenGraph(graph.name)
        self._of: dict[int, int] = {}
        self._fresh = FreshNames().fresh
        self._names = {id: self._fresh(graph.values[id].name) for id in graph.inputs}
        for id in graph.outputs:
            if id not in self._names:
                self._names[id] = self._fresh(graph.values[id].name)
        for value in graph.input_values():
            self.file.inputs.append(self.of(value.id))

    def type_of(self, index: int) -> TensorType:
        """Return the type of a tensor; an open dimension is UNKNOWN."""
        tensor = self.file.tensors[index]
        dims = tuple(UNKNOWN if dim < 0 else dim for dim in tensor.signature)
        return TensorType(dims, tensor.dtype, tensor.quant)

    def of(self, id: int) -> int:
        """Return the tensor of a value."""
        if id not in self._of:
            value = self.graph.values[id]
            self._of[id] = self.new(value.type, self._name(value), value.data)
        return self._of[id]

    def _name(self, value: Value) -> str:
        named = self._names.get(value.id)
        return self._fresh(value.first_name) if named is None else named

    def new(self, type: TensorType, name: str, data: Array | None = None) -> int:
        """Add a tensor; its name is taken as it is.

        Errors: ConvertError, if the format has no such dtype
        """
        if type.dtype not in DTYPES:
            raise ConvertError(f"TensorFlow Lite's tensors of {type.dtype} are not written")
        signature = tuple(dim if isinstance(dim, int) else -1 for dim in type.shape)
        shape = first_shape(type.shape)
        made = WrittenTensor(name, shape, signature, type.dtype, type.quant, data)
        self.file.tensors.append(made)
        return len(self.file.tensors) - 1

    def temporary(self, type: TensorType, wanted: str) -> int:
        """Add a tensor between operators."""
        return self.new(type, self._fresh(wanted))

    def constant(self, data: Array, wanted: str, quant: Quant | None = None) -> int:
        """Add a constant."""
        data = np.asarray(data)
        type = TensorType(data.shape, dtype_name(data.dtype), quant)
        return self.new(type, self._fresh(wanted), data)

    def is_output(self, id: int) -> bool:
        """Whether a value is an output of the graph."""
        return self.graph.is_output(id)

    def bind(self, id: int, tensor: int) -> None:
        """Let a tensor that is there stand for a value."""
        self._of[id] = tensor

    def operator(self, made: WrittenOperator) -> None:
        """Add an operator."""
        self.file.operators.append(made)

    def copied(self, x: int) -> int:
        """Add a copy of a tensor."""
        made = self.temporary(self.type_of(x), self.file.tensors[x].name)
        self.copy(x, made)
        return made

    def copy(self, x: int, y: int) -> None:
        """Copy a tensor to another of its type, by a reshape to its own shape."""
        signature = self.file.tensors[x].signature
        if signature.count(-1) <= 1:
            sizes = self.constant(np.array(signature, np.int32), "shape")
        else:
            sizes = self.temporary(TensorType((len(signature),), "int32"), "shape")
            options = {"OutType": tflite.TensorType.INT32}
            self.operator(WrittenOperator("SHAPE", (x,), (sizes,), "ShapeOptions", options))
        self.operator(WrittenOperator("RESHAPE", (x, sizes), (y,), "ReshapeOptions"))
