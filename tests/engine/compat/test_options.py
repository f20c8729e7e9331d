"""Options and providers of ONNX Runtime's interface: honoured, without effect, or refused."""

import json
import pathlib

import onnxruntime
import pytest
from ort_programs import BOTH, SIGMOID, X, model

import trireme.compat.onnxruntime as compat
from trireme.compat.onnxruntime.capi.onnxruntime_pybind11_state import (
    InvalidArgument,
)
from trireme.support.errors import TriremeError


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
