"""Runs that others measured on a machine, beside what its description predicts.

A description's efficiencies are fitted to some published runs; the others are held out, and their
error says what a prediction there is worth.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from trireme.backend.device import HOST
from trireme.cost.calibration import Calibration
from trireme.cost.model import CostModel
from trireme.devices.described.checks import Published
from trireme.devices.described.soc import Soc
from trireme.ir.graph import Graph
from trireme.model_file.convert import convert
from trireme.passes.pipeline import optimise
from trireme.placement.options import PLAIN
from trireme.placement.place import place
from trireme.support.dtypes import numpy_dtype

SUFFIXES = (".onnx", ".tflite", ".trm")
"""Endings of the files in which a published run's model is looked for."""


@dataclass(frozen=True)
class Compared:
    """A published run and what is predicted for it; predicted_ms is None without the model."""

    run: Published
    predicted_ms: float | None

    @property
    def error(self) -> float | None:
        """How far the prediction is above what was published, as a share; negative below."""
        return None if self.predicted_ms is None else self.predicted_ms / self.run.ms - 1

    @property
    def factor(self) -> float | None:
        """By which factor the two differ, 1.0 at least."""
        if self.predicted_ms is None:
            return None
        return math.exp(abs(math.log(self.predicted_ms / self.run.ms)))


def compare(soc: Soc, models: Path | None) -> list[Compared]:
    """Return every published run of a description, predicted where its model is there.

    models: the folder of the models, NAME.onnx, NAME.tflite or NAME.trm; None for none
    Errors: those of `convert` and `place`
    """
    graphs: dict[str, Graph | None] = {}
    found = []
    for run in soc.published():
        if run.model not in graphs:
            file = _file(run.model, models)
            graphs[run.model] = None if file is None else optimise(convert(file))
        graph = graphs[run.model]
        found.append(Compared(run, None if graph is None else predicted_ms(soc, run, graph)))
    return found


def _file(model: str, models: Path | None) -> Path | None:
    """Return the file of a model; None where there is none."""
    if models is None:
        return None
    return next((f for f in (models / f"{model}{end}" for end in SUFFIXES) if f.exists()), None)


def predicted_ms(soc: Soc, run: Published, graph: Graph) -> float:
    """Return what a run on one device is predicted to take; without copies if pipelined.

    The graph's float32 values are taken to have the run's dtype. What the device refuses runs on
    the machine's devices in host memory.
    """
    graph = retyped(graph, run.dtype)
    every = soc.devices()
    device = every[run.device]
    if run.pipelined:
        seconds = (device.estimate_s(graph, node) for node in graph.nodes)
        return 1e3 * sum(one for one in seconds if one is not None)
    devices = {run.device: device}
    devices |= {name: one for name, one in every.items() if one.spec.memory == HOST}
    ours = [node.id for node in graph.nodes if device.unsupported_reason(graph, node) is None]
    costs = CostModel(dict(devices), Calibration())
    options = replace(PLAIN, pins=dict.fromkeys(ours, run.device))
    return 1e3 * place(graph, costs, options).makespan_s


def retyped(graph: Graph, dtype: str) -> Graph:
    """Return a float32 graph with another dtype, to be priced and not run."""
    values = dict(graph.values)
    for id, value in values.items():
        if value.type.dtype == "float32" != dtype:
            data = None if value.data is None else np.zeros(value.data.shape, numpy_dtype(dtype))
            values[id] = replace(value, type=replace(value.type, dtype=dtype), data=data)
    return replace(graph, values=values)


def held_out_errors(rows: Iterable[Compared]) -> Mapping[str, float]:
    """Return the median and the worst factor of the held-out runs that were predicted."""
    factors = [row.factor for row in rows if row.run.used == "held out" and row.factor is not None]
    if not factors:
        return {}
    return {"median": statistics.median(factors), "worst": max(factors)}
