"""Sizes of a step as straight-line code: the arithmetic of one shape, recorded while it runs.

`Step.size` is Python over plans and takes ten microseconds. It is run once with numbers
that note what is done to them. What it compares becomes a check, so the code serves the shapes that
go the same way, and says so for others. Numbers that leave the recording (as an index, a text or a
key) end it: such a step stays as it is. The numbers are no `int` and no `float`, so nothing that is
done to them is lost.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from trireme.devices.cpu.kernels.opaque import OpaqueNumber
from trireme.devices.cpu.runtime.sized_image import CALLS
from trireme.ir.dim_values import NumberRows, Numbers

Code = Callable[[Numbers], Any]
"""Returns what was recorded, given the numbers; None where they go another way."""
CodeOfMany = Callable[[NumberRows], tuple[Any, Any]]
"""Returns where the numbers go the recorded way, and what was recorded, for many shapes at once."""
_MOST_LINES = 400


class NotRecorded(Exception):
    """A number left the recording."""


def _ints(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda numbers: function(numbers).astype(np.int64)


def _each(function: Callable[..., Numbers]) -> Callable[..., tuple[Any, ...]]:
    """Return a function of single numbers as one of many."""

    def of_many(*arguments: Any) -> tuple[Any, ...]:
        rows = np.broadcast_arrays(*arguments)
        if not rows or not rows[0].shape:
            return function(*arguments)
        made = [function(*numbers) for numbers in zip(*(row.tolist() for row in rows), strict=True)]
        return tuple(np.array(made).T)

    return of_many


_OF_MANY: Mapping[str, Any] = dict(
    zip(CALLS, (np.maximum, *map(_ints, (np.rint, np.ceil, np.floor))), strict=True)
)


class SizeRecording:
    """Code under construction."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._named: dict[str, str] = {}
        self._checks: dict[str, str] = {}
        self._functions: dict[str, Any] = {}

    def number(self, place: int, value: int) -> int:
        """Return a number of the shape, which notes what is done to it."""
        noting: Any = _Int(self, f"n[{place}]", value)
        return cast(int, noting)

    def named(self, code: str) -> str:
        """Return the name of what some code gives."""
        if code not in self._named:
            if len(self._lines) >= _MOST_LINES:
                raise NotRecorded
            self._named[code] = name = f"t{len(self._named)}"
            self._lines.append(f"{name}={code}")
        return self._named[code]

    def check(self, code: str, holds: bool) -> None:
        """Note that some code was true or false."""
        line = f"if {'not ' if holds else ''}({code}): return None"
        if line not in self._named:
            self._named[line] = ""
            self._lines.append(line)
            self._checks[line] = f"on=on&(({code})=={holds})"

    def call(self, function: Callable[..., Numbers], arguments: Sequence[float]) -> Numbers:
        """Note a call of a function of numbers that is not recorded itself."""
        values = function(*map(_plain, arguments))
        name = f"f{len(self._functions)}"
        self._functions[name] = function
        made = self.named(f"{name}({', '.join(map(_code, arguments))})")
        return tuple(_Int(self, f"{made}[{k}]", value) for k, value in enumerate(values))

    def finish(self, result: object) -> Code:
        """Return the code that gives a result: numbers in tuples."""
        lines = [*self._lines, f"return {_code(result)}"]
        code: Code = self._compiled(lines, {**CALLS, **self._functions})
        return code

    def finish_of_many(self, result: object) -> CodeOfMany:
        """Return the code for many shapes at once."""
        lines = ["on=True", *(self._checks.get(line, line) for line in self._lines)]
        each = {name: _each(function) for name, function in self._functions.items()}
        lines.append(f"return on, {_code(result)}")
        code: CodeOfMany = self._compiled(lines, {**_OF_MANY, **each})
        return code

    def _compiled(self, lines: Sequence[str], calls: Mapping[str, Any]) -> Any:
        """Return a function of these lines."""
        space: dict[str, Any] = {"__builtins__": {}, "inf": math.inf, **calls}
        body = "\n  ".join(lines)
        exec(f"def recorded(n):\n  {body}\n", space)  # noqa: S102  lines of this class alone
        return space["recorded"]


