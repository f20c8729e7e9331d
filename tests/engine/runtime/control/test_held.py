"""Bodies are held by locks, counted in memory and drawn in traces, as other nodes are."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import parser
from programs import COUNTED, HEAD, NESTED, peer
from toy_device import ToyDevice
from trace_rules import check_trace

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.model_file.convert import convert
from trireme.ops.repeats import GOING, TURN
from trireme.placement.lock import lock
from trireme.placement.lock_changes import differences
from trireme.placement.lockfile import load_lock, save_lock
from trireme.placement.options import PlacementOptions
from trireme.profiling.trace import chrome_trace
from trireme.runtime.session.session import Session
from trireme.support.errors import PlacementError, PlanError

INNER = ("y", "body", "inner", "body")


def test_a_lock_holds_the_nodes_of_bodies(tmp_path):
    model, names = NESTED.model(), ["cpu", "opencl"]
    with Session(model, devices=names) as session:
        locked = lock(session.placement)
        wanted = session.run(NESTED.feeds[0])
    where = {(n.body, n.name): n.device for n in locked.nodes}
    assert where[INNER, "odd"] == "cpu"
    moved = tuple(
        replace(n, device="opencl") if n.body and n.device == "cpu" else n for n in locked.nodes
    )
    save_lock(replace(locked, nodes=moved), tmp_path / "lock.toml")
    held = load_lock(tmp_path / "lock.toml")
    assert held.nodes == tuple(replace(n, us=pytest.approx(n.us, abs=1e-3)) for n in moved)
    with Session(model, devices=names, placement=held) as session:
        there = lock(session.placement)
        assert {n.device for n in there.nodes if n.body} == {"opencl", "host"}
        assert differences(held, there) == []
        (line, *_) = differences(locked, there)
        assert line.startswith("~ y / body / ")
        for name, right in wanted.items():
            np.testing.assert_allclose(session.run(NESTED.feeds[0])[name], right, rtol=1e-4)


def test_a_placement_that_is_held_holds_its_bodies():
    model = convert(COUNTED.model())
    with Session(model, devices=["opencl"]) as session:
        placed = session.placement
    with Session(placed.source, devices=["cpu", "opencl"], placement=placed) as session:
        assert {n.device for n in lock(session.placement).nodes if n.body} == {"opencl"}


def test_a_single_device_that_has_nodes_in_bodies_alone():
    """It was refused, because the graph itself is a loop, which the host drives."""
    alone, feeds = PlacementOptions(single_device="opencl"), COUNTED.feeds[0]
    with Session(COUNTED.model(), devices=["cpu", "opencl"], placement_options=alone) as session:
        assert {n.device for n in lock(session.placement).nodes if n.body} == {"opencl"}
        for name, right in peer(COUNTED.model(), feeds).items():
            np.testing.assert_allclose(session.run(feeds)[name], right, rtol=1e-4)
    with pytest.raises(PlacementError, match="opencl alone is no placement"):
        Session(COUNTED.model(), devices=["cpu"], placement_options=alone)


def test_a_lock_of_another_body_is_an_error():
    with Session(COUNTED.model()) as session:
        locked = lock(session.placement)
    other = COUNTED.text.replace("t = Add(a, x)", "h = Neg(a)  t = Add(h, x)")
    model = parser.parse_model(HEAD + other).SerializeToString()
    with pytest.raises(PlacementError, match="the locked placement is of another graph"):
        Session(model, placement=locked)


def test_kernels_of_bodies_lie_in_their_node_in_a_trace():
    with Session(NESTED.model()) as session:
        events = check_trace(chrome_trace(session.profile(NESTED.feeds[3], runs=2)))
    bodies = [event for event in events if event.get("cat") == "body"]
    (loop,) = [e for e in events if e.get("cat") == "node" and e["pid"] == 1]
    assert {event["pid"] for event in bodies} == {1}
    assert all(
        loop["ts"] <= one["ts"] and one["ts"] + one["dur"] <= loop["ts"] + loop["dur"] + 1e-6
        for one in bodies
    )
    turns = {event["args"]["in"].split(" / ")[-1]: event["args"]["turns"] for event in bodies}
    assert turns["then_branch"] == 4 and turns["else_branch"] == 16
    inner = [one for one in bodies if one["name"].startswith("loop")]
    assert len(inner) == 1 and inner[0]["args"]["turns"] == 4


def with_weights(count):
    """A graph of loops, each with a mebibyte of weights in its body."""
    row, b = TensorType((1, 512), "float32"), GraphBuilder("g")
    n, x = b.input("n", TURN), b.input("x", row)
    for number in range(count):
        body = GraphBuilder("body")
        body.input("turn", TURN)
        going, s = body.input("going", GOING), body.input("s", row)
        w = body.constant("w", np.full((512, 512), number, np.float32))
        body = body.finish(going, body.add("matmul", s, w))
        x = b.add("loop", n, None, x, body=body, carried=1)
    return b.finish(x)


def test_weights_of_bodies_count_in_reports():
    feeds = {"n": np.array(2), "x": np.zeros((1, 512), np.float32)}
    with Session(with_weights(2)) as session:
        (row,) = session.profile(feeds, runs=1).memory
        assert row.constant_bytes >= 2 << 20
        assert row.arena_bytes >= row.lower_bound_bytes > 0


def test_bodies_that_do_not_fit_together_are_an_error():
    """A body of 1 MiB fits a memory of 1.5 MiB; two of them do not."""
    device = ToyDevice("npu", memory_bytes=3 << 19)
    feeds = {"n": np.array(2), "x": np.ones((1, 512), np.float32)}
    with Session(with_weights(1), devices=[device]) as session:
        assert list(session.run(feeds).values())[0].shape == (1, 512)
    with pytest.raises(PlanError, match=r"bytes are needed of npu, its memory has 1572864"):
        Session(with_weights(2), devices=[device])
