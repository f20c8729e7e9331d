"""Whether requests may share a run: every output has a row for each row of the inputs.

Shapes prove the first half: all inputs begin with one symbol, and that symbol is the first
dimension of every output and occurs nowhere else. The second half is that a row depends on its own
row alone. The rules of shards prove it for most graphs (placement/shards/batch.py); a probe checks
the values of every graph: a batch of two against two batches of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from trireme.ir.bind_shapes import bind_shapes, shape_advice, sizes_of
from trireme.ir.dims import symbols_of
from trireme.ir.graph import UNKNOWN, Graph, Value
from trireme.runtime.program.feeds import as_array, misfit, random_array, refuse_names
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.errors import RunError, ShapeError, TriremeError

PROBE_SIZE = 8
"""A size of a probe for other open dimensions, where the bounds allow it."""
_RELATIVE = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 4e-2}
"""Largest difference of a probe, by the output's largest number: sums go in another order."""
_MOST_KNOWN = 1024
"""Shapes that are remembered to fit."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class BatchEvidence:
    """Why requests may share a run.

    proof: "rules" if every node is proven to keep rows apart; "probe" if values alone say so
    difference: the largest difference of the probe, by the largest number of the output; 0.0 where
        a batch of two has the bits of two batches of one
    """

    symbol: str
    proof: Literal["rules", "probe"]
    difference: float

    @property
    def is_exact(self) -> bool:
        """Whether the probe's results were equal bit for bit."""
        return self.difference == 0.0


@dataclass(frozen=True)
class FittingFeeds:
    """Feeds that were checked: arrays in the inputs' order, and the rows that they have.

    key: the shapes without the first axis; feeds of equal keys form batches
    """

    arrays: tuple[Array, ...]
    rows: int
    key: tuple[Shape, ...]


