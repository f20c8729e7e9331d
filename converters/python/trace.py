"""`trireme.trace`: the calls that a function makes on its arguments become a graph."""

from __future__ import annotations

import inspect
import os
import random
import sys
import traceback
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from trireme.converters.python.arguments import as_inputs, held_in, is_held, is_input, leaves
from trireme.converters.python.array_calls import recording
from trireme.converters.python.array_like import TensorRules, is_library
from trireme.converters.python.callables import with_owner
from trireme.converters.python.calls import known_call
from trireme.converters.python.like_arrays import LikeArrays
from trireme.converters.python.outer import Freezer
from trireme.converters.python.questions import Questions, Unanswerable, is_of_recording
from trireme.converters.python.scope import Recorder, Traced
from trireme.converters.python.tidy import tidy
from trireme.ir.bind_shapes import Shapes, named_dim
from trireme.ir.dims import Bounds
from trireme.ir.graph import Graph, TensorType
from trireme.runtime.eager.eager import Tensor
from trireme.runtime.eager.operators import Operators
from trireme.support.arguments import checked
from trireme.support.dtypes import Array
from trireme.support.errors import ConvertError, GraphError, ShapeError


class TraceWarning(UserWarning):
    """Python took a decision from a tensor, or drew a random number: the graph holds that alone."""


_LOST = {
    "a truth": "Python branches on {type}: the graph holds only the path taken here, for {value}",
    "a Python number": "Python takes a number from {type}: the graph holds {value} as a constant",
    "rows": "Python iterates over {type}: the graph holds the body once for each row",
}
_DRAWS = "{name} draws random numbers: the graph holds those of one call as constants"
_OTHER = "Python takes {wanted} from {type}: the graph holds the elements as constants"


@dataclass(frozen=True)
class Recording:
    """A function that was called on recorded values: its result, and what it was recorded with.

    inputs: the arguments, with values of the recorder in place of the tensors
    draws: whether the function drew random numbers of Python or numpy, which are constants now
    """

    recorder: Recorder
    inputs: Mapping[str, Any]
    result: Any
    draws: bool


def record(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    types: Callable[[str, TensorType], TensorType] | None,
    on_value: Callable[[Traced, str], Array],
    on_rows: Callable[[Traced], None] | None,
    on_loss: Callable[[str], None] | None = None,
) -> Recording:
    """Call a function on values that record what is done with them.

    types: returns the type of an input, given its name and the type of its example
    on_value, on_rows: called where Python asks for elements, or iterates
    on_loss: called with a sentence where the graph lacks something, for a caller to whom one array
        as two arguments is two inputs; None refuses to, and it is one input
    Errors: GraphError, if a traced value cannot stand for an array here
    """
    name = getattr(function, "__name__", "traced")
    recorder = Recorder(name, place, known_call)
    recorder.like_arrays = (
        TensorRules() if has_tensors(arguments) else LikeArrays(on_loss and _copies(on_loss))
    )
    inputs = as_inputs(recorder, arguments, types, exact=on_loss is None)
    recorder.on_value, recorder.on_rows = on_value, on_rows
    before, held = _random_states(), held_in(inputs)
    bound = inspect.signature(function).bind_partial()
    bound.arguments.update(inputs)
    read = Freezer()
    read.key([function, *(value for _, value in held if not isinstance(value, Traced))])
    if read.iterators and on_loss is None:
        raise Unanswerable("an iterator is read on at every call; make it a list")
    if read.iterators and on_loss is not None:
        on_loss("an iterator is read on at every call: the graph holds what this one read")
    with recording(), Questions(on_loss).watched():
        made = function(*bound.args, **bound.kwargs)
    if not is_held(held, inputs):
        raise Unanswerable("a list or dict among the arguments is changed; a graph changes no list")
    return Recording(recorder, inputs, made, before != _random_states())


def _copies(on_loss: Callable[[str], None]) -> Callable[[str], None]:
    return lambda shared: on_loss(f"{shared}: the graph changes a copy")


def _random_states() -> tuple[Hashable, ...]:
    """Return the states of the random numbers that functions without a generator draw."""
    numpys = sys.modules.get("numpy.random")
    state = () if numpys is None else numpys.get_state(legacy=True)
    flat = (one.tobytes() if isinstance(one, np.ndarray) else one for one in state)
    return random.getstate(), *flat


def place() -> str:
    """Return the line of the program that is running, as "model.py:12"."""
    file, line = _line()
    return f"{os.path.basename(file)}:{line}"


def place_of(error: Exception) -> str:
    """Return the line of the program at which an error arose, as "model.py:12"."""
    frames = list(traceback.walk_tb(error.__traceback__))
    own = [one for one in frames if not is_library(one[0].f_globals.get("__name__", ""))]
    frame, line = (own or frames)[-1]
    return f"{os.path.basename(frame.f_code.co_filename)}:{line}"


