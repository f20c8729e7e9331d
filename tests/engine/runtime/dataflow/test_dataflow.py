"""Dataflow primitives give what structured control flow gives, whatever overlaps.

The oracle of programs is plain numpy, written out beside each, and ONNX's own node tests of If,
Loop and Scan. The structured form is the second oracle, to the bit.
"""

import threading
import time

import numpy as np
import pytest
from onnx_cases import array, assert_same, node_cases, ops_in

from trireme.converters.onnx import convert
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import evaluate, interpret
from trireme.ops.repeats import GOING, TURN
from trireme.runtime.dataflow.executor import Executor
from trireme.runtime.dataflow.lower import lower
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.errors import RunError

ROW, NUMBER = TensorType((3,), "float32"), TensorType((), "int64")


def on_references(graph, node, arrays):
    return evaluate(graph, node, arrays)


def run(graph, arrays, workers=0, run_node=on_references, timeout_s=None):
    """The outputs of a graph, and the spans of its ops."""
    executor = Executor(lower(graph), run_node, workers, timeout_s)
    try:
        return executor.run(dict(zip(graph.inputs, arrays, strict=True))), executor.spans
    finally:
        executor.close()


def branch(name, op, *constants):
    b = GraphBuilder(name)
    x = b.input("x", ROW)
    return b.finish(b.add(op, x, *(b.constant("c", np.float32(c)) for c in constants)))


def walk(limit_sum=40.0):
    """A loop: s += k until its sum is too large; rows are s doubled or negated, turn about."""
    body = GraphBuilder("body")
    turn, _ = body.input("turn", TURN), body.input("going", GOING)
    s, k = body.input("s", ROW), body.input("k", ROW)
    made = body.add("add", s, k)
    small = body.add(
        "less", body.add("reduce_sum", made, keepdims=0), body.constant("m", np.float32(limit_sum))
    )
    two, zero = (body.constant(n, np.int64(n)) for n in (2, 0))
    even = body.add("equal", body.add("mod", turn, two), zero)
    row = body.add(
        "if",
        even,
        made,
        then_branch=branch("then", "mul", 2.0),
        else_branch=branch("else", "neg"),
    )
    b = GraphBuilder("walk")
    x, k, most = b.input("x", ROW), b.input("k", ROW), b.input("most", NUMBER)
    loop = b.add_node(
        "loop", [most, None, x, k], {"body": body.finish(small, made, row), "carried": 1}, outputs=2
    )
    return b.finish(*loop)


def walked(x, k, most, limit_sum=40.0):
    rows, turn, going = [], 0, True
    while going and turn < most:
        x = x + k
        rows.append(x * 2 if turn % 2 == 0 else -x)
        going = x.sum() < limit_sum
        turn += 1
    return x, np.array(rows, np.float32).reshape(turn, 3)


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("most", [0, 1, 7, 100])
def test_a_loop_with_a_branch_inside(most, workers):
    feeds = [np.ones(3, np.float32), np.full(3, 0.75, np.float32), np.array(most, np.int64)]
    found, spans = run(walk(), feeds, workers)
    wanted = walked(feeds[0], feeds[1], most)
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        np.testing.assert_array_equal(one, other)
    turns = len(wanted[1])
    assert len(spans) == 6 * turns
    if turns:
        assert str(spans[0]).startswith("loop #0[0] / ")
        assert {span.frames[0][1] for span in spans} == set(range(turns))


def nested():
    """Rows of sums: for each row of x, a loop of its own adds the row as often as it says."""
    inner = GraphBuilder("inner")
    inner.input("turn", TURN)
    going = inner.input("going", GOING)
    total, row = inner.input("total", ROW), inner.input("row", ROW)
    inner = inner.finish(going, inner.add("add", total, row))
    body = GraphBuilder("outer")
    total = body.input("total", ROW)
    row, count = body.input("row", ROW), body.input("count", NUMBER)
    made = body.add("loop", count, None, total, row, body=inner, carried=1)
    body = body.finish(made, body.add("neg", made))
    b = GraphBuilder("nested")
    start = b.constant("start", np.zeros(3, np.float32))
    x, counts = b.input("x", TensorType((4, 3), "float32")), b.input("n", TensorType((4,), "int64"))
    out = b.add_node(
        "scan", [start, x, counts], {"body": body, "carried": 1, "num_scan_inputs": 2}, outputs=2
    )
    return b.finish(*out)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("counts", [[1, 2, 3, 4], [0, 0, 0, 0], [3, 0, 1, 0]])
def test_nested_frames(counts, workers):
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    found, spans = run(nested(), [x, np.array(counts, np.int64)], workers)
    totals = np.cumsum(x * np.array(counts, np.float32)[:, None], 0)
    np.testing.assert_array_equal(found[0], totals[-1])
    np.testing.assert_array_equal(found[1], -totals)
    inside = [span for span in spans if len(span.frames) == 2]
    assert len(inside) == sum(counts)


def test_a_loop_in_a_branch_that_is_not_taken_sends_dead_tokens():
    looped = GraphBuilder("looped")
    x, most = looped.input("x", ROW), looped.input("most", NUMBER)
    looped = looped.finish(looped.add("loop", most, None, x, body=_doubling(), carried=1))
    plain = GraphBuilder("plain")
    x = plain.input("x", ROW)
    plain.input("most", NUMBER)
    plain = plain.finish(x)
    b = GraphBuilder("g")
    condition, x, most = b.input("c", GOING), b.input("x", ROW), b.input("most", NUMBER)
    graph = b.finish(b.add("if", condition, x, most, then_branch=looped, else_branch=plain))
    x = np.ones(3, np.float32)
    for taken in (True, False):
        found, spans = run(graph, [np.array(taken), x, np.array(3, np.int64)])
        np.testing.assert_array_equal(found[0], x * 8 if taken else x)
        assert len(spans) == (3 if taken else 0)


