"""Quantise values: measure ranges, choose and repair, write the integers, and report.

`quantize` calls it with a scheme of integers. The steps and their times are told as they pass.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from trireme.ir.graph import Graph
from trireme.ir.quantization.precision import PrecisionReport
from trireme.ir.quantization.report import CulpritReport, QuantizedGraph, vars_of
from trireme.ir.quantization.stored import RANDOM
from trireme.quantiser.assign import watched_values
from trireme.quantiser.culprits import Culprits, culprits
from trireme.quantiser.emit import Emitted
from trireme.quantiser.grouping import group
from trireme.quantiser.half import HALF
from trireme.quantiser.measure import Yardstick, float_outputs
from trireme.quantiser.precision.mixing import Mixing
from trireme.quantiser.prepare import prepare
from trireme.quantiser.products import (
    LEAST_GAIN_DB,
    ROWS,
    ProductForms,
    by_rows,
    choose_products,
    forms_of,
)
from trireme.quantiser.raised import raised_scales
from trireme.quantiser.repair import RepairData, Repaired, repair
from trireme.quantiser.reporting import Found, Written, report_of, report_of_rows
from trireme.quantiser.request import QuantRequest
from trireme.quantiser.row_culprits import row_culprits
from trireme.quantiser.samples import Samples, open_samples, samples_again
from trireme.quantiser.scheme import ModelKind, QuantScheme
from trireme.quantiser.select import Selection, select
from trireme.quantiser.split import SampleSplit, split_of
from trireme.quantiser.statistics import gather
from trireme.quantiser.trial import QuantTrial
from trireme.quantiser.weights import SmallerWeights
from trireme.support.errors import GraphError

_ERROR = "measuring the error"


def quantize_values(
    original: Graph, data: Any, scheme: QuantScheme, asked: QuantRequest
) -> QuantizedGraph:
    """Return a float graph as one of integers, with its report.

    Errors: RunError, if the data do not fit; GraphError, if the graph cannot be quantised
    """
    work = _Quantisation(original, scheme, asked)
    with work.step("folding the model"):
        graph = prepare(original, asked.shapes)
        inputs = list(graph.input_values())
        samples = open_samples(data, inputs, asked.seed)
    if asked.budget is not None:
        again = samples_again(data, inputs, asked.seed)
        work.mixing = Mixing(
            asked.budget, asked.devices, asked.soc, asked.seed, again, asked.time_limit_s
        )
    return work.run(graph, samples)


@dataclass
class _Quantisation:
    """One quantisation: what is asked for, and the time of its steps."""

    original: Graph
    scheme: QuantScheme
    asked: QuantRequest
    mixing: Mixing | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Tell a step, and take its time."""
        self.asked.progress(what, 0, 0)
        start = time.perf_counter()
        yield
        self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - start

    def run(self, graph: Graph, samples: Samples) -> QuantizedGraph:
        """Return the quantised graph with its report."""
        kind = self.scheme.kind_of(graph)
        trial, split = self._measured(graph, samples, kind)
        forms = self._forms(kind)
        with self.step(_ERROR):
            watch = tuple(dict.fromkeys((*trial.statistics, *float_outputs(graph))))
            yardstick = Yardstick(graph, watch, split.measured, self.asked.threads)
            chosen = choose_products(trial, forms, self.asked.methods, yardstick)
        best = Repaired(graph, chosen.trial, chosen.method, chosen.tried_db[chosen.method])
        with self.step("repairing"):
            best, repaired = repair(
                best, self.asked.repair_names, self._repair_data(split, yardstick)
            )
        found = Found(
            self.original,
            kind,
            split,
            samples.source,
            yardstick,
            chosen,
            repaired,
            self.asked.scheme_why,
        )
        if "integers" in forms.tried and "float32" in forms.tried:
            with self.step(_ERROR):
                rows = by_rows(graph, self.asked.keep_float, yardstick)
            if rows is not None:
                known = {**chosen.products_db, ROWS: rows[1]}
                found = replace(found, chosen=replace(chosen, products_db=known))
            if rows is not None and rows[1] > best.db - LEAST_GAIN_DB:
                small = replace(rows[0], graph=replace(rows[0].graph, name=trial.name))
                return self._of_rows(small, found)
        return self._finish(best, found)

    def _forms(self, kind: ModelKind) -> ProductForms:
        asked = self.asked
        takes_floats = not asked.integer_io and self.mixing is None
        return forms_of(asked.products, kind, takes_floats, asked.device_forms, self.scheme.name)

    def _measured(
        self, graph: Graph, samples: Samples, kind: ModelKind
    ) -> tuple[QuantTrial, SampleSplit]:
        """Return a trial whose products make integers, and the samples that it is measured on."""
        asked, scheme = self.asked, self.scheme
        selection = select(graph, scheme, kind, asked.keep_float)
        _check_any(graph, selection)
        groups = group(graph, selection, scheme)
        values = watched_values(graph, selection)
        split = split_of(graph, values)
        with self.step("measuring ranges"):
            statistics = gather(
                graph,
                values,
                split.take(samples.feeds),
                threads=asked.threads,
                on_sample=lambda done: asked.progress("measuring ranges", done, samples.total),
            )
        name = _name(graph, scheme.name, samples.source)
        return QuantTrial(graph, selection, groups, statistics, scheme, name), split

    def _repair_data(self, split: SampleSplit, yardstick: Yardstick) -> RepairData:
        asked = self.asked
        limit = asked.round_limit_gflop
        return RepairData(split.kept, yardstick, asked.threads, limit, asked.progress)

    def _finish(self, best: Repaired, found: Found) -> QuantizedGraph:
        """Return the graph of the best candidate, its ranges those of held samples too."""
        with self.step(_ERROR):
            yardstick = self._yardstick_of(best, found.yardstick)
            build = best.with_samples(yardstick.real if found.split.held else ())
        precision: PrecisionReport | None = None
        if self.mixing is not None:
            with self.step("placing precision"):
                build, precision = self.mixing.place(
                    build, best.method, yardstick.feeds, self.asked.threads, self.asked.progress
                )
            if not build.selection.taken:
                build = replace(build, name=_name(best.real, HALF, found.source))
        with self.step(_ERROR):
            inside = build(best.method)
            noises = yardstick.compare(inside, _watch(build, best.real))
        worst = Culprits({}, ())
        if self.asked.explain:
            with self.step("naming culprits"):
                worst = culprits(build, best.method, yardstick, noises, found.repaired)
        found = replace(found, yardstick=yardstick)
        raised = raised_scales(build.graph, inside)
        written = Written(best.real, build, best.method, noises, worst, precision, raised)
        report = report_of(self.scheme, found, written, self.seconds)
        made = build(best.method, integer_io=True) if self.asked.integer_io else inside
        return QuantizedGraph(**vars_of(made.graph), quantization=report)

    def _yardstick_of(self, best: Repaired, yardstick: Yardstick) -> Yardstick:
        """Return the float values of a candidate, whose float graph a repair may have written."""
        if best.real is yardstick.graph:
            return yardstick
        watch = _watch(best.trial, best.real)
        return Yardstick(best.real, watch, yardstick.feeds, self.asked.threads)

    def _of_rows(self, small: SmallerWeights, found: Found) -> QuantizedGraph:
        """Return the graph whose products round their rows in the run, which needs no ranges."""
        noises = found.yardstick.outputs(Emitted(small.graph, {}))
        worst: tuple[CulpritReport, ...] = ()
        if self.asked.explain:
            with self.step("naming culprits"):
                worst = row_culprits(small, self.asked.keep_float, found.yardstick)
        report = report_of_rows(self.scheme, found, small, noises, self.seconds)
        report = replace(report, culprits=worst)
        return QuantizedGraph(**vars_of(small.graph), quantization=report)


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


def _name(graph: Graph, form: str, source: str) -> str:
    data = ", ranges of random data" if source.startswith(RANDOM) else ""
    return f"{graph.name} ({form}{data})"
