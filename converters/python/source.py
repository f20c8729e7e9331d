"""Read a Python function: its syntax, its file and lines, and the outer names that it reads."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import os
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from trireme.converters.python.callables import called
from trireme.support.errors import ConvertError

Function = ast.FunctionDef | ast.Lambda
LOOPS = (ast.For, ast.While)
_BLOCKS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True, eq=False)
class FunctionSource:
    """A function as text.

    tree: its syntax, with the line numbers of its file
    scope: the names of its module
    cells: the names of enclosing functions that it reads
    """

    name: str
    file: str
    tree: Function
    scope: dict[str, Any]
    cells: dict[str, Any]

    def place(self, node: ast.AST) -> str:
        """Return the file and the line of a part of the function, as "model.py:12"."""
        return f"{os.path.basename(self.file)}:{getattr(node, 'lineno', self.tree.lineno)}"

    @property
    def parameters(self) -> list[str]:
        """The names of the arguments that may be given by position."""
        return [arg.arg for arg in (*self.tree.args.posonlyargs, *self.tree.args.args)]

    def find(self, name: str) -> tuple[str, Any]:
        """Return the kind ("closure", "global", "builtin") and the value of an outer name.

        name: may be that of a part of a module, as "settings.SCALE"
        Errors: KeyError, if there is no such name
        """
        name, _, part = name.partition(".")
        if part:
            kind, module = self.find(name)
            return kind, vars(module)[part]
        if name in self.cells:
            return "closure", self.cells[name].cell_contents
        if name in self.scope:
            return "global", self.scope[name]
        return "builtin", vars(builtins)[name]


def name_of(tree: Function) -> str:
    """Return the name of a function, for a message."""
    return "the lambda" if isinstance(tree, ast.Lambda) else tree.name


def read_source(function: Callable[..., Any]) -> FunctionSource:
    """Return the source of a function.

    Errors: ConvertError, if there is no source
    """
    name = called(function)
    if not inspect.isfunction(function):
        raise ConvertError(f"{name} is no Python function, so it has no source to capture")
    code = function.__code__
    try:
        tree = _tree(code)
    except (OSError, TypeError, SyntaxError) as error:
        raise ConvertError(
            f"the source of {name} cannot be read: {error}",
            fix="write the function in a file; trireme.trace needs no source",
        ) from error
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    return FunctionSource(name, code.co_filename, tree, function.__globals__, cells)


@functools.cache
def _tree(code: CodeType) -> Function:
    """Return the definition of a function: one object for one code, with the lines of its file."""
    if code.co_name == "<lambda>":
        return _lambda(code)
    lines, first = inspect.getsourcelines(code)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    ast.increment_lineno(tree, max(first, 1) - 1)
    found = tree.body[0]
    if not isinstance(found, ast.FunctionDef):
        raise ConvertError(f"line {first} holds no `def`")
    return found


def _lambda(code: CodeType) -> ast.Lambda:
    """Return the lambda of a code: its lines may hold several, and a part of a statement."""
    lines, _ = inspect.findsource(code)
    names = list(code.co_varnames[: code.co_argcount])
    places = [
        (line, column)
        for line, _, column, end in list(code.co_positions())[1:]  # after RESUME
        if line is not None and column is not None and column != end
    ]
    found = [
        node
        for node in ast.walk(ast.parse("".join(lines)))
        if isinstance(node, ast.Lambda)
        and node.lineno == code.co_firstlineno
        and [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)] == names
        and all(_begin(node.body) <= place < _end(node.body) for place in places)
    ]
    if not found or (len(found) > 1 and not places):
        where = f"line {code.co_firstlineno}"
        raise ConvertError(f"{len(found)} lambdas on {where} could be the function")
    return max(found, key=lambda node: _begin(node.body))  # the innermost


def _begin(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.expr) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def body_of(tree: Function) -> list[ast.stmt]:
    """Return the statements of a function; of a lambda, the return of its expression."""
    if isinstance(tree, ast.Lambda):
        return [ast.copy_location(ast.Return(tree.body), tree.body)]
    return tree.body


def stored_names(statements: list[ast.stmt]) -> set[str]:
    """Return the names that statements assign, nested functions' own names left out."""
    found: set[str] = set()
    for node in own_nodes(statements):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.MatchAs | ast.MatchStar | ast.MatchMapping):
            name = node.rest if isinstance(node, ast.MatchMapping) else node.name
            found |= set() if name is None else {name}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(one.asname or one.name).split(".")[0] for one in node.names}
    return found


