"""Check indices and lengths known only in a run; one outside its bounds ends the run.

Every device that checks indices in a kernel uses the sentences of this module.
"""

from __future__ import annotations

import numpy as np

from trireme.support.dtypes import Array
from trireme.support.errors import RunError


def outside_axis(index: int, size: int) -> str:
    """Return the sentence on an index that is outside -size..size-1."""
    return f"index {index} is outside the {size} elements of the axis"


def wrap_indices(indices: Array, size: int) -> Array:
    """Return indices counted from the front; raise RunError for one outside -size..size-1."""
    bad = first_outside(indices, -size, size - 1)
    if bad is not None:
        raise RunError(outside_axis(bad, size))
    return np.where(indices < 0, indices + size, indices)


def check_range(subject: str, values: Array, low: int, high: int) -> None:
    """Raise RunError for the first value outside low..high."""
    bad = first_outside(values, low, high)
    if bad is not None:
        raise RunError(f"{subject} {bad} is outside {low}..{high}")


def first_outside(values: Array, low: int, high: int) -> int | None:
    """Return the first value outside low..high, None if there is none."""
    if not values.size or (values.min() >= low and values.max() <= high):
        return None
    return int(values[(values < low) | (values > high)].reshape(-1)[0])
