"""Dimensions as expressions of symbols: "seq", "2*batch*seq", "(height-1)//2+1".

A dimension is a number or a text. The text is "?" where only a run can tell, else an expression of
symbols in a canonical form, so that equal polynomials have equal texts. Integer division and the
smaller or larger of two dimensions are parts of an expression too: "min(512,seq)".
"""

from __future__ import annotations

import keyword
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache

from trireme.ir.graph import ANY_DIMS, UNKNOWN, Dim
from trireme.ir.polynomials import (
    CALLS,
    MOST_TERMS,
    Terms,
    call_of,
    dim_of,
    division_of,
    part_of,
    product_of,
    sum_of,
    terms_of,
    text_of,
)
from trireme.support.errors import GraphError

Bounds = tuple[int, int | None]
"""The least and the most of a dimension; most is None where it has no bound."""
_MOST_CHOICES = 4
"""The most choices of an expression whose range is looked at closely."""


def symbol_name(text: str) -> str:
    """Return a text as the name of a symbol: letters, digits and "_", no digit first."""
    name = re.sub(r"\W", "_", text) or "_"
    return f"_{name}" if name[0].isdecimal() or keyword.iskeyword(name) or name in CALLS else name


def is_expression(dim: str) -> bool:
    """Whether a text is a symbol, or an expression in the canonical form."""
    try:
        terms = terms_of(dim)
        return set(terms) != {()} and text_of(terms) == dim
    except GraphError:
        return False


def add(a: Dim, b: Dim) -> Dim:
    """Return a + b."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if UNKNOWN in (a, b):
        return UNKNOWN
    return _add(a, b, 1)


def subtract(a: Dim, b: Dim) -> Dim:
    """Return a - b."""
    if isinstance(a, int) and isinstance(b, int):
        return a - b
    if UNKNOWN in (a, b):
        return UNKNOWN
    return _add(a, b, -1)


def multiply(a: Dim, b: Dim) -> Dim:
    """Return a * b; 0 where either is 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if a == 0 or b == 0:
        return 0
    if UNKNOWN in (a, b):
        return UNKNOWN
    return _multiply(a, b)


def floor_divide(a: Dim, by: int) -> Dim:
    """Return a // by for a number above 0."""
    if isinstance(a, int):
        return a // by
    if a == UNKNOWN or by < 1:
        return UNKNOWN
    return _floor_divide(a, by)


def exact_divide(a: Dim, b: Dim) -> Dim:
    """Return a / b where it is certainly a whole number, else "?"."""
    if UNKNOWN in (a, b) or b == 0:
        return UNKNOWN
    if isinstance(a, int) and isinstance(b, int):
        return a // b if a % b == 0 else UNKNOWN
    if a == b:
        return 1
    return _exact_divide(a, b)


def smaller(a: Dim, b: Dim) -> Dim:
    """Return the smaller of two."""
    return _choose("min", a, b)


def larger(a: Dim, b: Dim) -> Dim:
    """Return the larger of two."""
    return _choose("max", a, b)


def common_factor(dim: str) -> int:
    """Return the largest number that certainly divides a dimension; 1 where it is "?"."""
    return 1 if dim == UNKNOWN else math.gcd(*terms_of(dim).values())


def bounds_of(dim: Dim, symbols: Mapping[str, Bounds]) -> Bounds:
    """Return bounds of a dimension, given those of its symbols; a symbol is 0 or more."""
    low, high = range_of(dim, symbols)
    least = int(low) if 0 < low < math.inf else 0
    return least, int(high) if math.isfinite(high) else None


def range_of(dim: Dim, symbols: Mapping[str, Bounds]) -> tuple[float, float]:
    """Return the least and the most of an expression, which may be below 0 or infinite."""
    if isinstance(dim, int):
        return dim, dim
    if dim == UNKNOWN:
        return 0, math.inf
    low, high = 0.0, 0.0
    for atoms, factor in terms_of(dim).items():
        ends = [(float(factor), float(factor))]
        for atom in atoms:
            ends.append(_times(ends.pop(), _atom_range(atom, symbols)))
        low, high = low + ends[0][0], high + ends[0][1]
    for rest, least, most in _remainders(dim):
        low2, high2 = range_of(rest, symbols)
        low, high = max(low, low2 + least), min(high, high2 + most)
    for choose, one, other in _choices(dim):
        (low2, high2), (low3, high3) = range_of(one, symbols), range_of(other, symbols)
        low, high = max(low, choose(low2, low3)), min(high, choose(high2, high3))
    return low, high