class BatchRules:
    """Checks feeds against the inputs of a graph whose first dimension is open.

    symbol: the first dimension of every input and output
    Errors: RunError, if a shape shows that requests cannot share a run
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.inputs: Sequence[Value] = list(graph.input_values())
        self.symbol = _symbol(self.inputs)
        for value in graph.output_values():
            _check_output(value, self.symbol)
        self.most = graph.symbols.get(self.symbol, (0, None))[1]
        self._known: dict[tuple[Shape, ...], int] = {}

    def fitting(self, feeds: Any, most: int) -> FittingFeeds:
        """Return feeds as arrays. Errors: RunError, if they do not fit or have too many rows"""
        names = [value.name for value in self.inputs]
        if not isinstance(feeds, Mapping) or set(feeds) != set(names):
            refuse_names(feeds, self.inputs)
        arrays = tuple(self._array(value, feeds[value.name]) for value in self.inputs)
        shapes = tuple(array.shape for array in arrays)
        rows = self._rows(shapes)
        if not 1 <= rows <= most:
            raise RunError(f"a request has {rows} rows, expected 1 to {most} (max_batch_size)")
        return FittingFeeds(arrays, rows, tuple(shape[1:] for shape in shapes))

    def _rows(self, shapes: tuple[Shape, ...]) -> int:
        """Return the rows of feeds of these shapes. Errors: RunError, if the shapes do not fit"""
        rows = self._known.get(shapes)
        if rows is None:
            try:
                sizes = sizes_of(self.graph, shapes)
            except ShapeError as error:
                raise RunError(error.summary, facts=error.facts, fix=error.fix) from error
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            rows = self._known[shapes] = sizes[self.symbol]
        return rows

    def _array(self, value: Value, given: Any) -> Array:
        array = as_array(value, given)
        if value.dtype == "string":
            return array.astype(object)
        if array.ndim != len(value.shape) or array.dtype != numpy_dtype(value.dtype):
            raise misfit(value, array)
        return array

    def evidence(
        self,
        run: Callable[[Mapping[str, Array]], Mapping[str, Array]],
        probe: Mapping[str, Any] | None,
    ) -> BatchEvidence:
        """Return why requests may share a run.

        probe: feeds of two rows that differ; random ones when None
        Errors: RunError, if a row of a batch is not what it is alone, or the probe cannot run
        """
        feeds = self._random() if probe is None else self._given(probe)
        try:
            both = run(feeds)
            alone = [run({k: v[i : i + 1] for k, v in feeds.items()}) for i in (0, 1)]
        except TriremeError as error:
            raise RunError(
                f"the probe of a batch failed: {error.summary}",
                facts=error.facts,
                fix="give feeds of two rows that the model takes: probe={...}",
            ) from error
        worst = 0.0
        for value in self.graph.output_values():
            rows = np.concatenate([one[value.name] for one in alone])
            found = _difference(value, both[value.name], rows)
            worst = max(worst, found)
        return BatchEvidence(self.symbol, self._proof(feeds), worst)

    def _given(self, probe: Mapping[str, Any]) -> dict[str, Array]:
        found = self.fitting(probe, 2)
        if found.rows != 2:
            raise RunError(f"the probe has {found.rows} rows, expected 2")
        names = [value.name for value in self.inputs]
        return dict(zip(names, found.arrays, strict=True))

    def _random(self) -> dict[str, Array]:
        names = {name for value in self.inputs for dim in value.shape for name in symbols_of(dim)}
        sizes = {name: _probe_size(self.graph, name) for name in sorted(names)}
        given = {v.name: _sized(v, sizes | {self.symbol: 2}) for v in self.inputs}
        try:
            bound = bind_shapes(self.graph, given)
        except ShapeError as error:
            raise RunError(error.summary, facts=error.facts, fix="give probe=") from error
        rng = np.random.default_rng(2)
        return {value.name: random_array(value, rng) for value in bound.input_values()}

    def _proof(self, feeds: Mapping[str, Array]) -> Literal["rules", "probe"]:
        from trireme.placement.shards.batch import batched

        shapes = {name: (1, *array.shape[1:]) for name, array in feeds.items()}
        try:
            batched(bind_shapes(self.graph, shapes), 2)
        except TriremeError:
            return "probe"
        return "rules"


def _symbol(inputs: Sequence[Value]) -> str:
    """Return the first dimension of all inputs. Errors: RunError, if there is no such symbol"""
    firsts = [value.shape[0] if value.shape else 0 for value in inputs]
    fixed = [v for v, dim in zip(inputs, firsts, strict=True) if not isinstance(dim, str)]
    if not inputs or fixed:
        what = f"input '{fixed[0].name}' is {fixed[0].type}" if fixed else "there are no inputs"
        shapes = {v.name: ("batch", *v.shape[1:]) for v in inputs if v.shape}
        raise RunError(
            f"requests cannot form batches: {what}, and its first dimension is not open",
            fix=f"shapes={shapes}" if fixed and all(v.shape for v in inputs) else "",
        )
    symbols = {str(dim) for dim in firsts}
    if len(symbols) > 1 or symbols_of(firsts[0]) != symbols:
        facts = [f"{value.name} {value.type}" for value in inputs]
        raise RunError(
            "requests cannot form batches: the inputs do not share one open first dimension",
            facts=facts,
            fix=shape_advice(inputs),
        )
    symbol = symbols.pop()
    for value in inputs:
        if any(symbol in symbols_of(dim) for dim in value.shape[1:]):
            raise RunError(
                f"requests cannot form batches: input '{value.name}' is {value.type}, whose "
                f"dimension {symbol} is not the first alone"
            )
    return symbol


def _check_output(value: Value, symbol: str) -> None:
    """Raise RunError unless an output has a row for each row of the inputs."""
    shape = value.shape
    carries = value.type.has_rank and bool(shape) and shape[0] == symbol
    if not carries:
        raise RunError(
            f"requests cannot form batches: output '{value.name}' is {value.type}, and its first "
            f"dimension is not {symbol}, as that of the inputs is"
        )
    if any(symbol in symbols_of(dim) or dim == UNKNOWN for dim in shape[1:]):
        raise RunError(
            f"requests cannot form batches: output '{value.name}' is {value.type}, so a request's "
            "part of it depends on the other requests"
        )


def _probe_size(graph: Graph, name: str) -> int:
    least, most = graph.symbols.get(name, (0, None))
    return max(least, PROBE_SIZE if most is None else min(most, PROBE_SIZE))


def _sized(value: Value, sizes: Mapping[str, int]) -> tuple[int | str, ...]:
    from trireme.ir.dims import substituted

    return tuple(substituted(dim, sizes) for dim in value.shape)


def _difference(value: Value, both: Array, alone: Array) -> float:
    """Return how far a batch is from its rows alone. Errors: RunError, if it is too far"""
    if both.shape == alone.shape and both.tobytes() == alone.tobytes():
        return 0.0
    limit = _RELATIVE.get(value.dtype, 0.0)
    if both.shape == alone.shape and limit:
        one, other = both.astype(np.float64), alone.astype(np.float64)
        same = (one == other) | (np.isnan(one) & np.isnan(other))
        most = float(np.abs(other[np.isfinite(other)]).max(initial=0.0)) or 1.0
        found = float(np.where(same, 0.0, np.abs(one - other)).max(initial=0.0)) / most
        if found <= limit:
            return found
    raise RunError(
        f"requests cannot form batches: a row of output '{value.name}' depends on the other rows",
        facts=["a batch of two random rows differs from two batches of one"],
    )
