"""What Python says of something that can be called: its name, its object, its plain function.

Any object may be called, and many have no such attribute; each function here says what then.
"""

from __future__ import annotations

from types import FunctionType, MethodType
from typing import Any


def called(function: Any) -> str:
    """Return the name of a function with that of its class, for a message; else its text."""
    return str(getattr(function, "__qualname__", function))


def bound_to(function: Any) -> Any:
    """Return the object of a method, Python's or C's; None for what is bound to nothing."""
    return getattr(function, "__self__", None)


def with_owner(function: Any) -> tuple[Any, Any]:
    """Return the plain function of a method or of an object that is called, and the object.

    A plain function, and what has no source, comes back as it is, without an object.
    """
    if not isinstance(function, (FunctionType, MethodType)) and callable(function):
        called = type(function).__call__
        return (called, function) if isinstance(called, FunctionType) else (function, None)
    if isinstance(function, MethodType) and isinstance(function.__func__, FunctionType):
        return function.__func__, function.__self__
    return function, None
