"""Values that shapes decide whose contents are windows of contents that no size changes.

The positions 0, 1, 2 .. of a longer past begin with those of a shorter one. The positions of new
tokens are the same numbers, from the length of the past on. So both are computed for more sizes at
once, and each size takes its part: along each axis as many elements as the value has, from an
offset on that sizes tell.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from trireme.ir.dims import add, symbols_of
from trireme.ir.graph import UNKNOWN, Dim, Graph, Node
from trireme.ir.op import get_op
from trireme.support.dtypes import INTS, Array

Offsets = tuple[Dim, ...]
"""Where a window begins, by axis."""


def find_windows(
    graph: Graph,
    ids: Collection[int],
    symbols: Mapping[int, frozenset[str]],
    expressions: Mapping[int, Array],
) -> dict[int, Offsets]:
    """Return those decided values that are such, with the offsets of their windows.

    ids: the decided values; symbols: those that decide each
    expressions: the elements of decided values that are expressions of symbols
    """
    windows = _Windows(graph, symbols, expressions)
    for node in graph.nodes:
        if len(node.outputs) == 1 and node.outputs[0] in ids:
            windows.add(node)
    return windows.found


class _Windows:
    """The windows among the values of a graph, node by node.

    found: the offsets, by value
    """

    def __init__(
        self,
        graph: Graph,
        symbols: Mapping[int, frozenset[str]],
        expressions: Mapping[int, Array],
    ) -> None:
        self._graph, self._symbols, self._expressions = graph, symbols, expressions
        self.found: dict[int, Offsets] = {}
        self._counts: set[int] = set()

    def add(self, node: Node) -> None:
        """Note the result of a node if it is a window, given its inputs that are."""
        op, made = get_op(node.op), self._graph.type(node.outputs[0]).shape
        if UNKNOWN in made or op.random or op.effect:
            return
        offsets = self._offsets(node, made)
        if offsets is None or not all(_can_move(*axis) for axis in zip(made, offsets, strict=True)):
            return
        self.found[node.outputs[0]] = offsets
        if self._is_count(node):
            self._counts.add(node.outputs[0])

    def _offsets(self, node: Node, made: Sequence[Dim]) -> Offsets | None:
        """Return the offsets of a node's result, None where it is no window."""
        op, first = get_op(node.op), node.used[0]
        if node.op == "range":  # its limit only says how long it is
            start, _, delta = node.used
            if not self._graph.values[delta].is_constant:
                return None
            if self._graph.values[start].is_constant:
                return (0,)
            number = self._number(start)
            return None if number is None or not self._is_one(delta) else (number,)
        if op.alias:
            return self._reshaped(node, made)
        if node.op == "add" and (moved := self._moved(node, made)) is not None:
            return moved
        if op.elementwise:
            return self._joined(node.used, made)
        if node.op == "slice":
            return self._sliced(node)
        if node.op in ("gather", "gather_elements"):
            return self._picked(node)
        does = None if op.axes is None else op.axes.does
        if does == "repeats":
            return self._joined((first,), made)
        if does == "joins":
            axis = node.attrs["axis"] % len(made)
            dims = [self._graph.type(value).shape[axis] for value in node.used]
            return self._beside(node.used, axis) if all(isinstance(n, int) for n in dims) else None
        return None

    def _known(self, value: int) -> Offsets | None:
        """Return the offsets of an input; none move where no size decides it."""
        if self._graph.values[value].is_constant or self._symbols.get(value) == frozenset():
            return (0,) * len(self._graph.type(value).shape)
        return self.found.get(value)

    def _joined(self, values: Sequence[int], made: Sequence[Dim]) -> Offsets | None:
        """Return the offsets of a result whose axes are those of inputs, or repeat one element."""
        offsets: dict[int, Dim] = {}
        for value in values:
            shape, own = self._graph.type(value).shape, self._known(value)
            if own is None or len(shape) > len(made):
                return None
            for axis, (dim, offset) in enumerate(
                zip(shape, own, strict=True), len(made) - len(shape)
            ):
                if dim not in (1, made[axis]) and not _is_cut(dim, made[axis]):
                    return None
                if dim != 1 and offsets.setdefault(axis, offset) != offset:
                    return None
        return tuple(offsets.get(axis, 0) for axis in range(len(made)))

    def _sliced(self, node: Node) -> Offsets | None:
        """Return the offsets of a slice of a constant."""
        table, *others = (self._graph.values[value].data for value in node.used)
        return None if table is None else _begins(table.ndim, others)

    def _picked(self, node: Node) -> Offsets | None:
        """Return the offsets of parts of a constant at places that are a window."""
        table = self._graph.values[node.used[0]].data
        if table is None:
            return None
        rank = table.ndim
        at, axis = self._known(node.used[1]), node.attrs["axis"] % max(rank, 1)
        if at is None or node.attrs.get("batch_dims", 0):
            return None
        if node.op == "gather":
            return ((0,) * axis + at + (0,) * (rank - axis - 1)) if rank else None
        return at if all(offset == 0 or k == axis for k, offset in enumerate(at)) else None

    def _beside(self, values: Sequence[int], axis: int) -> Offsets | None:
        """Return the offsets of inputs that are joined along an axis."""
        found = {self._known(value) for value in values}
        (offsets,) = found if len(found) == 1 else (None,)
        return offsets if offsets is not None and offsets[axis] == 0 else None

    def _reshaped(self, node: Node, made: Sequence[Dim]) -> Offsets | None:
        """Return the offsets of a value that has other axes of one element."""
        first, out = self._graph.type(node.used[0]), self._graph.type(node.outputs[0])
        own = self._known(node.used[0])
        if own is None or first.dtype != out.dtype or _long(first.shape) != _long(made):
            return None
        pairs = zip(first.shape, own, strict=True)
        moved = iter([offset for dim, offset in pairs if dim != 1])
        return tuple(0 if dim == 1 else next(moved) for dim in made)

    def _moved(self, node: Node, made: Sequence[Dim]) -> Offsets | None:
        """Return the offsets of 0, 1, 2 .. and a number that sizes tell, which moves them."""
        for value, other in (node.used, node.used[::-1]):
            number = self._number(other)
            if value in self._counts and number is not None and not node.attrs.get("activation"):
                own = self._joined((value,), made)
                if own is not None and len(_long(made)) == 1:
                    return tuple(
                        o if dim == 1 else add(o, number) for dim, o in zip(made, own, strict=True)
                    )
        return None

    def _is_count(self, node: Node) -> bool:
        """Whether the result of a node is 0, 1, 2 .. from the offset on, and perhaps a number."""
        out = node.outputs[0]
        if self._graph.type(out).dtype not in INTS:
            return False
        if node.op == "range":
            return self._is_one(node.used[2])
        if get_op(node.op).alias:
            return node.used[0] in self._counts
        return node.op == "add" and any(
            value in self._counts and self._number(other) is not None
            for value, other in (node.used, node.used[::-1])
        )

    def _number(self, value: int) -> Dim | None:
        """Return the one element of a value that sizes decide, as an expression of symbols."""
        elements = self._expressions.get(value)
        if elements is None or elements.size != 1 or not self._symbols.get(value):
            return None
        number: Dim = elements.reshape(-1).tolist()[0]
        return number

    def _is_one(self, value: int) -> bool:
        data = self._graph.values[value].data
        return data is not None and data.size == 1 and data.reshape(-1)[0] == 1


