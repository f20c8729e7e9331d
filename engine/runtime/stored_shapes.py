"""Which shapes a stored program of open shapes may run, and what sizes they have.

Nothing is inferred: the entry says which sizes go together (dynamic/stored_sizing.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trireme.ir.dim_values import Numbers, evaluator
from trireme.ir.graph import Value
from trireme.support.dtypes import numpy_dtype


class StoredShapes:
    """The shapes that the graph of a stored program takes.

    inputs, outputs: of the graph, with symbols; told: the symbols, their bounds and what must agree
    """

    def __init__(
        self, inputs: Sequence[Value], outputs: Sequence[Value], told: Mapping[str, Any]
    ) -> None:
        names, self._ends = told["names"], [*inputs, *outputs]
        axes = [dim for value in inputs for dim in value.shape]
        self._places = [axes.index(name) for name in names]
        self._axes = evaluator(axes, names)
        self._bounds = [(low, math.inf if high is None else high) for low, high in told["bounds"]]
        self._agree = evaluator([dim for pair in told["agree"] for dim in pair], names)
        self._shapes = [evaluator(value.shape, names) for value in self._ends]
        self._fed = {v.name: (len(v.shape), numpy_dtype(v.dtype)) for v in inputs}

    def sizes(self, feeds: Mapping[str, Any]) -> Numbers | None:
        """Return the sizes of the symbols, None where feeds do not fit the graph."""
        if not isinstance(feeds, dict) or feeds.keys() != self._fed.keys():
            return None
        axes: tuple[int, ...] = ()
        for name, kind in self._fed.items():
            array = feeds[name]
            if not isinstance(array, np.ndarray) or (array.ndim, array.dtype) != kind:
                return None
            axes += array.shape
        sizes = tuple([axes[place] for place in self._places])
        within = all(low <= n <= high for n, (low, high) in zip(sizes, self._bounds, strict=True))
        if not within or self._axes(*sizes) != axes:
            return None
        agree = self._agree(*sizes)
        pairs = zip(agree[::2], agree[1::2], strict=True)
        return sizes if all(a in (1, b) for a, b in pairs) else None

    def at(self, sizes: Numbers) -> dict[str, tuple[int, ...]]:
        """Return the shapes of inputs and outputs, by name."""
        pairs = zip(self._ends, self._shapes, strict=True)
        return {value.name: shape(*sizes) for value, shape in pairs}
