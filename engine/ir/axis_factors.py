"""The factors of the axes of a value: what a reshape joined, and may part again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trireme.ir.dims import exact_divide, multiply
from trireme.ir.graph import UNKNOWN, Dim

Factors = tuple[tuple[Dim, ...], ...]
"""The factors of each axis of a value, the slowest first."""


def product(factors: Sequence[Dim]) -> Dim:
    """Return the length of an axis with these factors."""
    made: Dim = 1
    for factor in factors:
        made = multiply(made, factor)
    return made


def regrouped(
    factors: list[Dim], dims: Sequence[Dim], is_open: Callable[[Dim], bool]
) -> Factors | None:
    """Return factors in order, grouped as the axes of a shape; None where they do not fit.

    Open factors stay whole. Others are joined and parted as the shape has them.
    """
    left = _neighbours_joined(factors, is_open)
    made: list[tuple[Dim, ...]] = []
    for dim in dims:
        group: list[Dim] = []
        while product(group) != dim:
            if not left:
                return None
            factor = left.pop(0)
            part = (
                factor if is_open(factor) else _part_of(factor, exact_divide(dim, product(group)))
            )
            group.append(part)
            if part != factor:
                left.insert(0, exact_divide(factor, part))
        made.append(tuple(group) or (1,))
    return None if left else tuple(made)


def _neighbours_joined(factors: list[Dim], is_open: Callable[[Dim], bool]) -> list[Dim]:
    made: list[Dim] = []
    for factor in factors:
        if made and not is_open(factor) and not is_open(made[-1]):
            made[-1] = multiply(made[-1], factor)
        else:
            made.append(factor)
    return made


def _part_of(factor: Dim, needed: Dim) -> Dim:
    """Return the part of a factor that an axis needs; the whole where it needs no such part."""
    share = exact_divide(factor, needed)
    fits = UNKNOWN not in (needed, share) and multiply(share, needed) == factor
    return needed if fits else factor
