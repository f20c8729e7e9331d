"""Inputs made up from a model's types, for the run that warms a model before it serves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from trireme.ir.graph import Value
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.errors import TriremeError

Run = Callable[[dict[str, Array]], Any]


def warm_up(inputs: Sequence[Value], least: Mapping[str, int], run: Run) -> None:
    """Run a model once on made-up inputs: zeros; where it refuses zeros, ones.

    Zeros are valid positions in any table, and ones are valid sizes and divisors.

    least: the least size of each symbol that has a bound
    Errors: those of `run` on zeros, if it refuses both
    """
    first: TriremeError | None = None
    for feeds in example_feeds(inputs, least):
        try:
            run(feeds)
        except TriremeError as error:
            first = first or error
        else:
            return
    if first is not None:
        raise first


def example_feeds(inputs: Sequence[Value], least: Mapping[str, int]) -> Iterator[dict[str, Array]]:
    """Yield feeds of zeros, then of ones; a dimension that is open has its least size above 0."""
    for fill in (0, 1):
        yield {one.name: _filled(one, least, fill) for one in inputs}


def _filled(value: Value, least: Mapping[str, int], fill: int) -> Array:
    shape = [dim if isinstance(dim, int) else max(1, least.get(dim, 1)) for dim in value.shape]
    if value.dtype == "string":
        return np.full(shape, str(fill), object)
    return np.full(shape, fill, numpy_dtype(value.dtype))
