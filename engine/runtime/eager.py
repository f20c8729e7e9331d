"""Any op at once, on a chosen device, with tensors that read like arrays.

    from trireme import eager
    y = eager.matmul(x, w, device="opencl")
    print(eager.softmax(y, axis=-1) * 2)

Every op of the registry is a function here: its inputs by position, its attributes by name. A
Tensor has Python's operators too (`operators.py`). An op on tensors runs where they are. What is
compiled is kept by device, op, types and attributes, so the second call of a kind only runs.
"""

from __future__ import annotations

import atexit
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

import trireme.ops  # noqa: F401 - fills the registry
from trireme.backend.device import HOST, Buffer, Device
from trireme.backend.registry import DEFAULT_DEVICE, kind_named, open_device, options_of
from trireme.ir.builder import GraphBuilder
from trireme.ir.device_scope import device as on_device
from trireme.ir.device_scope import named_device
from trireme.ir.graph import Graph, Quant, TensorType, Value, digest, hashable
from trireme.ir.interpreter import evaluate
from trireme.ir.op import OpDef, all_ops, get_op, has_op
from trireme.runtime.interactive import summary
from trireme.runtime.operators import Operators
from trireme.support.arguments import check_arguments
from trireme.support.dtypes import Array, dtype_name, numpy_dtype
from trireme.support.errors import GraphError, PlacementError, TriremeError
from trireme.support.forks import register_at_fork

MOST_KEPT = 512
"""Compiled calls that are kept; the one not used for longest goes first."""


@dataclass(frozen=True, eq=False)
class Tensor(Operators):
    """A value: an array, its type (with quantisation) and the device that made it.

    It prints, and works as an array does: `x * 2 + y[:, 1:]`, `x.mean(axis=-1)`, `for row in x`.
    The rules of shapes and dtypes are numpy 2's. A result is on the device of its operands.

    device: where ops on the tensor run; "" where no device made it
    """

    data: Array
    type: TensorType
    device: str = ""
    _context: Eager | None = field(default=None, repr=False)
    _opened: Device | None = field(default=None, repr=False)

    def numpy(self) -> Array:
        """Return the array."""
        return self.data

    def to(self, device: str) -> Tensor:
        """Return the same elements for ops on another device; raise DeviceError if unknown."""
        kind_named(device)
        return Tensor(self.data, self.type, device, self._context)

    def _apply(self, op: str, *inputs: Any, **attrs: Any) -> Any:
        contexts = (each._context for each in inputs if isinstance(each, Tensor))
        return next(filter(None, contexts), run)(op, *inputs, **attrs)

    def _concrete(self) -> Array:
        return self.data

    def __array_function__(
        self, function: Any, types: Any, args: Sequence[Any], options: Mapping[str, Any]
    ) -> Any:
        """Have numpy's own functions work on the arrays; they return arrays."""
        return function(*_as_arrays(args), **_as_arrays(options))

    def __repr__(self) -> str:
        where = f" on {self.device}" if self.device else ""
        shown = np.array2string(self.data, threshold=64, precision=5)
        spread = f"  ({summary(self.data)})" if self.data.size > 64 else ""
        return f"{self.type}{where}{spread}\n{shown}"


def _as_arrays(given: Any) -> Any:
    """Return arguments of a function with arrays for tensors, in lists and dicts too."""
    if isinstance(given, Tensor):
        return given.data
    if isinstance(given, dict):
        return {name: _as_arrays(one) for name, one in given.items()}
    if type(given) in (list, tuple):
        return type(given)(map(_as_arrays, given))
    return given


