"""Arithmetic on indexes: Python numbers where they are known, instructions where they are not."""

from __future__ import annotations

from collections.abc import Iterable

from trireme.devices.cpu.codegen.ir import Function, Index, Value, Word


def times(fn: Function, index: Index, factor: Index) -> Index:
    """Return index * factor."""
    if isinstance(index, int) and isinstance(factor, Value):
        return factor * index if index else 0
    if isinstance(factor, int) and factor == 0:
        return 0
    return index * factor


def plus(fn: Function, index: Index, other: Index) -> Index:
    """Return index + other."""
    if isinstance(index, int) and not isinstance(other, int):
        return other + index
    if isinstance(other, int) and other == 0:
        return index
    return index + other


def minus(fn: Function, index: Index, other: Index) -> Index:
    """Return index - other."""
    if isinstance(other, int) and other == 0:
        return index
    if isinstance(index, int) and isinstance(other, Value):
        return fn.as_value("i64", index) - other
    return index - other


def product(fn: Function, sizes: Iterable[Index]) -> Index:
    """Return the product of sizes; 1 of none."""
    found: Index = 1
    for size in sizes:
        found = times(fn, found, size)
    return found


def known(size: Index) -> bool:
    """Whether a size is a number, not read when the kernel runs."""
    return not isinstance(size, (Value, Word))
