"""Values that share one quantisation, because an op between them keeps stored integers.

A pool, a move or a concat has one quantisation for its inputs and its output. Values join a group
in graph order. An op with a fixed output (softmax) starts a group that nothing else widens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trireme.ir.graph import Graph, Node, Quant
from trireme.ir.op import get_op
from trireme.quantiser.scheme import QuantScheme, form_of
from trireme.quantiser.select import Selection, data_inputs


class Groups:
    """A union of values; `fixed` has the quantisation of a group that the scheme gives."""

    def __init__(self) -> None:
        self._parent: dict[int, int] = {}
        self.fixed: dict[int, Quant] = {}

    def root(self, value: int) -> int:
        """Return the value that stands for the group of a value."""
        while (parent := self._parent.get(value, value)) != value:
            value = parent
        return value

    def join(self, value: int, other: int) -> None:
        """Make two groups one."""
        mine, theirs = self.root(value), self.root(other)
        if mine != theirs:
            self._parent[theirs] = mine
            if theirs in self.fixed:
                self.fixed[mine] = self.fixed.pop(theirs)

    def fix(self, value: int, quant: Quant) -> None:
        """Give the group of a value a quantisation."""
        self.fixed[self.root(value)] = quant

    def fixed_of(self, value: int) -> Quant | None:
        """Return the quantisation of a value's group, where the scheme gives one."""
        return self.fixed.get(self.root(value))

    def members(self, values: Iterable[int]) -> Mapping[int, list[int]]:
        """Return the values by the root of their group."""
        groups: dict[int, list[int]] = {}
        for value in values:
            groups.setdefault(self.root(value), []).append(value)
        return groups


def group(graph: Graph, selection: Selection, scheme: QuantScheme) -> Groups:
    """Return the groups of the values that taken nodes read and make."""
    groups = Groups()
    for node in graph.nodes:
        if node.id in selection.taken:
            _join(graph, node, scheme, groups)
    return groups


def keeps_quantisation(node: Node) -> bool:
    """Whether an op has one quantisation for its data inputs and its outputs."""
    return form_of(get_op(node.op)) == "same" or node.op == "concat"


def _join(graph: Graph, node: Node, scheme: QuantScheme, groups: Groups) -> None:
    if node.op in scheme.outputs:
        groups.fix(node.outputs[0], scheme.outputs[node.op])
        return
    if not keeps_quantisation(node):
        return
    inputs = [i for i in data_inputs(node) if not graph.values[i].is_constant]
    if len(inputs) == 1:
        for out in node.outputs:
            groups.join(inputs[0], out)
        return
    for value in inputs:
        if groups.fixed_of(value) is None:
            groups.join(node.outputs[0], value)
