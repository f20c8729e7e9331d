"""Grow a random ONNX graph node by node, each node run on ONNX Runtime as soon as it is made.

A value of the graph so has its array at hand: the next node's shapes, axes and indices are drawn
from what is really there, and a node that ONNX Runtime refuses never joins the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from lab.fuzz.peer import Refused, run_model

MOST_ELEMENTS = 1500
"""The most elements of a value."""
LARGEST = 1e4
"""The largest magnitude of a float value; larger ones amplify rounding beyond use."""
MICROSOFT = "com.microsoft"
DTYPES = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "int8": TensorProto.INT8,
    "int16": TensorProto.INT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "uint8": TensorProto.UINT8,
    "uint16": TensorProto.UINT16,
    "uint32": TensorProto.UINT32,
    "uint64": TensorProto.UINT64,
    "bool": TensorProto.BOOL,
}
FLOATS = ("float32", "float64", "float16", "bfloat16")
INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
MOVED_TO_INPUT = {
    "Squeeze": (13, 1, "axes"),
    "Unsqueeze": (13, 1, "axes"),
    "ReduceSum": (13, 1, "axes"),
    "Split": (13, 1, "split"),
    "TopK": (10, 1, "k"),
    "Dropout": (12, 1, "ratio"),
    **{
        f"Reduce{name}": (18, 1, "axes")
        for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
    },
}
"""Inputs that were attributes before an opset: op -> (opset, position, attribute)."""
MOVED_MORE = {
    "Clip": (11, {1: "min", 2: "max"}),
    "Pad": (11, {1: "pads", 2: "value"}),
    "Slice": (10, {1: "starts", 2: "ends", 3: "axes"}),
}


@dataclass(frozen=True)
class Tensor:
    """A value of the graph: what ONNX Runtime computed, and whether rounding had a part in it."""

    name: str
    array: Any
    constant: bool = False

    @cached_property
    def dtype(self) -> str:
        """The element type's name."""
        return str(self.array.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return tuple(self.array.shape)

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.array.shape)


@dataclass(frozen=True)
class Grown:
    """A finished graph: the model, what to feed it, and which nodes round."""

    model: onnx.ModelProto
    feeds: Mapping[str, Any]
    arrays: Mapping[str, Any]
    """Every value of the graph by name, as ONNX Runtime computed it node by node."""
    rounding: frozenset[str]
    """Names of the nodes whose result depends on rounding."""
    loose: Mapping[str, float]
    """By how much more values may be off, by name; no node reads them."""
    seed: int

    @property
    def content(self) -> bytes:
        """The file's bytes."""
        return self.model.SerializeToString()

    @property
    def parts(self) -> list[Any]:
        """The nodes that compute."""
        return [node for node in self.model.graph.node if node.op_type != "Constant"]


