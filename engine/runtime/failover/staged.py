"""Arrays of the caller's that a run fills whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trireme.support.dtypes import Array


class StagedOutputs(dict[str, Any]):
    """Arrays like those that a caller gave for outputs; `publish` copies them over.

    What cannot be written stands for itself, so that the run refuses it.
    """

    def __init__(self, out: Mapping[str, Any]) -> None:
        super().__init__({name: _like(array) for name, array in out.items()})
        self._out = out

    def publish(self, results: dict[str, Array]) -> dict[str, Array]:
        """Return the results of a run with the caller's arrays, which have their contents now."""
        for name, target in self._out.items():
            target[...] = self[name]
            results[name] = target
        return results


def _like(array: Any) -> Any:
    """Return new memory for an array that can be written."""
    if isinstance(array, np.ndarray) and array.flags.writeable:
        return np.empty(array.shape, array.dtype)
    return array
