"""Convolutions whose windows differ from axis to axis, against ONNX Runtime: kernels, strides,
dilations and each pad, on every device and on the references.

The ops' samples are mostly square, where one axis' number passes for the other's.
"""

import random

import numpy as np
import onnxruntime
import pytest
from forced import pinned_where_supported
from onnx import TensorProto, helper, numpy_helper
from sweep import sweep

from trireme.ir.interpreter import run_reference
from trireme.model_file.convert import convert
from trireme.passes.pipeline import optimise
from trireme.runtime.program.options import AS_GIVEN
from trireme.runtime.session.session import Session

SEED = 20261123
CASES = 48
CHANNELS = [(3, 5, 1), (8, 16, 1), (16, 33, 1), (6, 8, 2), (7, 7, 7), (16, 16, 16), (1, 4, 1)]
"""Inputs, outputs, groups."""


def draw(number):
    """A window of which no two axes are alike, that fits its image: shape, channels, attributes."""
    rng = random.Random(SEED + number)
    kernel = rng.sample([1, 2, 3, 5], 2)
    strides = rng.sample([1, 2, 3], 2) if number % 3 else [1, 1]
    dilations = rng.sample([1, 2, 3], 2) if number % 3 != 1 else [1, 1]
    pads = rng.sample(range(4), 4) if number % 4 else [0, 0, 0, 0]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    size = [r + rng.randrange(1, 9) for r in reach]
    channels = CHANNELS[number % len(CHANNELS)]
    attrs = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}
    return rng.choice([1, 2]), size, channels, attrs


def model_of(number):
    """The model of a convolution, and its input."""
    batch, size, (inputs, outputs, groups), attrs = draw(number)
    rng = np.random.default_rng([SEED, number])
    w = rng.standard_normal((outputs, inputs // groups, *attrs["kernel_shape"]), np.float32)
    b = rng.standard_normal(outputs, np.float32)
    x = rng.standard_normal((batch, inputs, *size), np.float32)
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], group=groups, **attrs)
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    fixed = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")]
    graph = helper.make_graph([node], "conv", ends[:1], ends[1:], fixed)
    imports = [helper.make_opsetid("", 20)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9)
    return model.SerializeToString(), x


@pytest.mark.parametrize("number", sweep(range(CASES), always=range(7)))
def test_convolutions_equal_onnx_runtime(devices, number):
    print("seed", SEED, draw(number))
    model, x = model_of(number)
    wanted = onnxruntime.InferenceSession(model).run(None, {"x": x})[0]
    graph = convert(model)
    found = {"reference": run_reference(graph, {"x": x})["y"]}
    with Session(model) as session:
        found["default"] = session.run({"x": x})["y"]
    for name, device in devices.items():
        pinned = pinned_where_supported(optimise(graph), device)
        chosen = list({device, devices["cpu"]})
        with Session(pinned, devices=chosen, execution_options=AS_GIVEN) as session:
            found[name] = session.run({"x": x})["y"]
    for name, y in found.items():
        most = np.abs(wanted).max()
        rounding = 4e-3 if name == "npu" else 1e-5
        np.testing.assert_allclose(y, wanted, rtol=0, atol=rounding * most, err_msg=name)
