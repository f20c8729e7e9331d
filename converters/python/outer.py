"""Values outside a captured function: what they were, in a form that tells when they change.

A global or a variable of an enclosing function is a constant of the graph. Arrays, lists and dicts
are compared by their contents, so a change in place counts too.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trireme.converters.python.source import FunctionSource
from trireme.ir.graph import digest
from trireme.runtime.operators import Operators
from trireme.support.errors import RunError

_SHOWN = 60


def frozen(value: Any) -> Hashable:
    """Return a key that is equal as long as a value is; other objects are equal to themselves."""
    if isinstance(value, Operators):
        value = value._concrete()
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, digest(value)
    if isinstance(value, (list, tuple)):
        return type(value).__name__, tuple(map(frozen, value))
    if isinstance(value, dict):
        return "dict", tuple((key, frozen(part)) for key, part in value.items())
    if isinstance(value, float):
        return "float", value.hex()
    if isinstance(value, (bool, int, str, bytes, np.generic, type(None))):
        return type(value).__name__, value
    return "object", id(value)


def is_data(value: Any) -> bool:
    """Whether a value is data, whose key tells when it changes."""
    key = frozen(value)
    return not (isinstance(key, tuple) and key[0] == "object")


@dataclass(frozen=True)
class OuterName:
    """A name outside the function that was read: its value then, and the line."""

    source: FunctionSource
    name: str
    value: Any
    place: str
    key: Hashable = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", frozen(self.value))

    def check(self) -> None:
        """Raise RunError if the name has another value now."""
        try:
            _, now = self.source.find(self.name)
        except (KeyError, ValueError):
            now = None
        if frozen(now) == self.key:
            return
        text = repr(now)
        raise RunError(
            f"{self.name} changed since {self.source.name} was captured ({self.place})",
            facts=[f"now {text if len(text) < _SHOWN else f'a {type(now).__name__}'}"],
            fix="make it an argument, or capture the function again",
        )
