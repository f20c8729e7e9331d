"""Optimised graphs kept on disk: the same graph comes back, views of the model's file, and an entry
is used for just the file, the options and the code that it was made of.
"""

import os

import numpy as np
import pytest
from big_model import big_model

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.model_file.cache import optimised
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.disk_cache import DiskCache

SEED = 12


@pytest.fixture
def rng():
    print("seed", SEED)
    return np.random.default_rng(SEED)


def entries(folder):
    return sorted(folder.glob("*.graph"))


def same(a, b):
    assert str(a) == str(b) and a.inputs == b.inputs and a.outputs == b.outputs
    for i, value in a.values.items():
        other = b.values[i]
        assert (value.data is None) == (other.data is None) and value.name == other.name
        if value.data is not None:
            np.testing.assert_array_equal(value.data, other.data)


def test_the_same_graph_comes_back(rng, tmp_path):
    path, folder = tmp_path / "big.onnx", tmp_path / "cache"
    path.write_bytes(big_model(rng)[0].SerializeToString())
    first = optimised(path, folder=folder)
    (entry,) = entries(folder)
    second = optimised(path, folder=folder)
    same(first, second)
    assert entries(folder) == [entry]
    assert entry.stat().st_size < path.stat().st_size / 5
    weights = max(second.values.values(), key=lambda v: 0 if v.data is None else v.data.nbytes).data
    assert not weights.flags.owndata and not weights.flags.writeable


def test_other_files_and_options_have_other_entries(rng, tmp_path):
    path, folder = tmp_path / "big.onnx", tmp_path / "cache"
    path.write_bytes(big_model(rng)[0].SerializeToString())
    optimised(path, folder=folder)
    optimised(path, disable=["fuse_activation"], folder=folder)
    assert len(entries(folder)) == 2
    x = rng.standard_normal((1, 64, 7, 7)).astype(np.float32)
    with Session(path, execution_options=ExecutionOptions(model_cache=folder)) as session:
        before = session.run({"x": x})["z"]
    path.write_bytes(big_model(rng)[0].SerializeToString())  # other weights, the same size
    os.utime(path, ns=(1, 1))
    with Session(path, execution_options=ExecutionOptions(model_cache=folder)) as session:
        after = session.run({"x": x})["z"]
    with Session(path, execution_options=ExecutionOptions(model_cache=None)) as session:
        np.testing.assert_array_equal(session.run({"x": x})["z"], after)
    assert len(entries(folder)) == 3 and not np.array_equal(before, after)


def test_a_damaged_entry_is_made_again(rng, tmp_path, caplog):
    path, folder = tmp_path / "big.onnx", tmp_path / "cache"
    path.write_bytes(big_model(rng)[0].SerializeToString())
    first = optimised(path, folder=folder)
    (entry,) = entries(folder)
    whole = entry.read_bytes()
    for damaged in (b"", whole[:40], whole[:-1], whole[:50] + b"\xff" + whole[51:]):
        entry.write_bytes(damaged)
        same(first, optimised(path, folder=folder))
        assert "damaged" in caplog.text
        assert entry.read_bytes() == whole
    DiskCache(folder, ".graph", 10).store(entry.stem, b"\x05\0\0\0\0\0\0\0{}   rest")
    same(first, optimised(path, folder=folder))
    assert "could not be used" in caplog.text


def test_every_kind_of_model_file(rng, tmp_path):
    builder = GraphBuilder("small")
    x = builder.input("x", TensorType((1, 64), "float32"))
    w = builder.constant("w", rng.standard_normal((32, 64)).astype(np.float32))
    graph = builder.finish(builder.add("relu", builder.add("fully_connected", x, w), names=["y"]))
    path = tmp_path / "small.trm"
    trireme.save(graph, path)
    feed = {"x": rng.standard_normal((1, 64)).astype(np.float32)}
    results = []
    for _ in range(2):
        with Session(
            path, execution_options=ExecutionOptions(model_cache=tmp_path / "cache")
        ) as session:
            results.append(session.run(feed)["y"])
    np.testing.assert_array_equal(*results)
    assert len(entries(tmp_path / "cache")) == 1
