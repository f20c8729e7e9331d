"""Dimensions as expressions of symbols: "seq", "2*batch*seq", "(height-1)//2+1".

A dimension is a number or a text. The text is "?" where only a run can tell, else an expression of
symbols in a canonical form, so that equal polynomials have equal texts. Integer division and the
smaller or larger of two dimensions are parts of an expression too: "min(512,seq)".
"""

from __future__ import annotations

import ast
import keyword
import math
import re
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

from trireme.ir.graph import UNKNOWN, Dim
from trireme.support.errors import GraphError

Bounds = tuple[int, int | None]
"""The least and the most of a dimension; most is None where it has no bound."""
_Terms = Mapping[tuple[str, ...], int]
"""A polynomial: coefficients by the sorted atoms of each term. An atom is a symbol or a part."""
_CALLS = ("min", "max")
MOST_TERMS = 32
"""The most terms of an expression; a longer one is "?"."""


def symbol_name(text: str) -> str:
    """Return a text as the name of a symbol: letters, digits and "_", no digit first."""
    name = re.sub(r"\W", "_", text) or "_"
    return f"_{name}" if name[0].isdecimal() or keyword.iskeyword(name) or name in _CALLS else name


def is_expression(dim: str) -> bool:
    """Whether a text is a symbol, or an expression in the canonical form."""
    try:
        terms = _terms(dim)
        return set(terms) != {()} and _text(terms) == dim
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
    for atoms, factor in _terms(dim).items():
        ends = [(float(factor), float(factor))]
        for atom in atoms:
            ends.append(_times(ends.pop(), _atom_range(atom, symbols)))
        low, high = low + ends[0][0], high + ends[0][1]
    return low, high


def simplified(dim: Dim, symbols: Mapping[str, Bounds]) -> Dim:
    """Return a dimension without the choices that the bounds of its symbols decide."""
    if isinstance(dim, int) or dim == UNKNOWN or "(" not in dim:
        return dim
    made: Dim = 0
    for atoms, factor in _terms(dim).items():
        term: Dim = factor
        for atom in atoms:
            term = multiply(term, _decided(atom, symbols))
        made = add(made, term)
    return made


def substituted(dim: Dim, sizes: Mapping[str, Dim]) -> Dim:
    """Return a dimension with other dimensions in the place of symbols."""
    if isinstance(dim, int) or dim == UNKNOWN:
        return dim
    if dim in sizes:
        return sizes[dim]
    made: Dim = 0
    for atoms, factor in _terms(dim).items():
        term: Dim = factor
        for atom in atoms:
            term = multiply(term, _substituted_atom(atom, sizes))
        made = add(made, term)
    return made


@lru_cache(maxsize=4096)
def symbols_of(dim: Dim) -> frozenset[str]:
    """Return the symbols of a dimension."""
    if isinstance(dim, int) or dim == UNKNOWN:
        return frozenset()
    found: set[str] = set()
    for atoms in _terms(dim):
        for atom in atoms:
            part = _part(atom)
            if part is None:
                found.add(atom)
            else:
                found |= symbols_of(part[1]) | symbols_of(part[2])
    return frozenset(found)


@lru_cache(maxsize=4096)
def _add(a: Dim, b: Dim, sign: int) -> Dim:
    return _dim(_sum(_terms(a), _terms(b), sign))


@lru_cache(maxsize=4096)
def _multiply(a: Dim, b: Dim) -> Dim:
    return _dim(_product(_terms(a), _terms(b)))


def _sum(a: _Terms, b: _Terms, sign: int) -> _Terms:
    made = dict(a)
    for atoms, factor in b.items():
        made[atoms] = made.get(atoms, 0) + sign * factor
    return made


def _product(a: _Terms, b: _Terms) -> _Terms:
    made: dict[tuple[str, ...], int] = {}
    for left, one in a.items():
        for right, other in b.items():
            atoms = tuple(sorted(left + right))
            made[atoms] = made.get(atoms, 0) + one * other
    return made


@lru_cache(maxsize=4096)
def _floor_divide(a: str, by: int) -> Dim:
    """Take out the terms that are whole multiples; divide the rest as one part."""
    whole: dict[tuple[str, ...], int] = {}
    rest: dict[tuple[str, ...], int] = {}
    for atoms, factor in _terms(a).items():
        if factor % by == 0:
            whole[atoms] = factor // by
        else:
            rest[atoms] = factor
    if not rest:
        return _dim(whole)
    if set(rest) == {()}:  # a number alone, below
        whole[()] = whole.get((), 0) + rest[()] // by
        return _dim(whole)
    inner = _inner_division(rest)
    if inner is None:
        return _dim(_sum(whole, _division(rest, by), 1))
    divided, inside = inner
    return _dim(_sum(whole, _terms(floor_divide(divided, inside * by)), 1))