@dataclass
class Grower:
    """A graph under construction."""

    seed: int
    opset: int
    rng: np.random.Generator
    real: str = "float32"
    """The dtype that rows get where they ask for float32."""
    nodes: list[Any] = field(default_factory=list)
    feeds: dict[str, Any] = field(default_factory=dict)
    weights: list[Any] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    constants: list[Tensor] = field(default_factory=list)
    rounding: set[str] = field(default_factory=set)
    loose: dict[str, float] = field(default_factory=dict)
    stored: set[str] = field(default_factory=set)
    """Values that DequantizeLinear made, and what was computed from them."""
    arrays: dict[str, Any] = field(default_factory=dict)
    names: int = 0

    def name(self, stem: str) -> str:
        """Return a name that is new in the graph."""
        self.names += 1
        return f"{stem}{self.names}"

    def chance(self, p: float) -> bool:
        """Whether something of that probability happens."""
        return bool(self.rng.random() < p)

    def choose(self, options: Sequence[Any]) -> Any:
        """Return one of the options."""
        return options[int(self.rng.integers(len(options)))]

    def random(self, dtype: str, shape: Sequence[int], low: float = -2, high: float = 2) -> Any:
        """Return an array of a dtype: uniform floats, integers of the range, or bits."""
        dtype = self.real if dtype == "float32" else dtype
        if dtype == "bool":
            return np.asarray(self.rng.random(shape) < 0.5)
        if dtype in INTS:
            least = 0 if dtype[0] == "u" else -9
            return np.asarray(self.rng.integers(least, 10, shape)).astype(dtype)
        return np.asarray(self.rng.uniform(low, high, shape)).astype(numpy_dtype(dtype))

    def input(self, array: Any) -> Tensor:
        """Return a new graph input that is fed with the array."""
        name = self.name("x")
        self.feeds[name] = self.arrays[name] = np.asarray(array, order="C")
        tensor = Tensor(name, self.feeds[name])
        self.values.append(tensor)
        return tensor

    def constant(self, array: Any) -> Tensor:
        """Return a constant: one that is there already, an initialiser or a Constant node."""
        array = np.asarray(array)
        for old in self.constants:
            same = old.dtype == str(array.dtype) and old.shape == array.shape
            if same and np.array_equal(old.array, array) and self.chance(0.5):
                return old
        proto = numpy_helper.from_array(array, name := self.name("c"))
        if self.chance(0.3):
            attr = {"value": proto}
            if (
                self.opset >= 12
                and array.size
                and array.ndim < 2
                and array.dtype in (np.float32, np.int64)
            ):
                attr = {_literal(array): array.tolist()}
            self.nodes.append(helper.make_node("Constant", [], [name], name=f"n_{name}", **attr))
        else:
            self.weights.append(proto)
        self.arrays[name] = array
        self.constants.append(Tensor(name, array, True))
        return self.constants[-1]

    def operand(self, array: Any, constant: float = 0.75) -> Tensor:
        """Return an array as a constant or, less often, as an input of the graph."""
        return self.constant(array) if self.chance(constant) else self.input(array)

    def pick(
        self,
        dtypes: Sequence[str] = ("float32",),
        ranks: Sequence[int] | None = None,
        when: Callable[[Tensor], bool] | None = None,
    ) -> Tensor:
        """Return a value of those dtypes and ranks, recent ones more often; else a new input."""
        dtypes = [self.real if dtype == "float32" else dtype for dtype in dtypes]
        fit = [
            t
            for t in self.values
            if t.dtype in dtypes and (ranks is None or t.rank in ranks) and (not when or when(t))
        ]
        if fit and self.chance(0.95):
            return fit[-1 - min(int(self.rng.exponential(2.5)), len(fit) - 1)]
        for _ in range(20):
            rank = int(self.choose(ranks if ranks is not None else RANKS))
            dtype = self.real if self.real in dtypes and self.chance(0.8) else self.choose(dtypes)
            made = Tensor("", self.random(dtype, self.shape(rank)))
            if not when or when(made):
                return self.input(made.array)
        raise Refused("no value fits")

    def shape(self, rank: int) -> tuple[int, ...]:
        """Return a small shape: odd sizes, often 1, and 0 at times."""
        if self.chance(0.01) and rank:
            sizes = [0 if self.chance(0.3) else int(self.rng.integers(1, 4)) for _ in range(rank)]
            return tuple(sizes)
        return tuple(int(self.choose(SIZES)) for _ in range(rank))

    def like(self, x: Tensor, broadcast: bool = True, one_way: bool = False) -> Tensor:
        """Return a second operand for x: a value there is, a scalar, or one of a shape that fits.

        The scalar is of shape [] or [1, ..]; others are x's shape with some axes 1 or left off.
        """
        same = [t for t in self.values if t.dtype == x.dtype and fits(t.shape, x.shape)]
        if one_way:
            same = [t for t in same if np.broadcast_shapes(t.shape, x.shape) == x.shape]
        if same and self.chance(0.4):
            return self.choose(same)
        shape: Sequence[int] = x.shape
        if broadcast:
            if self.chance(0.35):
                shape = (1,) * int(self.choose([0, 0, 1, x.rank]))
            else:
                shape = [1 if self.chance(0.3) else d for d in x.shape]
                shape = shape[int(self.rng.integers(len(shape) + 1)) if self.chance(0.3) else 0 :]
        return self.operand(self.random(x.dtype, shape))

    def node(
        self,
        op: str,
        inputs: Sequence[Tensor | None],
        attrs: Mapping[str, Any] | None = None,
        outputs: int = 1,
        domain: str = "",
        rounds: bool = True,
        loose: float = 0.0,
        captured: Sequence[Tensor] = (),
    ) -> list[Tensor]:
        """Add a node and return its outputs.

        rounds: whether rounding has a part in its floats
        loose: how much its outputs may be off; if they may, no other node is to read them
        captured: values of this graph that a body in an attribute reads

        Errors: Refused, if ONNX Runtime has no kernel or no answer, or one that is too large
        """
        given = list(inputs)
        while given and given[-1] is None:
            given.pop()
        attrs = {key: value for key, value in (attrs or {}).items() if value not in (None, [])}
        if not domain:
            given, attrs = lower(op, given, attrs, self.opset)
        names = [self.name("v") for _ in range(outputs)]
        node = helper.make_node(
            op,
            [t.name if t else "" for t in given],
            names,
            domain=domain,
            name=self.name(f"n_{op}_"),
            **attrs,
        )
        arrays = self.eager(node, [*captured, *(t for t in given if t)])
        for array in arrays:
            check_size(array)
        self.nodes.append(node)
        if rounds:
            self.rounding.add(node.name)
        if self.stored.intersection(t.name for t in [*captured, *(t for t in given if t)]):
            self.stored.update(names)
        made = [Tensor(name, array) for name, array in zip(names, arrays, strict=True)]
        for tensor in made:
            self.arrays[tensor.name] = tensor.array
        if loose:
            self.loose.update(dict.fromkeys(names, loose))
        else:
            self.values += made
        return made

    def eager(self, node: Any, given: Sequence[Tensor]) -> list[Any]:
        """Return the outputs of one node."""
        unique = list({t.name: t for t in given}.values())
        feeds = {t.name: t.array for t in unique if not t.constant}
        weights = [numpy_helper.from_array(t.array, t.name) for t in unique if t.constant]
        model = assemble([node], feeds, weights, list(node.output), self.opset)
        return run_model(model, feeds)

    def finish(self, outputs: Sequence[str]) -> Grown:
        """Return the graph with those outputs."""
        model = assemble(self.nodes, self.feeds, self.weights, outputs, self.opset)
        rounding, loose = frozenset(self.rounding), dict(self.loose)
        return Grown(model, dict(self.feeds), self.arrays, rounding, loose, self.seed)


