"""Runs on bound arrays: nothing large is copied, and what is copied is said with its reason."""

import array
import asyncio
import mmap
import tracemalloc

import numpy as np
import pytest

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.runtime.calls.bound_run import REASONS
from trireme.runtime.session.session import Session
from trireme.support.errors import RunError

SIDE = 256
LARGE = TensorType((SIDE, SIDE), "float32")
OPEN = TensorType(("n", SIDE), "float32")


def graph_of(x=LARGE):
    b = GraphBuilder("g")
    value = b.input("x", x)
    return b.finish(b.add("mul", value, b.add("tanh", value), names=["y"]))


def answer(x):
    return x * np.tanh(x)


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module", params=[LARGE, OPEN], ids=["fixed", "open"])
def session(request):
    with Session(graph_of(request.param)) as session:
        yield session


class OfDlpack:
    """An array of another library."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def test_runs_read_and_write_where_the_arrays_are(session):
    x, y = random(SIDE, SIDE), np.empty((SIDE, SIDE), np.float32)
    bound = session.bind({"x": x}, {"y": y})
    assert bound.copies == ()
    for seed in range(3):
        x[...] = random(SIDE, SIDE, seed=seed)
        assert bound.run()["y"] is y
        np.testing.assert_allclose(y, answer(x), rtol=1e-5, atol=1e-6)
    tracemalloc.start()
    try:
        bound.run()
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(5):
            bound.run()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < x.nbytes // 8  # no array of the size of an input


def test_outputs_without_an_array_have_one_that_stays(session):
    bound = session.bind({"x": random(SIDE, SIDE)})
    first = bound.run()["y"]
    assert bound.run()["y"] is first is bound.outputs["y"]
    assert bound.copies == ()


def test_requests_run_on_bound_arrays(session):
    bound = session.bind({"x": random(SIDE, SIDE)})
    expected = answer(bound.inputs["x"])
    outputs = bound.run_async(timeout_s=20).result(20)
    assert outputs["y"] is bound.outputs["y"]
    np.testing.assert_allclose(outputs["y"], expected, rtol=1e-5, atol=1e-6)

    async def main():
        return await asyncio.wrap_future(bound.run_async())

    assert asyncio.run(main())["y"] is bound.outputs["y"]


def forms(x, tmp_path):
    """The bytes of an array in every form that is taken."""
    path = tmp_path / "x"
    path.write_bytes(x.tobytes())
    read_only = x.copy()
    read_only.flags.writeable = False
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return {
        "numpy": x.copy(),
        "read-only": read_only,
        "dlpack": OfDlpack(x.copy()),
        "memoryview": memoryview(x.copy()),
        "bytes": x.tobytes(),
        "bytearray": bytearray(x.tobytes()),
        "mmap": mapped,
    }


def test_every_form_of_an_input_is_read_where_it_is(tmp_path):
    x = random(SIDE, SIDE, seed=5)
    with Session(graph_of()) as session:
        for name, given in forms(x, tmp_path).items():
            bound = session.bind({"x": given})
            assert {one.reason for one in bound.copies} <= {"alignment"}, name
            assert np.may_share_memory(bound.inputs["x"], np.asarray(bound.inputs["x"]))
            np.testing.assert_allclose(bound.run()["y"], answer(x), rtol=1e-5, atol=1e-6)
        shared = bytearray(x.tobytes())
        bound = session.bind({"x": shared})
        shared[:] = (2 * x).tobytes()
        np.testing.assert_allclose(bound.run()["y"], answer(2 * x), rtol=1e-5, atol=1e-6)


def test_outputs_go_into_buffers():
    b = GraphBuilder("g")
    graph = b.finish(b.add("neg", b.input("x", TensorType((4,), "float32")), names=["y"]))
    place = array.array("f", [0] * 4)
    raw = bytearray(16)
    with Session(graph) as session:
        for given in (place, raw):
            session.bind({"x": np.arange(4, dtype=np.float32)}, {"y": given}).run()
    assert list(place) == np.frombuffer(raw, np.float32).tolist() == [0, -1, -2, -3]


def test_each_copy_is_said_with_its_reason():
    b = GraphBuilder("g")
    x, s = b.input("x", LARGE), b.input("s", TensorType((1, SIDE), "float32"))
    y = b.add("add", b.add("tanh", x), s, names=["y"])
    graph = b.finish(y, b.add("relu", y, names=["z"]))
    apart = random(SIDE, 2 * SIDE)[:, ::2]
    memory = np.zeros(SIDE * SIDE * 4 + 16, np.uint8)
    first = (4 - memory.ctypes.data) % 16
    odd = memory[first : first + SIDE * SIDE * 4].view(np.float32).reshape(SIDE, SIDE)
    with Session(graph) as session:
        bound = session.bind({"x": apart, "s": random(1, SIDE)}, {"z": odd})
        told = {one.name: (one.direction, one.reason, one.nbytes) for one in bound.copies}
        assert told["x"] == ("input", "layout", apart.nbytes)
        assert told["s"] == ("input", "small", SIDE * 4)
        assert told["z"] == ("output", "alignment", odd.nbytes)
        for one in bound.copies:
            assert REASONS[one.reason] in str(one) and one.name in str(one)
        outputs = bound.run()
        expected = np.tanh(apart) + bound.inputs["s"]
        np.testing.assert_allclose(outputs["y"], expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(odd, np.maximum(expected, 0), rtol=1e-5, atol=1e-5)


def test_an_output_over_its_input_is_copied_and_right(session):
    x = random(SIDE, SIDE)
    expected = answer(x)
    bound = session.bind({"x": x}, {"y": x})
    assert [(one.name, one.reason) for one in bound.copies] == [("y", "overlap")]
    bound.run()
    np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-6)


def test_an_output_whose_shape_a_run_tells_is_new_each_time():
    b = GraphBuilder("g")
    x = b.input("x", TensorType((8,), "float32"))
    with Session(b.finish(b.add("non_zero", x, names=["y"]))) as session:
        bound = session.bind({"x": np.array([0, 1, 0, 2, 0, 0, 0, 3], np.float32)})
        assert ("y", "unknown_shape") in [(one.name, one.reason) for one in bound.copies]
        assert bound.run()["y"].tolist() == [[1, 3, 7]]


@pytest.mark.parametrize(
    "feeds, out, sentence",
    [
        ({}, None, "missing: x"),
        ({"x": random(SIDE, SIDE).astype(np.float64)}, None, "float64"),
        ({"x": random(SIDE, 2)}, None, r"float32\[256,2\]"),
        ({"x": [[1.0]]}, None, "is a list, expected an array of numpy, an object of DLPack"),
        ({"x": b"123"}, None, "a buffer of 3 bytes"),
        ({"x": random(SIDE, SIDE)}, {"z": None}, "no output is called z"),
        ({"x": random(SIDE, SIDE)}, {"y": random(SIDE, 3)}, r"out\['y'\] is float32\[256,3\]"),
        ({"x": random(SIDE, SIDE)}, {"y": bytes(4 * SIDE * SIDE)}, "read-only"),
    ],
)
def test_what_cannot_be_bound_is_refused(feeds, out, sentence):
    with Session(graph_of()) as session, pytest.raises(RunError, match=sentence):
        session.bind(feeds, out)
