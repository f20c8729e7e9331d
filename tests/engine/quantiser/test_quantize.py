"""quantize: TensorFlow Lite's rules, the same bits on every device, and the report."""

import json

import numpy as np
import onnxruntime
import pytest
from float_graphs import CONV, conv_net, samples_of, weights

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import run_reference
from trireme.ir.op import get_op
from trireme.model_file import dumps, loads

SEED = 5


@pytest.fixture(scope="module")
def net():
    return conv_net(SEED)


@pytest.fixture(scope="module")
def made(net):
    return trireme.quantize(net, samples_of(net, 12, SEED), ranges="min_max")


def nodes_of(graph, op):
    return [node for node in graph.nodes if node.op == op]


def test_integers_follow_tensorflow_lites_rules(made):
    """Source: TensorFlow Lite 8-bit quantization specification."""
    products = [node for node in made.nodes if get_op(node.op).integer_form == "linear"]
    assert len(products) == 5
    for node in products:
        x, w, bias = (made.values[i] for i in node.inputs)
        assert (x.dtype, w.dtype, bias.dtype) == ("int8", "int8", "int32")
        assert w.quant.axis == 0 and len(w.quant.scales) == w.data.shape[0]
        assert set(w.quant.zero_points) == set(bias.quant.zero_points) == {0}
        assert w.data.min() >= -127 and np.abs(w.data).reshape(len(w.data), -1).max(axis=1).min()
        scales = np.float64(x.quant.scale) * np.array(w.quant.scales, np.float64)
        assert bias.quant.scales == pytest.approx(tuple(scales), rel=1e-7)
    for value in made.values.values():
        if value.dtype == "int8" and not value.is_constant:
            assert value.quant.axis is None
            low = (-128 - value.quant.zero_point) * value.quant.scale
            high = (127 - value.quant.zero_point) * value.quant.scale
            assert low <= 0 <= high
    (softmax,) = nodes_of(made, "softmax")
    assert made.values[softmax.outputs[0]].quant == trireme.ir.graph.Quant((1 / 256,), (-128,))


def test_ops_that_keep_integers_share_their_quantisation(made):
    for op in ("max_pool", "average_pool", "reshape"):
        (node,) = nodes_of(made, op)
        assert made.type(node.used[0]).quant == made.type(node.outputs[0]).quant
    (concat,) = nodes_of(made, "concat")
    assert len({made.type(i).quant for i in (*concat.used, *concat.outputs)}) == 1
    (gate,) = nodes_of(made, "sigmoid")
    assert made.type(gate.outputs[0]).quant.scale == 1 / 256
    requantised = made.producer(concat.used[1])
    assert requantised.op == "quantize" and requantised.used == gate.outputs


def test_clamps_are_fused_and_bound_the_range(net, made):
    assert not nodes_of(made, "relu")
    assert {node.attrs["activation"] for node in nodes_of(made, "conv")} == {"", "relu"}
    first = next(one for one in made.quantization.tensors if one.name == "first.act")
    assert first.low == 0 and first.zero_point == -128


@pytest.mark.parametrize("device", ["cpu", "opencl", "npu"])
def test_devices_agree_bit_for_bit(made, device):
    """Each device takes every node that it can run; the npu all but the ends."""
    options = trireme.PlacementOptions(single_device=device)
    devices = list(dict.fromkeys([device, "cpu"]))
    with trireme.Session(made, devices=devices, placement_options=options) as session:
        placed = session.placement
        outside = {n.op for n in placed.source.nodes if placed.device_of[n.id] != device}
        assert outside <= {"quantize", "dequantize"}
        for number in range(2):
            feeds = {k: v[number] for k, v in samples_of(made, 2, SEED + 1).items()}
            want = run_reference(made, feeds)["y"]
            assert np.array_equal(session.run(feeds)["y"], want), f"seed {SEED}, {number}"


def test_integer_ends_need_no_conversions(net):
    made = trireme.quantize(net, samples_of(net, 12, SEED), io="int8")
    assert {made.type(v).dtype for v in (*made.inputs, *made.outputs)} == {"int8"}
    assert [n.op for n in made.nodes].count("dequantize") == 0
    assert [made.values[v].name for v in (*made.inputs, *made.outputs)] == ["x", "y"]


def test_the_report_measures_what_the_graph_does(net, made):
    report = made.quantization
    assert report.samples == 12 and report.kind == "convolutional" and not report.floats
    fresh = samples_of(net, 8, SEED + 9)["x"]
    signal = noise = 0.0
    for x in fresh:
        real, integers = (run_reference(g, {"x": x})["y"] for g in (net, made))
        signal, noise = signal + np.sum(real**2), noise + np.sum((real - integers) ** 2)
    found = 10 * np.log10(signal / noise)
    assert found > 20, f"seed {SEED}"
    assert report.outputs[0].snr_db == pytest.approx(found, abs=4), f"seed {SEED}"
    assert json.loads(json.dumps(report.to_json()))["scheme"] == "int8"
    assert "output y" in str(report)


def test_it_is_deterministic_and_goes_through_a_file(net, made):
    again = trireme.quantize(net, samples_of(net, 12, SEED), ranges="min_max")
    assert str(again) == str(made) and dumps(again) == dumps(made)
    assert str(loads(dumps(made))) == str(made)


