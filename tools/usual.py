"""Usual sizes of open dimensions, where the command line gives none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trireme.ir.bind_shapes import bind_shapes, shapes_at
from trireme.ir.dims import symbols_of
from trireme.ir.graph import Graph
from trireme.runtime.dynamic.polymorphic import usual_shapes, usual_sizes
from trireme.support.dtypes import Array, numpy_dtype


def at_usual_sizes(graph: Graph) -> tuple[Graph, list[str]]:
    """Return a graph whose inputs' symbols have usual sizes, and a remark that says so."""
    inputs = {name for v in graph.input_values() for dim in v.shape for name in symbols_of(dim)}
    sizes = {name: size for name, size in usual_sizes(graph).items() if name in inputs}
    if not sizes:
        return graph, []
    return bind_shapes(graph, shapes_at(graph, sizes)), [remark(graph)]


def remark(graph: Graph) -> str:
    """Return the sentence that names the usual sizes of a graph's symbols."""
    sizes = ", ".join(f"{name}={size}" for name, size in usual_sizes(graph).items())
    return (
        f"at usual sizes {sizes}: --at gives others, `place --over` shows where a placement flips"
    )


def usual_feeds(graph: Graph) -> dict[str, Array]:
    """Return arrays of zeros of usual shapes."""
    shapes: Sequence[Sequence[int]] = usual_shapes(graph)
    return {
        value.name: np.zeros(shape, numpy_dtype(value.dtype))
        for value, shape in zip(graph.input_values(), shapes, strict=True)
    }
