"""A Python function as an op of a graph: its name, types, shape rule and cost.

Comes in: a function of numpy arrays. Goes out: a `PythonOp`, which an attribute of a `python` node
holds. A file holds the name alone, so loading a graph needs the functions from the caller.
"""

from __future__ import annotations

import functools
import inspect
import json
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, overload

import numpy as np

from trireme.ir.graph import TensorType, Value
from trireme.ir.operand import Operand
from trireme.support.dtypes import Array, dtype_name, numpy_dtype
from trireme.support.errors import GraphError, RunError, ShapeError, TriremeError
from trireme.support.records import dataclass

OP = "python"
"""The name of the op whose nodes call functions."""
Shape = tuple[int | str, ...]
_KEPT_TIMES = 32
"""Calls of one kind whose times are kept, the newest."""
_Kind = tuple[tuple[TensorType | None, ...], str]
"""The types of a call's inputs, and its arguments: calls of one kind take similar times."""


@dataclass(frozen=True, eq=False, repr=False)
class PythonOp:
    """A function that nodes of a graph call on the host; made by `python_op`.

    Called with tensors or with values that a trace records, it applies the op to them. Called with
    arrays, it is the plain function. The times of its calls in this process price later placements.
    """

    name: str
    function: Callable[..., Any]
    inputs: tuple[str, ...] | None = None
    outputs: tuple[str, ...] | None = None
    shape: Callable[..., Any] | None = None
    cost: Callable[..., float] | None = None
    _times: dict[_Kind, deque[float]] = field(default_factory=dict, init=False)

    def __repr__(self) -> str:
        return f"python_op({self.name!r})"

    def __call__(self, *inputs: Any, **arguments: Any) -> Any:
        """Return the outputs: tensors if an input is one, what the function returns if none is."""
        for each in inputs:
            if isinstance(each, Operand):
                return each._apply(OP, *inputs, **self.attrs(**arguments))
        return self.function(*inputs, **arguments)

    def attrs(self, **arguments: Any) -> dict[str, Any]:
        """Return the attributes of a node that calls the function with arguments by name.

        arguments: numbers, texts, and lists and dicts of them; arrays are inputs
        Errors: GraphError, if an argument is of another kind
        """
        try:
            text = json.dumps(arguments, default=_plain, sort_keys=True)
        except (TypeError, ValueError) as error:
            raise GraphError(
                f"{self.name}: an argument by name has no form in a file: {error}",
                fix="pass arrays by position: they are inputs of the node",
            ) from error
        return {"operator": self, "arguments": text}

    def types(self, inputs: Sequence[TensorType | None], arguments: str) -> tuple[TensorType, ...]:
        """Return the types of the outputs.

        Errors: GraphError, if the function does not take the inputs; ShapeError, if its shape rule
            fails
        """
        self._check(inputs, arguments)
        first = next((one for one in inputs if one is not None), None)
        dtypes = self.outputs
        if dtypes is None:
            if first is None:
                raise GraphError(f"{self.name} has no input whose dtype its output could have")
            dtypes = (first.dtype,)
        if self.shape is None:
            if first is None:
                raise GraphError(f"{self.name} has no input whose shape its output could have")
            shapes: Sequence[Any] = [first.shape] * len(dtypes)
        else:
            found = self._ruled("shape rule", self.shape, inputs, arguments)
            listed = isinstance(found, list) and len(found) == 1 and _is_list(found[0])
            shapes = [found] if len(dtypes) == 1 and not listed else found
        if not _is_list(shapes) or len(shapes) != len(dtypes):
            raise ShapeError(
                f"the shape rule of {self.name} gives {shapes!r}, expected {len(dtypes)} shapes"
            )
        return tuple(
            TensorType(self._dims(shape), dtype)
            for shape, dtype in zip(shapes, dtypes, strict=True)
        )

    def _check(self, inputs: Sequence[TensorType | None], arguments: str) -> None:
        """Raise GraphError if the function does not take inputs of these types."""
        if self.inputs is not None and len(self.inputs) != len(inputs):
            raise GraphError(
                f"{self.name} takes {len(self.inputs)} inputs, {len(inputs)} are given"
            )
        for position, type in enumerate(inputs):
            wanted = "any" if self.inputs is None else self.inputs[position]
            if type is not None and wanted not in ("any", type.dtype):
                raise GraphError(f"{self.name}: input {position} is {type}, expected {wanted}")
            if type is not None and type.quant is not None:
                raise GraphError(
                    f"{self.name}: input {position} is {type}, which is quantised",
                    fix="dequantize it before",
                )
        try:
            _signature(self.function).bind(*inputs, **parsed(arguments))
        except TypeError as error:
            raise GraphError(f"{self.name} cannot be called so: {error}") from error

    def _ruled(
        self,
        what: str,
        rule: Callable[..., Any],
        inputs: Sequence[TensorType | None],
        arguments: str,
    ) -> Any:
        """Return what a rule says of the shapes of inputs, and of the arguments that it names."""
        known = _signature(rule).parameters.values()
        named = {one.name for one in known if one.kind != one.POSITIONAL_ONLY}
        every = any(one.kind == one.VAR_KEYWORD for one in known)
        given = {key: v for key, v in parsed(arguments).items() if every or key in named}
        try:
            return rule(*(None if one is None else one.shape for one in inputs), **given)
        except TriremeError:
            raise
        except Exception as error:
            raise ShapeError(
                f"the {what} of {self.name} failed: {type(error).__name__}: {error}"
            ) from error

    def _dims(self, shape: Any) -> Shape:
        """Return a shape that a rule gave, checked."""
        whole = (int, np.integer)
        if not _is_list(shape) or not all(
            isinstance(dim, (*whole, str)) and not isinstance(dim, bool) for dim in shape
        ):
            raise ShapeError(f"the shape rule of {self.name} gives {shape!r}, expected a shape")
        return tuple(dim if isinstance(dim, str) else int(dim) for dim in shape)

    def flops(self, inputs: Sequence[Value | None], arguments: str) -> int | None:
        """Return the operations that the cost rule gives; None without a rule."""
        if self.cost is None:
            return None
        types = [None if one is None else one.type for one in inputs]
        found = self._ruled("cost", self.cost, types, arguments)
        if not isinstance(found, (int, float, np.number)) or not 0 <= found < 1e18:
            raise GraphError(f"the cost of {self.name} is {found!r}, expected operations")
        return int(found)

    def seconds(
        self, inputs: Sequence[TensorType | None], arguments: str
    ) -> tuple[float, float, float] | None:
        """Return the least, the median and the greatest seconds of past calls of a kind, if any."""
        times = list(self._times.get((tuple(inputs), arguments), ()))
        return (min(times), statistics.median(times), max(times)) if times else None

    def run(self, arrays: Sequence[Array | None], arguments: str) -> tuple[Array, ...]:
        """Return the outputs of a call, whose types are what the declaration says.

        The function gets read-only views of memory that later runs overwrite.
        Errors: RunError, if the function raises, or returns something else than declared
        """
        given = [None if array is None else _read_only(array) for array in arrays]
        inputs = [None if array is None else _type_of(array) for array in arrays]
        start = time.perf_counter()
        try:
            with np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"):
                made = self.function(*given, **parsed(arguments))
        except Exception as error:
            raise RunError(f"{self.name} raised {type(error).__name__}: {error}") from error
        took = time.perf_counter() - start
        self._times.setdefault((tuple(inputs), arguments), deque(maxlen=_KEPT_TIMES)).append(took)
        types = self.types(inputs, arguments)
        results = made if isinstance(made, tuple) else (made,)
        if len(results) != len(types):
            raise RunError(f"{self.name} returned {len(results)} outputs, declared {len(types)}")
        return tuple(map(self._checked, range(len(types)), results, types))

    def _checked(self, position: int, result: Any, type: TensorType) -> Array:
        """Return an output as an array of the declared type; Python numbers take the dtype."""
        if result is None:
            raise RunError(f"{self.name} returned nothing as output {position}, declared {type}")
        is_array = isinstance(result, (np.ndarray, np.generic))
        try:
            array = np.asarray(result) if is_array else np.asarray(result, numpy_dtype(type.dtype))
        except (TypeError, ValueError, OverflowError) as error:
            raise RunError(f"{self.name}: output {position} is no array: {error}") from error
        fits = len(array.shape) == len(type.shape) and all(
            isinstance(wanted, str) or dim == wanted
            for dim, wanted in zip(array.shape, type.shape, strict=True)
        )
        if not fits or array.dtype != numpy_dtype(type.dtype):
            raise RunError(
                f"{self.name} returned {array.dtype}{list(array.shape)} as output {position},"
                f" declared {type}"
            )
        return array


