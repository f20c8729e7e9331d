"""The strip of the status page: static models, open ones at the sizes of their last run."""

import json

import numpy as np
import pytest
from raw_http import Wire, get, json_request
from served import serving

pytest.importorskip("uvicorn")

import trireme  # noqa: E402
from trireme.ir.builder import GraphBuilder  # noqa: E402
from trireme.ir.graph import TensorType  # noqa: E402
from trireme.serving.status import _summed_up  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_calibration")


def open_graph():
    """A product and a softmax over rows whose number is open."""
    b = GraphBuilder("open")
    x = b.input("x", TensorType(("rows", 64), "float32"))
    w = b.constant("w", np.ones((64, 64), np.float32))
    return b.finish(b.add("softmax", b.add("matmul", x, w), axis=-1))


def staged_graph():
    """A graph whose nodes of the second half have as many rows as the first makes non-zeros."""
    b = GraphBuilder("staged")
    x = b.input("x", TensorType(("rows",), "float32"))
    places = b.add("non_zero", b.add("relu", x))
    return b.finish(b.add("softmax", b.add("cast", places, to="float32"), axis=-1))


def rows(count):
    return {"name": "x", "shape": [count, 64], "datatype": "FP32", "data": [0.5] * (64 * count)}


def placement(wire):
    return json.loads(wire.ask(get("/status/placement?model=open&version=1")).body)


def test_an_open_model_has_a_strip_at_the_sizes_of_its_last_run():
    with serving({"open": open_graph()}) as server, Wire(server) as wire:
        assert "pieces" not in placement(wire)
        found = []
        for count in (4, 4096):
            answer = wire.ask(json_request("/v2/models/open/infer", [rows(count)]))
            assert answer.status == 200
            found.append(placement(wire))
    for one, count in zip(found, (4, 4096), strict=True):
        assert [piece["device"] for piece in one["pieces"]] == ["cpu"]
        assert one["pieces"][0]["nodes"] == 2 and one["copies"] == 0
        assert f"x [{count}, 64]" in one["stages"][0]
    assert found[1]["makespan_s"] > 10 * found[0]["makespan_s"]


def test_the_regions_of_a_model_in_stages_follow_each_other():
    graph = staged_graph()
    with trireme.Session(graph) as session:
        assert _summed_up(session) == {"stages": []}
        session.run({"x": np.arange(-5, 5000, dtype=np.float32)})
        found = _summed_up(session)
        placed = session.region_placements()
        assert placed and found["pieces"] and len(found["stages"]) == len(session.stages)
        assert any("then host: non_zero" in stage for stage in found["stages"])
        assert sum(piece["nodes"] for piece in found["pieces"]) == sum(
            len(one.source.nodes) for one in placed
        )
        assert found["makespan_s"] == sum(one.makespan_s for one in placed)


def test_a_static_session_has_one_placement():
    b = GraphBuilder("static")
    graph = b.finish(b.add("relu", b.input("x", TensorType((4,), "float32"))))
    with trireme.Session(graph) as session:
        assert session.region_placements() == (session.placement,)


@pytest.mark.parametrize("make", [open_graph, staged_graph])
def test_estimates_are_those_of_a_session_made_for_the_sizes(make):
    graph = make()
    shape = tuple(300 if isinstance(d, str) else d for d in graph.type(graph.inputs[0]).shape)
    with trireme.Session(graph) as session:
        session.run({"x": np.ones(shape, np.float32)})
        placed = session.region_placements()
    if len(session.stages) == 1 and not session.stages[0].steps:
        with trireme.Session(graph, shapes={"x": shape}) as fixed:
            (one,) = placed
            assert one.makespan_s == pytest.approx(fixed.placement.makespan_s)
    assert all(one.makespan_s > 0 for one in placed)
