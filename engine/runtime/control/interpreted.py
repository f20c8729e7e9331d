"""A body as numpy runs it: who computes each node is looked up once, and not in every turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from trireme.ir.graph import Graph, Node
from trireme.ir.interpreter import evaluator
from trireme.ir.op import get_op
from trireme.support.dtypes import Array

Operands = Sequence[Array | None]
RunControl = Callable[[Node, Operands], Sequence[Array]]
Step = tuple[Callable[[list[Array | None]], Sequence[Array]], list[int], list[int]]


class InterpretedBody:
    """A body of any shapes, node after node on the references.

    run_control: runs a control node inside the body
    """

    def __init__(self, body: Graph, run_control: RunControl) -> None:
        places = {value: k for k, value in enumerate(body.values, 1)}
        self._inputs = [places[value] for value in body.inputs]
        self._outputs = [places[value] for value in body.outputs]
        self._first: list[Array | None] = [None] * (len(places) + 1)  # place 0 stays empty
        for value, k in places.items():
            self._first[k] = body.values[value].data
        self._steps: list[Step] = []
        for node in body.nodes:
            reads = [0 if value is None else places[value] for value in node.inputs]
            makes = [places[value] for value in node.outputs]
            self._steps.append((_runner(body, node, run_control), reads, makes))

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs, given the inputs in order."""
        known = self._first.copy()
        for k, array in zip(self._inputs, arrays, strict=True):
            known[k] = array
        with np.errstate(all="ignore"):
            for run, reads, makes in self._steps:
                made = run([known[k] for k in reads])
                if len(makes) == 1:
                    known[makes[0]] = made[0]
                else:
                    for k, array in zip(makes, made, strict=True):
                        known[k] = array
        return [known[k] for k in self._outputs]  # type: ignore[misc]  # outputs are made


def _runner(
    body: Graph, node: Node, run_control: RunControl
) -> Callable[[list[Array | None]], Sequence[Array]]:
    if get_op(node.op).has_body:
        return lambda operands: run_control(node, operands)
    return evaluator(body, node)
