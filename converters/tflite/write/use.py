"""One node of a Graph while it is written as TensorFlow Lite operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tflite

from trireme.converters.tflite.write.records import WrittenOperator
from trireme.converters.tflite.write.tensors import WrittenTensors
from trireme.ir.graph import Dim, Node, Quant, TensorType, Value
from trireme.ir.op import OpDef, get_op
from trireme.support.cached import cached_property
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.errors import ConvertError

NO_TENSOR = -1


class NodeWriter:
    """A node that a rule writes; a rule ends with `done` or `same` for each output.

    Tensors are numbers of the file's list.
    """

    def __init__(self, tensors: WrittenTensors, node: Node) -> None:
        self.tensors = tensors
        self.node = node
        self.op: OpDef = get_op(node.op)
        self.attrs = self.op.bind(node.attrs)

    @cached_property
    def label(self) -> str:
        """The node's first output and its op."""
        return f"'{self.name}' {self.node.label}"

    @cached_property
    def name(self) -> str:
        """The name of the node's first output."""
        return self.tensors.graph.values[self.node.outputs[0]].first_name

    def error(self, why: str) -> ConvertError:
        """Return the refusal of this node."""
        return ConvertError(f"{self.label}: {why}")

    def value(self, position: int) -> Value | None:
        """Return an input; None when it is left out."""
        inputs = self.node.inputs
        id = inputs[position] if position < len(inputs) else None
        return None if id is None else self.tensors.graph.values[id]

    def given(self, position: int) -> Value:
        """Return an input that must be there."""
        value = self.value(position)
        if value is None:
            raise self.error(f"input {position} is missing")
        return value

    def type(self, position: int = 0) -> TensorType:
        """Return the type of an input that must be there."""
        return self.given(position).type

    def data(self, position: int) -> Array | None:
        """Return the data of a constant input; None of another, and of one left out."""
        value = self.value(position)
        return None if value is None else value.data

    def constant(self, position: int, what: str) -> Array:
        """Return the data of an input that must be constant."""
        data = self.data(position)
        if data is None:
            raise self.error(f"TensorFlow Lite takes {what} as a constant")
        return data

    def numbers(self, position: int, what: str) -> list[int]:
        """Return a list of integers that must be constant."""
        return [int(number) for number in self.constant(position, what).reshape(-1)]

    def output(self, position: int = 0) -> TensorType:
        """Return the type of an output."""
        return self.tensors.graph.type(self.node.outputs[position])

    def x(self, position: int = 0) -> int:
        """Return the tensor of an input; NO_TENSOR of one left out."""
        value = self.value(position)
        return NO_TENSOR if value is None else self.tensors.of(value.id)

    def operands(self) -> list[int]:
        """Return the tensors of all inputs."""
        return [self.x(position) for position in range(len(self.node.inputs))]

    def add(
        self,
        code: str,
        inputs: Sequence[int],
        type: TensorType | None = None,
        kind: str = "",
        **options: Any,
    ) -> int:
        """Add an operator whose result only this node reads, of the node's output type or another.

        A float node's intermediate results are floats: quantisation is left out then.
        """
        made = self.tensors.temporary(type or self.output(), self.name)
        self._operator(code, inputs, [made], kind, options)
        return made

    def done(self, code: str, inputs: Sequence[int], kind: str = "", **options: Any) -> None:
        """Add the operator that makes the node's outputs."""
        outputs = [self.tensors.of(id) for id in self.node.outputs]
        self._operator(code, inputs, outputs, kind, options)

    def emit(
        self, code: str, inputs: Sequence[int], outputs: Sequence[int], kind: str, **options: Any
    ) -> None:
        """Add an operator that makes these tensors."""
        self._operator(code, inputs, outputs, kind, options)

    def _operator(
        self,
        code: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        kind: str,
        options: dict[str, Any],
        custom: bytes = b"",
    ) -> None:
        while inputs and inputs[-1] == NO_TENSOR:
            inputs = inputs[:-1]
        made = WrittenOperator(code, tuple(inputs), tuple(outputs), kind, options, custom)
        self.tensors.operator(made)

    def custom(self, code: str, inputs: Sequence[int], options: bytes) -> None:
        """Add a custom operator that makes the node's outputs."""
        outputs = [self.tensors.of(id) for id in self.node.outputs]
        self._operator(code, inputs, outputs, "", {}, options)

    def same(self, x: int, position: int = 0) -> None:
        """Make a tensor an output of the node; an output of the graph gets a copy of it."""
        id = self.node.outputs[position]
        if not self.tensors.is_output(id):
            self.tensors.bind(id, x)
            return
        self.tensors.copy(x, self.tensors.of(id))

    def ints(self, values: Any, dtype: str = "int32") -> int:
        """Add a constant of integers: a shape, axes, pads."""
        return self.tensors.constant(np.array(values, numpy_dtype(dtype)), f"{self.name}_ints")

    def sizes(self, shape: Sequence[Dim]) -> int:
        """Add a shape with at most one open dimension as a constant, -1 for it."""
        if sum(not isinstance(dim, int) for dim in shape) > 1:
            raise self.error(f"shape {list(shape)} has more than one open dimension")
        return self.ints([dim if isinstance(dim, int) else -1 for dim in shape])

    def whole(self, position: int) -> int:
        """Return an input of sizes as int32: a constant, or cast in a run."""
        data = self.data(position)
        if data is not None:
            limits = np.iinfo(np.int32)
            return self.tensors.constant(
                np.clip(data, limits.min, limits.max).astype(np.int32), f"{self.name}_ints"
            )
        type = self.type(position)
        if type.dtype == "int32":
            return self.x(position)
        to = TensorType(type.shape, "int32")
        return self.add("CAST", [self.x(position)], to, "CastOptions", **cast_types(type, to))

    def scalar(self, number: float, dtype: str = "float32") -> int:
        """Add a constant of no axes."""
        return self.tensors.constant(np.array(number, numpy_dtype(dtype)), f"{self.name}_scalar")

    def array(self, data: Array, quant: Quant | None = None, name: str = "") -> int:
        """Add a constant."""
        return self.tensors.constant(data, name or f"{self.name}_constant", quant)

    def reshaped(self, x: int, shape: Sequence[Dim]) -> int:
        """Add a reshape to a shape with at most one open dimension."""
        type = self.tensors.type_of(x)
        to = TensorType(tuple(shape), type.dtype, type.quant)
        return self.add("RESHAPE", [x, self.sizes(shape)], to, "ReshapeOptions")

    def transposed(self, x: int, perm: Sequence[int]) -> int:
        """Add a transpose."""
        type = self.tensors.type_of(x)
        to = TensorType(tuple(type.shape[axis] for axis in perm), type.dtype, type.quant)
        return self.add("TRANSPOSE", [x, self.ints(list(perm))], to, "TransposeOptions")

    def check_dtype(self, position: int, words: str) -> None:
        """Refuse an input of another dtype than the words say; quantised ones begin with q."""
        type = self.type(position)
        word = f"q{type.dtype}" if type.quant is not None else type.dtype
        if word not in words.split():
            kind = f"quantised {type.dtype}" if type.quant is not None else type.dtype
            raise self.error(f"TensorFlow Lite has no kernel of this operator for {kind}")

    def check_one_quant(self, *positions: int) -> None:
        """Refuse inputs whose quantisation is not the output's, which the operator only moves."""
        for position in positions:
            if (
                self.value(position) is not None
                and self.type(position).quant != self.output().quant
            ):
                raise self.error(
                    f"TensorFlow Lite keeps the quantisation here: {self.type(position)} becomes "
                    f"{self.output()}"
                )

    @property
    def is_quantised(self) -> bool:
        """Whether the output is quantised."""
        return self.output().quant is not None


def cast_types(x: TensorType, y: TensorType) -> dict[str, int]:
    """Return the options of CAST."""
    return {"InDataType": dtype_code(x.dtype), "OutDataType": dtype_code(y.dtype)}


def dtype_code(dtype: str) -> int:
    """Return TensorFlow Lite's number of a dtype."""
    return int(getattr(tflite.TensorType, dtype.upper()))


WriteRule = Callable[[NodeWriter], None]
"""Writes one node."""
