"""Products of integers that make floats: their bits, their files, and when they are chosen."""

import ai_edge_litert.interpreter as litert
import numpy as np
import onnxruntime
import pytest
from float_graphs import conv_net, encoder_block, samples_of

import trireme
from trireme.ir.interpreter import run_reference
from trireme.model_file import dumps, loads
from trireme.quantiser.statistics import watched
from trireme.support.errors import GraphError

SEED = 11


@pytest.fixture(scope="module")
def net():
    return encoder_block(SEED)


@pytest.fixture(scope="module")
def made(net):
    return trireme.quantize(net, samples_of(net, 8, SEED), products="float32", ranges="min_max")


def products_of(graph):
    return [node for node in graph.nodes if node.op in ("conv", "fully_connected")]


def feeds_of(graph):
    return {name: array[0] for name, array in samples_of(graph, 1, SEED + 1).items()}


def test_products_read_integers_and_make_floats(made):
    assert len(products_of(made)) == 4
    for node in products_of(made):
        x, w, bias = (made.values[i] for i in node.inputs)
        assert (x.dtype, w.dtype, bias.dtype) == ("int8", "int8", "float32")
        assert made.type(node.outputs[0]).quant is None
    shared = {node.used[0] for node in products_of(made)}
    assert len(shared) == 3, "two products share the integers of the norm"
    assert made.quantization.products == "float32"
    assert not [node for node in made.nodes if node.op == "dequantize"]


def test_products_have_the_bits_of_the_reference(made):
    """Their sums are exact, and each further step rounds as the reference does."""
    (first, *_) = products_of(made)
    part, _ = watched(made, [first.outputs[0]])
    feeds = feeds_of(made)
    (want,) = run_reference(part, feeds).values()
    with trireme.Session(part, devices=["cpu"]) as session:
        assert np.array_equal(*session.run(feeds).values(), want)
    with trireme.Session(made, devices=["cpu"]) as session:
        y = session.run(feeds)["y"]
    assert np.abs(y - run_reference(made, feeds)["y"]).max() < 0.03


def test_a_file_keeps_them(made):
    assert str(loads(dumps(made))) == str(loads(dumps(loads(dumps(made)))))
    feeds = feeds_of(made)
    assert np.array_equal(
        run_reference(loads(dumps(made)), feeds)["y"], run_reference(made, feeds)["y"]
    )


def test_onnx_runtime_reads_the_written_file(made, tmp_path):
    path = tmp_path / "made.onnx"
    trireme.export(made, path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feeds = feeds_of(made)
    (got,) = session.run(None, feeds)
    assert np.abs(got - run_reference(made, feeds)["y"]).max() < 0.03


def test_litert_reads_the_written_file(made, tmp_path):
    path = tmp_path / "made.tflite"
    trireme.export(made, path)
    program = litert.Interpreter(str(path))
    program.allocate_tensors()
    feeds = feeds_of(made)
    program.set_tensor(program.get_input_details()[0]["index"], feeds["x"])
    program.invoke()
    got = program.get_tensor(program.get_output_details()[0]["index"])
    assert np.abs(got - run_reference(made, feeds)["y"]).max() < 0.03


def test_floats_are_chosen_where_they_gain(net):
    samples = samples_of(net, 8, SEED)
    auto = trireme.quantize(net, samples, ranges="min_max", repairs="none").quantization
    assert auto.products == "rows" and {"float32", "integers"} <= set(auto.products_db)
    assert "products: rows, of" in str(auto) and "which the cpu alone runs" in str(auto)
    assert auto.products_db["rows"] > auto.products_db["float32"] + 0.3
    assert auto.products_db["float32"] > auto.products_db["integers"] + 0.3
    whole = trireme.quantize(net, samples, ranges="min_max", repairs="none", products="integers")
    ends = trireme.quantize(net, samples, ranges="min_max", repairs="none", io="int8")
    images = conv_net(SEED)
    convolutional = trireme.quantize(images, samples_of(images, 4, SEED), ranges="min_max")
    for one in (whole, ends, convolutional):
        assert one.quantization.products == "integers"


def test_a_budget_takes_no_products_of_floats(net):
    with pytest.raises(GraphError, match="a budget places integers"):
        trireme.quantize(
            net, samples_of(net, 8, SEED), products="float32", budget=20.0, metric="snr"
        )


def test_culprits_name_what_products_read(net):
    report = trireme.quantize(
        net, samples_of(net, 8, SEED), products="float32", ranges="min_max", explain=True
    ).quantization
    assert {row.op for row in report.culprits} == {"conv", "fully_connected"}


def test_other_devices_refuse_them_with_a_sentence(made):
    with pytest.raises(trireme.PlacementError, match="result is float32 runs on the cpu only"):
        trireme.Session(made, devices=["opencl"])


def for_devices(net, **machine):
    samples = samples_of(net, 8, SEED)
    return trireme.quantize(net, samples, ranges="min_max", repairs="none", **machine)


@pytest.mark.parametrize(
    ("machine", "why"),
    [
        ({"devices": ["npu"]}, "npu: tensors must be of a dtype that the NPU has (here float32"),
        ({"devices": ["cpu", "opencl"]}, "opencl: a product of integers whose result is float32"),
        ({"soc": "rk3588"}, "npu: its description has no float32"),
    ],
)
def test_a_named_device_of_integers_alone_gets_integers(net, machine, why):
    report = for_devices(net, **machine).quantization
    assert report.products == "integers" and not report.products_db
    assert why in report.products_why and report.products_why in str(report)


def test_an_npu_that_was_named_runs_the_products(net):
    made = for_devices(net, devices=["npu"])
    options = trireme.PlacementOptions(single_device="npu")
    with trireme.Session(made, devices=["npu", "cpu"], placement_options=options) as session:
        placed = session.plan.placement.device_of
        source = session.plan.placement.source
        products = [node for node in source.nodes if node.op in ("conv", "fully_connected")]
        assert len(products) == 4 and {placed[node.id] for node in products} == {"npu"}


def test_devices_of_both_forms_leave_the_error_to_decide(net):
    for machine in ({"devices": ["cpu"]}, {"soc": "jetson_orin_nano"}):
        report = for_devices(net, **machine).quantization
        assert report.products == "rows" and len(report.products_db) == 3
        assert "runs products of both forms, so the error decides" in report.products_why


def test_asking_for_a_form_wins_over_devices(net):
    report = for_devices(net, devices=["npu"], products="float32").quantization
    assert report.products == "float32" and not report.products_why
