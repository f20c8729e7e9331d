"""What a program asks of a traced value that the value cannot answer as an array does.

A Traced is no array: `type(x)` tells them apart, and so do `hasattr` and some abstract classes. An
op that no graph has raises an error, which the program may catch. Either way the program would take
a path that it does not take on arrays. `Questions` watches the frames of the program while it is
traced, and raises at the line that asks. `trace.record` calls this module.
"""

from __future__ import annotations

import builtins
import dis
import functools
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import FrozenInstanceError, dataclass
from types import CodeType, FrameType, ModuleType
from typing import Any

import numpy as np

from trireme.converters.python.array_like import is_library
from trireme.converters.python.callables import bound_to, called
from trireme.converters.python.outer import is_fresh
from trireme.converters.python.scope import Traced
from trireme.runtime.eager.eager import tensor
from trireme.support.errors import GraphError, TriremeError


class Unanswerable(GraphError):
    """A question that a traced value cannot answer, at the line `place` of the program."""

    place = ""


_UNKNOWN = object()
"""What an expression gives that is more than names, attributes, items and constants."""
_SKIPPED = ("CACHE", "EXTENDED_ARG", "KW_NAMES", "NOP", "NOT_TAKEN", "PRECALL", "PUSH_NULL")
_MAY_COPY = frozenset(["asarray", "asanyarray", "ascontiguousarray", "asfortranarray"])
_LEAVING = ("COPY", "POP", "RETURN", "STORE", "SWAP", "YIELD")
_ABOUT_CLASSES = ("isinstance", "issubclass")
_PLAIN = ("shape", "dtype", "ndim", "size")
"""Attributes of a Traced that are no traced values."""

_Load = Callable[[FrameType], Any]


@dataclass(frozen=True)
class _Site:
    """A call of one of `_ASKED`: its name, and how to find its arguments in the frame.

    loads: None where the function is not called here
    """

    name: str
    loads: tuple[_Load, ...] | None


def _type_asked(values: Sequence[Any]) -> str:
    if len(values) == 1 and _may_be_traced(values[0]):
        return "type() tells a traced value from an array"
    return ""


def _attribute_asked(values: Sequence[Any]) -> str:
    if len(values) < 2 or not _may_be_traced(values[0]):
        return ""
    x, name = values[:2]
    if not isinstance(name, str):
        return "an array and a traced value have other attributes"
    models = [_model(x)] if isinstance(x, Traced) else [np.zeros(1), np.float64()]
    has = hasattr(Traced, name) or name in Traced.__dataclass_fields__
    if all(hasattr(model, name) == has for model in models):
        return ""
    return f"{name!r} is an attribute of an array or of a traced value, and not of both"


def _default_asked(values: Sequence[Any]) -> str:
    return _attribute_asked(values) if len(values) == 3 else ""


def _class_asked(values: Sequence[Any]) -> str:
    if len(values) != 2 or not _may_be_traced(values[0]):
        return ""
    x, classes = values
    models = [_model(x)] if isinstance(x, Traced) else [np.zeros(1), np.float64()]
    try:
        holds = issubclass(Traced, classes)
        others = [one for one in models if holds and not isinstance(one, classes)]
    except TypeError:  # a part is unknown, or is no class
        return ""
    kind = type(others[0]).__name__ if others else ""
    return f"isinstance holds for a traced value, and not for numpy's {kind}" if others else ""


def _contents_asked(values: Sequence[Any]) -> str:
    is_traced = bool(values) and isinstance(values[0], Traced)
    return "an array and a traced value have other attributes" if is_traced else ""


_ASKED: Mapping[str, Callable[[Sequence[Any]], str]] = {
    "type": _type_asked,
    "hasattr": _attribute_asked,
    "getattr": _default_asked,
    "isinstance": _class_asked,
    "dir": _contents_asked,
    "vars": _contents_asked,
    "is": lambda values: "np.asarray gives an array itself, and a copy of a traced value",
}
"""Builtins that may answer otherwise for a Traced: why they do for some arguments, or ""."""


def _may_be_traced(value: Any) -> bool:
    return value is _UNKNOWN or isinstance(value, Traced)


