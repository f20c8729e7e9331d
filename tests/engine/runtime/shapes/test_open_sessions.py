"""One session serves every shape within the bounds of a model; ONNX Runtime is the oracle."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from opencl import need_opencl

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.placement.options import PlacementOptions
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.errors import PlacementError, RunError

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def model(nodes, inputs, outputs, weights=()):
    """Bytes of an ONNX model; inputs and outputs are (name, dtype, shape)."""
    graph = helper.make_graph(
        nodes,
        "open",
        [helper.make_tensor_value_info(*one) for one in inputs],
        [helper.make_tensor_value_info(*one) for one in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights],
    )
    imports = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()


def peer(data):
    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])


def agrees(session, oracle, feeds):
    found = session.run(feeds)
    names = [value.name for value in session.outputs]
    for name, wanted in zip(names, oracle.run(names, feeds), strict=True):
        assert found[name].shape == wanted.shape
        np.testing.assert_allclose(found[name], wanted, rtol=2e-5, atol=2e-5)


def conv_net():
    """A fully convolutional net: batch, height and width are open."""
    rng = np.random.default_rng(0)
    weights = [
        ("w1", rng.standard_normal((8, 3, 3, 3)).astype(np.float32)),
        ("w2", rng.standard_normal((4, 8, 1, 1)).astype(np.float32)),
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w2"], ["c"]),
        helper.make_node("Softmax", ["c"], ["d"], axis=1),
        helper.make_node("GlobalAveragePool", ["d"], ["y"]),
    ]
    shape = ["n", 3, "h", "w"]
    return model(nodes, [("x", FLOAT, shape)], [("d", FLOAT, None), ("y", FLOAT, None)], weights)


def chosen_rows():
    """Rows of x whose sum is positive, times a matrix: how many rows depends on values."""
    weights = [
        ("axis", np.array([1], np.int64)),
        ("zero", np.array(0, np.float32)),
        ("w", np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)),
    ]
    nodes = [
        helper.make_node("ReduceSum", ["x", "axis"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["keep"]),
        helper.make_node("Compress", ["x", "keep"], ["rows"], axis=0),
        helper.make_node("MatMul", ["rows", "w"], ["z"]),
        helper.make_node("Relu", ["z"], ["y"]),
    ]
    return model(nodes, [("x", FLOAT, ["n", 4])], [("y", FLOAT, None)], weights)


@pytest.mark.parametrize("devices", [["cpu"], ["cpu", "opencl"]])
def test_any_shape_agrees_with_the_peer(devices, no_calibration):
    rng = np.random.default_rng(7)
    data = conv_net()
    oracle = peer(data)
    with Session(data, devices=devices) as session:
        for _ in range(8):
            shape = (int(rng.integers(1, 4)), 3, *(int(n) for n in rng.integers(3, 40, 2)))
            print("shape", shape)
            agrees(session, oracle, {"x": rng.standard_normal(shape).astype(np.float32)})
        assert len(session.stages) == 1
        assert session.stages[0].steps == ()


def test_a_stage_names_the_devices_that_have_nodes(no_calibration):
    """It named all devices of the session."""
    need_opencl()
    x = {"x": np.ones((1, 3, 9, 9), np.float32)}
    for device, tier in (("cpu", "polymorphic"), ("opencl", "specialised")):
        alone = PlacementOptions(single_device=device)
        with Session(conv_net(), devices=["cpu", "opencl"], placement_options=alone) as session:
            session.run(x)
            assert [(stage.on, stage.tier) for stage in session.stages] == [(device, tier)]


def test_a_shape_that_depends_on_values():
    rng = np.random.default_rng(3)
    data = chosen_rows()
    oracle = peer(data)
    with Session(data) as session:
        for rows in (5, 1, 8, 5):
            agrees(session, oracle, {"x": rng.standard_normal((rows, 4)).astype(np.float32)})
        first, second = session.stages
        assert first.on == "cpu"
        assert ["compress" in step for step in first.steps] == [True]
        assert second.on == "numpy reference"
        assert "then host: compress" in str(first)
        agrees(session, oracle, {"x": -np.ones((3, 4), np.float32)})  # no row is left


def test_much_work_after_a_value_decided_a_shape_is_compiled():
    weights = [
        ("axis", np.array([1], np.int64)),
        ("zero", np.array(0, np.float32)),
        ("w", np.random.default_rng(1).standard_normal((256, 300)).astype(np.float32)),
    ]
    nodes = [
        helper.make_node("ReduceSum", ["x", "axis"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["keep"]),
        helper.make_node("Compress", ["x", "keep"], ["rows"], axis=0),
        helper.make_node("MatMul", ["rows", "w"], ["y"]),
    ]
    data = model(nodes, [("x", FLOAT, ["n", 256])], [("y", FLOAT, None)], weights)
    x = np.random.default_rng(5).standard_normal((64, 256)).astype(np.float32)
    with Session(data) as session:
        agrees(session, peer(data), {"x": x})
        assert session.stages[1].on == "cpu"


def test_steps_run_in_the_order_of_a_second_value_that_depends_on_the_first():
    nodes = [
        helper.make_node("NonZero", ["x"], ["where"]),
        helper.make_node("Transpose", ["where"], ["places"], perm=[1, 0]),
        helper.make_node("GatherND", ["x", "places"], ["values"]),
        helper.make_node("Unique", ["values"], ["distinct"], sorted=1),
        helper.make_node("Neg", ["distinct"], ["y"]),
    ]
    outputs = [("y", FLOAT, None), ("where", INT64, None)]
    data = model(nodes, [("x", FLOAT, ["n", "m"])], outputs)
    oracle = peer(data)
    with Session(data) as session:
        for shape in ((0, 2), (3, 4), (1, 9)):  # of no elements, fewer steps are left
            x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) % 5
            agrees(session, oracle, {"x": x})
        assert [bool(stage.steps) for stage in session.stages] == [True, True, False]


def test_a_reshape_to_sizes_that_are_fed():
    nodes = [
        helper.make_node("Reshape", ["x", "sizes"], ["z"]),
        helper.make_node("Exp", ["z"], ["y"]),
    ]
    inputs = [("x", FLOAT, ["n"]), ("sizes", INT64, [2])]
    data = model(nodes, inputs, [("y", FLOAT, None)])
    with Session(data) as session:
        for sizes in ([2, 6], [3, 4], [-1, 2]):
            x = np.linspace(0, 1, 12, dtype=np.float32)
            agrees(session, peer(data), {"x": x, "sizes": np.array(sizes, np.int64)})


def test_outputs_belong_to_the_caller():
    """An output that is an input, a constant or a view is a copy."""
    b = GraphBuilder("g")
    x = b.input("x", TensorType(("n",), "float32"))
    places = b.add("non_zero", x, names=["places"])
    turned = b.add("transpose", places, names=["turned"])
    one = b.constant("one", np.ones(2, np.float32))
    x_fed = np.array([1, 0, 2], np.float32)
    with Session(b.finish(x, places, turned, one)) as session:
        found = session.run({"x": x_fed})
        for array in found.values():
            array[...] = 7
        np.testing.assert_array_equal(x_fed, [1, 0, 2])
        again = session.run({"x": x_fed})
        np.testing.assert_array_equal(again["one"], [1, 1])
        np.testing.assert_array_equal(again["places"], [[0, 2]])


def test_arrays_for_outputs():
    data = chosen_rows()
    x = np.ones((4, 4), np.float32)
    with Session(data) as session:
        wanted = session.run({"x": x})["y"]
        target = np.zeros_like(wanted)
        assert session.run({"x": x}, out={"y": target})["y"] is target
        np.testing.assert_array_equal(target, wanted)
        with pytest.raises(RunError, match="output 'y' is float32"):
            session.run({"x": x}, out={"y": np.zeros((9, 9), np.float32)})
        with pytest.raises(RunError, match="no output"):
            session.run({"x": x}, out={"q": target})


def test_strings_run_on_the_host():
    nodes = [
        helper.make_node("StringConcat", ["a", "b"], ["y"]),
        helper.make_node("Equal", ["y", "b"], ["same"]),
    ]
    text = TensorProto.STRING
    outputs = [("y", text, None), ("same", TensorProto.BOOL, None)]
    data = model(nodes, [("a", text, ["n"]), ("b", text, ["n"])], outputs)
    with Session(data) as session:
        found = session.run({"a": ["x", ""], "b": ["y", "z"]})
    assert found["y"].tolist() == ["xy", "z"]
    assert found["same"].tolist() == [False, True]


def test_states_are_shared_by_all_shapes():
    b = GraphBuilder("counter")
    x = b.input("x", TensorType(("n",), "float32"))
    before = b.add("variable", b.constant("zero", np.zeros((), np.float32)), state="count")
    total = b.add("add", before, b.add("reduce_sum", x, keepdims=0), names=["total"])
    b.add("assign", total, state="count")
    with Session(b.finish(total)) as session:
        runs = [session.run({"x": np.ones(n, np.float32)})["total"].item() for n in (1, 3, 1, 2)]
        assert runs == [1, 4, 5, 7]
        session.states.clear()
        assert session.run({"x": np.ones(3, np.float32)})["total"] == 3


def test_bounds_hold():
    with Session(conv_net(), shapes={"x": ("n<=2", 3, "4<=h", "w")}) as session:
        assert session.inputs[0].shape == ("n", 3, "h", "w")
        session.run({"x": np.zeros((2, 3, 5, 5), np.float32)})
        with pytest.raises(RunError, match=r"symbol n is 3, expected 0\.\.2") as caught:
            session.run({"x": np.zeros((3, 3, 5, 5), np.float32)})
        assert "x [3, 3, 5, 5]" in str(caught.value)
        with pytest.raises(RunError, match=r"symbol h is 3, expected 4\.\."):
            session.run({"x": np.zeros((1, 3, 3, 5), np.float32)})
        session.run({"x": np.zeros((1, 3, 4, 5), np.float32)})


@pytest.mark.parametrize(
    ("feeds", "sentence"),
    [
        ({}, "missing: x"),
        ({"x": np.zeros((1, 3, 4, 4), np.float32), "z": 1}, "not an input: z"),
        ({"x": np.zeros((1, 3, 4, 4))}, "float64"),
        ({"x": np.zeros((1, 4, 4, 4), np.float32)}, r"expected float32\[n,3,h,w\]"),
        ({"x": np.zeros((3, 4, 4), np.float32)}, r"expected float32\[n,3,h,w\]"),
        ({"x": [["a"]]}, "input 'x'"),
    ],
)
def test_feeds_that_do_not_fit(feeds, sentence):
    with Session(conv_net()) as session, pytest.raises(RunError, match=sentence):
        session.run(feeds)


def test_programs_are_kept_up_to_a_number(no_calibration):
    options = ExecutionOptions(most_shapes=2)
    with Session(conv_net(), execution_options=options) as session:
        feeds = [{"x": np.ones((1, 3, n, n), np.float32)} for n in (4, 5, 6, 4)]
        first = session.at(feeds[0])
        assert session.at(feeds[0]) is first
        before = session.run(feeds[0])["y"]
        for one in feeds[1:3]:
            session.run(one)
        assert session.at(feeds[3]) is not first
        with pytest.raises(RunError, match="closed"):
            first.run(feeds[0])
        np.testing.assert_array_equal(session.run(feeds[3])["y"], before)


def test_the_session_of_some_feeds_explains_and_profiles():
    feeds = {"x": np.ones((1, 3, 8, 8), np.float32)}
    with Session(conv_net()) as session:
        with pytest.raises(RunError, match="the shapes are open"):
            _ = session.placement
        session.run(feeds)
        assert session.placement is session.at(feeds).placement
        assert session.profile(feeds, runs=1, warmup=0).runs == 1
        with pytest.raises(RunError, match="has one run in flight, not 3"):
            session.stream([feeds], depth=3)
        assert len(list(session.at(feeds).stream([feeds] * 3, depth=2))) == 3
    b = GraphBuilder("places")
    places = b.add("non_zero", b.input("x", TensorType((3,), "float32")))
    with Session(b.finish(places)) as session:
        session.run({"x": np.ones(3, np.float32)})
        with pytest.raises(RunError, match="the last run had no program: the host ran non_zero"):
            _ = session.placement
    with Session(chosen_rows()) as session, pytest.raises(RunError, match="runs in stages"):
        session.profile({"x": np.ones((2, 4), np.float32)})


def places_of_places(rows):
    """Places of a value, as floats, and the places of what is not 0 in them."""
    b = GraphBuilder("g")
    x = b.input("x", TensorType((rows, 4), "float32"))
    places = b.add("non_zero", x, names=["places"])
    made = b.add("cast", places, to="float32", names=["floats"])
    return b.finish(b.add("neg", made, names=["less"]), b.add("non_zero", made, names=["again"]))


@pytest.mark.parametrize("rows", [3, "rows"])
def test_a_pin_is_honoured_or_refused(rows):
    """What the host has to run is refused before a run; numpy runs no pinned node of later stages,
    however little work it is.
    """
    graph = places_of_places(rows)
    for name in ("places", "again"):
        options = PlacementOptions(pins={name: "cpu"})
        with pytest.raises(PlacementError, match="(?s)is pinned to cpu.*its result depends"):
            Session(graph, placement_options=options)
    feeds = {"x": np.eye(3, 4, dtype=np.float32)}
    with Session(graph, placement_options=PlacementOptions(pins={"less": "cpu"})) as session:
        found = session.run(feeds)
        assert {stage.on for stage in session.stages if stage.nodes} == {"cpu"}
    with Session(graph) as session:
        for name, right in session.run(feeds).items():
            np.testing.assert_array_equal(found[name], right)
        assert {stage.on for stage in session.stages if stage.nodes} == {"numpy reference"}


def test_a_fixed_placement_needs_fixed_shapes():
    with Session(conv_net(), shapes={"x": (1, 3, 8, 8)}) as session:
        placement = session.placement
    with pytest.raises(PlacementError, match="shapes are open"):
        Session(conv_net(), placement=placement)


def test_a_product_by_a_matrix_that_shapes_decide():
    """Its B is computed in the compiled graph, and constant in the graph of each shape."""
    b = GraphBuilder("positions")
    x = b.input("x", TensorType(("b", "s", 5), "float32"))
    length = b.add("squeeze", b.add("shape", x, start=1, end=2), b.constant("a", np.array([0])))
    zero, one = (b.constant(n, np.array(v)) for n, v in (("zero", 0), ("one", 1)))
    places = b.add("cast", b.add("range", zero, length, one), to="float32")
    by = b.add("unsqueeze", places, b.constant("axis", np.array([1])))
    y = b.add("matmul", b.add("transpose", b.add("relu", x), perm=(0, 2, 1)), by)
    rng = np.random.default_rng(3)
    with Session(b.finish(y), devices=["cpu"]) as session:
        for rows, size in ((2, 7), (1, 1), (4, 30)):
            data = rng.standard_normal((rows, size, 5)).astype(np.float32)
            (found,) = session.run({"x": data}).values()
            wanted = np.maximum(data, 0).transpose(0, 2, 1) @ np.arange(size, dtype=np.float32)
            np.testing.assert_allclose(found[..., 0], wanted, rtol=1e-5, atol=1e-5)
            assert [stage.tier for stage in session.stages] == ["polymorphic"]


def test_a_later_stage_reads_its_own_inputs_once_it_is_optimised():
    """Its reshape to a computed size gets a constant target, so that its values are renumbered."""
    nodes = [
        helper.make_node("Relu", ["x"], ["kept"]),
        helper.make_node("NonZero", ["kept"], ["places"]),
        helper.make_node("Squeeze", ["places", "zero"], ["flat"]),
        helper.make_node("Gather", ["x", "flat"], ["found"]),
        helper.make_node("Shape", ["found"], ["length"]),
        helper.make_node("Unsqueeze", ["found", "one"], ["column"]),
        helper.make_node("Mul", ["column", "found"], ["square"]),
        helper.make_node("Concat", ["length", "length", "one"], ["target"], axis=0),
        helper.make_node("Reshape", ["square", "target"], ["cube"]),
        helper.make_node("Mul", ["cube", "kept"], ["y"]),
    ]
    data = model(
        nodes,
        [("x", FLOAT, ["n"])],
        [("y", FLOAT, None), ("places", INT64, None)],
        [("zero", np.array([0])), ("one", np.array([1]))],
    )
    oracle, rng = peer(data), np.random.default_rng(4)
    with Session(data) as session:
        for size in (5, 9, 5, 1):
            agrees(session, oracle, {"x": rng.standard_normal(size).astype(np.float32)})


def test_a_proven_bound_is_shown_and_holds_for_later_stages():
    data = chosen_rows()
    with Session(data) as session:
        feeds = {"x": np.random.default_rng(4).standard_normal((9, 4)).astype(np.float32)}
        found = session.run(feeds)["y"]
        first, second = session.stages
        assert "compress" in first.steps[0]
        assert first.steps[0].endswith("at most 9")
        (rows,) = {shape[0] for shape in second.shapes.values()}
        assert rows == len(found) <= 9


def test_scratch_memory_is_planned_for_the_bounds():
    data = conv_net()
    bounds = {"x": ("n<=2", 3, "h<=32", "w<=32")}
    rng = np.random.default_rng(5)
    with Session(data, shapes=bounds) as session:
        (call,) = session.ready.runner.program._open._polymorphic.resizable.calls._free
        before = call._scratch
        for h, w in ((8, 9), (32, 32), (17, 3)):
            session.run({"x": rng.standard_normal((2, 3, h, w)).astype(np.float32)})
        assert call._scratch is before
        assert before is not None
