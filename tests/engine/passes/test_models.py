"""Real models through all passes: what is left of them, and the same answers."""

import os
import pathlib
from collections import Counter

import numpy as np
import pytest
from onnx_peers import LIGHT, lively
from same_results import assert_same_results
from sweep import sweep
from zoo import zoo_path

from trireme.converters.onnx import convert as convert_onnx
from trireme.converters.tflite.walk import convert as convert_tflite
from trireme.ir.interpreter import is_quantized
from trireme.passes.pipeline import optimise

ZOO = {
    "ad01_fp32": 10,
    "ad01_int8": 10,
    "deeplabv3_f32": 60,
    "kws_dscnn_f32": 58,
    "kws_dscnn_int8": 13,
    "mobilenet_v1_0.25_224_f32": 31,
    "mobilenet_v2_1.0_224_quant": 66,
    "resnet8_cifar10_f32": 13,
    "resnet8_cifar10_int8": 16,
    "ssd_mobilenet_v1_quant": 66,
    "tf2_mobilenet_v2_1.0_224_ptq": 68,
    "vww_96_float": 31,
    "vww_96_int8": 31,
    "yamnet": 46,
}
"""The most nodes that may be left of each model of the zoo."""

SMALL = ["ad01_fp32", "ad01_int8", "kws_dscnn_f32", "kws_dscnn_int8", "resnet8_cifar10_int8"]
"""Interpreted twice in half a second; test_end_to_end.py runs the others against LiteRT."""

LIGHT_MODELS = {
    "densenet121": (1, 310),
    "inception_v1": (1, 86),
    "inception_v2": (1, 96),
    "resnet50": (1, 59),
    "shufflenet": (17, 109),
    "squeezenet": (1, 41),
}
"""Transposes (the input's, and one a channel shuffle) and the most nodes that may be left."""

MADE = {
    "bert_mini": (16, 80),
    "mobilenet_v1": (1, 31),
    "mobilenet_v2": (1, 56),
    "mobilevit_s": (43, 233),
    "resnet18": (1, 25),
    "resnet50": (1, 58),
    "vit_tiny": (49, 236),
}
"""The same of make_onnx.py's models; attention takes four transposes a layer."""


def count(graph, op):
    return Counter(node.op for node in graph.nodes)[op]


@pytest.mark.parametrize("name", ZOO)
def test_zoo(name):
    graph = convert_tflite(zoo_path(f"{name}.tflite"))
    made = optimise(graph)
    assert len(made.nodes) <= ZOO[name]
    assert count(made, "transpose") == 0
    assert optimise(made) is made


@pytest.mark.parametrize("name", sweep(ZOO, always=SMALL))
def test_the_zoos_answers(name):
    graph = convert_tflite(zoo_path(f"{name}.tflite"))
    made = optimise(graph)
    is_float = not any(is_quantized(graph, node) for node in graph.nodes)
    assert_same_results(graph, made, tol=1e-4 if is_float else 0.0)


@pytest.mark.parametrize("name", sweep(LIGHT_MODELS, always=["shufflenet", "squeezenet"]))
def test_light_models(name):
    graph = convert_onnx(lively(LIGHT / f"light_{name}.onnx", np.random.default_rng(0)))
    made = optimise(graph)
    transposes, nodes = LIGHT_MODELS[name]
    assert count(made, "transpose") == transposes
    assert len(made.nodes) <= nodes
    assert_same_results(graph, made, tol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_made_models(name):
    folder = os.environ.get("TRIREME_ONNX_MODELS")
    if folder is None:
        pytest.skip("TRIREME_ONNX_MODELS is not set to a folder that make_onnx.py filled")
    graph = convert_onnx(pathlib.Path(folder) / f"{name}.onnx")
    made = optimise(graph)
    transposes, nodes = MADE[name]
    assert count(made, "transpose") == transposes
    assert len(made.nodes) <= nodes
    assert count(made, "batch_normalization") == count(made, "gemm") == 0
    assert_same_results(graph, made, tol=1e-5)
