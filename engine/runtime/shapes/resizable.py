"""Runs of a polymorphic graph whose shape is data: a new set of sizes writes numbers into tables.

Nothing is inferred, placed or planned for a shape. Its region is what the device made of it
(ShapeTables of backend/capabilities.py) and the shapes of its outputs. A session of the shape,
with a plan and a profile, is opened when somebody asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain, islice, pairwise
from typing import Any

import numpy as np

from trireme.backend.capabilities import ResizableCall
from trireme.backend.device import Buffer, Device
from trireme.ir.bind_shapes import sizes_of
from trireme.ir.decided import DecidedValues
from trireme.ir.dim_values import Numbers, evaluator, picker
from trireme.ir.dims import symbols_of
from trireme.ir.graph import Graph, Value
from trireme.runtime.program.feeds import check_targets
from trireme.runtime.shapes.ahead import Closes
from trireme.runtime.shapes.call_pool import CallPool, ReturningShape, is_small
from trireme.runtime.shapes.closed import ClosedGraph
from trireme.runtime.shapes.size_checks import SizeChecks
from trireme.support.cached import cached_property
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.errors import InternalError, ShapeError

_ALIGN = 16
"""What kernels may expect of an address; numpy's own arrays begin at multiples of it."""


def symbols_of_inputs(graph: Graph) -> tuple[str, ...] | None:
    """Return the symbols that are axes of inputs; None if another symbol decides about a shape."""
    axes = [dim for value in graph.input_values() for dim in value.shape]
    names = tuple(dict.fromkeys(dim for dim in axes if symbols_of(dim) == {dim}))
    known = frozenset(names)
    dims = {dim for value in graph.values.values() for dim in value.shape}
    return tuple(map(str, names)) if all(symbols_of(dim) <= known for dim in dims) else None


