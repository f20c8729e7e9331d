"""Names and nodes during conversion: Scope keeps names, NodeUse is one ONNX node.

A scope is a graph, the body of an If, Loop or Scan, or the body of a function. A body's nodes go to
a builder of its own, and outer values that it reads become extra inputs. A function's body and a
branch with a known condition share the builder of their caller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from trireme.converters.fold import Dims, fold, fold_dims
from trireme.converters.onnx.file import Files
from trireme.ir.builder import GraphBuilder
from trireme.ir.contents import as_target
from trireme.ir.graph import UNKNOWN, Dim, TensorType, Value
from trireme.ir.op import get_op
from trireme.ir.python_op import PythonOp
from trireme.ir.verify import infer_types
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.errors import ConvertError, InternalError, ModelFileError
from trireme.support.records import dataclass

MOST_NODES = 200_000
"""The most nodes of all unfolded bodies and functions."""
MOST_FILLED_BYTES = 1 << 30
"""The most bytes of all constants that ConstantOfShape makes."""
GIVE_SIZES = "give the sizes of the inputs' open dimensions: --shape, or shapes= in Python"
MOST_DEPTH = 40
"""The most bodies and functions inside each other."""


@dataclass
class Common:
    """The data that all scopes of one model share."""

    functions: Mapping[tuple[str, str], Any]
    files: Files
    python_ops: Mapping[str, PythonOp] = field(default_factory=dict)
    nodes: int = 0
    filled_bytes: int = 0

    def may_fill(self, nbytes: int) -> bool:
        """Whether a constant of that size may be made beside those already made for the model."""
        fits = self.filled_bytes + nbytes <= MOST_FILLED_BYTES
        self.filled_bytes += nbytes if fits else 0
        return fits

    def count(self, label: str) -> None:
        """Count one more node; raise ModelFileError when a hostile file unfolds without end."""
        self.nodes += 1
        if self.nodes > MOST_NODES:
            raise ModelFileError(f"{label}: the model unfolds to over {MOST_NODES} nodes")


@dataclass
class Scope:
    """The names of one graph or body. Outer names are looked up in `outer`, if there is one."""

    common: Common
    builder: GraphBuilder
    opsets: Mapping[str, int]
    names: dict[str, int] = field(default_factory=dict)
    outer: Scope | None = None
    captured: dict[int, int] = field(default_factory=dict)
    depth: int = 0
    dims: dict[int, Dims] = field(default_factory=dict)
    """Elements of integer values of this builder that hold symbols."""
    stored: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Scale and zero point of the integers in this builder that quantize_linear made."""
    whole: dict[int, int] = field(default_factory=dict)
    """Values of float32 that hold the very numbers of integer values in this builder."""
    sequences: dict[str, list[int]] = field(default_factory=dict)
    """Sequences of tensors by name; they are lists, not values."""

    def find(self, name: str) -> int | None:
        """Return the id of a name; an outer value becomes a constant or an extra input here."""
        if name in self.names or self.outer is None:
            return self.names.get(name)
        value = self.outer.find(name)
        if value is None:
            return None
        if self.outer.builder is not self.builder:
            value = self.capture(value)
        self.names[name] = value
        return value

    def model_inputs(self) -> list[Value]:
        """Return the inputs of the whole model."""
        if self.outer is not None:
            return self.outer.model_inputs()
        return [self.builder.values[value] for value in self.builder.inputs]

    def sequence(self, name: str) -> list[int] | None:
        """Return the values of a sequence by name; None when there is no such sequence."""
        if name in self.sequences or self.outer is None:
            return self.sequences.get(name)
        found = self.outer.sequence(name)
        if found is None or self.outer.builder is self.builder:
            return found
        return [self.capture(value) for value in found]

    def capture(self, outer: int) -> int:
        """Return the id here of a value of the outer builder."""
        if outer in self.captured:
            return self.captured[outer]
        around = self.outer
        if around is None:
            raise InternalError("a value was captured where there is nothing outside")
        value = around.builder.values[outer]
        if value.data is not None:
            return self.builder.constant(value.name, value.data)
        self.captured[outer] = self.builder.input(value.name, value.type)
        if outer in around.dims:
            self.dims[self.captured[outer]] = around.dims[outer]
        return self.captured[outer]

    def inner(self, *, own_builder: str = "", **changes: Any) -> Scope:
        """Return a scope inside this one; `own_builder` names the builder of a body."""
        if self.depth >= MOST_DEPTH:
            raise ModelFileError(f"bodies and functions are nested over {MOST_DEPTH} deep")
        fresh: dict[str, Any] = {"names": {}, "captured": {}, "sequences": {}, "outer": self}
        fresh |= {"depth": self.depth + 1, **changes}
        if own_builder:
            fresh |= {"builder": GraphBuilder(own_builder), "dims": {}, "stored": {}, "whole": {}}
        return dataclasses.replace(self, **fresh)

    def value(self, id: int | None) -> Value | None:
        """Return the value of an id; None for an input left out."""
        return None if id is None else self.builder.values[id]

    def rename(self, id: int, name: str) -> None:
        """Give a value its name in the model."""
        self.builder.values[id] = dataclasses.replace(self.builder.values[id], name=name)

    def add(
        self,
        op: str,
        inputs: Sequence[int | None],
        attrs: Mapping[str, Any],
        outputs: int = 1,
        source: str = "",
    ) -> tuple[int, ...]:
        """Add a node, or constants in its place when it can be folded."""
        held = self.whole.get(inputs[0] or 0) if op == "cast" else None
        if held is not None and attrs["to"] == "float32":
            return (held,)
        target = self._target(op, inputs, attrs)
        if target is not None:
            inputs = [inputs[0], self.builder.constant("shape", target)]
            attrs = {**attrs, "allowzero": 0}
        values = [self.value(i) for i in inputs]
        folded = fold(values, op, attrs, outputs)
        if folded is None and op in ("shape", "size"):
            return (self._shape(op, inputs, attrs, source),)
        if folded is not None:
            return tuple(self.builder.constant(f"{op}_folded", data) for data in folded)
        elements = fold_dims(values, op, attrs, self.dims)
        if elements is not None and all(isinstance(d, int) for d in elements.reshape(-1)):
            (type, *_) = infer_types(get_op(op), values, get_op(op).bind(attrs), outputs, source)
            dtype = numpy_dtype(type.dtype)
            return (self.builder.constant(f"{op}_folded", elements.astype(dtype)),)
        made = self.builder.add_node(op, inputs, attrs, outputs=outputs, source=source)
        if elements is not None and elements.shape == self.builder.type(made[0]).shape:
            self.dims[made[0]] = tuple(elements.reshape(-1))
        return made

    def _shape(
        self, op: str, inputs: Sequence[int | None], attrs: Mapping[str, Any], source: str
    ) -> int:
        type = self.builder.type(inputs[0] or 0)
        if not type.has_rank:
            return self.builder.add_node(op, inputs, attrs, source=source)[0]
        bound = get_op(op).bind(attrs)
        dims = type.shape[slice(bound["start"], bound["end"])] if op == "shape" else type.shape
        if all(isinstance(dim, int) for dim in dims):
            data = np.array(dims, np.int64)
            return self.builder.constant(op, np.asarray(np.prod(data)) if op == "size" else data)
        made = self.builder.add_node(op, inputs, attrs, source=source)[0]
        if op == "shape":
            self.dims[made] = dims
        return made

    def _target(
        self, op: str, inputs: Sequence[int | None], attrs: Mapping[str, Any]
    ) -> Array | None:
        """Return the constant shape of a reshape, where its symbols allow one."""
        if op != "reshape" or len(inputs) < 2 or inputs[1] not in self.dims or inputs[0] is None:
            return None
        dims = list(self.dims[inputs[1]])
        if attrs.get("allowzero") and 0 in dims:
            return None
        return as_target(dims, self.builder.type(inputs[0]))