@lru_cache(maxsize=4096)
def _choices(dim: str) -> tuple[tuple[Callable[[float, float], float], Dim, Dim], ...]:
    """Return (min or max, a, b): an expression is this of the two, each without the first choice.

    Empty for an expression without choices, and for one of many.
    """
    terms = terms_of(dim)
    parts = [(atoms, part_of(atoms[0])) for atoms in terms if len(atoms) == 1]
    choices = [(atoms, part) for atoms, part in parts if part is not None and part[0] in CALLS]
    if not choices or len(choices) > _MOST_CHOICES:
        return ()
    (atoms, (call, *operands)), factor = choices[0], terms[choices[0][0]]
    rest = {term: n for term, n in terms.items() if term != atoms}
    a, b = (dim_of(sum_of(rest, terms_of(one), factor)) for one in operands)
    if UNKNOWN in (a, b):
        return ()
    return ((min if (call == "min") == (factor > 0) else max, a, b),)


@lru_cache(maxsize=4096)
def _remainders(dim: str) -> tuple[tuple[Dim, int, int], ...]:
    """Return (rest, least, most) of each c*(x - k*(x//k)) that is part of an expression.

    Such a part is between 0 and c*(k-1). The rest is shorter than the expression.
    """
    terms, found = terms_of(dim), []
    for atoms, factor in terms.items():
        part = part_of(atoms[0]) if len(atoms) == 1 else None
        if part is None or part[0] != "//" or not isinstance(part[2], int) or factor % part[2]:
            continue
        c, x = -factor // part[2], terms_of(part[1])
        rest = sum_of({term: n for term, n in terms.items() if term != atoms}, x, -c)
        made = dim_of(rest)
        if isinstance(made, int) or (made != UNKNOWN and len(terms_of(made)) < len(terms)):
            most = c * (part[2] - 1)
            found.append((made, min(0, most), max(0, most)))
    return tuple(found)


def simplified(dim: Dim, symbols: Mapping[str, Bounds]) -> Dim:
    """Return a dimension without the choices that the bounds of its symbols decide."""
    if isinstance(dim, int) or dim == UNKNOWN or "(" not in dim:
        return dim
    made: Dim = 0
    for atoms, factor in terms_of(dim).items():
        term: Dim = factor
        for atom in atoms:
            term = multiply(term, _decided(atom, symbols))
        made = add(made, term)
    return made


def substituted(dim: Dim, sizes: Mapping[str, Dim]) -> Dim:
    """Return a dimension with other dimensions in the place of symbols."""
    if isinstance(dim, int) or dim in (UNKNOWN, ANY_DIMS):
        return dim
    if dim in sizes:
        return sizes[dim]
    made: Dim = 0
    for atoms, factor in terms_of(dim).items():
        term: Dim = factor
        for atom in atoms:
            term = multiply(term, _substituted_atom(atom, sizes))
        made = add(made, term)
    return made


@lru_cache(maxsize=4096)
def symbols_of(dim: Dim) -> frozenset[str]:
    """Return the symbols of a dimension."""
    if isinstance(dim, int) or dim in (UNKNOWN, ANY_DIMS):
        return frozenset()
    found: set[str] = set()
    for atoms in terms_of(dim):
        for atom in atoms:
            part = part_of(atom)
            if part is None:
                found.add(atom)
            else:
                found |= symbols_of(part[1]) | symbols_of(part[2])
    return frozenset(found)


@lru_cache(maxsize=4096)
def _add(a: Dim, b: Dim, sign: int) -> Dim:
    return dim_of(sum_of(terms_of(a), terms_of(b), sign))


@lru_cache(maxsize=4096)
def _multiply(a: Dim, b: Dim) -> Dim:
    return dim_of(product_of(terms_of(a), terms_of(b)))