def _model(x: Traced) -> Any:
    """Return what a value stands for: a tensor, an array or a scalar of numpy."""
    if x.recorder.eager:
        return tensor(np.zeros(1))
    rules = x.recorder.like_arrays
    is_array = x.type.shape or rules is not None and x.id in rules.boxed
    return np.zeros(1) if is_array else x.dtype.type()


class Questions:
    """The questions of one recording.

    on_loss: called with a sentence where a call gives a value that another call does not; None
        refuses to
    """

    def __init__(self, on_loss: Callable[[str], None] | None = None) -> None:
        self._on_loss = on_loss
        self._first: Unanswerable | None = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the program's frames; raise Unanswerable if they caught an error of a traced value.

        Another tracing function of the thread, as a debugger's, is set aside meanwhile; a profiler
        is not, and calls are not watched then.
        """
        before, is_profiled = sys.gettrace(), sys.getprofile() is not None
        sys.settrace(self._enter)
        if not is_profiled:
            sys.setprofile(self._called)
        try:
            yield
        finally:
            sys.settrace(before)
            if not is_profiled:
                sys.setprofile(None)
        if self._first is not None:
            raise self._first

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if is_library(frame.f_globals.get("__name__", "")):
            return None
        sites = _sites(code)
        if not sites and not code.co_exceptiontable:
            return None
        frame.f_trace_opcodes = bool(sites)
        frame.f_trace_lines = False

        def inside(frame: FrameType, event: str, arg: Any) -> Any:
            self._look(sites, frame, event, arg)
            return inside

        return inside

    def _look(self, sites: Mapping[int, _Site], frame: FrameType, event: str, arg: Any) -> None:
        if event == "exception" and self._first is None and is_of_recording(arg[1]):
            summary = arg[1].summary if isinstance(arg[1], TriremeError) else str(arg[1])
            self._note(frame, f"the program catches an error that no array raises: {summary}")
        site = sites.get(frame.f_lasti) if event == "opcode" else None
        if site is not None and _is_builtin(frame, site.name):
            given = [_UNKNOWN] if site.loads is None else [load(frame) for load in site.loads]
            is_open = bool(given) and given[0] is _UNKNOWN and _is_standard(frame)
            why = "" if is_open else _ASKED[site.name](given)
            if why:
                raise self._note(frame, why)

    def _called(self, frame: FrameType, event: str, arg: Any) -> None:
        """Look at a call of a function of C: a clock gives another result at every call."""
        own = bound_to(arg)
        is_drawn = isinstance(own, (random.Random, np.random.RandomState, np.random.Generator))
        if event != "c_call" or is_drawn or not is_fresh(arg):  # record compares drawn states
            return
        if not _is_own(frame) and arg is not os.urandom:
            return
        while not _is_own(frame) and frame.f_back is not None:
            frame = frame.f_back
        why = f"{called(arg)} gives another result at every call"
        if self._on_loss is None:
            raise self._note(frame, why)
        self._on_loss(f"{why}: the graph holds this one as a constant")

    def _note(self, frame: FrameType, why: str) -> Unanswerable:
        error = Unanswerable(why, fix="isinstance(x, np.ndarray) holds for a traced array")
        error.place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        self._first = self._first or error
        return error


def is_of_recording(error: Any) -> bool:
    """Whether an error says that a Traced lacks what an array has."""
    lacks = isinstance(error, AttributeError) and isinstance(error.obj, Traced)
    return lacks or isinstance(error, (TriremeError, FrozenInstanceError))


def _is_standard(frame: FrameType) -> bool:
    """Whether code is of Python's own library, which asks much of values that are not traced."""
    module: str = frame.f_globals.get("__name__", "")
    return module.partition(".")[0] in sys.stdlib_module_names and module != "__main__"


def _is_own(frame: FrameType) -> bool:
    """Whether code is the program's own."""
    return not is_library(frame.f_globals.get("__name__", "")) and not _is_standard(frame)


def _is_builtin(frame: FrameType, name: str) -> bool:
    own = vars(builtins).get(name)
    return frame.f_globals.get(name, own) is own


