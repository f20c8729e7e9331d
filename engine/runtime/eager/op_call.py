"""One op compiled for one device: its graph of one node, and calls with memory of their own.

Comes in: an op's use and its operands. Goes out: which operands are compiled in, and a call that
runs arrays. `eager.py` keeps the calls.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from trireme.backend.device import Buffer, Device
from trireme.ir.builder import GraphBuilder
from trireme.ir.device_scope import device as on_device
from trireme.ir.graph import Graph, Quant, TensorType, Value, hashable
from trireme.ir.op import OpDef
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.errors import GraphError, PlacementError, TriremeError
from trireme.support.forks import register_at_fork


class TypedArray(Protocol):
    """An array and its type: an eager Tensor."""

    @property
    def data(self) -> Array:
        """The elements."""

    @property
    def type(self) -> TensorType:
        """The type, with quantisation."""


Operand = TypedArray | None
"""An input of an op; None where it is left out."""
Made = tuple[Array, TensorType]
"""An output of an op."""


@dataclass(frozen=True)
class OpUse:
    """One use of an op: everything but the data of its inputs.

    outputs: how many of the op's outputs; None for those it always has
    """

    op: OpDef
    attrs: Mapping[str, Any]
    outputs: int | None
    quants: tuple[Quant | None, ...]

    def graph(self, operands: Sequence[Operand], constants: frozenset[int]) -> Graph:
        """Return the graph of one node, with the inputs at some positions compiled in."""
        with on_device(None):
            return self._graph(operands, constants)

    def _graph(self, operands: Sequence[Operand], constants: frozenset[int]) -> Graph:
        b = GraphBuilder(f"eager.{self.op.name}")
        values: list[int | None] = []
        for position, operand in enumerate(operands):
            if operand is None:
                values.append(None)
            elif position in constants:
                values.append(b.constant(f"c{position}", operand.data, operand.type.quant))
            else:
                values.append(b.input(f"x{position}", operand.type))
        made = b.add_node(
            self.op.name,
            values,
            self.attrs,
            outputs=self._count(b, values),
            quants=self.quants,
            source="eager",
        )
        return b.finish(*made)

    def _count(self, b: GraphBuilder, values: Sequence[int | None]) -> int:
        if self.outputs is not None:
            return self.outputs
        least, most = self.op.out_arity
        if most is not None:
            return least
        given: list[Value | None] = [None if i is None else b.values[i] for i in values]
        try:
            return len(self.op.infer(*given, **self.op.bind(self.attrs)))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            return 1

    def key(self, operands: Sequence[Operand]) -> Hashable:
        """Return what two uses must share to share a compiled call."""
        types = tuple(None if each is None else each.type for each in operands)
        return self.op.name, types, hashable(self.attrs), self.outputs, self.quants


def choose_constants(use: OpUse, operands: Sequence[Operand], device: Device) -> frozenset[int]:
    """Return the inputs to compile in: as few as let the device run the op, on a kernel if it can.

    None first; then the integers that say how (shapes, axes); then all but the first input, as
    weights are; then all. Raises the device's refusal, or what is wrong with the call.
    """
    present = [i for i, each in enumerate(operands) if each is not None]
    integers = [
        i
        for i in present[1:]
        if (each := operands[i]) is not None and each.type.dtype in ("int32", "int64")
    ]
    able: frozenset[int] | None = None
    refusal = ""
    fault: TriremeError | None = None
    for constants in dict.fromkeys(map(frozenset, ((), integers, present[1:], present))):
        try:
            graph = use.graph(operands, constants)
        except TriremeError as error:
            fault = fault or error
            continue
        (node,) = graph.nodes
        reason = device.unsupported_reason(graph, node)
        if reason is None and not device.kernel_note(graph, node):
            return constants
        if reason is None and able is None:
            able = constants
        refusal = refusal or reason or ""
    if able is not None:
        return able
    if refusal:
        seen = "   ".join("-" if each is None else str(each.type) for each in operands)
        raise PlacementError(
            f"{device.spec.name} cannot run {use.op.name}: {refusal}",
            facts=[f"inputs {seen}"],
            fix="device='host' runs every op on the numpy references",
        )
    raise fault or GraphError(f"{use.op.name} cannot be built")


class OpCall:
    """An op compiled for one device with memory of its own; one call at a time."""

    def __init__(self, device: Device, graph: Graph) -> None:
        (executable,) = device.compile([graph])
        self.device, self.graph = device, graph
        self.kernels = executable.kernels
        self.reset_after_fork()
        register_at_fork(self)
        self._places = {
            value: device.alloc(max(graph.type(value).nbytes, 1))
            for value in dict.fromkeys((*graph.inputs, *graph.outputs))
        }
        nbytes = executable.scratch_bytes
        scratch = device.alloc(nbytes) if nbytes else None
        args = [self._place(value) for value in (*graph.inputs, *graph.outputs)]
        self._bound = executable.bind(args, scratch)

    def reset_after_fork(self) -> None:
        """Be free, in a forked child, of a call of another thread."""
        self._lock = threading.Lock()

    def _place(self, value: int) -> Buffer:
        return self._places[value].at(0, self.graph.type(value).nbytes)

    def __call__(self, arrays: Sequence[Array]) -> list[Made]:
        """Return the outputs; `arrays` holds every input that is present, constants too."""
        (node,) = self.graph.nodes
        feeds = dict(zip(node.used, arrays, strict=True))
        made: list[Made] = []
        with self._lock:
            for value in self.graph.inputs:
                self.device.write(self._place(value), np.asarray(feeds[value], order="C"))
            self._bound.launch().wait()
            for value in self.graph.outputs:
                type = self.graph.type(value)
                array = np.empty(type.dims, numpy_dtype(type.dtype))
                self.device.read(self._place(value), array)
                made.append((array, type))
        return made
