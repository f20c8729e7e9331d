"""Outputs that the next run reads as inputs: a rule by names becomes typed ties, or variables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from trireme.ir.dims import Bounds
from trireme.ir.effects import state_misfit, state_types
from trireme.ir.graph import Graph, Node, Value
from trireme.ir.verify import check
from trireme.support.arguments import check_arguments
from trireme.support.dtypes import Array, constant_array, numpy_dtype
from trireme.support.errors import GraphError, RunError
from trireme.support.records import dataclass

_ANY = "*"


@dataclass(frozen=True, eq=False)
class State:
    """What an input is in the first run, and the output that it is in the run after.

    output: the name of an output; each `*` stands for what the `*` of the input's name matched
    initial: the array of the first run; zeros when None, and of length 0 along axes that grow
    """

    output: str
    initial: Array | None = None

    def __post_init__(self) -> None:
        check_arguments(State, vars(self), RunError)


StateRules = Mapping[str, str | State]
"""For names of inputs, which may have a `*`, the outputs that they are in the next run."""


@dataclass(frozen=True, eq=False)
class Tie:
    """An input of a graph and the output that it is in the next run.

    grows: the axes whose size may differ between the two
    """

    past: Value
    present: Value
    initial: Array | None

    @property
    def name(self) -> str:
        """The name of the state: the input's."""
        return self.past.name

    @property
    def grows(self) -> tuple[int, ...]:
        """The axes along which the output may be larger than the input."""
        pairs = zip(self.past.shape, self.present.shape, strict=True)
        return tuple(axis for axis, (past, present) in enumerate(pairs) if past != present)

    def zeros(self, shape: Sequence[int]) -> Array:
        """Return an initial array where none is given: zeros, of an integer type zero points."""
        quant = self.past.quant
        zero = quant.zero_point if quant is not None and quant.axis is None else 0
        return np.full(shape, zero, numpy_dtype(self.past.dtype))


def ties_of(graph: Graph, rules: StateRules | None) -> tuple[Tie, ...]:
    """Return the ties that the rules name, in the order of the graph's inputs.

    Errors: GraphError, if a name is no input or output, an input has two rules, or the types of
    the two do not fit
    """
    outputs = {value.name: value for value in graph.output_values()}
    inputs = {value.name: value for value in graph.input_values()}
    found: dict[str, State] = {}
    for pattern, rule in (rules or {}).items():
        state = State(rule) if isinstance(rule, str) else rule
        for name, output in _matches(pattern, state.output, list(inputs)):
            if name in found:
                raise GraphError(
                    f"states: input '{name}' is tied to outputs '{found[name].output}' and "
                    f"'{output}'"
                )
            if output not in outputs:
                facts = [f"outputs: {', '.join(outputs)}"]
                raise GraphError(
                    f"states: '{name}' is tied to '{output}', which is no output", facts=facts
                )
            found[name] = State(output, state.initial)
    variables = state_types(graph) if found else {}
    if both := sorted(found.keys() & variables.keys()):
        raise GraphError(f"states: '{both[0]}' is the name of a variable of the model too")
    ties = [
        Tie(value, outputs[found[name].output], _initial(found[name]))
        for name, value in inputs.items()
        if name in found
    ]
    for tie in ties:
        _check(tie, graph.symbols)
    return tuple(ties)


def _matches(pattern: str, output: str, inputs: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the inputs that a name or a pattern with `*` means, each with its output."""
    if pattern in inputs:
        yield pattern, output
        return
    if pattern.count(_ANY) != output.count(_ANY):
        raise GraphError(
            f"states: '{pattern}' and '{output}' have unequal numbers of '{_ANY}'",
            fix="write one for each part of the name that the two share",
        )
    regex = re.compile("(.*)".join(re.escape(part) for part in pattern.split(_ANY)))
    matched = [found for found in map(regex.fullmatch, inputs) if found is not None]
    if not matched:
        what = "matches" if _ANY in pattern else "is called"
        raise GraphError(
            f"states: no input {what} '{pattern}'", facts=[f"inputs: {', '.join(inputs)}"]
        )
    for one in matched:
        parts = iter(one.groups())
        yield one[0], "".join(next(parts) if c == _ANY else c for c in output)


def _initial(state: State) -> Array | None:
    return None if state.initial is None else np.array(state.initial)


def _check(tie: Tie, symbols: Mapping[str, Bounds]) -> None:
    """Raise GraphError if an output can never be the input, or the initial array is not."""
    past, present = tie.past, tie.present
    facts = [f"input '{past.name}' {past.type}", f"output '{present.name}' {present.type}"]
    where = f"states: '{past.name}' and '{present.name}'"
    if (past.dtype, past.quant) != (present.dtype, present.quant):
        raise GraphError(f"{where} have unequal types", facts=facts)
    if len(past.shape) != len(present.shape):
        raise GraphError(f"{where} have unequal ranks", facts=facts)
    for axis in tie.grows:
        sizes = past.shape[axis], present.shape[axis]
        if isinstance(sizes[0], int) and isinstance(sizes[1], int):
            raise GraphError(
                f"{where} have unequal sizes along axis {axis}, {sizes[0]} and {sizes[1]}",
                facts=facts,
            )
    if tie.initial is not None:
        why = state_misfit(past.type, symbols, tie.initial)
        if why:
            raise GraphError(f"states: the initial '{past.name}' {why}", facts=facts[:1])


def as_variables(graph: Graph, ties: Sequence[Tie]) -> Graph:
    """Return the graph with a variable for each tie; its input and output are gone.

    The variable has the name of the input.
    """
    values = dict(graph.values)
    new_value = count(max(values, default=-1) + 1)
    new_node = count(max((node.id for node in graph.nodes), default=-1) + 1)
    reads, writes = [], []
    for tie in ties:
        kept, given = tie.past, tie.initial
        data = constant_array(tie.zeros(kept.type.dims) if given is None else given)
        start = Value(next(new_value), f"{kept.name}.initial", kept.type, data)
        end = Value(next(new_value), f"{kept.name}.assigned", kept.type)
        values |= {start.id: start, end.id: end}
        attrs = {"state": tie.name}
        read = Node(next(new_node), "variable", (start.id,), (kept.id,), attrs)
        write = Node(
            next(new_node), "assign", (tie.present.id,), (end.id,), attrs, after=(read.id,)
        )
        reads.append(read)
        writes.append(write)
    tied = {tie.past.id for tie in ties}
    gone = {tie.present.name for tie in ties}
    return check(
        replace(
            graph,
            inputs=tuple(value for value in graph.inputs if value not in tied),
            outputs=tuple(v.id for v in graph.output_values() if v.name not in gone),
            nodes=(*reads, *graph.nodes, *writes),
            values=values,
        )
    )
