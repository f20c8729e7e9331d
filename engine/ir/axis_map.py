"""Describe what an op does along each axis of its inputs: the trait `axis_map` of an OpDef.

Padding asks (passes/padding.py): may an axis get more elements at its end, and the first elements
of the outputs stay as they are?
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from trireme.support.records import dataclass


@dataclass(frozen=True)
class AxisUse:
    """The effect of an op on the elements along one axis of one input.

    to: the axis of the outputs whose first elements depend on the first elements of this axis;
        None where the outputs have no such axis
    needs: the value that added elements must have; None where any value does
    refused: why no value does; "" where one does
    resized: the output's axis has a length of its own, as that of a window or a slice has
    leaves: the value of the added elements in the outputs, where it is known
    places: an input whose values name places along the axis; they must count from the start
    part: which element of the last axis of `places` names this one; None where all do
    """

    to: int | None = None
    needs: float | None = None
    refused: str = ""
    resized: bool = False
    leaves: float | None = None
    places: int | None = None
    part: int | None = None


@dataclass(frozen=True)
class AxisMap:
    """The use of each axis of each input, by (input, axis).

    sizes: the inputs whose values only say how long the axes of the outputs are
    """

    uses: Mapping[tuple[int, int], AxisUse]
    sizes: frozenset[int] = field(default_factory=frozenset)


def in_order(position: int, rank: int, shift: int = 0) -> dict[tuple[int, int], AxisUse]:
    """Return the uses of an input whose axes all go one to one to the outputs', by a shift."""
    return {(position, axis): AxisUse(axis + shift) for axis in range(rank)}