def _line() -> tuple[str, int]:
    """Return the file and line of the innermost frame that is the program's own."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_library(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def has_tensors(value: Any) -> bool:
    """Whether an eager tensor is among arguments."""
    if isinstance(value, Mapping):
        return any(map(has_tensors, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(has_tensors, value))
    return isinstance(value, Tensor)


def bound_arguments(function: Callable[..., Any], examples: tuple[Any, ...], named: Any) -> Any:
    """Return arguments by name; raise ConvertError if the function does not take them."""
    try:
        bound = inspect.signature(function).bind(*examples, **named)
    except (TypeError, ValueError) as error:
        raise ConvertError(f"{getattr(function, '__name__', function)}: {error}") from error
    bound.apply_defaults()
    return dict(bound.arguments)


def example_of(value: Traced, wanted: str) -> Array:
    """Return the elements that a value has for the examples; raise GraphError if it has none."""
    found = value.recorder.example(value)
    if found is None:
        raise GraphError(
            f"{place()}: Python takes {wanted} from {value.type}, which has no elements",
            fix="give arrays as examples, not types",
        )
    return found


@checked(ConvertError)
def trace(
    function: Callable[..., Any],
    *examples: Any,
    shapes: Shapes | None = None,
    strict: bool = False,
) -> Graph:
    """Return the graph of the ops that a function calls on its arguments.

    The function runs once, on values that record. Operators, indexing, `trireme.eager`, functions
    of numpy and `python_op`s are recorded, with their lines. Python itself is not: a branch taken
    on a tensor's value, a number taken out of it or a loop over its rows warns with a TraceWarning
    that says what the graph lacks. `trireme.capture` keeps branches and loops.

    examples: the arguments; a tensor is an input with the name of its argument ("xs_0" in a list),
        any other value is a constant
    shapes: symbols for dimensions of inputs: {"x": ("batch", 3)}, with bounds {"x": ("n<=64", 3)}
    strict: raise instead of warning
    Errors: ConvertError, if the function returns no tensor, or `strict`; ShapeError, if a shape
        does not fit its example, or an op does not fit its inputs; GraphError, at the line that
        does or asks what a traced value cannot answer as an array does, as `type(x)`
    """
    arguments = bound_arguments(function, examples, {})
    wanted, symbols = _named_shapes(arguments, shapes or {})
    warned: set[str] = set()

    def lost(value: Traced, what: str, shown: Any) -> None:
        warn(_LOST.get(what, _OTHER).format(type=value.type, value=shown, wanted=what))

    def warn(sentence: str) -> None:
        text = f"{place()}: {sentence}"
        if strict:
            raise ConvertError(text, fix="trireme.capture keeps branches and loops")
        if text not in warned:
            warned.add(text)
            warnings.warn_explicit(text, TraceWarning, *_line())

    def on_value(value: Traced, what: str) -> Array:
        found = example_of(value, what)
        lost(value, what, found.reshape(-1)[0] if found.size == 1 else "these")
        return found

    with _typed_errors(function):
        made = record(
            function,
            arguments,
            lambda name, type: _with_symbols(name, type, wanted),
            on_value,
            lambda value: lost(value, "rows", ""),
            warn,
        )
    if made.draws and strict:
        raise ConvertError(
            drawn(function), fix="draw the numbers outside, and give them as arguments"
        )
    if made.draws:
        warnings.warn(drawn(function), TraceWarning, stacklevel=3)
    made.recorder.scope.builder.symbols = symbols
    return tidy(made.recorder.finish(results_of(made), once=True))


def _named_shapes(
    arguments: Mapping[str, Any], shapes: Shapes
) -> tuple[dict[str, tuple[Any, ...]], dict[str, Bounds]]:
    """Return the shapes of inputs with their symbols by name, and the bounds of the symbols.

    Errors: ShapeError, if a shape is of no input
    """
    symbols: dict[str, Bounds] = {}
    wanted = {name: tuple(named_dim(d, symbols) for d in dims) for name, dims in shapes.items()}
    inputs = [n for name, a in arguments.items() for n, v in leaves(name, a) if is_input(v)]
    unknown = sorted(set(wanted) - set(inputs))
    if unknown:
        raise ShapeError(
            f"no input is called '{unknown[0]}'", facts=[f"inputs: {', '.join(inputs)}"]
        )
    return wanted, symbols


@contextmanager
def _typed_errors(function: Callable[..., Any]) -> Iterator[None]:
    """Name the line where a traced value cannot stand for an array."""
    try:
        yield
    except GraphError as error:
        kind = ShapeError if isinstance(error, ShapeError) else GraphError
        text = f"{asked_at(error, function)}: {error.summary}"
        raise kind(text, facts=error.facts, fix=error.fix) from error
    except (AttributeError, TypeError) as error:
        if Traced.__name__ not in str(error) and not is_of_recording(error):
            raise
        text = f"{asked_at(error, function)}: {error}"
        raise ConvertError(text, fix="trireme.capture reads the source") from error


def asked_at(error: Exception, function: Callable[..., Any]) -> str:
    """Return the line of the program that an error is about."""
    if not isinstance(error, Unanswerable):
        return place_of(error)
    code = getattr(with_owner(function)[0], "__code__", None)
    if error.place or code is None:
        return error.place or type(function).__qualname__
    return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"


def drawn(function: Callable[..., Any]) -> str:
    """Return what is lost of a function that draws random numbers."""
    return _DRAWS.format(name=getattr(function, "__qualname__", "the function"))


def _with_symbols(name: str, type: TensorType, wanted: Mapping[str, Any]) -> TensorType:
    if name not in wanted:
        return type
    dims = wanted[name]
    fits = len(dims) == len(type.shape) and all(
        isinstance(dim, str) or dim == given for dim, given in zip(dims, type.shape, strict=False)
    )
    if not fits:
        raise ShapeError(f"input '{name}' is {type}, which does not fit the shape {dims}")
    return TensorType(dims, type.dtype, type.quant)


def results_of(made: Recording) -> list[Traced]:
    """Return the tensors that a recorded function returned; one that it did not record is constant.

    Errors: ConvertError, if it returned anything else
    """
    found = []
    for _, value in leaves("", made.result):
        if not isinstance(value, (Operators, np.ndarray, np.generic, int, float)):
            raise ConvertError(
                f"{made.recorder.scope.builder.name} returns a {type(value).__name__}, "
                "expected tensors"
            )
        found.append(made.recorder.lift(value))
    if not found:
        raise ConvertError(f"{made.recorder.scope.builder.name} returns no tensor")
    return found
