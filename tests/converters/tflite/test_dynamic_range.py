"""Float operators with int8 weights ("dynamic range"), against LiteRT's reference kernels."""

import numpy as np
import pytest
from litert import litert_run, random_inputs
from tflite_builder import T, constant, one_op

from trireme.converters.tflite.walk import convert
from trireme.devices.cpu.kernels.expressions import ACTIVATIONS
from trireme.ir.interpreter import run_reference
from trireme.ir.quantization.dynamic_range import find_hybrid
from trireme.passes.pipeline import optimise
from trireme.support.errors import ConvertError

SEED = 3
IMAGE = (2, 9, 11, 6)
PLAIN = {"StrideH": 1, "StrideW": 1, "Padding": 0, "FusedActivationFunction": 1}


def weights(rng, shape, channels, axis=0):
    scales = rng.uniform(0.005, 0.02, channels).tolist()
    return constant(rng.integers(-127, 128, shape).astype(np.int8), *scales, axis=axis)


def conv(rng, channels):
    inputs = [T(IMAGE), weights(rng, (8, 3, 3, 6), channels), bias(rng, 8)]
    return one_op("CONV_2D", inputs, [T((*IMAGE[:3], 8))], "Conv2DOptions", **PLAIN)


def depthwise(rng):
    inputs = [T(IMAGE), weights(rng, (1, 3, 3, 6), 6, 3), bias(rng, 6)]
    options = {"DepthMultiplier": 1, **PLAIN}
    return one_op("DEPTHWISE_CONV_2D", inputs, [T(IMAGE)], "DepthwiseConv2DOptions", **options)


def fully_connected(rng, asymmetric):
    inputs = [T((3, 12)), weights(rng, (5, 12), 1), bias(rng, 5)]
    return one_op(
        "FULLY_CONNECTED",
        inputs,
        [T((3, 5))],
        "FullyConnectedOptions",
        AsymmetricQuantizeInputs=asymmetric,
    )


def bias(rng, channels):
    return constant(rng.standard_normal(channels).astype(np.float32))


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda rng: conv(rng, 1), id="conv, one scale"),
        pytest.param(lambda rng: conv(rng, 8), id="conv, a scale a channel"),
        pytest.param(depthwise, id="depthwise"),
        pytest.param(lambda rng: fully_connected(rng, False), id="fully connected, symmetric"),
        pytest.param(lambda rng: fully_connected(rng, True), id="fully connected, asymmetric"),
    ],
)
@pytest.mark.parametrize("scale", [1.0, 1e-3, 0.0])
def test_hybrid_operators_agree(build, scale):
    data = build(np.random.default_rng(SEED))
    inputs = {k: v * np.float32(scale) for k, v in random_inputs(data, SEED).items()}
    ((name, want),) = litert_run(data, inputs).items()
    got = run_reference(convert(data), inputs)[name]
    np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max(), rtol=0)


def test_weights_with_zero_points_are_refused():
    w = constant(np.ones((5, 12), np.uint8), 0.1, zero=7)
    data = one_op("FULLY_CONNECTED", [T((3, 12)), w], [T((3, 5))], "FullyConnectedOptions")
    with pytest.raises(ConvertError, match="symmetric int8"):
        convert(data)


@pytest.mark.parametrize("optimised", [False, True])
@pytest.mark.parametrize("asymmetric", [False, True])
def test_the_cpu_device_finds_them(optimised, asymmetric):
    rng = np.random.default_rng(SEED)
    for data in (conv(rng, 8 if asymmetric else 1), fully_connected(rng, asymmetric)):
        graph = convert(data)
        graph = optimise(graph) if optimised else graph
        levels, product = find_hybrid(graph, ACTIVATIONS)
        assert levels.kind == ("asymmetric" if asymmetric else "symmetric")
        assert len(levels.nodes) + len(product.nodes) == len(graph.nodes)
