"""Models whose weights lie in files of their own: an entry of the model cache is used while each
file that it was made of is the same, whether files are mapped or read.
"""

import os
import shutil

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import trireme
from trireme.model_file.cache import optimised
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.errors import ModelFileError

WIDTH = 64
X = np.linspace(-1, 1, WIDTH, dtype=np.float32).reshape(1, WIDTH)


def weights(seed):
    print("seed", seed)
    return np.random.default_rng(seed).standard_normal((WIDTH, WIDTH)).astype(np.float32)


@pytest.fixture
def path(tmp_path):
    """A model that multiplies x by the matrix in weights.bin."""
    w = onnx.numpy_helper.from_array(weights(1), "w")
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, WIDTH]) for n in "xy"]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "external", ends[:1], ends[1:], [w])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    path = tmp_path / "model.onnx"
    onnx.save_model(
        model, path, save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    return path


def run(path, **options):
    cached = ExecutionOptions(model_cache=path.parent / "cache", **options)
    with Session(path, execution_options=cached) as session:
        return session.run({"x": X})["y"]


def expect(found, w):
    np.testing.assert_allclose(found, X @ w, rtol=1e-5, atol=1e-5)


def replace_file(path, data):
    """Put another file in the place of one, as exporters do."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(data)
    os.replace(fresh, path)


@pytest.mark.parametrize("mmap", [True, False])
def test_other_weights_in_the_data_file_are_seen(path, mmap):
    for _ in range(2):
        expect(run(path, mmap=mmap), weights(1))
    replace_file(path.with_name("weights.bin"), weights(2).tobytes())
    for _ in range(2):
        expect(run(path, mmap=mmap), weights(2))


def test_a_missing_data_file_is_an_error_though_the_graph_is_cached(path):
    run(path)
    path.with_name("weights.bin").unlink()
    with pytest.raises(ModelFileError, match=r"weights\.bin does not exist"):
        run(path)


def test_a_link_to_other_weights_is_followed(path):
    data = path.with_name("weights.bin")
    other = data.with_name("other.bin")
    other.write_bytes(weights(2).tobytes())
    first = data.rename(data.with_name("first.bin"))
    data.symlink_to(first)
    expect(run(path), weights(1))
    data.unlink()
    data.symlink_to(other)
    expect(run(path), weights(2))


def test_a_moved_model_is_converted_again(path, tmp_path):
    run(path)
    there = tmp_path / "there"
    there.mkdir()
    for name in ("model.onnx", "weights.bin"):
        shutil.move(path.with_name(name), there / name)
    replace_file(there / "weights.bin", weights(2).tobytes())
    expect(run(there / "model.onnx"), weights(2))


@pytest.mark.parametrize("mmap", [True, False])
def test_an_entry_holds_no_weights_and_a_hit_reads_them_in_place(path, mmap):
    folder = path.parent / "cache"
    first = optimised(path, folder=folder, mmap=mmap)
    (entry,) = folder.glob("*.graph")
    assert entry.stat().st_size < weights(1).nbytes / 2
    again = optimised(path, folder=folder, mmap=mmap)
    for graph in (first, again):
        (w,) = (value.data for value in graph.values.values() if value.data is not None)
        np.testing.assert_array_equal(w, weights(1).T)
        assert not w.flags.writeable and not w.flags.owndata


def test_a_session_that_does_not_map_survives_a_truncated_file(path):
    with Session(path, execution_options=ExecutionOptions(mmap=False, model_cache=None)) as session:
        with path.with_name("weights.bin").open("r+b") as file:
            file.truncate(0)
        expect(session.run({"x": X})["y"], weights(1))


def test_bytes_cannot_name_other_files(path):
    with pytest.raises(ModelFileError, match="came as bytes"):
        trireme.convert(path.read_bytes())