def tensor(data: Any, quant: Quant | None = None) -> Tensor:
    """Return a value of some data: arrays as they are, Python floats as float32, ints as int64."""
    if isinstance(data, Tensor):
        return data if quant is None else Tensor(data.data, replace_quant(data.type, quant))
    try:
        array = np.asarray(data, order="C")
    except ValueError as error:  # rows of several lengths
        raise GraphError(f"the data is no array: {error}") from error
    array = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    if array.dtype == np.float64 and not isinstance(data, (np.ndarray, np.generic)):
        array = array.astype(np.float32)
    return Tensor(array, TensorType(array.shape, dtype_name(array.dtype), quant))


def from_dlpack(data: Any) -> Tensor:
    """Return a value of an array of another library in host memory, without a copy.

    Errors: GraphError, if the array cannot be shared, or a graph has no such dtype
    """
    try:
        return tensor(np.from_dlpack(data))
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
        raise GraphError(f"a {type(data).__name__} cannot be shared by DLPack: {error}") from error


def _is_recorded(value: Any) -> bool:
    """Whether an input is a value of a trace, which records the op instead."""
    return isinstance(value, Operators) and not isinstance(value, Tensor)


def replace_quant(type: TensorType, quant: Quant | None) -> TensorType:
    """Return a type with another quantisation."""
    return TensorType(type.shape, type.dtype, quant)


Operand = Tensor | None


@dataclass(frozen=True)
class _Use:
    """One use of an op: everything but the data of its inputs."""

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
        types = tuple(None if each is None else each.type for each in operands)
        return self.op.name, types, hashable(self.attrs), self.outputs, self.quants


