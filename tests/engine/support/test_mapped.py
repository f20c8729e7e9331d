"""Weights as views of mapped files: what the converters take out of protobuf's hands, and pages
given back.
"""

import sys

import numpy as np
import pytest
from big_model import big_model
from onnx.reference import ReferenceEvaluator

from trireme.converters.onnx.strip import LARGE_BYTES, strip
from trireme.model_file.convert import convert
from trireme.runtime.session.session import Session
from trireme.support.mapped import open_file, release

SEED = 11


@pytest.fixture
def rng():
    print("seed", SEED)
    return np.random.default_rng(SEED)


def test_large_tensors_are_views_of_the_file(rng, tmp_path):
    model, weights = big_model(rng)
    path = tmp_path / "big.onnx"
    path.write_bytes(model.SerializeToString())
    stripped = strip(memoryview(path.read_bytes()))
    assert len(stripped) < 2 * LARGE_BYTES
    graph = convert(path)
    data = next(v.data for v in graph.values.values() if v.name == "w")
    np.testing.assert_array_equal(data, weights)
    assert not data.flags.owndata and not data.flags.writeable
    read = convert(path, mmap=False)
    whole = convert(path.read_bytes())
    for other in (read, whole):
        assert str(other) == str(graph)
        for a, b in zip(graph.values.values(), other.values.values(), strict=True):
            assert (a.data is None) == (b.data is None)
            if a.data is not None:
                np.testing.assert_array_equal(a.data, b.data)


def test_weights_are_good_after_their_pages_were_given_back(rng, tmp_path):
    model, weights = big_model(rng)
    path = tmp_path / "big.onnx"
    path.write_bytes(model.SerializeToString())
    x = rng.standard_normal((1, 64, 7, 7)).astype(np.float32)
    with Session(path, threads=1) as session:
        first = session.run({"x": x})["z"]
        found = [v.data for v in session.graph.values.values() if v.data is not None]
        assert any(np.array_equal(np.moveaxis(weights, 1, -1), data) for data in found)
        np.testing.assert_array_equal(session.run({"x": x})["z"], first)
    reference = ReferenceEvaluator(model).run(None, {"x": x})[0]
    np.testing.assert_allclose(first, reference, rtol=1e-4, atol=1e-4)


def test_strip_leaves_what_it_does_not_understand(rng):
    """Nothing is ever added, whatever is broken; what is no protobuf at all stays as it is."""
    whole = big_model(rng, channels=16)[0].SerializeToString()
    for size in range(0, len(whole), 97):
        assert len(strip(memoryview(whole[:size]))) <= size
    for _ in range(300):
        broken = bytearray(whole)
        broken[int(rng.integers(len(broken)))] = int(rng.integers(256))
        assert len(strip(memoryview(bytes(broken)))) <= len(broken)
    assert strip(memoryview(b"\x0b\x0c")) == b"\x0b\x0c"


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_release_gives_pages_back(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(b"\x01" * (64 << 20))
    before = resident_bytes()
    data = open_file(path).data
    assert data.sum(dtype=np.int64) == 64 << 20
    assert resident_bytes() - before > 48 << 20
    release(data[12345:].reshape(-1, 1)[::2])
    assert resident_bytes() - before < 16 << 20
    assert data[::4096].min() == 1


def test_release_of_other_memory_does_nothing(tmp_path):
    path = tmp_path / "empty"
    path.write_bytes(b"")
    for data in (
        np.ones(5),
        np.ones(0),
        open_file(path).data,
        open_file(path, use_mmap=False).data,
        np.array(3)[()],
    ):
        array = np.asarray(data)
        before = array.tobytes()
        release(array)
        assert array.tobytes() == before
