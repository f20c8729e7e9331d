"""State and the order of effects: the order of nodes without data between them.

A state has a name; `variable` nodes read it and `assign` nodes write it. The builder makes the
order explicit. A write waits for the write and all reads before it. A read waits for the write
before it. An effect of any other kind waits for all earlier effects. So tasks may run in parallel,
and every read returns the same array as in serial order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Protocol

import numpy as np

from trireme.ir.dims import Bounds, bounds_of
from trireme.ir.graph import UNKNOWN, Graph, Node, TensorType
from trireme.ir.op import OpDef, get_op
from trireme.support.dtypes import Array, dtype_name, numpy_dtype
from trireme.support.errors import GraphError, RunError


class EffectOrder:
    """Returns, for each added node with an effect, the nodes that it must wait for."""

    def __init__(self) -> None:
        self._barrier: int | None = None
        self._writes: dict[str, int] = {}
        self._reads: dict[str, list[int]] = {}

    def waits(self, op: OpDef, attrs: Mapping[str, Any], node: int) -> list[int]:
        """Return the nodes before this one in the order of effects, and add this one."""
        if not op.effect:
            return []
        if op.effect not in ("reads", "writes"):
            open_ends = {i for name in (*self._writes, *self._reads) for i in self._ends(name)}
            before = sorted(open_ends) or self._since_barrier()
            self._barrier, self._writes, self._reads = node, {}, {}
            return before
        name = attrs["state"]
        if op.effect == "reads":
            before = self._last_write(name)
            self._reads.setdefault(name, []).append(node)
            return before
        before = self._ends(name)
        self._writes[name], self._reads[name] = node, []
        return before

    def _ends(self, name: str) -> list[int]:
        return self._reads.get(name) or self._last_write(name)

    def _last_write(self, name: str) -> list[int]:
        return [self._writes[name]] if name in self._writes else self._since_barrier()

    def _since_barrier(self) -> list[int]:
        return [] if self._barrier is None else [self._barrier]


def uses_state(node: Node) -> bool:
    """Whether a node reads or writes a state."""
    return get_op(node.op).effect in ("reads", "writes")


def writes_state(node: Node) -> bool:
    """Whether a node writes a state."""
    return get_op(node.op).effect == "writes"


def order_reason(node: Node, before: Node) -> str:
    """Say why a node waits for a node before it, without data between them."""
    effects = get_op(before.op).effect, get_op(node.op).effect
    state = f"state {node.attrs['state']!r}" if uses_state(node) else ""
    if effects == ("reads", "writes"):
        return f"it reads {state} before this node writes it"
    if effects == ("writes", "reads"):
        return f"it writes {state}, which this node reads"
    if effects == ("writes", "writes"):
        return f"it writes {state} before this node does"
    return "its effect comes before this node's"


def state_types(graph: Graph) -> dict[str, TensorType]:
    """Return the type of each state of a graph and its bodies, by name.

    Errors: GraphError, if two nodes disagree on it
    """
    types: dict[str, TensorType] = {}
    for node in graph.nodes:
        for body in (value for value in node.attrs.values() if isinstance(value, Graph)):
            for name, type in state_types(body).items():
                if types.setdefault(name, type) != type:
                    raise GraphError(
                        f"{node.label}: state {name!r} is {type} in its body {body.name!r}, "
                        f"{types[name]} before"
                    )
        if not uses_state(node):
            continue
        name, type = node.attrs["state"], graph.type(node.outputs[0])
        if types.setdefault(name, type) != type:
            raise GraphError(f"{node.label}: state {name!r} is {type} here, {types[name]} before")
    return types


def state_misfit(type: TensorType, symbols: Mapping[str, Bounds], array: Array) -> str:
    """Say why an array cannot be a state of this type; "" if it can.

    symbols: bounds of the symbols in the type's shape
    """
    given = f"{dtype_name(array.dtype)}[{','.join(map(str, array.shape))}]"
    if dtype_name(array.dtype) != type.dtype or array.ndim != len(type.shape):
        return f"is {given}, expected {type}"
    for axis, (dim, size) in enumerate(zip(type.shape, array.shape, strict=True)):
        if isinstance(dim, int) and dim != size:
            return f"is {given}, expected {type}"
        least, most = (0, None) if dim == UNKNOWN else bounds_of(dim, symbols)
        if size < least or (most is not None and size > most):
            bounds = f"{least}..{'' if most is None else most}"
            return f"is {given}: axis {axis} ({dim}) is {size}, expected {bounds}"
    return ""


def initial_states(graph: Graph) -> dict[str, Array]:
    """Return the first value of each state that a constant gives, by name."""
    initial: dict[str, Array] = {}
    for node in graph.nodes:
        if get_op(node.op).effect == "reads":
            data = graph.values[node.used[0]].data
            if data is not None:
                initial.setdefault(node.attrs["state"], data)
    return initial


class StateHolder(Protocol):
    """A keeper of states from run to run, which makes their arrays when a caller asks."""

    def arrays(self) -> Mapping[str, Array]:
        """Return the states' arrays, by name."""


