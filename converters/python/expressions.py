"""Evaluate the expressions of a captured program: Python objects stay, tensors are recorded."""

from __future__ import annotations

import ast
import operator
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from trireme.converters.python.callables import bound_to
from trireme.converters.python.calls import METHODS, TensorMethod, known_call
from trireme.converters.python.constant_calls import call_now
from trireme.converters.python.control import Refused
from trireme.converters.python.displays import Displays
from trireme.converters.python.dtypes import as_weak
from trireme.converters.python.item_calls import ALWAYS, ITEM_CALLS
from trireme.converters.python.iteration import (
    ITERATORS,
    Counts,
    Numbered,
    Zipped,
    is_open,
    kind_of,
    on_container,
)
from trireme.converters.python.lifting import binary, contains_traced, lifted
from trireme.converters.python.lists import items_of, of_lists
from trireme.converters.python.ordering import compared
from trireme.converters.python.outer import OuterName, is_iterator
from trireme.converters.python.python_calls import dimensions, truth
from trireme.converters.python.scope import Recorder, RowList, Traced
from trireme.converters.python.sharing import ABOUT_OBJECTS, OF_MEMORY, are_arguments
from trireme.converters.python.source import is_total, spoken
from trireme.converters.python.state import (
    MUTABLE,
    UNSET,
    Frame,
    Growing,
    Lost,
    Maybe,
    Nested,
    is_same,
)
from trireme.converters.python.syntax_operators import BINARY, COMPARE
from trireme.runtime.eager.operators import Operators

_Number = bool | int | float | np.generic | np.ndarray


