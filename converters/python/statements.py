"""Read the statements of a captured program that are no branches and no loops.

Each statement that no graph can express is noted with its place; a Python operator stands for it
where one can.
"""

from __future__ import annotations

import ast
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import resolve_name
from types import ModuleType
from typing import Any

import numpy as np

from trireme.converters.python.assign import as_one_key, augmented, updated
from trireme.converters.python.callables import bound_to
from trireme.converters.python.contexts import enter
from trireme.converters.python.control import Refused
from trireme.converters.python.expressions import Expressions
from trireme.converters.python.fallback import run_in_python
from trireme.converters.python.iteration import Generated, kind_of
from trireme.converters.python.lifting import contains_traced
from trireme.converters.python.ordering import replaced
from trireme.converters.python.outer import OuterName, is_iterator
from trireme.converters.python.python_calls import truth
from trireme.converters.python.scope import Recorder, Traced
from trireme.converters.python.sharing import is_array
from trireme.converters.python.source import (
    base_name,
    changed_names,
    combined,
    stored_names,
)
from trireme.converters.python.state import (
    MUTABLE,
    UNSET,
    Lost,
    faults_in,
)
from trireme.converters.python.syntax_operators import BINARY
from trireme.support.errors import InternalError, TriremeError

RETURNED, BREAK, CONTINUE, RESULT = "<returned>", "<break>", "<continue>", "<return>"
EXITS = (RETURNED, BREAK, CONTINUE)
TEST = "_test"


