"""Lower nodes to jobs: the machine's work for each op, before tiles and addresses.

The table in `compiler` maps an op to its function. A node that cannot be lowered is a GraphError
whose sentence the user reads. Integers come from trireme.ops.integer; this module computes only
layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from trireme.backend.kernel_table import STORED_8, Form, KernelTable
from trireme.devices.npu.compiler.jobs import BoxedValue, Job, PackedConstants, Shared
from trireme.devices.npu.compiler.layout import Box, RankedBox, axes_of, fold, nhwc
from trireme.devices.npu.spec import NpuSpec
from trireme.devices.npu.stream.commands import FUNCTIONS, View, dense
from trireme.ir.graph import Graph, Node, TensorType
from trireme.ir.op import Call, call_of
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.errors import GraphError

QUANTISED = ("int8", "uint8")


@dataclass
class NpuLowering:
    """The jobs of a graph so far, and the facts of its values.

    alias: the value whose bytes a value shares
    stored: element type and elements of each tensor
    places: views of constants
    """

    graph: Graph
    spec: NpuSpec
    constants: PackedConstants
    jobs: list[Job] = field(default_factory=list)
    alias: dict[int, int] = field(default_factory=dict)
    stored: dict[int, tuple[str, int]] = field(default_factory=dict)
    places: dict[int, View] = field(default_factory=dict)
    node: int = 0

    def value(self, value: int) -> int:
        """Return the value whose bytes a value shares; a constant gets its place."""
        value = self.alias.get(value, value)
        if value not in self.stored:
            found = self.graph.values[value]
            self.stored[value] = (stored_dtype(found.type), found.type.elements)
            if found.data is not None:
                self._place(value, found.data)
        return value

    def _place(self, value: int, data: Array) -> None:
        dtype, elements = self.stored[value]
        wanted = numpy_dtype(dtype)
        blob = self.constants.reserve(
            Shared(value, None, "as it is"),
            elements * wanted.itemsize,
            lambda: _converted(data, wanted),
        )
        self.places[value] = dense(blob.region, blob.offset, dtype, (1, 1, 1, elements))

    def operand(self, value: int | None, layout: Box | None = None) -> BoxedValue:
        """Return a value in a layout, by default its own axes as [n,h,w,c]."""
        if value is None:
            raise GraphError("an input that is needed was left out")
        shape = self.graph.type(value).dims
        return BoxedValue(self.value(value), layout or nhwc(shape))

    def temporary(self, dtype: str, elements: int) -> int:
        """Return a new value that lives between two jobs of a node."""
        value = -1 - sum(1 for known in self.stored if known < 0)
        self.stored[value] = (dtype, elements)
        return value

    def parts(
        self, values: Sequence[tuple[int, RankedBox]], keep_last: bool = False
    ) -> list[tuple[tuple[BoxedValue, ...], BoxedValue]]:
        """Return inputs and output (the last) folded to four dimensions, in as many parts."""
        ids = [self.value(value) for value, _ in values]
        return [
            (tuple(map(BoxedValue, ids[:-1], layouts[:-1])), BoxedValue(ids[-1], layouts[-1]))
            for layouts in fold([axes for _, axes in values], keep_last)
        ]

    def whole(self, value: int) -> tuple[int, RankedBox]:
        """Return a value with all its axes."""
        return value, axes_of(self.graph.type(value).dims)


def _converted(data: Array, dtype: np.dtype[np.generic]) -> Array:
    with np.errstate(over="ignore"):
        return data.astype(dtype)


def stored_dtype(type: TensorType) -> str:
    """Return the element type a value has in the NPU's memory; GraphError if it has none."""
    if type.dtype in ("int8", "uint8", "float16"):
        return type.dtype
    if type.dtype == "float32":
        return "float16"
    raise GraphError(f"{type.dtype} tensors have no place in the NPU")


def is_integer(call: Call) -> bool:
    """Whether a node works on quantised integers; GraphError for mixed types."""
    types = [*(v.type for v in call.inputs if v is not None), *call.outputs]
    data = [t for t in types if t.dtype in (*QUANTISED, "float16", "float32")]
    quantised = [t.quant is not None for t in data if t.dtype in QUANTISED]
    if not quantised:
        return False
    if len(quantised) != len(data) or not all(quantised):
        raise GraphError("quantised and other tensors cannot be mixed")
    return True


def function_name(activation: str) -> str:
    """Return the engine's function for a fused activation on floats."""
    name = activation or "none"
    if name not in FUNCTIONS:
        raise GraphError(f"activation {activation!r} has no function in the NPU")
    return name


def constant_ints(call: Call, position: int) -> tuple[int, ...] | None:
    """Return a constant input of integers, None when it was left out."""
    value = call.input(position)
    if value is None:
        return None
    if value.data is None:
        raise GraphError(f"input {position} must be a constant")
    return tuple(int(v) for v in value.data.reshape(-1))


Lower = Callable[[NpuLowering, Node, Call], None]
FLOATS = ("float16", "float32")
BOTH = (*FLOATS, *STORED_8)
"""The forms of most ops. The option that computes float32 in float16 admits float32."""


class LoweringRow(NamedTuple):
    """Lines of the kernel table: some ops, the function that lowers them, and its forms."""

    ops: tuple[str, ...]
    lower: Lower
    forms: tuple[str | Form, ...] = BOTH


def lower_node(state: NpuLowering, node: Node, table: KernelTable[Lower]) -> None:
    """Add the jobs of a node.

    Errors: GraphError, if the table has no line for it, or the line's function refuses it
    """
    lower = table.find(state.graph, node)
    if lower is None:
        raise GraphError(table.miss(state.graph, node))
    lower(state, node, call_of(state.graph, node))


def lower_graph(
    graph: Graph, spec: NpuSpec, constants: PackedConstants, table: KernelTable[Lower]
) -> NpuLowering:
    """Return the jobs of all nodes of a graph, in order.

    Errors: GraphError, naming the node
    """
    state = NpuLowering(graph, spec, constants)
    for index, node in enumerate(graph.nodes):
        state.node = index
        try:
            lower_node(state, node, table)
        except GraphError as error:
            raise GraphError(f"{node.label}: {error.summary}", facts=error.facts) from error
    return state