SIZES = (1, 1, 2, 3, 3, 4, 5, 6, 8)
RANKS = (0, 1, 2, 2, 3, 3, 4, 4, 4, 5)


def _literal(array: Any) -> str:
    kind = "float" if array.dtype == np.float32 else "int"
    return f"value_{kind}" + ("s" if array.ndim else "")


def numpy_dtype(name: str) -> Any:
    """Return the numpy dtype of that name."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def fits(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two shapes broadcast to something small."""
    try:
        return bool(np.prod(np.broadcast_shapes(tuple(shape), tuple(other))) <= MOST_ELEMENTS)
    except ValueError:
        return False


def check_size(array: Any) -> None:
    """Raise Refused for an array that is too large, in elements or in magnitude."""
    if not isinstance(array, np.ndarray):
        raise Refused("not a tensor")
    if array.size > MOST_ELEMENTS or array.ndim > 6:
        raise Refused("too many elements")
    if str(array.dtype) in FLOATS:
        wide = array.astype(np.float64)
        if not np.isfinite(wide).all() or np.abs(wide).max(initial=0) > LARGEST:
            raise Refused("too large, or not finite")
    elif array.dtype.itemsize >= 4 and np.abs(array.astype(np.float64)).max(initial=0) > 2**30:
        raise Refused("near to overflow")


def lower(
    op: str, given: list[Tensor | None], attrs: dict[str, Any], opset: int
) -> tuple[list[Tensor | None], dict[str, Any]]:
    """Return inputs and attributes as an older opset has them.

    Errors: Refused, if that opset has no such op, input or attribute
    """
    changed, moved = MOVED_MORE.get(op, (0, {}))
    if op in MOVED_TO_INPUT:
        changed, position, attribute = MOVED_TO_INPUT[op]
        moved = {position: attribute}
    if opset < changed:
        attrs = dict(attrs)
        for position, attribute in moved.items():
            tensor = given[position] if position < len(given) else None
            if tensor is None:
                continue
            if not tensor.constant:
                raise Refused(f"{op} of opset {opset} has no input {attribute}")
            single = attribute in ("k", "min", "max", "value", "ratio")
            values = tensor.array.reshape(-1).astype(np.float64 if single else np.int64).tolist()
            if not values:
                raise Refused(f"{op}: an empty {attribute}")
            first = int(values[0]) if attribute == "k" else values[0]
            attrs[attribute] = first if single else values
        given = given[: min(moved)]
    try:
        schema = onnx.defs.get_schema(op, opset, "")
    except onnx.defs.SchemaError as error:
        raise Refused(str(error)) from error
    if schema.deprecated or len(given) > schema.max_input:
        raise Refused(f"{op} of opset {opset} has other inputs")
    if not set(attrs) <= set(schema.attributes):
        raise Refused(f"{op} of opset {opset} has other attributes")
    return given, attrs


def assemble(
    nodes: Sequence[Any],
    feeds: Mapping[str, Any],
    weights: Sequence[Any],
    outputs: Sequence[str],
    opset: int,
) -> onnx.ModelProto:
    """Return a model; its outputs have no declared type, as ONNX Runtime infers it."""
    inputs = [
        helper.make_tensor_value_info(name, DTYPES[str(array.dtype)], array.shape)
        for name, array in feeds.items()
    ]
    wanted = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(nodes, "fuzz", inputs, wanted, weights)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)