class Statements(Expressions, ABC):
    """Reads statements; branches, loops and calls are read by its subclasses.

    fallback: whether a Python operator may stand for a statement that no graph can express
    fallbacks: the statements for which one does, with their places and reasons
    """

    def __init__(self, recorder: Recorder, fallback: bool) -> None:
        super().__init__(recorder)
        self.fallback = fallback
        self.fallbacks: dict[tuple[str, str], None] = {}
        self.readers: dict[type[ast.stmt], Callable[[Any], None]] = {
            ast.Assign: self._assign,
            ast.AnnAssign: self._annotated,
            ast.AugAssign: self._augmented,
            ast.Expr: self._expression,
            ast.Return: self._return,
            ast.Pass: lambda node: None,
            ast.FunctionDef: self._define,
            ast.Import: self._import,
            ast.ImportFrom: self._import,
            ast.Assert: self._assert,
            ast.With: self._with,
            ast.Nonlocal: lambda node: None,
            ast.Raise: self._raise,
            ast.Delete: self._delete,
        }

    @abstractmethod
    def block(self, statements: Sequence[ast.stmt]) -> None:
        """Read statements one after another."""

    def _statement(self, statement: ast.stmt) -> None:
        self.node = statement
        reader = self.readers.get(type(statement))
        with self.reported(statement):
            if reader is None:
                raise Refused(f"a `{_WORDS.get(type(statement), 'statement')}` cannot be captured")
            reader(statement)

    @contextmanager
    def reported(self, statement: ast.stmt) -> Iterator[None]:
        """Run in Python, or note as refused, a statement that cannot be read."""
        try:
            yield
        except InternalError:
            raise
        except Exception as error:  # the program's own code may raise anything
            self._report(statement, error)

    def _report(self, statement: ast.stmt, error: Exception) -> None:
        """Run a statement that no graph can express in Python, or note it as refused."""
        if self._falls_back(statement, error):
            return
        why = error.why if isinstance(error, Refused) else ""
        if not isinstance(error, Refused):
            why = f"{type(error).__name__}: {error}"
        if isinstance(error, TriremeError):
            why = error.summary
        if why:
            line = ast.unparse(statement).split("\n")[0]
            self.places[self.frame.source.place(statement), f"`{line}`: {why}"] = None
        for name in stored_names([statement]) | changed_names([statement]):
            holder = self.frame.holder(name)
            if holder is not None:
                holder.names[name] = Lost("")
        if isinstance(statement, ast.Return):
            self.frame.names |= {RETURNED: True, RESULT: Lost("")}

    def _falls_back(self, statement: ast.stmt, error: Exception) -> bool:
        """Whether a Python operator stands for a statement now."""
        made = self._in_python(statement, error)
        if made is None:
            return False
        if isinstance(statement, ast.Return):
            (result,) = made.values()
            self.frame.names |= {RESULT: result, RETURNED: True}
            return True
        for name, value in made.items():
            self.store(ast.Name(name, ast.Store()), value)
        return True

    def _in_python(self, statement: ast.stmt, error: Exception) -> dict[str, Any] | None:
        """Return what a statement assigns, by a Python operator; None where none can stand for it.

        error: why no graph can express the statement
        """
        why = f"{type(error).__name__}: {error}".split("\n")[0]
        if isinstance(error, Refused):
            why = "" if error.final else error.why
        if not self.fallback or not why:
            return None
        try:
            made = run_in_python(self.recorder, self.frame.source, statement, self._variable)
        except InternalError:
            raise
        except Exception:  # the statement fails in Python too, or cannot stand alone
            return None
        line = ast.unparse(statement).split("\n")[0].removeprefix(f"{TEST} = ")
        self.fallbacks[self.frame.source.place(statement), f"`{line}`: {why}"] = None
        return made

    def tested(self, test: ast.expr) -> Any:
        """Return whether the test of an `if` or a `while` holds; a Python operator may say so."""
        try:
            return self.truth(test)
        except InternalError:
            raise
        except Exception as error:
            statement = ast.copy_location(ast.Assign([ast.Name(TEST, ast.Store())], test), test)
            made = self._in_python(ast.fix_missing_locations(statement), error)
            if made is None:
                raise
            found = made.pop(TEST)
            for name, value in made.items():
                self.store(ast.Name(name, ast.Store()), value)
            return truth(self.recorder, found)

    def _variable(self, name: str) -> Any:
        holder = self.frame.holder(name)
        if holder is None or holder.names.get(name, UNSET) is UNSET:
            raise KeyError(name)
        return holder.names[name]

    def where(self) -> str:
        """Return the place of the statement that is being read."""
        return self.frame.source.place(self.node)

    def _assign(self, node: ast.Assign) -> None:
        value = self.evaluate(node.value)
        for target in node.targets:
            self.store(target, value)

    def _annotated(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.store(node.target, self.evaluate(node.value))

    def _augmented(self, node: ast.AugAssign) -> None:
        target = ast.parse(ast.unparse(node.target), mode="eval").body
        ast.copy_location(target, node)
        old, value = self.evaluate(target), self.evaluate(node.value)
        if isinstance(old, (list, deque)) and isinstance(node.op, ast.Add):
            old.extend(self.items(value, node))
            return
        made = self.operate(BINARY[type(node.op)], old, value)
        if isinstance(node.target, ast.Name) or self._is_item(target):
            made = augmented(self.recorder, self.names(), base_name(target), old, made)
        self.store(node.target, made)

    def _is_item(self, target: ast.expr) -> bool:
        """Whether a target is an item of a list or a dict."""
        return isinstance(target, ast.Subscript) and isinstance(
            self.evaluate(target.value), MUTABLE
        )

    def _expression(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call) and self._combine(node.value):
            return
        if not isinstance(node.value, ast.Constant):
            self.evaluate(node.value)

    def _combine(self, node: ast.Call) -> bool:
        """Read `np.add.at(x, key, value)`; return whether it is such a call."""
        name = combined(node)
        ufunc = bound_to(self.evaluate(node.func)) if name else None
        if not isinstance(ufunc, np.ufunc):
            return False
        old, key, value = map(self.evaluate, node.args)
        if not is_array(old):
            return False
        made = updated(self.recorder, self.names(), name, old, key, value, ufunc)
        self.store(ast.Name(name, ast.Store()), made)
        return True

    def _return(self, node: ast.Return) -> None:
        value = None if node.value is None else self.evaluate(node.value)
        fault = next(faults_in(value), None)
        if fault is not None:
            raise Refused(fault.why if isinstance(fault, Lost) else "a part may not be set here")
        self.frame.names |= {RESULT: value, RETURNED: True}

    def store(self, target: ast.expr, value: Any) -> None:
        """Assign a value to a target."""
        if hasattr(value, "__next__") and not isinstance(target, (ast.Tuple, ast.List)):
            raise Refused(
                f"{ast.unparse(target)} is an iterator, and how far it was read changes at a run; "
                "make it a list",
                final=True,
            )
        value = list(value) if isinstance(value, Generated) else value
        if isinstance(target, ast.Name):
            holder = self.frame.holder(target.id)
            if holder is None:
                raise Refused(f"the global {target.id!r} is assigned", final=True)
            holder.names[target.id] = value
            if isinstance(value, Traced):
                self.recorder.name(value, target.id)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target, self.items(value, target))
        elif isinstance(target, ast.Subscript):
            self._store_item(target, value)
        else:
            raise Refused(
                "an attribute of an object is assigned; return the value instead", final=True
            )

    def _unpack(self, target: ast.Tuple | ast.List, values: list[Any]) -> None:
        starred = [i for i, one in enumerate(target.elts) if isinstance(one, ast.Starred)]
        count = len(target.elts)
        if starred:
            spare = len(values) - count + 1
            at = starred[0]
            values = [*values[:at], values[at : at + spare], *values[at + spare :]]
        if len(values) != count:
            raise Refused(f"{len(values)} values are assigned to {count} names")
        for one, value in zip(target.elts, values, strict=True):
            self.store(one.value if isinstance(one, ast.Starred) else one, value)

    def _store_item(self, target: ast.Subscript, value: Any) -> None:
        self._put(target.value, self.evaluate(target.slice), value)

    def _put(self, holder: ast.expr, key: Any, value: Any) -> None:
        """Assign to holder[key]: y[i][j] = v is y[i, j] = v where y[i] is a row."""
        old = self.evaluate(holder)
        if isinstance(old, (list, dict, deque)):
            if contains_traced(key):
                self._put_anywhere(old, key, value)
            else:
                old[key] = value
            return
        names = self.names()
        if isinstance(holder, ast.Name) and isinstance(old, (Traced, np.ndarray)):
            self.store(holder, updated(self.recorder, names, holder.id, old, key, value))
            return
        if isinstance(holder, ast.Subscript) and is_array(old):
            outer, place = self.evaluate(holder.value), self.evaluate(holder.slice)
            if isinstance(outer, (list, dict, deque)):
                made = updated(self.recorder, names, base_name(holder), old, key, value)
                self._put(holder.value, place, made)
                return
            whole = as_one_key(place, key)
            if whole is not None:
                self._put(holder.value, whole, value)
                return
        raise Refused("an element of this is assigned; assign elements of a variable's array")

    def _put_anywhere(self, old: Any, key: Any, value: Any) -> None:
        """Assign to an item of a list at a place that only a run knows."""
        if not isinstance(old, list) or not isinstance(key, Traced):
            raise Refused(f"a {kind_of(old)} is changed at a place that only a run knows")
        old[:] = replaced(self.recorder, old, key, value)

    def _delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if not isinstance(target, ast.Name):
                raise Refused("a part of an object is deleted")
            holder = self.frame.holder(target.id)
            if holder is not None:
                holder.names[target.id] = UNSET

    def _define(self, node: ast.FunctionDef) -> None:
        if node.decorator_list:
            raise Refused(f"the nested function {node.name} has a decorator")
        self.frame.names[node.name] = self.nested(node)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        scope = dict(self.frame.source.scope)
        module = ast.Module([node], [])
        exec(compile(module, self.frame.source.file, "exec"), scope)
        for name in stored_names([node]):
            self.frame.names[name] = scope[name]
        if isinstance(node, ast.ImportFrom):
            package = scope.get("__package__") or ""
            name = resolve_name("." * node.level + (node.module or ""), package)
            for one in node.names:
                self._note_imported(sys.modules[name], one, node)

    def _note_imported(self, module: ModuleType, one: ast.alias, node: ast.ImportFrom) -> None:
        """Note a part of a module: it is a constant of the graph, as a global is."""
        value = self.frame.names[one.asname or one.name]
        if isinstance(value, ModuleType):
            return
        if is_iterator(value):
            raise Refused(f"{one.name} is an iterator, which each call reads on", final=True)
        name, source = f"{module.__name__.rpartition('.')[2]}.{one.name}", self.frame.source
        read = OuterName(source, name, value, source.place(node), module)
        self.outer.setdefault((id(module), name), read)

    def _assert(self, node: ast.Assert) -> None:
        known = self.truth(node.test)
        if isinstance(known, Traced):
            raise Refused("an assert depends on a tensor; a graph does not stop", final=True)
        if not known:
            raise Refused("the assert fails", final=True)

    def _raise(self, node: ast.Raise) -> None:
        raise Refused("an exception is raised here; a graph does not stop", final=True)

    def _with(self, node: ast.With) -> None:
        with ExitStack() as stack:
            for item in node.items:
                entered = enter(stack, self.evaluate(item.context_expr))
                if item.optional_vars is not None:
                    self.store(item.optional_vars, entered)
            self.block(node.body)


_WORDS: dict[type[ast.stmt], str] = {
    ast.Try: "try",
    ast.Match: "match",
    ast.Global: "global",
    ast.ClassDef: "class",
    ast.AsyncFunctionDef: "async def",
    ast.AsyncFor: "async for",
    ast.AsyncWith: "async with",
}
