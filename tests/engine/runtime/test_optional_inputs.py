"""Inputs of an ONNX file with an initializer: a run feeds them or not, as in ONNX Runtime."""

import concurrent.futures

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import trireme
from trireme.model_file.convert import optional_inputs
from trireme.tools.cli import main

onnxruntime = pytest.importorskip("onnxruntime")
SEED = 20261129
FLOAT = TensorProto.FLOAT
X = np.arange(6, dtype=np.float32).reshape(2, 3)
FEEDS = [
    {},
    {"scale": np.array(5, np.float32)},
    {"bias": np.array([3, 1, -1], np.float32)},
    {"scale": np.array(-2, np.float32), "bias": np.zeros(3, np.float32)},
    {"scale": np.array(2, np.float32)},  # the default
]


def info(name, shape):
    return helper.make_tensor_value_info(name, FLOAT, shape)


def model(shape=(2, 3), ir_version=10):
    """y = x scale + bias - bias0; bias0 is an initializer that is no input."""
    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "bias"], ["moved"]),
        helper.make_node("Sub", ["moved", "bias0"], ["y"]),
    ]
    weights = {"scale": 2, "bias": [1, 2, 3], "bias0": [0.5, 0, 0.25]}
    made = [numpy_helper.from_array(np.array(w, np.float32), name) for name, w in weights.items()]
    inputs = [info("x", list(shape)), info("scale", []), info("bias", [3])]
    inputs += [info("bias0", [3])] if ir_version < 4 else []
    graph = helper.make_graph(nodes, "g", inputs, [info("y", list(shape))], made)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


def peer_of(proto):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(proto.SerializeToString(), options)


HOW = {
    "cpu": {"devices": ["cpu"]},
    "opencl": {"devices": ["opencl", "cpu"]},
    "npu": {"devices": ["npu", "opencl", "cpu"]},
    "dynamic": {"execution_options": trireme.ExecutionOptions(schedule="dynamic")},
    "serial": {"mode": "serial", "contexts": 2},
    "fallback": {"devices": ["opencl", "cpu"], "fallback": True},
}


@pytest.mark.parametrize("shape", [(2, 3), ("n", 3)], ids=["fixed", "open"])
@pytest.mark.parametrize("how", HOW)
def test_feeds_are_taken_and_defaults_used_as_in_onnx_runtime(how, shape):
    proto = model(shape)
    peer = peer_of(proto)
    with trireme.Session(proto.SerializeToString(), **HOW[how]) as session:
        names = [value.name for value in session.optional_inputs]
        assert names == [arg.name for arg in peer.get_overridable_initializers()]
        assert [value.name for value in session.inputs] == ["x"]
        for extra in (*FEEDS, *FEEDS[::-1]):
            feeds = {"x": X, **extra}
            (wanted,) = peer.run(None, feeds)
            np.testing.assert_array_equal(session.run(feeds)["y"], wanted)


def test_of_ir_version_3_initializers_are_constants():
    proto = model(ir_version=3)
    assert peer_of(proto).get_overridable_initializers() == []
    assert optional_inputs(proto.SerializeToString()) == []
    session = trireme.Session(proto.SerializeToString())
    with session, pytest.raises(trireme.RunError, match="not an input: scale"):
        session.run({"x": X, "scale": np.array(5, np.float32)})


def test_a_file_with_a_stored_program_takes_them(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    peer = peer_of(model())
    for _ in range(3):
        with trireme.Session(path, devices=["cpu"]) as session:
            for extra in FEEDS:
                feeds = {"x": X, **extra}
                np.testing.assert_array_equal(session.run(feeds)["y"], peer.run(None, feeds)[0])


def test_weights_that_are_inputs_stay_packed_constants():
    """Exporters of 2019 listed every weight; a session of these files is none slower for it."""
    rng = np.random.default_rng(SEED)
    weight = rng.standard_normal((8, 3, 3, 3)).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    inputs = [info("x", [1, 3, 8, 8]), info("w", [8, 3, 3, 3])]
    made = [numpy_helper.from_array(weight, "w")]
    graph = helper.make_graph([node], "g", inputs, [info("y", [1, 8, 8, 8])], made)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x, other = rng.standard_normal((1, 3, 8, 8)).astype(np.float32), weight[::-1].copy()
    with trireme.Session(proto.SerializeToString(), devices=["npu", "cpu"]) as session:
        (conv,) = [one for one in session.graph.nodes if one.op == "conv"]
        assert session.graph.values[conv.inputs[1]].data is not None
        for feeds in ({"x": x}, {"x": x, "w": other}):
            wanted = peer_of(proto).run(None, feeds)[0]
            found = session.run(feeds)["y"]
            assert np.abs(found - wanted).max() < 2e-2 * np.abs(wanted).max()


def test_arrays_of_the_caller_requests_and_threads():
    peer = peer_of(model())
    wanted = [peer.run(None, {"x": X, **extra})[0] for extra in FEEDS]
    with trireme.Session(model().SerializeToString(), contexts=2) as session:
        for extra, right in zip(FEEDS, wanted, strict=True):
            out = np.empty((2, 3), np.float32)
            assert session.run({"x": X, **extra}, out={"y": out})["y"] is out
            np.testing.assert_array_equal(out, right)
            assert (session.run_async({"x": X, **extra}).result()["y"] == right).all()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            runs = [pool.submit(session.run, {"x": X, **extra}) for extra in FEEDS * 8]
            for run, right in zip(runs, wanted * 8, strict=True):
                np.testing.assert_array_equal(run.result()["y"], right)


def test_states_are_shared_with_runs_that_feed_one():
    """total' = total + x scale: a run with another scale adds to the same total."""
    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["scaled"]),
        helper.make_node("Add", ["total", "scaled"], ["sum"]),
    ]
    inputs = [info("x", [3]), info("total", [3]), info("scale", [])]
    made = [numpy_helper.from_array(np.array(2, np.float32), "scale")]
    graph = helper.make_graph(nodes, "g", inputs, [info("sum", [3])], made)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    x, scale = np.ones(3, np.float32), np.array(10, np.float32)
    with trireme.Session(proto.SerializeToString(), states={"total": "sum"}) as session:
        for feeds in ({"x": x}, {"x": x, "scale": scale}, {"x": x}, {"x": x, "scale": scale}):
            session.run(feeds)
        (total,) = session.get_state().values()
        np.testing.assert_array_equal(total, np.full(3, 24, np.float32))


