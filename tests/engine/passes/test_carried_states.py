"""States that bodies of control flow use: the values of plain Python, in every mode."""

import numpy as np
import pytest

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import interpret
from trireme.ops.repeats import GOING, TURN
from trireme.passes.carried_states import carried_states
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.errors import GraphError

ROW = TensorType((3,), "float32")
WAYS = [
    ({"mode": mode}, ExecutionOptions(subgraphs=subgraphs, execution=execution, schedule=schedule))
    for mode in ("serial", "parallel")
    for subgraphs in ("merged", "split")
    for execution in ("sunk", "interactive")
    for schedule in ("static", "dynamic")
]


def variable(b, state):
    return b.add("variable", b.constant("initial", np.zeros(3, np.float32)), state=state)


def counted():
    """A loop that adds to two states: one in every turn, one in every other turn, by a branch."""
    branch = GraphBuilder("then")
    x = branch.input("x", ROW)
    seen = branch.add("add", variable(branch, "seen"), x)
    branch = branch.finish(branch.add("assign", seen, state="seen"))
    other = GraphBuilder("else")
    x = other.input("x", ROW)
    other = other.finish(other.add("neg", variable(other, "total")))
    body = GraphBuilder("body")
    turn, going = body.input("turn", TURN), body.input("going", GOING)
    s, x = body.input("s", ROW), body.input("x", ROW)
    total = body.add("add", variable(body, "total"), s)
    body.add("assign", total, state="total")
    again = variable(body, "total")
    two, zero = (body.constant(str(n), np.int64(n)) for n in (2, 0))
    even = body.add("equal", body.add("mod", turn, two), zero)
    row = body.add("if", even, x, then_branch=branch, else_branch=other)
    body = body.finish(going, body.add("add", s, x), body.add("add", again, row))
    b = GraphBuilder("counted")
    n, x = b.input("n", TURN), b.input("x", ROW)
    before = variable(b, "total")
    b.add("assign", b.add("add", before, x), state="total")
    last, rows = b.add_node("loop", [n, None, x, x], {"body": body, "carried": 1}, outputs=2)
    return b.finish(last, rows, variable(b, "total"), variable(b, "seen"))


def in_python(n, x, states):
    """What a run of `counted` returns; `states` has its states."""
    zero = np.zeros(3, np.float32)
    states["total"] = states.get("total", zero) + x
    s, rows = x, []
    for turn in range(n):
        states["total"] = states["total"] + s
        if turn % 2 == 0:
            row = states["seen"] = states.get("seen", zero) + x
        else:
            row = -states["total"]
        rows.append(states["total"] + row)
        s = s + x
    rows = np.array(rows, np.float32).reshape(n, 3)
    return s, rows, states["total"], states.get("seen", zero)


@pytest.mark.parametrize(("options", "how"), WAYS)
def test_states_in_loops_and_branches_keep_their_order(options, how):
    held = {}
    with Session(counted(), execution_options=how, **options) as session:
        for n in (3, 0, 4, 1):
            x = np.arange(3, dtype=np.float32) + n
            found = session.run({"n": np.array(n), "x": x}).values()
            for one, right in zip(found, in_python(n, x, held), strict=True):
                np.testing.assert_array_equal(one, right)
        for name, array in held.items():
            np.testing.assert_array_equal(session.states[name], array)
        session.states.clear()
        found = list(session.run({"n": np.array(2), "x": np.ones(3, np.float32)}).values())
        for one, right in zip(found, in_python(2, np.ones(3, np.float32), {}), strict=True):
            np.testing.assert_array_equal(one, right)


def test_the_references_and_the_rewritten_graph_keep_states_of_bodies():
    for graph in (counted(), carried_states(counted())):
        held, mine = {}, {}
        for n in (3, 0, 2):
            x = np.arange(3, dtype=np.float32) + n
            feeds = dict(zip(graph.inputs, (np.array(n), x), strict=True))
            found = interpret(graph, feeds, states=mine)
            wanted = in_python(n, x, held)
            for value, right in zip(graph.outputs, wanted, strict=True):
                np.testing.assert_array_equal(found[value], right)


def test_a_scan_over_rows_keeps_a_state():
    body = GraphBuilder("body")
    row = body.input("row", ROW)
    total = body.add("add", variable(body, "s"), row)
    body.add("assign", total, state="s")
    body = body.finish(body.add("mul", total, total))
    b = GraphBuilder("g")
    xs = b.input("xs", TensorType((2000, 3), "float32"))
    graph = b.finish(b.add("scan", xs, body=body, carried=0, num_scan_inputs=1))
    xs = np.random.default_rng(0).integers(-2, 3, (2000, 3)).astype(np.float32)
    with Session(graph) as session:
        for start in (np.zeros(3, np.float32), xs.sum(0)):
            (found,) = session.run({"xs": xs}).values()
            np.testing.assert_array_equal(found, (start + np.cumsum(xs, 0)) ** 2)


def test_a_branch_that_is_not_taken_leaves_a_state_alone():
    then, other = GraphBuilder("then"), GraphBuilder("else")
    x = then.input("x", ROW)
    then = then.finish(then.add("assign", x, state="s"))
    other = other.finish(other.input("x", ROW))
    b = GraphBuilder("g")
    p, x = b.input("p", GOING), b.input("x", ROW)
    y = b.add("if", p, x, then_branch=then, else_branch=other)
    graph = b.finish(y, variable(b, "s"))
    with Session(graph) as session:
        for p, value, kept in ((False, 1, 0), (True, 2, 2), (False, 3, 2)):
            x = np.full(3, value, np.float32)
            _, state = session.run({"p": np.array(p), "x": x}).values()
            np.testing.assert_array_equal(state, np.full(3, kept))


def test_a_graph_without_such_states_stays_and_one_without_a_start_is_refused():
    b = GraphBuilder("g")
    plain = b.finish(b.add("assign", variable(b, "s"), state="s"))
    assert carried_states(plain) is plain
    then, other = GraphBuilder("then"), GraphBuilder("else")
    then = then.finish(then.add("assign", then.input("x", ROW), state="s"))
    other = other.finish(other.input("x", ROW))
    b = GraphBuilder("g")
    p, x = b.input("p", GOING), b.input("x", ROW)
    graph = b.finish(b.add("if", p, x, then_branch=then, else_branch=other))
    with pytest.raises(GraphError, match="uses state 's', which has no constant initial value"):
        Session(graph)
