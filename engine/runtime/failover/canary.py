"""A run whose result is known: it tells whether a device that failed is right again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trireme.support.dtypes import Array

MOST_BYTES = 64 << 20
"""Inputs and outputs above this size are not kept."""


@dataclass(frozen=True)
class Canary:
    """Inputs, the states before the run, and the outputs."""

    feeds: Mapping[str, Array]
    states: Mapping[str, Array]
    outputs: Mapping[str, Array]

    def has_same_bits(self, outputs: Mapping[str, Array]) -> bool:
        """Whether a run gave the known outputs, bit for bit."""
        return outputs.keys() == self.outputs.keys() and all(
            _same_bits(array, outputs[name]) for name, array in self.outputs.items()
        )


def canary_of(
    feeds: Mapping[str, Any], states: Mapping[str, Array], outputs: Mapping[str, Array]
) -> Canary | None:
    """Return a copy of a good run; None where that takes too much memory."""
    fed = {name: np.asarray(given) for name, given in feeds.items()}
    nbytes = sum(one.nbytes for part in (fed, states, outputs) for one in part.values())
    if nbytes > MOST_BYTES:
        return None
    return Canary(
        *({name: np.array(one) for name, one in p.items()} for p in (fed, states, outputs))
    )


def _same_bits(one: Array, other: Array) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return one.dtype == object and bool((one == other).all()) or one.tobytes() == other.tobytes()
