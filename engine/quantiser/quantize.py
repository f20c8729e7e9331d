"""The front door: `quantize` turns a float model and sample inputs into a graph of integers."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Any, Literal

from trireme.backend.device import Device
from trireme.ir.bind_shapes import Shapes
from trireme.ir.graph import Graph
from trireme.ir.quantization.report import QuantizedGraph
from trireme.model_file.convert import convert
from trireme.quantiser.device_forms import check_scheme, chosen_scheme, forms_of_devices
from trireme.quantiser.integers import quantize_values
from trireme.quantiser.module_examples import first_sample, is_module
from trireme.quantiser.precision.budget import Score, budget_of
from trireme.quantiser.request import Progress, QuantRequest
from trireme.quantiser.scheme import WeightScheme, scheme_named
from trireme.quantiser.weight_only import quantize_weights
from trireme.support.arguments import checked
from trireme.support.errors import GraphError


@checked(GraphError)
def quantize(
    model: Any,
    data: Any = None,
    *,
    scheme: str | None = None,
    group: int | None = None,
    ranges: str = "auto",
    keep_float: Collection[str] = (),
    io: Literal["float32", "int8", "uint8", "int16"] = "float32",
    products: Literal["auto", "float32", "integers"] = "auto",
    repairs: str | Collection[str] = "auto",
    round_limit_gflop: float = 1000.0,
    explain: bool = False,
    budget: float | None = None,
    metric: str | Score | None = None,
    labels: Any = None,
    devices: Sequence[str | Device] | None = None,
    soc: str | None = None,
    time_limit_s: float | None = None,
    shapes: Shapes | None = None,
    seed: int = 0,
    threads: int | None = None,
    progress: Progress | None = None,
) -> QuantizedGraph:
    """Return a float model as a graph of integers or smaller weights, reported in `.quantization`.

    model: a Graph, or what `convert` takes; a module of PyTorch is exported by the first sample
    data: sample inputs: arrays by input name with one more axis, an iterable of feeds, a function
        that returns one, or the path of an .npz file or of a folder of them. "random" makes random
        numbers, which the report and the name of the graph say
    scheme: "int8", "uint8" (unsigned values), "int16x8" (for the cpu), "weights_int4" or
        "weights_int8" (weights alone, in groups), "dynamic" (int8 weights, inputs rounded in the
        run), "float16". None chooses the one whose products most of the named devices run, int8
        where none is named. Those of weights, "dynamic" and "float16" need no data
    group: how many weights along the depth share a scale, of a scheme with groups
    ranges: how the range of a value is taken from the samples; "auto" measures several ways and
        keeps the one with the least error
    keep_float: nodes that stay float, by name, or "op:NAME" for all nodes of an op
    io: the dtype of inputs and outputs; that of the scheme's values has no conversions at the ends
    products: what conv and fully_connected make of integers: "integers" run on every device,
        "float32" on the cpu. "auto" makes floats in a transformer that gains by it on held samples,
        unless `io`, a budget or a named device asks for integers
    repairs: the repairs to try, each kept only if it helps on held samples: "auto" for all,
        "none", or names of "equalisation", "smooth_quant", "outlier_clipping", "rounding",
        "bias_correction". The last two do not go with a budget
    round_limit_gflop: operations that rounding of weights may take, in billions; 0 leaves it out
    explain: whether to measure which nodes make the error, and what each would gain as float
    budget: what may be lost; which nodes stay float is then decided together with where they run.
        Of the metric "snr" the least signal-to-noise of an output in dB, of others the most loss
    metric: "snr"; "top1", the share of labels that are right; "agreement", of answers that are the
        float model's; or a function of (outputs by name, samples along a first axis, labels)
    labels: of all samples in order, or the path of an .npy file
    devices: the devices that the model is for: they decide the scheme, and a budget places nodes on
        them; on the cpu when None
    soc: a described machine that the model is for, by name or as a .toml file, in place of this one
    time_limit_s: seconds after which a budget's search tries no more choices; the report says so
    shapes: shapes of inputs that the model leaves open
    progress: told each step: (what, done, total), total 0 where it is not known
    Errors: RunError, if the data do not fit; GraphError, if the model cannot be quantised
    Source: TensorFlow Lite 8-bit quantization specification
    """
    allowed = budget_of(budget, metric, labels)
    known = forms_of_devices(devices, soc, threads)
    name, why = (scheme, "") if scheme else chosen_scheme(known, allowed is not None)
    found = scheme_named(name)
    check_scheme(found.name, known)
    asked = QuantRequest(
        group=group,
        ranges=ranges,
        keep_float=tuple(keep_float),
        io=io,
        products=products,
        repairs=repairs,
        round_limit_gflop=round_limit_gflop,
        explain=explain,
        budget=allowed,
        devices=devices,
        soc=soc,
        time_limit_s=time_limit_s,
        device_forms=known,
        scheme_why=why,
        shapes=shapes or {},
        seed=seed,
        threads=threads,
        progress=progress or _quiet,
    )
    asked.check(found)
    original, data = _converted(model, data)
    if isinstance(found, WeightScheme):
        return quantize_weights(original, data, found, asked)
    return quantize_values(original, data, found, asked)


def _converted(model: Any, data: Any) -> tuple[Graph, Any]:
    """Return the graph of a model, and its data; a module of PyTorch is exported by the first."""
    if isinstance(model, Graph):
        return model, data
    if is_module(model):
        examples, data = first_sample(data)
        return convert(model, examples), data
    return convert(os.fspath(model) if isinstance(model, os.PathLike) else model), data


def _quiet(what: str, done: int, total: int) -> None:
    pass