class Expressions(Displays, ABC):
    """Evaluates expressions in the frame of the function that is being read."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self.node: ast.AST = ast.Pass()
        self.outer: dict[tuple[int, str], OuterName] = {}
        self._evaluators: dict[type[ast.expr], Callable[[Any], Any]] = {
            ast.Constant: lambda node: node.value,
            ast.Name: self._load,
            ast.BinOp: self._binary,
            ast.UnaryOp: self._unary,
            ast.BoolOp: self._boolean,
            ast.Compare: self._compare_all,
            ast.IfExp: self._choice,
            ast.Call: self._call,
            ast.Attribute: self._attribute,
            ast.Subscript: self._subscript,
            ast.Slice: self._slice,
            ast.Tuple: self._tuple,
            ast.List: self._list,
            ast.Dict: self._dict,
            ast.Lambda: self.nested,
            ast.Set: self._set,
            ast.ListComp: self._list_made,
            ast.GeneratorExp: self._generated,
            ast.SetComp: self._set_made,
            ast.DictComp: self._dict_made,
            ast.NamedExpr: self._named,
            ast.JoinedStr: self._text,
        }

    def evaluate(self, node: ast.expr) -> Any:
        """Return the value of an expression.

        Errors: Refused, if no graph can express it; TriremeError, if an op does not fit
        """
        found = self._evaluators.get(type(node))
        if found is None:
            raise Refused(f"a {spoken(node)} cannot be captured", node)
        value = found(node)
        if isinstance(value, Lost):
            raise Refused(value.why, node)
        if isinstance(value, Maybe) or value is UNSET:
            name = node.id if isinstance(node, ast.Name) else "the value"
            raise Refused(f"{name} may not be set here: only some of the paths set it", node)
        return value

    def truth(self, node: ast.expr) -> Any:
        """Return whether an expression counts as true: a bool, or a Traced of bool."""
        if isinstance(node, ast.BoolOp):
            return self._short_circuit(isinstance(node.op, ast.And), node.values, self.truth)
        return truth(self.recorder, self.evaluate(node))

    def _load(self, node: ast.Name) -> Any:
        holder = self.frame.holder(node.id)
        if holder is not None:
            return holder.names.get(node.id, UNSET)
        source = self.frame.source
        try:
            kind, value = source.find(node.id)
        except (KeyError, ValueError):
            raise Refused(f"the name {node.id!r} is not defined", node) from None
        if kind != "builtin":
            self._read_outer(node.id, kind, value, node)
        return value.data if _is_eager(value) else value

    def _read_outer(
        self, name: str, kind: str, value: Any, node: ast.expr, module: ModuleType | None = None
    ) -> None:
        """Note what the program reads outside the function: it is a constant of the graph."""
        if is_iterator(value):
            raise Refused(f"{name} is an iterator outside, which each call reads on", final=True)
        source = self.frame.source
        key = id(source.scope if kind == "global" else source.cells), name
        if key not in self.outer:
            own = self.frame.holder(name.partition(".")[0]) is not None
            local = module if own else None
            self.outer[key] = OuterName(source, name, value, source.place(node), local)

    def _binary(self, node: ast.BinOp) -> Any:
        left, right = self.evaluate(node.left), self.evaluate(node.right)
        return self.operate(BINARY[type(node.op)], left, right)

    def operate(self, function: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
        """Return an operator of two values."""
        if isinstance(left, Traced) or isinstance(right, Traced):
            if any(isinstance(one, (list, tuple, str, RowList)) for one in (left, right)):
                return of_lists(self.recorder, function, left, right)
            return binary(function, left, right)
        if isinstance(left, str) and contains_traced(right):
            raise Refused("a text shows the elements of a tensor")
        return function(left, right)

    def _unary(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not):
            return self.negate(self.truth(node.operand))
        value = self.evaluate(node.operand)
        if isinstance(node.op, ast.USub):
            return as_weak(-value, value)
        return +value if isinstance(node.op, ast.UAdd) else ~value

    def negate(self, value: Any) -> Any:
        """Return the opposite of a truth."""
        return self.recorder.apply("not", [value], {}) if isinstance(value, Traced) else not value

    def _boolean(self, node: ast.BoolOp) -> Any:
        return self._short_circuit(isinstance(node.op, ast.And), node.values, self.evaluate)

    def _short_circuit(
        self, is_and: bool, nodes: Sequence[ast.expr], value_of: Callable[[ast.expr], Any]
    ) -> Any:
        """Return `and` or `or`: later operands run only where the first does not decide."""
        first = value_of(nodes[0])
        if len(nodes) == 1:
            return first
        known = truth(self.recorder, first)
        if not isinstance(known, Traced):
            return self._short_circuit(is_and, nodes[1:], value_of) if known == is_and else first
        if first is known and all(map(is_total, nodes[1:])):
            rest = self._short_circuit(is_and, nodes[1:], value_of)
            if isinstance(rest, bool) or isinstance(rest, Traced) and rest.type == known.type:
                return self.recorder.apply("and" if is_and else "or", [known, rest], {})
        paths = partial(self._short_circuit, is_and, nodes[1:], value_of), lambda: first
        return self.branch(known, *(paths if is_and else reversed(paths)))

    def _compare_all(self, node: ast.Compare) -> Any:
        return self._compare_from(self.evaluate(node.left), node.ops, node.comparators)

    def _compare_from(self, left: Any, ops: Sequence[ast.cmpop], rest: Sequence[ast.expr]) -> Any:
        right = self.evaluate(rest[0])
        result = self._compared(ops[0], left, right)
        if len(ops) == 1:
            return result
        known = truth(self.recorder, result)
        if not isinstance(known, Traced):
            return self._compare_from(right, ops[1:], rest[1:]) if known else result
        if all(map(is_total, rest[1:])):
            others = self._compare_from(right, ops[1:], rest[1:])
            if isinstance(others, Traced) and others.type == known.type:
                return self.recorder.apply("and", [known, others], {})
        return self.branch(
            known, lambda: self._compare_from(right, ops[1:], rest[1:]), lambda: result
        )

    def _compared(self, op: ast.cmpop, left: Any, right: Any) -> Any:
        if isinstance(op, (ast.Is, ast.IsNot)):
            same = left is right or is_same(left, right) and isinstance(left, Traced)
            if not same and are_arguments(left, right):
                raise Refused("whether two arguments are one array is known at a call", final=True)
            return same == isinstance(op, ast.Is)
        if isinstance(op, (ast.In, ast.NotIn)):
            found = self._contains(left, right)
            return found if isinstance(op, ast.In) else self.negate(found)
        function = COMPARE[type(op)]
        known = not contains_traced([left, right])
        if not known and isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
            return compared(self.recorder, self.operate, function, left, right)
        if not known and not all(isinstance(one, Traced | _Number) for one in (left, right)):
            raise Refused(f"a {kind_of(left)} is compared with a {kind_of(right)}")
        return self.operate(function, left, right)

    def _contains(self, item: Any, values: Any) -> Any:
        if not contains_traced([item, values]):
            return item in values
        if not isinstance(values, (list, tuple, deque, Traced)):
            raise Refused(f"a tensor is looked for in a {kind_of(values)}")
        if isinstance(values, Traced):
            return binary(operator.eq, values, item).any()
        found: Any = False
        for one in values:
            same = compared(self.recorder, self.operate, operator.eq, one, item)
            both = isinstance(same, Traced) or isinstance(found, Traced)
            found = self.recorder.apply("or", [found, same], {}) if both else found or same
        return found

    def _choice(self, node: ast.IfExp) -> Any:
        condition = self.truth(node.test)
        if not isinstance(condition, Traced):
            return self.evaluate(node.body if condition else node.orelse)
        return self.branch(
            condition, lambda: self.evaluate(node.body), lambda: self.evaluate(node.orelse)
        )

    def _attribute(self, node: ast.Attribute) -> Any:
        value = self.evaluate(node.value)
        if isinstance(value, Traced):
            if node.attr == "shape":
                return dimensions(value)
            if node.attr in OF_MEMORY:
                why = f".{node.attr} says how an array lies in memory, and a graph does not"
                raise Refused(why, node, final=True)
            if node.attr in METHODS:
                return TensorMethod(METHODS[node.attr], self.recorder, value)
            if node.attr.startswith("_") or not hasattr(Operators, node.attr):
                raise Refused(f"a tensor has no attribute {node.attr!r} in a graph", node)
        try:
            found = getattr(value, node.attr)
        except AttributeError as error:
            raise Refused(str(error), node) from None
        if isinstance(value, ModuleType) and isinstance(node.value, ast.Name):
            self._read_outer(f"{node.value.id}.{node.attr}", "global", found, node, value)
        if is_iterator(found):
            raise Refused(f".{node.attr} is an iterator, which each call reads on", final=True)
        return found.data if _is_eager(found) else found

    def _subscript(self, node: ast.Subscript) -> Any:
        value, key = self.evaluate(node.value), self.evaluate(node.slice)
        if not contains_traced(key):
            return value[key]
        if isinstance(value, dict):
            raise Refused("a dict is read at a key that only a run knows", node)
        if isinstance(value, (list, tuple)) and isinstance(key, slice):
            raise Refused("a list is cut at bounds that only a run knows", node)
        if isinstance(value, (list, tuple, RowList)):
            return items_of(self.recorder, value)[key]
        return lifted(self.recorder, value)[key]

    def _slice(self, node: ast.Slice) -> slice:
        parts = (node.lower, node.upper, node.step)
        made = slice(*(None if part is None else self.evaluate(part) for part in parts))
        if isinstance(made.step, Traced):
            why = "the step of a slice is known only at a run"
            raise Refused(f"{why}; index with np.arange(start, stop, step)", node)
        return made

    def _named(self, node: ast.NamedExpr) -> Any:
        value = self.evaluate(node.value)
        self.store(node.target, value)
        return value

    def nested(self, node: ast.Lambda | ast.FunctionDef) -> Nested:
        """Return a function that the program defines, with its defaults evaluated."""
        args = node.args
        last = args.args[len(args.args) - len(args.defaults) :]
        defaults = {a.arg: self.evaluate(d) for a, d in zip(last, args.defaults, strict=True)}
        for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
            if default is not None:
                defaults[arg.arg] = self.evaluate(default)
        frame: Frame | None = self.frame
        while frame is not None:
            frame.kept, frame = True, frame.outer
        return Nested(self.frame.source, node, self.frame, defaults)

    def _call(self, node: ast.Call) -> Any:
        function = self.evaluate(node.func)
        args = self.parts(node.args)
        named: dict[str, Any] = {}
        for one in node.keywords:
            value = self.evaluate(one.value)
            named |= value if one.arg is None else {one.arg: value}
        self.node = node
        return self.call(function, args, named)

    def call(self, function: Any, args: list[Any], named: dict[str, Any]) -> Any:
        """Return what a function returns: recorded, read from its source, or called now."""
        if isinstance(function, Nested):
            return self.inline(function, args, named)
        if function in ITERATORS:
            return ITERATORS[function](*args, **named)
        own = bound_to(function)
        held = own if isinstance(own, (*MUTABLE, tuple)) else None
        traced = contains_traced([args, named, held])
        given = (*args, *named.values())
        traced = traced or any(is_open(one) or isinstance(one, Nested) for one in given)
        known = known_call(function)
        if function in ITEM_CALLS or known is not None:
            args = [self._listed(one) for one in args]
        if function in ITEM_CALLS and (traced or function in ALWAYS):
            return ITEM_CALLS[function](self, *args, **named)
        if isinstance(own, Traced) or isinstance(function, TensorMethod):
            return function(*args, **named)
        if not traced:
            return self._call_now(function, args, named)
        if isinstance(own, Growing):
            return function(*args, **named)
        if isinstance(own, (*MUTABLE, tuple)):
            return self._on_container(function, own, args, named)
        if known is not None:
            return known(self.recorder, *args, **named)
        if function in ABOUT_OBJECTS:
            why = f"{function.__name__} asks for the memory of an array, which a graph has not"
            raise Refused(why, final=True)
        if isinstance(function, type) and hasattr(function, "_fields"):
            return function(*args, **named)
        if isinstance(function, type) and issubclass(function, (dict, deque)):
            known_items = [self.items(x, self.node) if is_open(x) else x for x in args]
            return function(*known_items, **named)
        return self.inline_function(function, args, named)

    def _listed(self, values: Any) -> Any:
        """Return a range that only a run knows as a tensor, and zips and enumerations as lists."""
        if isinstance(values, Counts):
            return self.call(np.arange, [values.start, values.stop, values.step], {})
        return self.items(values, self.node) if isinstance(values, (Numbered, Zipped)) else values

    def _on_container(self, function: Any, own: Any, args: list[Any], named: dict[str, Any]) -> Any:
        if function.__name__ == "sort":
            own[:] = ITEM_CALLS[sorted](self, own, **named)
            return None
        if function.__name__ == "count":
            same = [compared(self.recorder, self.operate, operator.eq, x, *args) for x in own]
            return self.call(sum, [same], named)
        return on_container(function, own, args, named)

    def _call_now(self, function: Any, args: list[Any], named: dict[str, Any]) -> Any:
        """Call a function whose arguments are all known."""
        known = known_call(function)
        if isinstance(function, partial) and known is not None:
            return known(self.recorder, *args, **named)
        made = call_now(self.recorder.scope, function, args, named)
        return made.data if _is_eager(made) else made

    @abstractmethod
    def inline(self, function: Nested, args: list[Any], named: dict[str, Any]) -> Any:
        """Return what a nested function returns, by reading its body here."""

    @abstractmethod
    def inline_function(self, function: Any, args: list[Any], named: dict[str, Any]) -> Any:
        """Return what a function of the user returns, by reading its source here."""


def _is_eager(value: Any) -> bool:
    return isinstance(value, Operators) and not isinstance(value, Traced)