@overload
def python_op(
    function: Callable[..., Any],
    *,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    shape: Callable[..., Any] | None = None,
    cost: Callable[..., float] | None = None,
    name: str = "",
) -> PythonOp: ...


@overload
def python_op(
    *,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    shape: Callable[..., Any] | None = None,
    cost: Callable[..., float] | None = None,
    name: str = "",
) -> Callable[[Callable[..., Any]], PythonOp]: ...


def python_op(
    function: Callable[..., Any] | None = None,
    *,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    shape: Callable[..., Any] | None = None,
    cost: Callable[..., float] | None = None,
    name: str = "",
) -> Any:
    """Make a function of numpy arrays an op that graphs, eager code and captured code call.

        @trireme.python_op(inputs=["float32"], shape=lambda x, k: (*x[:-1], k))
        def largest(x, k):
            return -np.sort(-x, axis=-1)[..., :k]

    The function runs on the host, on any thread. It depends on its inputs alone: equal calls may be
    merged, and a call whose outputs nobody reads is dropped. Its arrays are read-only, and valid
    until it returns.

    inputs: the dtype of each input, "any" for any; any number of any dtype when None
    outputs: the dtype of each output; one, of the first input's dtype, when None
    shape: from the shapes of the inputs to the shape of the output, or a list of shapes where there
        are several outputs. A dimension is a number, or the name of a symbol. The first input's
        shape when None. A rule also gets the arguments by name that it names
    cost: from the same to the number of arithmetic operations; one an output element when None
    name: the name in files and messages; the function's own when ""
    Errors: GraphError, if a dtype is unknown, or an argument is of another kind
    """
    if function is None:
        return functools.partial(
            python_op, inputs=inputs, outputs=outputs, shape=shape, cost=cost, name=name
        )
    for what, rule in (("the function", function), ("shape", shape), ("cost", cost)):
        if rule is not None and not callable(rule):
            raise GraphError(f"python_op: {what} is {rule!r}, expected a function")
    if outputs is not None and not outputs:
        raise GraphError("python_op: outputs is empty, expected a dtype for each output")
    return PythonOp(
        name or function.__name__,
        function,
        _dtypes("inputs", inputs, ("any",)),
        _dtypes("outputs", outputs, ()),
        shape,
        cost,
    )


