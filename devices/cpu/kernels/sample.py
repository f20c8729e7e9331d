"""Samples: static graphs whose varying sizes are huge numbers without a common structure.

What is equal in a sample, such as two sizes or a stride and a product of sizes, is equal for every
shape. So code that plans a kernel for one shape plans it for all: what is huge in the plan varies,
and becomes a word that the kernel reads; the same code gives the words of each shape.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, TypeVar

from trireme.devices.cpu.codegen.ir import Word
from trireme.devices.cpu.kernels.lowering import HUGE, varies
from trireme.devices.cpu.kernels.opaque import opaque
from trireme.devices.cpu.runtime.window_blocks import even_chunks
from trireme.ir.graph import UNKNOWN, Graph, Node, TensorType, Value
from trireme.ir.op import get_op
from trireme.support.errors import CompileError
from trireme.support.records import dataclass

__all__ = ["HUGE", "GenericSample", "deal_evenly", "generalised", "sample_of", "varies"]
_LARGEST_STEP = 1 << 6
"""A size of a sample is huge still when a stride or a block divides it."""
Plan = TypeVar("Plan")
Axis = tuple[int, int]
"""An axis of a value: its id, and the axis' number."""


@dataclass(frozen=True)
class GenericSample:
    """A sample of a graph with symbols, and the axes that must agree in a shape, by their size.

    usual: the graph with a small size in place of each huge one
    """

    graph: Graph
    axes: Mapping[int, tuple[Axis, ...]]
    usual: Graph

    def check(self, graph: Graph) -> None:
        """Raise if a shape does not have the structure of the sample.

        Errors: CompileError
        """
        values = graph.values
        for places in self.axes.values():
            sizes = {values[v].type.dims[axis] for v, axis in places if v in values}
            if len(sizes) > 1:
                value, axis = places[0]
                raise CompileError(
                    f"axis {axis} of '{self.graph.values[value].first_name}' and "
                    f"{len(places) - 1} others have sizes {sorted(sizes)}; the kernels are made "
                    "for equal ones",
                    fix="compile this shape by itself",
                )


