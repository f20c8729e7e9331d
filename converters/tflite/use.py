"""One operator under conversion: its tensors, options and constants, and its nodes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tflite

from trireme.converters.fold import FoldingBuilder
from trireme.converters.tflite.file import (
    NO_TENSOR,
    OPTIONS,
    OPTIONS_2,
    FileGraph,
    FileOperator,
    FileTensor,
)
from trireme.converters.tflite.scope import BodyScope
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Dim, Quant, TensorType
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.errors import ConvertError, ModelFileError

_ACTIVATIONS = {
    tflite.ActivationFunctionType.NONE: "",
    tflite.ActivationFunctionType.RELU: "relu",
    tflite.ActivationFunctionType.RELU_N1_TO_1: "relu_n1_to_1",
    tflite.ActivationFunctionType.RELU6: "relu6",
    tflite.ActivationFunctionType.TANH: "tanh",
}


_REDUCTIONS = ("MEAN", "SUM", "REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_ANY", "REDUCE_ALL")
_SHARED_OPTIONS = {
    "AVERAGE_POOL_2D": "Pool2DOptions",
    "MAX_POOL_2D": "Pool2DOptions",
    "L2_POOL_2D": "Pool2DOptions",
    "CONV_3D_TRANSPOSE": "Conv3DOptions",
    "L2_NORMALIZATION": "L2NormOptions",
    "UNIDIRECTIONAL_SEQUENCE_RNN": "SequenceRNNOptions",
    **dict.fromkeys(_REDUCTIONS, "ReducerOptions"),
}
_BY_LETTERS = {name.lower(): name for name in (*OPTIONS.values(), *OPTIONS_2.values())}


def _options_of(code: str) -> str | None:
    """Return the table that holds an operator's options; LiteRT reads no other."""
    own = code.replace("_", "").lower() + "options"
    return _SHARED_OPTIONS.get(code) or _BY_LETTERS.get(own)


@dataclass
class ConversionState:
    """The state of one subgraph's conversion: the value of each tensor so far.

    names: names of outputs, by tensor
    handles: the state that a resource tensor stands for
    """

    scope: BodyScope
    graph: FileGraph
    ids: dict[int, int] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    handles: dict[int, str] = field(default_factory=dict)

    @property
    def builder(self) -> GraphBuilder:
        """The builder of the subgraph's nodes."""
        return self.scope.builder

    @property
    def tensors(self) -> Sequence[FileTensor]:
        """The tensors of the subgraph."""
        return self.graph.tensors

    def value(self, index: int, where: str) -> int:
        """Return the value of a tensor, adding it when it is a constant.

        A variable tensor has the value of its state.

        Errors: ModelFileError, if the tensor is read before an operator makes it
        """
        tensor = self.tensors[index]
        if tensor.variable:
            return self.scope.read(self.variable(index), where)
        if index not in self.ids:
            if tensor.data is None and 0 in tensor.shape:  # a constant without elements
                empty = np.zeros(tensor.shape, numpy_dtype(tensor.dtype))
                self.ids[index] = self.builder.constant(tensor.name, empty, tensor.quant)
                return self.ids[index]
            if tensor.data is None:
                raise ModelFileError(
                    f"{where}: tensor {index} '{tensor.name}' is read before it is made"
                )
            self.ids[index] = self.builder.constant(tensor.name, tensor.data, tensor.quant)
        return self.ids[index]

    def variable(self, index: int) -> str:
        """Return the state of a variable tensor. It starts with zeros, or with its zero point.

        Source: TensorFlow Lite, subgraph.cc: ResetVariableTensors
        """
        tensor, model = self.tensors[index], self.scope.model
        name = model.state_name((self.graph.index, index), tensor.name)
        if name not in model.initial:
            quant = tensor.quant if tensor.dtype in ("int8", "uint8") else None
            zero = quant.zero_point if quant and tensor.dtype == "int8" else 0
            filled = model.fill(name, tensor.shape, tensor.dtype, zero)
            model.initial[name] = (filled, quant)
        return name


