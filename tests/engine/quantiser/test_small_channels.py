"""Channels whose weights are tiny beside their bias: the bias keeps its value on integers."""

import numpy as np
import pytest
from litert import litert_run

import trireme
from trireme.converters.tflite.write.walk import export
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import run_reference

SEED = 5
SMALL = (0, 3)
WINDOW = {"layout": "NHWC", "pads": (1, 1, 1, 1), "strides": (2, 2), "dilations": (1, 1)}
OPS = {
    "fully_connected": ((4, 16), (8, 16), {}),
    "conv": ((1, 6, 6, 16), (8, 3, 3, 16), WINDOW),
    "conv_transpose": ((1, 4, 4, 16), (16, 3, 3, 8), WINDOW),
}


def net(op, tiny):
    """A product of 8 channels, of which two have weights of about `tiny`; and samples."""
    rng = np.random.default_rng(SEED)
    shape, weights, attrs = OPS[op]
    w = rng.standard_normal(weights).astype(np.float32)
    channels = w if op != "conv_transpose" else np.moveaxis(w, -1, 0)
    channels[list(SMALL)] *= np.float32(tiny)
    bias = rng.standard_normal(8).astype(np.float32)
    bias[list(SMALL)] = 1.5, -2.0
    b = GraphBuilder("small")
    x = b.input("x", TensorType(shape, "float32"))
    inputs = [x, b.constant("w", w), b.constant("bias", bias)]
    (y,) = b.add_node(op, inputs, attrs, names=["y"])
    return b.finish(y), {"x": rng.standard_normal((12, *shape)).astype(np.float32)}


@pytest.mark.parametrize("tiny", [1e-6, 1e-9, 1e-20, 1e-30])
@pytest.mark.parametrize("op", OPS)
def test_a_bias_beside_tiny_weights_keeps_its_value(op, tiny):
    graph, data = net(op, tiny)
    made = trireme.quantize(graph, data, scheme="int16x8", ranges="min_max", repairs="none")
    feeds = {"x": data["x"][0]}
    (wanted,), found = run_reference(graph, feeds).values(), run_reference(made, feeds)
    ((name, got),) = found.items()
    (step,) = (one.scale for one in made.quantization.tensors if one.name != "x")
    lost = np.abs(got - wanted)[..., list(SMALL)].max()
    assert lost < step, f"{lost / step} steps, seed {SEED}"
    np.testing.assert_array_equal(litert_run(export(made), feeds)[name], got)


@pytest.mark.parametrize("scheme", ["int16x8", "int8"])
def test_the_report_names_products_whose_scales_a_bias_raises(scheme):
    graph, data = net("conv", 1e-20)
    report = trireme.quantize(graph, data, scheme=scheme).quantization
    assert [one for one in report.warnings if "bias" in one] == [
        "a bias raises the scale of 2 of 8 channels of conv 'y': their weights are tiny"
    ]
    graph, data = net("conv", 1.0)
    report = trireme.quantize(graph, data, scheme=scheme).quantization
    assert not [one for one in report.warnings if "bias" in one]
