"""The classification extension: the largest values of an output as texts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from trireme.serving.errors import invalid
from trireme.support.dtypes import REALS, Array, dtype_name


def classified(name: str, array: Array, classes: int, labels: Sequence[str]) -> Array:
    """Return the largest values of an output, largest first, as texts "value:index:label".

    The first axis is the batch where there are two axes or more; each item's other axes are one.
    Shapes: array [N, ...] -> [N, min(classes, items)]; [items] -> [min(classes, items)]
    Errors: ServingError invalid, if the output has no numbers to order
    Source: Triton's classification extension
    """
    if dtype_name(array.dtype) not in REALS:
        raise invalid("outputs", f"output '{name}' cannot be classified: its values have no order")
    rows = array.reshape(array.shape[0], -1) if array.ndim > 1 and array.size else array
    rows = rows.reshape(-1, rows.shape[-1] if rows.ndim else 1)
    kept = min(classes, rows.shape[1])
    order = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, :kept]
    texts = np.empty(order.shape, object)
    for row, columns in enumerate(order):
        for place, column in enumerate(columns):
            label = f":{labels[column]}" if column < len(labels) else ""
            texts[row, place] = f"{float(rows[row, column]):f}:{column}{label}"
    return texts if array.ndim > 1 else texts.reshape(math.prod(texts.shape))
