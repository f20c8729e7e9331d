"""Which context managers a captured program may enter: those that change no result.

trireme's own are entered while their body is read, and so are those that change warnings or the
printing of arrays. `statements.py` calls this module.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np

from trireme.converters.python.callables import called
from trireme.converters.python.control import Refused

_HARMLESS = frozenset(
    [
        ("contextlib", "nullcontext"),
        ("numpy", "errstate"),
        ("numpy", "printoptions"),
        ("torch", "enable_grad"),
        ("torch", "inference_mode"),
        ("torch", "no_grad"),
        ("warnings", "catch_warnings"),
    ]
)
"""Context managers, by package and name, that change neither results nor what happens later."""
_LOUD = frozenset(["raise", "call", "print", "log"])
"""What numpy may do at a floating-point error, and a graph does not."""


def enter(stack: ExitStack, manager: Any) -> Any:
    """Enter a context manager until the stack ends; return what it gives.

    Errors: Refused, if it acts outside the graph
    """
    made_by = getattr(manager, "func", type(manager))  # a generator's function
    package = made_by.__module__.partition(".")[0]
    if package != "trireme" and (package, made_by.__qualname__) not in _HARMLESS:
        raise Refused(f"a `with` of {called(made_by)} acts outside the graph", final=True)
    before = dict(np.geterr())
    entered = stack.enter_context(manager)
    now = dict(np.geterr())
    if any(now[kind] != before[kind] and now[kind] in _LOUD for kind in now):
        raise Refused("np.errstate raises, calls or prints here; a graph does not", final=True)
    return entered
