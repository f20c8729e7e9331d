"""Classes of the runtime stay flat: two levels, twenty stored attributes, no `__getattr__`."""

import ast
import functools

from zoo import CHECKOUT

RUNTIME = CHECKOUT / "engine" / "runtime"
MOST_LEVELS, MOST_ATTRIBUTES = 2, 20
EXEMPT_LEVELS = {
    "Tensor": "its operators are written in a table of their own",
}
EXEMPT_ATTRIBUTES = {"ParallelRunner": "one task loop; its attributes are read in every task"}


@functools.cache
def classes() -> dict[str, ast.ClassDef]:
    """Every class of the runtime but protocols, by name; the largest of those of one name."""
    trees = [ast.parse(path.read_text()) for path in sorted(RUNTIME.rglob("*.py"))]
    found = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    found.sort(key=lambda node: len(node.body))
    return {node.name: node for node in found if "Protocol" not in map(ast.unparse, node.bases)}


def bases(name: str) -> list[str]:
    """The bases of a class that are in the runtime."""
    named = [ast.unparse(base).split("[")[0].split(".")[-1] for base in classes()[name].bases]
    return [base for base in named if base in classes() and base != name]


def levels(name: str) -> int:
    return 1 + max(map(levels, bases(name)), default=0)


def stored(name: str) -> set[str]:
    """The attributes that methods of a class and of its bases assign to `self`, or declare."""
    found = {
        node.target.id
        for node in classes()[name].body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    for node in ast.walk(classes()[name]):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {node.attr} if ast.unparse(node.value) == "self" else set()
    return found.union(*map(stored, bases(name)))


def test_no_class_is_deeper_than_two_levels():
    deep = {name for name in classes() if levels(name) > MOST_LEVELS}
    assert deep == set(EXEMPT_LEVELS)


def test_no_class_stores_more_than_twenty_attributes():
    wide = {name: len(stored(name)) for name in classes() if len(stored(name)) > MOST_ATTRIBUTES}
    assert wide.keys() == EXEMPT_ATTRIBUTES.keys(), wide


def test_no_class_makes_attributes_up():
    methods = {
        name: {node.name for node in body.body if isinstance(node, ast.FunctionDef)}
        for name, body in classes().items()
    }
    assert [name for name, named in methods.items() if "__getattr__" in named] == []
