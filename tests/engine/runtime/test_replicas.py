"""Replicas: sessions on threads take runs in turn, in order and bit for bit."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from trireme.backend.device import DeviceSpec
from trireme.backend.registry import open_device
from trireme.cost.calibration import Calibration
from trireme.devices.cpu.runtime.cores import all_cores
from trireme.devices.cpu.runtime.native import has_futex
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.placement.options import PlacementOptions
from trireme.runtime.program.options import AS_GIVEN
from trireme.runtime.session.replicas import Replicas, profile_stream
from trireme.runtime.session.session import Session
from trireme.runtime.streams.round_robin import interchangeable
from trireme.support.errors import RunError

THROUGHPUT = PlacementOptions(objective="throughput")


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
        Replicas(counter(), 2, devices=["cpu"], execution_options=AS_GIVEN)
    device = open_device("cpu", threads=1)
    with pytest.raises(RunError, match="2 replicas on"):
        Replicas(model(), 2, devices=[device])
    device.close()
    with pytest.raises(RunError, match="0 replicas on"):
        Replicas(model(), 0)


def test_whole_runs_are_taken_in_turn_where_a_pipeline_is_predicted_to_be_slower():
    """One long convolution: two stages cannot share it, two runs can be side by side."""
    if len(all_cores()) < 2 or not has_futex():
        pytest.skip("instances need Linux and two cores")
    builder = GraphBuilder("long")
    x = builder.input("x", TensorType((1, 256, 256), "float32"))
    w = np.random.default_rng(1).standard_normal((256, 256)).astype(np.float32) / 16
    y = builder.add("matmul", builder.add("relu", x), builder.constant("w", w))
    graph = builder.finish(builder.add("tanh", y, names=["y"]))
    rng = np.random.default_rng(2)
    feeds = [{"x": rng.standard_normal((1, 256, 256), np.float32)} for _ in range(23)]
    options = {"devices": ["cpu#1", "cpu#2"], "threads": 1, "placement_options": THROUGHPUT}
    with Session(graph, threads=1) as one:
        want = [one.run(each)["y"] for each in feeds]
    with Session(graph, calibration=Calibration(), **options) as session:
        for _ in range(2):
            with session.stream(feeds) as stream:
                assert len(stream.dispatcher.programs) == 2
                assert "whole runs in turn" in stream.flow.why and "a pipeline" in stream.flow.why
                for got, expected in zip(stream, want, strict=True):
                    np.testing.assert_array_equal(got["y"], expected)
        bad = [*feeds[:3], {"x": np.zeros(3, np.float32)}, feeds[4]]
        with session.stream(bad) as stream:
            for number, expected in enumerate(want[:5]):
                if number == 3:
                    with pytest.raises(RunError, match="item 3"):
                        next(stream)
                else:
                    np.testing.assert_array_equal(next(stream)["y"], expected)
        report = str(profile_stream(session, feeds[0], 8))
        assert "4 in flight (whole runs in turn, 2 for each of cpu#1, cpu#2" in report
        with session.stream(feeds[:2], depth=2) as stream:
            assert len(stream.dispatcher.programs) == 1, "a depth is a pipeline's"
    for other in (PlacementOptions(), replace(THROUGHPUT, sharding=["y=cpu#1,cpu#2:rows"])):
        given = {"calibration": Calibration(), **options, "placement_options": other}
        with Session(graph, **given) as session, session.stream(feeds[:2]) as stream:
            assert len(stream.dispatcher.programs) == 1


def test_which_devices_are_interchangeable():
    def spec(name, description="1 threads", memory="host"):
        return DeviceSpec(name, description, {}, 1.0, 0.0, memory=memory)

    rows = [
        spec("cpu#1"),
        spec("cpu#2"),
        spec("cpu#3", "2 threads"),
        spec("npu#1", memory="npu#1"),
        spec("npu#2", memory="npu#2"),
        spec("host"),
    ]
    assert interchangeable({row.name: row for row in rows}) == ["cpu#1", "cpu#2"]
    assert interchangeable({"cpu#1": rows[0], "cpu": spec("cpu")}) == []


def test_states_and_pins_mean_a_pipeline():
    if len(all_cores()) < 2 or not has_futex():
        pytest.skip("instances need Linux and two cores")
    builder = GraphBuilder("pinned")
    x = builder.input("x", TensorType((4,), "float32"))
    y = builder.add("relu", builder.add("neg", x, pin="cpu#1"), pin="cpu#2", names=["y"])
    graph = builder.finish(y)
    options = {"devices": ["cpu#1", "cpu#2"], "placement_options": THROUGHPUT, "threads": 1}
    feeds = [{"x": np.zeros(4, np.float32)}]
    with Session(graph, **options) as session, session.stream(feeds) as stream:
        assert len(stream.dispatcher.programs) == 1


def test_replicas_hold_what_the_first_of_them_measured():
    with Replicas(model(), 2, devices=["npu", "cpu"], measure=True) as opened:
        first, second = (session.placement for session in opened.sessions)
        assert first.measured and not second.measured
        assert first.device_of == second.device_of and first.stage_of == second.stage_of
