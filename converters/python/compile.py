"""`trireme.compile`: a function that runs as a graph while its guards hold, and as Python else."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trireme.converters.python.arguments import Signature, feeds_of, leaves, mapped, signature_of
from trireme.converters.python.outer import frozen
from trireme.converters.python.outside import Outside
from trireme.converters.python.questions import Unanswerable
from trireme.converters.python.scope import Traced
from trireme.converters.python.tidy import tidy
from trireme.converters.python.trace import (
    Recording,
    TraceWarning,
    asked_at,
    bound_arguments,
    drawn,
    example_of,
    has_tensors,
    place,
    record,
)
from trireme.ir.graph import Graph
from trireme.runtime.eager.eager import tensor
from trireme.runtime.session.session import Session
from trireme.support.arguments import checked
from trireme.support.dtypes import Array
from trireme.support.errors import ConvertError, GraphError, RunError, TriremeError
from trireme.support.forks import register_at_fork

_MOST_GRAPHS = 8
_MOST_CHANGING = 3
"""The calls that may change what the function reads, as one does that loads weights at first."""


@dataclass(frozen=True)
class CompileStats:
    """What the calls of a compiled function did.

    calls: all calls
    graph_runs: those that a graph answered
    eager_runs: those that ran as Python, the first of each path among them
    guard_misses: the eager runs for which a graph of these types existed, but took another path
    graphs: the graphs that were traced
    missed_at: how often each line's decision was another than in the graph that was tried
    """

    calls: int = 0
    graph_runs: int = 0
    eager_runs: int = 0
    guard_misses: int = 0
    graphs: int = 0
    missed_at: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Guard:
    """A decision that Python took from a tensor: its elements then, and the line."""

    name: str
    expected: Array
    place: str


@dataclass(frozen=True)
class _Path:
    """A graph of the function for arguments of some types, and the decisions it holds for.

    outer: a key of all that the function reads beside its arguments
    boxed: the values of the result that are arrays without axes, by id
    """

    signature: Signature
    graph: Graph
    session: Session
    result: Any
    outputs: tuple[str, ...]
    guards: tuple[_Guard, ...]
    outer: Hashable
    boxed: frozenset[int]


class _Changing(Unanswerable):
    """The function changed an object or a variable outside it, which a graph does not."""


class CompiledFunction:
    """A function with a graph for each path that its calls took."""

    def __init__(
        self, function: Callable[..., Any], devices: Sequence[str] | None, most_graphs: int
    ) -> None:
        functools.update_wrapper(self, function)
        self.__name__ = getattr(function, "__name__", "the function")
        self._function = function
        self._options: dict[str, Any] = {} if devices is None else {"devices": devices}
        self._most = most_graphs
        self._paths: list[_Path] = []
        self._only_python = False
        self._changing = 0
        self._stats = CompileStats()
        self.reset_after_fork()
        register_at_fork(self)

    def reset_after_fork(self) -> None:
        """Be free, in a forked child, of the calls of other threads."""
        self._lock = threading.RLock()

    @property
    def stats(self) -> CompileStats:
        """What the calls did so far."""
        return self._stats

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Return what the function returns.

        Errors: ConvertError, if the function cannot be traced
        """
        arguments = bound_arguments(self._function, args, named)
        with self._lock:
            self._count(calls=1)
            outer = frozen(self._function)
            known = [
                path
                for path in self._paths
                if path.signature.fits(arguments) and path.outer == outer
            ]
            for path in known:
                made = self._try(path, arguments)
                if made is not None:
                    self._paths = [path, *(one for one in self._paths if one is not path)]
                    return made
            self._count(eager_runs=1, guard_misses=int(bool(known)))
            if len(self._paths) >= self._most or self._only_python:
                return self._function(*args, **named)
            outside = Outside(self._function, arguments)
            try:
                return self._trace(arguments, outer, outside)
            except Exception as error:  # Traced lacks something that arrays have, or no op fits
                if isinstance(error, TriremeError) and not isinstance(error, GraphError):
                    raise
                outside.restore()
                made = self._function(*args, **named)  # raises too if its arguments are wrong
                self._changing += isinstance(error, _Changing)
                if isinstance(error, _Changing) and self._changing < _MOST_CHANGING:
                    return made
                self._only_python = True
                own = error.summary if isinstance(error, TriremeError) else ""
                why = own or f"{type(error).__name__}: {error}"
                text = f"{asked_at(error, self._function)}: {why}; every call runs as Python"
                warnings.warn(text, TraceWarning, 2)
                return made

    def close(self) -> None:
        """Close the sessions of the graphs; further calls trace again."""
        with self._lock:
            for path in self._paths:
                path.session.close()
            self._paths.clear()

    def _count(self, **more: int) -> None:
        old = self._stats
        self._stats = replace(old, **{k: getattr(old, k) + n for k, n in more.items()})

    def _try(self, path: _Path, arguments: Mapping[str, Any]) -> Any:
        """Return the result of a graph; None where a guard missed."""
        try:
            feeds = feeds_of(arguments)
            made = path.session.run({name: feeds[name] for name in path.signature.types})
        except RunError:  # past a decision that is another now, an op may fail
            self._miss(path.guards[0].place if path.guards else "an op that failed")
            return None
        for guard in path.guards:
            if made[guard.name].tobytes() != guard.expected.tobytes():  # -0.0 prints otherwise
                self._miss(guard.place)
                return None
        self._count(graph_runs=1)
        as_tensors = has_tensors(arguments)
        waiting = iter(path.outputs)

        def leaf(name: str, value: Any) -> Any:
            if not isinstance(value, Traced):  # its caller may change an array
                return value.copy() if isinstance(value, np.ndarray) else value
            found = made[next(waiting)]
            return _given_back(value, found, path.boxed, as_tensors)

        return mapped(leaf, "", path.result)

    def _miss(self, where: str) -> None:
        missed = dict(self._stats.missed_at)
        missed[where] = missed.get(where, 0) + 1
        self._stats = replace(self._stats, missed_at=missed)

    def _trace(self, arguments: Mapping[str, Any], outer: Hashable, outside: Outside) -> Any:
        """Run the function on values that record; keep the graph, and return the values."""
        decisions: list[tuple[Traced, Array, str]] = []

        def on_value(value: Traced, wanted: str) -> Array:
            found = example_of(value, wanted)
            decisions.append((value.recorder.traced(value.id), found, place()))
            return found

        made = record(self._function, arguments, None, on_value, None)
        rules = made.recorder.like_arrays
        boxed = frozenset(rules.boxed if rules else ())
        made.recorder.on_value = made.recorder.like_arrays = None
        if outside.is_changed():
            raise _Changing(f"{self.__name__} changes what it reads outside its arguments")
        self._only_python = made.draws
        if made.draws:
            warnings.warn(f"{drawn(self._function)}, so every call runs as Python", TraceWarning, 3)
        else:
            self._paths.insert(0, self._path(made, arguments, decisions, outer, boxed))
            self._count(graphs=1)
        as_tensors = has_tensors(arguments)

        def leaf(name: str, value: Any) -> Any:
            if not isinstance(value, Traced):
                return value
            found = example_of(value, "the result")
            return _given_back(value, found, boxed, as_tensors)

        return mapped(leaf, "", made.result)

    def _path(
        self,
        made: Recording,
        arguments: Mapping[str, Any],
        decisions: Sequence[tuple[Traced, Array, str]],
        outer: Hashable,
        boxed: frozenset[int],
    ) -> _Path:
        recorder = made.recorder
        flat = [value for _, value in leaves("", made.result)]
        results = [value for value in flat if isinstance(value, Traced)]
        if not results and not decisions:
            raise ConvertError(f"{self.__name__} returns no tensor that depends on its arguments")
        graph = recorder.finish([*results, *(value for value, _, _ in decisions)])
        names = [graph.values[value].name for value in graph.outputs]
        guards = tuple(
            _Guard(name, expected, where)
            for name, (_, expected, where) in zip(names[len(results) :], decisions, strict=True)
        )
        graph = tidy(graph)
        types = {value.name: value.type for value in graph.input_values()}
        signature = signature_of(arguments, types, exact=True)
        session = Session(graph, **self._options)
        outputs = tuple(names[: len(results)])
        return _Path(signature, graph, session, made.result, outputs, guards, outer, boxed)


def _given_back(value: Traced, found: Array, boxed: frozenset[int], as_tensors: bool) -> Any:
    """Return elements as what a value of the result stands for: a tensor, an array or a scalar."""
    if as_tensors:
        return tensor(found)
    return found if value.id in boxed else found[()]


@checked(ConvertError)
def compile(
    function: Callable[..., Any],
    *,
    devices: Sequence[str] | None = None,
    most_graphs: int = _MOST_GRAPHS,
) -> CompiledFunction:
    """Return a function that is traced at its first call and runs as a graph from the second on.

    A graph answers a call whose arguments have its shapes and dtypes and the same Python values, if
    every decision that Python took from a tensor (a branch, a number) comes out as it did when the
    graph was traced. What its code reads outside it (numbers, arrays, lists, attributes of objects,
    functions and what they read) is guarded too. Else the call runs as Python, and its path becomes
    another graph. Prints and other effects happen at eager runs only. A function that draws random
    numbers, or does what no op stands for, always runs as Python, and a TraceWarning says so.

    devices: where the graphs run, as for a Session
    most_graphs: the most graphs that are kept; calls of further paths run as Python
    Errors: ConvertError, if the function returns something else than tensors and Python values
    """
    return CompiledFunction(function, devices, most_graphs)
