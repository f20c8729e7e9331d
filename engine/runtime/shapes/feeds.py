"""Feeds and results of a model with open shapes, as arrays; and the error of refused shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trireme.ir.bind_shapes import other_sizes
from trireme.ir.graph import Value
from trireme.runtime.program.feeds import as_array, misfit, refuse_names
from trireme.runtime.shapes.ahead import Shapes
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.errors import RunError, ShapeError, TriremeError


class FedArrays:
    """Takes what is fed, in a microsecond where it is arrays that fit."""

    def __init__(self, inputs: Sequence[Value]) -> None:
        self._inputs = inputs
        self._wanted = [
            (value.name, numpy_dtype(value.dtype), len(value.shape), _known_sizes(value))
            for value in inputs
        ]

    def __call__(self, feeds: Mapping[str, Any]) -> list[Array]:
        """Return `fed_arrays` of these feeds."""
        if type(feeds) is not dict or len(feeds) != len(self._wanted):
            return fed_arrays(self._inputs, feeds)
        arrays = []
        for name, dtype, rank, sizes in self._wanted:
            array = feeds.get(name)
            if type(array) is not np.ndarray or array.dtype != dtype or array.ndim != rank:
                return fed_arrays(self._inputs, feeds)
            for axis, size in sizes:
                if array.shape[axis] != size:
                    return fed_arrays(self._inputs, feeds)
            arrays.append(array)
        return arrays


def fed_arrays(inputs: Sequence[Value], feeds: Mapping[str, Any]) -> list[Array]:
    """Return what is fed as arrays, in the inputs' order.

    Errors: RunError, if a feed is missing or unknown, or does not fit its input
    """
    if not isinstance(feeds, Mapping) or set(feeds) != set(feeds_of(inputs)):
        refuse_names(feeds, inputs)
    return [_fitting(value, feeds[value.name]) for value in inputs]


def feeds_of(values: Sequence[Value]) -> list[str]:
    """Return the names to feed."""
    return [value.name for value in values]


def _known_sizes(value: Value) -> list[tuple[int, int]]:
    """Return the axes of known sizes, with these."""
    return [(axis, dim) for axis, dim in enumerate(value.shape) if isinstance(dim, int)]


def _fitting(value: Value, given: Any) -> Array:
    array = as_array(value, given)
    if value.dtype == "string":
        return array.astype(object)
    fits = array.dtype == numpy_dtype(value.dtype) and array.ndim == len(value.shape)
    if not fits or any(array.shape[axis] != size for axis, size in _known_sizes(value)):
        raise misfit(value, array)
    return array


def handed_out(
    outputs: list[Value],
    results: Sequence[Array],
    fed: list[Array],
    out: Mapping[str, Array] | None,
) -> dict[str, Array]:
    """Return results by name as arrays of the caller's own, those in `out` written there."""
    made = {v.name: _owned(array, fed) for v, array in zip(outputs, results, strict=True)}
    return made if out is None else _written(made, out)


def _owned(array: Array, fed: list[Array]) -> Array:
    """Return an array that is no view of what was fed, of a constant or of another output."""
    alone = array.flags.owndata and array.flags.writeable
    return array if alone and not any(array is one for one in fed) else np.array(array)


def _written(made: dict[str, Array], out: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs, those with an array in `out` written into it.

    Errors: RunError, if `out` names no output or an array does not fit
    """
    for name, target in out.items():
        if name not in made:
            raise RunError(f"out names {name!r}, no output of the model")
        if target.shape != made[name].shape or target.dtype != made[name].dtype:
            found = f"{made[name].dtype}{list(made[name].shape)}"
            raise RunError(
                f"output '{name}' is {found}, the array is {target.dtype}{list(target.shape)}"
            )
        target[...] = made[name]
        made[name] = target
    return made


class ShapesRefused:
    """Turns the error of a node that refuses shapes into a RunError that lists those of the feeds.

    A generator would take some microseconds of every run.
    """

    __slots__ = ("_inputs", "_shapes")

    def __init__(self, inputs: list[Value], shapes: Shapes) -> None:
        self._inputs, self._shapes = inputs, shapes

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, ShapeError | RunError) or not _is_of_shapes(error):
            return
        pairs = list(zip(self._inputs, self._shapes, strict=True))
        fed = ", ".join(f"{value.name} {list(shape)}" for value, shape in pairs)
        facts = [f"the inputs' shapes: {fed}", *error.facts]
        fix = error.fix or other_sizes(pairs)
        raise RunError(error.summary, facts=facts, fix=fix) from error


def _is_of_shapes(error: TriremeError) -> bool:
    """Whether an error is a ShapeError, or a node's in a run that comes of one."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, ShapeError):
        found = found.__cause__
    return found is not None
