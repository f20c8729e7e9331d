"""Evaluate what makes containers: displays, comprehensions and formatted strings."""

from __future__ import annotations

import ast
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from trireme.converters.python.control import Refused
from trireme.converters.python.iteration import Counts, Generated, Numbered, Zipped
from trireme.converters.python.lifting import binary, contains_traced
from trireme.converters.python.python_calls import rows_of
from trireme.converters.python.scope import Traced
from trireme.converters.python.state import Frame, Nested
from trireme.converters.python.turns import Repetitions

_CONVERSIONS: dict[int, Callable[[Any], Any]] = {
    -1: lambda value: value,
    ord("s"): str,
    ord("r"): repr,
    ord("a"): ascii,
}
"""What `!s`, `!r` and `!a` of a formatted string do, by the number that the parser gives them."""


class Displays(Repetitions, ABC):
    """Evaluates displays in the frame of the function that is being read."""

    @abstractmethod
    def evaluate(self, node: ast.expr) -> Any:
        """Return the value of an expression."""

    @abstractmethod
    def truth(self, node: ast.expr) -> Any:
        """Return whether an expression counts as true: a bool, or a Traced of bool."""

    @abstractmethod
    def store(self, target: ast.expr, value: Any) -> None:
        """Assign a value to a target."""

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
        made: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:  # **value
                made |= self.evaluate(value)
                continue
            known = self.evaluate(key)
            if contains_traced(known):
                raise Refused("a key of a dict is known only at a run", node)
            made[known] = self.evaluate(value)
        return made

    def _set(self, node: ast.Set) -> set[Any]:
        return self._distinct(self.parts(node.elts), node)

    def _distinct(self, items: list[Any], node: ast.expr) -> set[Any]:
        if contains_traced(items):
            raise Refused("an item of a set is known only at a run", node)
        return set(items)

    def _text(self, node: ast.JoinedStr) -> str:
        return "".join(map(self._text_part, node.values))

    def _text_part(self, node: ast.expr) -> str:
        """Return a part of a formatted string: `{value!conversion:spec}`, or plain text."""
        if not isinstance(node, ast.FormattedValue):
            return str(self.evaluate(node))
        value = self.evaluate(node.value)
        if contains_traced(value):
            raise Refused("a text holds a value that only a run knows", node)
        converted = _CONVERSIONS[node.conversion](value)
        spec = "" if node.format_spec is None else self.evaluate(node.format_spec)
        return format(converted, spec)

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

    def _generated(self, node: ast.GeneratorExp) -> Generated:
        return Generated(self._made(node.elt, node.generators))

    def _list_made(self, node: ast.ListComp) -> list[Any]:
        return self._made(node.elt, node.generators)

    def _set_made(self, node: ast.SetComp) -> set[Any]:
        return self._distinct(self._made(node.elt, node.generators), node)

    def _dict_made(self, node: ast.DictComp) -> dict[Any, Any]:
        pair = ast.copy_location(ast.Tuple([node.key, node.value], ast.Load()), node)
        pairs = self._made(pair, node.generators)
        if contains_traced([key for key, _ in pairs]):
            raise Refused("a key of a dict is known only at a run", node)
        return dict(pairs)

    def _made(self, item: ast.expr, generators: list[ast.comprehension]) -> list[Any]:
        """Return the items of a comprehension, whose names are its own."""
        names = {
            one.id
            for generator in generators
            for one in ast.walk(generator.target)
            if isinstance(one, ast.Name)
        }
        first = self.evaluate(generators[0].iter)
        made: list[Any] = []
        with self.entered(Frame(self.frame.source, names, self.frame)):
            self._generate(item, first, generators, made)
        return made

    def _generate(
        self, item: ast.expr, values: Any, generators: list[ast.comprehension], made: list[Any]
    ) -> None:
        """Add the items that the first generator makes of `values`, and the others of theirs."""
        loop, *inner = generators
        for one in self.items(values, loop.iter):
            self.store(loop.target, one)
            tests = [self.truth(test) for test in loop.ifs]
            if contains_traced(tests):
                raise Refused("a comprehension keeps items by a tensor's value", loop.iter)
            if not all(tests):
                continue
            if inner:
                self._generate(item, self.evaluate(inner[0].iter), inner, made)
            else:
                made.append(self.evaluate(item))
