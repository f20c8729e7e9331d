"""Lift is the inverse of lower, and makes structured ops of graphs that TensorFlow could write.

Oracles: the graph that was lowered, and for graphs that were never structured, their own executor
and plain Python.
"""

import numpy as np
import pytest
from lab.fuzz.nested import nested
from programs import PROGRAMS, VARYING
from same_graph import described
from sweep import sweep

from trireme.converters.onnx import convert
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import evaluate
from trireme.ops.repeats import bodies_of
from trireme.passes.pipeline import optimise
from trireme.runtime.dataflow.executor import Executor
from trireme.runtime.dataflow.graph import DataflowBuilder
from trireme.runtime.dataflow.lift import lift
from trireme.runtime.dataflow.lower import lower
from trireme.runtime.session.session import Session
from trireme.support.errors import GraphError

ROW, NUMBER, FLAG = (TensorType(*one) for one in (((3,), "float32"), ((), "int64"), ((), "bool")))


def assert_same_after_both_ways(graph):
    lifted = lift(lower(graph))
    assert described(lifted) == described(graph)
    assert lifted.name == graph.name


@pytest.mark.parametrize("program", PROGRAMS + VARYING, ids=lambda one: one.name)
def test_programs_are_the_same_lowered_and_lifted(program):
    graph = convert(program.model())
    assert_same_after_both_ways(graph)
    assert_same_after_both_ways(optimise(graph))


@pytest.mark.parametrize("seed", sweep(range(400), always=range(0, 400, 20)))
def test_random_programs_are_the_same_lowered_and_lifted(seed):
    print("seed", seed)
    assert_same_after_both_ways(convert(nested(seed).model.SerializeToString()))


def test_the_comparison_tells_graphs_apart():
    texts = {described(convert(program.model())) for program in PROGRAMS + VARYING}
    assert len(texts) == len(PROGRAMS + VARYING)
    seen = {described(convert(nested(seed).model.SerializeToString())) for seed in range(20)}
    assert len(seen) == 20


def executed(graph, feeds):
    """What the executor of primitives makes of a dataflow graph."""
    executor = Executor(graph, lambda g, node, arrays: evaluate(g, node, arrays))
    arrays = [np.asarray(feeds[graph.primitives[p].label]) for p in graph.inputs.values()]
    try:
        return executor.run(dict(zip(graph.inputs, arrays, strict=True)))
    finally:
        executor.close()


def assert_lifts(graph, feeds, wanted):
    """The structured form in a session, the executor and Python agree."""
    lifted = lift(graph)
    for name, right, found in zip(graph.names, wanted, executed(graph, feeds), strict=True):
        np.testing.assert_array_equal(found, right, err_msg=name)
    with Session(lifted) as session:
        found = session.run(feeds)
        assert list(found) == list(graph.names)
        for name, right in zip(graph.names, wanted, strict=True):
            np.testing.assert_array_equal(found[name], right)
    return lifted


def collatz():
    """A loop whose condition is an op on what it carries, with a branch in its body."""
    b = DataflowBuilder("collatz")
    n, zero = b.input("n", NUMBER), b.constant(np.int64(0))
    value, steps = (b.merge(b.enter(one, "while")) for one in (n, zero))
    limit = b.enter(b.constant(np.int64(1000)), "while", is_constant=True)
    going = b.add("and", b.add("not_equal", value, np.int64(1)), b.add("less", steps, limit))
    (last, now), (count, counted) = b.switch(value, going), b.switch(steps, going)
    is_even = b.add("equal", b.add("mod", now, np.int64(2)), np.int64(0))
    odd, even = b.switch(now, is_even)
    half = b.add("div", even, np.int64(2))
    more = b.add("add", b.add("mul", odd, np.int64(3)), np.int64(1))
    b.next_iteration(value, b.merge(more, half))
    b.next_iteration(steps, b.add("add", counted, np.int64(1)))
    return b.finish(last=b.exit(last), steps=b.exit(count))


@pytest.mark.parametrize("n", [1, 6, 27])
def test_a_loop_with_a_branch_that_tensorflow_could_write(n):
    steps, value = 0, n
    while value != 1:
        value, steps = value // 2 if value % 2 == 0 else value * 3 + 1, steps + 1
    lifted = assert_lifts(collatz(), {"n": np.array(n)}, (1, steps))
    (loop,) = lifted.nodes[-1:]
    assert loop.op == "loop"
    assert [node.op for node in bodies_of(loop)["body"].nodes if bodies_of(node)] == ["if"]


def products():
    """A loop in a loop: rows are added up as often as their number says, in frames of their own."""
    b = DataflowBuilder("products")
    x, n = b.input("x", ROW), b.input("n", NUMBER)
    zero, one = np.int64(0), np.int64(1)
    i, total = b.merge(b.enter(b.constant(zero), "outer")), b.merge(b.enter(x, "outer"))
    most = b.enter(n, "outer", is_constant=True)
    step = b.enter(x, "outer", is_constant=True)
    going = b.add("less", i, most)
    (_, turn), (end, now) = b.switch(i, going), b.switch(total, going)
    j = b.merge(b.enter(b.constant(zero, after=turn), "inner"))
    inner = b.merge(b.enter(now, "inner"))
    last = b.enter(turn, "inner", is_constant=True)
    add = b.enter(b.switch(step, going)[1], "inner", is_constant=True)
    on = b.add("less", j, last)
    (_, count), (out, value) = b.switch(j, on), b.switch(inner, on)
    b.next_iteration(j, b.add("add", count, one))
    b.next_iteration(inner, b.add("add", value, add))
    b.next_iteration(i, b.add("add", turn, one))
    b.next_iteration(total, b.exit(out))
    return b.finish(total=b.exit(end))


