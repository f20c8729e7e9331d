"""Values whose rank only a run tells, in models of ONNX, beside ONNX Runtime.

An If may give values of unlike rank, and torch.onnx writes `x.squeeze(1)` of an open axis so.
"""

import json

import numpy as np
import onnxruntime
import pytest
from commands import call
from onnx import TensorProto, helper, numpy_helper

import trireme
from trireme.compat import onnxruntime as compat

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2.5


def ints(name, *values):
    return numpy_helper.from_array(np.array(values, np.int64), name)


def node(op, inputs, outputs, **attrs):
    return helper.make_node(op, inputs.split(), outputs.split(), **attrs)


def branch(output, *nodes):
    out = helper.make_tensor_value_info(output, FLOAT, None)
    return helper.make_graph(list(nodes), f"branch_{output}", [], [out])


def model(nodes, inputs, outputs, weights=()):
    infos = [helper.make_tensor_value_info(n, *of) for n, of in inputs.items()]
    outs = [helper.make_tensor_value_info(n, kind, None) for n, kind in outputs.items()]
    graph = helper.make_graph(list(nodes), "g", infos, outs, list(weights))
    imports = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()


def assert_like_peer(data, runs, **options):
    peer = onnxruntime.InferenceSession(data)
    with trireme.Session(data, **options) as session:
        for feeds in runs:
            wanted = peer.run(None, feeds)
            for got, want in zip(session.run(feeds).values(), wanted, strict=True):
                assert got.shape == want.shape and got.dtype == want.dtype
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


FLAT = ints("flat", 6)
WEIGHTS = [
    FLAT,
    ints("rows", -1, 2),
    ints("one", 1),
    ints("zero", 0),
    numpy_helper.from_array(np.array([1.5, -2, 0.25], np.float32), "w"),
    numpy_helper.from_array(np.ones((3, 2), np.float32), "m"),
]
CHOICE = node(
    "If",
    "c",
    "y",
    then_branch=branch("a", node("Relu", "x", "a")),
    else_branch=branch("b", node("Reshape", "x flat", "b")),
)
"""y is x of [2,3] or of [6]."""
READERS = {
    "none": ([], {"y": FLOAT}),
    "one by one": ([node("Exp", "y", "e"), node("Neg", "e", "z")], {"z": FLOAT}),
    "Shape": ([node("Shape", "y", "z")], {"z": INT64}),
    "Size": ([node("Size", "y", "z")], {"z": INT64}),
    "Reshape": ([node("Reshape", "y rows", "r"), node("Relu", "r", "z")], {"z": FLOAT}),
    "back to x": (
        [node("Shape", "x", "s"), node("Reshape", "y s", "r"), node("Add", "r x", "z")],
        {"z": FLOAT, "y": FLOAT},
    ),
    "Add": ([node("Add", "y one_float", "z")], {"z": FLOAT}),
    "MatMul": (
        [node("Reshape", "y back", "r"), node("MatMul", "r m", "p"), node("Relu", "p", "z")],
        {"z": FLOAT},
    ),
    "ReduceSum": ([node("ReduceSum", "y", "z", keepdims=0)], {"z": FLOAT}),
    "Unsqueeze": ([node("Unsqueeze", "y zero", "z")], {"z": FLOAT}),
    "Gather": ([node("Gather", "y zero", "z", axis=0)], {"z": FLOAT}),
    "Softmax": ([node("Softmax", "y", "s", axis=-1), node("Mul", "s y", "z")], {"z": FLOAT}),
    "Concat": ([node("Concat", "y y", "z", axis=0)], {"z": FLOAT}),
    "another If": (
        [
            node(
                "If",
                "d",
                "z",
                then_branch=branch("ta", node("Unsqueeze", "y zero", "ta")),
                else_branch=branch("tb", node("Abs", "y", "tb")),
            ),
            node("Tanh", "z", "t"),
        ],
        {"t": FLOAT, "z": FLOAT},
    ),
}
EXTRA = [
    numpy_helper.from_array(np.array(1.5, np.float32), "one_float"),
    ints("back", 2, 3),
]


def choice_runs():
    flags = [(c, d) for c in (True, False) for d in (True, False)]
    return [{"x": X * k, "c": np.array(c), "d": np.array(d)} for k, (c, d) in enumerate(flags, 1)]


def choice_model(readers, shape=(2, 3)):
    nodes, outputs = READERS[readers]
    inputs = {"x": (FLOAT, shape), "c": (BOOL, ()), "d": (BOOL, ())}
    return model([CHOICE, *nodes], inputs, outputs, [*WEIGHTS, *EXTRA])


@pytest.mark.parametrize("readers", READERS)
def test_what_reads_a_branch_of_either_rank(readers):
    assert_like_peer(choice_model(readers), choice_runs())


@pytest.mark.parametrize("readers", READERS)
def test_what_reads_it_with_open_shapes(readers):
    assert_like_peer(choice_model(readers, ("n", "m")), choice_runs())


