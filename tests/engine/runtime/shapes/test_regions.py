"""A few nodes without a program for every shape leave one to the regions around them."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from open_graphs import random_graph, run

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.runtime.shapes.stage import regions
from trireme.support.errors import RunError

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
SEED = 20261124
node = helper.make_node


def model(nodes, inputs, outputs, weights):
    graph = helper.make_graph(
        nodes,
        "regions",
        [helper.make_tensor_value_info(*one) for one in inputs],
        [helper.make_tensor_value_info(name, type, None) for name, type in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    imports = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()


def peer(data):
    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])


def backbone(count=3, depth=16):
    """Convolutions over an open image [n, 3, h, w] to `f` [n, depth, h', w']."""
    rng, nodes, weights, last, have = np.random.default_rng(SEED), [], {}, "x", 3
    for i in range(count):
        weights[f"w{i}"] = rng.standard_normal((depth, have, 3, 3)).astype(np.float32) / 6
        made = "f" if i == count - 1 else f"r{i}"
        strides = [1 + i % 2] * 2
        nodes.append(node("Conv", [last, f"w{i}"], [f"c{i}"], pads=[1, 1, 1, 1], strides=strides))
        nodes.append(node("Relu", [f"c{i}"], [made]))
        last, have = made, depth
    return nodes, weights


def recurrent():
    """A text reader: convolutions, one of them transposed, an LSTM over the columns, a projection.

    A transposed convolution of single channels has no kernel for every shape, nor has the mean.
    """
    rng = np.random.default_rng(SEED)
    nodes, weights = backbone()
    weights |= {
        "wt": rng.standard_normal((16, 1, 11, 11)).astype(np.float32) / 11,
        "wi": rng.standard_normal((1, 512, 16)).astype(np.float32) / 4,
        "wr": rng.standard_normal((1, 512, 128)).astype(np.float32) / 12,
        "wo": rng.standard_normal((128, 600)).astype(np.float32) / 12,
        "axis": np.array([2], np.int64),
        "one": np.array([1], np.int64),
    }
    nodes += [
        node("ConvTranspose", ["f", "wt"], ["g"], group=16, pads=[5, 5, 5, 5]),
        node("ReduceMean", ["g", "axis"], ["rows"], keepdims=0),
        node("Transpose", ["rows"], ["steps"], perm=[2, 0, 1]),
        node("LSTM", ["steps", "wi", "wr"], ["all", "", ""], hidden_size=128),
        node("Squeeze", ["all", "one"], ["seen"]),
        node("MatMul", ["seen", "wo"], ["letters"]),
        node("Softmax", ["letters"], ["y"]),
    ]
    return model(nodes, [("x", FLOAT, ["n", 3, "h", "w"])], [("y", FLOAT), ("f", FLOAT)], weights)


def detector():
    """A backbone, boxes and scores, and their non-max suppression."""
    rng = np.random.default_rng(SEED)
    nodes, weights = backbone()
    weights |= {
        "wb": rng.standard_normal((4, 16, 1, 1)).astype(np.float32),
        "ws": rng.standard_normal((2, 16, 1, 1)).astype(np.float32),
        "boxes": np.array([0, 4, -1], np.int64),
        "scores": np.array([0, 2, -1], np.int64),
        "most": np.array([5], np.int64),
        "overlap": np.array([0.5], np.float32),
    }
    nodes += [
        node("Conv", ["f", "wb"], ["b0"]),
        node("Reshape", ["b0", "boxes"], ["b1"]),
        node("Transpose", ["b1"], ["b2"], perm=[0, 2, 1]),
        node("Conv", ["f", "ws"], ["s0"]),
        node("Reshape", ["s0", "scores"], ["s1"]),
        node("NonMaxSuppression", ["b2", "s1", "most", "overlap"], ["chosen"]),
    ]
    outputs = [("chosen", INT64), ("s1", FLOAT)]
    return model(nodes, [("x", FLOAT, ["n", 3, "h", "w"])], outputs, weights)


def images(count):
    rng = np.random.default_rng(SEED)
    for number in range(count):
        shape = (int(rng.integers(1, 3)), 3, *(int(n) for n in rng.integers(8, 60, 2)))
        shape = (2, 3, 40, 50) if number == count - 1 else shape
        yield {"x": rng.standard_normal(shape).astype(np.float32)}


@pytest.mark.parametrize("from_file", [False, True])
@pytest.mark.parametrize("made", [recurrent, detector])
def test_regions_agree_with_the_peer(made, from_file, tmp_path):
    print("seed", SEED)
    data = made()
    oracle, source = peer(data), data
    if from_file:
        source = tmp_path / "model.onnx"
        source.write_bytes(data)
    with Session(source) as session:
        names = [value.name for value in session.outputs]
        for feeds in images(6):
            found = session.run(feeds)
            for name, wanted in zip(names, oracle.run(names, feeds), strict=True):
                assert found[name].shape == wanted.shape
                np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=1e-4)
        tiers = [stage.tier for stage in session.stages]
        assert tiers[0] == "polymorphic"
        assert session.stages[0].why == ""
        if made is recurrent:
            assert tiers[1:] == ["specialised", "polymorphic"]
            assert "conv_transpose" in session.stages[1].why
        else:
            assert "non_max_suppression" in str(session.stages[-1])
        with pytest.raises(RunError, match="went through . regions"):
            _ = session.placement
        if made is recurrent:  # one program for these shapes
            assert session.at(feeds).placement is not None


def test_a_new_shape_compiles_the_nodes_between_alone(monkeypatch):
    opened = []
    plain = Session._open

    def counted(self, arguments, is_sibling=False):
        opened.append(arguments.model)
        plain(self, arguments, is_sibling)

    with Session(recurrent()) as session:
        for feeds in images(1):
            session.run(feeds)
        monkeypatch.setattr(Session, "_open", counted)
        session.run({"x": np.zeros((1, 3, 33, 47), np.float32)})
    assert [[one.op for one in graph.nodes if one.op == "conv"] for graph in opened] == [[]]


def test_a_run_again_has_the_same_bits():
    (feeds,) = images(1)
    with Session(recurrent()) as one, Session(recurrent()) as other:
        first = one.run(feeds)
        for again in (one.run(feeds), other.run(feeds)):
            assert all(np.array_equal(first[name], again[name]) for name in first)


def test_modes_that_name_nodes_take_the_whole_graph():
    (feeds,) = images(1)
    how = ExecutionOptions(execution="interactive")
    with Session(recurrent(), execution_options=how) as session, Session(recurrent()) as plain:
        found, wanted = session.run(feeds), plain.run(feeds)
        assert len(session.stages) == 1
        np.testing.assert_allclose(found["y"], wanted["y"], rtol=1e-5, atol=1e-6)


def test_bounds_and_arrays_for_outputs():
    with Session(recurrent(), shapes={"x": ("n<=2", 3, "h", "w<=64")}) as session:
        out = {"f": np.empty((1, 16, 8, 10), np.float32)}
        found = session.run({"x": np.ones((1, 3, 16, 20), np.float32)}, out=out)
        assert found["f"] is out["f"]
        with pytest.raises(RunError, match="symbol n is 3, expected 0..2"):
            session.run({"x": np.ones((3, 3, 16, 20), np.float32)})


def test_states_and_loops_stand_between():
    b = GraphBuilder("counting")
    x = b.input("x", TensorType(("n", 64), "float32"))
    w = b.constant("w", np.eye(64, dtype=np.float32) * 2)
    y = b.add("matmul", b.add("tanh", b.add("matmul", x, w)), w)
    before = b.add("variable", b.constant("zero", np.zeros((), np.float32)), state="count")
    total = b.add("add", before, b.add("reduce_sum", y, keepdims=0), names=["total"])
    b.add("assign", total, state="count")
    z = b.add("matmul", b.add("add", y, total), w, names=["z"])
    graph = b.finish(total, z)
    sizes = (100, 70, 100)
    with Session(graph, execution_options=ExecutionOptions(execution="interactive")) as plain:
        feeds = [{"x": np.full((n, 64), 0.01, np.float32)} for n in sizes]
        wanted = [plain.run(one) for one in feeds]
    with Session(graph) as session:
        found = [session.run(one) for one in feeds]
        assert len(session.stages) == 3
    for a, b in zip(found, wanted, strict=True):
        for name in a:
            np.testing.assert_allclose(a[name], b[name], rtol=1e-5)


def test_what_shapes_decide_is_in_every_region_that_reads_it():
    b = GraphBuilder("decided")
    x = b.input("x", TensorType(("n", 8), "float32"))
    shape = b.add("shape", x)
    first = b.add("tanh", x)
    between = b.add("cum_sum", first, b.constant("axis", np.array(0, np.int64)))
    last = b.add("reshape", b.add("relu", between), shape)
    graph = b.finish(last, shape)
    served = frozenset(one.id for one in graph.nodes if one.op != "cum_sum")
    found = regions(graph, served)
    assert [[one.op for one in part.nodes] for part in found] == [
        ["tanh"],
        ["cum_sum"],
        ["shape", "relu", "reshape"],
    ]
    assert set(found[2].outputs) == set(graph.outputs)
    assert [len(part.nodes) for part in regions(graph, served, join_first=True)] == [2, 3]
    assert regions(graph, frozenset(one.id for one in graph.nodes)) == ()
    assert regions(graph, frozenset()) == ()


def test_a_profile_has_each_stage_beside_its_prediction():
    (feeds,) = images(1)
    with Session(recurrent()) as session:
        found = session.profile_stages(feeds, runs=3, warmup=1)
        assert len(found.wall_s) == 3
        assert [row.tier for row in found.stages] == [stage.tier for stage in session.stages]
        for row in found.stages:
            assert (row.predicted_s is None) == (row.tier == "reference")
            assert 0 < row.region_s < max(found.wall_s)
        assert found.to_json()["stages"][0]["shapes"] == {"x": [2, 3, 40, 50]}
    with Session(detector()) as session:
        found = session.profile_stages(feeds, runs=2)
        (step,) = found.stages[-1].steps
        assert "non_max_suppression" in step[0]
        chosen = session.run(feeds)["chosen"]
        assert found.stages[-1].grown_bytes == chosen.nbytes
        assert "grew outside of the arenas" in str(found)
        with pytest.raises(RunError, match="profile_stages") as caught:
            session.profile(feeds)
        assert "in stages" in str(caught.value)
    fixed = Session(recurrent(), shapes={"x": (1, 3, 16, 16)})
    with fixed as session, pytest.raises(RunError, match="has no stages"):
        session.profile_stages({"x": np.zeros((1, 3, 16, 16), np.float32)})


@pytest.mark.parametrize("part", range(6))
def test_random_graphs_in_regions(part):
    """Any choice of served nodes gives parts that compute what the graph computes."""
    seed = SEED + part
    print("seed", seed)
    rng, cuts = np.random.default_rng(seed), 0
    for number in range(60):
        graph = random_graph(rng)
        served = frozenset(one.id for one in graph.nodes if rng.random() < 0.6)
        parts = regions(graph, served, join_first=bool(rng.integers(2)))
        x = rng.standard_normal((2, 5, 6)).astype(np.float32)
        if not parts:
            continue
        cuts += 1
        known = dict(zip(graph.inputs, [x], strict=True))
        for one in parts:
            known |= dict(zip(one.outputs, run(one, [known[v] for v in one.inputs]), strict=True))
        for value, wanted in zip(graph.outputs, run(graph, [x]), strict=True):
            assert np.array_equal(known[value], wanted), (number, str(graph), served)
    assert cuts > 20
