"""DynamicQuantizeLSTM, as ONNX Runtime's dynamic quantiser writes it, beside ONNX Runtime.

The peer has one thread: with more, it rounds parts of a batch each on its own, by up to 0.02.
"""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from ort_integers import whole

import trireme
from trireme.devices.cpu.compile.program import REFERENCE
from trireme.support.errors import ConvertError

SEED = 31


def layer(rng, inputs, hidden, ways, dtype, columns, **more):
    """A model of one layer with open length and batch."""
    kind, wide = getattr(np, dtype), 4 * hidden
    zero = 0 if dtype == "int8" else 120
    tensors = {
        "w": whole(rng, kind, ways, inputs, wide),
        "r": whole(rng, kind, ways, hidden, wide),
        "b": (rng.standard_normal((ways, 2 * wide)) / 3).astype(np.float32),
    }
    shape = (ways, wide) if columns else (ways,)
    for name in ("w", "r"):
        tensors[f"{name}_scale"] = rng.uniform(0.004, 0.02, shape).astype(np.float32)
        tensors[f"{name}_zero"] = np.full(shape, zero, dtype)
    direction = {1: "reverse" if columns else "forward", 2: "bidirectional"}[ways]
    names = ["x", "w", "r", "b", "", "h", "c", "", "w_scale", "w_zero", "r_scale", "r_zero"]
    node = helper.make_node(
        "DynamicQuantizeLSTM",
        names,
        ["y", "y_h", "y_c"],
        domain="com.microsoft",
        hidden_size=hidden,
        **{"direction": direction, **more},
    )

    def value(name, *dims):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)

    states = [value(name, ways, "n", hidden) for name in ("h", "c")]
    last = [value(name, ways, "n", hidden) for name in ("y_h", "y_c")]
    graph = helper.make_graph(
        [node],
        "layer",
        [value("x", "t", "n", inputs), *states],
        [value("y", "t", ways, "n", hidden), *last],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8).SerializeToString()


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("ways", [1, 2])
def test_a_layer_equals_onnx_runtime(ways, dtype, columns, tmp_path):
    rng = np.random.default_rng(SEED)
    model = layer(rng, 12, 9, ways, dtype, columns)
    path = tmp_path / "layer.onnx"
    path.write_bytes(model)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    peer = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    sessions = [trireme.Session(path), trireme.Session(model)]
    for steps, batch in ((5, 1), (1, 3), (11, 2)):
        feeds = {
            "x": rng.standard_normal((steps, batch, 12)).astype(np.float32),
            "h": (rng.standard_normal((ways, batch, 9)) / 3).astype(np.float32),
            "c": rng.standard_normal((ways, batch, 9)).astype(np.float32),
        }
        wanted = peer.run(None, feeds)
        for session in sessions:
            for got, want in zip(session.run(feeds).values(), wanted, strict=True):
                assert got.shape == want.shape
                np.testing.assert_allclose(got, want, atol=3e-6, err_msg=f"seed {SEED}")


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_one_sequence_of_any_length_has_a_kernel(dtype):
    rng = np.random.default_rng(SEED)
    model = layer(rng, 12, 32, 2, dtype, True)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    peer = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    states = {name: (2, 1, 32) for name in "hc"}
    with trireme.Session(model, shapes={"x": ("t", 1, 12), **states}, devices=["cpu"]) as session:
        for steps in (1, 30, 7, 8):
            feeds = {
                name: rng.standard_normal(shape).astype(np.float32) / 3
                for name, shape in {"x": (steps, 1, 12), **states}.items()
            }
            wanted = peer.run(None, feeds)
            for got, want in zip(session.run(feeds).values(), wanted, strict=True):
                np.testing.assert_allclose(got, want, atol=3e-6, err_msg=f"seed {SEED}")
            assert REFERENCE not in str(session.profile(feeds, runs=1))


def test_what_no_quantiser_writes_is_refused():
    rng = np.random.default_rng(SEED)
    for more, why in (
        ({"clip": 1.0}, "clip and input_forget"),
        ({"activations": ["Relu", "Tanh", "Tanh"]}, "activations"),
        ({"direction": "sideways"}, "sideways"),
    ):
        with pytest.raises(ConvertError, match=why):
            trireme.convert(layer(rng, 4, 3, 1, "int8", False, **more))