@pytest.mark.parametrize("n", [0, 1, 5])
def test_a_loop_in_a_loop_that_tensorflow_could_write(n):
    x = np.array([1, -2, 3], np.float32)
    assert_lifts(products(), {"x": x, "n": np.array(n)}, (x * (1 + sum(range(n))),))


def conds():
    """Branches on one predicate, one after another, one inside the other, and one reused."""
    b = DataflowBuilder("conds")
    p, q, x = b.input("p", FLAG), b.input("q", FLAG), b.input("x", ROW)
    no, yes = b.switch(x, p)
    doubled = b.add("mul", yes, np.float32(2))
    inside_no, inside_yes = b.switch(doubled, b.switch(q, p)[1])
    picked = b.merge(b.add("neg", inside_no), b.add("abs", inside_yes))
    first = b.merge(b.add("sub", no, np.float32(1)), picked)
    later_no, later_yes = b.switch(first, p)
    second = b.merge(later_no, b.add("add", later_yes, np.float32(1)))
    return b.finish(first=first, second=second)


@pytest.mark.parametrize("p", [True, False])
@pytest.mark.parametrize("q", [True, False])
def test_branches_that_tensorflow_could_write(p, q):
    x = np.array([1, -2, 3], np.float32)
    first = (np.abs(x * 2) if q else -x * 2) if p else x - 1
    lifted = assert_lifts(
        conds(), {"p": np.array(p), "q": np.array(q), "x": x}, (first, first + 1 if p else first)
    )
    assert [node.op for node in lifted.nodes] == ["if", "if"]


def irreducible_graphs():
    """Sentences, and graphs that no structured ops hold."""
    b = DataflowBuilder("g")
    x, p, q = b.input("x", ROW), b.input("p", FLAG), b.input("q", FLAG)
    (no, yes), (other, _) = b.switch(x, p), b.switch(x, q)
    yield "its inputs are not the two sides of one switch", b.finish(y=b.merge(other, yes))

    b = DataflowBuilder("g")
    x, p = b.input("x", ROW), b.input("p", FLAG)
    no, yes = b.switch(x, p)
    yield "it reads tokens of both sides of a switch", b.finish(y=b.add("add", no, yes))

    b = DataflowBuilder("g")
    x, p = b.input("x", ROW), b.input("p", FLAG)
    one, other = b.switch(x, p)[1], b.switch(x, p)[1]
    yield "both its inputs are of one side of a switch", b.finish(y=b.merge(one, other))

    b = DataflowBuilder("g")
    x, p = b.input("x", ROW), b.input("p", FLAG)
    carried = b.merge(b.enter(x, "loop"))
    end, now = b.switch(carried, b.enter(p, "loop", is_constant=True))
    b.next_iteration(carried, b.add("neg", now))
    yield "it reads tokens of loop and of the graph", b.finish(y=b.add("add", b.exit(end), now))

    b = DataflowBuilder("g")
    x, p, q = b.input("x", ROW), b.input("p", FLAG), b.input("q", FLAG)
    going, on = (b.enter(one, "loop", is_constant=True) for one in (p, q))
    one, other = b.merge(b.enter(x, "loop")), b.merge(b.enter(x, "loop"))
    (end, now), (_, then) = b.switch(one, going), b.switch(other, on)
    b.next_iteration(one, now)
    b.next_iteration(other, then)
    yield "its frame 'loop' has 2 conditions, not 1", b.finish(y=b.exit(end))

    b = DataflowBuilder("g")
    x, p = b.input("x", ROW), b.input("p", FLAG)
    carried = b.merge(b.enter(x, "loop"))
    end, _ = b.switch(carried, b.enter(p, "loop", is_constant=True))
    b.next_iteration(carried, carried)
    yield "what comes back is not made in every turn", b.finish(y=b.exit(end))

    b = DataflowBuilder("g")
    x = b.input("x", ROW)
    yield "it does not read the switch of a value that a loop carries", b.finish(y=b.exit(x))

    b = DataflowBuilder("g")
    x, p = b.input("x", ROW), b.input("p", FLAG)
    no, yes = b.switch(x, p)
    deeper_no, deeper_yes = b.switch(yes, p)
    yield "its inputs are not the two sides of one switch", b.finish(y=b.merge(no, deeper_yes))


@pytest.mark.parametrize(("why", "graph"), list(irreducible_graphs()))
def test_what_is_not_structured_says_why(why, graph):
    with pytest.raises(GraphError, match=why) as caught:
        lift(graph)
    assert "is not structured" in str(caught.value)


def test_a_result_that_may_be_dead_is_refused():
    b = DataflowBuilder("g")
    x, p = b.input("x", ROW), b.input("p", FLAG)
    with pytest.raises(GraphError, match="its token does not leave the branch"):
        lift(b.finish(y=b.switch(x, p)[1]))


def test_an_effect_in_a_branch_without_results_is_refused():
    b = DataflowBuilder("g")
    x, p = b.input("x", ROW), b.input("p", FLAG)
    b.add("assign", b.switch(x, p)[1], state="s")
    with pytest.raises(GraphError, match="nothing that it decides leaves its branch"):
        lift(b.finish(y=b.add("neg", x)))


def test_the_builder_refuses_what_is_no_token_of_its_own():
    b, other = DataflowBuilder("g"), DataflowBuilder("h")
    x = b.input("x", ROW)
    with pytest.raises(GraphError, match="is no token of this graph"):
        other.exit(x)
    with pytest.raises(GraphError, match="goes to a merge of one enter"):
        b.next_iteration(x, x)
