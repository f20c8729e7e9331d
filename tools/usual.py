"""Usual sizes of open dimensions, where the command line gives none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trireme.ir.bind_shapes import bind_shapes, shapes_at
from trireme.ir.dims import symbols_of
from trireme.ir.graph import Graph, Value
from trireme.passes.branches import without_branch
from trireme.runtime.shapes.polymorphic import usual_shapes, usual_sizes
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.errors import BranchShapeError


def at_usual_sizes(graph: Graph) -> tuple[Graph, list[str]]:
    """Return a graph whose inputs' symbols have usual sizes, and remarks that say so.

    A branch that refuses the sizes is left out: no run at these sizes takes it.
    """
    inputs = {name for v in graph.input_values() for dim in v.shape for name in symbols_of(dim)}
    sizes = {name: size for name, size in usual_sizes(graph).items() if name in inputs}
    if not sizes:
        return graph, []
    said = [remark(graph)]
    shapes = shapes_at(graph, sizes)
    while True:
        try:
            return bind_shapes(graph, shapes), said
        except BranchShapeError as error:
            left = without_branch(graph, error.node, error.branch)
            if not any(node.id == error.node for node in graph.nodes) or left is graph:
                raise
            label = next(node.label for node in graph.nodes if node.id == error.node)
            said.append(
                f"{error.branch} of {label} refuses these sizes and is left out: {error.summary}"
            )
            graph = left


def remark(graph: Graph) -> str:
    """Return the sentence that names the usual sizes of a graph's symbols."""
    sizes = ", ".join(f"{name}={size}" for name, size in usual_sizes(graph).items())
    return (
        f"at usual sizes {sizes}: --at gives others, `place --over` shows where a placement flips"
    )


def usual_inputs(graph: Graph) -> list[Value]:
    """Return the inputs of a graph with usual shapes."""
    shapes: Sequence[Sequence[int]] = usual_shapes(graph)
    return [
        replace(value, type=replace(value.type, shape=tuple(shape)))
        for value, shape in zip(graph.input_values(), shapes, strict=True)
    ]


def usual_feeds(graph: Graph) -> dict[str, Array]:
    """Return arrays of zeros of usual shapes."""
    return {v.name: np.zeros(v.type.dims, numpy_dtype(v.dtype)) for v in usual_inputs(graph)}