@lru_cache(maxsize=4096)
def _floor_divide(a: str, by: int) -> Dim:
    """Take out the terms that are whole multiples; divide the rest as one part."""
    whole: dict[tuple[str, ...], int] = {}
    rest: dict[tuple[str, ...], int] = {}
    for atoms, factor in terms_of(a).items():
        if factor % by == 0:
            whole[atoms] = factor // by
        else:
            rest[atoms] = factor
    if not rest:
        return dim_of(whole)
    if set(rest) == {()}:  # a number alone, below
        whole[()] = whole.get((), 0) + rest[()] // by
        return dim_of(whole)
    inner = _inner_division(rest)
    if inner is None:
        return dim_of(sum_of(whole, division_of(rest, by), 1))
    divided, inside = inner
    return dim_of(sum_of(whole, terms_of(floor_divide(divided, inside * by)), 1))


def _inner_division(terms: Terms) -> tuple[Dim, int] | None:
    """Return (x + c*k, k) where the terms are x//k + c; the same division by more is of these."""
    atoms = [atoms for atoms in terms if atoms]
    if len(atoms) != 1 or len(atoms[0]) != 1 or terms[atoms[0]] != 1:
        return None
    part = part_of(atoms[0][0])
    if part is None or part[0] != "//" or not isinstance(part[2], int):
        return None
    return add(part[1], terms.get((), 0) * part[2]), part[2]


@lru_cache(maxsize=4096)
def _exact_divide(a: Dim, b: Dim) -> Dim:
    """Divide polynomials with whole factors, highest term first; "?" if something is left."""
    divisor, rest = terms_of(b), dict(terms_of(a))
    atoms = sorted({atom for term in (*divisor, *rest) for atom in term})

    def rank(term: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(map(term.count, atoms))

    highest = max(divisor, key=rank)
    made: dict[tuple[str, ...], int] = {}
    while rest:
        top = max(rest, key=rank)
        factor, left = divmod(rest[top], divisor[highest])
        if left or Counter(highest) - Counter(top) or len(made) == MOST_TERMS:
            return UNKNOWN
        term = tuple(sorted((Counter(top) - Counter(highest)).elements()))
        made[term] = factor
        difference = sum_of(rest, product_of({term: factor}, divisor), -1)
        rest = {term: factor for term, factor in difference.items() if factor}
    return dim_of(made)


@lru_cache(maxsize=4096)
def _choose(call: str, a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b) if call == "min" else max(a, b)
    if UNKNOWN in (a, b):
        return UNKNOWN
    apart = _add(a, b, -1)
    if isinstance(apart, int):
        return a if (apart < 0) == (call == "min") else b
    known = _known(call, a, b, {})
    return dim_of(call_of(call, terms_of(a), terms_of(b))) if known is None else known


def _times(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    """Return the range of a product; 0 times no bound is 0."""
    made = [0.0 if 0 in (x, y) else x * y for x in a for y in b]
    return min(made), max(made)


def _atom_range(atom: str, symbols: Mapping[str, Bounds]) -> tuple[float, float]:
    part = part_of(atom)
    if part is None:
        least, most = symbols.get(atom, (0, None))
        return least, math.inf if most is None else most
    call, a, b = part
    (low, high), (low2, high2) = range_of(a, symbols), range_of(b, symbols)
    if call == "//":
        return low // low2 if low > -math.inf else low, high if math.isinf(high) else high // low2
    choose = min if call == "min" else max
    return choose(low, low2), choose(high, high2)


def _decided(atom: str, symbols: Mapping[str, Bounds]) -> Dim:
    part = part_of(atom)
    if part is None:
        return atom
    call, a, b = part[0], simplified(part[1], symbols), simplified(part[2], symbols)
    if call == "//":
        return floor_divide(a, int(b))
    return _choose(call, a, b) if (one := _known(call, a, b, symbols)) is None else one


def _known(call: str, a: Dim, b: Dim, symbols: Mapping[str, Bounds]) -> Dim | None:
    """Return the operand that bounds decide for; None where they do not."""
    for one, other in ((a, b), (b, a)):
        part = part_of(one) if isinstance(one, str) and one.startswith(CALLS) else None
        if part is not None and other in part[1:]:  # min(other, x) is at most other
            return one if part[0] == call else other
    low, high = range_of(subtract(a, b), symbols)
    if high <= 0:
        return a if call == "min" else b
    if low >= 0:
        return b if call == "min" else a
    return None


def _substituted_atom(atom: str, sizes: Mapping[str, Dim]) -> Dim:
    part = part_of(atom)
    if part is None:
        return sizes.get(atom, atom)
    call, a, b = part[0], substituted(part[1], sizes), substituted(part[2], sizes)
    return floor_divide(a, int(b)) if call == "//" else _choose(call, a, b)
