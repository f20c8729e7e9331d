"""The front door: `quantize` turns a float model and sample inputs into a graph of integers."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from trireme.backend.device import Device
from trireme.ir.bind_shapes import Shapes
from trireme.ir.graph import Graph, Quant, node_names
from trireme.ir.quantization.precision import PrecisionReport
from trireme.ir.quantization.report import (
    FloatNode,
    QuantizationReport,
    QuantizedGraph,
    RepairReport,
    TensorReport,
    vars_of,
)
from trireme.ir.quantization.stored import RANDOM
from trireme.model_file.convert import convert
from trireme.quantiser.assign import watched_values
from trireme.quantiser.culprits import Culprits, culprits
from trireme.quantiser.emit import Emitted
from trireme.quantiser.grouping import group
from trireme.quantiser.measure import Noise, Yardstick, float_outputs, output_reports
from trireme.quantiser.precision.budget import Score, budget_of
from trireme.quantiser.precision.mixing import Mixing
from trireme.quantiser.prepare import prepare
from trireme.quantiser.products import (
    LEAST_GAIN_DB,
    ROWS,
    ProductChoice,
    by_rows,
    choose_products,
    forms_of,
)
from trireme.quantiser.ranges import METHODS
from trireme.quantiser.repair import RepairData, Repaired, repair, repairs_named
from trireme.quantiser.samples import Samples, open_samples, samples_again
from trireme.quantiser.scheme import ModelKind, QuantScheme, WeightScheme, scheme_named
from trireme.quantiser.select import Selection, select
from trireme.quantiser.split import SampleSplit, split_of
from trireme.quantiser.statistics import gather
from trireme.quantiser.suspicions import suspicions
from trireme.quantiser.trial import QuantTrial
from trireme.quantiser.weight_only import (
    Progress,
    WeightRequest,
    quantize_weights,
    refuse_range_options,
)
from trireme.quantiser.weights import SmallerWeights
from trireme.support.arguments import checked
from trireme.support.errors import GraphError

AUTO = "auto"
TRIED = ("min_max", "mean_squared_error", "percentile")
"""The ways to take ranges that "auto" measures; the first of equals is kept."""


@checked(GraphError)
def quantize(
    model: Any,
    data: Any = None,
    *,
    scheme: str = "int8",
    group: int | None = None,
    ranges: str = "auto",
    keep_float: Collection[str] = (),
    io: Literal["float32", "int8", "uint8"] = "float32",
    products: Literal["auto", "float32", "integers"] = "auto",
    repairs: str | Collection[str] = "auto",
    round_limit_gflop: float = 1000.0,
    explain: bool = False,
    budget: float | None = None,
    metric: str | Score | None = None,
    labels: Any = None,
    devices: Sequence[str | Device] | None = None,
    soc: str | None = None,
    shapes: Shapes | None = None,
    seed: int = 0,
    threads: int | None = None,
    progress: Progress | None = None,
) -> QuantizedGraph:
    """Return a float model as a graph of integers or smaller weights, reported in `.quantization`.

    model: a Graph, or what `convert` takes
    data: sample inputs: arrays by input name with one more axis, an iterable of feeds, a function
        that returns one, or the path of an .npz file or of a folder of them. "random" makes random
        numbers, which the report and the name of the graph say
    scheme: "int8" is TensorFlow Lite's 8-bit quantisation, "uint8" the same with unsigned values.
        "weights_int4" and "weights_int8" make
        integers of weights alone, in groups. "dynamic" makes weights int8 and rounds the inputs of
        products in the run. "float16" stores weights as float16. All but int8 need no data; with
        data the error is measured
    group: how many weights along the depth share a scale, of a scheme with groups
    ranges: how the range of a value is taken from the samples; "auto" measures several ways and
        keeps the one with the least error
    keep_float: nodes that stay float, by name, or "op:NAME" for all nodes of an op
    io: the dtype of inputs and outputs; that of the scheme's values has no conversions at the ends
    products: what conv and fully_connected make of integers. "integers" run on every device,
        "float32" on the cpu. "auto" makes floats in a transformer that gains by it on held samples,
        unless `io` or a budget asks for integers. Each row then has a range of its own, as in the
        scheme "dynamic", unless one range for all samples is better by 0.3 dB; `explain` measures
        no culprits of rows
    repairs: the repairs to try, each kept only if it helps on held samples: "auto" for all,
        "none", or names of "equalisation", "smooth_quant", "outlier_clipping", "rounding",
        "bias_correction". The last two do not go with a budget
    round_limit_gflop: the work that rounding of weights may take, in billions of operations, so
        that the clock decides nothing; 0 leaves it out
    explain: whether to measure which nodes make the error, and what each would gain as float
    budget: what may be lost; which nodes stay float is then decided together with where they run.
        Of the metric "snr" the least signal-to-noise of an output in dB, of others the most loss
    metric: "snr"; "top1", the share of labels that are right; "agreement", of answers that are the
        float model's; or a function of (outputs by name, samples along a first axis, labels)
    labels: of all samples in order, or the path of an .npy file
    devices: with a budget, the devices that nodes are placed on; the cpu when None
    soc: with a budget, the described machine that nodes are placed on, by name or as a .toml file
    shapes: shapes of inputs that the model leaves open
    progress: told each step: (what, done, total), total 0 where it is not known
    Errors: RunError, if the data do not fit; GraphError, if the model cannot be quantised
    Source: TensorFlow Lite 8-bit quantization specification
    """
    if ranges not in (AUTO, *METHODS):
        known = ", ".join((AUTO, *METHODS))
        raise GraphError(f"unknown ranges {ranges!r}", facts=[f"known: {known}"])
    allowed = budget_of(budget, metric, labels, devices, soc)
    fitting = repairs_named(repairs, has_budget=allowed is not None)
    names = [name for name in fitting if name != "rounding" or round_limit_gflop > 0]
    found = scheme_named(scheme)
    if isinstance(found, WeightScheme):
        plain = {"ranges": ranges == AUTO, "io": io == "float32", "explain": not explain}
        plain["products"] = products == AUTO
        refuse_range_options(found, plain | {"repairs": repairs in (AUTO, "none")})
        if allowed is not None:
            raise GraphError(f"{found.name} takes no budget: it leaves all values float")
        source = model if isinstance(model, Graph) else _converted(model)
        request = WeightRequest(found, group, tuple(keep_float), shapes or {}, seed, threads)
        return quantize_weights(source, data, request, progress or _quiet)
    if group is not None:
        raise GraphError(f"{found.name} has no groups, and group is {group}")
    if io not in ("float32", found.activations):
        raise GraphError(f"io is {io}, and values of {found.name} are {found.activations}")
    if products == "float32" and allowed is not None:
        raise GraphError("a budget places integers, which products of float32 do not make")
    limits = (names, round_limit_gflop, threads, progress or _quiet)
    original = model if isinstance(model, Graph) else _converted(model)
    work = _Quantisation(original, found, ranges, products, io != "float32", explain, *limits)
    with work.step("folding the model"):
        graph = prepare(original, shapes)
        inputs = list(graph.input_values())
        samples = open_samples(data, inputs, seed)
    if allowed is not None:
        again = samples_again(data, inputs, seed)
        work.mixing = Mixing(allowed, devices, soc, seed, again)
    return work.run(graph, samples, keep_float)


def _converted(model: Any) -> Graph:
    return convert(os.fspath(model) if isinstance(model, os.PathLike) else model)


def _quiet(what: str, done: int, total: int) -> None:
    pass


@dataclass
class _Quantisation:
    """One quantisation: its settings, and the time of its steps."""

    original: Graph
    scheme: QuantScheme
    ranges: str
    products: str
    integer_io: bool
    explains: bool
    repairs: list[str]
    round_limit_gflop: float
    threads: int | None
    progress: Progress
    mixing: Mixing | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Tell a step, and take its time."""
        self.progress(what, 0, 0)
        start = time.perf_counter()
        yield
        self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - start

    def run(self, graph: Graph, samples: Samples, keep_float: Collection[str]) -> QuantizedGraph:
        """Return the quantised graph with its report."""
        kind = self.scheme.kind_of(graph)
        selection = select(graph, self.scheme, kind, keep_float)
        _check_any(graph, selection)
        groups = group(graph, selection, self.scheme)
        values = watched_values(graph, selection)
        split = split_of(graph, values)
        with self.step("measuring ranges"):
            statistics = gather(
                graph,
                values,
                split.take(samples.feeds),
                threads=self.threads,
                on_sample=lambda done: self.progress("measuring ranges", done, samples.total),
            )
        watch = tuple(dict.fromkeys((*values, *float_outputs(graph))))
        with self.step("measuring the error"):
            yardstick = Yardstick(graph, watch, split.measured, self.threads)
            name = _name(graph, self.scheme, samples)
            build = QuantTrial(graph, selection, groups, statistics, self.scheme, name)
            forms = forms_of(self.products, kind, not self.integer_io and self.mixing is None)
            chosen = choose_products(build, forms, self._methods(), yardstick)
        best = Repaired(graph, chosen.trial, chosen.method, chosen.tried_db[chosen.method])
        data = RepairData(
            split.kept, yardstick, self.threads, self.round_limit_gflop, self.progress
        )
        with self.step("repairing"):
            best, repaired = repair(best, self.repairs, data)
        if "integers" in forms and "float32" in forms:
            with self.step("measuring the error"):
                rows = by_rows(graph, keep_float, yardstick)
            if rows is not None:
                known = {**chosen.products_db, ROWS: rows[1]}
                chosen = replace(chosen, products_db=known)
            if rows is not None and rows[1] > best.db - LEAST_GAIN_DB:
                small = replace(rows[0], graph=replace(rows[0].graph, name=name))
                return self._of_rows(small, yardstick, split, samples, kind, chosen, repaired)
        return self._finish(best, yardstick, split, samples, kind, chosen, repaired)

    def _finish(
        self,
        best: Repaired,
        yardstick: Yardstick,
        split: SampleSplit,
        samples: Samples,
        kind: ModelKind,
        chosen: ProductChoice,
        repaired: tuple[RepairReport, ...],
    ) -> QuantizedGraph:
        """Return the graph of the best candidate, its ranges those of held samples too."""
        with self.step("measuring the error"):
            if best.real is not yardstick.graph:
                watch = _watch(best.trial, best.real)
                yardstick = Yardstick(best.real, watch, yardstick.feeds, self.threads)
            build = best.with_samples(yardstick.real if split.held else ())
        precision: PrecisionReport | None = None
        if self.mixing is not None:
            with self.step("placing precision"):
                build, precision = self.mixing.place(
                    build, best.method, yardstick.feeds, self.threads, self.progress
                )
        with self.step("measuring the error"):
            values = watched_values(best.real, build.selection)
            inside = build(best.method)
            noises = yardstick.compare(inside, _watch(build, best.real))
        found: Culprits = Culprits({}, ())
        if self.explains:
            with self.step("naming culprits"):
                found = culprits(build, best.method, yardstick, noises, repaired)
        graph, quants = best.real, build.quants(best.method)
        report = QuantizationReport(
            self.scheme.name,
            kind.name,
            split.count,
            samples.source,
            len(yardstick.feeds),
            tuple(
                _tensor(build, value, noises[value], best.method, quants, found.made_db.get(value))
                for value in values
            ),
            _floats(graph, build.selection),
            output_reports(graph, noises),
            found.rows,
            suspicions(
                samples.source,
                split.count,
                graph,
                self.original,
                [*split.kept, *split.held],
                build.statistics,
                yardstick.real,
            ),
            dict(chosen.tried_db),
            repaired,
            dict(self.seconds),
            precision=precision,
            products=chosen.products,
            products_db=dict(chosen.products_db),
        )
        made = build(best.method, integer_io=True) if self.integer_io else inside
        return QuantizedGraph(**vars_of(made.graph), quantization=report)

    def _of_rows(
        self,
        small: SmallerWeights,
        yardstick: Yardstick,
        split: SampleSplit,
        samples: Samples,
        kind: ModelKind,
        chosen: ProductChoice,
        repaired: tuple[RepairReport, ...],
    ) -> QuantizedGraph:
        """Return the graph whose products round their rows in the run, which needs no ranges."""
        noises = yardstick.outputs(Emitted(small.graph, {}))
        seen, statistics = [*split.kept, *split.held], chosen.trial.statistics
        graph, source = yardstick.graph, samples.source
        report = QuantizationReport(
            self.scheme.name,
            kind.name,
            split.count,
            source,
            len(yardstick.feeds),
            (),
            small.floats,
            output_reports(graph, noises),
            (),
            suspicions(source, split.count, graph, self.original, seen, statistics, yardstick.real),
            dict(chosen.tried_db),
            tuple(replace(row, kept=False) for row in repaired),
            dict(self.seconds),
            small.weights,
            products=ROWS,
            products_db=dict(chosen.products_db),
        )
        return QuantizedGraph(**vars_of(small.graph), quantization=report)

    def _methods(self) -> tuple[str, ...]:
        return TRIED if self.ranges == AUTO else (self.ranges,)