def _dtypes(
    what: str, given: Sequence[str] | None, also: tuple[str, ...]
) -> tuple[str, ...] | None:
    if given is None:
        return None
    if isinstance(given, str) or not all(isinstance(one, str) for one in given):
        raise GraphError(f"python_op: {what} is {given!r}, expected names of dtypes in a list")
    for one in given:
        if one not in also:
            numpy_dtype(one)
    return tuple(given)


def _is_list(found: Any) -> bool:
    return isinstance(found, (tuple, list))


@functools.lru_cache(maxsize=1024)
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def parsed(arguments: str) -> dict[str, Any]:
    """Return the arguments by name that an attribute holds.

    Errors: GraphError, if the text is not JSON of arguments by name
    """
    try:
        found = json.loads(arguments) if arguments else {}
    except (ValueError, RecursionError) as error:
        raise GraphError(f"arguments {arguments[:60]!r} are not JSON: {error}") from error
    if not isinstance(found, dict):
        raise GraphError(f"arguments {arguments[:60]!r} are no JSON object")
    return found


def _plain(value: Any) -> Any:
    """Return a number of numpy as Python's; raise TypeError for what JSON has no form for."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"it is a {type(value).__name__}")


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def _type_of(array: Array) -> TensorType:
    return TensorType(array.shape, dtype_name(array.dtype))
