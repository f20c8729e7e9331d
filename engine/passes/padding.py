"""Run a graph at larger sizes of some symbols: prove that what is added reaches no result.

Inputs get more elements at the end of the axes whose lengths have the symbols. The proof follows
these axes node by node, by the axis maps of the ops. Where an op would count added elements, and
some value is neutral for it (0 of a sum, -infinity of a softmax), the graph gets a mask: an input
that says which elements are inside, and a node that gives all others the neutral value. What
nothing makes harmless is an error that names the node.

An axis is followed as its factors, so that a reshape may join it with others and part them again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trireme.ir.axis_factors import Factors, product, regrouped
from trireme.ir.axis_map import AxisUse
from trireme.ir.dims import simplified, symbols_of
from trireme.ir.graph import Dim, Graph, Node, TensorType, Value
from trireme.ir.op import Call, get_op
from trireme.ops.axis_maps import axis_map_of
from trireme.support.dtypes import INTS, Array, itemsize, numpy_dtype
from trireme.support.errors import ShapeError


@dataclass(frozen=True)
class Mask:
    """An input of the padded graph: `inside` at the first elements, `outside` at those added.

    length: of its first axis; all other axes have one element
    """

    length: Dim
    type: TensorType
    inside: Array
    outside: Array


@dataclass(frozen=True)
class Decided:
    """A value that is known before a run. Its first elements must not depend on the added ones.

    below: where its elements name places along an axis, the length of the axis. They must be 0 or
        more, and those of the true sizes must lie within the true length
    part: which element of the last axis names such places; None where all do
    """

    value: int
    below: Dim | None = None
    part: int | None = None


@dataclass(frozen=True)
class Padded:
    """A graph that may run at larger sizes of its symbols.

    graph: with the masks as its last inputs
    outputs: the factors of the axes of each output, to cut them by
    decided: what has to be looked at for each size
    """

    graph: Graph
    masks: tuple[Mask, ...]
    outputs: tuple[Factors, ...]
    decided: tuple[Decided, ...]


def padded(graph: Graph, symbols: Sequence[str], contents: Mapping[int, Array]) -> Padded:
    """Return the graph that may run at larger sizes of symbols.

    contents: the values that shapes decide, at some size
    Errors: ShapeError, if added elements reach a result, with the first node where they do
    """
    return _Proof(graph, frozenset(symbols), contents).run()


@dataclass
class _Proof:
    """The state of a proof: factors of axes, known values of added elements, and masks."""

    graph: Graph
    symbols: frozenset[str]
    contents: Mapping[int, Array]
    factors: dict[int, Factors] = field(default_factory=dict)
    fills: dict[tuple[int, int], float] = field(default_factory=dict)
    decided: dict[Decided, Decided] = field(default_factory=dict)
    masked: dict[tuple[int, int, float], int] = field(default_factory=dict)
    inputs: dict[tuple[object, ...], tuple[int, Mask]] = field(default_factory=dict)

    def run(self) -> Padded:
        self.values = dict(self.graph.values)
        self.next_node = max((node.id for node in self.graph.nodes), default=0) + 1
        self.nodes: list[Node] = []
        for value in self.graph.input_values():
            if _has_zeros(value):
                self.fills |= {(value.id, axis): 0.0 for axis in range(len(value.shape))}
        for node in self.graph.nodes:
            self.nodes.append(node if self._is_untouched(node) else self._followed(node))
        added = [value for value, _ in self.inputs.values()]
        graph = replace(
            self.graph,
            inputs=(*self.graph.inputs, *added),
            nodes=tuple(self.nodes),
            values=self.values,
        )
        masks = tuple(mask for _, mask in self.inputs.values())
        outputs = tuple(self._factors(value) for value in graph.outputs)
        return Padded(graph, masks, outputs, tuple(self.decided.values()))

    def _is_untouched(self, node: Node) -> bool:
        """Whether a node has no axis to follow. What shapes decide may still reach its results."""
        if all(out in self.contents for out in node.outputs):
            return True
        if any(self._is_open(d) for v in (*node.used, *node.outputs) for d in self._dims(v)):
            return False
        if not get_op(node.op).alias:
            for value in node.used:
                self._look_at(value)
        return True

    def _look_at(self, value: int, below: Dim | None = None, part: int | None = None) -> None:
        """Note that a value that shapes decide is checked for each size."""
        if value in self.contents or below is not None:
            one = Decided(value, below, part)
            self.decided[one] = one

    def _dims(self, value: int) -> tuple[Dim, ...]:
        symbols = self.graph.symbols
        return tuple(simplified(dim, symbols) for dim in self.values[value].shape)

    def _is_open(self, dim: Dim) -> bool:
        return not self.symbols.isdisjoint(symbols_of(dim))

    def _factors(self, value: int) -> Factors:
        found = self.factors.get(value)
        return tuple((dim,) for dim in self._dims(value)) if found is None else found

    def _followed(self, node: Node) -> Node:
        """Return the node on masked inputs where it needs any."""
        op = get_op(node.op)
        if op.is_host_only or op.random:
            raise _refused(node, "what it does along its axes is not known")
        if op.alias:
            self._view(node)
            return node
        values = [None if v is None else self._with_contents(v) for v in node.inputs]
        types = tuple(replace(self.values[v].type, shape=self._dims(v)) for v in node.outputs)
        axes = axis_map_of(op, Call(tuple(values), types, node.attrs))
        if axes is None:
            raise _refused(node, "what it does along its axes is not known")
        inputs = list(node.inputs)
        for position, value in enumerate(node.inputs):
            if value is None or position in axes.sizes:
                continue
            self._look_at(value)
            for axis, factors in enumerate(self._factors(value)):
                if not any(map(self._is_open, factors)):
                    continue
                use = axes.uses.get((position, axis), AxisUse(refused="it mixes the axis"))
                self._check(node, use, value, axis, len(factors))
                if use.needs is not None:
                    inputs[position] = self._masked(node, inputs[position], axis, use.needs)
        self._follow_outputs(node, axes.uses, bool(axes.sizes))
        return replace(node, inputs=tuple(inputs))

    def _with_contents(self, value: int) -> Value:
        known = replace(
            self.values[value], type=replace(self.values[value].type, shape=self._dims(value))
        )
        return replace(known, data=self.contents[value]) if value in self.contents else known

    def _check(self, node: Node, use: AxisUse, value: int, axis: int, factors: int) -> None:
        where = f"axis {axis} of '{self.values[value].name}'"
        if use.refused:
            raise _refused(node, f"{use.refused} ({where})")
        if factors > 1 and (use.resized or use.needs is not None or use.places is not None):
            raise _refused(node, f"{where} is joined with another one")
        if use.places is not None:
            places = node.inputs[use.places]
            known = None if places is None else self.contents.get(places, self.values[places].data)
            if places is None or known is None or known.min(initial=0) < 0:
                raise _refused(node, f"it picks places of {where} that may count from the end")
            (length,) = self._factors(value)[axis]
            self._look_at(places, length, use.part)

    def _follow_outputs(
        self, node: Node, uses: Mapping[tuple[int, int], AxisUse], may_add: bool
    ) -> None:
        for out in node.outputs:
            made: list[tuple[Dim, ...]] = []
            for axis, dim in enumerate(self._dims(out)):
                sources = [
                    (self._factors(value)[own], use, (value, own))
                    for (position, own), use in uses.items()
                    if use.to == axis and (value := node.inputs[position]) is not None
                ]
                sources = [one for one in sources if one[0] != (1,)]
                made.append(self._joined(node, dim, sources, may_add))
                self._keep_fill(node, out, axis, sources)
            self.factors[out] = tuple(made)

    def _joined(
        self,
        node: Node,
        dim: Dim,
        sources: Sequence[tuple[tuple[Dim, ...], AxisUse, tuple[int, int]]],
        may_add: bool,
    ) -> tuple[Dim, ...]:
        """Return the factors of an axis of an output, given those of the inputs' axes."""
        same = {factors for factors, use, _ in sources if not use.resized}
        is_open = self._is_open(dim)
        if not is_open and not any(self._is_open(one) for factors in same for one in factors):
            return (dim,)
        if len(same) == 1 and product(next(iter(same))) == dim:
            return next(iter(same))
        if not same and (may_add or any(use.resized for _, use, _ in sources)):
            return (dim,)
        raise _refused(node, f"the length {dim} of its result does not follow from one axis")

    def _keep_fill(
        self,
        node: Node,
        out: int,
        axis: int,
        sources: Sequence[tuple[tuple[Dim, ...], AxisUse, tuple[int, int]]],
    ) -> None:
        if len(sources) != 1:
            return
        _, use, source = sources[0]
        if use.leaves is not None:
            self.fills[out, axis] = use.leaves
        elif get_op(node.op).rearranges and not use.resized and source in self.fills:
            self.fills[out, axis] = self.fills[source]

    def _view(self, node: Node) -> None:
        """Follow the factors of axes through other axes over the same elements in order."""
        source, out = node.used[0], node.outputs[0]
        before = [factor for axis in self._factors(source) for factor in axis if factor != 1]
        made = regrouped(before, self._dims(out), self._is_open)
        if made is None:
            raise _refused(node, f"it parts {self.values[source].type} in other places")
        self.factors[out] = made
        places = [self._fill_places(v, self._factors(v)) for v in (source, out)]
        for old, new in zip(*places, strict=True):
            if old is not None and new is not None and old in self.fills:
                self.fills[new] = self.fills[old]

    def _fill_places(self, value: int, factors: Factors) -> list[tuple[int, int] | None]:
        """Return (value, axis) of each open factor in order; None where it is joined."""
        return [
            (value, axis) if len(axis_factors) == 1 else None
            for axis, axis_factors in enumerate(factors)
            for factor in axis_factors
            if self._is_open(factor)
        ]

    def _masked(self, node: Node, value: int | None, axis: int, fill: float) -> int:
        """Return the value with all elements beyond the length of an axis replaced."""
        if value is None:
            raise _refused(node, "an input is left out")
        if self.fills.get((value, axis)) == fill:
            return value
        key = value, axis, fill
        if key not in self.masked:
            self.masked[key] = self._mask_nodes(node, value, axis, fill)
        return self.masked[key]

    def _mask_nodes(self, node: Node, value: int, axis: int, fill: float) -> int:
        type = self.values[value].type
        (length,) = self._factors(value)[axis]
        shape = (length, *(1,) * (len(type.shape) - axis - 1))
        if type.quant is None:
            mask = self._mask(
                length, TensorType(shape, "bool"), _scalar(True, "bool"), _scalar(False, "bool")
            )
            neutral = self._constant(_scalar(fill, type.dtype))
            made = self._node("where", (mask, value, neutral), value)
        else:
            made = self._bounded(node, value, length, replace(type, shape=shape), fill)
        others = {at: old for (one, at), old in self.fills.items() if one == value}
        self.fills |= {(made, at): old for at, old in others.items()}
        self.fills[made, axis] = fill
        return made

    def _bounded(self, node: Node, value: int, length: Dim, type: TensorType, fill: float) -> int:
        """Return stored integers between bounds, which are equal beyond the length."""
        limits = _limits(type.dtype)
        if math.isinf(fill):
            neutral = limits[fill > 0]
        elif type.quant is not None and len(type.quant.zero_points) == 1 and not fill:
            neutral = int(type.quant.zero_points[0])
        else:
            raise _refused(node, f"no stored integer of {type} stands for {fill}")
        for op, free in (("min", limits[1]), ("max", limits[0])):
            if neutral != free:
                ends = (_scalar(number, type.dtype) for number in (free, neutral))
                mask = self._mask(length, type, *ends)
                value = self._node(op, (value, mask), value)
        return value

    def _mask(self, length: Dim, type: TensorType, inside: Array, outside: Array) -> int:
        key = length, type, int(inside), int(outside)
        if key not in self.inputs:
            fresh = max(self.values) + 1
            name = f"mask {len(self.inputs)}"
            self.values[fresh] = Value(fresh, name, type)
            self.inputs[key] = fresh, Mask(length, type, np.asarray(inside), np.asarray(outside))
        return self.inputs[key][0]

    def _constant(self, data: Array) -> int:
        fresh = max(self.values) + 1
        type = TensorType(data.shape, str(data.dtype))
        self.values[fresh] = Value(fresh, "neutral", type, data)
        return fresh

    def _node(self, op: str, inputs: tuple[int, ...], like: int) -> int:
        """Add a node whose output has the type and the factors of a value; return the output."""
        old, fresh = self.values[like], max(self.values) + 1
        self.values[fresh] = Value(fresh, f"{old.name} masked", old.type)
        self.factors[fresh] = self._factors(like)
        attrs = get_op(op).bind({})
        self.nodes.append(Node(self.next_node, op, inputs, (fresh,), attrs, "padding"))
        self.next_node += 1
        return fresh


def _has_zeros(value: Value) -> bool:
    """Whether the elements that are added to an input count as 0."""
    if value.quant is not None:
        return len(value.quant.zero_points) == 1
    return value.dtype.startswith("float")


def _refused(node: Node, why: str) -> ShapeError:
    return ShapeError(f"{node.label}: padding would reach its results: {why}")


def _limits(dtype: str) -> tuple[int, int]:
    bits = 8 * itemsize(dtype)
    return (
        (0, (1 << bits) - 1) if dtype.startswith("u") else (-1 << (bits - 1), (1 << bits - 1) - 1)
    )


def _scalar(number: float, dtype: str) -> Array:
    """Return a number in a dtype: integers have least and greatest ones for infinities."""
    if math.isinf(number) and dtype in INTS:
        number = _limits(dtype)[number > 0]
    return np.asarray(number > 0 if dtype == "bool" else number, numpy_dtype(dtype))