def test_an_option_makes_one_an_input_of_the_session():
    how = trireme.ExecutionOptions(optional_inputs=["scale"])
    with trireme.Session(model().SerializeToString(), execution_options=how) as session:
        assert [value.name for value in session.inputs] == ["x", "scale"]
        assert [value.name for value in session.optional_inputs] == ["bias"]
        scale = np.array(5, np.float32)
        wanted = peer_of(model()).run(None, {"x": X, "scale": scale})[0]
        np.testing.assert_array_equal(session.run({"x": X, "scale": scale})["y"], wanted)
        with pytest.raises(trireme.RunError, match="missing: scale"):
            session.run({"x": X})
    graph = trireme.convert(model().SerializeToString(), optional_inputs=["bias"])
    assert [value.name for value in graph.input_values()] == ["x", "bias"]


def test_what_is_no_optional_input_is_refused():
    data = model().SerializeToString()
    with pytest.raises(trireme.ConvertError, match="no optional input is called 'bias0'"):
        trireme.convert(data, optional_inputs=["bias0"])
    with trireme.Session(data) as session:
        for name, given, words in (
            ("nope", X, "not an input: nope"),
            ("bias0", X[0], "not an input: bias0"),
            ("scale", X, r"input 'scale' is float32\[2,3\]"),
            ("bias", X[0].astype(np.float64), "input 'bias' is float64"),
        ):
            with pytest.raises(trireme.RunError, match=words):
                session.run({"x": X, name: given})
        held = session.placement
    session = trireme.Session(data, placement=held)
    with session, pytest.raises(trireme.RunError, match="a held placement") as caught:
        session.run({"x": X, "scale": np.array(5, np.float32)})
    assert "optional_inputs=['scale']" in str(caught.value)


def test_commands_show_them_and_feed_them(tmp_path, capsys):
    path, scale = tmp_path / "m.onnx", tmp_path / "scale.npy"
    onnx.save(model(), path)
    np.save(scale, np.array(5, np.float32))
    assert main(["info", str(path)]) == 0
    assert "input  scale float32[] (optional)" in capsys.readouterr().out
    assert main(["explain", str(path)]) == 0
    assert "optional input scale float32[]" in capsys.readouterr().out
    x = tmp_path / "x.npy"
    np.save(x, X)
    given = ["--input", f"x={x}", "--input", f"scale={scale}"]
    assert main(["run", str(path), *given, "--output", str(tmp_path / "y.npz")]) == 0
    wanted = peer_of(model()).run(None, {"x": X, "scale": np.load(scale)})[0]
    np.testing.assert_array_equal(np.load(tmp_path / "y.npz")["y"], wanted)


def test_the_look_alike_of_onnx_runtime_lists_and_takes_them():
    import trireme.compat.onnxruntime as compat

    peer, ours = peer_of(model()), compat.InferenceSession(model().SerializeToString())
    for found, right in zip(
        ours.get_overridable_initializers(), peer.get_overridable_initializers(), strict=True
    ):
        assert (found.name, found.shape, found.type) == (right.name, right.shape, right.type)
    for extra in FEEDS:
        feeds = {"x": X, **extra}
        np.testing.assert_array_equal(ours.run(None, feeds)[0], peer.run(None, feeds)[0])
    with pytest.raises(trireme.TriremeError, match="Invalid input name: nope"):
        ours.run(None, {"x": X, "nope": X})
