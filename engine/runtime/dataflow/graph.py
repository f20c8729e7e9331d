"""The dataflow form of a graph: primitives that send tokens to each other, with cycles.

A token is an array, or dead: what a branch that was not taken sends. `lower` makes this form of
structured control flow, `Executor` runs it.
Source: Yu et al., Dynamic Control Flow in Large-Scale Machine Learning, EuroSys 2018
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from trireme.ir.graph import Graph, Node, Value
from trireme.support.cached import cached_property
from trireme.support.dtypes import Array

Kind = Literal["input", "op", "call", "switch", "merge", "enter", "exit", "next_iteration"]
"""What a primitive does with its tokens.

input: an array that is fed; op: a node of the graph; call: bookkeeping of a loop, such as its count
switch: sends its data to output 1 where the predicate is true, else to output 0; the other is dead
merge: sends its first live input
enter: sends its input into iteration 0 of a frame, or into every iteration where it `is_constant`
exit: sends its input out of the frame; next_iteration: sends its input to the next iteration
"""


class Port(NamedTuple):
    """One output of a primitive."""

    primitive: int
    output: int = 0


Operand = Port | Array | None
"""A token to wait for, a constant, or an input that is left out."""


@dataclass(frozen=True, eq=False)
class Primitive:
    """One step of the dataflow form.

    operands: what it reads, in order
    controls: tokens that it waits for, and whose data it ignores
    outputs: how many tokens it sends
    frame: of an enter, the name of the frame; unique in the graph
    node, graph: of an op; of a merge, an exit or a stack, the control node whose output it sends
    function: of a call, on the tokens of its operands
    values: names and types of the tokens it sends, in a graph; () where no graph has them
    """

    id: int
    kind: Kind
    label: str
    operands: tuple[Operand, ...] = ()
    controls: tuple[Port, ...] = ()
    outputs: int = 1
    frame: str = ""
    is_constant: bool = False
    node: Node | None = None
    graph: Graph | None = None
    function: Callable[..., Any] | None = None
    values: tuple[Value | None, ...] = ()

    @property
    def value(self) -> Value | None:
        """The name and the type of its first token."""
        return self.values[0] if self.values else None

    @property
    def waits(self) -> tuple[Port, ...]:
        """The tokens it waits for, operands first."""
        return (*(one for one in self.operands if isinstance(one, Port)), *self.controls)

    def __str__(self) -> str:
        inputs = ", ".join(_operand_text(one) for one in self.operands)
        after = f" after {', '.join(map(_operand_text, self.controls))}" if self.controls else ""
        frame = f" frame={self.frame}" if self.frame else ""
        constant = " constant" if self.is_constant else ""
        return f"%{self.id} = {self.kind} {self.label}({inputs}){frame}{constant}{after}"


@dataclass(frozen=True)
class DataflowGraph:
    """Primitives, in the order of their ids, and where tokens come from and go to.

    inputs: the primitives that are fed, by the graph's input; outputs: of the graph, in order
    symbols: bounds of the symbols in types; names: of the outputs
    """

    name: str
    primitives: tuple[Primitive, ...]
    inputs: Mapping[int, int]
    outputs: Sequence[Operand]
    symbols: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    names: Sequence[str] = ()

    @cached_property
    def readers(self) -> Mapping[Port, Sequence[int]]:
        """The primitives that read each port, once for each time."""
        found: dict[Port, list[int]] = {}
        for primitive in self.primitives:
            for port in primitive.waits:
                found.setdefault(port, []).append(primitive.id)
        return found

    def __str__(self) -> str:
        lines = [f"dataflow {self.name}:", *(f"  {one}" for one in self.primitives)]
        return "\n".join([*lines, f"  return {', '.join(map(_operand_text, self.outputs))}"])


def _operand_text(operand: Operand) -> str:
    if isinstance(operand, Port):
        return f"%{operand.primitive}" + (f":{operand.output}" if operand.output else "")
    return "-" if operand is None else f"{operand.dtype}{list(operand.shape)}const"
