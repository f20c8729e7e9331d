"""Time int8 models of the quantiser beside published ones, float32 and other programs, in turns.

Usage: python -m lab.speed.quantised {mobilenet_v2,resnet50,bert_mini} THREADS ROUNDS

Needs torch, transformers, scikit-learn, LiteRT, ONNX Runtime, OpenVINO and NNCF. Each round runs
every program twice and times the second run; odd rounds go backwards.
"""

import functools
import logging
import pathlib
import sys
import tempfile
import time

import numpy as np
from lively_models import write
from zoo import zoo_path

import trireme
from lab.speed.peers import onnx_session, openvino_model

RUNS = {}
SAMPLES = 16


def ours(name, model, threads, feeds):
    session = trireme.Session(model, threads=threads)
    (value,) = session.graph.input_values()
    if value.dtype != feeds.dtype.name or value.type.dims != feeds.shape:
        rng = np.random.default_rng(0)
        feeds = rng.integers(0, 100, value.type.dims).astype(value.dtype)
    RUNS[name] = functools.partial(session.run, {value.name: feeds})


def litert(name, path, threads):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path), num_threads=threads)
    interpreter.allocate_tensors()
    rng = np.random.default_rng(0)
    for detail in interpreter.get_input_details():
        x = rng.integers(0, 100, detail["shape"]).astype(detail["dtype"])
        interpreter.set_tensor(detail["index"], x)
    RUNS[name] = interpreter.invoke


def ort(name, path, threads, feeds):
    session = onnx_session(str(path), threads)
    RUNS[name] = functools.partial(session.run, None, {"input": feeds})


def openvino(name, model, threads, feeds):
    request = openvino_model(model, threads).create_infer_request()
    RUNS[name] = functools.partial(request.infer, {0: feeds})


def nncf_model(path, samples, transformer):
    import nncf
    import openvino

    logging.getLogger("nncf").setLevel(logging.ERROR)
    data = nncf.Dataset(list(samples), lambda x: {"input": x})
    kind = nncf.ModelType.TRANSFORMER if transformer else None
    model = openvino.Core().read_model(str(path))
    return nncf.quantize(model, data, subset_size=len(samples), model_type=kind)


def prepare(name, folder, threads):
    path, (samples, (feeds, *_)), _ = write(name, folder)
    samples, options = samples[:SAMPLES], {"repairs": "none", "ranges": "min_max"}
    made = trireme.quantize(path, samples, **options)
    ours("ours int8", made, threads, feeds)
    if name != "bert_mini":
        ends = trireme.quantize(path, samples, io="int8", **options)
        ours("ours int8, integers in and out", ends, threads, feeds)
    ours("ours float32", path, threads, feeds)
    openvino("OpenVINO, NNCF int8", nncf_model(path, samples, "bert" in name), threads, feeds)
    if name == "bert_mini":
        from onnxruntime import quantization

        ours("ours dynamic", trireme.quantize(path, scheme="dynamic"), threads, feeds)
        kind = quantization.QuantType.QInt8
        dynamic = folder / "dynamic.onnx"
        quantization.quantize_dynamic(path, dynamic, weight_type=kind, per_channel=True)
        ort("ONNX Runtime quantize_dynamic", dynamic, threads, feeds)
        ort("ONNX Runtime float32", path, threads, feeds)
        return
    trireme.export(made, folder / "made.tflite")
    litert("LiteRT, our file", folder / "made.tflite", threads)
    trireme.export(made, folder / "made.onnx")
    ort("ONNX Runtime, our QDQ file", folder / "made.onnx", threads, feeds)
    if name == "mobilenet_v2":
        for published in ("tf2_mobilenet_v2_1.0_224_ptq", "mobilenet_v2_1.0_224_quant"):
            file = zoo_path(f"{published}.tflite")
            ours(f"ours, {published}", file, threads, feeds)
            litert(f"LiteRT, {published}", file, threads)


def main(name, threads, rounds):
    with tempfile.TemporaryDirectory() as folder:
        prepare(name, pathlib.Path(folder), threads)
        taken = {one: [] for one in RUNS}
        for turn in range(rounds + 2):
            for one in sorted(RUNS, reverse=turn % 2 == 1):
                RUNS[one]()
                start = time.perf_counter()
                RUNS[one]()
                taken[one].append(time.perf_counter() - start)
    for one, seconds in taken.items():
        best, middle = min(seconds[2:]) * 1e3, np.median(seconds[2:]) * 1e3
        print(f"{name}, {threads} threads: {one}: best {best:.2f} ms, median {middle:.2f} ms")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
