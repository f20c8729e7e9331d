"""Runs on arrays that stay: bound once, read and written where they are, run many times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from trireme.backend.capabilities import rebind_of
from trireme.backend.device import HOST, Buffer
from trireme.ir.dims import substituted
from trireme.ir.graph import UNKNOWN, Value
from trireme.plan.plan import Plan
from trireme.runtime.loop.execute import has_overlap, serial_runner
from trireme.runtime.program.context import ExecutionContext
from trireme.runtime.program.feeds import misfit, refuse_names, refuse_targets
from trireme.runtime.program.io_binding import Arguments
from trireme.support.dtypes import Array, dtype_name, numpy_dtype
from trireme.support.errors import RunError

if TYPE_CHECKING:
    from trireme.runtime.calls.queue import Result, RunRequest


CopyReason = Literal["small", "program", "layout", "alignment", "overlap", "unknown_shape"]
REASONS: Mapping[CopyReason, str] = {
    "small": "copying it takes less time than pointing the program at it",
    "program": "the program cannot be pointed at other memory for it",
    "layout": "its elements do not lie one behind the other",
    "alignment": "it does not begin at a multiple of 16 bytes",
    "overlap": "it overlaps an input",
    "unknown_shape": "only a run tells its shape, so each run makes a new array",
}
"""What each reason means."""
ALIGNMENT = 16


class MovingIO(NamedTuple):
    """Which inputs, then outputs, a program can be pointed at; it copies those below a size."""

    moves: Sequence[bool]
    small_bytes: int


@dataclass(frozen=True)
class IOCopy:
    """An input or output that each run copies.

    nbytes: of a copy; reason: a word, which REASONS explains
    """

    name: str
    direction: Literal["input", "output"]
    nbytes: int
    reason: CopyReason

    def __str__(self) -> str:
        return f"{self.direction} '{self.name}' ({self.nbytes} bytes) is copied: {self.why}"

    @property
    def why(self) -> str:
        """The reason as a sentence's end."""
        return REASONS[self.reason]


class BoundRun:
    """Inputs and outputs of a session, bound to arrays.

    inputs, outputs: the arrays by name; outputs without an array of the caller's have one here,
        which each run overwrites
    copies: what each run copies; empty where nothing is
    """

    def __init__(
        self,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        copies: Sequence[IOCopy],
        run: Callable[[Mapping[str, Any], Mapping[str, Array]], Result],
        run_async: Callable[..., RunRequest],
        in_place: Callable[[], bool] | None = None,
    ) -> None:
        self.inputs, self.outputs, self.copies = inputs, outputs, tuple(copies)
        self._run, self._run_async, self._in_place = run, run_async, in_place

    def run(self) -> Mapping[str, Array]:
        """Run on what the inputs hold now; return the outputs. Errors: as Session.run"""
        in_place = self._in_place
        if in_place is not None and in_place():
            return self.outputs
        return self._run(self.inputs, self.outputs)

    def run_async(self, *, timeout_s: float | None = None, priority: int = 0) -> RunRequest:
        """Return a future of a run. Leave the arrays alone until it is over."""
        return self._run_async(self.inputs, self.outputs, timeout_s=timeout_s, priority=priority)


def bound_inputs(values: Sequence[Value], feeds: Any) -> dict[str, Array]:
    """Return what is fed as arrays that share its memory.

    Errors: RunError, if an input is missing or unknown, or does not fit without a copy
    """
    if not isinstance(feeds, Mapping) or set(feeds) != {value.name for value in values}:
        refuse_names(feeds, values)
    return {value.name: _shared(value, feeds[value.name], value.shape) for value in values}


def bound_outputs(
    values: Sequence[Value], shapes: Mapping[str, tuple[int, ...] | None], out: Any
) -> dict[str, Array]:
    """Return arrays for the outputs: those in `out`, and new ones where the shape is known.

    Errors: RunError, if `out` names no output or an array does not fit or is read-only
    """
    given = {} if out is None else out
    if not isinstance(given, Mapping) or set(given) - {value.name for value in values}:
        refuse_targets(given, [value.name for value in values])
    found = {}
    for value in values:
        shape = shapes[value.name]
        if value.name in given:
            wanted = value.shape if shape is None else shape
            array = _shared(value, given[value.name], wanted, "out")
            if not array.flags.writeable:
                raise RunError(f"out['{value.name}'] is read-only, expected memory to write into")
            found[value.name] = array
        elif shape is not None:
            found[value.name] = np.empty(shape, numpy_dtype(value.dtype))
    return found


def output_shapes(
    inputs: Sequence[Value], outputs: Sequence[Value], fed: Mapping[str, Array]
) -> dict[str, tuple[int, ...] | None]:
    """Return the shape of each output for some inputs; None where only a run tells it."""
    sizes = {
        dim: size
        for value in inputs
        for dim, size in zip(value.shape, fed[value.name].shape, strict=True)
        if isinstance(dim, str)
    }
    found: dict[str, tuple[int, ...] | None] = {}
    for value in outputs:
        dims = [dim if dim == UNKNOWN else substituted(dim, sizes) for dim in value.shape]
        known = tuple(dim for dim in dims if isinstance(dim, int))
        found[value.name] = known if len(known) == len(dims) else None
    return found


