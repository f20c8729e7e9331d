"""Tied inputs and outputs of fixed shapes as variables of the graph.

The graph then has the order of reads and writes, so that every mode of running keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from trireme.ir.graph import Graph, Node, Value
from trireme.ir.verify import check
from trireme.runtime.states.rules import Tie
from trireme.support.dtypes import constant_array


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
