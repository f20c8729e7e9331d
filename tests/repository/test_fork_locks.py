"""A forked child waits for no lock that a thread of its parent held.

Every lock is an attribute that its class makes anew in `reset_after_fork`, or is listed with the
reason why no child waits for it.
"""

import ast
import re

import pytest
from zoo import CHECKOUT

KINDS = {f"threading.{one}" for one in ("Lock", "RLock", "Condition", "Semaphore", "Event")}
ROOMS = ("engine", "devices", "converters")
APART = {"engine/serving": "a server does not fork"}
KNOWN = {
    "devices/cpu/runtime/server.py _reset": "reset_after_fork calls it",
    "devices/cpu/runtime/workers.py __init__": "reset_after_fork of the workers lets the thread go",
    "devices/opencl/context.py __init__": "a forked child is refused first",
    "devices/opencl/platforms.py": "a forked child is refused first",
    "devices/opencl/programs.py __init__": "a forked child is refused first",
    "engine/runtime/program/contexts.py widen": "reset_after_fork makes all of them",
    "engine/runtime/loop/watchdog.py _run_beside": "of one call, whose thread a child lacks",
    "engine/runtime/models/stored.py __init__": "a fork waits until it is set",
    "engine/runtime/streams/stream.py __init__": "nobody waits for it",
    "engine/runtime/program/waiting_calls.py __init__": "of one call, whose thread a child lacks",
    "engine/support/locks.py __init__": "a latch; who holds it forgets it after a fork",
}
"""Locks that no `reset_after_fork` of their class renews, with the reason."""


def holders_of(tree):
    """Return the node around each node."""
    return {inner: outer for outer in ast.walk(tree) for inner in ast.iter_child_nodes(outer)}


def around(node, holders, kind):
    """Return the nearest node of a kind around a node, None where there is none."""
    while node is not None and not isinstance(node, kind):
        node = holders.get(node)
    return node


def is_renewed(call, holders):
    """Whether `reset_after_fork` of the class sets the attributes that a lock is assigned to."""
    kind = around(call, holders, ast.ClassDef)
    setting = around(call, holders, ast.Assign)
    if kind is None or setting is None:
        return False
    resets = [one for one in kind.body if getattr(one, "name", "") == "reset_after_fork"]
    renewed = {
        ast.unparse(node)
        for reset in resets
        for node in ast.walk(reset)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    named = {
        ast.unparse(node)
        for target in setting.targets
        for node in ast.walk(target)
        if isinstance(node, ast.Attribute)
    }
    return bool(named) and named <= renewed


def locks_of(text):
    """Yield the line and the function of each lock that its class does not renew."""
    tree = ast.parse(text)
    holders = holders_of(tree)
    for node in ast.walk(tree):
        is_lock = isinstance(node, ast.Call) and ast.unparse(node.func) in KINDS
        if is_lock and not is_renewed(node, holders):
            yield node.lineno, getattr(around(node, holders, ast.FunctionDef), "name", "")


@pytest.mark.parametrize("room", ROOMS)
def test_locks_are_renewed_in_a_forked_child(room):
    found = [
        (name, line, f"{name} {function}".strip())
        for path in sorted((CHECKOUT / room).rglob("*.py"))
        if not (name := str(path.relative_to(CHECKOUT))).startswith(tuple(APART))
        for line, function in locks_of(path.read_text())
    ]
    wrong = [f"{name}:{line}" for name, line, place in found if place not in KNOWN]
    assert not wrong, "\n".join(wrong)
    listed = {place for place in KNOWN if place.startswith(room)}
    assert listed <= {place for _, _, place in found}, "the list names locks that there are"


def test_a_lock_that_is_not_renewed_is_found():
    text = """
class Kept:
    def __init__(self):
        self.lock, self.other = threading.Lock(), threading.RLock()

    def reset_after_fork(self):
        self.lock = threading.Lock()
"""
    assert [line for line, _ in locks_of(text)] == [4, 4]
    assert not list(locks_of(text.replace("self.lock = ", "self.lock = self.other = ")))


@pytest.mark.parametrize("room", ROOMS)
def test_no_property_is_computed_under_a_lock_of_its_class(room):
    """As `functools.cached_property` is up to Python 3.11; support/cached.py has one without."""
    for path in sorted((CHECKOUT / room).rglob("*.py")):
        if path.name != "cached.py":
            text = path.read_text()
            assert "functools.cached_property" not in text, path
            assert not re.search(r"from functools import .*cached_property", text), path