@pytest.mark.parametrize("readers", READERS)
def test_a_saved_graph_runs_as_the_model(readers, tmp_path):
    data = choice_model(readers)
    path = tmp_path / "model.trm"
    trireme.save(trireme.convert(data), path)
    peer = onnxruntime.InferenceSession(data)
    with trireme.Session(path) as session:
        for feeds in choice_runs():
            for got, want in zip(session.run(feeds).values(), peer.run(None, feeds), strict=True):
                assert got.shape == want.shape
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_branches_inside_branches():
    inner = node(
        "If",
        "d",
        "i",
        then_branch=branch("ia", node("Exp", "x", "ia")),
        else_branch=branch("ib", node("Reshape", "x flat", "ib")),
    )
    outer = node(
        "If",
        "c",
        "y",
        then_branch=branch("oa", inner, node("Neg", "i", "oa")),
        else_branch=branch("ob", node("ReduceSum", "x", "ob", keepdims=0)),
    )
    inputs = {"x": (FLOAT, (2, 3)), "c": (BOOL, ()), "d": (BOOL, ())}
    data = model([outer, node("Relu", "y", "z")], inputs, {"z": FLOAT}, [FLAT])
    assert_like_peer(data, choice_runs())


def squeeze_model(*after, outputs=None):
    then = branch("o", node("Squeeze", "x one", "o"))
    other = branch("p", node("Identity", "x", "p"))
    nodes = [
        node("Shape", "x", "sizes"),
        node("Gather", "sizes one", "size"),
        node("Equal", "size one", "is_one"),
        node("If", "is_one", "y", then_branch=then, else_branch=other),
        *after,
    ]
    inputs = {"x": (FLOAT, ["a", "b", 3])}
    return model(nodes, inputs, outputs or {"y": FLOAT}, WEIGHTS)


SHAPES = ((2, 1, 3), (2, 4, 3), (1, 1, 3), (5, 2, 3), (2, 4, 3), (7, 1, 3))


def squeeze_runs(shapes=SHAPES):
    rng = np.random.default_rng(0)
    return [{"x": rng.standard_normal(shape).astype(np.float32)} for shape in shapes]


@pytest.mark.parametrize("devices", [["cpu"], ["npu", "opencl", "cpu"]], ids=["cpu", "all"])
def test_a_squeeze_of_an_open_axis(devices):
    data = squeeze_model(node("Relu", "y", "r"), node("MatMul", "r m", "z"), outputs={"z": FLOAT})
    assert_like_peer(data, squeeze_runs(), devices=devices)


def test_each_branch_that_shapes_choose_has_a_program_for_every_shape():
    data = squeeze_model(node("Relu", "y", "z"), outputs={"z": FLOAT})
    with trireme.Session(data, devices=["cpu"]) as session:
        for feeds in squeeze_runs():
            session.run(feeds)
            assert [stage.tier for stage in session.stages] == ["polymorphic"]


@pytest.mark.parametrize("dims", [("a", "b<=1", 3), ("a", "2<=b<=5", 3), ("a<=9", "b<=9", 3)])
def test_bounds_that_may_decide_the_branch(dims):
    shapes = {"b<=1": SHAPES[:1], "2<=b<=5": SHAPES[1:2]}.get(dims[1], SHAPES)
    assert_like_peer(squeeze_model(), squeeze_runs(shapes), shapes={"x": dims})


def test_a_loop_over_a_branch_of_either_rank():
    """Each turn squeezes a row where the turn is even; its sum is the row of the turn."""
    parity = [
        node("Mod", "turn two", "odd"),
        node("Equal", "odd nought", "is_even"),
        node(
            "If",
            "is_even",
            "y",
            then_branch=branch("a", node("Reshape", "state flat", "a")),
            else_branch=branch("b", node("Neg", "state", "b")),
        ),
        node("ReduceSum", "y", "sum", keepdims=0),
        node("Reshape", "y same", "next"),
        node("Identity", "going", "on"),
    ]
    value = helper.make_tensor_value_info
    ins = [value("turn", INT64, ()), value("going", BOOL, ()), value("state", FLOAT, (2, 3))]
    outs = [value("on", BOOL, ()), value("next", FLOAT, (2, 3)), value("sum", FLOAT, ())]
    body = helper.make_graph(parity, "body", ins, outs)
    loop = node("Loop", "n always x", "last sums", body=body)
    weights = [
        *WEIGHTS,
        ints("same", 2, 3),
        numpy_helper.from_array(np.array(2), "two"),
        numpy_helper.from_array(np.array(0), "nought"),
        numpy_helper.from_array(np.array(True), "always"),
    ]
    inputs = {"x": (FLOAT, (2, 3)), "n": (INT64, ())}
    data = model([loop], inputs, {"last": FLOAT, "sums": FLOAT}, weights)
    assert_like_peer(data, [{"x": X, "n": np.array(n)} for n in (1, 3, 4)])


def test_the_command_line_tells_of_it(tmp_path, capsys):
    path = tmp_path / "model.onnx"
    path.write_bytes(choice_model("none"))
    assert "output y float32[...]" in call(capsys, "info", str(path))[1]
    found = json.loads(call(capsys, "info", str(path), "--json")[1])
    assert found["outputs"] == [{"name": "y", "shape": None, "dtype": "float32"}]


def test_the_look_alike_declares_it_as_the_peer():
    data = choice_model("back to x")
    mine, peer = compat.InferenceSession(data), onnxruntime.InferenceSession(data)
    for one, other in zip(mine.get_outputs(), peer.get_outputs(), strict=True):
        assert (one.name, one.shape, one.type) == (other.name, other.shape, other.type)