class States(MutableMapping[str, Array]):
    """The states of a session by name: arrays to read, to set, and to delete.

    A state exists from its first read or write on; one in memory of a device exists always. A read
    returns a copy; a write checks and copies. `del` and `clear` restore the initial value.

    types: of the states; a shape may have symbols, which `symbols` bounds
    initial: the first values that are known, by name
    holder: what has newer states than the arrays here, until somebody asks for `arrays`
    """

    def __init__(
        self,
        types: Mapping[str, TensorType] | None = None,
        symbols: Mapping[str, Bounds] | None = None,
        initial: Mapping[str, Array] | None = None,
    ) -> None:
        self.types, self.symbols = dict(types or {}), dict(symbols or {})
        self.initial = dict(initial or {})
        self._arrays: dict[str, Array] = {}
        self.holder: StateHolder | None = None
        self._fixed: set[str] = set()

    @property
    def arrays(self) -> dict[str, Array]:
        """The states' own arrays by name; a holder has them no more."""
        holder, self.holder = self.holder, None
        if holder is not None:
            self._arrays.update(holder.arrays())
        return self._arrays

    def include(self, others: States) -> None:
        """Add the states of another session; states of one name are shared."""
        self.types.update(others.types)
        self.symbols.update(others.symbols)
        self.initial.update(others.initial)

    def memory(self, name: str) -> Array:
        """Return the memory of a state, which stays where it is from now on: 64-byte aligned."""
        if name not in self._fixed:
            memory = aligned_memory(self.types[name])
            memory[...] = self.arrays.get(name, self.initial[name])
            self.arrays[name] = memory
            self._fixed.add(name)
        return self.arrays[name]

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name].copy()

    def __setitem__(self, name: str, value: Array) -> None:
        array = self.checked(name, value)
        if name in self._fixed:
            self.arrays[name][...] = array
        else:
            self.arrays[name] = array.copy()

    def checked(self, name: str, value: Array) -> Array:
        """Return an array for a state.

        Errors: RunError, if there is no such state or the array does not fit
        """
        if name not in self.types:
            known = ", ".join(self.types) or "none"
            raise RunError(f"the model has no state {name!r}", facts=[f"known: {known}"])
        array = np.asarray(value)
        wanted = numpy_dtype(self.types[name].dtype)
        if array.dtype.kind == "V" and array.dtype.itemsize == wanted.itemsize:
            array = array.view(wanted)  # numpy's files name no dtype of ml_dtypes
        if why := state_misfit(self.types[name], self.symbols, array):
            raise RunError(f"state {name!r} {why}")
        return array

    def __delitem__(self, name: str) -> None:
        if name in self._fixed:
            self.arrays[name][...] = self.initial[name]
        else:
            del self.arrays[name]

    def clear(self) -> None:
        """Give every state its initial value."""
        for name in list(self.arrays):
            del self[name]

    def saved(self) -> dict[str, Array]:
        """Return copies of the states as they are, for `restore`."""
        return {name: array.copy() for name, array in self.arrays.items()}

    def restore(self, saved: Mapping[str, Array]) -> None:
        """Put back what `saved` gave; arrays of memory that moves may be others than before."""
        for name in list(self.arrays):
            if name not in saved:
                del self[name]
        for name, array in saved.items():
            if name in self._fixed:
                self.arrays[name][...] = array
            else:
                self.arrays[name] = array.copy()

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.arrays))

    def __len__(self) -> int:
        return len(self.arrays)


def aligned_memory(type: TensorType) -> Array:
    """Return new memory at a multiple of 64 bytes."""
    room = np.empty(type.nbytes + 64, np.uint8)
    skip = -room.ctypes.data % 64
    made: Array = room[skip : skip + type.nbytes].view(numpy_dtype(type.dtype))
    return made.reshape(type.dims)
