"""`trireme.capture`: the source of a function becomes a graph, with its branches and loops."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trireme.converters.python.arguments import (
    Signature,
    as_inputs,
    feeds_of,
    held_in,
    is_held,
    is_output,
    leaves,
    restored,
    signature_of,
)
from trireme.converters.python.callables import with_owner
from trireme.converters.python.calls import known_call
from trireme.converters.python.control import Refused
from trireme.converters.python.outer import OuterName, is_iterator
from trireme.converters.python.program import ProgramReader
from trireme.converters.python.scope import Recorder, Traced
from trireme.converters.python.show import source_of
from trireme.converters.python.source import read_source
from trireme.converters.python.tidy import tidy
from trireme.ir.graph import Graph
from trireme.ir.interpreter import interpret
from trireme.support.arguments import checked
from trireme.support.errors import ConvertError

_UNROLL = 16
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Found:
    """A graph made of the function for arguments of some types."""

    signature: Signature
    graph: Graph
    result: Any
    outer: tuple[OuterName, ...]
    fallbacks: tuple[str, ...]


class CapturedFunction:
    """A function whose source was read: a graph for each combination of types of its arguments."""

    def __init__(self, function: Callable[..., Any], unroll: int, fallback: bool = True) -> None:
        plain, owner = with_owner(function)
        self._source = read_source(plain)
        self._own = {} if owner is None else {self._source.parameters[0]: owner}
        self._signature = inspect.signature(function, follow_wrapped=False)
        self._unroll = unroll
        self._fallback = fallback
        self._found: list[_Found] = []

    def graph(self, *examples: Any) -> Graph:
        """Return the graph for arguments like the examples; the latest one without examples.

        Its inputs have the names of the arguments ("xs_0" in a list). Its outputs are the results
        in order, with the arrays and numbers among them that depend on no tensor.
        Errors: ConvertError, listing every place that no graph can express
        """
        return self._for(examples).graph

    def source(self, *examples: Any) -> str:
        """Return what was understood, as Python with a line for each node."""
        return source_of(self._for(examples).graph)

    def fallbacks(self, *examples: Any) -> tuple[str, ...]:
        """Return the statements that Python operators run, with their places and reasons."""
        return self._for(examples).fallbacks

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Return what the function returns, computed by the graph on the numpy references.

        Errors: RunError, if a global or a captured variable changed since the capture
        """
        bound = self._bound(args, named)
        found = self._matching(bound) or self._capture(bound)
        for one in found.outer:
            one.check()
        feeds = feeds_of(bound)
        by_id = {value.id: feeds[value.name] for value in found.graph.input_values()}
        made = interpret(found.graph, by_id)
        return restored(found.result, [made[value] for value in found.graph.outputs])

    def _bound(self, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        try:
            bound = self._signature.bind(*args, **named)
        except TypeError as error:
            raise ConvertError(f"{self._source.name}: {error}") from error
        bound.apply_defaults()
        return self._own | bound.arguments

    def _for(self, examples: tuple[Any, ...]) -> _Found:
        if examples or not self._signature.parameters:
            bound = self._bound(examples, {})
            return self._matching(bound) or self._capture(bound)
        if not self._found:
            raise ConvertError(
                f"{self._source.name} has no graph yet: the types of its arguments are unknown",
                fix="give examples of the arguments",
            )
        return self._found[-1]

    def _matching(self, bound: dict[str, Any]) -> _Found | None:
        return next((one for one in self._found if one.signature.fits(bound)), None)

    def _capture(self, bound: dict[str, Any]) -> _Found:
        recorder = Recorder(self._source.name, lambda: program.where(), known_call)
        program = ProgramReader(recorder, self._fallback, self._unroll)
        inputs = as_inputs(recorder, bound)
        result = None
        held = held_in(inputs)
        for name in (name for name, value in held if is_iterator(value)):
            place = self._source.place(self._source.tree)
            program.places[place, f"{name} is an iterator, which each call reads on"] = None
        try:
            result = program.run(self._source, inputs)
            if not is_held(held, inputs):
                raise Refused("a list or dict among the arguments is changed; change a copy of it")
        except Refused as error:
            place = self._source.place(error.node or self._source.tree)
            if error.why:
                program.places[place, error.why] = None
        self._expect_no_places(program)
        made = [value for _, value in leaves("", result) if is_output(value)]
        if not any(isinstance(value, Traced) for value in made):
            raise ConvertError(
                f"{self._source.name} returns {_shown(result)}, which depends on no tensor"
            )
        graph = tidy(recorder.finish([recorder.lift(value) for value in made], once=True))
        types = {value.name: value.type for value in graph.input_values()}
        signature = signature_of(bound, types)
        fallbacks = tuple(f"{place}: {why}" for place, why in program.fallbacks)
        found = _Found(signature, graph, result, tuple(program.outer.values()), fallbacks)
        for one in fallbacks:
            _log.warning("%s: a Python operator runs %s", self._source.name, one)
        self._found.append(found)
        return found

    def _expect_no_places(self, program: ProgramReader) -> None:
        if not program.places:
            return
        facts = [f"{place}: {why}" for place, why in program.places]
        count = "1 place" if len(facts) == 1 else f"{len(facts)} places"
        raise ConvertError(
            f"{self._source.name} cannot be captured: no graph can express {count}", facts=facts
        )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"a {type(value).__name__}"


@checked(ConvertError)
def capture(
    function: Callable[..., Any], *examples: Any, unroll: int = _UNROLL, fallback: bool = True
) -> CapturedFunction:
    """Return a function whose source is read into graphs: both branches, and loops, are kept.

    An argument that is an array, a scalar of numpy, an eager tensor or a TensorType is an input. A
    number of Python, a text or another object is a constant of the graph. A Python number that
    comes to depend on a tensor becomes a tensor without axes: beside a tensor it takes the
    tensor's dtype (a float beside integers makes float64, as in numpy 2); alone it is int64 or
    float64. Integers wrap at 64 bits.

    An if, while, for, break, continue, early return, `and`, `or`, conditional expression or chained
    comparison that depends on a tensor becomes an `if`, `loop` or `scan`. A loop over Python values
    is unrolled up to `unroll` turns; a longer one becomes a loop of the graph. Functions that are
    called with tensors are read too; numpy's and math's become ops.

    A statement that no graph can express becomes a Python operator: a node that runs the statement
    on the host. `captured.fallbacks()` lists them, and a warning is logged for each. The types of
    its outputs come from running it on the examples. What a node cannot do either (an exception, a
    print, a random number, a change of an object) is an error.

    examples: arguments to capture the graph for; other types are captured when they come
    fallback: False makes every statement that no graph can express an error
    Errors: ConvertError, listing with file and line every place that cannot be captured
    """
    captured = CapturedFunction(function, unroll, fallback)
    if examples:
        captured.graph(*examples)
    return captured
