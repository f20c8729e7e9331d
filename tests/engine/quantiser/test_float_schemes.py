"""Schemes float16 and dynamic: native kernels, the error, files, and ONNX Runtime beside."""

import numpy as np
import onnxruntime
import pytest
from float_graphs import conv_net, samples_of
from onnxruntime.quantization import quantize_dynamic
from ort_models import PLACES, WORDS, bert

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import run_reference

SEED = 3


def db(real, made):
    return 10 * np.log10(np.sum(real**2.0) / np.sum((real - made) ** 2.0))


def bert_feeds(seed):
    rng, dims = np.random.default_rng(seed), (2, PLACES)
    mask = np.ones(dims, np.int64)
    mask[1, -3:] = 0
    return {"ids": rng.integers(0, WORDS, dims), "mask": mask}


def kernels_of(graph, feeds):
    with trireme.Session(graph, devices=["cpu"]) as session:
        (found,) = session.run(feeds).values()
        return found, str(session.profile(feeds, runs=1))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("bert") / "bert.onnx"
    path.write_bytes(bert().SerializeToString())
    return path


@pytest.mark.parametrize(("scheme", "least_db"), [("float16", 60), ("dynamic", 35)])
def test_a_transformer_runs_on_native_kernels(path, scheme, least_db):
    made, feeds = trireme.quantize(path, scheme=scheme), bert_feeds(SEED)
    real = next(iter(run_reference(trireme.convert(path), feeds).values()))
    found, kernels = kernels_of(made, feeds)
    assert db(real, found) > least_db, f"seed {SEED}"
    assert "reference" not in kernels and "numpy" not in kernels
    assert ("levels" in kernels or "int8" in kernels) == (scheme == "dynamic"), kernels
    np.testing.assert_allclose(
        found, next(iter(run_reference(made, feeds).values())), rtol=1e-3, atol=1e-3
    )


def test_dynamic_has_no_more_error_than_onnx_runtimes(path, tmp_path):
    theirs = tmp_path / "dynamic.onnx"
    quantize_dynamic(path, theirs, per_channel=True)
    sessions = [
        onnxruntime.InferenceSession(str(p), providers=["CPUExecutionProvider"])
        for p in (path, theirs)
    ]
    made = trireme.quantize(path, scheme="dynamic")
    errors = np.zeros(2)
    with trireme.Session(made) as session:
        for seed in range(4):
            feeds = bert_feeds(seed)
            real, other = (one.run(None, feeds)[0] for one in sessions)
            (found,) = session.run(feeds).values()
            errors += [np.sum((real - other) ** 2.0), np.sum((real - found) ** 2.0)]
    assert errors[1] < errors[0], errors


@pytest.mark.parametrize(("scheme", "least_db"), [("float16", 55), ("dynamic", 25)])
def test_convolutions(scheme, least_db):
    net = conv_net(SEED)
    made = trireme.quantize(net, samples_of(net, 4, SEED), scheme=scheme)
    feeds = {k: v[0] for k, v in samples_of(net, 1, SEED + 1).items()}
    (real,) = run_reference(net, feeds).values()
    found, kernels = kernels_of(made, feeds)
    assert db(real, found) > least_db, f"seed {SEED}"
    assert "reference" not in kernels
    assert made.quantization.outputs[0].snr_db > least_db
    assert {one.op for one in made.quantization.weights} == {"conv", "fully_connected"}


@pytest.mark.parametrize("scheme", ["float16", "dynamic"])
def test_files_are_smaller_and_other_programs_read_them(path, tmp_path, scheme):
    made = trireme.quantize(path, scheme=scheme)
    trireme.save(made, tmp_path / "q.trm")
    trireme.export(made, tmp_path / "q.onnx")
    share = {"float16": 0.7, "dynamic": 0.6}[scheme]
    assert (tmp_path / "q.trm").stat().st_size < share * path.stat().st_size
    feeds = bert_feeds(SEED)
    want = next(iter(run_reference(made, feeds).values()))
    session = onnxruntime.InferenceSession(
        str(tmp_path / "q.onnx"), providers=["CPUExecutionProvider"]
    )
    assert db(want, session.run(None, feeds)[0]) > 40


def test_weights_beyond_float16_stay_float():
    b = GraphBuilder("large")
    x = b.input("x", TensorType((1, 8), "float32"))
    w = np.ones((4, 8), np.float32)
    w[1, 2] = 1e6
    y = b.add("fully_connected", x, b.constant("w", w), names=["y"])
    z = b.add("fully_connected", x, b.constant("v", np.ones((3, 8), np.float32)), names=["z"])
    made = trireme.quantize(b.finish(y, z), scheme="float16")
    (kept,) = made.quantization.floats
    assert kept.name == "y" and kept.reason == "its weights exceed 65504, the most of float16"


def test_rows_of_zeros_and_nothing_but_zeros():
    """A row of zeros has a tiny step, and a channel of zeros a scale of one."""
    net = conv_net(SEED)
    made = trireme.quantize(net, scheme="dynamic")
    feeds = {"x": np.zeros((1, 12, 12, 3), np.float32)}
    found, _ = kernels_of(made, feeds)
    (real,) = run_reference(net, feeds).values()
    np.testing.assert_allclose(found, real, atol=0.05)
    with pytest.raises(trireme.GraphError, match="dynamic has no groups, and group is 32"):
        trireme.quantize(net, scheme="dynamic", group=32)
