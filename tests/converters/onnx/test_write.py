"""Written ONNX files: onnx's checker and shape inference, ONNX Runtime, and our own reader."""

import numpy as np
import onnx
import pytest
from op_samples import assert_close, by_op, interpreted, named
from zoo import zoo_path

import trireme
from trireme.converters.onnx.write import OPSET, export
from trireme.converters.onnx.write.table import rule_of, straight, written_ops
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import interpret
from trireme.tools.cli import main

onnxruntime = pytest.importorskip("onnxruntime")
SEED = 20261121
UNITS_16 = {"softmax": 64, "tanh": 2}
"""Units by which int16 differs: there LiteRT's rules, which are ours, go along tables."""


def is_exact(graph, op):
    """Whether the file holds the one node as it is, in the order of its axes."""
    plain = all(value.quant is None for value in graph.values.values())
    attrs = op.bind(graph.nodes[0].attrs)
    beside = attrs.get("activation") or attrs.get("layout") == "NHWC"
    return plain and not beside and rule_of(op.name) is straight


def assert_read_back(op, sample):
    """Check the file of a sample, read it, and compare the results with the graph's."""
    graph, wanted = interpreted(op, sample)
    try:
        data = export(graph)
    except trireme.ConvertError as error:
        assert op.name in str(error)
        return
    onnx.checker.check_model(onnx.load_from_string(data), full_check=True)
    again = trireme.convert(data)
    places = enumerate(sample.inputs)
    given = [x for at, x in places if x is not None and at not in sample.constants]
    found = interpret(again, dict(zip(again.inputs, map(np.asarray, given), strict=True)))
    assert [v.name for v in again.output_values()] == [v.name for v in graph.output_values()]
    for value, right in zip(again.outputs, wanted, strict=True):
        if found[value].dtype.kind in "iu" and not is_exact(graph, op):
            most = UNITS_16.get(op.name, 1) if right.dtype == np.int16 else 1
            assert np.abs(found[value].astype(np.int64) - right).max(initial=0) <= most
        else:
            assert_close(found[value], right, 0 if is_exact(graph, op) else 1e-5)


WRITTEN = [*by_op(lambda op: rule_of(op.name) is not None and not op.random)]


@pytest.mark.parametrize("op, samples", WRITTEN)
def test_samples_read_back(op, samples):
    for sample, name in samples:
        with named(name):
            assert_read_back(op, sample)


def random_feeds(graph, rng):
    feeds = {}
    for value in graph.input_values():
        if value.dtype == "float32":
            feeds[value.name] = rng.standard_normal(value.type.dims).astype(np.float32)
        else:
            info = np.iinfo(value.dtype)
            made = rng.integers(info.min, info.max, value.type.dims, endpoint=True)
            feeds[value.name] = made.astype(value.dtype)
    return feeds


def results(source, feeds):
    with trireme.Session(source, devices=["cpu"]) as session:
        return session.run(feeds)


ZOO = [
    "ad01_int8",
    "kws_dscnn_int8",
    "kws_dscnn_f32",
    "resnet8_cifar10_int8",
    "vww_96_int8",
    "mobilenet_v2_1.0_224_quant",
    "tf2_mobilenet_v2_1.0_224_ptq",
]


def peer_answers(data, feeds):
    """ONNX Runtime's outputs; unoptimised: its fused int8 products saturate without VNNI."""
    options = onnxruntime.SessionOptions()
    level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.graph_optimization_level, options.intra_op_num_threads = level, 1
    return onnxruntime.InferenceSession(data, options).run(None, feeds)


