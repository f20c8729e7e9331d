"""Compute contents of values that follow from sizes, and keep them until these sizes change.

A decoder whose past grows asks again at every token. Most of these values depend on few symbols,
and type inference alone needs many of them. So each is computed when somebody asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from trireme.ir.contents import MOST_ELEMENTS, contents_of, decided_by_shapes
from trireme.ir.dim_values import Numbers, evaluator, picker
from trireme.ir.dims import symbols_of
from trireme.ir.effects import aligned_memory
from trireme.ir.graph import UNKNOWN, Dim, Graph, Node, TensorType
from trireme.ir.interpreter import evaluate, is_quantized
from trireme.ir.op import get_op
from trireme.ir.prefixes import find_windows
from trireme.support.dtypes import INTS, Array, dtype_name, numpy_dtype
from trireme.support.errors import InternalError, TriremeError

_LEAST_AHEAD = 64
"""A size that grew is taken for this at least; a window that moved gets so many more elements."""
_MOST_AHEAD = 1 << 18
"""Contents of more elements are computed for the sizes that are asked for, and no others."""
_ROW = 64
"""Elements of which a row of contents has a multiple, so that each row begins at 64 bytes."""


class DecidedValues:
    """The values of a graph that its symbols' sizes decide.

    names: the symbols, in the order in which sizes are given
    ids: the values
    expressions: the elements of those values that are expressions of symbols
    windows: those that are windows of contents that no size changes (ir/prefixes.py)
    computed: how many nodes were computed, of all sizes
    """

    def __init__(self, graph: Graph, names: Sequence[str]) -> None:
        self.graph, self.names = graph, tuple(names)
        self.ids = decided_by_shapes(graph)
        self.expressions = _expressions(graph, self.ids, frozenset(names))
        self.computed = 0
        self._symbols: dict[int, frozenset[str]] = {}
        for node in graph.nodes:
            if node.outputs[0] in self.ids:
                self._find_symbols(node)
        self._sources: dict[int, Callable[[Numbers], Mapping[int, Array]]] = {}
        self._picks: dict[int, Callable[[Numbers], Numbers]] = {}
        self._kept: dict[int, tuple[Numbers, Array]] = {}
        self.windows = find_windows(graph, self.ids, self._symbols, self.expressions)
        self._ahead: dict[int, _Window] = {}

    def symbols(self, value: int) -> frozenset[str]:
        """Return the symbols that decide a value."""
        return self._symbols[value]

    def key(self, value: int) -> Hashable:
        """Return what is equal for values of equal contents at all sizes."""
        found = self.expressions.get(value)
        return ("decided", value if found is None else repr(found.tolist()))

    def array(self, value: int, sizes: Numbers) -> Array:
        """Return a value's contents at some sizes.

        Errors: RunError, if a node refuses them
        """
        if value not in self._sources:
            self._prepare(value)
        key = self._picks[value](sizes)
        kept = self._kept.get(value)
        if kept is not None and kept[0] == key:
            return kept[1]
        if kept is not None and value in self._ahead:
            return self._part(self._ahead[value], sizes)
        self.computed += 1
        made = self._sources[value](sizes)
        for out, array in made.items():
            self._kept[out] = key, array
        return made[value]  # another thread may keep those of other sizes by now

    def _part(self, window: _Window, sizes: Numbers) -> Array:
        """Return the part of contents that were computed for more sizes."""
        part = window.part(sizes)
        if part is not None:
            return part
        self.computed += 1
        compute, large = self._sources[window.value], window.larger(sizes)
        if window.elements(large) <= _MOST_AHEAD:
            try:
                window.keep(compute(large)[window.value], large)
            except TriremeError:  # a table that is looked up ends before
                self._ahead.pop(window.value, None)
            part = window.part(sizes)  # another thread may keep others, and an axis may shrink
        return compute(sizes)[window.value] if part is None else part

    def _find_symbols(self, node: Node) -> None:
        """Find the symbols that decide what a node makes."""
        known = self._symbols
        found = frozenset().union(*(known[i] for i in node.used if i in known))
        known |= dict.fromkeys(node.outputs, found)
        for out in node.outputs:
            if out in self.expressions:
                elements = self.expressions[out].reshape(-1).tolist()
                known[out] = frozenset().union(*map(symbols_of, elements))

    def _prepare(self, value: int) -> None:
        """Find how a value is computed."""
        symbols = self._symbols[value]
        self._picks[value] = picker([k for k, name in enumerate(self.names) if name in symbols])
        node = self.graph.producer(value)
        if node is None:
            raise InternalError(f"%{value} is decided by no node")
        if value in self.windows:
            shape = self.graph.type(value).shape
            self._ahead[value] = _Window(value, shape, self.windows[value], self.names)
        if value in self.expressions:
            self._sources[value] = self._evaluated(value)
        else:
            self._sources[value] = self._computed(node)

    def _evaluated(self, value: int) -> Callable[[Numbers], Mapping[int, Array]]:
        """Return what computes expressions."""
        elements = self.expressions[value]
        numbers = evaluator(elements.reshape(-1).tolist(), self.names)
        dtype, shape = numpy_dtype(self.graph.type(value).dtype), elements.shape
        return lambda sizes: {value: np.array(numbers(*sizes), dtype).reshape(shape)}

    def _computed(self, node: Node) -> Callable[[Numbers], Mapping[int, Array]]:
        """Return what computes a node by its reference."""
        graph, reference, attrs = self.graph, get_op(node.op).reference, node.attrs
        dtypes = [numpy_dtype(graph.type(out).dtype) for out in node.outputs]
        is_plain = not is_quantized(graph, node)
        if is_plain and get_op(node.op).alias and graph.type(node.used[0]).dtype == dtypes[0]:
            return self._reshaped(node)

        def compute(sizes: Numbers) -> dict[int, Array]:
            arrays = [self._operand(i, sizes) for i in node.inputs]
            made: Any = None
            if is_plain:
                try:
                    made = reference(*arrays, **attrs)
                except Exception:  # `evaluate` names the node
                    made = None
            if made is None:
                made = evaluate(graph, node, arrays)
            elif not isinstance(made, tuple):
                made = (made,)
            return {
                out: np.asarray(array, dtype)
                for out, array, dtype in zip(node.outputs, made, dtypes, strict=False)
            }

        return compute

    def _reshaped(self, node: Node) -> Callable[[Numbers], Mapping[int, Array]]:
        """Return what gives the contents of a node's first input another shape."""
        source, out = node.used[0], node.outputs[0]
        shape = evaluator(self.graph.type(out).shape, self.names)

        def reshape(sizes: Numbers) -> dict[int, Array]:
            data = self._operand(source, sizes)
            return {} if data is None else {out: data.reshape(shape(*sizes))}

        return reshape

    def _operand(self, value: int | None, sizes: Numbers) -> Array | None:
        if value is None:
            return None
        data = self.graph.values[value].data
        return self.array(value, sizes) if data is None else data


