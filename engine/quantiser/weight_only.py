"""`quantize` with a scheme that needs no samples: smaller weights, and the error where it is asked.

With samples the outputs are compared with those of the float graph; without them the report has the
error of the weights alone.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

from trireme.ir.bind_shapes import bind_shapes
from trireme.ir.graph import Graph
from trireme.ir.quantization.report import (
    QuantizationReport,
    QuantizedGraph,
    vars_of,
)
from trireme.quantiser.emit import Emitted
from trireme.quantiser.measure import Noise, Yardstick, float_outputs, output_reports
from trireme.quantiser.prepare import check_inputs
from trireme.quantiser.request import QuantRequest
from trireme.quantiser.samples import open_samples
from trireme.quantiser.scheme import WeightScheme
from trireme.quantiser.weights import prepare_weights, smaller_weights

_MEASURED = 8
"""The most samples that outputs are compared on."""


def quantize_weights(
    graph: Graph, data: Any, scheme: WeightScheme, asked: QuantRequest
) -> QuantizedGraph:
    """Return a graph with smaller weights and its report.

    Errors: GraphError, if the scheme takes no weights, or samples are given and a shape is open
    """
    asked.progress("folding the model", 0, 0)
    start = time.perf_counter()
    real = prepare_weights(graph)
    folded = time.perf_counter()
    asked.progress("rounding the weights", 0, 0)
    found = smaller_weights(real, scheme, asked.group, asked.keep_float)
    rounded = time.perf_counter()
    noises: dict[int, Noise] = {}
    count, source = 0, "no data"
    if data is not None:
        asked.progress("measuring the error", 0, 0)
        bound = bind_shapes(real, asked.shapes)
        check_inputs(bound)
        samples = open_samples(data, list(bound.input_values()), asked.seed)
        feeds = list(itertools.islice(samples.feeds, _MEASURED))
        yardstick = Yardstick(bound, float_outputs(bound), feeds, asked.threads)
        small = bind_shapes(found.graph, asked.shapes)
        measured = yardstick.outputs(Emitted(small, {}))
        noises = dict(zip(float_outputs(real), measured.values(), strict=True))
        count, source = len(feeds), samples.source
    report = QuantizationReport(
        scheme.name,
        "any",
        count,
        source,
        count,
        (),
        found.floats,
        output_reports(real, noises) if noises else (),
        weights=found.weights,
        scheme_why=asked.scheme_why,
        seconds={
            "folding the model": folded - start,
            "rounding the weights": rounded - folded,
            "measuring the error": time.perf_counter() - rounded,
        },
    )
    made = found.graph
    named = vars_of(made) | {"name": f"{made.name} ({scheme.name})"}
    return QuantizedGraph(**named, quantization=report)
