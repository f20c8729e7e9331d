"""Functions that a program calls with known arguments: they run while the program is read.

A body of a branch or a loop is read several times, so what a function does to an array of before
the body would be done several times, on all paths. `expressions.py` calls this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from trireme.converters.python.arguments import leaves
from trireme.converters.python.callables import bound_to, called
from trireme.converters.python.control import Refused
from trireme.converters.python.outer import is_fresh
from trireme.converters.python.scope import GraphScope
from trireme.converters.python.state import known


def call_now(scope: GraphScope, function: Any, args: list[Any], named: dict[str, Any]) -> Any:
    """Return what a function returns for known arguments.

    Errors: Refused, if it returns something else at every call, acts outside the graph, or changes
        an array of before the branch or loop that is being read
    """
    own = bound_to(function)
    if is_fresh(function):
        raise Refused(f"{called(function)} gives another result at every call", final=True)
    if function in (print, input, open):
        raise Refused(f"{called(function)} acts outside the graph", final=True)
    held = [value for _, value in leaves("", [own, args, named]) if isinstance(value, np.ndarray)]
    with _read_only([one for one in held if _is_of_before(scope, one)]) as arrays:
        try:
            return function(*args, **named)
        except ValueError as error:
            if arrays and "read-only" in str(error):
                why = f"{called(function)} changes an array in a branch or a loop"
                raise Refused(why, final=True) from error
            raise


def _is_of_before(scope: GraphScope | None, array: Any) -> bool:
    """Whether a variable of before the bodies that are being read holds an array."""
    while scope is not None:
        if any(known(value) is array for value in scope.before):
            return True
        scope = scope.parent
    return False


@contextmanager
def _read_only(arrays: list[Any]) -> Iterator[list[Any]]:
    """Make arrays read-only for a while; yield those that were not."""
    held = [one for one in arrays if one.flags.writeable]
    for one in held:
        one.flags.writeable = False
    try:
        yield held
    finally:
        for one in held:
            one.flags.writeable = True
