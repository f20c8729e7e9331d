"""Name the products on rows that make the error, the cause, and what the output gains without each.

A product's own error is measured on a twin beside the float graph, whose rows are those of the
float values. The products with the most of it are then left float, one at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from trireme.ir.graph import Graph, Node, node_names
from trireme.ir.quantization.report import CulpritReport, WeightReport
from trireme.quantiser.culprits import gains, wide_channel
from trireme.quantiser.emit import Emitted
from trireme.quantiser.measure import Noise, Yardstick, float_outputs, worst_db
from trireme.quantiser.scheme import DYNAMIC
from trireme.quantiser.weights import SmallerWeights, smaller_weights
from trireme.support.errors import GraphError

_TWIN = " on rows"
"""The end of the name of a twin."""
_HALF_DB = 3.0
"""Weights whose error is within this of the whole make at least half of it."""


def row_culprits(
    small: SmallerWeights, keep_float: Collection[str], yardstick: Yardstick
) -> tuple[CulpritReport, ...]:
    """Return the worst products on rows, by what the outputs gain if each alone stays float.

    small: the graph of the scheme dynamic
    yardstick: of the float graph that it stands for
    """
    graph, stored = yardstick.graph, {row.name: row for row in small.weights}
    names = node_names(graph)
    nodes = [node for node in graph.nodes if names[node.id] in stored]
    makes = [node.outputs[0] for node in nodes]
    reads = [value for node in nodes for value in _read(graph, node)]
    watch = tuple(dict.fromkeys((*makes, *reads, *float_outputs(graph))))
    known = Yardstick(graph, watch, yardstick.feeds, yardstick.threads)
    made = known.compare(_twins(graph, nodes, keep_float), makes)
    whole = known.compare(_seen(graph, makes, keep_float), (*makes, *float_outputs(graph)))
    before = worst_db({value: whole[value] for value in float_outputs(graph)})

    def after(node: Node) -> float:
        return worst_db(known.outputs(Emitted(_without(graph, names[node.id], keep_float), {})))

    worst = sorted(nodes, key=lambda node: made[node.outputs[0]].db)
    rows = []
    for node, gain_db in gains(worst, before, after):
        value = node.outputs[0]
        own = stored[names[node.id]]
        rows.append(_row(node, own, made[value], whole[value], gain_db, known))
    return tuple(sorted(rows, key=lambda row: -row.gain_db))


def _read(graph: Graph, node: Node) -> tuple[int, ...]:
    """Return the float value that a product rounds; a table rounds none."""
    x = node.used[0]
    return () if node.op == "gather" or graph.values[x].is_constant else (x,)


def _twins(graph: Graph, nodes: Sequence[Node], keep_float: Collection[str]) -> Emitted:
    """Return the float graph with a twin on rows beside each node."""
    values, taken = dict(graph.values), []
    fresh, ids = max(values) + 1, max(node.id for node in graph.nodes) + 1
    twins: dict[int, int] = {}
    for at, node in enumerate(nodes):
        value = values[node.outputs[0]]
        twin = replace(value, id=fresh + at, name=value.first_name + _TWIN)
        values[twin.id], twins[value.id] = twin, twin.id
        taken.append(replace(node, id=ids + at, outputs=(twin.id,)))
    beside = {node.id: twin for node, twin in zip(nodes, taken, strict=True)}
    nodes_of = [(node, beside[node.id]) if node.id in beside else (node,) for node in graph.nodes]
    whole = replace(graph, nodes=tuple(itertools.chain.from_iterable(nodes_of)), values=values)
    names = node_names(graph)
    return _on_rows(whole, twins, {*keep_float, *(names[node.id] for node in nodes)})


def _seen(graph: Graph, makes: Sequence[int], keep_float: Collection[str]) -> Emitted:
    """Return the graph on rows with what its products make."""
    return _on_rows(graph, {value: value for value in makes}, keep_float)


def _on_rows(graph: Graph, watch: Mapping[int, int], keep_float: Collection[str]) -> Emitted:
    """Return the graph on rows, and what values of it become there; watch: names of these."""
    count = len(graph.outputs)
    whole = replace(graph, outputs=(*graph.outputs, *watch.values()))
    made = smaller_weights(whole, DYNAMIC, None, keep_float).graph
    seen = dict(zip(watch, made.outputs[count:], strict=True))
    return Emitted(replace(made, outputs=made.outputs[:count]), seen)


def _without(graph: Graph, name: str, keep_float: Collection[str]) -> Graph:
    """Return the graph on rows but for one node."""
    try:
        return smaller_weights(graph, DYNAMIC, None, {*keep_float, name}).graph
    except GraphError:  # it is the only one
        return graph


def _row(
    node: Node, stored: WeightReport, made: Noise, whole: Noise, gain_db: float, known: Yardstick
) -> CulpritReport:
    cause = _cause(node, stored, made, known)
    none = "rows take none: leave the node float, or ask for products of float32"
    return CulpritReport(stored.name, node.op, made.db, whole.db, gain_db, cause, none)


def _cause(node: Node, stored: WeightReport, made: Noise, known: Yardstick) -> str:
    """Return why a product on rows is coarse; a general sentence where nothing stands out."""
    if stored.snr_db < made.db + _HALF_DB:
        return f"its weights make half of that or more, with {stored.snr_db:.1f} dB of their own"
    for x in _read(known.graph, node):
        if (wide := wide_channel(known, x)) is not None:
            return wide
    return "its rows fill their ranges, and 8 bits are what they have"
