"""Models that ONNX Runtime's quantize_dynamic writes, with open sizes.

Two oracles. A session made for a shape has the same bits. ONNX Runtime has the same levels, but
where a value lies within the rounding of float32 between two levels: there its own optimiser
changes levels too, and one level of 255 changes results in the third digit. Signed weights keep to
seven bits: without VNNI ONNX Runtime adds pairs of products with uint8 in words that saturate.
"""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from ort_models import PLACES, SEED, WORDS, bert

from trireme import Session

quantization = pytest.importorskip("onnxruntime.quantization")

SHAPES = [(1, 1), (1, PLACES), (2, 7), (5, 3), (3, PLACES), (8, 1), (4, 13), (16, 11)]
NEAR_TIE = 1e-4
"""A float32 near 255 is rounded to 2e-5; a few operations before add as much again."""
CLOSE = 1e-5


def shapes_drawn(seed, count):
    rng = np.random.default_rng(seed)
    return [(int(rng.integers(1, 20)), int(rng.integers(1, PLACES + 1))) for _ in range(count)]


def feeds_of(shape, seed=SEED):
    rng = np.random.default_rng([seed, *shape])
    feeds = {"ids": rng.integers(0, WORDS, shape), "mask": rng.integers(0, 2, shape)}
    feeds["mask"][:, 0] = 1
    return feeds


@pytest.fixture(scope="module", params=["QInt8", "QUInt8"])
def model(request, tmp_path_factory):
    """The path of a quantised model with open batch and seq."""
    print("seed", SEED)
    folder = tmp_path_factory.mktemp(request.param)
    onnx.save(bert(is_open=True), folder / "float.onnx")
    kind = getattr(quantization.QuantType, request.param)
    quantization.quantize_dynamic(
        folder / "float.onnx",
        folder / "model.onnx",
        weight_type=kind,
        reduce_range=request.param == "QInt8",
    )
    return folder / "model.onnx"


def peer(model, level="ORT_DISABLE_ALL"):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def test_a_session_made_for_a_shape_has_the_same_bits(model):
    with Session(model, threads=1) as session:
        for shape in [*SHAPES, *shapes_drawn(SEED, 12)]:
            feeds = feeds_of(shape)
            (found,) = session.run(feeds).values()
            assert session.stages[0].tier == "polymorphic"
            with Session(model, shapes=dict.fromkeys(feeds, shape), threads=1) as fixed:
                (wanted,) = fixed.run(feeds).values()
            np.testing.assert_array_equal(found, wanted, err_msg=str(shape))


def test_threads_keep_the_bits(model):
    with Session(model, threads=1) as one, Session(model, threads=2) as two:
        for shape in SHAPES:
            (found,), (wanted,) = (s.run(feeds_of(shape)).values() for s in (two, one))
            np.testing.assert_array_equal(found, wanted, err_msg=str(shape))


def watched(path):
    """The model with the input and the results of each DynamicQuantizeLinear as outputs."""
    model = onnx.load(path)
    nodes = [node for node in model.graph.node if node.op_type == "DynamicQuantizeLinear"]
    types = {name: TensorProto.FLOAT for node in nodes for name in (node.input[0], node.output[1])}
    types |= dict.fromkeys((name for n in nodes for name in n.output[::2]), TensorProto.UINT8)
    known = {value.name for value in model.graph.output}
    made = (helper.make_tensor_value_info(n, t, None) for n, t in types.items() if n not in known)
    model.graph.output.extend(made)
    return model.SerializeToString(), [(node.input[0], *node.output) for node in nodes]


def test_levels_differ_from_onnx_runtime_at_ties_alone(model):
    watching, rounded = watched(model)
    ort, ties = peer(watching), 0
    names = [output.name for output in ort.get_outputs()]
    with Session(watching, threads=1) as session:
        for shape in [*SHAPES, *shapes_drawn(SEED + 1, 40)]:
            feeds = feeds_of(shape)
            wanted = dict(zip(names, ort.run(None, feeds), strict=True))
            ties += differ_at_ties_alone(session.run(feeds), wanted, rounded)
    print(ties, "shapes with a level that differs")


def differ_at_ties_alone(found, wanted, rounded):
    """Whether a level differs; what is rounded up to that one is the same, and it is a tie."""
    for x, levels, step, zero in rounded:
        np.testing.assert_allclose(found[x], wanted[x], rtol=0, atol=CLOSE)
        np.testing.assert_allclose(found[step], wanted[step], rtol=CLOSE)
        np.testing.assert_array_equal(found[zero], wanted[zero])
        apart = np.flatnonzero(found[levels] != wanted[levels])
        if apart.size:
            mine, theirs = (d[levels].reshape(-1)[apart].astype(int) for d in (found, wanted))
            quotients = wanted[x].reshape(-1)[apart].astype(np.float64) / wanted[step]
            assert (np.abs(mine - theirs) == 1).all()
            assert (np.abs(quotients - np.floor(quotients) - 0.5) < NEAR_TIE).all()
            return True
    (y,) = set(found) - {name for names in rounded for name in names}
    np.testing.assert_allclose(found[y], wanted[y], rtol=0, atol=CLOSE)
    return False


def test_onnx_runtime_given_our_values_has_our_levels(model):
    watching, rounded = watched(model)
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "step", "zero"])
    x, step = (helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("x", "step"))
    made = (helper.make_tensor_value_info(n, TensorProto.UINT8, None) for n in ("y", "zero"))
    graph = helper.make_graph([node], "rounds", [x], [step, *made])
    alone = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    ort = peer(alone.SerializeToString())
    with Session(watching, threads=1) as session:
        for shape in SHAPES:
            found = session.run(feeds_of(shape))
            for value, *names in rounded:
                answers = ort.run(["y", "step", "zero"], {"x": found[value]})
                for name, answer in zip(names, answers, strict=True):
                    np.testing.assert_array_equal(found[name], answer, err_msg=name)
