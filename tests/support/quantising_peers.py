"""Post-training quantisation by ONNX Runtime and by NNCF, each in six settings, as yardsticks.

ONNX Runtime's files run with its optimiser off, so that the quantised model computes in floats
what the file says, whatever integers the CPU has. NNCF's models run on OpenVINO in float32.

    python quantising_peers.py MODEL... [--settings PART,PART]

prints the table of docs/experiments/quantised-files.md, a line a setting.
"""

import argparse
import contextlib
import importlib.util
import logging
import pathlib
import tempfile
import time
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime as ort
from onnxruntime import quantization as q
from onnxruntime.quantization.shape_inference import quant_pre_process

import trireme

PRODUCTS = ["MatMul", "Gemm", "Conv"]
ORT = {
    "min-max, per tensor": {"per_channel": False},
    "min-max, per channel": {"per_channel": True},
    "min-max, per channel, products": {"per_channel": True, "op_types_to_quantize": PRODUCTS},
    "percentile, per channel": {"per_channel": True, "calibrate_method": "Percentile"},
    "entropy, per channel, products": {
        "per_channel": True,
        "op_types_to_quantize": PRODUCTS,
        "calibrate_method": "Entropy",
    },
    "dynamic": None,
}
NNCF = {
    "performance": {"preset": "PERFORMANCE"},
    "mixed": {"preset": "MIXED"},
    "mixed, slow bias correction": {"preset": "MIXED", "fast_bias_correction": False},
    "transformer": {"preset": "PERFORMANCE", "model_type": "TRANSFORMER"},
    "transformer, mixed": {"preset": "MIXED", "model_type": "TRANSFORMER"},
    "transformer, slow bias correction": {
        "preset": "MIXED",
        "model_type": "TRANSFORMER",
        "fast_bias_correction": False,
    },
}


def installed(*names):
    """Whether all these packages are installed."""
    return all(importlib.util.find_spec(name) is not None for name in names)


@dataclass(frozen=True)
class Agreement:
    """How a quantised model agrees with float.

    db: output signal-to-noise in dB
    moving_db: the same of the part of the output that depends on the input
    top1: the share of equal answers, None where an output holds no scores of classes
    """

    db: float
    moving_db: float
    top1: float | None

    def __str__(self):
        answers = "" if self.top1 is None else f", {100 * self.top1:.1f} %"
        return f"{self.db:.1f} ({self.moving_db:.1f}){answers}"


def ratio_db(real, error):
    """Return the signal-to-noise in dB."""
    return float(10 * np.log10((real**2).sum() / max((error**2).sum(), 1e-300)))


def agreement(real, made, classes):
    """Return the Agreement of outputs [N,...].

    classes: the axis of the scores of classes, of one output, or None
    """
    top1 = None
    if classes is not None:
        axis = classes if classes < 0 else classes + 1
        top1 = float((real.argmax(axis) == made.argmax(axis)).mean())
    real, error = real.astype(np.float64), made.astype(np.float64) - real
    moving = ratio_db(real - real.mean(axis=0), error - error.mean(axis=0))
    return Agreement(ratio_db(real, error), moving, top1)


def input_name(path):
    """Return the name of an ONNX file's only input."""
    (given,) = onnx.load(str(path), load_external_data=False).graph.input
    return given.name


def ort_outputs(path, feeds):
    """Return the output of an ONNX file for each feed."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = input_name(path)
    return np.stack([session.run(None, {name: x})[0] for x in feeds])


@contextlib.contextmanager
def errors_alone():
    """Have all loggers tell errors alone; ONNX Runtime's quantiser warns of each node."""
    level = logging.root.level
    logging.root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logging.root.setLevel(level)


