"""Run shapes at the next larger bucket: pad the feeds, run, and cut the results.

`passes/padding.py` proves for a graph that padding reaches no result. This module knows sizes: the
bucket of a shape, the padded arrays, and the share of the work that is padding.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trireme.ir.axis_factors import Factors
from trireme.ir.bind_shapes import sizes_of
from trireme.ir.dims import Bounds, substituted, symbols_of
from trireme.ir.graph import Dim, Graph, Value
from trireme.passes.padding import padded
from trireme.runtime.shapes.closed import ClosedGraph, why_not_closed
from trireme.runtime.shapes.stage import flops_of
from trireme.support.dtypes import Array
from trireme.support.errors import ShapeError

MOST_FITS = 1024
"""Shapes whose bucket is remembered."""
Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class BucketFit:
    """A set of shapes and its bucket.

    sizes: of the symbols that have buckets, as the bucket has them
    true, made: sizes of all symbols in the feeds, and in the bucket
    padding: the share of the bucket's work that is padding, 0 to 1
    """

    sizes: Mapping[str, int]
    true: Mapping[str, int]
    made: Mapping[str, int]
    padding: float

    def length(self, dim: Dim, is_true: bool) -> int:
        """Return a dimension at the true sizes, or at those of the bucket."""
        return int(substituted(dim, self.true if is_true else self.made))


class Buckets:
    """The buckets of a graph's symbols, and the graph that may be padded to them.

    graph: with masks as its last inputs
    Errors: ShapeError, if there is no such symbol, a size is outside its bounds, a shape depends on
    values, or padding would reach a result
    """

    def __init__(self, graph: Graph, buckets: Mapping[str, Sequence[int]]) -> None:
        self._given, self._inputs = graph, list(graph.input_values())
        self._sizes = {name: sorted(set(sizes)) for name, sizes in buckets.items()}
        bounded = replace(graph, symbols={**graph.symbols, **self._bounds(graph)})
        if why := why_not_closed(graph):
            raise ShapeError(
                f"a model with buckets needs shapes that follow from its inputs': {why}"
            )
        self._closed = ClosedGraph(bounded)
        largest = {name: sizes[-1] for name, sizes in self._sizes.items()}
        usual = {name: _usual(bounds) for name, bounds in bounded.symbols.items()} | largest
        self._padded = padded(bounded, sorted(buckets), self._contents(usual))
        self.graph = self._padded.graph
        self._fits: OrderedDict[Shapes, BucketFit] = OrderedDict()

    def _bounds(self, graph: Graph) -> dict[str, Bounds]:
        """Return the bounds of the symbols that have buckets.

        Errors: ShapeError, as of the class
        """
        bare = {dim for value in self._inputs for dim in value.shape}
        bounds: dict[str, Bounds] = {}
        for name, sizes in self._sizes.items():
            if name not in bare:
                known = sorted(set().union(*(symbols_of(dim) for dim in bare)))
                facts = [f"symbols: {', '.join(known) or 'none'}"]
                raise ShapeError(f"buckets of {name!r}: no input has this dimension", facts=facts)
            least, most = graph.symbols.get(name, (0, None))
            if not sizes or sizes[0] < max(least, 1) or (most is not None and sizes[-1] > most):
                limits = f"{max(least, 1)}..{'' if most is None else most}"
                raise ShapeError(f"buckets of {name}: {sizes}, expected sizes within {limits}")
            bounds[name] = least, sizes[-1]
        return bounds

    def _contents(self, sizes: Mapping[str, int]) -> dict[int, Array]:
        """Return what shapes decide at some sizes, by value."""
        now = self._closed.at(
            [[int(substituted(dim, sizes)) for dim in value.shape] for value in self._inputs]
        )
        before = self._closed.graph.values
        return {
            id: value.data
            for id, value in now.values.items()
            if value.data is not None and before[id].data is None
        }

    def fit(self, shapes: Shapes) -> BucketFit:
        """Return the bucket of the shapes of the feeds.

        Errors: ShapeError, if a size is above the largest bucket, if shapes do not fit the graph,
        or if what shapes decide would be another
        """
        found = self._fits.get(shapes)
        if found is None:
            found = self._fits[shapes] = self._fitted(shapes)
            if len(self._fits) > MOST_FITS:
                self._fits.popitem(last=False)
        return found

    def _fitted(self, shapes: Shapes) -> BucketFit:
        true = sizes_of(self._given, shapes)
        sizes = {}
        for name, known in self._sizes.items():
            if true[name] > known[-1]:
                raise ShapeError(f"{name} is {true[name]}, and its largest bucket is {known[-1]}")
            sizes[name] = known[bisect_left(known, true[name])]
        made = {**true, **sizes}
        small = self._closed.at(shapes)
        large = self._closed.at(
            [[int(substituted(dim, made)) for dim in value.shape] for value in self._inputs]
        )
        work = flops_of(large)
        fit = BucketFit(sizes, true, made, 1 - flops_of(small) / work if work else 0.0)
        for one in self._padded.decided:
            length = None if one.below is None else fit.length(one.below, True)
            _check_decided(small.values[one.value], large.values[one.value], length, one.part)
        return fit

    def shapes(self, fit: BucketFit) -> Shapes:
        """Return the shapes of the inputs of the padded graph, masks included."""
        inputs = self.graph.input_values()
        return tuple(tuple(fit.length(dim, False) for dim in value.shape) for value in inputs)

    def padded(self, arrays: Sequence[Array], fit: BucketFit) -> list[Array]:
        """Return the feeds of the padded graph: arrays with more elements, and the masks."""
        made = [
            _grown(value, array, [fit.length(dim, False) for dim in value.shape])
            for value, array in zip(self._inputs, arrays, strict=True)
        ]
        for mask in self._padded.masks:
            one = np.full([fit.length(d, False) for d in mask.type.shape], mask.outside)
            one[: fit.length(mask.length, True)] = mask.inside
            made.append(one)
        return made

    def cut(self, results: Sequence[Array], fit: BucketFit) -> list[Array]:
        """Return the results without what was added."""
        return [
            _cut(array, factors, fit)
            for array, factors in zip(results, self._padded.outputs, strict=True)
        ]


def _usual(bounds: Bounds) -> int:
    least, most = bounds
    return max(least, 2 if most is None else min(most, 2))


def _check_decided(small: Value, large: Value, length: int | None, part: int | None) -> None:
    """Raise ShapeError unless the contents of a value are the first ones of it in the bucket.

    length: of the axis that they name places of, None where they name none
    part: which element of the last axis names such places; None where all do
    """
    a, b = small.data, large.data
    if a is None or b is None or a.ndim != b.ndim:
        return
    first = b[tuple(slice(0, size) for size in a.shape)]
    if not np.array_equal(a, first, equal_nan=a.dtype.kind == "f"):
        raise ShapeError(f"'{small.name}' has other values in the bucket: they depend on the size")
    if length is not None and b.min(initial=0) < 0:
        raise ShapeError(f"'{small.name}' names places that count from the end")
    places = a if part is None else a[..., part]
    if length is not None and places.max(initial=-1) >= length:
        raise ShapeError(f"'{small.name}' names place {places.max()} of {length}")


def _grown(value: Value, array: Array, shape: Sequence[int]) -> Array:
    """Return an array with more elements: floats get 0, indices repeat the last ones there are.

    So rows that are added have values that the model may meet: no index is outside its table.
    """
    if tuple(shape) == array.shape:
        return array
    if value.quant is None and array.dtype.kind in "iub" and array.size:
        added = [(0, size - have) for size, have in zip(shape, array.shape, strict=True)]
        return np.pad(array, added, mode="edge")
    fill = value.quant.zero_points[0] if value.quant is not None else 0
    made = np.full(shape, fill, array.dtype)
    made[tuple(slice(0, size) for size in array.shape)] = array
    return made


def _cut(array: Array, factors: Factors, fit: BucketFit) -> Array:
    """Return the elements within the true lengths; factors part axes that were joined."""
    flat = [factor for axis in factors for factor in axis]
    apart = array.reshape([fit.length(factor, False) for factor in flat])
    inside = apart[tuple(slice(0, fit.length(factor, True)) for factor in flat)]
    shape = [int(np.prod([fit.length(f, True) for f in axis], dtype=np.int64)) for axis in factors]
    return np.ascontiguousarray(inside).reshape(shape)