def _doubling():
    b = GraphBuilder("doubling")
    b.input("turn", TURN)
    going, x = b.input("going", GOING), b.input("x", ROW)
    return b.finish(going, b.add("add", x, x))


def test_ops_overlap_in_an_iteration_and_iterations_do_not():
    """A scan whose body makes two rows that do not wait for each other."""
    body = GraphBuilder("body")
    row = body.input("row", ROW)
    body = body.finish(body.add("neg", row), body.add("abs", row))
    b = GraphBuilder("g")
    x = b.input("x", TensorType((6, 3), "float32"))
    scan = {"body": body, "carried": 0, "num_scan_inputs": 1}
    graph = b.finish(*b.add_node("scan", [x], scan, outputs=2))
    at_once, most = set(), [0]
    lock = threading.Lock()

    def slow(graph, node, arrays):
        me = object()
        with lock:
            at_once.add(me)
            most[0] = max(most[0], len(at_once))
        time.sleep(0.02)
        with lock:
            at_once.discard(me)
        return evaluate(graph, node, arrays)

    x = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
    for workers, wanted in ((3, 2), (1, 1)):
        most[0] = 0
        found, _ = run(graph, [x], workers, slow)
        np.testing.assert_array_equal(found[0], -x)
        np.testing.assert_array_equal(found[1], np.abs(x))
        assert most[0] == wanted


def test_an_op_that_fails_names_itself_and_leaves_no_work_behind():
    graph = walk()

    def failing(graph, node, arrays):
        if node.op == "neg":
            raise RunError(f"{node.label}: no")
        return evaluate(graph, node, arrays)

    feeds = [np.ones(3, np.float32), np.zeros(3, np.float32), np.array(9, np.int64)]
    executor = Executor(lower(graph), failing, 2)
    with pytest.raises(RunError, match="neg #"):
        executor.run(dict(zip(graph.inputs, feeds, strict=True)))
    executor.close()


def test_a_loop_without_end_is_given_up():
    feeds = [np.ones(3, np.float32), np.zeros(3, np.float32), np.array(1 << 40, np.int64)]
    with pytest.raises(RunError, match=r"did not end within 0\.05 s"):
        run(walk(), feeds, timeout_s=0.05)


def test_the_form_can_be_read():
    text = str(lower(walk()))
    assert "enter carried(" in text
    assert "frame=loop #0 constant" in text
    assert "next_iteration carried(" in text


def control_cases():
    """ONNX's node tests that hold control flow on tensors."""
    skipped = ("_seq", "_opt", "sequence_map", "scan_sum", "_expanded")
    return [
        case
        for case in node_cases()
        if ops_in(case.model.graph) & {"If", "Loop", "Scan"}
        and not any(part in case.name for part in skipped)
    ]


def test_the_node_tests_of_control_flow():
    cases = control_cases()
    assert len(cases) >= 4
    for case in cases:
        graph = convert(case.model.SerializeToString())
        for inputs, outputs in case.data_sets:
            feeds = dict(
                zip([v.name for v in case.model.graph.input], map(array, inputs), strict=True)
            )
            arrays = [feeds[value.name] for value in graph.input_values()]
            found, _ = run(graph, arrays, workers=2)
            structured = interpret(graph, dict(zip(graph.inputs, arrays, strict=True)))
            for value, one, wanted in zip(graph.outputs, found, outputs, strict=True):
                assert_same(one, array(wanted), case)
                np.testing.assert_array_equal(one, structured[value])


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_a_session_with_a_dynamic_schedule_has_the_bits_of_a_static_one(mode):
    options = ExecutionOptions(schedule="dynamic")
    rng = np.random.default_rng(4)
    with (
        Session(walk(), execution_options=options, mode=mode) as dynamic,
        Session(walk()) as static,
    ):
        for most in (0, 3, 50):
            feeds = {
                "x": rng.standard_normal(3).astype(np.float32),
                "k": rng.standard_normal(3).astype(np.float32),
                "most": np.array(most, np.int64),
            }
            found, wanted = dynamic.run(feeds), static.run(feeds)
            for name, one in wanted.items():
                np.testing.assert_array_equal(found[name], one)
        (stage,) = dynamic.stages
        assert stage.tier == "dataflow"
        assert "cpu" in stage.on
        assert dynamic.spans[0].frames == (("loop #0", 0),)
        with pytest.raises(RunError, match="the schedule is dynamic"):
            dynamic.profile(feeds)
        with pytest.raises(RunError, match="k"):
            dynamic.run({"x": feeds["x"]})


def test_states_and_open_shapes_in_a_dynamic_schedule():
    b = GraphBuilder("counter")
    x = b.input("x", TensorType(("n",), "float32"))
    before = b.add("variable", b.constant("zero", np.zeros((), np.float32)), state="count")
    total = b.add("add", before, b.add("reduce_sum", x, keepdims=0), names=["total"])
    b.add("assign", total, state="count")
    places = b.add("non_zero", x, names=["places"])
    options = ExecutionOptions(schedule="dynamic")
    with Session(b.finish(total, places), execution_options=options) as session:
        for n, wanted in ((2, 2), (3, 5), (2, 7)):
            found = session.run({"x": np.ones(n, np.float32)})
            assert found["total"] == wanted
            assert found["places"].tolist() == [list(range(n))]
        assert any("depends on values" in step for step in session.stages[0].steps)
