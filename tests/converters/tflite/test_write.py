"""Written TensorFlow Lite files beside LiteRT: samples of ops, models, and the file's own facts."""

import numpy as np
import pytest
import tflite
from litert import interpreter, litert_run, random_inputs
from op_samples import assert_close, by_op, named, sample_graph
from zoo import zoo_path

import trireme
from trireme.converters.tflite.write import export
from trireme.converters.tflite.write.table import RULES, written_ops
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Quant, TensorType
from trireme.ir.interpreter import interpret
from trireme.tools.cli import main

pytest.importorskip("ai_edge_litert")
SEED = 20261125
OTHER_NANS = ("NaN", "low above high", "upper limit", "lower limit", "^3", "^4", "float32 to int8")
"""Samples of NaN, infinities and numbers out of range, for which LiteRT has other rules."""
NOT_RUN = {
    "arg_max": "LiteRT refuses an empty axis",
    "arg_min": "LiteRT refuses an empty axis",
    "floor_div": "LiteRT refuses a divisor of 0 at run time",
    "gather_nd": "LiteRT refuses indices from the end at run time",
    "pow": "LiteRT refuses negative integer exponents at run time",
    "rfft2d": "LiteRT refuses lengths that are no powers of two",
}
DEFAULT_KERNELS = {"lrn", "ceil", "celu", "elu", "selu", "round", "range"}
"""Ops whose operators LiteRT's reference kernels lack, or compute as no other kernel does (LRN)."""
WITHIN_A_UNIT = {"resize"}
"""LiteRT's bilinear kernel for uint8 works in float32."""
LITERT_FAULTS = {("reduce_sum", "int8")}
"""LiteRT 2.3's reference kernel of int8 SUM gives -1 everywhere."""


def outputs_of(op):
    least, most = op.out_arity
    return None if most is None or least != 1 else 1


def litert_answers(data, feeds, reference):
    made = interpreter(data, reference=reference, keep=True)
    for detail, array in zip(made.get_input_details(), feeds, strict=True):
        made.set_tensor(detail["index"], array)
    made.invoke()
    return [made.get_tensor(detail["index"]) for detail in made.get_output_details()]


def compare_sample(op, sample):
    """Compare LiteRT's answers for the file of a sample with ours; whether they were compared."""
    graph, feeds = sample_graph(op, sample, outputs_of(op))
    try:
        data = export(graph)
    except trireme.ConvertError as error:
        assert op.name in str(error)
        return False
    dtype = graph.type(graph.outputs[0]).dtype
    if any(word in sample.note for word in OTHER_NANS) or (op.name, dtype) in LITERT_FAULTS:
        return False
    try:
        found = litert_answers(data, feeds.values(), op.name not in DEFAULT_KERNELS)
    except RuntimeError:
        assert op.name in NOT_RUN
        return False
    wanted = interpret(graph, feeds)
    for one, value in zip(found, graph.outputs, strict=True):
        right = wanted[value]
        if op.name in WITHIN_A_UNIT and right.dtype.kind in "iu":
            assert np.abs(one.astype(np.int64) - right).max() <= 1
        else:
            assert_close(one, right, 1e-5)
    return True


@pytest.mark.parametrize("op, samples", [*by_op(lambda op: op.name in RULES and not op.random)])
def test_samples(op, samples):
    compared = 0
    for sample, name in samples:
        if any(quant is not None and quant.rounding for quant in sample.out_quants):
            continue  # the format cannot say it
        with named(name):
            compared += compare_sample(op, sample)
    assert compared or op.name in NOT_RUN


ZOO = [
    "ad01_fp32",
    "ad01_int8",
    "deeplabv3_f32",
    "kws_dscnn_f32",
    "kws_dscnn_int8",
    "mobilenet_v1_0.25_224_f32",
    "mobilenet_v2_1.0_224_quant",
    "resnet8_cifar10_f32",
    "resnet8_cifar10_int8",
    "ssd_mobilenet_v1_quant",
    "tf2_mobilenet_v2_1.0_224_ptq",
    "vww_96_float",
    "vww_96_int8",
    "yamnet",
]


