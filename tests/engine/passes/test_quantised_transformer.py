"""A vision transformer that ONNX Runtime's quantize_static writes, every op between Q and DQ.

ONNX Runtime without its optimiser computes such a model in float32, as the nodes say, and is the
oracle. Folding into integers rounds as TensorFlow Lite does: a node given the same integers
differs by one unit, near a tie alone. Later layers multiply such units, so the end is compared by
its signal-to-noise ratio. ONNX Runtime's own optimiser moves the results as far.
"""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from ort_models import HEADS, HIDDEN, SEED, Net

import trireme
from trireme import Session
from trireme.ir.graph import Graph, TensorType
from trireme.ir.interpreter import evaluate, interpret, run_reference
from trireme.ops.integer import dequantized
from trireme.passes.pipeline import PASSES, optimise

quantization = pytest.importorskip("onnxruntime.quantization")

PATCHES = 17
NEAR_TIE = 0.01
"""In units of the output: two roundings of a product, the first to a fraction of a unit."""
NOISE = 0.1
"""The most noise, as a share of the signal; a wrong scale or zero point gives several times it."""
SAME = 1e-3
"""The noise of equal integers. One level that differs gives 0.02: a float beside a tie."""
CASES = [(False, "QUInt8"), (True, "QInt8")]


def _norm(net, x):
    scale = net.constant(net.rng.uniform(0.5, 1.5, HIDDEN).astype(np.float32))
    return net.op("LayerNormalization", x, scale, net.weight(HIDDEN, scale=0.1))


def _attention(net, x):
    split = net.constant(np.array([0, 0, HEADS, HIDDEN // HEADS]))
    parts = []
    for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        part = net.op("Reshape", net.linear(x, HIDDEN, HIDDEN), split)
        parts.append(net.op("Transpose", part, perm=perm))
    q, k, v = parts
    scores = net.op("Mul", net.op("MatMul", q, k), net.constant(np.float32(0.25)))
    y = net.op("MatMul", net.op("Softmax", scores, axis=-1), v)
    y = net.op(
        "Reshape", net.op("Transpose", y, perm=[0, 2, 1, 3]), net.constant(np.array([0, 0, HIDDEN]))
    )
    return net.linear(y, HIDDEN, HIDDEN)


def _gelu(net, x):
    inner = net.op("Erf", net.op("Div", x, net.constant(np.float32(2**0.5))))
    y = net.op("Mul", x, net.op("Add", inner, net.constant(np.float32(1))))
    return net.op("Mul", y, net.constant(np.float32(0.5)))


def vision_transformer(layers=2):
    net = Net()
    w = net.weight(HIDDEN, 3, 8, 8, scale=0.1)
    x = net.op("Conv", "x", w, net.weight(HIDDEN, scale=0.1), strides=[8, 8])
    x = net.op(
        "Transpose", net.op("Reshape", x, net.constant(np.array([0, HIDDEN, -1]))), perm=[0, 2, 1]
    )
    x = net.op("Concat", net.weight(1, 1, HIDDEN, scale=0.5), x, axis=1)
    x = net.op("Add", x, net.weight(1, PATCHES, HIDDEN, scale=0.5))
    for _ in range(layers):
        x = net.op("Add", _attention(net, _norm(net, x)), x)
        y = _gelu(net, net.linear(_norm(net, x), HIDDEN, 2 * HIDDEN))
        x = net.op("Add", net.linear(y, 2 * HIDDEN, HIDDEN), x)
    x = net.op("Gather", _norm(net, x), net.constant(np.array(0)), axis=1)
    x = net.op("Gemm", x, net.weight(10, HIDDEN, scale=0.2), net.weight(10, scale=0.1), transB=1)
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 32, 32])
    return net.model([image], x, [1, 10])


def images(seed, count):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((1, 3, 32, 32)).astype(np.float32) for _ in range(count)]


class Samples(quantization.CalibrationDataReader):
    def __init__(self):
        self.left = [{"x": image} for image in images(SEED, 8)]

    def get_next(self):
        return self.left.pop() if self.left else None


@pytest.fixture(scope="module", params=CASES, ids=["per tensor", "per channel"])
def case(request, tmp_path_factory):
    """The path of a quantised model, images, and ONNX Runtime's results without its optimiser."""
    print("seed", SEED)
    folder = tmp_path_factory.mktemp("vit")
    onnx.save(vision_transformer(), folder / "float.onnx")
    per_channel, kind = request.param
    quantization.quantize_static(
        folder / "float.onnx",
        folder / "model.onnx",
        Samples(),
        per_channel=per_channel,
        activation_type=getattr(quantization.QuantType, kind),
        weight_type=quantization.QuantType.QInt8,
    )
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    ort = onnxruntime.InferenceSession(
        folder / "model.onnx", options, providers=["CPUExecutionProvider"]
    )
    xs = images(SEED + 1, 7)
    return folder / "model.onnx", xs, [ort.run(None, {"x": x})[0] for x in xs]


