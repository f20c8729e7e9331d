"""Write the report of a quantisation of values from what was found and what was written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from trireme.ir.graph import Graph, Quant, node_names
from trireme.ir.quantization.precision import PrecisionReport
from trireme.ir.quantization.report import (
    FloatNode,
    QuantizationReport,
    RepairReport,
    TensorReport,
)
from trireme.quantiser.assign import watched_values
from trireme.quantiser.culprits import Culprits
from trireme.quantiser.measure import Noise, Yardstick, output_reports
from trireme.quantiser.products import ROWS, ProductChoice
from trireme.quantiser.scheme import ModelKind, QuantScheme
from trireme.quantiser.select import Selection
from trireme.quantiser.split import SampleSplit
from trireme.quantiser.statistics import ValueStatistics
from trireme.quantiser.suspicions import suspicions
from trireme.quantiser.trial import QuantTrial
from trireme.quantiser.weights import SmallerWeights


@dataclass(frozen=True)
class Found:
    """The findings of a quantisation before it writes.

    original: the model as it was given
    source: where the samples came from
    yardstick: the float values that errors are measured with
    scheme_why: why named devices decided the scheme
    """

    original: Graph
    kind: ModelKind
    split: SampleSplit
    source: str
    yardstick: Yardstick
    chosen: ProductChoice
    repaired: tuple[RepairReport, ...]
    scheme_why: str

    def warnings(self, statistics: Mapping[int, ValueStatistics]) -> tuple[str, ...]:
        """Return what the samples tell; statistics: of values of the yardstick's graph."""
        split, yardstick = self.split, self.yardstick
        return suspicions(
            self.source,
            split.count,
            yardstick.graph,
            self.original,
            [*split.kept, *split.held],
            statistics,
            yardstick.real,
        )


@dataclass(frozen=True)
class Written:
    """The integers that are written, and how near they are.

    real: the float graph that they stand for
    noises: of values of `real`, by id
    raised: the sentences on weights whose scale a bias raises
    """

    real: Graph
    build: QuantTrial
    method: str
    noises: Mapping[int, Noise]
    culprits: Culprits
    precision: PrecisionReport | None
    raised: tuple[str, ...]

    def tensors(self) -> tuple[TensorReport, ...]:
        """Return the row of each value of integers."""
        quants = self.build.quants(self.method)
        values = watched_values(self.real, self.build.selection)
        return tuple(self._tensor(value, quants[value]) for value in values)

    def _tensor(self, value: int, quant: Quant) -> TensorReport:
        build = self.build
        graph, statistics = build.graph, build.statistics[value]
        maker = graph.producer(value)
        return TensorReport(
            graph.values[value].first_name,
            maker.op if maker else "input",
            statistics.low,
            statistics.high,
            quant.scale,
            quant.zero_point,
            statistics.share_beyond(quant, build.scheme.activations),
            "fixed" if build.groups.fixed_of(value) else self.method,
            self.noises[value].db,
            self.culprits.made_db.get(value),
        )


def report_of(
    scheme: QuantScheme, found: Found, written: Written, seconds: Mapping[str, float]
) -> QuantizationReport:
    """Return the report of values of integers; seconds: the time of each step."""
    return replace(
        _common(scheme, found, seconds),
        tensors=written.tensors(),
        floats=_floats(written.real, written.build.selection),
        outputs=output_reports(written.real, written.noises),
        culprits=written.culprits.rows,
        warnings=(*found.warnings(written.build.statistics), *written.raised),
        repairs=found.repaired,
        precision=written.precision,
        products=found.chosen.products,
    )


def report_of_rows(
    scheme: QuantScheme,
    found: Found,
    small: SmallerWeights,
    noises: Mapping[int, Noise],
    seconds: Mapping[str, float],
) -> QuantizationReport:
    """Return the report of products that round their rows in the run, where no repair is kept."""
    return replace(
        _common(scheme, found, seconds),
        floats=small.floats,
        outputs=output_reports(found.yardstick.graph, noises),
        warnings=found.warnings(found.chosen.trial.statistics),
        repairs=tuple(replace(row, kept=False) for row in found.repaired),
        weights=small.weights,
        products=ROWS,
    )


def _common(scheme: QuantScheme, found: Found, seconds: Mapping[str, float]) -> QuantizationReport:
    return QuantizationReport(
        scheme.name,
        found.kind.name,
        found.split.count,
        found.source,
        len(found.yardstick.feeds),
        (),
        (),
        (),
        tried_db=dict(found.chosen.tried_db),
        seconds=dict(seconds),
        products_db=dict(found.chosen.products_db),
        scheme_why=found.scheme_why,
        products_why=found.chosen.why,
    )


def _floats(graph: Graph, selection: Selection) -> tuple[FloatNode, ...]:
    names = node_names(graph)
    return tuple(
        FloatNode(names[node.id], node.op, selection.reasons[node.id])
        for node in graph.nodes
        if node.id in selection.reasons
    )
