"""A session's inputs and outputs on the way of every run: checked, then copied or used in place.

Each has a place in the host's arena. A large array is used in place where its reading and writing
calls can be pointed elsewhere. An input is read from the caller's array. An output is written into
the array that the caller gets or gave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from trireme.backend.device import HOST
from trireme.ir.graph import Value
from trireme.runtime.program.feeds import (
    as_array,
    check_target,
    misfit,
    refuse_names,
    refuse_targets,
)
from trireme.support.dtypes import Array
from trireme.support.errors import RunError

if TYPE_CHECKING:
    from trireme.backend.capabilities import Rebind
    from trireme.backend.device import BoundCall
    from trireme.plan.plan import Plan


class Runs(Protocol):
    """What runs a program once, between `bind` and `collect`."""

    @property
    def run(self) -> Callable[[], None]:
        """Runs it; may be another function the next time."""


class TasksInOrder(NamedTuple):
    """Runs a program in one way."""

    run: Callable[[], None]


DirectRun = Callable[[Mapping[str, Any]], dict[str, Array]]
"""Returns the outputs of feeds."""
RunInContext = Callable[[Mapping[str, Any], Mapping[str, Array] | None], dict[str, Array]]
"""Returns the outputs of feeds, given arrays for some of them, as `Session.run`."""
IN_PLACE_BYTES = 32 << 10
"""Smaller arrays are copied: finding an address from Python takes as long (a microsecond)."""
_MOST_READERS = 8
"""Pointing one takes a microsecond or two, too."""


class IOPort(NamedTuple):
    """An input or output: its place and its checks, looked up once.

    rebind: moves it to another address, or None where it is always copied; home: its own address
    """

    name: str
    view: Array
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    rebind: Rebind | None
    home: int
    value: Value

    @classmethod
    def at(cls, value: Value, view: Array, rebind: Rebind | None) -> IOPort:
        """Return the port of a value with its place."""
        return cls(value.name, view, view.shape, view.dtype, rebind, view.ctypes.data, value)


Given = tuple[list[tuple[Array | None, bool]] | None, list[Array]]
"""Arrays for the outputs, each with a flag for writing in place; None where all are new. And the
inputs that are used in place, which must live until the run is over."""


class IOBinding:
    """Puts inputs in and takes outputs out.

    inputs, outputs: in the model's order
    """

    def __init__(self, inputs: Sequence[IOPort], outputs: Sequence[IOPort]) -> None:
        self._inputs, self._outputs = inputs, outputs
        self._borrowable = [port for port in self._inputs if port.rebind is not None]
        self._copies_all = all(port.rebind is None for port in self._outputs)
        self._put, self._copied = self._putter(), self._copier()

    @property
    def moves(self) -> list[bool]:
        """Whether calls can be pointed to each input, then to each output, where it is."""
        return [port.rebind is not None for port in (*self._inputs, *self._outputs)]

    def bind(
        self,
        feeds: Mapping[str, Any],
        out: Mapping[str, Array] | None = None,
        in_place: bool = True,
    ) -> Given:
        """Check the feeds and put them in; the result is for `collect`, after the run.

        in_place: whether arrays may be used where they are; without, every value is in its place
        Errors: RunError, if a feed is missing or unknown, or an array does not fit
        """
        self._put(feeds)
        borrowed: list[Array] = []
        for port in self._borrowable:
            if port.rebind is None:
                continue
            array = _fitting(port, feeds)
            address = _address(array) if in_place and array.flags.c_contiguous else 0
            if address:
                port.rebind(address)
                borrowed.append(array)
            else:
                port.rebind(port.home)
                port.view[...] = array
        if self._copies_all and out is None:
            return None, borrowed
        return self._targets({} if out is None else out, borrowed, in_place), borrowed

    def collect(self, given: Given) -> dict[str, Array]:
        """Return the outputs by name."""
        targets = given[0]
        if targets is None:
            return self._copied()
        results = {}
        for port, (target, is_written) in zip(self._outputs, targets, strict=True):
            if target is None:
                target = port.view.copy()
            elif not is_written:
                target[...] = port.view
            results[port.name] = target
        return results

    def direct(self, runs: Runs) -> DirectRun | None:
        """Return give, run and take as one function, None where not everything is copied.

        Its errors are theirs. It saves a tenth of the time of a network of a few microseconds.
        """
        if self._borrowable or not self._copies_all:
            return None
        put, copied = self._put, self._copied

        def run(feeds: Mapping[str, Any]) -> dict[str, Array]:
            put(feeds)
            runs.run()
            return copied()

        return run

    def runner(self, runs: Runs) -> RunInContext:
        """Return what puts in, runs and takes out."""
        direct = self.direct(runs)

        def run(feeds: Mapping[str, Any], out: Mapping[str, Array] | None) -> dict[str, Array]:
            if direct is not None and out is None:
                return direct(feeds)
            given = self.bind(feeds, out)
            runs.run()
            return self.collect(given)

        return run

    def _putter(self) -> Callable[[Mapping[str, Any]], None]:
        """Return a function that checks the names of feeds and copies those that are copied."""
        count, ndarray = len(self._inputs), np.ndarray
        values = [port.value for port in self._inputs]
        ports = [
            (port.name, port.view, port.shape, port.dtype, port)
            for port in self._inputs
            if port.rebind is None
        ]

        def put(feeds: Mapping[str, Any]) -> None:
            try:
                given = len(feeds)
            except TypeError:
                refuse_names(feeds, values)
            if given != count:
                refuse_names(feeds, values)
            for name, view, shape, dtype, port in ports:
                try:
                    array = feeds[name]
                except (LookupError, TypeError):
                    refuse_names(feeds, values)
                if type(array) is not ndarray or array.shape != shape or array.dtype != dtype:
                    array = _fitting(port, feeds)
                view[...] = array

        return put

    def _copier(self) -> Callable[[], dict[str, Array]]:
        """Return a function that returns copies of all outputs."""
        outputs = [(port.name, port.view.copy) for port in self._outputs]

        def copied() -> dict[str, Array]:
            results = {}
            for name, copy in outputs:  # no comprehension: it is a call of its own
                results[name] = copy()
            return results

        return copied

    def _targets(
        self, out: Mapping[str, Array], borrowed: Sequence[Array], in_place: bool
    ) -> list[tuple[Array | None, bool]]:
        """Return the array for each output, None for a copy, and point calls at them."""
        if not isinstance(out, Mapping):
            raise RunError(f"out is a {type(out).__name__}, expected a mapping of names to arrays")
        targets: list[tuple[Array | None, bool]] = []
        given = 0
        for port in self._outputs:
            target = out.get(port.name)
            if target is not None:
                given += 1
                check_target(port.name, target, port.shape, port.dtype)
            if port.rebind is None:
                targets.append((target, False))
                continue
            if target is None and in_place:
                target = np.empty(port.shape, port.dtype)
            address = _address(target) if target is not None and in_place else 0
            if target is not None and address:
                shared = any(np.may_share_memory(target, array) for array in borrowed)
                address = address if target.flags.carray and not shared else 0
            port.rebind(address or port.home)
            targets.append((target, bool(address)))
        if given != len(out):
            refuse_targets(out, [port.name for port in self._outputs])
        return targets


def _fitting(port: IOPort, feeds: Mapping[str, Any]) -> Array:
    """Return the feed of an input as an array of its shape and dtype.

    Errors: RunError, if it is missing or does not fit
    """
    if not isinstance(feeds, Mapping) or port.name not in feeds:
        refuse_names(feeds, [port.value])
    array = as_array(port.value, feeds[port.name])
    if array.shape != port.shape or array.dtype != port.dtype:
        raise misfit(port.value, array)
    return array


def _address(array: Array) -> int:
    """Return where an array begins, or 0 where kernels may not expect it to: numpy's own arrays
    begin at multiples of 16 bytes. Each look at `ctypes` costs a microsecond."""
    address: int = array.ctypes.data
    return 0 if address % 16 else address


def bind_io(plan: Plan, calls: Sequence[BoundCall], views: Mapping[int, Array]) -> IOBinding:
    """Return the binding of a plan.

    calls: the bound calls of the plan's tasks, in order
    views: the place of every input and output, as an array
    """
    graph, known = plan.graph, (plan, calls, Arguments(plan))
    return IOBinding(
        [IOPort.at(v, views[v.id], reader_of(*known, v.id)) for v in graph.input_values()],
        [IOPort.at(v, views[v.id], writer_of(*known, v.id)) for v in graph.output_values()],
    )


class Arguments:
    """The tasks that read and that make each value, with the number of the argument."""

    def __init__(self, plan: Plan) -> None:
        self.readers: dict[int, list[tuple[int, int]]] = {}
        self.makers: dict[int, list[tuple[int, int]]] = {}
        for task in plan.tasks:
            for argument, value in enumerate(task.inputs):
                self.readers.setdefault(value, []).append((task.index, argument))
            for argument, value in enumerate(task.outputs, len(task.inputs)):
                self.makers.setdefault(value, []).append((task.index, argument))
        self.given = Counter(plan.graph.outputs)


def reader_of(
    plan: Plan, calls: Sequence[BoundCall], arguments: Arguments, value: int
) -> Rebind | None:
    """Return what points the readers of a large input elsewhere, None where it is copied: where
    one of them cannot be pointed, or more than a few would have to be."""
    readers = arguments.readers.get(value, [])
    if not 1 <= len(readers) <= _MOST_READERS or arguments.given[value]:
        return None
    points = [_pointer(plan, calls, value, task, argument) for task, argument in readers]
    able = [rebind for rebind in points if rebind is not None]
    if len(able) < len(points):
        return None

    def rebind_all(to: int) -> None:
        for rebind in able:
            rebind(to)

    return able[0] if len(able) == 1 else rebind_all


def writer_of(
    plan: Plan, calls: Sequence[BoundCall], arguments: Arguments, value: int
) -> Rebind | None:
    """Return what points the maker of a large output elsewhere, if no other task reads it."""
    makers = arguments.makers.get(value, [])
    if len(makers) != 1 or arguments.given[value] != 1 or value in arguments.readers:
        return None
    return _pointer(plan, calls, value, *makers[0])


def _pointer(
    plan: Plan, calls: Sequence[BoundCall], value: int, task: int, argument: int
) -> Rebind | None:
    slot = plan.slots[value]
    if slot.memory != HOST or slot.nbytes < IN_PLACE_BYTES:
        return None
    from trireme.backend.capabilities import rebind_of

    return rebind_of(calls[task], argument)
