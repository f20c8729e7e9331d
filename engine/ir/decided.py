"""What shapes decide: contents of values that follow from sizes, kept until these sizes change.

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
from trireme.ir.graph import UNKNOWN, Graph, Node, TensorType
from trireme.ir.interpreter import evaluate, is_quantized
from trireme.ir.op import get_op
from trireme.ir.prefixes import find_prefixed
from trireme.support.dtypes import INTS, Array, dtype_name, numpy_dtype
from trireme.support.errors import InternalError

_LEAST_AHEAD = 64
"""A size that grew is taken for this at least."""
_MOST_AHEAD = 1 << 18
"""Contents of more elements are computed for the sizes that are asked for, and no others."""


class DecidedValues:
    """The values of a graph that its symbols' sizes decide.

    names: the symbols, in the order in which sizes are given
    ids: the values
    expressions: the elements of those values that are expressions of symbols
    prefixed: those whose contents begin with those of smaller sizes
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
        self.prefixed = find_prefixed(graph, self.ids, self._symbols)
        self._shapes: dict[int, Callable[..., Numbers]] = {}

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
        if kept is not None and value in self._shapes:
            return self._part(value, sizes, key, kept)
        self.computed += 1
        made = self._sources[value](sizes)
        for out, array in made.items():
            self._kept[out] = key, array
        return made[value]  # another thread may keep those of other sizes by now

    def _part(self, value: int, sizes: Numbers, key: Numbers, kept: tuple[Numbers, Array]) -> Array:
        """Return the first elements of contents that were computed for larger sizes."""
        most, whole = kept
        if any([n > m for n, m in zip(key, most, strict=True)]):
            self.computed += 1
            most, whole = self._kept[value] = self._ahead(value, sizes, key, most)
        return whole[tuple([slice(n) for n in self._shapes[value](*sizes)])]

    def _ahead(
        self, value: int, sizes: Numbers, key: Numbers, most: Numbers
    ) -> tuple[Numbers, Array]:
        """Return contents for sizes that may still come, and these sizes of their symbols."""
        ends = zip(key, most, strict=True)
        most = tuple(m if n <= m else 1 << (max(n, _LEAST_AHEAD) - 1).bit_length() for n, m in ends)
        room, names = iter(most), self._symbols[value]
        pairs = zip(self.names, sizes, strict=True)
        large = tuple(next(room) if name in names else size for name, size in pairs)
        if math.prod(self._shapes[value](*large)) > _MOST_AHEAD:
            return key, self._sources[value](sizes)[value]
        made = self._sources[value](large)[value]
        whole = aligned_memory(TensorType(made.shape, dtype_name(made.dtype)))
        whole[...] = made
        return most, whole

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
        if value in self.prefixed:
            self._shapes[value] = evaluator(self.graph.type(value).shape, self.names)
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
