"""Shapes run at the next larger bucket: same results, on devices with static shapes too."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Quant, TensorType
from trireme.placement.options import PlacementOptions
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.errors import RunError, ShapeError

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
SEED = 20261124
TO_NPU = PlacementOptions(pins={"op:conv": "npu"})


def attention(width=16, heads=4):
    """Bytes of an attention with a positional table, norms and a feed-forward net; seq is open."""
    rng = np.random.default_rng(SEED)
    names = ["wq", "wk", "wv", "wo"]
    weights = {n: rng.standard_normal((width, width)).astype(np.float32) / 4 for n in names}
    weights |= {
        "table": rng.standard_normal((50, width)).astype(np.float32),
        "places": rng.standard_normal((64, width)).astype(np.float32),
        "gain": rng.standard_normal(width).astype(np.float32),
        "parted": np.array([0, 0, heads, width // heads], np.int64),
        "joined": np.array([0, 0, width], np.int64),
        "zero": np.array(0, np.int64),
        "one": np.array(1, np.int64),
        "scale": np.array(0.5, np.float32),
        "first": np.array(0, np.int64),
    }
    node = helper.make_node
    nodes = [
        node("Gather", ["table", "ids"], ["words"]),
        node("Shape", ["ids"], ["shape"]),
        node("Gather", ["shape", "one"], ["length"]),
        node("Range", ["zero", "length", "one"], ["range"]),
        node("Gather", ["places", "range"], ["where"]),
        node("Add", ["words", "where"], ["embedded"]),
        node("LayerNormalization", ["embedded", "gain"], ["x"]),
    ]
    for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            node("MatMul", ["x", f"w{name}"], [f"{name}0"]),
            node("Reshape", [f"{name}0", "parted"], [f"{name}1"]),
            node("Transpose", [f"{name}1"], [name], perm=perm),
        ]
    nodes += [
        node("MatMul", ["q", "k"], ["dots"]),
        node("Mul", ["dots", "scale"], ["scores"]),
        node("Softmax", ["scores"], ["weights"]),
        node("MatMul", ["weights", "v"], ["mixed"]),
        node("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]),
        node("Reshape", ["back", "joined"], ["context"]),
        node("MatMul", ["context", "wo"], ["out"]),
        node("Add", ["out", "x"], ["sum"]),
        node("Gelu", ["sum"], ["y"]),
        node("Gather", ["y", "first"], ["head"], axis=1),
    ]
    inputs = [helper.make_tensor_value_info("ids", INT64, ["batch", "seq"])]
    outputs = [helper.make_tensor_value_info(name, FLOAT, None) for name in ("y", "head")]
    made = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "attention", inputs, outputs, made)
    imports = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()


def peer(data):
    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("from_file", [False, True])
def test_an_attention_at_buckets_agrees_with_the_peer(from_file, tmp_path):
    print("seed", SEED)
    rng, data = np.random.default_rng(SEED), attention()
    oracle, model = peer(data), data
    if from_file:
        model = tmp_path / "attention.onnx"
        model.write_bytes(data)
    with Session(model, buckets={"seq": [8, 32, 64]}) as session:
        for _ in range(40):
            shape = tuple(int(n) for n in (rng.integers(1, 4), rng.integers(1, 65)))
            print("shape", shape)
            ids = rng.integers(0, 50, shape)
            found = session.run({"ids": ids})
            for name, wanted in zip(
                ("y", "head"), oracle.run(["y", "head"], {"ids": ids}), strict=True
            ):
                assert found[name].shape == wanted.shape
                np.testing.assert_allclose(found[name], wanted, rtol=2e-5, atol=2e-5)
            (stage,) = session.stages
            assert stage.bucket["seq"] == min(n for n in (8, 32, 64) if n >= shape[1])
            assert (stage.padding == 0) == (shape[1] in (8, 32, 64))
            assert 0 <= stage.padding < 1
        assert "of the work is padding" in str(session.stages[0])


def test_two_symbols_have_buckets():
    rng, data = np.random.default_rng(SEED), attention()
    oracle = peer(data)
    with Session(data, buckets={"seq": [16], "batch": [1, 4]}) as session:
        for shape in ((1, 3), (2, 16), (3, 9), (4, 1)):
            ids = rng.integers(0, 50, shape)
            (wanted,) = oracle.run(["y"], {"ids": ids})
            np.testing.assert_allclose(session.run({"ids": ids})["y"], wanted, atol=2e-5)
        assert dict(session.stages[0].bucket) == {"seq": 16, "batch": 4}


def windows(dtype="float32", quant=None):
    """Two convolutions with windows and pads, and a max pool; height and batch are open."""
    rng = np.random.default_rng(SEED)
    b = GraphBuilder("windows")
    x = b.input("x", TensorType(("n", "h", 10, 4), dtype, quant))
    kind = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    options = {}
    if quant is None:
        w = b.constant("w", rng.standard_normal((4, 3, 3, 4)).astype(dtype))
    else:
        w = b.constant("w", rng.integers(-9, 9, (4, 3, 3, 4)).astype(dtype), Quant((0.02,), (0,)))
        options = {"quants": (quant,)}
    y = b.add("conv", x, w, **kind, activation="relu", **options)
    y = b.add("conv", y, w, **kind | {"strides": (2, 2)}, **options)
    pool = {"kernel": (3, 3), "strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    y = b.add("max_pool", y, **pool, names=["y"], **options)
    return b.finish(y)


def test_windows_have_the_bits_of_runs_without_padding():
    rng, graph = np.random.default_rng(SEED), windows()
    with Session(graph, buckets={"h": [8, 16], "n": [3]}) as session, Session(graph) as plain:
        for n, h in ((1, 5), (3, 8), (2, 9), (3, 16), (1, 1)):
            x = rng.standard_normal((n, h, 10, 4)).astype(np.float32)
            assert np.array_equal(session.run({"x": x})["y"], plain.run({"x": x})["y"])


def test_integers_are_exact_on_the_npu():
    rng, graph = np.random.default_rng(SEED), windows("int8", Quant((0.05,), (3,)))
    npu = Session(graph, devices=["npu"], buckets={"h": [8, 16]})
    with npu as session, Session(graph) as plain:
        for n, h in ((1, 5), (1, 8), (1, 9), (1, 16)):
            x = rng.integers(-128, 128, (n, h, 10, 4)).astype(np.int8)
            assert np.array_equal(session.run({"x": x})["y"], plain.run({"x": x})["y"])
            assert session.stages[0].on == "npu"
        assert len(session.program.plan.tasks) > 0


def test_half_floats_on_the_npu_have_masks_on_another_device():
    rng, graph = np.random.default_rng(SEED), windows("float16")
    with (
        Session(graph, devices=["npu", "cpu"], buckets={"h": [8]}, placement_options=TO_NPU) as s,
        Session(graph, devices=["npu", "cpu"], placement_options=TO_NPU) as plain,
    ):
        x = rng.standard_normal((1, 5, 10, 4)).astype(np.float16)
        assert np.array_equal(s.run({"x": x})["y"], plain.run({"x": x})["y"])
    with (
        pytest.raises(Exception, match="add cpu to the devices"),
        Session(graph, devices=["npu"], buckets={"h": [8]}) as session,
    ):
        session.run({"x": x})


def rows(op, axes=None, **attrs):
    """A graph of one op after a tanh, whose first axis is open."""
    b = GraphBuilder("rows")
    y = b.add("tanh", b.input("x", TensorType(("seq", 6), "float32")))
    more = []
    if axes is not None:
        more = [b.constant("axes", np.array(axes, np.int64))]
    if op == "layer_normalization":
        more = [b.constant("gain", np.ones((1, 6), np.float32))]
    return b.finish(b.add(op, y, *more, **attrs, names=["y"]))


NEUTRAL = [
    ("reduce_sum", {"axes": [0]}),
    ("reduce_max", {"axes": [0], "keepdims": 0}),
    ("reduce_min", {"axes": [0, 1]}),
    ("reduce_l2", {"axes": [0]}),
    ("reduce_mean", {"axes": [1]}),
    ("softmax", {"axis": 0}),
    ("log_softmax", {"axis": 0}),
    ("softmax", {"axis": 1}),
    ("arg_max", {"axis": 0}),
    ("lp_normalization", {"axis": 0}),
    ("transpose", {"perm": (1, 0)}),
    ("cum_sum", {"axes": 0}),
    ("cum_sum", {"axes": 0, "reverse": 1, "exclusive": 1}),
]


@pytest.mark.parametrize(("op", "attrs"), NEUTRAL)
def test_neutral_elements(op, attrs):
    rng, graph = np.random.default_rng(SEED), rows(op, **attrs)
    with Session(graph, buckets={"seq": [4, 40]}) as session, Session(graph) as plain:
        for size in (1, 3, 4, 5, 33, 40):
            x = rng.standard_normal((size, 6)).astype(np.float32)
            found, wanted = session.run({"x": x})["y"], plain.run({"x": x})["y"]
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


REFUSED = [
    ("reduce_mean", {"axes": [0]}, "its result would count them"),
    ("layer_normalization", {"axis": 0}, "its sums would count them"),
]


@pytest.mark.parametrize(("op", "attrs", "why"), REFUSED)
def test_what_padding_would_change_is_refused(op, attrs, why):
    with pytest.raises(ShapeError, match=f"{op} #1: padding would reach its results: {why}"):
        Session(rows(op, **attrs), buckets={"seq": [4]})


@pytest.mark.parametrize(
    ("buckets", "sentence"),
    [
        ({"rows": [4]}, "symbols: batch, seq"),
        ({"seq": []}, "expected sizes within"),
        ({"seq": [0, 4]}, "expected sizes within"),
        ({"seq": [4, 600]}, "expected sizes within 1..512"),
    ],
)
def test_buckets_that_do_not_fit(buckets, sentence):
    with pytest.raises(ShapeError, match="buckets of") as caught:
        Session(attention(), shapes={"ids": ("batch", "seq<=512")}, buckets=buckets)
    assert sentence in str(caught.value)


def test_a_size_above_the_largest_bucket_is_an_error():
    with (
        Session(attention(), buckets={"seq": [4, 8]}) as session,
        pytest.raises(RunError, match="seq is 9, and its largest bucket is 8"),
    ):
        session.run({"ids": np.zeros((1, 9), np.int64)})


def test_a_model_of_fixed_shapes_has_no_symbols():
    b = GraphBuilder("fixed")
    graph = b.finish(b.add("tanh", b.input("x", TensorType((2,), "float32"))))
    with pytest.raises(ShapeError, match="buckets of 'seq'"):
        Session(graph, buckets={"seq": [4]})


def test_a_dynamic_schedule_takes_no_buckets():
    how = ExecutionOptions(schedule="dynamic")
    with pytest.raises(RunError, match="buckets need a static schedule"):
        Session(attention(), buckets={"seq": [4]}, execution_options=how)


def test_profiles_and_other_kinds_of_runs_are_padded_and_cut():
    data = attention()
    with Session(data, buckets={"seq": [8]}) as session:
        feeds = {"ids": np.arange(10).reshape(2, 5)}
        wanted = session.run(feeds)["y"]
        assert np.array_equal(session.run_traced(feeds)[0]["y"], wanted)
        order = range(len(session.plan.tasks))
        assert np.array_equal(session.run_in_order(feeds, order)["y"], wanted)
        assert np.array_equal(session.run_nodes(feeds, lambda step: None)["y"], wanted)
        assert session.profile(feeds, runs=1).wall_s[0] > 0
        out = {"y": np.empty((2, 5, 16), np.float32)}
        assert session.run(feeds, out=out)["y"] is out["y"]
        assert np.array_equal(out["y"], wanted)


def test_a_number_that_the_size_decides_is_refused():
    """A mean as a sum over the length: the bucket has another length."""
    b = GraphBuilder("mean")
    x = b.input("x", TensorType((2, "seq"), "float32"))
    axes = b.constant("axes", np.array([1], np.int64))
    total = b.add("reduce_sum", x, axes, keepdims=0)
    length = b.add("cast", b.add("shape", x, start=1, end=2), to="float32")
    graph = b.finish(b.add("div", total, length, names=["y"]))
    with Session(graph, buckets={"seq": [4, 8]}) as session:
        full = np.arange(8, dtype=np.float32).reshape(2, 4)
        assert session.run({"x": full})["y"].tolist() == [1.5, 5.5]
        with pytest.raises(RunError, match="has other values in the bucket"):
            session.run({"x": full[:, :3]})


def test_a_place_beyond_the_true_size_is_an_error():
    b = GraphBuilder("fifth")
    x = b.input("x", TensorType(("seq", 3), "float32"))
    fifth = b.constant("fifth", np.array([4], np.int64))
    graph = b.finish(b.add("gather", b.add("tanh", x), fifth, axis=0, names=["y"]))
    with Session(graph, buckets={"seq": [8]}) as session:
        assert session.run({"x": np.ones((5, 3), np.float32)})["y"].shape == (1, 3)
        with pytest.raises(RunError, match="'fifth' names place 4 of 3"):
            session.run({"x": np.ones((3, 3), np.float32)})


def test_a_place_that_counts_from_the_end_is_refused():
    b = GraphBuilder("last")
    x = b.input("x", TensorType(("seq", 3), "float32"))
    last = b.constant("last", np.array([-1], np.int64))
    graph = b.finish(b.add("gather", b.add("tanh", x), last, axis=0))
    with pytest.raises(ShapeError, match="may count from the end"):
        Session(graph, buckets={"seq": [8]})


def test_places_along_several_axes_are_looked_at_one_by_one():
    """The places (i, j) of a grid over both open axes, read with gather_nd."""
    b = GraphBuilder("grid")
    x = b.input("x", TensorType(("n", "m"), "float32"))

    def counted(axis, shape):
        size = b.add("reshape", b.add("shape", x, start=axis, end=axis + 1), ints(b))
        numbers = b.add("range", ints(b, 0, rank=0), size, ints(b, 1, rank=0))
        whole = b.add("expand", b.add("reshape", numbers, ints(b, *shape)), b.add("shape", x))
        return b.add("unsqueeze", whole, ints(b, 2))

    places = b.add("concat", counted(0, (-1, 1)), counted(1, (1, -1)), axis=2)
    graph = b.finish(b.add("gather_nd", b.add("tanh", x), places, names=["y"]))
    rng = np.random.default_rng(SEED)
    with Session(graph, buckets={"n": [4, 9], "m": [3, 9]}) as session:
        for shape in ((1, 9), (9, 1), (7, 2), (4, 4)):
            x = rng.standard_normal(shape).astype(np.float32)
            np.testing.assert_allclose(session.run({"x": x})["y"], np.tanh(x), rtol=1e-5)


def ints(b, *numbers, rank=1):
    return b.constant("numbers", np.array(numbers, np.int64).reshape((-1,) if rank else ()))