def changed_names(statements: list[ast.stmt]) -> set[str]:
    """Return the variables whose arrays statements change: x += v, x[i] = v, np.add.at(x, i, v)."""
    found: set[str] = set()
    for node in own_nodes(statements):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif combined(node):
            found.add(combined(node))
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            found.add(base_name(node))
    return found - {""}


def sets_first(statements: list[ast.stmt], name: str) -> bool:
    """Whether statements give a variable another value before they change its array."""
    for statement in statements:
        if name in changed_names([statement]):
            return False
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if any(isinstance(one, ast.Name) and one.id == name for one in targets):
            return True
    return False


def combined(node: ast.AST) -> str:
    """Return the variable of `np.add.at(x, key, value)`; "" for anything else."""
    if not isinstance(node, ast.Call) or len(node.args) != 3 or node.keywords:
        return ""
    is_at = isinstance(node.func, ast.Attribute) and node.func.attr == "at"
    return node.args[0].id if is_at and isinstance(node.args[0], ast.Name) else ""


def base_name(target: ast.expr) -> str:
    """Return the variable that holds an item, as `x` of `x[0][1]`; "" where there is none."""
    while isinstance(target, ast.Subscript):
        target = target.value
    return target.id if isinstance(target, ast.Name) else ""


def outer_names(statements: list[ast.stmt]) -> set[str]:
    """Return the names that statements declare as nonlocal or global."""
    nodes = own_nodes(statements)
    return {n for node in nodes if isinstance(node, ast.Nonlocal | ast.Global) for n in node.names}


def nonlocal_names(statements: list[ast.stmt]) -> set[str]:
    """Return the outer names that functions nested in statements may assign."""
    inner = [node for one in statements for node in ast.walk(one) if isinstance(node, ast.Nonlocal)]
    return {name for node in inner for name in node.names}


def leaves_loop(statements: list[ast.stmt]) -> bool:
    """Whether statements of a loop's body can end the loop: a break of it, or a return."""
    for statement in statements:
        if isinstance(statement, ast.Break | ast.Return):
            return True
        if isinstance(statement, _BLOCKS):
            continue
        if isinstance(statement, LOOPS):
            returns = any(isinstance(node, ast.Return) for node in own_nodes(statement.body))
            if returns or leaves_loop(statement.orelse):
                return True
        elif any(map(leaves_loop, _bodies(statement))):
            return True
    return False


def _bodies(statement: ast.stmt) -> list[list[ast.stmt]]:
    """Return the statements inside one that is no loop, as lists of those that run in order."""
    if isinstance(statement, ast.If | ast.Try):
        return [statement.body, statement.orelse]
    if isinstance(statement, ast.With):
        return [statement.body]
    return []


def always_exits(statements: list[ast.stmt]) -> bool:
    """Whether every path through statements ends at a return, a break or a continue."""
    if not statements:
        return False
    last = statements[-1]
    if isinstance(last, ast.If):
        return always_exits(last.body) and always_exits(last.orelse)
    if isinstance(last, ast.With):
        return always_exits(last.body)
    return isinstance(last, ast.Return | ast.Break | ast.Continue)


def own_nodes(statements: list[ast.stmt]) -> list[ast.AST]:
    """Return every node of statements but those inside nested functions."""
    found: list[ast.AST] = []
    waiting: list[ast.AST] = list(statements)
    while waiting:
        node = waiting.pop()
        found.append(node)
        if not isinstance(node, _BLOCKS):
            waiting.extend(ast.iter_child_nodes(node))
    return found


def is_total(node: ast.expr) -> bool:
    """Whether an expression cannot fail at a run, so it may run where Python would skip it."""
    if isinstance(node, (ast.Name, ast.Constant)):
        return True
    if isinstance(node, ast.BinOp):
        total = isinstance(node.op, (ast.Add, ast.Sub, ast.Mult))
        return total and is_total(node.left) and is_total(node.right)
    if isinstance(node, ast.UnaryOp):
        return is_total(node.operand)
    if isinstance(node, ast.BoolOp):
        return all(map(is_total, node.values))
    return isinstance(node, ast.Compare) and all(map(is_total, (node.left, *node.comparators)))


def spoken(node: ast.AST) -> str:
    """Return the kind of a node, for a message."""
    return {
        "Await": "await",
        "Yield": "yield",
        "YieldFrom": "yield",
    }.get(type(node).__name__, type(node).__name__.lower())