@pytest.mark.parametrize("reference", [True, False], ids=["reference", "default"])
@pytest.mark.parametrize("name", ZOO)
def test_models_of_the_zoo_give_the_same_bits(name, reference):
    path = zoo_path(f"{name}.tflite")
    feeds = random_inputs(path, SEED)
    wanted = litert_run(path, feeds, reference=reference)
    found = litert_run(export(trireme.convert(path)), feeds, reference=reference)
    assert found.keys() == wanted.keys()
    for key, right in wanted.items():
        np.testing.assert_array_equal(found[key], right)


def graph_of(*ops, shape=("n", 3)):
    builder = GraphBuilder("g")
    x = builder.input("x", TensorType(shape, "float32"))
    made = [builder.add(op, x, x, names=[f"y{i}"]) for i, op in enumerate(ops)]
    return builder.finish(*made)


def test_every_refusal_is_named_and_no_file_is_left(tmp_path):
    builder = GraphBuilder("g")
    x = builder.input("x", TensorType((2, 3), "float32"))
    made = [builder.add(op, x, names=[f"y{i}"]) for i, op in enumerate(("erf", "abs", "acos"))]
    path = tmp_path / "m.tflite"
    path.write_bytes(b"old")
    with pytest.raises(trireme.ConvertError, match="2 of 3 nodes") as caught:
        trireme.export(builder.finish(*made), path)
    assert len(caught.value.facts) == 2
    assert "'y0' erf" in str(caught.value) and "'y2' acos" in str(caught.value)
    assert path.read_bytes() == b"old" and [*tmp_path.iterdir()] == [path]


def test_control_flow_is_refused_with_a_sentence():
    def branch(op):
        inner = GraphBuilder(op)
        return inner.finish(inner.add(op, inner.input("x", TensorType((2, 3), "float32"))))

    builder = GraphBuilder("g")
    x = builder.input("x", TensorType((2, 3), "float32"))
    chosen = builder.input("chosen", TensorType((), "bool"))
    branches = {"then_branch": branch("abs"), "else_branch": branch("neg")}
    made = builder.add("if", chosen, x, names=["y"], **branches)
    with pytest.raises(trireme.ConvertError) as caught:
        export(builder.finish(made))
    assert "'y' if" in str(caught.value)
    assert "subgraphs, which its bodies would be, are not written" in str(caught.value)


def test_open_dimensions_take_any_size():
    made = interpreter(export(graph_of("add", "mul")))
    (detail,) = made.get_input_details()
    assert detail["shape_signature"].tolist() == [-1, 3]
    made.resize_tensor_input(detail["index"], [5, 3])
    made.allocate_tensors()
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    made.set_tensor(detail["index"], x)
    made.invoke()
    both = [made.get_tensor(one["index"]) for one in made.get_output_details()]
    np.testing.assert_array_equal(both, [x + x, x * x])


def test_the_file_has_a_signature_a_runtime_and_aligned_data():
    builder = GraphBuilder("g")
    x = builder.input("x", TensorType((2, 3), "float32"))
    w = builder.constant("w", np.ones((5, 3), np.float32))
    data = export(builder.finish(builder.add("fully_connected", x, w, names=["y"])))
    runner = interpreter(data).get_signature_runner("serving_default")
    assert runner(x=np.ones((2, 3), np.float32))["y"].tolist() == [[3] * 5] * 2
    model = tflite.Model.GetRootAs(data, 0)
    assert model.Metadata(0).Name() == b"min_runtime_version"
    version = model.Buffers(model.Metadata(0).Buffer()).DataAsNumpy().tobytes()
    assert version.rstrip(b"\0") == b"1.5.0" and len(version) == 16
    start = data.find(np.ones(15, np.float32).tobytes())
    assert start % 16 == 0


def test_an_output_that_is_an_input_or_is_given_twice():
    builder = GraphBuilder("g")
    x = builder.input("x", TensorType((2,), "float32"))
    y = builder.add("relu", x, names=["y"])
    data = export(builder.finish(x, y, y))
    made = interpreter(data)
    assert len({detail["index"] for detail in made.get_output_details()}) == 3
    given = np.array([-1, 2], np.float32)
    found = litert_answers(data, [given], True)
    np.testing.assert_array_equal(found, [given, [0, 2], [0, 2]])