class ResizableGraph:
    """A polymorphic graph whose calls change their shape.

    contents: what shapes decide
    region: the graph as the device compiled it
    call: the device's
    devices: the open devices, by name
    alloc: gives scratch memory of at least some bytes
    writes_inputs: whether kernels write rows of a state where it is
    """

    def __init__(
        self,
        closed: ClosedGraph,
        contents: DecidedValues,
        region: Graph,
        call: ResizableCall,
        devices: Mapping[str, Device],
        alloc: Callable[[int], Buffer],
    ) -> None:
        self.closed, self.devices = closed, devices
        self.calls = CallPool(call, alloc)
        self.contents, self.call, names = contents, call, contents.names
        self.checks = SizeChecks(closed.graph, self.contents)
        self.ports = _Ports(closed.graph, region, self.contents)
        self.writes_inputs = any(node.attrs.get("in_place") for node in region.nodes)
        graph = closed.graph
        self._ranks = [len(value.shape) for value in graph.input_values()]
        axes = [dim for value in graph.input_values() for dim in value.shape]
        self._take_sizes = picker([axes.index(name) for name in names])
        self._axes = evaluator(axes, names)
        bounds = [graph.symbols.get(name, (0, None)) for name in names]
        self._bounds = [(low, math.inf if high is None else high) for low, high in bounds]

    def within(self, sizes: Numbers) -> bool:
        """Whether sizes lie within the bounds of the symbols."""
        return all([low <= n <= high for n, (low, high) in zip(sizes, self._bounds, strict=True)])

    def shapes(self, sizes: Numbers) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the inputs."""
        axes = iter(self._axes(*sizes))
        return tuple(tuple(islice(axes, rank)) for rank in self._ranks)

    def sizes(self, shapes: Sequence[Sequence[int]]) -> Numbers:
        """Return the sizes of the symbols.

        Errors: ShapeError, if the shapes do not fit the inputs
        """
        axes = tuple(chain.from_iterable(shapes))
        if list(map(len, shapes)) == self._ranks:
            sizes: Numbers = self._take_sizes(axes)
            if self._axes(*sizes) == axes and self.within(sizes):
                return sizes
        sizes_of(self.closed.graph, shapes)
        inputs = self.closed.graph.input_values()
        raise ShapeError(
            f"the sizes {', '.join(str(list(shape)) for shape in shapes)} do not agree",
            facts=[f"{value.name} {value.type}" for value in inputs],
        )

    def at(
        self, shapes: tuple[tuple[int, ...], ...], open_session: Callable[[], Closes]
    ) -> ShapeRun:
        """Return what runs a set of shapes; open_session: opens a session for them.

        Errors: ShapeError, if they do not fit; CompileError, if they have another structure than
        was compiled
        """
        sizes = self.sizes(shapes)
        if 0 in sizes:  # the checks know shapes with elements
            self.closed.at(shapes)
        self.checks.check(sizes)
        return ShapeRun(self, shapes, sizes, open_session)


class _Ports:
    """The inputs and outputs of a graph, and which of them a device's call takes.

    fed: the numbers of the inputs that it reads; made: of the outputs that it makes
    results: these outputs in the graph's order: names, and places in `made`
    """

    def __init__(self, graph: Graph, region: Graph, contents: DecidedValues) -> None:
        self.inputs = list(graph.input_values())
        self.outputs = list(graph.output_values())
        self.names = [value.name for value in self.inputs]
        self.fed = [graph.inputs.index(value) for value in region.inputs]
        self.made = [graph.outputs.index(value) for value in region.outputs]
        self.output_names = [value.name for value in self.outputs]
        self.made_names = [self.outputs[k].name for k in self.made]
        self.results = [
            (self.outputs[k].name, self.made.index(k))
            for k in range(len(self.outputs))
            if k in self.made
        ]
        self.dtypes = [numpy_dtype(value.dtype) for value in self.outputs]
        self._dims = evaluator((d for v in self.outputs for d in v.shape), contents.names)
        ends = list(accumulate((len(value.shape) for value in self.outputs), initial=0))
        self._parts = [slice(*pair) for pair in pairwise(ends)]
        self.others = [k for k, v in enumerate(graph.outputs) if v not in region.outputs]

    def shapes(self, sizes: Numbers) -> list[tuple[int, ...]]:
        """Return the shapes of the outputs."""
        dims = self._dims(*sizes)
        return [dims[part] for part in self._parts]


class ShapeRun:
    """What runs one set of shapes: a StaticRegion (instance.py).

    whole: the graph at every shape; graph: with symbols
    open_session: opens a session of these shapes
    """

    def __init__(
        self,
        whole: ResizableGraph,
        shapes: tuple[tuple[int, ...], ...],
        sizes: Numbers,
        open_session: Callable[[], Closes],
    ) -> None:
        self.whole = whole
        self._shapes, self._sizes = shapes, sizes
        self.open_session, self.graph = open_session, whole.closed.graph
        ports, shaped = whole.ports, whole.ports.shapes(sizes)
        made = [(shaped[k], ports.dtypes[k]) for k in ports.made]
        fed = [(shapes[k], numpy_dtype(ports.inputs[k].dtype)) for k in ports.fed]
        self._shape = ReturningShape(whole.call.tables(sizes), fed, made)
        self._is_small = not whole.writes_inputs and is_small([*fed, *made])

    @property
    def devices(self) -> Mapping[str, Device]:
        """The open devices, by name."""
        return self.whole.devices

    @property
    def static_graph(self) -> Graph:
        """The graph at these shapes."""
        return self.whole.closed.at(self._shapes)

    @cached_property
    def session(self) -> Closes:
        """A session of these shapes: with a plan, a profile and memory of its own."""
        return self.open_session()

    @property
    def moves(self) -> list[bool]:
        """Whether kernels are pointed at each input, then at each output, where it is."""
        ports = self.whole.ports
        fed = {ports.names[k] for k in ports.fed}
        made = set(ports.made_names)
        return [name in fed for name in ports.names] + [name in made for name in ports.output_names]

    def close(self) -> None:
        """Close the session, if one is open; runs need none, and may go on."""
        opened = self.__dict__.pop("session", None)
        if opened is not None:
            opened.close()

    def run(
        self, feeds: Mapping[str, Any], out: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        """Return the outputs by name.

        feeds: arrays of the inputs' dtypes and of these shapes
        Errors: RunError, if `out` is unknown or does not fit, or a kernel found wrong data
        """
        return self.run_arrays([feeds[name] for name in self.whole.ports.names], out)

    def run_arrays(
        self, arrays: Sequence[Array], out: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        """Return what `run` does, given the inputs in the graph's order."""
        whole = self.whole
        ports = whole.ports
        if tuple([array.shape for array in arrays]) != self._shapes:
            raise InternalError("arrays of other shapes than those of the tables")
        if out is None and self._is_small:
            made = whole.calls.run_small(self._shape, [arrays[k] for k in ports.fed])
        else:
            made = self._run_in_place([arrays[k] for k in ports.fed], out)
        results = {name: made[k] for name, k in ports.results}
        if ports.others or out is not None:
            self._finish(results, arrays, out or {})
        return results

    def _run_in_place(
        self, arrays: Sequence[Array], out: Mapping[str, Array] | None
    ) -> list[Array]:
        """Run kernels on arrays where they are, and return what they make."""
        laid = [laid_array(array) for array in arrays]
        made = (
            [np.empty(shape, dtype) for shape, dtype in self._shape.made]
            if out is None
            else self._targets(out, [array for array, _ in laid])
        )
        places = [place for _, place in laid] + [array.ctypes.data for array in made]
        self.whole.calls.run(self._shape.tables, places, self._shape)
        return made

    def _targets(self, out: Mapping[str, Array], read: Sequence[Array]) -> list[Array]:
        """Return the arrays that kernels write: those given where they can, else new ones."""
        ports = self.whole.ports
        check_targets(out, ports.output_names, ports.shapes(self._sizes), ports.dtypes)
        made: list[Array] = []
        for name, (shape, dtype) in zip(ports.made_names, self._shape.made, strict=True):
            target = out.get(name)
            if (
                target is None
                or not target.flags.carray
                or target.ctypes.data % _ALIGN
                or any(np.may_share_memory(target, array) for array in (*read, *made))
            ):
                target = None
            made.append(np.empty(shape, dtype) if target is None else target)
        return made

    def _finish(
        self, results: dict[str, Array], fed: Sequence[Array], out: Mapping[str, Array]
    ) -> None:
        """Add the outputs that no kernel makes, and write those that were given elsewhere."""
        ports, values = self.whole.ports, dict[str, Array]()
        for value in ports.outputs:
            array = results.get(value.name)
            if array is None:
                array = self._known(value, fed).copy()
            target = out.get(value.name, array)
            if target is not array:
                target[...] = array
            values[value.name] = target
        results.clear()
        results.update(values)

    def _known(self, value: Value, fed: Sequence[Array]) -> Array:
        """Return an output that is a constant, an input, or decided by shapes."""
        if value.data is not None:
            return value.data
        if value.id in self.whole.contents.ids:
            return self.whole.contents.array(value.id, self._sizes)
        return fed[self.whole.closed.graph.inputs.index(value.id)]


def laid_array(array: Array) -> tuple[Array, int]:
    """Return an array whose elements lie in order at an address that kernels expect, and this."""
    place: int = array.ctypes.data
    if place % _ALIGN or not array.flags.c_contiguous:
        array = array.copy()
        place = array.ctypes.data
    return array, place
