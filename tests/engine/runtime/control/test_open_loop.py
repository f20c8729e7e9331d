"""Loops whose number of turns only a run knows: native, with rows that grow in place."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import parser
from programs import HEAD, f32, peer

from trireme.backend.registry import open_device
from trireme.cost.calibration import Calibration
from trireme.model_file.convert import convert
from trireme.runtime.control.bodies import MANY_TURNS
from trireme.runtime.control.body import Workshop
from trireme.runtime.control.dynamic import ControlFlow
from trireme.runtime.control.open_loop import FIRST_TURNS, OpenLoop
from trireme.runtime.control.repeat import DRIVEN, NATIVE
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.errors import RunError

ROWS = """
rows (int64 n, float stop, float[{n}] x) => (float[{n}] y, float[m,{n}] all, int64[m2] turns)
{{
    y, all, turns = Loop (n, , x) <body = turn
        (int64 i, bool going, float[{n}] s) => (bool more, float[{n}] t, float[{n}] row, int64 at)
        {{ t = Add(s, x)  {row}  at = Identity(i)
           first = ReduceMax <keepdims = 0> (t)  more = Less(first, stop) }}
    >
}}
"""
PLAIN = "row = Mul(t, x)"
HALF = """two = Constant <value = int64 {{2}}> ()  rest = Mod(i, two)  odd = Cast <to = 9> (rest)
row = If (odd) <
    then_branch = one () => (float[{n}] p) {{ p = Mul(t, x) }},
    else_branch = two () => (float[{n}] q) {{ q = Neg(t) }} >"""


def rows_model(n, row=PLAIN):
    text = ROWS.replace("{row}", row).format(n=n)
    return parser.parse_model(HEAD + text).SerializeToString()


@pytest.fixture(scope="module")
def workshop():
    devices = {name: open_device(name) for name in ("cpu", "host")}
    yield Workshop(devices, Calibration())
    for device in devices.values():
        device.close()


def run(flow, graph, feeds):
    """What `flow` makes of a graph of one control node."""
    (node,) = graph.nodes
    env = {value.id: feeds[value.name] for value in graph.input_values()}
    operands = [None if i is None else env.get(i, graph.values[i].data) for i in node.inputs]
    return dict(
        zip([v.name for v in graph.output_values()], flow.run_control(node, operands), strict=False)
    )


@pytest.mark.parametrize(("row", "kernel"), [(PLAIN, NATIVE), (HALF, DRIVEN)])
@pytest.mark.parametrize("n", [1, 3, 64, 9000])
def test_rows_grow_in_place(n, row, kernel, workshop):
    model = rows_model(n, row)
    graph, flow = convert(model), ControlFlow(workshop)
    rng = np.random.default_rng(n)
    x = np.abs(rng.standard_normal(n)).astype(np.float32) + 1
    edges = (FIRST_TURNS - 1, FIRST_TURNS, FIRST_TURNS + 1, 2 * FIRST_TURNS, 5 * FIRST_TURNS)
    for most, stop in ((0, 9), (1, 9), *((edge, np.inf) for edge in edges), (3, np.inf)):
        feeds = {"n": np.array(most), "stop": np.array(stop, np.float32), "x": x}
        assert_same(run(flow, graph, feeds), peer(model, feeds))
    loops = [use.body for use in flow.uses if isinstance(use.body, OpenLoop)]
    assert [loop.kernel for loop in loops] == [kernel]


def assert_same(found, wanted):
    for name, right in wanted.items():
        assert found[name].shape == right.shape and found[name].dtype == right.dtype
        np.testing.assert_allclose(found[name], right, rtol=1e-5)


@pytest.mark.parametrize("turns", [1, 2, FIRST_TURNS - 1, FIRST_TURNS, FIRST_TURNS + 1, 200])
def test_a_condition_ends_a_loop_at_any_turn(turns, workshop):
    """Turn FIRST_TURNS is the last that the first room holds: it may be the last of all, or not."""
    model = rows_model(3)
    graph, flow = convert(model), ControlFlow(workshop)
    for most in (1 << 40, turns, turns + 1):  # without end, and exactly so many
        feeds = {"n": np.array(most), "stop": np.float32(turns + 1), "x": f32(1, 1, 1)}
        found = run(flow, graph, feeds)
        assert found["turns"].tolist() == list(range(turns))
        np.testing.assert_array_equal(found["y"], f32(1, 1, 1) * (turns + 1))
        np.testing.assert_array_equal(found["all"][:, 0], np.arange(turns) + 2)


def test_results_are_the_callers_own(workshop):
    graph, flow = convert(rows_model(3)), ControlFlow(workshop)
    feeds = {"n": np.array(5), "stop": np.float32(np.inf), "x": f32(1, 2, 3)}
    first = run(flow, graph, feeds)
    kept = {name: array.copy() for name, array in first.items()}
    run(flow, graph, feeds | {"x": f32(7, 8, 9)})
    for name, array in kept.items():
        np.testing.assert_array_equal(first[name], array)
        first[name][...] = 0


SCAN = """
scan (float[3] h, float[{shape}] xs) => (float[3] last, float[{out}] all)
{{
    last, all = Scan (h, xs) <num_scan_inputs = 1, scan_input_axes = [{axis}],
        scan_input_directions = [{back}], scan_output_axes = [{to}],
        scan_output_directions = [{turned}], body = step
        (float[3] s, float[3] x) => (float[3] t, float[3] row)
        {{ t = Add(s, x)  row = Mul(t, x) }}
    >
}}
"""


@pytest.mark.parametrize("back", [0, 1])
@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize(("axis", "to"), [(0, 0), (0, 1), (1, 0), (1, -1)])
def test_a_scan_of_any_length_is_one_loop(axis, to, back, turned, workshop):
    shape, out = ("T,3", "3,T")[axis], ("T,3", "3,T")[to]
    text = SCAN.format(shape=shape, out=out, axis=axis, back=back, to=to, turned=turned)
    model = parser.parse_model(HEAD + text).SerializeToString()
    graph, flow, rng = convert(model), ControlFlow(workshop), np.random.default_rng(0)
    for length in (1, 5, 200, 2):
        xs = rng.standard_normal((length, 3) if axis == 0 else (3, length)).astype(np.float32)
        feeds = {"h": f32(1, 2, 3), "xs": xs}
        found, wanted = run(flow, graph, feeds), peer(model, feeds)
        for name, right in wanted.items():
            np.testing.assert_allclose(found[name], right, rtol=1e-4, atol=1e-4)
    (use,) = flow.uses
    assert use.runs == 4 and use.body.kernel == NATIVE


def test_a_loop_of_open_shapes_is_compiled_where_it_has_many_turns(workshop):
    text = ROWS.replace("{row}", PLAIN).format(n="k")
    graph, flow = (
        convert(parser.parse_model(HEAD + text).SerializeToString()),
        ControlFlow(workshop),
    )
    for turns, compiled in ((MANY_TURNS - 1, False), (MANY_TURNS, True)):
        feeds = {"n": np.array(turns), "stop": np.float32(np.inf), "x": f32(1, 2)}
        found = run(flow, graph, feeds)
        np.testing.assert_array_equal(found["y"], f32(1, 2) * (turns + 1))
        assert any(isinstance(use.body, OpenLoop) for use in flow.uses) is compiled


def test_rows_that_grow_do_not_get_more_time(workshop):
    flow = ControlFlow(replace(workshop, options=ExecutionOptions(timeout_s=0.2)))
    feeds = {"n": np.array(1 << 60), "stop": np.float32(np.inf), "x": np.zeros(1, np.float32)}
    with pytest.raises(RunError, match=r"did not end within 0.2 s: [\d,]+ turns are done"):
        run(flow, convert(rows_model(1)), feeds)


def test_a_session_with_rows_of_open_length_equals_onnx_runtime():
    model = rows_model(4)
    with Session(model) as session:
        for most in (0, 3, 1000, 7):
            feeds = {"n": np.array(most), "stop": np.array(500, np.float32), "x": f32(1, 2, 0, 1)}
            assert_same(session.run(feeds), peer(model, feeds))
