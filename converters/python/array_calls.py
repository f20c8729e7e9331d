"""`np.array` and `np.asarray` of traced values, recorded while a function is traced.

numpy asks its argument for elements, so a graph would hold those of one call. While a `recording`
lasts, numpy's module has functions in their places that record a call with a traced value, and
give every other call to numpy. `trace.record` calls this module.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from trireme.converters.python.array_like import is_library
from trireme.converters.python.lifting import leaves_of, lifted
from trireme.converters.python.scope import Recorder, Traced
from trireme.support.forks import register_at_fork

_OPTIONS = frozenset(["dtype", "copy", "order"])
"""The options of a recorded call; a value has no order in memory."""


class _ArrayCall:
    """A function of numpy that makes an array, and records that of a traced value.

    copies: whether it gives another array where the argument is one of the dtype
    """

    def __init__(self, own: Callable[..., Any], copies: bool) -> None:
        functools.update_wrapper(self, own)
        self.own = own
        self._copies = copies

    def __call__(self, *args: Any, **options: Any) -> Any:
        given = _recordable(args, options)
        if given is None or is_library(sys._getframe(1).f_globals.get("__name__", "")):
            return self.own(*args, **options)
        dtype = args[1] if len(args) > 1 else options.get("dtype")
        copy = options.get("copy", self._copies)
        return _made(given, args[0], dtype, bool(copy))


_CALLS = {
    "array": _ArrayCall(np.array, True),
    "asarray": _ArrayCall(np.asarray, False),
    "asanyarray": _ArrayCall(np.asanyarray, False),
}


class _Recordings:
    """The recordings that last now, in all threads."""

    def __init__(self) -> None:
        self._count = 0
        self.reset_after_fork()
        register_at_fork(self)

    def reset_after_fork(self) -> None:
        """Be free, in a forked child, of other threads."""
        self._lock = threading.Lock()

    def change(self, by: int) -> None:
        """Count recordings; numpy has its own functions while there are none."""
        with self._lock:
            self._count += by
            for name, call in _CALLS.items():
                setattr(np, name, call if self._count else call.own)


_RECORDINGS = _Recordings()


@contextmanager
def recording() -> Iterator[None]:
    """Have numpy record what makes arrays of traced values."""
    _RECORDINGS.change(1)
    try:
        yield
    finally:
        _RECORDINGS.change(-1)


def numpys_own(function: Any) -> Any:
    """Return numpy's function for one that stands in its place."""
    return function.own if isinstance(function, _ArrayCall) else function


def _recordable(args: Sequence[Any], options: Mapping[str, Any]) -> Recorder | None:
    """Return the recorder of a call that a graph can hold; None for another call."""
    if not 1 <= len(args) <= 2 or not _OPTIONS.issuperset(options):
        return None
    recorder = next((one.recorder for one in leaves_of(args[0]) if _is_traced(one)), None)
    rules = recorder and recorder.like_arrays
    if recorder is None or rules is None or rules.tensors:
        return None
    plain = (bool, int, float, np.ndarray, np.generic)
    dtype = args[1] if len(args) > 1 else options.get("dtype")
    try:
        wanted = [] if dtype is None else [np.dtype(dtype)]
        known = [one for one in leaves_of(args[0]) if not _is_traced(one)]
        wanted += [np.asarray(one).dtype for one in known]
    except (TypeError, ValueError):
        return None
    is_known = all(isinstance(one, plain) for one in known)
    return recorder if is_known and all(one.kind in "biuf" for one in wanted) else None


def _is_traced(value: Any) -> bool:
    return issubclass(type(value), Traced)  # isinstance asks the class that it stands for


def _made(recorder: Recorder, value: Any, dtype: Any, copy: bool) -> Any:
    rules = recorder.like_arrays
    assert rules is not None
    array: Traced = value if _is_traced(value) else lifted(recorder, value)
    made = array.astype(array.dtype if dtype is None else dtype, copy=copy)
    if not made.shape and made.id not in rules.boxed:
        made = made.copy()
        rules.boxed.add(made.id)
    return made