def test_named_nodes_stay_float(net):
    data = samples_of(net, 8, SEED)
    made = trireme.quantize(net, data, ranges="min_max", keep_float=["head", "op:sigmoid"])
    (head,) = nodes_of(made, "fully_connected")
    assert made.type(head.outputs[0]).dtype == "float32"
    reasons = {one.name: one.reason for one in made.quantization.floats}
    assert reasons["head"] == reasons["gate"] == "it was asked to stay float"
    assert "no product of integers" in reasons["y"]
    with pytest.raises(trireme.GraphError, match="no node is called 'heat'"):
        trireme.quantize(net, data, ranges="min_max", keep_float=["heat"])


@pytest.mark.parametrize("activation", ["relu6", "leaky_relu", "hard_swish", "gelu"])
def test_activations_are_clamps_or_tables(activation):
    net = conv_net(SEED, activation)
    made = trireme.quantize(net, samples_of(net, 8, SEED), ranges="min_max")
    feeds = {k: v[0] for k, v in samples_of(net, 1, SEED + 1).items()}
    assert len(nodes_of(made, activation)) == (0 if activation == "relu6" else 2)
    with trireme.Session(made) as session:
        assert np.array_equal(session.run(feeds)["y"], run_reference(made, feeds)["y"])


@pytest.fixture(scope="module")
def unsigned(net):
    return trireme.quantize(net, samples_of(net, 12, SEED), scheme="uint8", ranges="min_max")


@pytest.mark.parametrize("device", ["cpu", "opencl", "npu"])
def test_unsigned_values_have_the_steps_of_signed_ones(net, made, unsigned, device):
    """Devices agree bit for bit; halves of means round to the other side than those of int8."""
    options = trireme.PlacementOptions(single_device=device)
    devices = list(dict.fromkeys([device, "cpu"]))
    feeds = {k: v[0] for k, v in samples_of(net, 1, SEED + 1).items()}
    with trireme.Session(unsigned, devices=devices, placement_options=options) as session:
        found = session.run(feeds)["y"]
        assert np.array_equal(found, run_reference(unsigned, feeds)["y"])
        assert np.abs(found - run_reference(made, feeds)["y"]).max() <= 2 / 256
        if device == "cpu":
            assert "reference" not in str(session.profile(feeds, runs=1))
    kinds = {v.dtype for v in unsigned.values.values() if v.quant and not v.is_constant}
    assert kinds == {"uint8"}


def test_onnx_runtime_runs_unsigned_values(net, unsigned, tmp_path):
    """Its sums of uint8 by int8 are cut at 16 bits on CPUs without VNNI, unless it is told."""
    trireme.export(unsigned, tmp_path / "u.onnx")
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    theirs = onnxruntime.InferenceSession(
        str(tmp_path / "u.onnx"), options, providers=["CPUExecutionProvider"]
    )
    for number in range(4):
        feeds = {k: v[number] for k, v in samples_of(net, 4, SEED + 1).items()}
        want = run_reference(unsigned, feeds)["y"]
        assert np.abs(theirs.run(None, feeds)[0] - want).max() <= 4 / 256, f"seed {SEED}"


def test_integer_ends_are_those_of_the_scheme(net):
    data = samples_of(net, 8, SEED)
    made = trireme.quantize(net, data, scheme="uint8", io="uint8", ranges="min_max")
    assert {made.type(v).dtype for v in (*made.inputs, *made.outputs)} == {"uint8"}
    with pytest.raises(trireme.GraphError, match="io is int8, and values of uint8 are uint8"):
        trireme.quantize(net, data, scheme="uint8", io="int8")


def test_a_prelu_becomes_integers():
    """The same bits by the reference and the cpu; the slope has a scale of its own."""
    rng = np.random.default_rng(SEED)
    b = GraphBuilder("prelu")
    x = b.input("x", TensorType((1, 8, 8, 3), "float32"))
    w = b.constant("w", weights(rng, 8, 3, 3, 3))
    slope = b.constant("slope", rng.uniform(-0.1, 0.5, 8).astype(np.float32))
    y = b.add("prelu", b.add("conv", x, w, **CONV), slope, names=["leak"])
    net = b.finish(b.add("conv", y, b.constant("v", weights(rng, 4, 3, 3, 8)), **CONV))
    data = samples_of(net, 12, SEED)
    made = trireme.quantize(net, data, ranges="min_max", repairs="none")
    (node,) = nodes_of(made, "prelu")
    assert {made.type(i).dtype for i in (*node.used, *node.outputs)} == {"int8"}
    assert made.quantization.outputs[0].snr_db > 30
    feeds = {"x": data["x"][0]}
    with trireme.Session(made, devices=["cpu"]) as session:
        (found,) = session.run(feeds).values()
    np.testing.assert_array_equal(found, *run_reference(made, feeds).values())


def test_rounding_takes_inputs_of_uint8_as_they_are(net):
    """uint8 is int8 with other zero points, so its weights round alike."""
    data = samples_of(net, 12, SEED)
    weights = []
    for scheme in ("int8", "uint8"):
        made = trireme.quantize(net, data, scheme=scheme, ranges="min_max", repairs=["rounding"])
        weights.append([made.values[n.used[1]].data for n in nodes_of(made, "conv")])
    for a, b in zip(*weights, strict=True):
        np.testing.assert_array_equal(a, b)
