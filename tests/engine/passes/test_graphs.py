"""What passes do to graphs inside nodes, to effect orders, and to the names of things."""

import numpy as np
import pytest
from model_builder import Model, conv, f32, ints, weights
from same_results import assert_same_results, op_names

from trireme.ir.builder import scalar
from trireme.ir.graph import Graph
from trireme.ir.rewriter import GraphRewriter, merged_source
from trireme.ir.rules import rules_by_op
from trireme.passes.pipeline import optimise


def branch(op):
    m = Model(x=f32(3))
    return m.finish(m.op("mul", m.op("identity", m.op(op, m.x)), scalar(1.0)))


def choose(m, condition, x):
    return m.op("if", condition, x, then_branch=branch("relu"), else_branch=branch("neg"))


def test_bodies_are_optimised_too():
    m = Model(c=f32(), x=f32(3))
    graph = m.finish(choose(m, m.op("cast", m.c, to="bool"), m.x))
    made = optimise(graph)
    body = made.nodes[-1].attrs["then_branch"]
    assert isinstance(body, Graph) and op_names(body) == "relu"
    assert_same_results(graph, made)
    assert optimise(made) is made


@pytest.mark.parametrize(("condition", "op"), [(True, "relu"), (False, "neg")])
def test_a_known_branch_is_put_in_place(condition, op):
    m = Model(x=f32(3))
    graph = m.finish(m.op("tanh", choose(m, np.array(condition), m.x)))
    made = optimise(graph)
    assert op_names(made) == f"{op} tanh"
    assert op_names(optimise(graph, disable=["known_branches"])) == "if tanh"
    assert_same_results(graph, made)


def test_nodes_in_an_effect_order_are_left_alone():
    m = Model(x=f32(3))
    m.op("identity", m.x)
    first = m.op("identity", m.x, after=[0])
    graph = m.finish(m.op("add", m.op("identity", first, after=[1]), scalar(0.0)))
    made = optimise(graph)
    assert op_names(made) == "identity identity"
    assert [node.after for node in made.nodes] == [(), (0,)]
    assert_same_results(graph, made)


def test_names_sources_and_symbols_stay():
    m = Model(x=f32("N", 3, 8, 8))
    m.symbols["N"] = (1, 16)
    y = m.op("relu", conv(m, m.x, 3, 4, source="onnx:Conv_1"), source="onnx:Relu_2", names=["mid"])
    graph = m.finish(m.op("identity", y, source="onnx:Out_3", names=["out"]))
    made = optimise(graph)
    assert [v.name for v in made.input_values()] == ["x"]
    assert [v.name for v in made.output_values()] == ["out"]
    assert made.symbols == {"N": (1, 16)}
    assert "onnx:Conv_1+Relu_2" in {node.source for node in made.nodes}
    assert_same_results(graph, made, tol=1e-6)


def test_sources_of_different_files_are_kept_whole():
    m = Model(x=f32(3))
    y = m.op("relu", m.op("relu", m.x, source="a:1+2"), source="b:3")
    assert merged_source(m.finish(y).nodes) == "a:1+2+b:3"


def test_a_rule_that_gives_up_leaves_nothing_behind():
    def half_way(g, node):
        g.add("tanh", [node.used[0]], {}, [node])

    m = Model(x=f32(3))
    graph = m.finish(m.op("relu", m.x))
    draft = GraphRewriter(graph)
    draft.walk(rules_by_op((["relu"], half_way)))
    assert str(draft.finish()) == str(graph)


def test_readers_of_a_stand_in_learn_its_type():
    def sized(g, node):
        return (g.add("reshape", [node.used[0], g.constant(ints(2, 3))], {}, [node]),)

    m = Model(x=f32("N", 3))
    y = m.op("tanh", m.op("relu", m.op("identity", m.x)))
    draft = GraphRewriter(m.finish(m.op("add", y, m.op("neg", y))))
    draft.walk(rules_by_op((["identity"], sized)))
    made = draft.finish()
    assert [str(made.type(node.outputs[0])) for node in made.nodes] == ["float32[2,3]"] * 5


def test_weights_are_shared_not_copied():
    m = Model(x=f32(2, 64))
    w = m.constant("w", weights(8, 64))
    graph = m.finish(m.op("relu", m.op("fully_connected", m.x, w)))
    made = optimise(graph)
    assert any(value.data is graph.values[w].data for value in made.values.values())


def test_infinite_and_missing_numbers_survive():
    m = Model(x=f32(1, 6))
    y = m.op("mul", m.op("add", m.op("mul", m.x, scalar(2.0)), scalar(1.0)), scalar(0.5))
    graph = m.finish(m.op("relu", y), m.op("mul", m.x, m.op("sigmoid", m.x)))
    feeds = [np.array([[np.nan, np.inf, -np.inf, -0.0, 3e38, 1e-40]], np.float32)]
    made = optimise(graph, disable=["canonicalise"])  # sums of constants overflow elsewhere
    assert_same_results(graph, made, tol=1e-6, feeds=feeds)
