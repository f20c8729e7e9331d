"""Which variables of a captured program share the elements of one array, as numpy's views do.

A graph has no such sharing: a statement that changes an array makes a new value for one variable.
`expect_own` refuses the statements after which another variable would be wrong. `assign.py` and
`loops.py` call it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from trireme.converters.python.arguments import leaves
from trireme.converters.python.control import Refused
from trireme.converters.python.iteration import Numbered, Zipped
from trireme.converters.python.scope import GraphScope, Traced
from trireme.converters.python.source import base_name, changed_names, stored_names
from trireme.converters.python.state import Names, known
from trireme.ir.graph import Graph, Node
from trireme.ir.op import get_op
from trireme.ops.repeats import bodies_of, repeat_of

Root = tuple[int, int]
"""A value whose elements others show: the identity of its scope or body, and its id there."""
OF_MEMORY = frozenset(["base", "ctypes", "data", "flags", "strides", "__array_interface__"])
"""Attributes of an array that the copies which a Python operator gets do not share."""
ABOUT_OBJECTS = (id, sys.getsizeof, np.shares_memory, np.may_share_memory)
"""Functions that ask for the object or the memory of an array."""


def is_array(value: Any) -> bool:
    """Whether numpy would change a value in place."""
    return isinstance(value, (Traced, np.ndarray)) and len(value.shape) > 0


def expect_own(names: Names, name: str, old: Any) -> None:
    """Raise Refused if a variable's array is an argument's, or shared with another variable.

    name: the variable, or the one that holds the list with the array
    """
    roots = roots_of(old)
    if not roots.isdisjoint(arguments_of(old)):
        raise Refused(
            f"{name} is an argument, which its caller shares; assign to {name}.copy() instead",
            final=True,
        )
    users = [
        (own, known(leaf))
        for frame in names
        for own, held in frame.items()
        for _, leaf in leaves(own, held)
    ]
    sharing = [own for own, leaf in users if _shares(leaf, old, roots)]
    others = sorted({own for own in sharing if own != name})
    if others or len(sharing) > 1:
        raise Refused(
            f"{name} shares its elements with {', '.join(others) or 'a list'}", final=True
        )


def changes_own_rows(node: ast.For, values: Any, names: Names) -> bool:
    """Whether a loop changes an array that it runs over: no row but the one that it has read.

    names: the variables of every frame, before the loop
    Errors: Refused, if it changes rows that it still reads, or that a variable shows that it sets
    """
    roots = frozenset(root for one in _tensors(values) for root in roots_of(one))
    sharing = [
        name
        for frame in names
        for name, held in frame.items()
        if any(not roots.isdisjoint(roots_of(known(leaf))) for _, leaf in leaves(name, held))
    ]
    changed = changed_names(node.body)
    rows = {one.id for one in ast.walk(node.target) if isinstance(one, ast.Name)}
    for name in sharing:
        if not rows.isdisjoint(changed) and name in stored_names(node.body):
            raise Refused(f"a row of {name} is changed, and {name} is set", final=True)
        if name in changed and not _changes_own_row(node, name):
            raise Refused(f"{name} is changed while a loop runs over its rows", final=True)
    return not changed.isdisjoint(sharing)


def _tensors(values: Any) -> Iterator[Traced]:
    if isinstance(values, Traced):
        yield values
    elif isinstance(values, Numbered):
        yield from _tensors(values.values)
    elif isinstance(values, Zipped):
        for part in values.parts:
            yield from _tensors(part)


def _changes_own_row(node: ast.For, name: str) -> bool:
    """Whether `for i, row in enumerate(m)` changes m[i] alone, and reads row only before."""
    if not isinstance(node.target, ast.Tuple) or not isinstance(node.target.elts[0], ast.Name):
        return False
    turn = node.target.elts[0].id
    walked = [one for statement in node.body for one in ast.walk(statement)]
    stores = [
        one
        for one in walked
        if isinstance(one, (ast.Subscript, ast.Name))
        and isinstance(one.ctx, ast.Store)
        and base_name(one) == name
    ]
    rows = {one.id for one in ast.walk(node.target) if isinstance(one, ast.Name)} - {turn}
    reads = [
        one.lineno
        for one in walked
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load) and one.id in rows
    ]
    own = all(isinstance(one, ast.Subscript) and _first(one) == turn for one in stores)
    own = own and rows.isdisjoint(changed_names(node.body))
    return own and max(reads, default=0) <= min((one.lineno for one in stores), default=0)


def _first(target: ast.Subscript) -> str:
    """Return the name that is the first part of a key; "" for another."""
    key = target.slice
    part = key.elts[0] if isinstance(key, ast.Tuple) and key.elts else key
    return part.id if isinstance(part, ast.Name) and isinstance(target.value, ast.Name) else ""


def arguments_of(value: Any) -> set[Root]:
    """Return the inputs of the whole program."""
    if not isinstance(value, Traced):
        return set()
    scope = value.scope
    while scope.parent is not None:
        scope = scope.parent
    return {(id(scope), own) for own in scope.builder.inputs}


def are_arguments(one: Any, other: Any) -> bool:
    """Whether two values show arguments, or parts of them."""
    return all(not arguments_of(each).isdisjoint(roots_of(each)) for each in (one, other))


def _shares(one: Any, other: Any, roots: frozenset[Root]) -> bool:
    """Whether a value shows elements of another, which has these roots."""
    if one is other:
        return True
    if isinstance(one, Traced) and isinstance(other, Traced):
        return not roots.isdisjoint(roots_of(one))
    arrays = isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
    return arrays and np.may_share_memory(one, other)


def roots_of(value: Any) -> frozenset[Root]:
    """Return the values whose elements a traced value shows, as numpy's views would.

    A value that a body takes from outside shows the outer one's elements; so does a scanned row.
    What a branch or a loop gives may show what its bodies take from outside, or made.
    """
    if not isinstance(value, Traced) or not is_array(value):
        return frozenset()
    return frozenset(_found(value.scope, value.id))


def _found(holder: GraphScope | Graph, value: int) -> set[Root]:
    own = {(id(holder), value)}
    if isinstance(holder, Graph):
        made = holder.values[value]
        node = next((one for one in holder.nodes if value in one.outputs), None)
    else:
        made, node = holder.builder.values[value], holder.producer(value)
        outer = holder.outer_of(value) if node is None else None
        if outer is not None:
            return _found(*outer)
    if node is None or not made.type.shape:
        return own
    if bodies_of(node):
        return _of_bodies(holder, node, node.outputs.index(value)) or own
    op = get_op(node.op)
    is_view = (op.rearranges or op.alias) and node.op != "identity"
    if node.op == "gather" and node.inputs[1] is not None:  # numpy copies rows at a vector
        known = holder.values if isinstance(holder, Graph) else holder.builder.values
        is_view = not known[node.inputs[1]].type.shape
    source = node.inputs[0] if is_view else None
    return own if source is None else _found(holder, source)


def _of_bodies(holder: GraphScope | Graph, node: Node, at: int) -> set[Root]:
    """Return what an output of an `if`, a loop or a scan may show."""
    form = repeat_of(node.attrs)
    if form is not None and at >= form.carried:  # the rows of all turns, side by side
        return set()
    first, carried, ahead = (form.first, form.carried, form.made) if form else (1, 0, 0)
    found: set[Root] = set()
    states, waiting = {at}, [at]
    while waiting:
        state = waiting.pop()
        taken = {first + state} if form else set()  # without a turn, the state of before
        for body in bodies_of(node).values():
            for root in _found(body, body.outputs[ahead + state]):
                if root[0] != id(body) or root[1] not in body.inputs:
                    found.add(root)
                    continue
                formal = body.inputs.index(root[1]) + (0 if form else 1)
                taken.add(formal)
                if first <= formal < first + carried and formal - first not in states:
                    states.add(formal - first)
                    waiting.append(formal - first)
        for formal in taken:
            source = node.inputs[formal]
            found |= set() if source is None else _found(holder, source)
    return found
