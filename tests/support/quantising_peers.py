"""Post-training quantisation by ONNX Runtime and by NNCF, each in six settings, as yardsticks.

ONNX Runtime's files run with its optimiser off, so that the quantised model computes in floats
what the file says, whatever integers the CPU has. NNCF's models run on OpenVINO in float32.
"""

import importlib.util
import logging
import pathlib
import tempfile

import numpy as np

NEEDS = ("torch", "transformers", "sklearn", "onnxruntime", "nncf", "openvino")
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


def missing():
    """Return the packages that the comparison needs and that are not installed."""
    return [name for name in NEEDS if importlib.util.find_spec(name) is None]


def snr_db(real, made):
    """Return (signal-to-noise in dB, that of the part that depends on the input) of [N,...]."""
    real, error = real.astype(np.float64), made.astype(np.float64) - real
    moving = real - real.mean(axis=0), error - error.mean(axis=0)
    return tuple(
        float(10 * np.log10((y**2).sum() / max((e**2).sum(), 1e-300)))
        for y, e in ((real, error), moving)
    )


def ort_outputs(path, feeds):
    """Return the output of an ONNX file for each feed."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return np.stack([session.run(None, {"input": x})[0] for x in feeds])


def by_ort(path, ranges, feeds, setting):
    """Quantise with one of ORT; return the outputs for the feeds."""
    from onnxruntime import quantization as q
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(q.CalibrationDataReader):
        def __init__(self):
            self.left = iter(ranges)

        def get_next(self):
            x = next(self.left, None)
            return None if x is None else {"input": x}

    logging.getLogger().setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
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
    data = nncf.Dataset(list(ranges), lambda x: {"input": x})
    made = nncf.quantize(core.read_model(str(path)), data, subset_size=len(ranges), **options)
    compiled = core.compile_model(made, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.stack([compiled({"input": x})[0] for x in feeds])


SETTINGS = {
    **{f"ONNX Runtime, {one}": (by_ort, one) for one in ORT},
    **{f"NNCF, {one}": (by_nncf, one) for one in NNCF},
}


def peers_db(path, ranges, feeds, settings=SETTINGS):
    """Return signal-to-noise of each setting, (all, moving) in dB, or the error it ends with."""
    real = ort_outputs(path, feeds)
    found = {}
    for name in settings:
        quantise, setting = SETTINGS[name]
        try:
            found[name] = snr_db(real, quantise(path, ranges, feeds, setting))
        except Exception as error:  # a peer that fails in a setting has no figure for it
            found[name] = f"{type(error).__name__}: {str(error)[:80]}"
    return found