class Eager:
    """Devices opened on first use, calls compiled so far, and states; safe to share by threads.

    device_options: by name, given to `open_device`
    """

    def __init__(self, device_options: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self.states: dict[str, Array] = {}
        self.compiled = 0
        self._options = device_options or {}
        self._devices: dict[str, Device] = {}
        self._given: dict[int, Device] = {}
        self._constants: dict[Hashable, frozenset[int]] = {}
        self._calls: OrderedDict[Hashable, _OpCall] = OrderedDict()
        self.reset_after_fork()
        register_at_fork(self)

    def reset_after_fork(self) -> None:
        """Be free, in a forked child, of the calls of other threads."""
        self._lock = threading.RLock()

    def __call__(
        self,
        op: str,
        *inputs: Any,
        device: str | Device | None = None,
        outputs: int | None = None,
        quants: Sequence[Quant | None] = (),
        **attrs: Any,
    ) -> Any:
        """Return the outputs of one op: a Tensor, or a tuple where there are several.

        inputs: arrays, Tensors, numbers, or None for one that is left out
        device: a name or an open device; "host" is the numpy references, and runs every op. When
            None, that of a `with trireme.device(...)` block. Without a block, the device of the
            Tensors among the inputs, "cpu" if no device made any; the host then runs what only the
            host runs, and the outputs count as the device's
        outputs: how many of the op's outputs; those it always has when None
        quants: quantisation of the outputs
        Errors: PlacementError, if the device refuses the op or the inputs are on several devices;
            GraphError (ShapeError), if the inputs or attributes do not fit; DeviceError
        """
        if type(op) is not str or device is not None or outputs is not None or quants != ():
            given = {"op": op, "device": device, "outputs": outputs, "quants": quants}
            check_arguments(Eager.__call__, given, GraphError)  # a third of the time of a call
        use = _Use(get_op(op), attrs, outputs, tuple(quants))
        recorded = next((each for each in inputs if _is_recorded(each)), None)
        if recorded is not None:
            return recorded._recorded(op, inputs, attrs, device, outputs, quants)
        operands = [None if each is None else tensor(each) for each in inputs]
        asked = named_device() if device is None else device
        where = _device_of(op, operands) if asked is None else asked
        if where == HOST or (asked is None and use.op.is_host_only):
            made = self._on_references(use, operands)
        elif use.op.effect:
            name = where if isinstance(where, str) else where.spec.name
            raise PlacementError(f"{name} cannot run {op}: calls of one op keep states on the host")
        else:
            with self._lock:
                opened = self._open(where) if isinstance(where, str) else where
                call = self._compiled(use, operands, opened)
            made = call([each.data for each in operands if each is not None])
        name, own = (where, None) if isinstance(where, str) else (where.spec.name, where)
        made = [Tensor(each.data, each.type, name, self, own) for each in made]
        return made[0] if len(made) == 1 else tuple(made)

    def close(self) -> None:
        """Close the devices and forget what was compiled; further use starts afresh."""
        with self._lock:
            self._calls.clear()
            self._constants.clear()
            self._given.clear()
            for device in self._devices.values():
                device.close()
            self._devices.clear()

    def _open(self, name: str) -> Device:
        if name not in self._devices:
            self._devices[name] = open_device(name, **options_of(name, [name], self._options))
        return self._devices[name]

    def _on_references(self, use: _Use, operands: Sequence[Operand]) -> list[Tensor]:
        graph = use.graph(operands, frozenset(range(len(operands))))
        (node,) = graph.nodes
        arrays = [None if i is None else graph.values[i].data for i in node.inputs]
        results = evaluate(graph, node, arrays, self.states)
        return [
            Tensor(array, TensorType(array.shape, graph.type(i).dtype, graph.type(i).quant))
            for array, i in zip(results, graph.outputs, strict=False)
        ]

    def _compiled(self, use: _Use, operands: Sequence[Operand], device: Device) -> _OpCall:
        self._given[id(device)] = device  # so that its id stays its own
        kind = (id(device), use.key(operands))
        if kind not in self._constants:
            self._constants[kind] = _choose_constants(use, operands, device)
        constants = self._constants[kind]
        data = tuple(
            digest(each.data) if each is not None and position in constants else None
            for position, each in enumerate(operands)
        )
        key = (kind, data)
        if key not in self._calls:
            self._calls[key] = _OpCall(device, use.graph(operands, constants))
            self.compiled += 1
            while len(self._calls) > MOST_KEPT:
                self._calls.popitem(last=False)
        self._calls.move_to_end(key)
        return self._calls[key]


def _device_of(op: str, operands: Sequence[Operand]) -> str | Device:
    """Return the device on which the operands are; raise PlacementError if there are several."""
    made = {each.device: each for each in operands if each is not None and each.device}
    if len(made) > 1:
        raise PlacementError(
            f"{op}: the inputs are on {' and '.join(made)}; an op runs on one device",
            fix=f'x.to("{next(iter(made))}"), or device= of the call',
        )
    for name, each in made.items():
        return each._opened or name
    return DEFAULT_DEVICE


def _choose_constants(use: _Use, operands: Sequence[Operand], device: Device) -> frozenset[int]:
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


class _OpCall:
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

    def __call__(self, arrays: Sequence[Array]) -> list[Tensor]:
        """Return the outputs; `arrays` holds every input that is present, constants too."""
        (node,) = self.graph.nodes
        feeds = dict(zip(node.used, arrays, strict=True))
        made = []
        with self._lock:
            for value in self.graph.inputs:
                self.device.write(self._place(value), np.asarray(feeds[value], order="C"))
            self._bound.launch().wait()
            for value in self.graph.outputs:
                type = self.graph.type(value)
                array = np.empty(type.dims, numpy_dtype(type.dtype))
                self.device.read(self._place(value), array)
                made.append(Tensor(array, type))
        return made


run = Eager()
"""The context that the functions of this module use; its devices close at exit."""
atexit.register(run.close)


def __getattr__(name: str) -> Callable[..., Any]:
    """Return the function of an op."""
    if not has_op(name):
        raise AttributeError(f"module 'trireme.runtime.eager' has no op {name!r}")
    return partial(run, name)


def __dir__() -> list[str]:
    """Return what the module is for, the ops included."""
    return sorted(
        {"Eager", "Tensor", "from_dlpack", "run", "tensor", *(op.name for op in all_ops())}
    )