def test_versions_are_those_of_the_dtypes():
    quant = Quant((0.1,), (3,))
    builder = GraphBuilder("g")
    x = builder.input("x", TensorType((1, 4, 4, 2), "int8", quant))
    y = builder.add(
        "average_pool",
        x,
        kernel=(2, 2),
        strides=(2, 2),
        pads=(0,) * 4,
        dilations=(1, 1),
        quants=[quant],
    )
    model = tflite.Model.GetRootAs(export(builder.finish(y)), 0)
    code = model.OperatorCodes(0)
    assert (code.BuiltinCode(), code.Version()) == (tflite.BuiltinOperator.AVERAGE_POOL_2D, 2)


def small_network(rng, layout="NCHW"):
    """A convolutional network whose ops need every part of the int8 scheme."""
    b = GraphBuilder("small")

    def weights(*shape):
        return b.constant("w", rng.standard_normal(shape).astype(np.float32) * 0.3)

    def conv(x, w, count, *, groups=1, strides=(1, 1), pads=(1, 1, 1, 1), activation="relu"):
        bias = b.constant("b", rng.standard_normal(count).astype(np.float32) * 0.1)
        return b.add(
            "conv",
            x,
            w,
            bias,
            strides=strides,
            pads=pads,
            dilations=(1, 1),
            groups=groups,
            layout=layout,
            activation=activation,
        )

    window = {"strides": (2, 2), "dilations": (1, 1), "layout": layout}
    x = b.input("image", TensorType((1, 3, 16, 16), "float32"))
    a = conv(x, weights(8, 3, 3, 3), 8, strides=(2, 2))
    d = conv(a, weights(8, 1, 3, 3), 8, groups=8, activation="relu6")
    joined = b.add("concat", b.add("add", a, d, activation="relu"), d, axis=1)
    pooled = b.add("max_pool", joined, kernel=(3, 3), pads=(1, 1, 1, 1), **window)
    e = b.add("hard_swish", conv(pooled, weights(12, 16, 1, 1), 12, pads=(0,) * 4, activation=""))
    e = b.add("average_pool", e, kernel=(2, 2), pads=(0,) * 4, **window)
    flat = b.add("flatten", e, axis=1)
    y = b.add("fully_connected", flat, weights(5, 48), b.constant("c", np.zeros(5, np.float32)))
    return b.finish(b.add("softmax", y, axis=-1, names=["y"]))


@pytest.mark.parametrize("io", ["float32", "int8"])
def test_a_quantised_network_has_the_bits_of_cpu_opencl_and_npu(tmp_path, io):
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    graph = small_network(rng)
    samples = [{"image": rng.standard_normal((1, 3, 16, 16)).astype(np.float32)} for _ in range(8)]
    made = trireme.quantize(graph, samples, io=io, ranges="min_max")
    path = tmp_path / "m.tflite"
    trireme.export(made, path)
    (value,) = made.input_values()
    for _ in range(4):
        if io == "int8":
            feed = rng.integers(-128, 128, (1, 3, 16, 16)).astype(np.int8)
        else:
            feed = rng.standard_normal((1, 3, 16, 16)).astype(np.float32)
        (right,) = litert_run(path, {value.name: feed}).values()
        for device in ("cpu", "opencl", "npu"):
            chosen = [*dict.fromkeys([device, "cpu"][: 1 if io == "int8" else 2])]
            with trireme.Session(made, devices=chosen) as session:
                (found,) = session.run({value.name: feed}).values()
            np.testing.assert_array_equal(found, right, err_msg=device)


def test_the_command_writes_tflite(tmp_path):
    source, target = tmp_path / "m.trm", tmp_path / "m.tflite"
    trireme.save(graph_of("add", shape=(2, 3)), source)
    assert main(["convert", str(source), "-o", str(target)]) == 0
    (y,) = litert_run(target, {"x": np.ones((2, 3), np.float32)}).values()
    assert y.tolist() == [[2] * 3] * 2


def test_the_list_of_ops_holds_the_usual_ones():
    assert {"conv", "matmul", "softmax", "fully_connected"} <= set(written_ops())
    assert not {"python", "variable", "loop"} & set(written_ops())
