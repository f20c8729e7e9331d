"""Values and nodes during conversion: TorchScope keeps a graph's values, Use is one node.

A TensorRef is a tensor. A ComplexRef is one of complex numbers, kept as two. A NumberRef is a
number that only a run knows: a value of one element.
The tables of rules are read without torch too, so torch is imported where it is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes  # noqa: F401  (numpy learns bfloat16 and the float8 types)
import numpy as np

from trireme.converters.torch.source import source_of, whereabouts
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.support.dtypes import INTEGERS, Array, numpy_dtype
from trireme.support.errors import ConvertError

MOST_FILLED = 1 << 16
"""The most elements of a constant that is made for an op such as full; above, a node fills it."""
Extent = Any
"""A dimension: an int, or a sympy expression of symbols."""


@dataclass(frozen=True)
class TensorRef:
    """A value of the graph, by id."""

    id: int


@dataclass(frozen=True)
class ComplexRef:
    """A tensor of complex numbers: the values of their parts, by id."""

    real: int
    imag: int


@dataclass(frozen=True)
class NumberRef:
    """A number that only a run knows. Shape: [1]."""

    id: int


@dataclass
class TorchScope:
    """The values of one graph or body.

    values: TensorRefs, ComplexRefs, NumberRefs, numbers and tuples, by the name of the node that
        makes them
    bound: sizes of symbols
    """

    builder: GraphBuilder
    bound: Mapping[Any, int]
    names: Mapping[str, str]
    values: dict[str, Any] = field(default_factory=dict)

    def argument(self, given: Any) -> Any:
        """Return an argument of a node with nodes replaced by their values."""
        if is_node(given):
            return self.values[given.name]
        if isinstance(given, (tuple, list)):
            return [self.argument(part) for part in given]
        return given

    def rename(self, value: int, name: str) -> None:
        """Give a value its name in the model."""
        self.builder.values[value] = replace(self.builder.values[value], name=name)

    def extent(self, size: Any) -> Extent:
        """Return a dimension of torch's: an int where it is known, else an expression."""
        if isinstance(size, int):
            return int(size)
        expression = size.node.expr.subs(self.bound)
        return int(expression) if expression.is_Integer else expression


