"""Float16 nodes on float32: what a graph of float16 computes, by kernels that every cpu has."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, Node
from trireme.quantiser.half import HALF, REAL


def through_floats(graph: Graph) -> Graph:
    """Return a graph whose float16 nodes compute in float32 and round their results.

    It computes what a float16 kernel does that adds in float32.
    """
    return _Widened(graph).run()


class _Widened:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.builder = graph, GraphBuilder(graph.name)
        self.made: dict[int, int] = {}
        self.wide: dict[int, int] = {}

    def run(self) -> Graph:
        """Return the whole graph."""
        for value in self.graph.input_values():
            self.made[value.id] = self.builder.input(value.name, value.type)
        for node in self.graph.nodes:
            dtypes = {self.graph.type(out).dtype for out in node.outputs}
            if node.op == "cast" or dtypes != {HALF}:
                outputs = self._add(node, self._read)
            else:
                wide = self._add(node, self._read_wide)
                outputs = tuple(self.builder.add("cast", out, to=HALF) for out in wide)
            self.made.update(zip(node.outputs, outputs, strict=True))
        self.builder.symbols = dict(self.graph.symbols)
        return self.builder.finish(*(self._read(value) for value in self.graph.outputs))

    def _add(self, node: Node, read: Callable[[int], int]) -> tuple[int, ...]:
        values = self.graph.values
        return self.builder.add_node(
            node.op,
            [None if value is None else read(value) for value in node.inputs],
            node.attrs,
            outputs=len(node.outputs),
            quants=[values[out].quant for out in node.outputs],
            names=[values[out].name for out in node.outputs],
            source=node.source,
            pin=node.pin,
        )

    def _read(self, value: int) -> int:
        data = self.graph.values[value].data
        if value not in self.made and data is not None:
            known = self.graph.values[value]
            self.made[value] = self.builder.constant(known.name, data, known.quant)
        return self.made[value]

    def _read_wide(self, value: int) -> int:
        known = self.graph.values[value]
        if known.dtype != HALF:
            return self._read(value)
        if value not in self.wide:
            self.wide[value] = (
                self.builder.add("cast", self._read(value), to=REAL)
                if known.data is None
                else self.builder.constant(known.name, known.data.astype(np.float32))
            )
        return self.wide[value]
