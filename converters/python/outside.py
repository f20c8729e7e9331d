"""What a function holds outside its arguments: saved before it is traced, put back if need be.

A trace runs the function once. Where no graph comes of it, Python runs the function again, and the
objects, lists and arrays that it changes must be those of before. `compile.py` calls this module.
"""

from __future__ import annotations

import os
import random
import sys
from collections import deque
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import numpy as np

from trireme.converters.python.arguments import is_input, leaves
from trireme.converters.python.outer import Freezer

_Restore = Callable[[], None]


class Outside:
    """The state of all that a function reads beside its tensors.

    Random numbers of Python and numpy count too.
    """

    def __init__(self, function: Any, arguments: Mapping[str, Any]) -> None:
        self._read = [function, *_constants(arguments)]
        freezer = Freezer()
        self._key = freezer.key(self._read)
        self._restores = [_saved(one) for one in freezer.found] + [_saved_random()]

    def is_changed(self) -> bool:
        """Whether the function changed something since."""
        return Freezer().key(self._read) != self._key

    def restore(self) -> None:
        """Put everything back."""
        for restore in self._restores:
            restore()


def _constants(arguments: Mapping[str, Any]) -> list[Any]:
    found = (leaf for name, value in arguments.items() for _, leaf in leaves(name, value))
    return [leaf for leaf in found if not is_input(leaf)]


def _saved(value: Any) -> _Restore:
    """Return a function that puts back what one container, object or function holds now."""
    if isinstance(value, np.ndarray):
        return _saved_array(value)
    if isinstance(value, (list, deque)):
        items = list(value)
        return lambda: _refill(value, value.extend, items)
    if isinstance(value, (dict, set)) or value is os.environ:
        copy: Any = value.copy()
        return lambda: _refill(value, value.update, copy)
    if isinstance(value, np.random.Generator):
        state = value.bit_generator.state
        return lambda: setattr(value.bit_generator, "state", state)
    if isinstance(value, random.Random):
        own = value.getstate()
        return lambda: value.setstate(own)
    return _saved_function(value) if isinstance(value, FunctionType) else _saved_object(value)


def _refill(container: Any, fill: Callable[[Any], None], items: Any) -> None:
    container.clear()
    fill(items)


def _saved_array(value: Any) -> _Restore:
    elements = value.copy()

    def restore() -> None:
        if value.flags.writeable:
            value[...] = elements

    return restore


def _saved_function(function: FunctionType) -> _Restore:
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append((cell, cell.cell_contents))
        except ValueError:  # not set yet
            continue
    names = function.__code__.co_names
    read = {name: function.__globals__[name] for name in names if name in function.__globals__}

    def restore() -> None:
        for cell, contents in cells:
            cell.cell_contents = contents
        function.__globals__.update(read)

    return restore


def _saved_object(value: Any) -> _Restore:
    """Return what puts the attributes of an object or a class back."""
    held = dict(vars(value)) if hasattr(value, "__dict__") else {}
    slots = {
        name: getattr(value, name)
        for kind in type(value).__mro__
        for name, part in vars(kind).items()
        if type(part).__name__ == "member_descriptor"
        and not isinstance(value, type)
        and hasattr(value, name)
    }

    def restore() -> None:
        now = dict(vars(value)) if hasattr(value, "__dict__") else {}
        drop = delattr if isinstance(value, type) else object.__delattr__
        for name in now.keys() - held.keys():
            drop(value, name)
        changed = {name: part for name, part in held.items() if now.get(name) is not part}
        put = setattr if isinstance(value, type) else object.__setattr__
        for name, part in (slots | changed).items():
            put(value, name, part)

    return restore


def _saved_random() -> _Restore:
    """Return what puts back the random numbers that functions without a generator draw."""
    pythons, numpys = random.getstate(), sys.modules.get("numpy.random")
    state = None if numpys is None else numpys.get_state(legacy=True)

    def restore() -> None:
        random.setstate(pythons)
        if numpys is not None:
            numpys.set_state(state)

    return restore