@dataclass
class NodeUse:
    """One ONNX node: adapters change it in place, then a rule turns it into nodes of the graph."""

    scope: Scope
    proto: Any
    op: str
    domain: str
    version: int
    source: str
    inputs: list[int | None]
    attrs: dict[str, Any]
    outputs: list[str]

    def add(self, op: str, *inputs: int | None, outputs: int = 1, **attrs: Any) -> int:
        """Add a node with this one's source and return its first output."""
        return self.add_node(op, inputs, attrs, outputs)[0]

    def add_node(
        self, op: str, inputs: Sequence[int | None], attrs: Mapping[str, Any], outputs: int = 1
    ) -> tuple[int, ...]:
        """Add a node with this one's source and return its outputs."""
        return self.scope.add(op, inputs, attrs, outputs, self.source)

    def constant(self, data: Any, dtype: str | None = None) -> int:
        """Add a constant and return its id."""
        return self.scope.builder.constant(f"{self.source}_constant", np.asarray(data, dtype))

    def input(self, position: int) -> int | None:
        """Return an input, None when it was left out."""
        return self.inputs[position] if position < len(self.inputs) else None

    def need(self, position: int) -> int:
        """Return an input that must be there."""
        value = self.input(position)
        if value is None:
            raise self.error(f"input {position} is missing")
        return value

    def type(self, position: int = 0) -> TensorType:
        """Return the type of an input that must be there."""
        return self.scope.builder.type(self.need(position))

    def sizes(self, position: int, count: int) -> tuple[Dim, ...]:
        """Return the dimensions of an input after its first two.

        count: how many of them there are where the input's rank is known only in a run
        """
        type = self.type(position)
        return type.shape[2:] if type.has_rank else (UNKNOWN,) * count

    def array(self, position: int) -> Array | None:
        """Return the data of an input; None when it is left out or not constant."""
        value = self.scope.value(self.input(position))
        return None if value is None else value.data

    def set_input(self, position: int, value: int | None) -> None:
        """Put an input at a position; missing inputs before it are left out."""
        while len(self.inputs) <= position:
            self.inputs.append(None)
        self.inputs[position] = value

    def take(self, name: str, default: Any = None) -> Any:
        """Remove an attribute and return it."""
        return self.attrs.pop(name, default)

    def error(self, why: str, fix: str = "") -> ConvertError:
        """Return the error with the reason why this node cannot be converted."""
        inputs = [self.scope.value(i) for i in self.inputs]
        seen = "   ".join("-" if v is None else f"{v.name} {v.type}" for v in inputs)
        return ConvertError(f"{self.op} ({self.source}): {why}", facts=[seen], fix=fix)
