"""Programs for ONNX Runtime with the import changed: the same answers, both run side by side."""

import importlib
import threading
import time

import numpy as np
import onnxruntime
import pytest
from ort_models import bert, conv_net, inputs_of
from ort_programs import BOTH, HEAD, MANY, SIGMOID, TWO, A, X, model, network

import trireme.compat.onnxruntime as compat
from trireme.compat.onnxruntime.capi.onnxruntime_pybind11_state import (
    Fail,
    InvalidArgument,
    InvalidProtobuf,
    NoSuchFile,
)
from trireme.support.errors import TriremeError

WAIT_S = 20


@pytest.fixture(scope="module")
def net():
    return network()


@BOTH
def test_load_and_run(ort, tmp_path):
    """The first example: a file, names of inputs and outputs, a run."""
    path = tmp_path / "sigmoid.onnx"
    path.write_bytes(model(SIGMOID))
    session = ort.InferenceSession(str(path), providers=ort.get_available_providers())
    input_name = session.get_inputs()[0].name
    output_name = session.get_outputs()[0].name
    (result,) = session.run([output_name], {input_name: X})
    np.testing.assert_allclose(result, 1 / (1 + np.exp(-X)), rtol=1e-5)
    (again,) = ort.InferenceSession(path.read_bytes()).run(None, {input_name: X})
    np.testing.assert_array_equal(again, result)


@BOTH
def test_inputs_and_outputs_are_described(ort):
    session = ort.InferenceSession(model(SIGMOID), providers=["CPUExecutionProvider"])
    (x,), (y,) = session.get_inputs(), session.get_outputs()
    assert (x.name, x.shape, x.type) == ("x", ["n", 4, 5], "tensor(float)")
    assert (y.name, y.shape, y.type) == ("y", ["n", 4, 5], "tensor(float)")
    assert "CPUExecutionProvider" in session.get_providers()
    assert session.get_overridable_initializers() == []


def test_types_and_shapes_are_spelt_alike():
    texts = HEAD + MANY
    real, ours = (one.InferenceSession(model(texts)) for one in (onnxruntime, compat))
    for ask in ("get_inputs", "get_outputs"):
        for one, other in zip(getattr(real, ask)(), getattr(ours, ask)(), strict=True):
            assert (one.name, one.shape, one.type) == (other.name, other.shape, other.type)


@BOTH
def test_the_metadata_is_what_the_producer_wrote(ort, net):
    meta = ort.InferenceSession(net).get_modelmeta()
    assert meta.producer_name == "tests" and meta.graph_name == "net"
    assert (meta.domain, meta.description, meta.version) == ("org.trireme", "a model", 7)
    assert meta.graph_description == "its graph"
    assert meta.custom_metadata_map == {"author": "nobody", "classes": "10"}


@pytest.mark.parametrize("names", [None, [], ["where"], ["most", "total"]])
def test_outputs_come_in_the_order_that_is_asked_for(names):
    feeds = {"a": A, "b": A[::-1].copy()}
    real, ours = (
        one.InferenceSession(model(TWO)).run(names, feeds) for one in (onnxruntime, compat)
    )
    assert len(real) == len(ours)
    for one, other in zip(real, ours, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(other, one, rtol=1e-6)


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
def test_a_network_gives_the_same_numbers(net, rows, level):
    feeds = {"image": np.random.default_rng(rows).standard_normal((rows, 3, 16, 16), np.float32)}
    results = []
    for ort in (onnxruntime, compat):
        options = ort.SessionOptions()
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
        options.intra_op_num_threads = 1
        results.append(ort.InferenceSession(net, sess_options=options).run(None, feeds)[0])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("made", [conv_net, bert], ids=lambda made: made.__name__)
def test_larger_networks_give_the_same_numbers(made):
    proto = made()
    feeds = inputs_of(proto, np.random.default_rng(3))
    results = [
        ort.InferenceSession(proto.SerializeToString()).run(None, feeds)[0]
        for ort in (onnxruntime, compat)
    ]
    np.testing.assert_allclose(results[1], results[0], rtol=1e-4, atol=1e-5)


@BOTH
def test_lists_are_inputs(ort):
    session = ort.InferenceSession(model(TWO))
    total, _, _ = session.run(None, {"a": [[1, 2, 3]], "b": [[1.5, 0, 0]]})
    np.testing.assert_array_equal(total, np.float32([[2.5, 2, 3]]))


@BOTH
def test_run_async_calls_back(ort):
    session = ort.InferenceSession(model(SIGMOID))
    seen, over = [], threading.Event()

    def callback(results, user_data, error):
        seen.append((results, user_data, error))
        over.set()

    session.run_async(["y"], {"x": X}, callback, "mine")
    assert over.wait(WAIT_S)
    ((results, user_data, error),) = seen
    assert (user_data, error) == ("mine", "")
    np.testing.assert_allclose(results[0], 1 / (1 + np.exp(-X)), rtol=1e-5)


@BOTH
def test_a_flag_terminates_runs(ort):
    session = ort.InferenceSession(model(SIGMOID))
    options = ort.RunOptions()
    options.terminate = True
    with pytest.raises(Exception, match="terminate|cancelled"):
        session.run(None, {"x": X}, options)
    options.terminate = False
    assert session.run(None, {"x": X}, options)[0].shape == X.shape


def test_the_flag_stops_a_run_that_is_under_way():
    text = (
        HEAD
        + """forever (int64 n, bool c, float[2] x) => (float[2] y)
    {
        y = Loop(n, c, x) <body = turn
            (int64 i, bool going, float[2] s) => (bool more, float[2] t)
            { more = Identity(going)  t = Sin(s) }
        >
    }"""
    )
    feeds = {"n": np.array(1 << 40), "c": np.array(True), "x": np.ones(2, np.float32)}
    session = compat.InferenceSession(model(text))
    options = compat.RunOptions()
    ended = []

    def run():
        with pytest.raises(Fail, match="cancelled"):
            session.run(None, feeds, options)
        ended.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.3)
    options.terminate = True
    thread.join(WAIT_S)
    assert ended

    options.terminate = False
    errors, over = [], threading.Event()
    session.run_async(None, feeds, lambda r, u, e: (errors.append(e), over.set()), None, options)
    time.sleep(0.1)
    options.terminate = True
    assert over.wait(WAIT_S) and "cancelled" in errors[0]


