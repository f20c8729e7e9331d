"""Compare two models node by node on sample inputs: which value is the first to be far apart?

Values are matched by name, outputs by position. A quantised graph of `quantize` keeps the names of
the float graph after folding, so the float model is folded here in the same way.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from trireme.ir.bind_shapes import Shapes, bind_shapes
from trireme.ir.graph import Graph
from trireme.ir.quantization.report import QuantizedGraph, decibel_text
from trireme.model_file.convert import convert
from trireme.ops.integer import dequantized
from trireme.passes.pipeline import optimise
from trireme.quantiser.measure import Noise, ScaledNoise
from trireme.quantiser.prepare import prepare
from trireme.quantiser.samples import open_samples
from trireme.quantiser.statistics import run_watched
from trireme.support.arguments import checked
from trireme.support.dtypes import Array
from trireme.support.errors import GraphError

LIMIT_DB = 20.0
"""A value of less signal-to-noise is bad: a tenth of it is error."""
SAMPLES = 8
_SCALING = ("equalisation", "smooth_quant")
"""Repairs that multiply channels of values, and divide the weights that read them."""


@dataclass(frozen=True)
class NodeMatch:
    """One value of both models.

    snr_db: signal-to-noise of the model beside the other
    loss_db: how much less that is than at the worst input of the node that was matched
    """

    name: str
    op: str
    source: str
    snr_db: float
    loss_db: float

    def __str__(self) -> str:
        return f"{decibel_text(self.snr_db):>9}  {self.op} {self.name}  ({self.loss_db:.1f} lost)"


@dataclass(frozen=True)
class ModelComparison:
    """Two models beside each other: a row for each matched node, in the order of the model.

    outputs: signal-to-noise of each output, by name
    """

    samples: int
    limit_db: float
    nodes: tuple[NodeMatch, ...]
    outputs: Mapping[str, float]

    @property
    def first_bad(self) -> NodeMatch | None:
        """The first node whose value is below the limit."""
        return next((one for one in self.nodes if one.snr_db < self.limit_db), None)

    @property
    def agrees(self) -> bool:
        """Whether every output reaches the limit."""
        return all(ratio >= self.limit_db for ratio in self.outputs.values())

    def __str__(self) -> str:
        """Return the table, and the first bad node."""
        lines = [f"{len(self.nodes)} nodes matched, {self.samples} samples"]
        lines += [f"  {one}" for one in self.nodes]
        lines += [f"  output {name}: {decibel_text(db)}" for name, db in self.outputs.items()]
        bad = self.first_bad
        if bad is None:
            return "\n".join([*lines, f"  ok: every node has {self.limit_db:g} dB or more"])
        return "\n".join([*lines, f"first bad node: {bad.op} {bad.name}, {bad.snr_db:.1f} dB"])


@checked(GraphError)
def compare_models(
    model: Any,
    against: Any,
    data: Any,
    *,
    limit_db: float = LIMIT_DB,
    samples: int = SAMPLES,
    shapes: Shapes | None = None,
    seed: int = 0,
    threads: int | None = None,
) -> ModelComparison:
    """Return how far the values of a model are from those of another, node by node.

    model, against: graphs, or what `convert` takes; usually a quantised model and its float one
    data: sample inputs, as `quantize` takes them
    limit_db: the least signal-to-noise of a good value
    samples: how many of the samples are run
    Errors: RunError, if the data do not fit; GraphError, if the inputs or outputs differ
    """
    (mine, was_scaled), (theirs, _) = _graph_of(model, shapes), _graph_of(against, shapes)
    _check_alike(mine, theirs)
    pairs = _pairs(mine, theirs)
    opened = open_samples(data, list(theirs.input_values()), seed)
    feeds = list(islice(iter(opened.feeds), samples))
    noises: dict[int, Noise | ScaledNoise] = {
        value: ScaledNoise() if _may_be_scaled(mine, value, was_scaled) else Noise()
        for value in pairs
    }
    left = run_watched(mine, tuple(pairs), feeds, threads)
    right = run_watched(theirs, tuple(dict.fromkeys(pairs.values())), feeds, threads)
    for made, real in zip(left, right, strict=True):
        for value, other in pairs.items():
            noises[value].add(_real(theirs, other, real[other]), _real(mine, value, made[value]))
    ratios = {value: noise.db for value, noise in noises.items()}
    outputs = {mine.values[value].name: ratios[value] for value in mine.outputs if value in ratios}
    return ModelComparison(len(feeds), limit_db, tuple(_rows(mine, ratios)), outputs)


def _graph_of(model: Any, shapes: Shapes | None) -> tuple[Graph, bool]:
    """Return a model as a graph, and whether its report has a repair that multiplied channels.

    Floats are folded as before they are quantised.
    """
    if not isinstance(model, Graph):
        model = convert(os.fspath(model) if isinstance(model, os.PathLike) else model)
    report = model.quantization if isinstance(model, QuantizedGraph) else None
    repairs = report.repairs if report else ()
    return _folded(model, shapes), any(one.kept and one.name in _SCALING for one in repairs)


def _folded(model: Graph, shapes: Shapes | None) -> Graph:
    whole = any(value.quant is not None for value in model.values.values())
    pairs = any(node.op.endswith("quantize_linear") for node in model.nodes)
    if whole:
        return bind_shapes(model, shapes or {})
    return optimise(bind_shapes(model, shapes or {})) if pairs else prepare(model, shapes)


def _may_be_scaled(graph: Graph, value: int, was_scaled: bool) -> bool:
    """Whether a repair may have multiplied the channels of a value; those of outputs never."""
    return was_scaled and bool(graph.type(value).shape) and value not in graph.outputs


def _check_alike(mine: Graph, theirs: Graph) -> None:
    named = [[(v.name, v.type.dims) for v in graph.input_values()] for graph in (mine, theirs)]
    if named[0] != named[1] or len(mine.outputs) != len(theirs.outputs):
        raise GraphError(
            f"{mine.name!r} and {theirs.name!r} have other inputs or outputs, so their values "
            "cannot be compared",
            facts=[
                f"{graph.name}: {', '.join(map(str, _ends(graph)))}" for graph in (mine, theirs)
            ],
        )


def _ends(graph: Graph) -> list[str]:
    ends = (*graph.input_values(), *graph.output_values())
    return [f"{value.name} {value.type}" for value in ends]


def _pairs(mine: Graph, theirs: Graph) -> dict[int, int]:
    """Return the values of both graphs that are the same, by their names, and the outputs."""
    known = {value: _name(theirs, value) for node in theirs.nodes for value in node.outputs}
    by_name = {name: value for value, name in known.items() if _is_real(theirs, value)}
    pairs: dict[int, int] = {}
    for node in mine.nodes:
        for value in node.outputs:
            other = by_name.get(_name(mine, value))
            if other is None or not _is_real(mine, value):
                continue
            if mine.type(value).shape == theirs.type(other).shape:
                pairs[value] = other
    ends = zip(mine.outputs, theirs.outputs, strict=True)
    return pairs | {a: b for a, b in ends if _is_real(mine, a) and _is_real(theirs, b)}


def _name(graph: Graph, value: int) -> str:
    """Return the name of a value without the dtype that `quantize` adds to it."""
    known = graph.values[value]
    return known.first_name.removesuffix(f"_{known.dtype}") if known.quant else known.first_name


def _is_real(graph: Graph, value: int) -> bool:
    return graph.type(value).dtype == "float32" or graph.type(value).quant is not None


def _real(graph: Graph, value: int, array: Array) -> Array:
    type = graph.type(value)
    return dequantized(array, type) if type.quant else array


def _rows(graph: Graph, ratios: Mapping[int, float]) -> list[NodeMatch]:
    """Return a row for each matched node, with the loss since its inputs."""
    reached: dict[int, float] = {}
    rows = []
    for node in graph.nodes:
        before = min((reached.get(i, math.inf) for i in node.used), default=math.inf)
        for out in node.outputs:
            reached[out] = ratios.get(out, before)
            if out in ratios:
                loss = 0.0 if math.isinf(before) else before - ratios[out]
                name = graph.values[out].first_name
                rows.append(NodeMatch(name, node.op, node.source, ratios[out], loss))
    return rows
