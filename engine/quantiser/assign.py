"""Give each value that becomes integers its quantisation, from statistics and groups."""

from __future__ import annotations

from collections.abc import Mapping

from trireme.ir.graph import Graph, Quant
from trireme.quantiser.encode import per_tensor
from trireme.quantiser.grouping import Groups
from trireme.quantiser.memo import EncodingMemo
from trireme.quantiser.ranges import METHODS, Range
from trireme.quantiser.scheme import QuantScheme
from trireme.quantiser.select import Selection, data_inputs
from trireme.quantiser.statistics import ValueStatistics


def watched_values(graph: Graph, selection: Selection) -> tuple[int, ...]:
    """Return the integers that taken nodes read and make, in graph order, without constants."""
    found: dict[int, None] = {}
    for node in graph.nodes:
        if node.id in selection.taken:
            found.update(dict.fromkeys(data_inputs(node)))
        if node.id in selection.to_integers:
            found.update(dict.fromkeys(node.outputs))
    return tuple(value for value in found if not graph.values[value].is_constant)


def assign(
    graph: Graph,
    selection: Selection,
    groups: Groups,
    statistics: Mapping[int, ValueStatistics],
    scheme: QuantScheme,
    methods: Mapping[int, str],
    memo: EncodingMemo,
) -> dict[int, Quant]:
    """Return the quantisation of each watched value.

    methods: how the range of each group is taken, by the group's root
    memo: the ranges found before, and those found now
    """
    fills = _fills(graph, selection)
    quants: dict[int, Quant] = {}
    for root, members in groups.members(statistics).items():
        fixed = groups.fixed_of(root)
        method = methods[root]
        ranges = [_range(statistics, value, method, scheme, memo) for value in members]
        ranges += [(fills[value], fills[value]) for value in members if value in fills]
        low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
        quant = fixed or per_tensor(low, high, scheme.activations)
        quants.update(dict.fromkeys(members, quant))
    return quants


def _range(
    statistics: Mapping[int, ValueStatistics],
    value: int,
    method: str,
    scheme: QuantScheme,
    memo: EncodingMemo,
) -> Range:
    if (value, method) not in memo.ranges:
        memo.ranges[value, method] = METHODS[method](statistics[value], scheme.activations)
    return memo.ranges[value, method]


def _fills(graph: Graph, selection: Selection) -> dict[int, float]:
    """Return the number that a taken pad fills its output with, by the output."""
    fills: dict[int, float] = {}
    for node in graph.nodes:
        if node.op != "pad" or node.id not in selection.taken or len(node.inputs) < 3:
            continue
        data = None if node.inputs[2] is None else graph.values[node.inputs[2]].data
        if data is not None and data.size == 1:
            fills[node.outputs[0]] = float(data.reshape(()))
    return fills
