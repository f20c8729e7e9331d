"""Lift dataflow primitives to structured control flow: the inverse of `lower`.

Merges of two branches become an `if`, a frame becomes a `loop` or a `scan`. Graphs that other tools
wrote lift too. Their loops have a condition and no trip count: it is computed before the loop, and
in the body for the next turn.
"""

from __future__ import annotations

import numpy as np

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph
from trireme.runtime.dataflow.graph import DataflowGraph, Port
from trireme.runtime.dataflow.lift_branches import add_branch
from trireme.runtime.dataflow.lift_loops import add_loop
from trireme.runtime.dataflow.places import Place, irreducible, places_of
from trireme.runtime.dataflow.scope import Lifting, LiftScope
from trireme.support.errors import GraphError


def lift(graph: DataflowGraph) -> Graph:
    """Return the structured form of a dataflow graph: same inputs, outputs and results.

    Errors: GraphError, if its control flow is not structured: no ifs and loops, inside one another,
    hold it
    """
    places = places_of(graph)
    for port in graph.outputs:
        if isinstance(port, Port) and places.of[port] != Place():
            maker = graph.primitives[port.primitive]
            raise irreducible(maker, "its token does not leave the branch or the loop it is in")
    lifting = Lifting(graph, places, add_branch, add_loop)
    builder = GraphBuilder(graph.name)
    builder.symbols.update(graph.symbols)
    root = LiftScope(lifting, builder, Place())
    for value, primitive in graph.inputs.items():
        given = graph.primitives[primitive].value
        if given is None:
            raise GraphError(f"input {value} of {graph.name} has no type")
        root.known[Port(primitive)] = builder.input(given.name, given.type)
    names = graph.names or [""] * len(graph.outputs)
    outputs = [
        builder.constant(name, operand)
        if isinstance(operand, np.ndarray)
        else root.named(operand, name)
        for operand, name in zip(graph.outputs, names, strict=True)
    ]
    root.finish()
    lifting.check_effects()
    return builder.finish(*outputs)
