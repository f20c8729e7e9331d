"""The `match` statement as a chain of `if`: tests of patterns, and what these bind.

`statements.py` lowers a match each time that it reads one, with the subject's value, and evaluates
the tests that are made here.
"""

from __future__ import annotations

import ast
import operator
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

from trireme.converters.python.control import Refused
from trireme.converters.python.item_calls import ITEM_CALLS, ItemReader
from trireme.converters.python.lifting import logical
from trireme.converters.python.ordering import chosen, compared
from trireme.converters.python.scope import RowList, Traced

_SEQUENCES = (list, tuple, deque, range, RowList)
_OWN_MATCH = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)
"""Classes whose only positional pattern stands for the whole subject."""
Bound = dict[str, Any]


class PatternReader(ItemReader, Protocol):
    """What a pattern needs of the program that is being read."""

    def evaluate(self, node: ast.expr) -> Any:
        """Return the value of an expression."""


class CaseTest(ast.expr):
    """The test of a case; `bound` holds what its pattern binds, once it is evaluated."""

    def __init__(self, subject: Any, case: ast.match_case) -> None:
        super().__init__()
        self.subject, self.case = subject, case
        self.bound: Bound = {}


class Binding(ast.stmt):
    """Assigns what the pattern of a case binds."""

    def __init__(self, test: CaseTest) -> None:
        super().__init__()
        self.test = test


def lowered(node: ast.Match, subject: Any) -> ast.If:
    """Return a match as a chain of `if`, with the tests of its cases."""
    chain: list[ast.stmt] = []
    for case in reversed(node.cases):
        test = ast.copy_location(CaseTest(subject, case), case.pattern)
        bind = ast.copy_location(Binding(test), case.pattern)
        chain = [ast.copy_location(ast.If(test, [bind, *case.body], chain), case.pattern)]
    first = chain[0]
    assert isinstance(first, ast.If)
    return ast.copy_location(first, node)


def matched(program: PatternReader, pattern: ast.pattern, subject: Any) -> tuple[Any, Bound]:
    """Return whether a pattern fits, a bool or a Traced, and the names that it binds.

    Errors: Refused, if only Python can tell
    """
    found: tuple[Any, Bound] = _PATTERNS[type(pattern)](program, pattern, subject)
    return found


def _both(program: PatternReader, first: Any, second: Any) -> Any:
    if first is False or second is False:
        return False
    known = [one for one in (first, second) if one is not True]
    return logical("and", program.recorder, *known) if len(known) == 2 else (*known, True)[0]


def _value(program: PatternReader, pattern: ast.MatchValue, subject: Any) -> tuple[Any, Bound]:
    value = program.evaluate(pattern.value)
    if isinstance(subject, Traced) and not isinstance(value, (bool, int, float)):
        if subject.shape:
            raise Refused(f"{subject.type} is compared with a {type(value).__name__}")
        return False, {}  # a text, which no number equals
    return compared(program.recorder, program.operate, operator.eq, subject, value), {}


def _singleton(
    program: PatternReader, pattern: ast.MatchSingleton, subject: Any
) -> tuple[Any, Bound]:
    if isinstance(subject, Traced) and pattern.value is not None and subject.type.dtype == "bool":
        raise Refused("numpy's truths are not True and False themselves, as a case needs")
    return subject is pattern.value, {}


def _as(program: PatternReader, pattern: ast.MatchAs, subject: Any) -> tuple[Any, Bound]:
    own = {} if pattern.name is None else {pattern.name: subject}
    if pattern.pattern is None:
        return True, own
    test, bound = matched(program, pattern.pattern, subject)
    return test, bound | own


def _or(program: PatternReader, pattern: ast.MatchOr, subject: Any) -> tuple[Any, Bound]:
    found: Any = False
    bound: Bound = {}
    for one in pattern.patterns:
        test, own = matched(program, one, subject)
        if test is False:
            continue
        if found is False:
            found, bound = test, own
        else:
            bound = {k: chosen(program.recorder, found, bound[k], own[k]) for k in own}
            found = True if test is True else logical("or", program.recorder, found, test)
        if found is True:
            break
    return found, bound


def _sequence(
    program: PatternReader, pattern: ast.MatchSequence, subject: Any
) -> tuple[Any, Bound]:
    if not isinstance(subject, _SEQUENCES):
        return False, {}
    items, parts = program.items(subject, pattern), list(pattern.patterns)
    stars = [(i, one.name) for i, one in enumerate(parts) if isinstance(one, ast.MatchStar)]
    bound: Bound = {}
    for star, name in stars:  # Python's syntax has one at most
        spare = len(items) - len(parts) + 1
        rest = items[star : star + spare]
        if spare < 0:
            return False, {}
        items[star : star + spare] = []
        del parts[star]
        bound = {} if name is None else {name: rest}
    if len(items) != len(parts):
        return False, {}
    return _all(program, zip(parts, items, strict=True), bound)


def _mapping(program: PatternReader, pattern: ast.MatchMapping, subject: Any) -> tuple[Any, Bound]:
    keys = [program.evaluate(key) for key in pattern.keys]
    if not isinstance(subject, Mapping) or any(key not in subject for key in keys):
        return False, {}
    rest = {key: value for key, value in subject.items() if key not in keys}
    bound = {} if pattern.rest is None else {pattern.rest: rest}
    values = [subject[key] for key in keys]
    return _all(program, zip(pattern.patterns, values, strict=True), bound)


def _class(program: PatternReader, pattern: ast.MatchClass, subject: Any) -> tuple[Any, Bound]:
    kind = program.evaluate(pattern.cls)
    if not ITEM_CALLS[isinstance](program, subject, kind):
        return False, {}
    parts = list(pattern.patterns)
    if kind in _OWN_MATCH and parts:
        return matched(program, parts[0], subject)
    names = [*getattr(kind, "__match_args__", ())[: len(parts)], *pattern.kwd_attrs]
    if any(not hasattr(subject, name) for name in names):
        return False, {}
    values = [getattr(subject, name) for name in names]
    return _all(program, zip([*parts, *pattern.kwd_patterns], values, strict=True), {})


def _all(program: PatternReader, pairs: Any, bound: Bound) -> tuple[Any, Bound]:
    found: Any = True
    for part, value in pairs:
        test, own = matched(program, part, value)
        found, bound = _both(program, found, test), bound | own
    return found, bound


_PATTERNS: dict[type[ast.pattern], Any] = {
    ast.MatchValue: _value,
    ast.MatchSingleton: _singleton,
    ast.MatchAs: _as,
    ast.MatchOr: _or,
    ast.MatchSequence: _sequence,
    ast.MatchMapping: _mapping,
    ast.MatchClass: _class,
}
