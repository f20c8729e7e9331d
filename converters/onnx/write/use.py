"""One node of a Graph while it is written as ONNX: its operands, attributes and refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from trireme.converters.onnx.table import snake
from trireme.converters.onnx.write.names import OnnxNames
from trireme.ir.graph import Node, Value
from trireme.ir.op import OpDef, get_op
from trireme.support.cached import cached_property
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.errors import ConvertError

ATTRIBUTE_NAMES = {"kernel": "kernel_shape", "groups": "group"}
"""Attributes with another name than ONNX's in snake_case."""
_BESIDE = ("layout", "activation")
"""Attributes that become nodes of their own."""


def onnx_dtype(name: str) -> int:
    """Return ONNX's number of a dtype."""
    if name == "string":
        return int(onnx.TensorProto.STRING)
    return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(numpy_dtype(name))))


class WrittenNode:
    """A node that a rule writes; rules return the names of its real outputs."""

    def __init__(self, names: OnnxNames, node: Node) -> None:
        self.names = names
        self.node = node
        self.op: OpDef = get_op(node.op)
        self.attrs = self.op.bind(node.attrs)

    @cached_property
    def label(self) -> str:
        """The node's first output and its op."""
        name = self.names.graph.values[self.node.outputs[0]].first_name
        return f"'{name}' {self.node.label}"

    @property
    def is_channels_last(self) -> bool:
        """Whether the node works on [N,*S,C], which ONNX does not have."""
        return self.attrs.get("layout") == "NHWC"

    def error(self, why: str) -> ConvertError:
        """Return the refusal of this node."""
        return ConvertError(f"{self.label}: {why}")

    def value(self, position: int) -> Value | None:
        """Return an input; None when it is left out."""
        inputs = self.node.inputs
        id = inputs[position] if position < len(inputs) else None
        return None if id is None else self.names.graph.values[id]

    def values(self) -> list[Value]:
        """Return the inputs that are given."""
        return [self.names.graph.values[id] for id in self.node.used]

    def operand(self, position: int) -> str:
        """Return the name of an input's real form in the order that ONNX wants; "" for none."""
        value = self.value(position)
        if value is None:
            return ""
        first = self.is_channels_last and position in self.op.layout_inputs
        return self.names.real(value.id, first)

    def operands(self) -> list[str]:
        """Return the names of all inputs."""
        return [self.operand(i) for i in range(len(self.node.inputs))]

    def emit(self, op: str, inputs: Sequence[str], outputs: int = 1, **attrs: Any) -> list[str]:
        """Add a node and return the names of its outputs."""
        wanted = self.names.graph.values[self.node.outputs[0]].first_name
        return self.names.emit(op, list(inputs), wanted, outputs, **attrs)

    def one(self, op: str, *inputs: str, **attrs: Any) -> str:
        """Add a node with one output and return its name."""
        return self.emit(op, inputs, **attrs)[0]

    def scalar(self, number: float, position: int = 0) -> str:
        """Add a constant of the dtype that an input's real form has."""
        value = self.value(position)
        dtype = "float32" if value is None or value.quant is not None else value.dtype
        return self.constant(np.array(number, numpy_dtype(dtype)))

    def constant(self, data: Array) -> str:
        """Add a constant and return its name."""
        return self.names.constant(data, "constant")

    def attributes(self, schema: Any) -> dict[str, Any]:
        """Return the attributes in ONNX's form.

        Errors: ConvertError, if one has a value that ONNX cannot express
        """
        theirs = {snake(name): attr for name, attr in schema.attributes.items()}
        found: dict[str, Any] = {}
        for name, value in self.attrs.items():
            attr = theirs.get(snake(ATTRIBUTE_NAMES.get(name, name)))
            if attr is not None and value is not None and not _is_left_out(name, value):
                found[attr.name] = _fit(attr, value)
            elif attr is None and name not in _BESIDE and value != self.op.attrs[name].default:
                raise self.error(f"{name}={value!r} has no form in ONNX's {schema.name}")
        return found

    def check_dtypes(self, schema: Any, count: int | None = None) -> None:
        """Refuse an input of a dtype that the operator does not take."""
        given = len(self.node.inputs)
        for position in range(given if count is None else min(count, given)):
            value = self.value(position)
            if value is None or value.quant is not None or not schema.inputs:
                continue
            formal = schema.inputs[min(position, len(schema.inputs) - 1)]
            text = f"tensor({onnx.TensorProto.DataType.Name(onnx_dtype(value.dtype)).lower()})"
            if formal.types and text not in formal.types:
                raise self.error(
                    f"ONNX's {schema.name} does not take {value.dtype} for {formal.name}"
                )


def _is_left_out(name: str, value: Any) -> bool:
    """Whether a value is written beside the operator, or is what ONNX takes where there is none."""
    return (name in _BESIDE and isinstance(value, str)) or (
        name == "dilations" and set(value) <= {1}
    )


def _fit(attr: Any, value: Any) -> Any:
    kind = onnx.defs.OpSchema.AttrType
    if attr.type == kind.INT and isinstance(value, str):
        return onnx_dtype(value)
    if attr.type == kind.TENSOR:
        return onnx.numpy_helper.from_array(np.array(value, order="C"))
    if isinstance(value, Mapping):
        raise ConvertError(f"attribute {attr.name} is a mapping")
    return int(value) if isinstance(value, bool) else value