@BOTH
def test_missing_inputs_are_a_value_error(ort):
    session = ort.InferenceSession(model(TWO))
    with pytest.raises(
        ValueError, match=r"Required inputs \(\['b'\]\) are missing from input feed"
    ):
        session.run(None, {"a": A})


@BOTH
def test_wrong_inputs_have_the_same_kinds_of_error(ort, tmp_path):
    def raises(call):
        with pytest.raises(Exception) as caught:  # noqa: B017, PT011
            call()
        return type(caught.value).__name__

    session = ort.InferenceSession(model(TWO))
    good = {"a": A, "b": A}
    wrong = [
        lambda: session.run(["nowhere"], good),
        lambda: session.run(None, good | {"a": A.astype(np.float64)}),
        lambda: session.run(None, good | {"a": A[0]}),
        lambda: session.run(None, good | {"c": A}),
    ]
    assert {raises(call) for call in wrong} <= {"InvalidArgument", "ValueError"}
    assert raises(lambda: ort.InferenceSession(str(tmp_path / "none.onnx"))) == "NoSuchFile"
    assert raises(lambda: ort.InferenceSession(b"\x01\x02 no model")) in (
        "InvalidProtobuf",
        "InvalidGraph",
    )


def test_errors_are_of_both_kinds(tmp_path):
    with pytest.raises(NoSuchFile) as caught:
        compat.InferenceSession(str(tmp_path / "none.onnx"))
    assert isinstance(caught.value, TriremeError)
    with pytest.raises(InvalidProtobuf):
        compat.InferenceSession(b"\x01\x02 no model")
    with pytest.raises(InvalidArgument, match="Invalid output name: z"):
        compat.InferenceSession(model(SIGMOID)).run(["z"], {"x": X})


@BOTH
@pytest.mark.filterwarnings("ignore")
def test_what_scripts_call_on_the_way(ort):
    """Calls of many scripts that change no result."""
    ort.set_default_logger_severity(3)
    ort.disable_telemetry_events()
    assert ort.get_device() in ("CPU", "GPU") and "CPUExecutionProvider" in ort.get_all_providers()
    session = ort.InferenceSession(model(SIGMOID))
    session.disable_fallback()
    session.set_providers(["CPUExecutionProvider"])
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert set(session.get_provider_options()) == {"CPUExecutionProvider"}
    assert session.run(["y"], {"x": X})[0].shape == X.shape
    with pytest.raises(AttributeError):
        ort.no_such_name  # noqa: B018


@pytest.mark.parametrize(
    "module, name",
    [
        ("_pybind_state", "get_available_providers"),
        ("_pybind_state", "SessionOptions"),
        ("onnxruntime_pybind11_state", "InvalidArgument"),
        ("onnxruntime_inference_collection", "InferenceSession"),
    ],
)
def test_names_that_programs_take_from_inner_modules(module, name):
    """NudeNet takes providers from `onnxruntime.capi._pybind_state`, for one."""
    own = importlib.import_module(f"trireme.compat.onnxruntime.capi.{module}")
    assert set(own.__all__) <= set(dir(importlib.import_module(f"onnxruntime.capi.{module}")))
    assert getattr(own, name) is getattr(compat, name, getattr(own, name))
