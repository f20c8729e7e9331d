"""What opset 28 has and earlier ones lack, against ONNX's own evaluator."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import trireme
from trireme.converters.onnx.file import NEWEST_OPSET
from trireme.support.dtypes import numpy_dtype

FLOAT6 = {
    TensorProto.FLOAT6E2M3: "float6_e2m3fn",
    TensorProto.FLOAT6E3M2: "float6_e3m2fn",
}
X = np.array([0.1, 1.3, 7.6, -30, 100, -0.3, 0.0625, -0.0, np.inf, 5.5, 27, 0.01], np.float32)
info = helper.make_tensor_value_info


def model_of(nodes, inputs, outputs, weights=(), opset=NEWEST_OPSET):
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def agrees(model, feeds, devices=("cpu",)):
    """Compare a session with the evaluator, the sign of zero too."""
    with np.errstate(all="ignore"):
        wanted = ReferenceEvaluator(model).run(None, feeds)
    with trireme.Session(model.SerializeToString(), devices=list(devices)) as session:
        made = session.run(feeds)
        for value, right in zip(session.outputs, wanted, strict=True):
            found = made[value.name]
            assert (found.dtype, found.shape) == (right.dtype, right.shape)
            ours, theirs = found.astype(np.float64), right.astype(np.float64)
            np.testing.assert_array_equal(ours, theirs)
            np.testing.assert_array_equal(np.signbit(ours), np.signbit(theirs))


@pytest.mark.parametrize("code", FLOAT6, ids=FLOAT6.values())
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("raw", [True, False])
def test_a_constant_of_float6_has_its_elements(code, count, raw):
    values = np.resize(np.array([0.5, -7.5, 1.25, 3, -0.125], np.float32), count)
    small = values.astype(numpy_dtype(FLOAT6[code]))
    weight = numpy_helper.from_array(small, "w")
    if not raw:
        weight = helper.make_tensor("w", code, [count], values)
    assert weight.HasField("raw_data") is raw
    nodes = [helper.make_node("Cast", ["w"], ["y"], to=TensorProto.FLOAT)]
    model = model_of(nodes, [], [info("y", TensorProto.FLOAT, [count])], [weight])
    graph = trireme.convert(model.SerializeToString())
    with trireme.Session(graph) as session:
        np.testing.assert_array_equal(session.run({})["y"], small.astype(np.float32))


@pytest.mark.parametrize("code", FLOAT6, ids=FLOAT6.values())
def test_casts_to_float6_round_to_even_and_saturate(code):
    nodes = [
        helper.make_node("Cast", ["x"], ["q"], to=code),
        helper.make_node("Cast", ["q"], ["y"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["q"], ["z"], to=TensorProto.FLOAT16),
    ]
    outputs = [info("y", TensorProto.FLOAT, [12]), info("z", TensorProto.FLOAT16, [12])]
    agrees(model_of(nodes, [info("x", TensorProto.FLOAT, [12])], outputs), {"x": X})


@pytest.mark.parametrize("code", FLOAT6, ids=FLOAT6.values())
def test_quantising_to_float6(code):
    zero = helper.make_tensor("zero", code, [], [0])
    scale = numpy_helper.from_array(np.array(0.5, np.float32), "scale")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    x = X[np.isfinite(X)]
    shape = [info("x", TensorProto.FLOAT, [len(x)])], [info("y", TensorProto.FLOAT, [len(x)])]
    agrees(model_of(nodes, *shape, [zero, scale]), {"x": x})


@pytest.mark.parametrize("devices", [["cpu"], ["opencl", "cpu"]], ids="-".join)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_a_zero_remainder_has_the_sign_of_the_divisor(dtype, devices):
    values = np.array([-4, 4, -0.0, 0.0, 2, -2, 0.5, -3.7, np.inf, -np.inf], dtype)
    a, b = (x.reshape(-1) for x in np.meshgrid(values, values[values != 0]))
    code = helper.np_dtype_to_tensor_dtype(a.dtype)
    nodes = [helper.make_node("Mod", ["a", "b"], ["y"])]
    known = np.isfinite(a)
    a, b = a[known], b[known]
    inputs = [info(name, code, list(a.shape)) for name in "ab"]
    agrees(model_of(nodes, inputs, [info("y", code, None)]), {"a": a, "b": b}, devices)


RULES = {"linear": "", "gated": "decay", "delta": "beta", "gated_delta": "decay beta"}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("steps", [0, 3])
def test_linear_attention_of_an_empty_chunk_keeps_its_state(rule, steps):
    """The open length is 0 in one run; the state that comes in goes out."""
    rng = np.random.default_rng(20261129)
    sizes = {"q": (2, steps, 8), "k": (2, steps, 8), "v": (2, steps, 12), "s0": (2, 2, 4, 6)}
    sizes |= {name: (2, steps, 2) for name in RULES[rule].split()}
    feeds = {name: rng.uniform(0, 1, shape).astype(np.float32) for name, shape in sizes.items()}
    names = [name if name in feeds else "" for name in ("q", "k", "v", "s0", "decay", "beta")]
    heads = {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": rule}
    node = helper.make_node("LinearAttention", names, ["y", "s"], **heads)
    inputs = [
        info(name, TensorProto.FLOAT, list(shape) if name == "s0" else [2, "t", shape[2]])
        for name, shape in sizes.items()
    ]
    model = model_of([node], inputs, [info(name, TensorProto.FLOAT, None) for name in "ys"])
    wanted = ReferenceEvaluator(model).run(None, feeds)
    with trireme.Session(model.SerializeToString()) as session:
        made = session.run(feeds)
    for found, right in zip(made.values(), wanted, strict=True):
        assert found.shape == right.shape
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5)


def test_an_opset_newer_than_known_is_told_once(caplog):
    assert onnx.defs.onnx_opset_version() <= NEWEST_OPSET, "a newer onnx: go through its changes"
    node, shape = helper.make_node("Relu", ["x"], ["y"]), [2]
    ends = [info("x", TensorProto.FLOAT, shape)], [info("y", TensorProto.FLOAT, shape)]
    for opset, notes in ((NEWEST_OPSET, 0), (NEWEST_OPSET + 1, 1)):
        caplog.clear()
        with trireme.Session(model_of([node], *ends, opset=opset).SerializeToString()) as session:
            session.run({"x": np.ones(2, np.float32)})
        told = [record.message for record in caplog.records if "newer than" in record.message]
        assert len(told) == notes, told
        assert all(f"opset {opset}" in note for note in told)
