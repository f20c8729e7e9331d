"""The scheme int16x8: TensorFlow Lite's rules, LiteRT's bits, and what has no form on int16."""

import numpy as np
import pytest
from float_graphs import conv_net, samples_of
from litert import litert_run

import trireme
from trireme.converters.tflite.write.walk import export
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Quant, TensorType
from trireme.ir.interpreter import run_reference
from trireme.ir.op import get_op
from trireme.model_file import dumps, loads

SEED = 5


@pytest.fixture(scope="module")
def net():
    return conv_net(SEED)


@pytest.fixture(scope="module")
def data(net):
    return samples_of(net, 12, SEED)


@pytest.fixture(scope="module")
def made(net, data):
    return trireme.quantize(net, data, scheme="int16x8", ranges="min_max", repairs="none")


def test_values_are_symmetric_int16_and_biases_int64(made):
    """Source: TensorFlow Lite 16x8 quantization specification."""
    products = [node for node in made.nodes if get_op(node.op).integer_form == "linear"]
    assert len(products) == 5
    for node in products:
        x, w, bias = (made.values[i] for i in node.inputs)
        assert (x.dtype, w.dtype, bias.dtype) == ("int16", "int8", "int64")
        scales = np.float64(x.quant.scale) * np.array(w.quant.scales, np.float64)
        assert bias.quant.scales == pytest.approx(tuple(scales), rel=1e-7)
    stored = [value for value in made.values.values() if value.dtype == "int16"]
    assert stored and all(value.quant.zero_points == (0,) for value in stored)
    for op in ("softmax", "sigmoid"):
        node = next(node for node in made.nodes if node.op == op)
        assert made.type(node.outputs[0]).quant == Quant((2.0**-15,), (0,))
    (entry,) = (one for one in made.quantization.tensors if one.name == "x")
    assert entry.scale == np.float32(max(abs(entry.low), abs(entry.high)) / 32767)


@pytest.mark.parametrize("io", ["float32", "int16"])
def test_cpu_reference_and_litert_have_the_same_bits(net, data, io):
    made = trireme.quantize(net, data, scheme="int16x8", io=io)
    (value,) = made.input_values()
    x = data["x"][0]
    if io == "int16":
        rng = np.random.default_rng(SEED)
        x = rng.integers(-32768, 32768, value.type.dims).astype(np.int16)
    feeds = {value.name: x}
    wanted = run_reference(made, feeds)
    with trireme.Session(made, devices=["cpu"]) as session:
        found = session.run(feeds)
    written = export(made)
    again = run_reference(trireme.convert(written), feeds)
    for other in (found, litert_run(written, feeds), again):
        assert wanted.keys() == other.keys()
        for name, right in wanted.items():
            np.testing.assert_array_equal(other[name], right)


def test_values_lose_less_than_on_8_bits(net, data):
    options = {"ranges": "min_max", "repairs": "none", "explain": True}
    wide, narrow = (
        trireme.quantize(net, data, scheme=scheme, **options).quantization
        for scheme in ("int16x8", "int8")
    )
    found = {one.name: one.made_db for one in wide.tensors}
    for one in narrow.tensors:
        if one.op in ("add", "sigmoid", "softmax"):
            assert found[one.name] > one.made_db + 30
    assert wide.outputs[0].snr_db > narrow.outputs[0].snr_db + 3


def test_the_report_and_the_integers_stay_in_the_file(made):
    again = loads(dumps(made))
    assert again.quantization.scheme == "int16x8"
    shape = made.type(made.inputs[0]).dims
    feeds = {"x": np.random.default_rng(SEED).standard_normal(shape).astype(np.float32)}
    for a, b in zip(*(run_reference(g, feeds).values() for g in (made, again)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_op_without_a_form_on_int16_stays_float():
    rng = np.random.default_rng(SEED)
    b = GraphBuilder("swish")
    x = b.input("x", TensorType((4, 16), "float32"))
    w = b.constant("w", rng.standard_normal((8, 16)).astype(np.float32))
    graph = b.finish(b.add("hard_swish", b.add("fully_connected", x, w)))
    samples = {"x": rng.standard_normal((6, 4, 16)).astype(np.float32)}
    made = trireme.quantize(graph, samples, scheme="int16x8")
    (kept,) = made.quantization.floats
    assert (kept.op, kept.reason) == ("hard_swish", "hard_swish has no form on int16")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"products": "float32"}, "products of int16x8 make integers, not float32"),
        ({"io": "int8"}, "io is int8, and values of int16x8 are int16"),
        ({"devices": ["npu"]}, "no named device runs products of the scheme int16x8"),
    ],
)
def test_what_does_not_go_together_is_refused(net, data, options, sentence):
    with pytest.raises(trireme.GraphError, match=sentence):
        trireme.quantize(net, data, scheme="int16x8", **options)