def by_ort(path, ranges, feeds, setting):
    """Quantise with one of ORT; return the outputs for the feeds."""
    name = input_name(path)

    class Reader(q.CalibrationDataReader):
        def __init__(self):
            self.left = iter(ranges)

        def get_next(self):
            x = next(self.left, None)
            return None if x is None else {name: x}

    with tempfile.TemporaryDirectory() as folder, errors_alone():
        ready, made = (str(pathlib.Path(folder) / name) for name in ("ready.onnx", "made.onnx"))
        quant_pre_process(str(path), ready)
        options = ORT[setting]
        if options is None:
            q.quantize_dynamic(ready, made, weight_type=q.QuantType.QInt8, per_channel=True)
        else:
            options = dict(options)
            method = options.pop("calibrate_method", "MinMax")
            q.quantize_static(
                ready,
                made,
                Reader(),
                quant_format=q.QuantFormat.QDQ,
                activation_type=q.QuantType.QInt8,
                weight_type=q.QuantType.QInt8,
                calibrate_method=q.CalibrationMethod[method],
                **options,
            )
        return ort_outputs(made, feeds)


def by_nncf(path, ranges, feeds, setting):
    """Quantise with one of NNCF; return the outputs for the feeds."""
    import nncf
    import openvino as ov

    logging.getLogger("nncf").setLevel(logging.ERROR)
    options = dict(NNCF[setting])
    options["preset"] = nncf.QuantizationPreset[options["preset"]]
    if "model_type" in options:
        options["model_type"] = nncf.ModelType[options["model_type"]]
    core = ov.Core()
    name = input_name(path)
    data = nncf.Dataset(list(ranges), lambda x: {name: x})
    made = nncf.quantize(core.read_model(str(path)), data, subset_size=len(ranges), **options)
    compiled = core.compile_model(made, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.stack([compiled({name: x})[0] for x in feeds])


def by_trireme(path, ranges, feeds, setting):
    """Quantise with our defaults but for the scheme; return the outputs for the feeds."""
    name = input_name(path)
    made = trireme.quantize(str(path), {name: ranges}, scheme=setting)
    with trireme.Session(made, devices=["cpu"]) as session:
        return np.stack([next(iter(session.run({name: x}).values())) for x in feeds])


OURS, OURS_DYNAMIC = "trireme, int8", "trireme, dynamic"
THEIRS_DYNAMIC = "ONNX Runtime, dynamic"
SETTINGS = {
    OURS: (by_trireme, "int8"),
    OURS_DYNAMIC: (by_trireme, "dynamic"),
    **{f"ONNX Runtime, {one}": (by_ort, one) for one in ORT},
    **({f"NNCF, {one}": (by_nncf, one) for one in NNCF} if installed("nncf", "openvino") else {}),
}
"""The settings of the programs that are installed."""


def agreements(path, ranges, feeds, classes, settings=SETTINGS):
    """Yield (setting, Agreement or the error it ends with, seconds) of each setting."""
    real = ort_outputs(path, feeds)
    for name in settings:
        quantise, setting = SETTINGS[name]
        start = time.perf_counter()
        try:
            found = agreement(real, quantise(path, ranges, feeds, setting), classes)
        except Exception as error:  # a peer that fails in a setting has no figure for it
            if quantise is by_trireme:
                raise
            found = f"{type(error).__name__}: {str(error)[:80]}"
        yield name, found, time.perf_counter() - start


def main():
    import lively_models

    parser = argparse.ArgumentParser(description="agreement with float beside peers")
    parser.add_argument("models", nargs="+", choices=lively_models.MODELS)
    parser.add_argument("--settings", default="", help="only settings with one of these parts")
    given = parser.parse_args()
    parts = given.settings.split(",")
    settings = [name for name in SETTINGS if any(part in name for part in parts)]
    for model in given.models:
        with tempfile.TemporaryDirectory() as folder:
            path, (ranges, feeds), classes = lively_models.write(model, folder)
            for name, found, seconds in agreements(path, ranges, feeds, classes, settings):
                print(f"{model} | {name} | {found} | {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