def _begins(rank: int, given: Sequence[Array | None]) -> Offsets | None:
    """Return where a slice begins, given starts, ends, axes and steps; ends say its length."""
    starts, _, axes, steps = (*given, None, None)[:4]
    if starts is None or (len(given) > 2 and axes is None) or (len(given) > 3 and steps is None):
        return None
    ones = [1] * len(starts) if steps is None else steps.tolist()
    if any(step != 1 for step in ones) or any(start < 0 for start in starts.tolist()):
        return None
    places = range(len(starts)) if axes is None else [axis % rank for axis in axes.tolist()]
    begins = dict(zip(places, starts.tolist(), strict=True))
    return tuple(begins.get(axis, 0) for axis in range(rank))


def _is_cut(dim: Dim, made: Dim) -> bool:
    """Whether a dimension is another one up to a bound: beyond it the two do not go together."""
    first, _, bound = str(dim).partition("(")[2].rpartition(")")[0].partition(",")
    return str(dim).startswith("min(") and first.isdigit() and int(first) > 1 and bound == made


def _can_move(dim: Dim, offset: Dim) -> bool:
    """Whether more of an axis can be computed beyond a window: if a symbol of its own says so."""
    return offset == 0 or (offset != UNKNOWN and bool(symbols_of(dim) - symbols_of(offset)))


def _long(shape: Sequence[Dim]) -> list[Dim]:
    """Return the axes that have more than one element at some size."""
    return [dim for dim in shape if dim != 1]