def _check_any(graph: Graph, selection: Selection) -> None:
    if selection.taken:
        return
    reasons = dict.fromkeys(selection.reasons.values())
    raise GraphError(
        f"no node of {graph.name!r} can become integers",
        facts=list(reasons)[:8] or ["the model has no node"],
    )


def _watch(trial: QuantTrial, real: Graph) -> tuple[int, ...]:
    """Return the values that a report compares: integers, what products make, and the outputs."""
    to_floats = trial.selection.to_floats
    made = [node.outputs[0] for node in real.nodes if node.id in to_floats]
    values = watched_values(real, trial.selection)
    return tuple(dict.fromkeys((*values, *made, *float_outputs(real))))


def _name(graph: Graph, scheme: QuantScheme, samples: Samples) -> str:
    data = ", ranges of random data" if samples.source.startswith(RANDOM) else ""
    return f"{graph.name} ({scheme.name}{data})"


def _tensor(
    build: QuantTrial,
    value: int,
    noise: Noise,
    method: str,
    quants: Mapping[int, Quant],
    made_db: float | None,
) -> TensorReport:
    graph, statistics = build.graph, build.statistics[value]
    maker, quant = graph.producer(value), quants[value]
    return TensorReport(
        graph.values[value].first_name,
        maker.op if maker else "input",
        statistics.low,
        statistics.high,
        quant.scale,
        quant.zero_point,
        statistics.share_beyond(quant, build.scheme.activations),
        "fixed" if build.groups.fixed_of(value) else method,
        noise.db,
        made_db,
    )


def _floats(graph: Graph, selection: Selection) -> tuple[FloatNode, ...]:
    names = node_names(graph)
    return tuple(
        FloatNode(names[node.id], node.op, selection.reasons[node.id])
        for node in graph.nodes
        if node.id in selection.reasons
    )