class _Window:
    """Contents of a value for sizes that may still come, and the part that some sizes take."""

    def __init__(
        self, value: int, shape: Sequence[Dim], offsets: Sequence[Dim], names: Sequence[str]
    ) -> None:
        self.value, self._shape = value, evaluator(shape, names)
        self._axes = [axis for axis, dim in enumerate(shape) if not isinstance(dim, int)]
        self._every = [slice(None)] * len(shape)
        self._dims = evaluator([shape[axis] for axis in self._axes], names)
        self._offsets = evaluator([offsets[axis] for axis in self._axes], names)
        moving = frozenset().union(*map(symbols_of, offsets))
        growing = frozenset().union(*map(symbols_of, shape)) - moving
        self._grows = [name in growing for name in names]
        self._moves = bool(moving)
        self._whole: tuple[Array, Numbers] | None = None
        self._most: Numbers = (0,) * len(names)

    def elements(self, sizes: Numbers) -> int:
        """Return how many elements there are at some sizes."""
        return math.prod(self._shape(*sizes))

    def part(self, sizes: Numbers) -> Array | None:
        """Return the contents at some sizes, None where more must be computed."""
        if self._whole is None:
            return None
        whole, starts = self._whole
        cut = self._every.copy()
        ends = zip(self._axes, self._dims(*sizes), self._offsets(*sizes), starts, strict=True)
        for axis, size, offset, start in ends:
            first = offset - start
            if first < 0 or first + size > whole.shape[axis]:
                return None
            cut[axis] = slice(first, first + size)
        return whole[tuple(cut)]

    def larger(self, sizes: Numbers) -> Numbers:
        """Return sizes whose contents have those of some sizes, and those of sizes to come."""
        rows = zip(sizes, self._most, self._grows, strict=True)
        if self._moves:
            return tuple([n + _LEAST_AHEAD if grows else n for n, _, grows in rows])
        return tuple(
            [
                (m if n <= m else 1 << (max(n, _LEAST_AHEAD) - 1).bit_length()) if grows else n
                for n, m, grows in rows
            ]
        )

    def keep(self, made: Array, sizes: Numbers) -> None:
        """Keep the contents at some sizes; parts begin where kernels read them, if they can."""
        *outer, inner = made.shape
        room = (*outer, -(-inner // _ROW) * _ROW) if self._moves else made.shape
        whole = aligned_memory(TensorType(room, dtype_name(made.dtype)))[..., :inner]
        whole[...] = made
        self._whole, self._most = (whole, self._offsets(*sizes)), sizes


def _expressions(graph: Graph, ids: frozenset[int], names: frozenset[str]) -> dict[int, Array]:
    """Return the elements of decided values that are expressions of these symbols."""
    known: dict[int, Array] = {}
    for node in graph.nodes:
        out = node.outputs[0]
        if out not in ids or graph.type(out).dtype not in INTS:
            continue
        found = contents_of(graph, node, known)
        if found is None or found.size > MOST_ELEMENTS or found.shape != graph.type(out).shape:
            continue
        elements = found.reshape(-1).tolist()
        if UNKNOWN not in elements and all(symbols_of(one) <= names for one in elements):
            known[out] = found
    return known