def copies_of(
    inputs: Mapping[str, Array],
    outputs: Mapping[str, Array],
    names: Sequence[str],
    moving: MovingIO,
) -> list[IOCopy]:
    """Return what runs copy.

    names: of all inputs, then of all outputs; moving: whether the program can be pointed at each
    """
    found = []
    for k, (name, moves_it) in enumerate(zip(names, moving.moves, strict=True)):
        is_input = k < len(inputs)
        array = (inputs if is_input else outputs).get(name)
        others = () if is_input else tuple(inputs.values())
        reason = _reason(array, moves_it, others, moving.small_bytes)
        if reason is not None:
            nbytes = 0 if array is None else array.nbytes
            found.append(IOCopy(name, "input" if is_input else "output", nbytes, reason))
    return found


def _reason(
    array: Array | None, moves: bool, inputs: Sequence[Array], small_bytes: int
) -> CopyReason | None:
    if array is None:
        return "unknown_shape"
    if array.nbytes < small_bytes:
        return "small"
    if not moves:
        return "program"
    if not array.flags.c_contiguous:
        return "layout"
    if array.ctypes.data % ALIGNMENT:
        return "alignment"
    return "overlap" if any(np.may_share_memory(array, one) for one in inputs) else None


def _shared(value: Value, given: Any, shape: Sequence[int | str], what: str = "input") -> Array:
    """Return memory of the caller's as an array of a value's type. Errors: RunError"""
    named = f"input '{value.name}'" if what == "input" else f"out['{value.name}']"
    array = _viewed(given, named, value, shape)
    fits = array.ndim == len(shape) and all(
        isinstance(dim, str) or dim == size for dim, size in zip(shape, array.shape, strict=False)
    )
    if fits and array.dtype == numpy_dtype(value.dtype):
        return array
    if what == "input":
        raise misfit(value, array)
    found = f"{dtype_name(array.dtype)}[{','.join(map(str, array.shape))}]"
    raise RunError(f"{named} is {found}, expected {value.dtype}[{','.join(map(str, shape))}]")


def _viewed(given: Any, named: str, value: Value, shape: Sequence[int | str]) -> Array:
    """Return what is given as an array, without a copy. Errors: RunError"""
    if isinstance(given, np.ndarray):
        return given
    try:
        view = memoryview(given)
    except TypeError:
        return _from_dlpack(given, named)
    try:
        sizes = tuple(dim for dim in shape if isinstance(dim, int))
        if view.format in ("B", "b", "c") and view.ndim == 1 and len(sizes) == len(shape):
            return np.frombuffer(view, numpy_dtype(value.dtype)).reshape(sizes)
        return np.asarray(view)
    except (ValueError, TypeError) as error:
        size = f"a buffer of {view.nbytes} bytes"
        raise RunError(f"{named} is {size}, expected {value.type}: {error}") from error


def _from_dlpack(given: Any, named: str) -> Array:
    if not hasattr(given, "__dlpack__"):
        raise RunError(
            f"{named} is a {type(given).__name__}, expected an array of numpy, an object of DLPack "
            "or a buffer",
            fix="run takes anything that numpy makes an array of, and copies it",
        )
    try:
        return np.from_dlpack(given)
    except Exception as error:  # each library has errors of its own
        raise RunError(f"{named} cannot be shared by DLPack: {error}") from error


def run_on_arrays(
    context: ExecutionContext, inputs: Mapping[str, Array], outputs: Mapping[str, Array]
) -> Callable[[], None] | None:
    """Return what runs a context's program on arrays; None where something has to be copied.

    inputs, outputs: all of them, by name; the runs write into the outputs
    """
    plan = context.program.plan
    if has_overlap(plan) or not _is_on_host(plan) or not _are_apart(inputs, outputs):
        return None
    places = _places(context, inputs, outputs)
    if places is None:
        return None
    program, states = context.program, context.states
    bound = ExecutionContext(program, context.scratch, places, states, beside=context)
    return serial_runner(plan, bound.calls)


def _is_on_host(plan: Plan) -> bool:
    """Whether every task works on the host's memory."""
    return all(slot.memory == HOST for slot in plan.slots.values())


def _are_apart(inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> bool:
    """Whether no output shares memory with an input or with another output."""
    made = list(outputs.values())
    pairs = [*combinations(made, 2), *((y, x) for y in made for x in inputs.values())]
    return not any(np.may_share_memory(*pair) for pair in pairs)


def _places(
    context: ExecutionContext, inputs: Mapping[str, Array], outputs: Mapping[str, Array]
) -> dict[int, Buffer] | None:
    """Return the arrays as places of values; None if one cannot be the place of its value.

    An output that is a constant, an input or another output too has no place of its own.
    """
    graph, found = context.program.plan.graph, dict[int, Buffer]()
    ends = [(value, inputs) for value in graph.input_values()]
    ends += [(value, outputs) for value in graph.output_values()]
    can_move = _movable(context)
    for value, arrays in ends:
        array = arrays.get(value.name)
        if value.id in found or value.is_constant or not can_move(value.id):
            return None
        if array is None or not _suits_kernels(array, value):
            return None
        found[value.id] = Buffer(HOST, array.reshape(-1).view(np.uint8), 0, array.nbytes)
    return found


def _movable(context: ExecutionContext) -> Callable[[int], bool]:
    """Return what says whether all calls that read or make a value can be pointed elsewhere."""
    arguments = Arguments(context.program.plan)

    def can_move(value: int) -> bool:
        uses = (*arguments.readers.get(value, ()), *arguments.makers.get(value, ()))
        return all(rebind_of(context.calls[task], at) is not None for task, at in uses)

    return can_move


def _suits_kernels(array: Array, value: Value) -> bool:
    """Whether an array lies in memory as kernels expect it of a value."""
    is_dense = array.flags.c_contiguous and array.nbytes == value.type.nbytes
    return is_dense and not array.dtype.hasobject and not array.ctypes.data % ALIGNMENT