class OperatorUse:
    """One operator, for the function that converts it."""

    def __init__(self, state: ConversionState, operator: FileOperator) -> None:
        self.state = state
        self.builder = state.builder
        self.operator = operator
        self.source = operator.source
        self._options: Any = None
        if operator.options is not None and operator.options_name == _options_of(operator.code):
            self._options = getattr(tflite, operator.options_name)()
            self._options.Init(operator.options.Bytes, operator.options.Pos)

    def option(self, name: str, default: Any = 0) -> Any:
        """Return a builtin option by its accessor's name; the default without any options."""
        return default if self._options is None else getattr(self._options, name)()

    def option_ints(self, name: str) -> tuple[int, ...]:
        """Return a builtin option that is a list of integers; empty when it is missing."""
        if self._options is None or not getattr(self._options, f"{name}Length")():
            return ()
        return tuple(int(v) for v in getattr(self._options, f"{name}AsNumpy")())

    def activation(self) -> str:
        """Return the fused activation.

        Errors: ConvertError, if it has no counterpart
        """
        kind = self.option("FusedActivationFunction")
        if kind not in _ACTIVATIONS:
            raise ConvertError(f"{self.source}: fused activation {kind} is not supported")
        return _ACTIVATIONS[kind]

    def has(self, position: int) -> bool:
        """Whether an input is given."""
        inputs = self.operator.inputs
        return position < len(inputs) and inputs[position] != NO_TENSOR

    def tensor(self, position: int) -> FileTensor:
        """Return an input's tensor as the file has it.

        Errors: ModelFileError, if the input is not given
        """
        if not self.has(position):
            raise ModelFileError(f"{self.source}: input {position} is missing")
        return self.state.tensors[self.operator.inputs[position]]

    def value(self, position: int) -> int:
        """Return an input's value."""
        return self.state.value(self.tensor(position).index, self.source)

    def optional(self, position: int) -> int | None:
        """Return an input's value, or None when it is not given."""
        return self.value(position) if self.has(position) else None

    def values(self) -> list[int]:
        """Return the values of all inputs."""
        return [self.value(i) for i in range(len(self.operator.inputs))]

    def type(self, position: int) -> TensorType:
        """Return the type of an input's value."""
        return self.builder.type(self.value(position))

    def dims(self, position: int) -> tuple[int, ...]:
        """Return an input's shape as numbers.

        Errors: ConvertError, if a dimension is unknown
        """
        type = self.type(position)
        if not type.is_static:
            raise ConvertError(f"{self.source}: the shape of input {position} {type} is not known")
        return type.dims

    def constant(self, position: int) -> Array:
        """Return an input's data.

        Errors: ConvertError, if the input is not a constant
        """
        data = self.builder.values[self.value(position)].data
        if data is None:
            tensor = self.tensor(position)
            raise ConvertError(f"{self.source}: input {position} '{tensor.name}' must be constant")
        return data

    def ints(self, position: int) -> tuple[int, ...]:
        """Return a constant input as integers, flattened.

        Errors: ConvertError, if the input is not a constant; ModelFileError, if it is no list
        """
        data = self.constant(position)
        if data.dtype.kind not in "iu" or data.size > 4096:
            raise ModelFileError(f"{self.source}: input {position} is no list of integers")
        return tuple(int(v) for v in data.reshape(-1))

    def numbers(self, position: int) -> tuple[Dim, ...]:
        """Return an input of sizes, flattened: constants, or expressions of open sizes.

        Errors: ConvertError, if only a run tells them
        """
        value = self.value(position)
        if self.builder.values[value].is_constant:
            return self.ints(position)
        known = self.builder.known(value) if isinstance(self.builder, FoldingBuilder) else None
        return self.ints(position) if known is None else known

    def is_constant(self, *positions: int) -> bool:
        """Whether inputs are constants."""
        return all(self.builder.values[self.value(k)].is_constant for k in positions)

    def sizes(self, position: int) -> int:
        """Return an input of sizes or places as a value of int64: a constant, or made in a run."""
        if self.is_constant(position):
            return self.int_constant(self.ints(position))
        return self.add("cast", self.value(position), to="int64")

    def int_constant(self, values: Sequence[int]) -> int:
        """Add an int64 constant (a shape, axes, pads) and return its value."""
        return self.builder.constant(f"{self.source}_ints", np.array(values, np.int64))

    def float_constant(self, value: float, dtype: str = "float32") -> int:
        """Add a scalar constant and return its value."""
        return self.builder.constant(f"{self.source}_scalar", np.asarray(value, dtype))

    def quant(self, position: int) -> Quant | None:
        """Return the quantisation of an input's value."""
        return self.type(position).quant

    def output(self, position: int = 0) -> FileTensor:
        """Return an output's tensor as the file has it."""
        outputs = self.operator.outputs
        if position >= len(outputs) or outputs[position] == NO_TENSOR:
            raise ModelFileError(f"{self.source}: output {position} is missing")
        return self.state.tensors[outputs[position]]

    def add(self, op: str, *inputs: int | None, quant: Quant | None = None, **attrs: Any) -> int:
        """Add a node whose result is not an output of the operator; return its value."""
        return self.builder.add_node(op, inputs, attrs, quants=[quant], source=self.source)[0]

    def done(self, op: str, *inputs: int | None, **attrs: Any) -> None:
        """Add the node that makes the operator's outputs, with their names and quantisation."""
        tensors = [self.output(i) for i in range(len(self.operator.outputs))]
        made = self.builder.add_node(
            op,
            inputs,
            attrs,
            outputs=len(tensors),
            names=[self.state.names.get(t.index, t.name) for t in tensors],
            quants=[t.quant for t in tensors],
            source=self.source,
        )
        for position, value in enumerate(made):
            self.bind(position, value)

    def give(self, position: int, value: int) -> None:
        """Make a value an output of the operator, with the name of its tensor."""
        tensor, quant = self.output(position), self.builder.type(value).quant
        name = self.state.names.get(tensor.index, tensor.name)
        named = self.builder.add(
            "identity", value, names=[name], quants=[quant], source=self.source
        )
        self.bind(position, named)

    def into(self, builder: GraphBuilder) -> OperatorUse:
        """Return the use of the same operator whose nodes go to another builder."""
        other = copy.copy(self)
        other.builder = builder
        return other

    def bind(self, position: int, value: int) -> None:
        """Make a value an output of the operator, if it has the type that the file declares."""
        tensor, type = self.output(position), self.builder.type(value)
        if tensor.index in self.state.ids:
            raise ModelFileError(f"{self.source}: tensor '{tensor.name}' is made twice")
        declared = TensorType(tensor.shape, tensor.dtype, tensor.quant)
        check = self.state.scope.model.check_shapes and tensor.shape
        if type.dtype != tensor.dtype or (check and not _fits(type.shape, tensor.signature)):
            raise ModelFileError(
                f"{self.source}: output '{tensor.name}' is declared {declared}, but is made {type}"
            )
        if tensor.variable:
            self.state.scope.write(self.state.variable(tensor.index), value, self.source)
        else:
            self.state.ids[tensor.index] = value

    def write(self, position: int, value: int) -> None:
        """Give the variable tensor of an input a value.

        Errors: ModelFileError, if the tensor is no variable
        """
        tensor = self.tensor(position)
        if not tensor.variable:
            raise ModelFileError(f"{self.source}: input {position} '{tensor.name}' is no variable")
        self.state.scope.write(self.state.variable(tensor.index), value, self.source)

    def fail(self, sentence: str) -> ConvertError:
        """Return the error with the sentence on the unsupported part of this operator."""
        return ConvertError(f"{self.source}: {sentence}")


def _fits(made: Sequence[Dim], declared: Sequence[int]) -> bool:
    """Whether a shape is the declared one, as far as it is known."""
    return len(made) == len(declared) and all(
        dim == known or known < 0 or isinstance(dim, str)
        for dim, known in zip(made, declared, strict=True)
    )


Converter = Callable[[OperatorUse], None]
"""Turns one operator into nodes."""
