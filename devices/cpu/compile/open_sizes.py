"""What a graph whose sizes vary is lowered as, and why some have no program for every shape.

A sample of the graph is lowered (kernels/sample.py): the groups of nodes, the code, the packed
constants and who shares memory hold for every shape. one_shape.py adds what one shape decides.
"""

from __future__ import annotations

from dataclasses import replace

from trireme.devices.cpu.compile.buffer_aliases import is_alias
from trireme.devices.cpu.compile.half import kernel_reason
from trireme.devices.cpu.kernels.items import open_rule
from trireme.devices.cpu.kernels.sample import GenericSample, sample_of
from trireme.ir.contents import decided_by_shapes
from trireme.ir.graph import Graph, Node
from trireme.support.errors import CompileError
from trireme.support.records import dataclass


@dataclass(frozen=True, eq=False)
class OpenSizes:
    """A graph with symbols, a sample of it, and the values that shapes decide."""

    graph: Graph
    sample: GenericSample
    decided: frozenset[int]

    @property
    def lowered(self) -> Graph:
        """The nodes of the sample that run."""
        sample = self.sample.graph
        kept = tuple(node for node in sample.nodes if not self.decided.issuperset(node.outputs))
        return replace(sample, nodes=kept)

    def reason(self, node: Node) -> str | None:
        """Say why a node has no kernel for every shape; None when it has, or needs none.

        A node that has no native kernel in any shape needs none: numpy runs it, as it always does.
        """
        why = self.lacks(self.graph, node)
        if why is None or not self.decided.isdisjoint(node.used):  # constants once a shape is known
            return why
        usual = self.sample.usual
        return None if kernel_reason(usual, usual.node(node.id)) else why

    def lacks(self, _: Graph, node: Node) -> str | None:
        """Say why no native kernel runs a node in every shape."""
        graph = self.sample.graph
        node = graph.node(node.id)
        if self.decided.issuperset(node.outputs) or is_alias(graph, node):
            return None
        rule = open_rule(graph, node)
        return rule if isinstance(rule, str) else None

    def check(self) -> None:
        """Raise if a node has no kernel for every shape.

        Errors: CompileError
        """
        for node in self.graph.nodes:
            reason = self.reason(node)
            if reason is not None:
                raise CompileError(f"cpu: {node.label}: {reason}")

    def check_shape(self, graph: Graph) -> None:
        """Raise if a graph of one shape does not have the structure of the sample.

        Errors: CompileError
        """
        for value in self.decided:
            found = graph.values.get(value)
            if found is not None and not found.is_constant and graph.users(value):
                raise CompileError(f"cpu: '{found.first_name}' is not constant in this shape")
        self.sample.check(graph)


def open_sizes(graph: Graph) -> OpenSizes:
    """Return what a graph with symbols is lowered as."""
    return OpenSizes(graph, sample_of(graph), decided_by_shapes(graph))
