"""Pools whose windows leave the input, against ONNX Runtime: ceil_mode, windows larger than the
input, pads that count and pads that do not, on every device and on the references.
"""

import itertools
import time

import numpy as np
import onnxruntime
import pytest
from forced import pinned_where_supported
from onnx import TensorProto, helper
from sweep import sweep

from trireme.ir.interpreter import run_reference
from trireme.model_file.convert import convert
from trireme.passes.pipeline import optimise
from trireme.runtime.program.options import AS_GIVEN
from trireme.runtime.session.session import Session
from trireme.support.errors import ConvertError

SEED = 41
OPS = {
    "max": ("MaxPool", {}),
    "mean": ("AveragePool", {}),
    "mean with pads": ("AveragePool", {"count_include_pad": 1}),
    "l2": ("LpPool", {"p": 2}),
}
WINDOWS = {
    "EfficientNet's head": ((1, 4, 7, 7), [1280, 1280], [1280, 1280], [0, 0, 0, 0]),
    "one axis larger": ((1, 3, 5, 9), [7, 2], [7, 2], [0, 0, 0, 0]),
    "larger in spite of pads": ((1, 3, 5, 5), [8, 8], [8, 8], [1, 0, 1, 1]),
    "a rest at the end": ((1, 3, 7, 8), [3, 2], [2, 3], [0, 0, 0, 0]),
    "a rest and pads": ((2, 3, 7, 8), [3, 3], [2, 2], [1, 1, 1, 1]),
    "a window that starts in the pad": ((1, 2, 4, 4), [2, 2], [3, 3], [0, 0, 1, 1]),
    "a sequence": ((1, 3, 6), [9], [9], [0, 0]),
}


def pool(op, shape, kernel, strides, pads, ceil_mode=1):
    name, attrs = OPS[op]
    node = helper.make_node(
        name,
        ["x"],
        ["y"],
        kernel_shape=kernel,
        strides=strides,
        pads=pads,
        ceil_mode=ceil_mode,
        **attrs,
    )
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    graph = helper.make_graph([node], "pool", ends[:1], ends[1:])
    imports = [helper.make_opsetid("", 22)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()


def case(op, window):
    model = pool(op, *WINDOWS[window])
    print("seed", SEED)
    x = np.random.default_rng(SEED).standard_normal(WINDOWS[window][0]).astype(np.float32) - 1
    return model, x, onnxruntime.InferenceSession(model).run(None, {"x": x})[0]


def _always(op, window):
    """Kinds of mean differ where a window meets pads."""
    return op in ("max", "mean") or window.startswith(("a rest", "a window"))


@pytest.mark.parametrize("op, window", sweep(itertools.product(OPS, WINDOWS), _always))
def test_pools_equal_onnx_runtime(devices, op, window):
    model, x, wanted = case(op, window)
    graph = convert(model)
    found = {"reference": run_reference(graph, {"x": x})["y"]}
    found["optimised"] = run_reference(optimise(graph), {"x": x})["y"]
    with Session(model) as session:
        found["default"] = session.run({"x": x})["y"]
    forms = [()] if max(WINDOWS[window][1]) > 99 else [(), ("canonicalise",)]  # cropped and not
    for name, device in devices.items():
        for off in forms:
            pinned = pinned_where_supported(optimise(graph, disable=off), device)
            chosen = list({device, devices["cpu"]})
            with Session(pinned, devices=chosen, execution_options=AS_GIVEN) as session:
                found[f"{name} without {off}"] = session.run({"x": x})["y"]
    for name, y in found.items():
        assert y.shape == wanted.shape, name
        np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("op", OPS)
def test_a_window_beyond_the_input_is_cropped(op):
    graph = optimise(convert(pool(op, *WINDOWS["EfficientNet's head"])))
    (node,) = (node for node in graph.nodes if "pool" in node.op)
    assert node.attrs["kernel"] == (7, 7) and not node.attrs["ceil_mode"]


def test_a_huge_window_takes_no_time():
    graph = convert(pool("mean", (1, 1, 3, 3), [1 << 40] * 2, [1 << 40] * 2, [0] * 4))
    start = time.process_time()
    x = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
    assert run_reference(graph, {"x": x})["y"].item() == 4
    assert time.process_time() - start < 5


def test_without_ceil_mode_no_window_fits():
    with pytest.raises(ConvertError, match="a window of 1280 does not fit into 7"):
        convert(pool("mean", *WINDOWS["EfficientNet's head"], ceil_mode=0))
