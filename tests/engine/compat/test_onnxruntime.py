"""Programs for ONNX Runtime with the import changed: the same answers, both run side by side."""

import importlib
import json
import pathlib
import threading
import time

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser
from ort_models import bert, conv_net, inputs_of

import trireme.compat.onnxruntime as compat
from trireme.compat.onnxruntime.capi.onnxruntime_pybind11_state import (
    Fail,
    InvalidArgument,
    InvalidProtobuf,
    NoSuchFile,
)
from trireme.support.errors import TriremeError

WAIT_S = 20
HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
SIGMOID = HEAD + "sigmoid (float[n, 4, 5] x) => (float[n, 4, 5] y) { y = Sigmoid(x) }"
TWO = (
    HEAD
    + """two (float[n, 3] a, float[n, 3] b) => (float[n, 3] total, float[n] most, int64[n] where)
{
    total = Add(a, b)
    most = ReduceMax <axes = [1], keepdims = 0>(total)
    where = ArgMax <axis = 1, keepdims = 0>(total)
}"""
)
MANY = """many (float[2, 3] f, double[2] d, int32[unk, 3] i, uint8[4] u, bool[2] b, string[2] s,
    float16[2] h) => (float[2, 3] F, double[2] D, int32[m, 3] I, uint8[4] U, bool[2] B,
    string[2] S, float16[2] H)
{
    F = Neg(f)  D = Neg(d)  I = Neg(i)  U = Identity(u)  B = Not(b)  S = Identity(s)  H = Neg(h)
}"""
X = np.random.default_rng(15).standard_normal((3, 4, 5)).astype(np.float32)
A = np.random.default_rng(16).standard_normal((2, 3)).astype(np.float32)
BOTH = pytest.mark.parametrize("ort", [onnxruntime, compat], ids=["onnxruntime", "trireme"])


def model(text):
    return parser.parse_model(text).SerializeToString()


def network():
    """A small convolutional network with weights."""
    rng = np.random.default_rng(1)
    text = (
        HEAD
        + """net (float[n, 3, 16, 16] image) => (float[n, 10] scores)
    {
        a = Conv <pads = [1, 1, 1, 1], strides = [2, 2]>(image, w, c)
        r = Relu(a)
        p = GlobalAveragePool(r)
        f = Flatten(p)
        m = MatMul(f, v)
        scores = Softmax <axis = 1>(m)
    }"""
    )
    proto = parser.parse_model(text)
    shapes = {"w": (8, 3, 3, 3), "c": (8,), "v": (8, 10)}
    for name, shape in shapes.items():
        data = rng.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(data, name))
    proto.producer_name, proto.domain, proto.model_version = "tests", "org.trireme", 7
    proto.doc_string, proto.graph.doc_string = "a model", "its graph"
    onnx.helper.set_model_props(proto, {"author": "nobody", "classes": "10"})
    return proto.SerializeToString()


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
def test_ort_values(ort):
    """Values of ONNX Runtime that own or share memory, given to a run."""
    value = ort.OrtValue.ortvalue_from_numpy(X)
    assert (value.device_name(), value.shape()) == ("cpu", [3, 4, 5])
    assert value.data_type() == "tensor(float)" and value.element_type() == 1
    assert value.is_tensor() and value.has_value() and not value.is_sparse_tensor()
    assert value.tensor_size_in_bytes() == X.nbytes
    np.testing.assert_array_equal(value.numpy(), X)
    session = ort.InferenceSession(model(SIGMOID))
    expected = session.run(["y"], {"x": X})[0]
    np.testing.assert_array_equal(session.run(["y"], {"x": value})[0], expected)
    (result,) = session.run_with_ort_values(["y"], {"x": value})
    np.testing.assert_array_equal(result.numpy(), expected)
    fresh = ort.OrtValue.ortvalue_from_shape_and_type([3, 4, 5], np.float32, "cpu", 0)
    fresh.update_inplace(X)
    np.testing.assert_array_equal(fresh.numpy(), X)


@BOTH
def test_bind_a_cpu_input_and_copy_outputs(ort):
    session = ort.InferenceSession(model(SIGMOID))
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    (y,) = binding.copy_outputs_to_cpu()
    np.testing.assert_allclose(y, 1 / (1 + np.exp(-X)), rtol=1e-5)


@BOTH
def test_bind_memory_by_its_address(ort):
    session = ort.InferenceSession(model(SIGMOID))
    x = ort.OrtValue.ortvalue_from_numpy(X, "cpu", 0)
    y = ort.OrtValue.ortvalue_from_shape_and_type([3, 4, 5], np.float32, "cpu", 0)
    binding = session.io_binding()
    binding.bind_input("x", x.device_name(), 0, np.float32, x.shape(), x.data_ptr())
    binding.bind_output("y", y.device_name(), 0, np.float32, y.shape(), y.data_ptr())
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(y.numpy(), 1 / (1 + np.exp(-X)), rtol=1e-5)
    np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), y.numpy())