def spread(given: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return one number for each spatial axis; torch takes a single one for all of them."""
    numbers = tuple(int(number) for number in given)
    return numbers * rank if len(numbers) == 1 else numbers


def is_node(given: Any) -> bool:
    """Whether an argument is what another node makes."""
    import torch

    return isinstance(given, torch.fx.Node)


def dtype_name(dtype: Any) -> str:
    """Return our name of a torch dtype."""
    return str(dtype).removeprefix("torch.")


def op_dtype(dtype: str) -> str:
    """Return the dtype in which ATen computes; floats of 16 bits are rounded after an op."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def is_complex(described: Any) -> bool:
    """Whether torch's description of a value is that of complex numbers."""
    import torch

    return isinstance(described, torch.Tensor) and described.is_complex()


def part_dtype(dtype: Any) -> str:
    """Return our name of a torch dtype, of its parts where it is complex."""
    return dtype_name(dtype.to_real() if dtype.is_complex else dtype)


def array_of(tensor: Any, copy: bool) -> Array:
    """Return the elements of a tensor, which share its memory unless `copy`.

    Errors: ConvertError, if the tensor is sparse, quantised or has no memory
    """
    import torch

    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise ConvertError(f"a constant is a tensor of kind {tensor.layout} on {tensor.device}")
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    try:
        data = np.asarray(plain.numpy())
    except TypeError:  # numpy has no bfloat16 of its own
        bits = plain.contiguous().view({1: torch.uint8, 2: torch.int16}[plain.element_size()])
        data = bits.numpy().view(numpy_dtype(dtype_name(tensor.dtype)))
    return data.copy() if copy else data


@dataclass
class Use:
    """One node of torch's, for the rule that turns it into nodes of the graph.

    args: the arguments by their names in the op's schema, defaults included; tensors are TensorRefs
    """

    scope: TorchScope
    node: Any
    args: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        """Return an argument; a tensor as its id."""
        value = self.args[name]
        return value.id if isinstance(value, TensorRef) else value

    @property
    def source(self) -> str:
        """The source of the nodes that are added."""
        return source_of(self.node)

    def error(self, why: str, fix: str = "") -> ConvertError:
        """Return the error with the reason why this node cannot be converted."""
        return ConvertError(f"{whereabouts(self.node)}: {why}", fix=fix)

    def add(self, op: str, *inputs: int | None, **attrs: Any) -> int:
        """Add a node and return its first output."""
        return self.add_node(op, inputs, attrs)[0]

    def add_node(
        self, op: str, inputs: Sequence[int | None], attrs: Mapping[str, Any], outputs: int = 1
    ) -> tuple[int, ...]:
        """Add a node and return its outputs."""
        build = self.scope.builder.add_node
        return build(op, list(inputs), attrs, outputs=outputs, source=self.source)

    def type(self, value: int) -> TensorType:
        """Return the type of a value."""
        return self.scope.builder.type(value)

    def data(self, value: int | None) -> Array | None:
        """Return the elements of a value, None when it is no constant."""
        return None if value is None else self.scope.builder.values[value].data

    def rank(self, value: int) -> int:
        """Return the number of dimensions of a value."""
        return len(self.type(value).shape)

    def constant(self, data: Any, dtype: str | None = None) -> int:
        """Add a constant and return its id."""
        array = np.asarray(data, None if dtype is None else numpy_dtype(dtype))
        return self.scope.builder.constant(f"{self.node.name}_constant", array)

    def ints(self, *numbers: int) -> int:
        """Add a constant list of int64."""
        return self.constant(np.array(numbers, np.int64))

    @property
    def out(self) -> Any:
        """torch's description of the result, of the first one where there are several."""
        value = self.node.meta["val"]
        return value[0] if isinstance(value, (tuple, list)) else value

    @property
    def dtype(self) -> str:
        """The dtype of the (first) result, of its parts where it is complex."""
        return part_dtype(self.out.dtype)

    @property
    def shape(self) -> list[Extent]:
        """The dimensions of the (first) result."""
        return [self.scope.extent(dim) for dim in self.out.shape]

    def shape_of(self, name: str) -> list[Extent]:
        """Return the dimensions of a tensor argument as torch knows them."""
        return [self.scope.extent(dim) for dim in self.meta(name).shape]

    def meta(self, name: str) -> Any:
        """Return torch's description of an argument; a number is its own."""
        schema = [argument.name for argument in self.node.target._schema.arguments]
        place = schema.index(name)
        given = self.node.kwargs.get(name)
        if place < len(self.node.args):
            given = self.node.args[place]
        return given.meta["val"] if is_node(given) else given

    def reads(self, position: int) -> bool:
        """Whether anything reads one of several results."""
        return any(user.args[1] == position and user.users for user in self.node.users)

    def cast(self, value: int, dtype: str) -> int:
        """Return a value as another dtype."""
        return value if self.type(value).dtype == dtype else self.add("cast", value, to=dtype)

    def operand(self, given: Any, dtype: str) -> int:
        """Return a tensor, a NumberRef or a number as a value of a dtype."""
        if isinstance(given, TensorRef):
            return self.cast(given.id, dtype)
        if isinstance(given, NumberRef):
            return self.cast(self.scalar(given), dtype)
        if isinstance(given, int) and dtype in INTEGERS:  # -1 is 255 among uint8, as in C
            return self.constant(np.asarray(given).astype(numpy_dtype(dtype)))
        return self.constant(given, dtype)

    def scalar(self, given: Any) -> int:
        """Return a NumberRef or a whole number as a value without dimensions."""
        if isinstance(given, NumberRef):
            return self.add("reshape", given.id, self.constant(np.array([], np.int64)))
        return self.constant(given, "int64")

    def vector(self, entries: Sequence[Any]) -> int:
        """Return whole numbers and NumberRefs as a value int64[n]."""
        if not any(isinstance(entry, (NumberRef, TensorRef)) for entry in entries):
            return self.ints(*map(int, entries))
        parts = []
        for entry in entries:
            if isinstance(entry, TensorRef):
                entry = NumberRef(self.add("reshape", self.cast(entry.id, "int64"), self.ints(1)))
            parts.append(entry.id if isinstance(entry, NumberRef) else self.ints(int(entry)))
        return parts[0] if len(parts) == 1 else self.add("concat", *parts, axis=0)

    def reshape(self, value: int, shape: Sequence[Any]) -> int:
        """Return a value in another shape: 0 copies a dimension, one -1 takes the rest."""
        return self.add("reshape", value, self.ints(*shape))

    def transpose(self, value: int, *perm: int) -> int:
        """Return a value with its axes in another order."""
        return value if list(perm) == sorted(perm) else self.add("transpose", value, perm=perm)

    def axis(self, name: str, rank: int) -> int:
        """Return an argument that is an axis, counted from the front."""
        return int(self.args[name]) % max(rank, 1)

    def fill(self, shape: Sequence[Any], number: Any, dtype: str) -> int:
        """Return a tensor of one number, a constant where the shape is known and small."""
        known = all(isinstance(dim, int) for dim in shape)
        if (
            known
            and not isinstance(number, (NumberRef, TensorRef))
            and math.prod(shape) <= MOST_FILLED
        ):
            return self.constant(np.full(tuple(shape), number, numpy_dtype(dtype)))
        return self.add("expand", self.operand(number, dtype), self.vector(shape))
