"""Mutants of our own source: every place where one small change could be a bug, and the change.

`mutants_of(source)` finds them in a file, `drawn` draws some by a seed, each kind as often.
__main__.py runs the tests against them. What only documents is left alone: annotations, messages of
errors, exported names.
"""

import ast
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

FLIPPED = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
STEPPED = {ast.Add: "-", ast.Sub: "+"}


@dataclass(frozen=True)
class Mutant:
    """One change of a file: the text from `start` to `end` (characters) becomes `new`.

    statement: line and column of the innermost statement around it
    at_import: it runs when the module is imported, not when a function is called
    """

    path: str
    kind: str
    line: int
    start: int
    end: int
    old: str
    new: str
    statement: tuple[int, int]
    at_import: bool

    def applied(self, source: str) -> str:
        """Return the source with the change."""
        assert source[self.start : self.end] == self.old, f"{self.path} has changed"
        return source[: self.start] + self.new + source[self.end :]

    def __str__(self) -> str:
        old, new = (" ".join(text.split())[:60] for text in (self.old, self.new))
        return f"{self.path}:{self.line} {self.kind}: {old} -> {new}"


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Return every mutant of a file whose changed text still parses."""
    return list(_Finder(path, source).found())


def drawn(sources: Mapping[str, str], count: int, seed: int) -> list[Mutant]:
    """Return some mutants of the files, by path: each kind equally often, no statement twice."""
    rng, by_kind = random.Random(seed), {}
    for path in sorted(sources):
        for mutant in mutants_of(path, sources[path]):
            by_kind.setdefault(mutant.kind, []).append(mutant)
    for mutants in by_kind.values():
        rng.shuffle(mutants)
    chosen, seen = [], set()
    while len(chosen) < count and any(by_kind.values()):
        for kind in sorted(by_kind):
            while by_kind[kind] and len(chosen) < count:
                mutant = by_kind[kind].pop()
                if (mutant.path, mutant.statement) not in seen:
                    seen.add((mutant.path, mutant.statement))
                    chosen.append(mutant)
                    break
    return chosen


def moved(mutant: Mutant, before: str, after: str) -> Mutant | None:
    """Return the mutant in a later version of its file, None when its statement is gone.

    It is the one of the same change in the same statement; among several, the nearest line.
    """
    wanted = (mutant.kind, mutant.old, mutant.new, _first_line(before, mutant))
    same = [
        one
        for one in mutants_of(mutant.path, after)
        if (one.kind, one.old, one.new, _first_line(after, one)) == wanted
    ]
    return min(same, key=lambda one: abs(one.line - mutant.line), default=None)


def _first_line(source: str, mutant: Mutant) -> str:
    return source.splitlines()[mutant.statement[0] - 1].strip()


class _Finder:
    """Walks a file's statements and their expressions."""

    def __init__(self, path: str, source: str) -> None:
        self.path, self.source = path, source
        lines = source.splitlines(keepends=True)
        self.starts, self.lines = [0], lines
        for line in lines:
            self.starts.append(self.starts[-1] + len(line))

    def found(self) -> Iterator[Mutant]:
        for statement, at_import in _statements(ast.parse(self.source).body, True):
            for node in _expressions(statement):
                for rule in RULES:
                    for kind, old, new in rule(self, statement, node):
                        yield self._mutant(kind, old, new, statement, at_import)

    def _mutant(
        self, kind: str, old: ast.AST, new: str, statement: ast.stmt, at_import: bool
    ) -> Mutant:
        start, end = self._span(old)
        return Mutant(
            self.path,
            kind,
            old.lineno,
            start,
            end,
            self.source[start:end],
            new,
            (statement.lineno, statement.col_offset),
            at_import,
        )

    def _span(self, node: ast.AST) -> tuple[int, int]:
        return (
            self._at(node.lineno, node.col_offset),
            self._at(node.end_lineno, node.end_col_offset),
        )

    def _at(self, line: int, column: int) -> int:
        text = self.lines[line - 1].encode()[:column].decode()
        return self.starts[line - 1] + len(text)

    def text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self.source[start:end]