@BOTH
def test_bind_values_and_outputs_of_unknown_shapes(ort):
    session = ort.InferenceSession(model(TWO))
    binding = session.io_binding()
    binding.bind_ortvalue_input("a", ort.OrtValue.ortvalue_from_numpy(A))
    binding.bind_cpu_input("b", A)
    total = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    binding.bind_output("where", "cpu")
    binding.bind_ortvalue_output("total", total)
    for _ in range(2):
        session.run_with_iobinding(binding)
    where, sums = (value.numpy() for value in binding.get_outputs())
    np.testing.assert_array_equal(where, (A + A).argmax(1))
    np.testing.assert_array_equal(sums, A + A)
    np.testing.assert_array_equal(total.numpy(), A + A)
    binding.clear_binding_inputs()
    binding.clear_binding_outputs()


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
def test_free_dimensions_get_sizes(ort):
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("n", 3)
    session = ort.InferenceSession(model(SIGMOID), options)
    assert session.get_inputs()[0].shape == [3, 4, 5]
    assert session.run(None, {"x": X})[0].shape == X.shape


@BOTH
def test_profiling_writes_a_trace(ort, tmp_path):
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "trace_")
    options.add_free_dimension_override_by_name("n", 3)
    session = ort.InferenceSession(model(SIGMOID), options)
    session.run(None, {"x": X})
    name = session.end_profiling()
    assert name.startswith(str(tmp_path / "trace_"))
    events = json.loads(pathlib.Path(name).read_text())
    assert len(events["traceEvents"] if isinstance(events, dict) else events) > 1


def test_defaults_of_options_are_the_same():
    own = {"sizes", "token"}
    for kind in ("SessionOptions", "RunOptions"):
        real, ours = getattr(onnxruntime, kind)(), getattr(compat, kind)()
        names = [name for name in dir(ours) if not name.startswith("_") and name not in own]
        values = [name for name in names if not callable(getattr(ours, name))]
        assert len(values) > 3
        for name in values:
            expected = getattr(real, name)
            assert getattr(ours, name) == getattr(expected, "value", expected), name


@pytest.mark.parametrize(
    "name, value",
    [
        ("enable_mem_pattern", False),
        ("enable_cpu_mem_arena", False),
        ("inter_op_num_threads", 2),
        ("log_severity_level", 0),
        ("logid", "mine"),
    ],
)
def test_options_without_effect_warn(name, value):
    options = compat.SessionOptions()
    with pytest.warns(compat.CompatibilityWarning, match=name):
        setattr(options, name, value)
    assert getattr(options, name) == value


def test_what_cannot_be_honoured_is_refused():
    options = compat.SessionOptions()
    for act in (
        lambda: setattr(options, "optimized_model_filepath", "m.onnx"),
        lambda: options.register_custom_ops_library("ops.so"),
        lambda: options.add_initializer("w", None),
        lambda: compat.OrtValue.ortvalue_from_numpy(X, "cuda", 0),
        lambda: compat.RunOptions().add_active_adapter(None),
        lambda: compat.set_seed(3),
    ):
        with pytest.raises(TriremeError, match=r"not supported|cannot be bound"):
            act()
    with pytest.raises(AttributeError, match="no option 'intra_threads'"):
        options.intra_threads = 2
    with pytest.raises(AttributeError, match="has no 'SparseTensor'"):
        compat.SparseTensor  # noqa: B018
    with pytest.raises(InvalidArgument, match="intra_op_num_threads = -1"):
        options.intra_op_num_threads = -1


def test_providers_are_devices_and_others_warn():
    with pytest.warns(compat.CompatibilityWarning, match="CUDAExecutionProvider has no effect"):
        session = compat.InferenceSession(
            model(SIGMOID), providers=["CUDAExecutionProvider", "CPUExecutionProvider"]
        )
    assert session.get_providers() == ["CPUExecutionProvider"]
    npu = ("TriremeExecutionProvider", {"devices": "npu,cpu"})
    options = compat.SessionOptions()
    options.add_free_dimension_override_by_name("n", 3)
    session = compat.InferenceSession(model(SIGMOID), options, providers=[npu])
    assert set(session.session.devices) >= {"npu", "cpu"}
    with pytest.raises(InvalidArgument, match="no option 'device'"):
        compat.InferenceSession(
            model(SIGMOID), providers=[("TriremeExecutionProvider", {"device": "npu"})]
        )


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


def test_calls_without_effect_warn():
    session = compat.InferenceSession(model(SIGMOID))
    for act in (
        lambda: compat.set_default_logger_severity(0),
        lambda: compat.set_default_logger_verbosity(0),
        compat.enable_telemetry_events,
        session.enable_fallback,
    ):
        with pytest.warns(compat.CompatibilityWarning, match="has no effect in trireme"):
            act()


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
