"""Replicas: runs dealt out to sessions on threads, in order and bit for bit."""

import threading

import numpy as np
import pytest

from trireme.builder import GraphBuilder
from trireme.calibration import Calibration
from trireme.device import open_device
from trireme.errors import RunError
from trireme.graph import TensorType
from trireme.parallel.replicas import Replicas
from trireme.session import Session


def model():
    b, rng = GraphBuilder("small"), np.random.default_rng(4)
    x = b.input("x", TensorType((1, 12, 12, 5), "float32"))
    w = b.constant("w", rng.standard_normal((7, 3, 3, 5)).astype(np.float32))
    attrs = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    y = b.add("conv", x, w, activation="relu", **attrs)
    return b.finish(b.add_node("softmax", [y], {"axis": -1}, names=["y"])[0])


def counter():
    b = GraphBuilder("counter")
    x = b.input("x", TensorType((8,), "float32"))
    old = b.add("variable", b.constant("zeros", np.zeros(8, np.float32)), state="s")
    y = b.add("add", x, old)
    b.add("assign", y, state="s")
    return b.finish(y)


def items(count):
    rng = np.random.default_rng(1)
    return [{"x": rng.standard_normal((1, 12, 12, 5)).astype(np.float32)} for _ in range(count)]


@pytest.fixture(scope="module")
def replicas():
    with Replicas(model(), 3, calibration=Calibration()) as opened:
        yield opened


@pytest.mark.parametrize("count", [0, 1, 5, 60])
def test_outputs_keep_order_and_bits(replicas, count):
    feeds = items(count)
    with Session(model(), threads=1, calibration=Calibration()) as session:
        want = [session.run(one)["y"] for one in feeds]
    got = [output["y"] for output in replicas.stream(feeds)]
    assert [a.tobytes() for a in got] == [a.tobytes() for a in want]
    assert replicas.flow.depth == 6
    assert replicas.flow.steady_s == pytest.approx(replicas.flow.alone_s / 3)


def test_an_item_that_does_not_fit_is_named(replicas):
    feeds = items(4)
    feeds[1] = {"x": np.zeros(3, np.float32)}
    stream, got = replicas.stream(feeds), []
    for number in range(4):
        try:
            next(stream)
            got.append(number)
        except RunError as error:
            assert str(error).startswith("item 1 of the stream: ")
    assert got == [0, 2, 3] and next(stream, None) is None


def test_a_stream_that_is_left_can_be_followed_by_another(replicas):
    with replicas.stream(items(50)) as stream:
        next(stream)
        with pytest.raises(RunError, match="a stream of these replicas is under way"):
            replicas.stream(items(1))
    assert len(list(replicas.stream(items(9)))) == 9
    assert not [t for t in threading.enumerate() if t.name.startswith("trireme-replica")]


def test_what_cannot_be_replicated_is_said():
    with pytest.raises(RunError, match="a model with states cannot be replicated"):
        Replicas(counter(), 2, devices=["cpu"], passes=())
    device = open_device("cpu", threads=1)
    with pytest.raises(RunError, match="2 replicas on"):
        Replicas(model(), 2, devices=[device])
    device.close()
    with pytest.raises(RunError, match="0 replicas on"):
        Replicas(model(), 0)
