"""known_branches: the steps of a scan of known length become plain nodes, which every device runs;
against the references and ONNX Runtime.
"""

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import interpret, run_reference
from trireme.model_file.convert import convert
from trireme.ops.repeats import GOING, TURN
from trireme.passes.branches import MOST_UNROLLED
from trireme.passes.pipeline import optimise, optimise_report
from trireme.runtime.session.session import Session

SEED = 51


def scan_model(length=5, turned=0, axis=0, passes_on=False):
    """The bytes of a model: states a (summed up) and b (kept), x cut and its sums stacked.

    axis, turned: None where the model says nothing of them
    """
    f = TensorProto.FLOAT

    def info(*names, shape=(3,)):
        return [helper.make_tensor_value_info(name, f, shape) for name in names]

    kept = "b" if passes_on else "b2"
    nodes = [
        helper.make_node("Mul", ["x", "outer"], ["scaled"]),
        helper.make_node("Add", ["a", "scaled"], ["a2"]),
        helper.make_node("Identity", ["a2"], ["seen"]),
        helper.make_node("Max", ["b", "x"], ["b2"]),
    ]
    body = helper.make_graph(nodes, "body", info("a", "b", "x"), info("a2", kept, "seen"))
    said = {} if turned is None else {"directions": (turned, turned)}
    said |= {} if axis is None else {"axes": (axis, 1 - axis)}
    attrs = {
        f"scan_{end}_{name}": [at]
        for name, ends in said.items()
        for end, at in zip(("input", "output"), ends, strict=True)
    }
    scan = helper.make_node(
        "Scan",
        ["a0", "b0", "xs"],
        ["a_last", "b_last", "all"],
        body=body,
        num_scan_inputs=1,
        **attrs,
    )
    xs = (3, length) if axis else (length, 3)
    inputs = [*info("a0", "b0", "outer"), *info("xs", shape=xs)]
    outputs = [*info("a_last", "b_last"), *info("all", shape=None)]
    graph = helper.make_graph([scan], "scan", inputs, outputs)
    imports = [helper.make_opsetid("", 22)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()


def feeds_of(graph):
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    return {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in graph.input_values()}


@pytest.mark.parametrize("turned", [None, 0, 1])
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("passes_on", [False, True])
def test_a_scan_of_known_length_is_its_steps(turned, axis, passes_on):
    model = scan_model(turned=turned, axis=axis, passes_on=passes_on)
    graph = convert(model)
    made = optimise(graph, passes=["known_branches"])
    assert "scan" not in {node.op for node in made.nodes}
    feeds = feeds_of(graph)
    wanted = run_reference(graph, feeds)
    found = run_reference(made, feeds)
    peer = onnxruntime.InferenceSession(model).run(list(wanted), feeds)
    with Session(model) as session:
        through = session.run(feeds)
    if passes_on:  # ONNX Runtime 1.31 does not write a state that the body returns as it is
        peer[1] = feeds["b0"]
    for (name, array), other in zip(wanted.items(), peer, strict=True):
        np.testing.assert_array_equal(found[name], array)
        np.testing.assert_allclose(array, other, rtol=1e-5)
        np.testing.assert_allclose(through[name], array, rtol=1e-5)


def test_axes_that_a_scan_does_not_name_are_the_first():
    graph = convert(scan_model(axis=0))
    (scan,) = graph.nodes
    unnamed = {**scan.attrs, "scan_input_axes": (), "scan_input_directions": None}
    same = replace(graph, nodes=(replace(scan, attrs=unnamed),))
    feeds = feeds_of(graph)
    made = optimise(same, passes=["known_branches"])
    assert "scan" not in {node.op for node in made.nodes}
    wanted = run_reference(graph, feeds)
    for name, array in run_reference(made, feeds).items():
        np.testing.assert_array_equal(array, wanted[name])


def test_a_long_scan_stays():
    model = scan_model(length=MOST_UNROLLED)
    (node,) = optimise(convert(model), passes=["known_branches"]).nodes
    assert node.op == "scan"


def looped(turns, nodes=1, going=None, condition=True):
    """A loop of so many turns that adds or takes away, with a row of each turn's number."""
    row = TensorType((3,), "float32")
    body = GraphBuilder("body")
    turn, on = body.input("turn", TURN), body.input("going", GOING)
    x, k = body.input("x", row), body.input("k", row)
    for number in range(nodes):
        x = body.add(("add", "sub")[number % 2], x, k)
    ends = on if going is None else body.constant("ends", np.array(going))
    body = body.finish(ends, x, turn)
    b = GraphBuilder("g")
    x, k = b.input("x", row), b.input("k", row)
    trips = b.constant("n", np.array(turns, np.int64))
    first = b.constant("first", np.array(condition))
    attrs = {"body": body, "carried": 1}
    return b.finish(*b.add_node("loop", [trips, first, x, k], attrs, outputs=2))


@pytest.mark.parametrize(
    ("turns", "nodes", "unrolled"), [(1, 1, True), (4, 2, True), (8, 1, True), (9, 1, False)]
)
def test_a_short_loop_becomes_its_turns(turns, nodes, unrolled):
    graph = looped(turns, nodes)
    report = optimise_report(graph)
    assert ("turns of loop" in str(report)) is unrolled
    assert any(node.op == "loop" for node in report.graph.nodes) is not unrolled
    rng = np.random.default_rng(turns)
    feeds = {value: rng.standard_normal(3).astype(np.float32) for value in graph.inputs}
    wanted = list(interpret(graph, feeds)[value] for value in graph.outputs)
    given = dict(zip(report.graph.inputs, feeds.values(), strict=True))
    found = interpret(report.graph, given)
    for one, right in zip(report.graph.outputs, wanted, strict=True):
        np.testing.assert_array_equal(found[one], right, strict=True)


@pytest.mark.parametrize("ends", [{"going": False}, {"condition": False}])
def test_a_loop_that_a_condition_ends_stays(ends):
    assert any(node.op == "loop" for node in optimise(looped(3, **ends)).nodes)


def test_a_loop_with_a_known_condition_becomes_its_turns():
    assert not any(node.op == "loop" for node in optimise(looped(3, going=True)).nodes)