def sample_of(graph: Graph) -> GenericSample:
    """Return the sample of a graph: a symbol has one size; unknown sizes are equal by inference."""
    names = _names(graph)
    numbers = random.Random(2024)
    sizes: dict[Any, int] = {}
    axes: dict[int, list[Axis]] = {}
    values: dict[int, Value] = {}
    for value in graph.values.values():
        shape = []
        for axis, dim in enumerate(value.shape):
            if isinstance(dim, str):
                name = names.get((value.id, axis), dim)
                if name not in sizes:
                    sizes[name] = _LARGEST_STEP * HUGE + numbers.randrange(HUGE // 2) * 2 + 1
                dim = sizes[name]
                axes.setdefault(dim, []).append((value.id, axis))
            shape.append(dim)
        type = TensorType(tuple(shape), value.dtype, value.quant)
        values[value.id] = value if value.type.is_static else replace(value, type=type)
    made = replace(graph, values=values, symbols={})
    return GenericSample(made, {size: tuple(places) for size, places in axes.items()}, _usual(made))


def _usual(graph: Graph) -> Graph:
    sizes: dict[int, int] = {}

    def small(dim: int) -> int:
        return sizes.setdefault(dim, 61 + 2 * len(sizes)) if varies(dim) else dim

    values = {}
    for value in graph.values.values():
        dims = tuple(map(small, value.type.dims))
        type = TensorType(dims, value.dtype, value.quant)
        values[value.id] = value if dims == value.type.dims else replace(value, type=type)
    return replace(graph, values=values)


def _names(graph: Graph) -> dict[Axis, Any]:
    """Return a name for each unknown size: the same for axes that ops make equal."""
    names: dict[Axis, Any] = {}

    def name(value: int, axis: int) -> Any:
        type = graph.type(value)
        dim = type.shape[axis] if type.has_rank else UNKNOWN
        return names.get((value, axis), (value, axis) if dim == UNKNOWN else dim)

    for node in graph.nodes:
        for output in node.outputs:
            shape = graph.type(output).shape
            for axis, dim in enumerate(shape):
                if dim == UNKNOWN:
                    source = _source(graph, node, len(shape), axis)
                    names[output, axis] = name(*source) if source else (output, axis)
    for value in graph.inputs:
        for axis, dim in enumerate(graph.type(value).shape):
            if dim == UNKNOWN:
                names[value, axis] = (value, axis)
    return names


def _source(graph: Graph, node: Node, rank: int, axis: int) -> Axis | None:
    """Return the axis of an input that an axis of an output is as long as, where an op says so."""
    op, used = node.op, node.used
    if op == "transpose":
        perm = node.attrs["perm"] or tuple(reversed(range(rank)))
        return used[0], perm[axis] % rank
    if op == "matmul" and axis >= rank - 2:
        side = used[axis == rank - 1]
        return side, len(graph.type(side).shape) - (rank - axis)
    rows = op in ("fully_connected", "layer_normalization", "rms_normalization", "softmax")
    if not (rows or op in ("log_softmax", "matmul") or get_op(op).elementwise):
        return None
    for value in used:
        shape = graph.type(value).shape
        own = axis - (rank - len(shape))
        if own >= 0 and shape[own] != 1 and (not rows or value == used[0]):
            return value, own
    return None


def generalised(plan: Plan, what: str) -> tuple[Plan, int, Callable[[Plan], tuple[int, ...]]]:
    """Return a sample's plan with Words, how many there are, and what takes them from a plan.

    what: names the kernel where another plan does not have the same structure
    """
    leaves = dict(_leaves(plan, "plan"))
    order = {leaf: path for path, leaf in reversed(leaves.items()) if varies(leaf)}
    fixed = tuple(leaf for leaf in leaves.values() if not varies(leaf))
    made: Plan = _with_words(plan, {leaf: k for k, leaf in enumerate(order)})
    take_words = _taker(order.values())
    take_fixed = _taker(path for path, leaf in leaves.items() if not varies(leaf))

    def words(other: Plan) -> tuple[int, ...]:
        try:
            if take_fixed(other) == fixed:
                return take_words(other)
        except (AttributeError, IndexError, TypeError):
            pass
        raise CompileError(
            f"{what}: this shape has another structure", fix="compile this shape by itself"
        )

    return made, len(order), words


def _taker(paths: Iterable[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that takes parts of a plan by paths such as "plan.q.batch[0]".

    It is compiled, because a shape that comes for the first time waits for it.
    """
    code = f"lambda plan: ({''.join(f'{path}, ' for path in paths)})"
    taker: Callable[[Any], tuple[Any, ...]] = eval(code)  # noqa: S307  paths are our fields' names
    return taker


def _fields(plan: Any) -> tuple[str, ...]:
    kind = type(plan)
    if kind not in _FIELDS:
        _FIELDS[kind] = tuple(f.name for f in fields(kind)) if is_dataclass(kind) else ()
    return _FIELDS[kind]


_FIELDS: dict[Any, tuple[str, ...]] = {}
"""The fields of the dataclasses that were asked for; looking them up takes long."""


def _leaves(plan: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the numbers and texts of a plan, each with the path to it."""
    if isinstance(plan, (int, str, float)) or plan is None:
        yield path, plan
        return
    if isinstance(plan, tuple):
        yield f"len({path})", len(plan)
        for k, part in enumerate(plan):
            yield from _leaves(part, f"{path}[{k}]")
        return
    for name in _fields(plan):
        yield from _leaves(getattr(plan, name), f"{path}.{name}")


def _with_words(plan: Any, places: Mapping[int, int]) -> Any:
    if varies(plan):
        return Word(places[plan])
    if isinstance(plan, tuple):
        return tuple(_with_words(part, places) for part in plan)
    names = _fields(plan)
    if names:
        return replace(plan, **{n: _with_words(getattr(plan, n), places) for n in names})
    return plan


def deal_evenly(total: int, seconds: float) -> tuple[int, int]:
    """Return what `even_chunks` does; a recording of sizes notes the call alone."""
    size, chunks = opaque(_EVENLY, total, seconds)
    return size, chunks


_EVENLY = partial(even_chunks)
