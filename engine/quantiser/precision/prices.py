"""Seconds of each node in each precision on each device, of conversions and of copies.

Each node is priced alone, once, from the target's cost model. The prices of a mixture are sums of
these, so that a search can compare thousands of mixtures before it places the promising ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from trireme.backend.device import HOST
from trireme.cost.model import CostModel
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, Node, Quant, TensorType
from trireme.quantiser.trial import QuantTrial


class Mode(NamedTuple):
    """How a node may run: on integers or floats, and on which device."""

    integers: bool
    device: str


CALLER = Mode(False, "")
"""The mode of the caller, who gives floats and takes floats in host memory."""


class ModePrices:
    """The seconds of nodes by mode, and of edges between two modes."""

    def __init__(self, trial: QuantTrial, method: str, costs: CostModel) -> None:
        self._trial, self._costs = trial, costs
        self.graph, self._dtype = trial.graph, trial.scheme.activations
        apart = trial(method, apart=True)
        self._apart, self._integers = apart.graph, apart.integers
        self._edges: dict[tuple[int, Mode, Mode], float] = {}
        self._conversions: dict[tuple[int, bool, str], float | None] = {}

    @cached_property
    def modes(self) -> Mapping[int, Mapping[Mode, float]]:
        """The seconds of each node, by id, in each mode that it can run in."""
        return {node.id: self._of(node) for node in self.graph.nodes}

    def _of(self, node: Node) -> dict[Mode, float]:
        found = self._priced(self.graph, node, False)
        if node.id in self._trial.selection.taken:
            made = self._apart.producer(self._integers[node.outputs[0]])
            found |= self._priced(self._apart, made, True) if made else {}
        return found

    def _priced(self, graph: Graph, node: Node, integers: bool) -> dict[Mode, float]:
        alone = isolated(graph, node)
        found = {}
        for name in self._costs.devices:
            seconds = self._seconds(alone, name)
            if seconds is not None:
                found[Mode(integers, name)] = seconds
        return found

    def _seconds(self, alone: Graph, device: str) -> float | None:
        (node,) = alone.nodes
        if self._costs.devices[device].unsupported_reason(alone, node) is not None:
            return None
        return self._costs.node(alone, node, device).seconds

    def _memory(self, mode: Mode) -> str:
        return self._costs.devices[mode.device].spec.memory if mode.device else HOST

    def edge(self, value: int, source: Mode, target: Mode) -> float:
        """Return the seconds between the maker and a reader of a value: conversion, copies, launch.

        A conversion runs on the device where that is cheapest. Infinite where none can convert.
        """
        key = (value, source, target)
        if key not in self._edges:
            self._edges[key] = self._edge(value, source, target)
        return self._edges[key]

    def _edge(self, value: int, source: Mode, target: Mode) -> float:
        launch = 0.0
        if target.device and target.device != source.device:
            launch = self._costs.launch_s(target.device)
        here, there = self._memory(source), self._memory(target)
        nbytes = self._nbytes(value, source.integers)
        if source.integers == target.integers:
            return launch + self._copy(nbytes, here, there)
        after = self._nbytes(value, target.integers)
        found = [
            self._copy(nbytes, here, one.spec.memory)
            + seconds
            + self._copy(after, one.spec.memory, there)
            for name, one in self._costs.devices.items()
            if (seconds := self._conversion(value, target.integers, name)) is not None
        ]
        return launch + min(found, default=float("inf"))

    def _nbytes(self, value: int, integers: bool) -> int:
        type = self.graph.type(value)
        return replace(type, dtype=self._dtype).nbytes if integers else type.nbytes

    def _copy(self, nbytes: int, here: str, there: str) -> float:
        return 0.0 if here == there else self._costs.links.seconds(nbytes, here, there)

    def _conversion(self, value: int, to_integers: bool, device: str) -> float | None:
        """Return the seconds of converting as many elements on a device; None if it cannot."""
        key = (self.graph.type(value).elements, to_integers, device)
        if key not in self._conversions:
            shape, quant = self.graph.type(value).shape, Quant((1.0,), (0,))
            b = GraphBuilder("conversion")
            if to_integers:
                x = b.input("x", TensorType(shape, "float32"))
                y = b.add("quantize", x, dtype=self._dtype, quants=[quant])
            else:
                y = b.add("dequantize", b.input("x", TensorType(shape, self._dtype, quant)))
            self._conversions[key] = self._seconds(b.finish(y), device)
        return self._conversions[key]


def isolated(graph: Graph, node: Node) -> Graph:
    """Return a graph of one node: what it reads are inputs, what it makes are outputs."""
    inputs = dict.fromkeys(v for v in node.used if not graph.values[v].is_constant)
    known = {*inputs, *node.used, *node.outputs}
    values = {value: one for value, one in graph.values.items() if value in known}
    node = replace(node, after=())
    return replace(graph, inputs=tuple(inputs), outputs=node.outputs, nodes=(node,), values=values)