@functools.cache
def _sites(code: CodeType) -> Mapping[int, _Site]:
    """Return the calls of builtins in `_ASKED`, by the offsets of the instructions that call."""
    found = _identities(code)
    told: set[int] = set()
    instructions = [one for one in dis.get_instructions(code) if one.opname not in _SKIPPED]
    for at, one in enumerate(instructions):
        name = one.argval if one.opname in ("LOAD_GLOBAL", "LOAD_NAME") else ""
        if name not in _ASKED and name not in _ABOUT_CLASSES:
            continue
        rest = instructions[at + 1 :]
        end, loads = _arguments(rest)
        if end is not None and name in _ABOUT_CLASSES:
            told |= {each.offset for each in rest if each.offset < end.offset}
        if end is not None and name in _ASKED:
            found[end.offset] = _Site(name, loads)
        elif name == "type" and one.offset not in told and not _is_compared(rest):
            found[one.offset] = _Site(name, None)
    return found


def _identities(code: CodeType) -> dict[int, _Site]:
    """Return where code that calls np.asarray, which gives an array itself, compares identities."""
    found: dict[int, _Site] = {}
    if _MAY_COPY.isdisjoint(code.co_names):
        return found
    before: dis.Instruction | None = None
    for one in dis.get_instructions(code):
        is_constant = before is not None and before.opname == "LOAD_CONST"
        if one.opname == "IS_OP" and not is_constant:
            found[one.offset] = _Site("is", None)
        before = one
    return found


def _is_compared(rest: Sequence[dis.Instruction]) -> bool:
    return bool(rest) and rest[0].opname in ("IS_OP", "COMPARE_OP", "CONTAINS_OP")


def _arguments(
    instructions: Sequence[dis.Instruction],
) -> tuple[dis.Instruction | None, tuple[_Load, ...]]:
    """Return the instruction that calls with the arguments that are loaded first, and their loads.

    None where the function is not called; an argument of another form is unknown.
    """
    loads: list[_Load] = []
    for one in instructions:
        kind, value = one.opname, one.argval
        if kind == "CALL" and len(loads) == value:
            return one, tuple(loads)
        depth = len(loads)
        if kind == "LOAD_CONST":
            loads.append(functools.partial(_constant, value))
        elif kind.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME")):
            names = value if isinstance(value, tuple) else (value,)
            loads += [functools.partial(_named, name) for name in names]
        elif kind in ("LOAD_ATTR", "LOAD_METHOD") and loads:
            loads[-1] = functools.partial(_attribute, loads[-1], value)
        elif kind.startswith("BINARY_SUBSCR") and depth > 1:
            key, holder = loads.pop(), loads.pop()
            loads.append(functools.partial(_item, holder, key))
        elif kind == "BUILD_TUPLE" and depth >= value:
            parts = tuple(loads[depth - value :])
            loads[depth - value :] = [functools.partial(_tuple, parts)]
        else:
            effect = _effect(one)
            taken = value + 1 if kind == "CALL" else max(1 - effect, 0)
            if depth < taken or effect > 1 or kind.startswith(_LEAVING) or "JUMP" in kind:
                break
            del loads[depth - taken :]
            loads.append(lambda frame: _UNKNOWN)
    return None, ()


def _effect(one: dis.Instruction) -> int:
    return dis.stack_effect(one.opcode, one.arg if one.opcode >= dis.HAVE_ARGUMENT else None)


def _constant(value: Any, frame: FrameType) -> Any:
    return value


def _tuple(parts: Sequence[_Load], frame: FrameType) -> Any:
    return tuple(part(frame) for part in parts)


def _named(name: str, frame: FrameType) -> Any:
    for names in (frame.f_locals, frame.f_globals, vars(builtins)):
        if name in names:
            return names[name]
    return _UNKNOWN


def _attribute(holder: _Load, name: str, frame: FrameType) -> Any:
    """Return an attribute that is stored, without a call of the program's code."""
    value = holder(frame)
    if isinstance(value, Traced):
        return None if name in _PLAIN else value
    if isinstance(value, ModuleType) or hasattr(value, "__dict__"):
        return vars(value).get(name, _UNKNOWN)
    return _UNKNOWN


def _item(holder: _Load, key: _Load, frame: FrameType) -> Any:
    value = holder(frame)
    if isinstance(value, Traced):
        return value
    if type(value) not in (list, tuple, dict):
        return _UNKNOWN
    try:
        return value[key(frame)]
    except (LookupError, TypeError):
        return _UNKNOWN
