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
from trireme.backend.device import HOST, Device
from trireme.backend.registry import DEFAULT_DEVICE, kind_named, open_device, options_of
from trireme.ir.device_scope import named_device
from trireme.ir.graph import Quant, TensorType, digest
from trireme.ir.interpreter import evaluate
from trireme.ir.op import all_ops, get_op, has_op
from trireme.runtime.eager.op_call import Made, OpCall, OpUse, choose_constants
from trireme.runtime.eager.operators import Operators
from trireme.runtime.loop.executors import summary
from trireme.support.arguments import check_arguments
from trireme.support.dtypes import Array, dtype_name
from trireme.support.errors import GraphError, PlacementError
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
        if quant is None:
            return data
        return Tensor(data.data, TensorType(data.type.shape, data.type.dtype, quant))
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
        self._calls: OrderedDict[Hashable, OpCall] = OrderedDict()
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
        use = OpUse(get_op(op), attrs, outputs, tuple(quants))
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
        results = [Tensor(data, type, name, self, own) for data, type in made]
        return results[0] if len(results) == 1 else tuple(results)

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

    def _on_references(self, use: OpUse, operands: Sequence[Tensor | None]) -> list[Made]:
        graph = use.graph(operands, frozenset(range(len(operands))))
        (node,) = graph.nodes
        arrays = [None if i is None else graph.values[i].data for i in node.inputs]
        results = evaluate(graph, node, arrays, self.states)
        return [
            (array, TensorType(array.shape, graph.type(i).dtype, graph.type(i).quant))
            for array, i in zip(results, graph.outputs, strict=False)
        ]

    def _compiled(self, use: OpUse, operands: Sequence[Tensor | None], device: Device) -> OpCall:
        self._given[id(device)] = device  # so that its id stays its own
        kind = (id(device), use.key(operands))
        if kind not in self._constants:
            self._constants[kind] = choose_constants(use, operands, device)
        constants = self._constants[kind]
        data = tuple(
            digest(each.data) if each is not None and position in constants else None
            for position, each in enumerate(operands)
        )
        key = (kind, data)
        if key not in self._calls:
            self._calls[key] = OpCall(device, use.graph(operands, constants))
            self.compiled += 1
            while len(self._calls) > MOST_KEPT:
                self._calls.popitem(last=False)
        self._calls.move_to_end(key)
        return self._calls[key]


def _device_of(op: str, operands: Sequence[Tensor | None]) -> str | Device:
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


run = Eager()
"""The context that the functions of this module use; its devices close at exit."""
atexit.register(run.close)


def __getattr__(name: str) -> Callable[..., Any]:
    """Return the function of an op."""
    if not has_op(name):
        raise AttributeError(f"module 'trireme.runtime.eager.eager' has no op {name!r}")
    return partial(run, name)


def __dir__() -> list[str]:
    """Return what the module is for, the ops included."""
    return sorted(
        {"Eager", "Tensor", "from_dlpack", "run", "tensor", *(op.name for op in all_ops())}
    )