def noise(found, wanted):
    return np.linalg.norm(np.subtract(found, wanted)) / np.linalg.norm(wanted)


def results(graph, xs):
    return [next(iter(run_reference(graph, {"x": x}).values())) for x in xs]


def test_each_other_pass_alone_has_the_results_of_onnx_runtime(case):
    path, xs, wanted = case
    graph = trireme.convert(path)
    for passes in ([], *([name] for name in PASSES if name != "quantize_folding")):
        made = optimise(graph, passes=passes)
        assert noise(results(made, xs[:1]), wanted[:1]) < 1e-5, passes


@pytest.mark.parametrize("passes", [["quantize_folding"], None], ids=["folding", "all"])
def test_a_folded_node_differs_by_one_unit_near_ties_alone(case, passes):
    path, xs, _ = case
    graph = optimise(trireme.convert(path), passes=passes)
    for x in xs[:3]:
        values = values_of(graph, x)
        for node in graph.nodes:
            quant = graph.values[node.outputs[0]].type.quant
            if quant is not None and node.op != "quantize":
                near_ties_alone(graph, node, values)


def values_of(graph, x):
    """The array of every value in a run of the graph, by id."""
    values = {i: value.data for i, value in graph.values.items() if value.data is not None}
    values[graph.inputs[0]] = x

    def keep(node, made):
        values.update(zip(node.outputs, made, strict=True))

    interpret(graph, {graph.inputs[0]: x}, keep)
    return values


def units_of(graph, node, values):
    """The result of a node in float units of its output, given the integers of its inputs."""
    types = dict(graph.values)
    for i in (*node.used, *node.outputs):
        if types[i].type.quant is not None:
            floats = TensorType(types[i].type.shape, "float32")
            types[i] = replace(types[i], type=floats, data=None)
    inputs = [None if i is None else floats_of(graph, i, values) for i in node.inputs]
    (real,) = evaluate(Graph("", (), (), (), types), node, inputs)
    y = graph.values[node.outputs[0]].type
    return real.astype(np.float64) / y.quant.scale + y.quant.zero_point


def rounded(units, y):
    limits = np.iinfo(y.dtype)
    return np.clip(np.rint(units), limits.min, limits.max).astype(y.dtype)


def near_ties_alone(graph, node, values):
    """Compare integers with the floats that the same op makes of dequantised inputs."""
    units = units_of(graph, node, values)
    wanted = rounded(units, graph.values[node.outputs[0]].type).astype(np.int64)
    found = values[node.outputs[0]].astype(np.int64)
    where = np.abs(units[found != wanted] % 1 - 0.5)
    assert (np.abs(found - wanted) <= 1).all(), str(node)
    assert (where < NEAR_TIE).all(), (str(node), where.max())


def result_in_floats(graph, x):
    """The result of the graph, whose ops on integers are computed as floats and rounded once."""
    values = {i: value.data for i, value in graph.values.items() if value.data is not None}
    values[graph.inputs[0]] = x
    for node in graph.nodes:
        y = graph.values[node.outputs[0]].type
        if y.quant is not None and node.op != "quantize":
            values[node.outputs[0]] = rounded(units_of(graph, node, values), y)
        else:
            arrays = [None if i is None else values[i] for i in node.inputs]
            values.update(zip(node.outputs, evaluate(graph, node, arrays), strict=True))
    return values[graph.outputs[0]]


def test_the_folded_graph_computed_in_floats_is_the_model(case):
    """Wrong scales, zero points and biases show in every image, a float beside a tie in one."""
    path, xs, wanted = case
    graph = optimise(trireme.convert(path), passes=["quantize_folding"])
    apart = [noise(result_in_floats(graph, x), y) for x, y in zip(xs, wanted, strict=True)]
    print("noise", apart)
    assert np.median(apart) < SAME


def floats_of(graph, value, values):
    type = graph.values[value].type
    return values[value] if type.quant is None else dequantized(values[value], type)


def test_a_session_on_default_devices_has_the_signal_of_onnx_runtime(case):
    path, xs, wanted = case
    for source in (path, path.read_bytes()):
        with Session(source, threads=1) as session:
            found = [next(iter(session.run({"x": x}).values())) for x in xs]
        made = noise(found, wanted)
        print("noise", made)
        assert made < NOISE
