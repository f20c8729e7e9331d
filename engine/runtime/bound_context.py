"""A session's program on arrays of the caller's: no input and no output is copied.

The arrays are the places of the inputs and outputs. Arenas, scratch memory and states are those of
the session's first context, so a run here takes that context's turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations

import numpy as np

from trireme.backend.capabilities import rebind_of
from trireme.backend.device import HOST, Buffer
from trireme.ir.graph import Value
from trireme.plan.plan import Plan
from trireme.runtime.context import ExecutionContext
from trireme.runtime.execute import has_overlap, serial_runner
from trireme.runtime.io_binding import Arguments
from trireme.runtime.requests.bound_run import ALIGNMENT
from trireme.support.dtypes import Array


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
