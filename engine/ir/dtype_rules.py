"""The dtypes that the inputs of an op take: part of its OpDef, checked before types are inferred.

A rule is a set of dtypes, or `Like` another input. A quantised value stands for a float one, so it
fits every set that holds floats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trireme.ir.graph import Value
from trireme.support.dtypes import (
    ANY,
    BOOL,
    FLOATING,
    FLOATS,
    INDICES,
    INTEGERS,
    NUMBERS,
    REALS,
    SIGNED,
)
from trireme.support.errors import ShapeError
from trireme.support.records import dataclass


@dataclass(frozen=True)
class Like:
    """The dtype of another input, by name.

    beside: dtypes of a plain value next to a quantised one. The stored dtypes of two quantised
        values may then differ too. Empty: stored dtypes are the same
    """

    input: str
    beside: frozenset[str] = frozenset()

    def fits(self, value: Value, other: Value) -> bool:
        """Return whether a value's dtype fits the other's."""
        if self.beside and (value.quant or other.quant):
            return all(v.quant or v.dtype in self.beside for v in (value, other))
        return value.dtype == other.dtype


DtypeRule = frozenset[str] | Like

WEIGHT = Like("x", beside=FLOATING)
"""Weights of a product with x, which are often quantised where x is not."""
BIAS = Like("x", beside=FLOATING | INDICES)
"""A summand of sums of products; next to a quantised x it may be the integers of the sums."""
LIMIT = Like("x", beside=frozenset({"float32"}))
"""A number that x is compared with."""

_NOUNS = {
    FLOATING: "a float",
    INTEGERS: "an integer",
    SIGNED: "a signed number",
    REALS: "a real number",
    NUMBERS: "a number",
    REALS | BOOL: "a real number or bool",
    NUMBERS | BOOL: "a number or bool",
}
_MOST_LISTED = 4


def check_dtypes(
    names: Sequence[str], rules: Sequence[DtypeRule], values: Sequence[Value | None]
) -> None:
    """Raise ShapeError for the first value whose dtype its rule does not take.

    The last name and rule stand for all further values.
    """
    for name, rule, value in _each(names, rules, values):
        if isinstance(rule, Like):
            other = values[names.index(rule.input)]
            if other is not None and not rule.fits(value, other):
                raise ShapeError(_unlike(name, value, rule, other))
        elif value.dtype not in rule and not (value.quant and FLOATS & rule):
            raise ShapeError(f"{name} is {value.dtype}, expected {_noun(rule)}")


def _each(
    names: Sequence[str], rules: Sequence[DtypeRule], values: Sequence[Value | None]
) -> Iterator[tuple[str, DtypeRule, Value]]:
    """Yield the name, the rule and the value of each present input with a rule."""
    last = len(rules) - 1
    for position, value in enumerate(values):
        rule = rules[min(position, last)]
        if value is not None and rule is not ANY:
            yield names[min(position, last)], rule, value


def _noun(rule: frozenset[str]) -> str:
    listed = " or ".join(sorted(rule))
    if rule in _NOUNS:
        return _NOUNS[rule]
    return listed if len(rule) <= _MOST_LISTED else f"one of {', '.join(sorted(rule))}"


def _unlike(name: str, value: Value, rule: Like, other: Value) -> str:
    """Return the sentence on a value whose dtype does not fit another input's."""
    if rule.beside and (value.quant or other.quant):
        plain, quantised = (name, rule.input) if value.quant is None else (rule.input, name)
        dtype = value.dtype if value.quant is None else other.dtype
        return f"{plain} is {dtype}, expected {_noun(rule.beside)} beside a quantised {quantised}"
    return f"{name} is {value.dtype}, expected {other.dtype} as {rule.input}"