class _Noted(OpaqueNumber):
    """A number that stands for one of the shape, or for what follows from some.

    code: gives it; plain: it, at the shape of the recording
    """

    __slots__ = ("code", "plain", "recording")

    def __init__(self, recording: SizeRecording, code: str, plain: float) -> None:
        self.recording, self.code, self.plain = recording, code, plain


_NUMBERS = (int, float, _Noted)


def _plain(number: Any) -> Any:
    return number.plain if isinstance(number, _Noted) else number


def _code(what: object) -> str:
    if isinstance(what, _Noted):
        return what.code
    if isinstance(what, tuple):
        return f"({''.join(f'{_code(part)}, ' for part in what)})"
    if isinstance(what, (bool, int, float)):
        return repr(what)
    raise NotRecorded


def _leaves(*_: object, **__: object) -> Any:
    raise NotRecorded


def _made(recording: SizeRecording, code: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise NotRecorded
    kind = _Int if isinstance(value, int) else _Float
    return kind(recording, recording.named(code), value)


def _binary(symbol: str, function: Callable[[Any, Any], Any], swapped: bool) -> Any:
    def apply(self: Any, other: Any) -> Any:
        if not isinstance(other, _NUMBERS):
            return NotImplemented
        a, b = (other, self) if swapped else (self, other)
        code = f"{_code(a)}{symbol}{_code(b)}"
        return _made(self.recording, code, function(_plain(a), _plain(b)))

    return apply


def _compare(symbol: str, function: Callable[[Any, Any], bool]) -> Any:
    def apply(self: Any, other: Any) -> Any:
        if not isinstance(other, _NUMBERS):
            return NotImplemented
        holds = function(self.plain, _plain(other))
        if _code(self) != _code(other):
            self.recording.check(f"{_code(self)}{symbol}{_code(other)}", holds)
        return holds

    return apply


def _unary(form: str, function: Callable[[Any], Any]) -> Any:
    def apply(self: Any) -> Any:
        return _made(self.recording, form.format(self.code), function(self.plain))

    return apply


def _truth(self: Any) -> bool:
    holds = bool(self.plain)
    self.recording.check(f"{self.code}!=0", holds)
    return holds


def _round(self: Any, digits: int | None = None) -> Any:
    if digits is not None:
        raise NotRecorded
    return _made(self.recording, f"round({self.code})", round(self.plain))


def _identity(self: Any) -> Any:
    return self


_BINARY: Mapping[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "add__": ("+", operator.add),
    "sub__": ("-", operator.sub),
    "mul__": ("*", operator.mul),
    "floordiv__": ("//", operator.floordiv),
    "truediv__": ("/", operator.truediv),
    "mod__": ("%", operator.mod),
}
_COMPARE = {
    "__eq__": ("==", operator.eq),
    "__ne__": ("!=", operator.ne),
    "__lt__": ("<", operator.lt),
    "__le__": ("<=", operator.le),
    "__gt__": (">", operator.gt),
    "__ge__": (">=", operator.ge),
}
_LEAVING = (
    "hash int float str repr format trunc index divmod rdivmod pow rpow and rand or ror xor rxor "
    "invert lshift rlshift rshift rrshift reduce reduce_ex getnewargs"
)
_METHODS: dict[str, Any] = {f"__{name}__": _leaves for name in _LEAVING.split()}
_METHODS |= {f"__{name}": _binary(*row, False) for name, row in _BINARY.items()}
_METHODS |= {f"__r{name}": _binary(*row, True) for name, row in _BINARY.items()}
_METHODS |= {name: _compare(*row) for name, row in _COMPARE.items()}
_METHODS |= {
    "__neg__": _unary("-{}", operator.neg),
    "__abs__": _unary("max({0},-{0})", abs),
    "__ceil__": _unary("ceil({})", math.ceil),
    "__floor__": _unary("floor({})", math.floor),
    "__pos__": _identity,
    "__round__": _round,
    "__bool__": _truth,
}


_Int: Any = type("_Int", (_Noted,), {**_METHODS, "__slots__": ()})
_Float: Any = type("_Float", (_Noted,), {**_METHODS, "__slots__": ()})
