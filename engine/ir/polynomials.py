"""Polynomials of symbols, and their canonical texts: the arithmetic below ir/dims.py.

An atom of a term is a symbol, or a part: "(h-1)//2", "min(512,seq)".
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache

from trireme.ir.graph import UNKNOWN, Dim
from trireme.support.errors import GraphError

Terms = Mapping[tuple[str, ...], int]
"""A polynomial: coefficients by the sorted atoms of each term. An atom is a symbol or a part."""
CALLS = ("min", "max")
MOST_TERMS = 32
"""The most terms of an expression; a longer one is "?"."""


def sum_of(a: Terms, b: Terms, sign: int) -> Terms:
    """Return a + sign * b."""
    made = dict(a)
    for atoms, factor in b.items():
        made[atoms] = made.get(atoms, 0) + sign * factor
    return made


def product_of(a: Terms, b: Terms) -> Terms:
    """Return a * b."""
    made: dict[tuple[str, ...], int] = {}
    for left, one in a.items():
        for right, other in b.items():
            atoms = tuple(sorted(left + right))
            made[atoms] = made.get(atoms, 0) + one * other
    return made


def call_of(call: str, a: Terms, b: Terms) -> Terms:
    """Return the smaller ("min") or larger ("max") of two as one atom."""
    one, other = sorted((text_of(a), text_of(b)))
    return {(f"{call}({one},{other})",): 1}


def division_of(a: Terms, by: int) -> Terms:
    """Return a // by as one atom."""
    return {(f"({text_of(a)})//{by}",): 1}


def dim_of(terms: Terms) -> Dim:
    """Return the dimension of a polynomial: a number, its text, or "?" for a long one."""
    left = {atoms: factor for atoms, factor in terms.items() if factor}
    if not left:
        return 0
    if set(left) == {()}:
        return left[()]
    return UNKNOWN if len(left) > MOST_TERMS else text_of(left)


def text_of(terms: Terms) -> str:
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
def part_of(atom: str) -> tuple[str, Dim, Dim] | None:
    """Return the operation and the operands of an atom; None for a symbol."""
    tree = _parsed(atom)
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.FloorDiv):
        return "//", dim_of(_of(tree.left)), dim_of(_of(tree.right))
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
        a, b = tree.args
        return tree.func.id, dim_of(_of(a)), dim_of(_of(b))
    return None


@lru_cache(maxsize=4096)
def terms_of(dim: Dim) -> Terms:
    """Return the polynomial of a number or an expression; raise GraphError for any other text."""
    return {(): dim} if isinstance(dim, int) else _of(_parsed(dim))


def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise GraphError(f"dimension {text!r} is no expression of symbols") from error


def _of(tree: ast.expr) -> Terms:
    """Return the polynomial of a parsed expression; raise GraphError for any other text."""
    match tree:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return {(): number}
        case ast.Name(id=name):
            return {(name,): 1}
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return product_of({(): -1}, _of(operand))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return sum_of(_of(left), _of(right), 1)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return sum_of(_of(left), _of(right), -1)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return product_of(_of(left), _of(right))
        case ast.BinOp(left=left, op=ast.FloorDiv(), right=ast.Constant(value=int(by))) if by > 0:
            return division_of(_of(left), by)
        case ast.Call(func=ast.Name(id=name), args=[a, b], keywords=[]) if name in CALLS:
            return call_of(name, _of(a), _of(b))
    raise GraphError(f"dimension {ast.unparse(tree)!r} is no expression of symbols")
