"""Control nodes on arrays of any shape, against ONNX Runtime and the references."""

from dataclasses import replace

import numpy as np
import pytest
from programs import GROWING, PROGRAMS, UNTIL, VARYING, f32, peer

from trireme.backend.registry import open_device
from trireme.cost.calibration import Calibration
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import evaluate
from trireme.ir.op import get_op
from trireme.model_file.convert import convert
from trireme.ops.repeats import GOING, TURN
from trireme.runtime.control.bodies import MOST_BODIES
from trireme.runtime.control.body import Workshop
from trireme.runtime.control.dynamic import ControlFlow
from trireme.runtime.program.options import ExecutionOptions
from trireme.support.errors import RunError


@pytest.fixture(scope="module")
def workshop():
    devices = {name: open_device(name) for name in ("cpu", "host")}
    yield Workshop(devices, Calibration())
    for device in devices.values():
        device.close()


def run(flow, graph, feeds):
    """The outputs of a graph whose control nodes `flow` runs, the others numpy."""
    env = {v.id: v.data for v in graph.values.values() if v.data is not None}
    env |= {v.id: np.asarray(feeds[v.name]) for v in graph.input_values()}
    for node in graph.nodes:
        operands = [None if i is None else env[i] for i in node.inputs]
        inner = get_op(node.op).has_body
        made = flow.run_control(node, operands) if inner else evaluate(graph, node, operands)
        env.update(zip(node.outputs, made, strict=True))
    return {v.name: env[v.id] for v in graph.output_values()}


@pytest.mark.parametrize("program", PROGRAMS + VARYING, ids=lambda one: one.name)
def test_control_nodes_on_arrays_equal_onnx_runtime(program, workshop):
    model = program.model()
    graph, flow = convert(model), ControlFlow(workshop)
    for feeds in (*program.feeds, *program.feeds, *program.feeds):
        found, wanted = run(flow, graph, feeds), peer(model, feeds)
        for name, right in wanted.items():
            assert found[name].dtype == right.dtype and found[name].shape == right.shape
            np.testing.assert_allclose(found[name], right, rtol=1e-5, atol=1e-6)
    assert all(use.body or use.why for use in flow.uses)
    vary = program.name in ("data", "growing", "unequal")
    assert vary or any(use.body for use in flow.uses)


def test_bodies_whose_types_vary_are_bounded_and_run_by_numpy_where_they_do_little(workshop):
    graph, flow = convert(GROWING.model()), ControlFlow(workshop)
    run(flow, graph, {"n": np.array(3 * MOST_BODIES), "x": f32(1, 2)})
    assert 3 <= len(flow.uses) <= 10
    assert {use.why for use in flow.uses} == {"its types vary, and it has little work"}


def test_a_body_runs_the_same_way_every_time(workshop):
    """Who runs a body is seen from its types, so a first run has the bits of a later one."""
    graph = convert(UNTIL.model())
    feeds = {"limit": np.array(9, np.float32), "start": np.array(True), "x": f32(1, 2, 3)}
    flow = ControlFlow(workshop)
    run(flow, graph, feeds)
    (use,) = flow.uses
    assert use.body is not None and use.why == "" and use.runs == 1
    body, runs = use.body, use.runs
    run(flow, graph, feeds)
    assert use.body is body and use.runs == 2 * runs


def test_a_body_whose_types_vary_is_compiled_where_it_has_much_work(workshop):
    body = GraphBuilder("much")
    body.input("turn", TURN)
    going, x = body.input("going", GOING), body.input("x", TensorType(("n", 256), "float32"))
    w = body.constant("w", np.eye(256, dtype=np.float32))
    body = body.finish(going, body.add("matmul", x, w))
    b = GraphBuilder("g")
    most = b.input("most", TensorType((), "int64"))
    x = b.input("x", TensorType(("n", 256), "float32"))
    graph = b.finish(b.add("loop", most, None, x, body=body, carried=1, names=["y"]))
    flow, rng = ControlFlow(workshop), np.random.default_rng(0)
    for rows, compiled in ((64, True), (2, False)):
        x = rng.standard_normal((rows, 256)).astype(np.float32)
        found = run(flow, graph, {"most": np.array(3), "x": x})
        np.testing.assert_array_equal(found["y"], x)
        assert (flow.uses[-1].body is not None) is compiled


def test_what_cannot_be_compiled_says_why(workshop):
    data = VARYING[-1]
    graph, flow = convert(data.model()), ControlFlow(workshop)
    run(flow, graph, data.feeds[0])
    use = flow.uses[-1]
    assert use.runs == 5 and "is not known before it runs" in use.why


def test_a_loop_without_end_times_out(workshop):
    flow = ControlFlow(replace(workshop, options=ExecutionOptions(timeout_s=0.2)))
    feeds = {"limit": np.array(np.inf, np.float32), "start": np.array(True), "x": f32(0, 0, 0)}
    with pytest.raises(RunError, match=r"did not end within 0.2 s: [\d,]+ turns are done"):
        run(flow, convert(UNTIL.model()), feeds)
