"""The pipeline of passes: its switches, its report, and the time that it takes."""

import time
from dataclasses import replace

import pytest
from model_builder import Model, batch_norm, conv, f32, ints
from same_results import assert_same_results

from trireme.ir.builder import scalar
from trireme.ir.rules import Rewritten
from trireme.ir.verify import check
from trireme.passes import pipeline
from trireme.passes.pipeline import PASSES, optimise, optimise_report
from trireme.support.errors import GraphError, InternalError

ELSEWHERE = (
    "quantize_folding",
    "known_branches",
    "narrow_bodies",
    "loop_invariants",
    "counted_loops",
    "set_rows",
    "symbolic_shapes",
)
"""Passes whose switches other files test."""


def every_kind():
    """A graph in which every pass but the one for Q/DQ has something to do."""
    m = Model(x=f32(1, 3, 8, 8))
    y = m.op("identity", m.op("sub", m.x, scalar(0.5)))
    y = batch_norm(m, conv(m, m.op("pad", y, ints(0, 0, 1, 1, 0, 0, 1, 1)), 3, 4), 4)
    y = m.op("relu", y)
    z = m.op("add", conv(m, y, 4, 4), y)
    z = m.op("mul", z, m.op("sigmoid", z))
    for shape in (ints(8, 50), ints(20, 20)):
        z = m.op("transpose", m.op("reshape", z, shape), perm=(1, 0))
    z = m.op("reshape", z, ints(1, 4, 10, 10))
    z = m.op("reduce_mean", z, m.op("add", ints(1, 2), ints(1, 1)), keepdims=0)
    m.op("neg", z)
    return m.finish(m.op("add", m.op("tanh", z), m.op("tanh", z)))


@pytest.mark.parametrize("name", [name for name in PASSES if name not in ELSEWHERE])
def test_each_pass_has_a_switch(name):
    graph = every_kind()
    report = optimise_report(graph)
    assert any(one.counts for one in report.passes if one.name == name)
    off = optimise_report(graph, disable=[name])
    assert name not in {one.name for one in off.passes}
    assert_same_results(graph, off.graph, tol=1e-4)
    alone = optimise_report(graph, passes=[name])
    assert {one.name for one in alone.passes} == {name}
    assert_same_results(graph, alone.graph, tol=1e-4)


def test_the_whole_pipeline_once_is_enough():
    made = optimise(every_kind())
    assert optimise(made) is made
    check(made)


def test_unknown_passes_are_refused():
    with pytest.raises(GraphError, match="unknown pass nonsense"):
        optimise(every_kind(), disable=["nonsense"])


def test_the_report_says_what_was_done():
    report = optimise_report(every_kind())
    assert sum(one.counts.get("pad into", 0) for one in report.passes) == 1
    assert "fuse_pad" in str(report) and "1 x pad into" in str(report)
    assert report.passes[0].nodes_before == len(every_kind().nodes)


def a_thousand_nodes():
    m = Model(x=f32(1, 4, 6, 6))
    y = m.x
    for i in range(200):
        z = m.op("relu", batch_norm(m, conv(m, y, 4, 4, seed=i), 4))
        y = m.op("add", m.op("identity", z), y)
    return m.finish(y)


def test_a_thousand_nodes_become_four_hundred():
    graph = a_thousand_nodes()
    assert len(graph.nodes) == 1000
    assert len(optimise(graph).nodes) < 410


def _with_type(graph, value, **changes):
    old = graph.values[value]
    new = replace(old, type=replace(old.type, **changes))
    return replace(graph, values={**graph.values, value: new})


def _with_name(graph, value, name):
    return replace(graph, values={**graph.values, value: replace(graph.values[value], name=name)})


WRONG_PASSES = {
    "an inner type": lambda g: _with_type(g, g.nodes[0].outputs[0], shape=(4,)),
    "an output's type": lambda g: _with_type(g, g.outputs[1], shape=("?", 3)),
    "an output's name": lambda g: _with_name(g, g.outputs[0], "z"),
    "the outputs": lambda g: replace(g, outputs=g.outputs[::-1]),
    "an input's type": lambda g: _with_type(g, g.inputs[1], shape=(9,)),
    "an input's name": lambda g: _with_name(g, g.inputs[1], "z"),
    "the inputs": lambda g: replace(g, inputs=g.inputs[:1]),
    "the order": lambda g: replace(g, nodes=g.nodes[::-1]),
}
"""Passes that break a rule, by what they change."""


@pytest.mark.parametrize("kind", WRONG_PASSES)
def test_a_pass_that_breaks_a_graph_is_named(kind, monkeypatch):
    """Whatever a pass makes of types, inputs or outputs is seen where that pass ends."""
    m = Model(x=f32("n", 3), unread=f32(2))
    y = m.op("cast", m.x, to="float64")
    graph = m.finish(y, m.op("exp", y))
    wrong = WRONG_PASSES[kind]
    monkeypatch.setattr(pipeline, "PASSES", {"spoil": lambda g: Rewritten(wrong(g), {"a": 1})})
    with pytest.raises(InternalError, match="pass spoil") as raised:
        optimise(graph)
    assert "report" in raised.value.fix


def test_a_graph_that_was_broken_before_is_no_fault_of_a_pass():
    m = Model(x=f32(3))
    graph = m.finish(m.op("exp", m.op("neg", m.x)), m.op("identity", m.op("identity", m.x)))
    with pytest.raises(GraphError, match="the op makes"):
        optimise(_with_type(graph, graph.nodes[0].outputs[0], shape=(4,)))


@pytest.mark.timed
def test_a_thousand_nodes_take_a_second():
    graph = a_thousand_nodes()
    assert min(_seconds(graph) for _ in range(3)) < 1.0


def _seconds(graph):
    start = time.perf_counter()
    optimise(graph)
    return time.perf_counter() - start
