"""Functions of a captured program: the one that is captured, and those that it calls."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

from trireme.converters.python.array_like import is_library
from trireme.converters.python.callables import with_owner
from trireme.converters.python.control import Refused
from trireme.converters.python.loops import Loops
from trireme.converters.python.scope import Recorder, Traced
from trireme.converters.python.source import (
    Function,
    FunctionSource,
    body_of,
    name_of,
    outer_names,
    read_source,
    stored_names,
)
from trireme.converters.python.state import (
    Frame,
    Lost,
    Nested,
    faults_in,
    plain,
)
from trireme.converters.python.statements import EXITS, RESULT, RETURNED
from trireme.support.errors import ConvertError


class ProgramReader(Loops):
    """Reads a function into the recorder's graph."""

    def __init__(self, recorder: Recorder, fallback: bool, unroll: int) -> None:
        super().__init__(recorder, fallback, unroll)
        self._calls: list[Function] = []

    def run(self, source: FunctionSource, arguments: dict[str, Any]) -> Any:
        """Return what the captured function returns for arguments by name."""
        own = _own_names(source.tree)
        return self._run_function(Frame(source, own, None, dict(arguments)), source.tree)

    def inline(self, function: Nested, args: list[Any], named: dict[str, Any]) -> Any:
        """Return what a nested function returns, by reading its body here."""
        bound = _bind(function.tree, function.defaults, args, named)
        own = _own_names(function.tree)
        return self._run_function(Frame(function.source, own, function.frame, bound), function.tree)

    def inline_function(self, function: Any, args: list[Any], named: dict[str, Any]) -> Any:
        """Return what a function of the user returns, by reading its source here."""
        if isinstance(function, partial):
            options = {**function.keywords, **named}
            return self.call(function.func, [*function.args, *args], options)
        name = getattr(function, "__qualname__", f"a {type(function).__name__}")
        function, owner = with_owner(function)
        args = args if owner is None else [owner, *args]
        if not inspect.isfunction(function):
            raise Refused(f"{name} is called with a tensor, and no op stands for it")
        try:
            source = read_source(function)
        except ConvertError as error:
            raise Refused(f"{name} is called with a tensor: {error.summary}") from error
        bound = _bind(source.tree, _defaults(function, source.tree), args, named)
        frame = Frame(source, _own_names(source.tree), None, bound)
        if is_library(function.__globals__.get("__name__", "")):
            return self._run_library(name, frame)
        return self._run_function(frame, source.tree)

    def _run_library(self, name: str, frame: Frame) -> Any:
        """Return what a function of Python or numpy returns; its caller is what is refused."""
        before, fallback = dict(self.places), self.fallback
        self.fallback, final = False, False
        try:
            made = self._run_function(frame, frame.source.tree)
            if self.places == before:
                return made
        except Refused as error:
            final = error.final
        finally:
            self.places, self.fallback = before, fallback
        raise Refused(f"{name} is called with a tensor, and no op stands for it", final=final)

    def _run_function(self, frame: Frame, tree: Function) -> Any:
        name = name_of(tree)
        if tree in self._calls:
            why = f"{name} is recursive, and a graph has no calls; write it as a loop"
            raise Refused(why, final=True)
        frame.names |= {flag: False for flag in EXITS}
        loops, node, self.loops = self.loops, self.node, []
        self._calls.append(tree)
        try:
            with self.entered(frame):
                self.block(body_of(tree))
                returned, result = frame.names[RETURNED], frame.names.get(RESULT)
        finally:
            self._calls.pop()
            self.loops, self.node = loops, node
        if isinstance(returned, Traced):
            raise Refused(f"{name} returns a value on some paths, and ends without one on others")
        value = plain(result) if returned else None
        fault = next(faults_in(value), None)
        if fault is not None:
            raise Refused(
                fault.why if isinstance(fault, Lost) else f"{name} may not return a value"
            )
        return value


def _own_names(tree: Function) -> set[str]:
    """Return the names that belong to a call of a function."""
    body = body_of(tree)
    args = tree.args
    every = (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg)
    names = {arg.arg for arg in every if arg is not None}
    return names | (stored_names(body) - outer_names(body))


def _defaults(function: Any, tree: Function) -> dict[str, Any]:
    args = [*tree.args.posonlyargs, *tree.args.args]
    values = function.__defaults__ or ()
    last = args[len(args) - len(values) :]
    return {a.arg: v for a, v in zip(last, values, strict=True)} | (function.__kwdefaults__ or {})


def _bind(
    tree: Function, defaults: dict[str, Any], args: list[Any], named: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by the function's own names."""
    own = tree.args
    name = name_of(tree)
    positional = [arg.arg for arg in (*own.posonlyargs, *own.args)]
    bound = dict(zip(positional, args, strict=False))
    extra = args[len(positional) :]
    if own.vararg is not None:
        bound[own.vararg.arg] = tuple(extra)
    elif extra:
        raise Refused(f"{name} takes {len(positional)} arguments, {len(args)} are given")
    wanted = {*positional, *(arg.arg for arg in own.kwonlyargs)}
    unknown = {key: value for key, value in named.items() if key not in wanted}
    if unknown and own.kwarg is None:
        raise Refused(f"{name} has no argument {', '.join(unknown)}")
    bound |= {key: value for key, value in named.items() if key in wanted}
    if own.kwarg is not None:
        bound[own.kwarg.arg] = unknown
    missing = [one for one in wanted if one not in bound and one not in defaults]
    if missing:
        raise Refused(f"{name} needs the argument {', '.join(sorted(missing))}")
    return {**defaults, **bound}
