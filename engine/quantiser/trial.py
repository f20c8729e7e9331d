"""A quantised graph to be measured: one way to take ranges, and the nodes that become integers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from trireme.ir.graph import Graph, Quant
from trireme.quantiser.assign import assign
from trireme.quantiser.emit import Emitted, emit
from trireme.quantiser.grouping import Groups, group
from trireme.quantiser.memo import EncodingMemo
from trireme.quantiser.scheme import QuantScheme
from trireme.quantiser.select import Selection, settled
from trireme.quantiser.statistics import ValueStatistics


@dataclass(frozen=True)
class QuantTrial:
    """Writes quantised graphs of one float graph from one set of statistics.

    memo: what its graphs share, for trials that differ in their selection alone; None for a trial
        whose graph or statistics are replaced later
    """

    graph: Graph
    selection: Selection
    groups: Groups
    statistics: Mapping[int, ValueStatistics]
    scheme: QuantScheme
    name: str
    memo: EncodingMemo | None = field(default=None, compare=False, repr=False)

    def quants(self, method: str) -> dict[int, Quant]:
        """Return the quantisation of each value, its ranges taken in one way."""
        methods = dict.fromkeys(self.groups.members(self.statistics), method)
        return assign(
            self.graph,
            self.selection,
            self.groups,
            self.statistics,
            self.scheme,
            methods,
            self.memo or EncodingMemo(),
        )

    def __call__(
        self,
        method: str,
        *,
        integer_io: bool = False,
        without: Collection[int] = (),
        apart: bool = False,
        switched: bool = False,
    ) -> Emitted:
        """Return the quantised graph; the nodes in `without` stay float."""
        if without:
            return self._without(without)(method, integer_io=integer_io, apart=apart)
        return emit(
            self.graph,
            self.selection,
            self.quants(method),
            self.scheme,
            name=self.name,
            integer_io=integer_io,
            apart=apart,
            switched=switched,
            memo=self.memo,
        )

    def _without(self, nodes: Collection[int]) -> QuantTrial:
        """Return the trial whose selection lacks nodes, which widen no range of others."""
        left = frozenset(settled(self.graph, set(self.selection.taken.difference(nodes))))
        selection = replace(self.selection, taken=left, to_floats=self.selection.to_floats & left)
        groups = group(self.graph, selection, self.scheme)
        return replace(self, selection=selection, groups=groups)