Change = tuple[str, ast.AST, str]
Rule = Callable[[_Finder, ast.stmt, ast.AST], Iterator[Change]]


def _comparison(finder: _Finder, _: ast.stmt, node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = finder.text(node.left), finder.text(node.comparators[0])
        yield "comparison", node, f"({left}) {FLIPPED[type(node.ops[0])]} ({right})"


def _off_by_one(finder: _Finder, _: ast.stmt, node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.BinOp) and type(node.op) in STEPPED and _is_int(node.right):
        sign = STEPPED[type(node.op)]
        yield "off by one", node, f"({finder.text(node.left)}) {sign} {finder.text(node.right)}"
    if isinstance(node, ast.Subscript):
        for part in ast.walk(node.slice):
            if _is_int(part):
                yield "off by one", part, str(part.value + 1)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        last = node.args[min(len(node.args), 2) - 1]
        yield "off by one", last, f"({finder.text(last)}) - 1"


def _dropped(_: _Finder, statement: ast.stmt, node: ast.AST) -> Iterator[Change]:
    is_call = isinstance(statement, ast.Expr) and node is statement.value
    if is_call and isinstance(node, ast.Call):
        yield "dropped statement", node, "None"


def _swapped(finder: _Finder, _: ast.stmt, node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Call) and len(node.args) > 1:
        one, two = node.args[:2]
        plain = not isinstance(one, ast.Starred) and not isinstance(two, ast.Starred)
        if plain and finder.text(one) != finder.text(two):
            call = finder.text(node)
            start = finder._span(node)[0]
            (a, b), (c, d) = ((x - start, y - start) for x, y in map(finder._span, (one, two)))
            swapped = call[:a] + call[c:d] + call[b:c] + call[a:b] + call[d:]
            yield "swapped arguments", node, swapped


def _negated(finder: _Finder, _: ast.stmt, node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        yield "negated condition", node.test, f"(not ({finder.text(node.test)}))"


def _constant(_: _Finder, __: ast.stmt, node: ast.AST) -> Iterator[Change]:
    if not isinstance(node, ast.Constant):
        return
    if isinstance(node.value, bool):
        yield "constant", node, str(not node.value)
    elif isinstance(node.value, int):
        yield "constant", node, str(node.value + 1)
    elif isinstance(node.value, float):
        yield "constant", node, repr(node.value * 2 or 1.0)


RULES: list[Rule] = [_comparison, _off_by_one, _dropped, _swapped, _negated, _constant]


def _is_int(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _statements(body: list[ast.stmt], at_import: bool) -> Iterator[tuple[ast.stmt, bool]]:
    """Yield every statement, those within others too, and whether it runs at import."""
    for statement in body:
        if isinstance(statement, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom):
            continue
        yield statement, at_import
        inside = at_import and not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
        for name in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, name, []), inside)
        for part in (*getattr(statement, "handlers", []), *getattr(statement, "cases", [])):
            yield from _statements(part.body, inside)


def _expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the statement and the expressions of its own that decide what the program does."""
    yield statement
    left = [node for node in ast.iter_child_nodes(statement) if _counts(statement, node)]
    while left:
        node = left.pop()
        yield node
        left += [child for child in ast.iter_child_nodes(node) if _counts(node, child)]


def _counts(parent: ast.AST, node: ast.AST) -> bool:
    if isinstance(
        node, ast.stmt | ast.JoinedStr | ast.ExceptHandler | ast.match_case | ast.pattern
    ):
        return False
    if isinstance(parent, ast.FunctionDef | ast.ClassDef | ast.arg):
        return False
    return not (isinstance(parent, ast.AnnAssign) and node is parent.annotation)
