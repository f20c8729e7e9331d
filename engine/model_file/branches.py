"""Shapes that a branch of a model refuses: the sizes stay open, and each run chooses its branch.

Exporters write a model for two sample rates as the branches of one `if`. Sizes that suit one of the
branches may not suit the other, which no run with these sizes takes.
"""

from __future__ import annotations

import os
from typing import Any

from trireme.ir.bind_shapes import Shapes, bind_shapes
from trireme.ir.dims import symbol_name
from trireme.ir.graph import Dim, Graph, Value
from trireme.model_file.convert import convert
from trireme.support.errors import BranchError, BranchShapeError, TriremeError


def convert_at(
    source: str | os.PathLike[str] | bytes, shapes: Shapes | None, **options: Any
) -> Graph:
    """Return the graph of a model, see `convert`.

    Where a branch refuses the shapes, each size given is the only one that its symbol may have.
    Errors: those of `convert`
    """
    try:
        return convert(source, shapes=shapes, **options)
    except BranchError as error:
        try:
            return _bounded(convert(source, **options), shapes or {})
        except TriremeError:
            raise error from None


def bound_at(graph: Graph, shapes: Shapes | None) -> Graph:
    """Return a graph at some shapes; as `convert_at` where a branch refuses them.

    Errors: ShapeError
    """
    try:
        return bind_shapes(graph, shapes or {})
    except BranchShapeError as error:
        try:
            return _bounded(graph, shapes or {})
        except TriremeError:
            raise error from None


def _bounded(graph: Graph, shapes: Shapes) -> Graph:
    values = {value.name: value for value in graph.input_values()}
    return bind_shapes(
        graph,
        {
            name: [
                _only(values[name], axis, dim, size)
                for axis, (dim, size) in enumerate(zip(values[name].shape, shape, strict=True))
            ]
            for name, shape in shapes.items()
        },
    )


def _only(value: Value, axis: int, dim: Dim, size: int | str) -> int | str:
    """Return a symbol that may have one size, for an open dimension and a size."""
    if isinstance(dim, int) or isinstance(size, str):
        return size
    name = dim if symbol_name(dim) == dim else symbol_name(f"{value.name}_{axis}")
    return f"{size}<={name}<={size}"