def _inner_division(terms: _Terms) -> tuple[Dim, int] | None:
    """Return (x + c*k, k) where the terms are x//k + c; the same division by more is of these."""
    atoms = [atoms for atoms in terms if atoms]
    if len(atoms) != 1 or len(atoms[0]) != 1 or terms[atoms[0]] != 1:
        return None
    part = _part(atoms[0][0])
    if part is None or part[0] != "//" or not isinstance(part[2], int):
        return None
    return add(part[1], terms.get((), 0) * part[2]), part[2]


@lru_cache(maxsize=4096)
def _exact_divide(a: Dim, b: Dim) -> Dim:
    """Divide polynomials with whole factors, highest term first; "?" if something is left."""
    divisor, rest = _terms(b), dict(_terms(a))
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
        difference = _sum(rest, _product({term: factor}, divisor), -1)
        rest = {term: factor for term, factor in difference.items() if factor}
    return _dim(made)


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
    return _dim(_call(call, _terms(a), _terms(b))) if known is None else known


def _call(call: str, a: _Terms, b: _Terms) -> _Terms:
    one, other = sorted((_text(a), _text(b)))
    return {(f"{call}({one},{other})",): 1}


def _division(a: _Terms, by: int) -> _Terms:
    return {(f"({_text(a)})//{by}",): 1}


def _times(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    """Return the range of a product; 0 times no bound is 0."""
    made = [0.0 if 0 in (x, y) else x * y for x in a for y in b]
    return min(made), max(made)


def _atom_range(atom: str, symbols: Mapping[str, Bounds]) -> tuple[float, float]:
    part = _part(atom)
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
    part = _part(atom)
    if part is None:
        return atom
    call, a, b = part[0], simplified(part[1], symbols), simplified(part[2], symbols)
    if call == "//":
        return floor_divide(a, int(b))
    return _choose(call, a, b) if (one := _known(call, a, b, symbols)) is None else one


def _known(call: str, a: Dim, b: Dim, symbols: Mapping[str, Bounds]) -> Dim | None:
    """Return the operand that bounds decide for; None where they do not."""
    for one, other in ((a, b), (b, a)):
        part = _part(one) if isinstance(one, str) and one.startswith(_CALLS) else None
        if part is not None and other in part[1:]:  # min(other, x) is at most other
            return one if part[0] == call else other
    (low, high), (low2, high2) = range_of(a, symbols), range_of(b, symbols)
    if high <= low2:
        return a if call == "min" else b
    if high2 <= low:
        return b if call == "min" else a
    return None


def _substituted_atom(atom: str, sizes: Mapping[str, Dim]) -> Dim:
    part = _part(atom)
    if part is None:
        return sizes.get(atom, atom)
    call, a, b = part[0], substituted(part[1], sizes), substituted(part[2], sizes)
    return floor_divide(a, int(b)) if call == "//" else _choose(call, a, b)


def _dim(terms: _Terms) -> Dim:
    left = {atoms: factor for atoms, factor in terms.items() if factor}
    if not left:
        return 0
    if set(left) == {()}:
        return left[()]
    return UNKNOWN if len(left) > MOST_TERMS else _text(left)


def _text(terms: _Terms) -> str:
    """Return the canonical text: terms of more atoms first, then in the order of their names."""
    made = ""
    for atoms in sorted(terms, key=lambda atoms: (-len(atoms), atoms)):
        factor = terms[atoms]
        names = "*".join(f"({atom})" if "//" in atom else atom for atom in atoms)
        number = "" if abs(factor) == 1 and names else str(abs(factor))
        sign = "-" if factor < 0 else "+" if made else ""
        made += sign + number + ("*" if number and names else "") + names
    return made or "0"


@lru_cache(maxsize=4096)
def _part(atom: str) -> tuple[str, Dim, Dim] | None:
    """Return the operation and the operands of an atom; None for a symbol."""
    tree = _parsed(atom)
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.FloorDiv):
        return "//", _dim(_of(tree.left)), _dim(_of(tree.right))
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
        a, b = tree.args
        return tree.func.id, _dim(_of(a)), _dim(_of(b))
    return None


@lru_cache(maxsize=4096)
def _terms(dim: Dim) -> _Terms:
    return {(): dim} if isinstance(dim, int) else _of(_parsed(dim))


def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise GraphError(f"dimension {text!r} is no expression of symbols") from error


def _of(tree: ast.expr) -> _Terms:
    """Return the polynomial of a parsed expression; raise GraphError for any other text."""
    match tree:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return {(): number}
        case ast.Name(id=name):
            return {(name,): 1}
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _product({(): -1}, _of(operand))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _sum(_of(left), _of(right), 1)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _sum(_of(left), _of(right), -1)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _product(_of(left), _of(right))
        case ast.BinOp(left=left, op=ast.FloorDiv(), right=ast.Constant(value=int(by))) if by > 0:
            return _division(_of(left), by)
        case ast.Call(func=ast.Name(id=name), args=[a, b], keywords=[]) if name in _CALLS:
            return _call(name, _of(a), _of(b))
    raise GraphError(f"dimension {ast.unparse(tree)!r} is no expression of symbols")