@pytest.mark.parametrize("name", ZOO)
def test_models_of_the_zoo(name):
    """Floats come back to the bit and are ONNX Runtime's; integers are ONNX Runtime's.

    What is written rounds halves to even, as ONNX does, so integers may differ from the original's.
    A softmax of integers is within a few units.
    """
    print("seed", SEED)
    graph = trireme.convert(zoo_path(f"{name}.tflite"))
    data = export(graph)
    onnx.checker.check_model(onnx.load_from_string(data), full_check=True)
    feeds = random_feeds(graph, np.random.default_rng(SEED))
    wanted, found = results(graph, feeds), results(data, feeds)
    for peer, (key, right) in zip(peer_answers(data, feeds), wanted.items(), strict=True):
        if right.dtype == np.float32:
            np.testing.assert_array_equal(found[key], right)
            assert_close(peer, right, 1e-5)
        elif any(node.op == "softmax" for node in graph.nodes):
            assert np.abs(peer.astype(np.int64) - found[key]).max() <= 4
        else:
            np.testing.assert_array_equal(found[key], peer)


QUANTISED = {"add", "average_pool", "conv", "fully_connected", "matmul", "mul", "softmax"}


@pytest.mark.parametrize("op, samples", [*by_op(lambda op: op.name in QUANTISED)])
def test_quantised_ops_are_within_a_unit_of_onnx_runtime(op, samples):
    compared = 0
    for sample, name in samples:
        graph, wanted = interpreted(op, sample)
        if not any(sample.out_quants) or "beside the image" in sample.note:
            continue  # ONNX Runtime refuses pads as wide as the window
        if any(value.dtype not in ("int8", "uint8", "int32") for value in graph.values.values()):
            continue
        with named(name):
            try:
                data = export(graph)
            except trireme.ConvertError as error:
                assert op.name in str(error)
                continue
            names = [value.name for value in graph.input_values()]
            places = enumerate(sample.inputs)
            given = [x for at, x in places if x is not None and at not in sample.constants]
            (found,) = peer_answers(data, dict(zip(names, given, strict=True)))
            assert np.abs(found.astype(np.int64) - wanted[0]).max() <= 1
            compared += 1
    assert compared


def graph_of(*ops, shape=("n", 3)):
    builder = GraphBuilder("g")
    x = builder.input("x", TensorType(shape, "float32"))
    made = [builder.add(op, x, x, names=[f"y{i}"]) for i, op in enumerate(ops)]
    return builder.finish(*made)


def test_every_refusal_is_named_and_no_file_is_left(tmp_path):
    graph = graph_of("atan2", "add", "atan2")
    path = tmp_path / "m.onnx"
    path.write_bytes(b"old")
    with pytest.raises(trireme.ConvertError, match="2 of 3 nodes") as caught:
        trireme.export(graph, path)
    assert len(caught.value.facts) == 2
    assert all(f"'y{i}' atan2" in str(caught.value) for i in (0, 2))
    assert path.read_bytes() == b"old" and [*tmp_path.iterdir()] == [path]


def test_symbols_and_opset_are_in_the_file():
    model = onnx.load_from_string(export(graph_of("add")))
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "n"
    assert [(one.domain, one.version) for one in model.opset_import] == [("", OPSET)]


def test_an_output_that_is_an_input_or_is_given_twice():
    builder = GraphBuilder("g")
    x = builder.input("x", TensorType((2,), "float32"))
    y = builder.add("relu", x, names=["y"])
    model = onnx.load_from_string(export(builder.finish(x, y, y)))
    onnx.checker.check_model(model, full_check=True)
    names = [one.name for one in model.graph.output]
    assert len(set(names)) == 3 and "y" in names and "x" not in names


def test_another_suffix_is_refused(tmp_path):
    with pytest.raises(trireme.ConvertError, match="known suffixes: .onnx"):
        trireme.export(graph_of("add"), tmp_path / "m.bin")


def test_the_command_writes_onnx(tmp_path):
    source, target = tmp_path / "m.trm", tmp_path / "m.onnx"
    trireme.save(graph_of("add", shape=(2, 3)), source)
    assert main(["convert", str(source), "-o", str(target)]) == 0
    onnx.checker.check_model(str(target), full_check=True)


def test_the_list_of_ops_holds_the_usual_ones():
    assert {"conv", "matmul", "softmax", "fully_connected"} <= set(written_ops())
    assert not {"python", "variable", "loop"} & set(written_ops())
