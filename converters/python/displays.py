"""Evaluate what makes containers: displays, comprehensions and formatted strings."""

from __future__ import annotations

import ast
import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from trireme.converters.python.calls import binary, contains_traced, rows_of
from trireme.converters.python.control import Refused
from trireme.converters.python.iteration import Counts, Numbered, Zipped
from trireme.converters.python.scope import Traced
from trireme.converters.python.state import Frame, Nested
from trireme.converters.python.turns import Repetitions


class Displays(Repetitions, ABC):
    """Evaluates displays in the frame of the function that is being read."""

    frame: Frame

    @abstractmethod
    def evaluate(self, node: ast.expr) -> Any:
        """Return the value of an expression."""

    @abstractmethod
    def truth(self, node: ast.expr) -> Any:
        """Return whether an expression counts as true: a bool, or a Traced of bool."""

    @abstractmethod
    def store(self, target: ast.expr, value: Any) -> None:
        """Assign a value to a target."""

    @abstractmethod
    def entered(self, frame: Frame) -> AbstractContextManager[None]:
        """Return a context in which a frame is the innermost."""

    def parts(self, nodes: Sequence[ast.expr]) -> list[Any]:
        """Return the values of expressions, in which `*x` stands for the items of x."""
        values: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                values.extend(self.items(self.evaluate(node.value), node))
            else:
                values.append(self.evaluate(node))
        return values

    def _tuple(self, node: ast.Tuple) -> tuple[Any, ...]:
        return tuple(self.parts(node.elts))

    def _list(self, node: ast.List) -> list[Any]:
        return self.parts(node.elts)

    def _dict(self, node: ast.Dict) -> dict[Any, Any]:
        if any(key is None for key in node.keys):
            raise Refused("a dict is made of another by **", node)
        keys = [self.evaluate(key) for key in node.keys if key is not None]
        if contains_traced(keys):
            raise Refused("a key of a dict is known only at a run", node)
        return dict(zip(keys, (self.evaluate(value) for value in node.values), strict=True))

    def _text(self, node: ast.JoinedStr) -> str:
        parts = []
        for part in node.values:
            value = self.evaluate(part.value if isinstance(part, ast.FormattedValue) else part)
            if contains_traced(value):
                raise Refused("a text holds a value that only a run knows", node)
            parts.append(format(value, ""))
        return "".join(parts)

    def items(self, values: Any, node: ast.AST) -> list[Any]:
        """Return the items of a value whose number is known."""
        if isinstance(values, Traced):
            return list(rows_of(values))
        if isinstance(values, Numbered):
            inner = self.items(values.values, node)
            return [(binary(operator.add, values.start, i), x) for i, x in enumerate(inner)]
        if isinstance(values, Zipped):
            columns = [self.items(part, node) for part in values.parts]
            return list(zip(*columns, strict=False))
        if isinstance(values, (Counts, Nested)):
            raise Refused("the number of items is known only at a run", node)
        return list(values)

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp) -> list[Any]:
        names = {
            one.id
            for one in ast.walk(node)
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
        }
        inner = Frame(self.frame.source, names, self.frame)
        made: list[Any] = []
        with self.entered(inner):
            self._generate(node, 0, made)
        return made

    def _generate(self, node: ast.ListComp | ast.GeneratorExp, at: int, made: list[Any]) -> None:
        if at == len(node.generators):
            made.append(self.evaluate(node.elt))
            return
        loop = node.generators[at]
        for item in self.items(self.evaluate(loop.iter), node):
            self.store(loop.target, item)
            tests = [self.truth(test) for test in loop.ifs]
            if contains_traced(tests):
                raise Refused("a comprehension keeps items by a tensor's value", node)
            if all(tests):
                self._generate(node, at + 1, made)
