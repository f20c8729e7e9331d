"""Which sizes a graph refuses: the nodes whose type inference some sizes fail, and no others.

A closed graph has all its shapes as expressions. So a new set of sizes needs no inference, but for
what inference refuses: sizes that must agree, or an image smaller than a window. A node that passes
at sizes without a common structure does not want sizes to agree or to divide. One that passes at
the least and at the most sizes too wants none to be larger or smaller. Such a node is never asked
again. An op with windows is asked where an output dimension is below 1. Any other node is asked
whenever its sizes change.
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Iterator, Mapping, Sequence

from trireme.ir.alike import likeness
from trireme.ir.decided import DecidedValues
from trireme.ir.dim_values import Numbers, evaluator, picker
from trireme.ir.dims import Bounds, symbols_of
from trireme.ir.graph import Dim, Graph, Node, TensorType, Value
from trireme.ir.op import get_op
from trireme.ir.verify import infer_types
from trireme.support.dtypes import Array
from trireme.support.errors import CompileError, TriremeError

_LARGE = 1 << 20
"""The largest sample of a symbol without a bound."""
_DRAWN = 4
"""Samples of sizes without a common structure."""


_Sample = tuple[Numbers, Mapping[Dim, int], Mapping[int, Array]]
"""Sizes, with the dimensions and the known contents at them."""


class _Check:
    """A node whose types are inferred at sizes that it has not seen last."""

    def __init__(self, node: Node, symbols: frozenset[str], names: Sequence[str]) -> None:
        self.node = node
        self.pick = picker([k for k, name in enumerate(names) if name in symbols])
        self.passed: Numbers | None = None


class SizeChecks:
    """The checks of a closed graph at given sizes of its symbols.

    asked: how often a node was asked, of all sizes
    """

    def __init__(self, graph: Graph, decided: DecidedValues) -> None:
        self._graph, self._decided, names = graph, decided, decided.names
        self.asked = 0
        dims = dict.fromkeys(dim for value in graph.values.values() for dim in value.shape)
        self._dims, self._numbers = tuple(dims), evaluator(dims, names)
        told = {value: decided.key(value) for value in decided.ids}
        groups: dict[Hashable, Node] = {}
        for node in graph.nodes:
            groups.setdefault(likeness(graph, [node], told), node)
        samples = [(sizes, *self._at(sizes)) for sizes in _samples(graph.symbols, names)]
        checks = [_Check(node, self._symbols(node), names) for node in groups.values()]
        slides = [_slides(graph, check.node) for check in checks]
        self._spaces = evaluator({d: None for found in slides for d in found or ()}, names)
        self._checks, self._small = list[_Check](), list[_Check]()
        for check, found in zip(checks, slides, strict=True):
            is_asked = found is None and not self._is_free(check, samples)
            if is_asked:
                self._checks.append(check)
            if is_asked or found:
                self._small.append(check)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes that are asked where all windows fit, one of those alike."""
        return tuple(check.node for check in self._checks)

    def _is_free(self, check: _Check, samples: Sequence[_Sample]) -> bool:
        """Whether a node passes at all samples; one that differs in other symbols is none."""
        own = {check.pick(sizes): (dims, known) for sizes, dims, known in samples}
        return all(_passes(self._graph, check.node, *known) for known in own.values())

    def check(self, sizes: Numbers) -> None:
        """Raise what inference raises at these sizes.

        Errors: ShapeError, RunError or GraphError of a node; CompileError, if a node makes another
        shape than its expression says
        """
        dims: dict[Dim, int] = {}
        for check in self._checks if min(self._spaces(*sizes), default=1) >= 1 else self._small:
            key = check.pick(sizes)
            if check.passed != key:
                dims = dims or dict(zip(self._dims, self._numbers(*sizes), strict=True))
                self._ask(check.node, sizes, dims)
                check.passed = key

    def _ask(self, node: Node, sizes: Numbers, dims: Mapping[Dim, int]) -> None:
        self.asked += 1
        ids = self._decided.ids
        if node.outputs[0] in ids:
            found = [self._decided.array(out, sizes).shape for out in node.outputs]
        else:
            inputs = [
                None
                if i is None
                else _sized(
                    self._graph.values[i], dims, self._decided.array(i, sizes) if i in ids else None
                )
                for i in node.inputs
            ]
            found = [type.shape for type in _types(node, inputs)]
        for out, shape in zip(node.outputs, found, strict=True):
            expected = tuple(dims[dim] for dim in self._graph.type(out).shape)
            if shape != expected:
                raise CompileError(
                    f"{node.label} makes {list(shape)} here, its kernel {list(expected)}",
                    fix="compile this shape by itself",
                )

    def _symbols(self, node: Node) -> frozenset[str]:
        types = (self._graph.type(value) for value in (*node.used, *node.outputs))
        found = {name for type in types for dim in type.shape for name in symbols_of(dim)}
        for value in (*node.used, *node.outputs):
            if value in self._decided.ids:
                found |= self._decided.symbols(value)
        return frozenset(found)

    def _at(self, sizes: Numbers) -> tuple[dict[Dim, int], dict[int, Array]]:
        """Return the dimensions and the known contents at some sizes."""
        contents = self._decided.expressions
        dims: dict[Dim, int] = dict(zip(self._dims, self._numbers(*sizes), strict=True))
        texts = {one for array in contents.values() for one in array.reshape(-1).tolist()}
        numbers = dict(zip(texts, evaluator(texts, self._decided.names)(*sizes), strict=True))
        made = {}
        for value, array in contents.items():
            made[value] = array.copy()
            made[value].reshape(-1)[:] = [numbers[one] for one in array.reshape(-1).tolist()]
        return dims, made


