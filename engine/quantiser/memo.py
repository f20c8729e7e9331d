"""Share ranges and encoded weights among the integer graphs of one float graph."""

from __future__ import annotations

from dataclasses import dataclass, field

from trireme.ir.graph import Quant
from trireme.quantiser.ranges import Range
from trireme.support.dtypes import Array


@dataclass(frozen=True)
class EncodingMemo:
    """Ranges and weights found before, for graphs from the same statistics and scheme.

    ranges: by value and method
    weights: by node, the scale of its input, and whether it makes floats
    """

    ranges: dict[tuple[int, str], Range] = field(default_factory=dict)
    weights: dict[tuple[int, float, bool], tuple[Array, Quant]] = field(default_factory=dict)