def _slides(graph: Graph, node: Node) -> set[Dim] | None:
    """Return the open dimensions along which windows slide; None where more may be refused."""
    if not get_op(node.op).windows:
        return None
    image, *others = (graph.type(value).shape for value in node.used)
    made = graph.type(node.outputs[0]).shape
    channel = -1 if node.attrs["layout"] == "NHWC" else 1
    agree = all(other == made or all(isinstance(d, int) for d in other) for other in others)
    if not agree or isinstance(image[channel], str):
        return None
    return {dim for dim in made[1:] if isinstance(dim, str)}


def _samples(symbols: Mapping[str, Bounds], names: Sequence[str]) -> Iterator[Numbers]:
    """Yield sizes: all least, all most, one at its least or most, and drawn ones."""
    rng = random.Random(7)
    bounds = [symbols.get(name, (0, None)) for name in names]
    least = [max(low, 1) for low, _ in bounds]
    most = [_LARGE if high is None else max(high, 1) for _, high in bounds]
    drawn = [[_drawn(rng, *ends) for ends in zip(least, most, strict=True)] for _ in range(_DRAWN)]
    yield tuple(least)
    yield tuple(most)
    yield from map(tuple, drawn)
    for k in range(len(names)):
        for ends, others in ((least, most), (most, least), (least, drawn[0]), (most, drawn[1])):
            yield (*others[:k], ends[k], *others[k + 1 :])


def _drawn(rng: random.Random, least: int, most: int) -> int:
    """Return a size between bounds, which no small number divides where there is one."""
    tries = [rng.randint(least, most) for _ in range(64)]
    return next((size for size in tries if math.gcd(size, 2 * 3 * 5 * 7 * 11) == 1), tries[0])


def _passes(
    graph: Graph, node: Node, dims: Mapping[Dim, int], contents: Mapping[int, Array]
) -> bool:
    """Whether inference at a sample gives what the expressions of the outputs say."""
    values = [None if i is None else graph.values[i] for i in node.inputs]
    dims_used = (dims[dim] for value in values if value is not None for dim in value.shape)
    if any(size < 0 for size in dims_used):
        return False
    inputs = [
        None if value is None else _sized(value, dims, contents.get(value.id)) for value in values
    ]
    try:
        types = _types(node, inputs)
    except TriremeError:
        return False
    expected = [tuple(dims[dim] for dim in graph.type(out).shape) for out in node.outputs]
    return [type.shape for type in types] == expected


def _types(node: Node, inputs: Sequence[Value | None]) -> Sequence[TensorType]:
    return infer_types(get_op(node.op), inputs, node.attrs, len(node.outputs), node.label)


def _sized(value: Value, dims: Mapping[Dim, int], data: Array | None) -> Value:
    data = value.data if data is None else data
    type = TensorType(tuple([dims[dim] for dim in value.shape]), value.dtype, value.quant)
    return Value(value.id, value.name, type, data)
