"""One program in three routes: as structured ops, as dataflow primitives, and in Python itself.

A recurrent network settles on each row of its input: an inner loop goes on until its state changes
little. The outer loop ends early, once the state is large enough.
"""

import numpy as np

import trireme
from trireme import eager
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType

STATE, NUMBER, FLAG = (TensorType(*one) for one in (((8,), "float32"), ((), "int64"), ((), "bool")))
ROWS, WEIGHTS = TensorType((20, 8), "float32"), TensorType((8, 8), "float32")
SMALL, ENOUGH, MOST = np.float32(0.05), np.float32(5.0), 6


def settle(xs, w, h, np=np):
    """Return the state, the rows read and the steps made; `np` is numpy or trireme.eager."""
    rows, steps = 0, 0
    for x in xs:
        change, turns = 1.0, 0
        while change > SMALL and turns < MOST:
            new = np.tanh(x + h @ w)
            change = abs(new - h).max()
            h = new
            turns += 1
        rows += 1
        steps += turns
        if abs(h).sum() > ENOUGH:
            break
    return h, rows, steps


def inner_body() -> trireme.Graph:
    """Return one step on a row: it goes on while the state changes much."""
    b = GraphBuilder("step")
    b.input("turn", NUMBER), b.input("going", FLAG)
    h, turns = b.input("h", STATE), b.input("turns", NUMBER)
    x, w = b.input("x", STATE), b.input("w", WEIGHTS)
    new = b.add("tanh", b.add("add", x, b.add("matmul", h, w)))
    change = b.add("reduce_max", b.add("abs", b.add("sub", new, h)), keepdims=0)
    goes_on = b.add("greater", change, b.constant("small", SMALL))
    return b.finish(goes_on, new, b.add("add", turns, b.constant("one", np.int64(1))))


def outer_body() -> trireme.Graph:
    """Return the work on one row: it takes the row, settles, and goes on while h is small."""
    b = GraphBuilder("row")
    turn, _ = b.input("turn", NUMBER), b.input("going", FLAG)
    h, rows, steps = b.input("h", STATE), b.input("rows", NUMBER), b.input("steps", NUMBER)
    xs, w = b.input("xs", ROWS), b.input("w", WEIGHTS)
    x = b.add("gather", xs, turn, axis=0)
    most, zero = b.constant("most", np.int64(MOST)), b.constant("zero", np.int64(0))
    h, turns = b.add_node(
        "loop", [most, None, h, zero, x, w], {"body": inner_body(), "carried": 2}, outputs=2
    )
    size = b.add("reduce_sum", b.add("abs", h), keepdims=0)
    goes_on = b.add("less_or_equal", size, b.constant("enough", ENOUGH))
    one = b.constant("one", np.int64(1))
    return b.finish(goes_on, h, b.add("add", rows, one), b.add("add", steps, turns))


def structured() -> trireme.Graph:
    """Return the program as a graph: a loop in a loop."""
    b = GraphBuilder("settle")
    xs, w, h = b.input("xs", ROWS), b.input("w", WEIGHTS), b.input("h", STATE)
    most, zero = b.constant("rows", np.int64(20)), b.constant("zero", np.int64(0))
    out = b.add_node(
        "loop",
        [most, None, h, zero, zero, xs, w],
        {"body": outer_body(), "carried": 3},
        outputs=3,
        names=["state", "rows_read", "steps"],
    )
    return b.finish(*out)


def main() -> None:
    """Run the program in every route, and compare the answers."""
    rng = np.random.default_rng(3)
    xs = rng.standard_normal((20, 8)).astype(np.float32)
    w = (rng.standard_normal((8, 8)) / 4).astype(np.float32)
    h = np.zeros(8, np.float32)
    feeds = {"xs": xs, "w": w, "h": h}
    wanted = settle(xs, w, h)
    graph = structured()
    dynamic = trireme.ExecutionOptions(schedule="dynamic")
    with trireme.Session(graph) as session:
        answers = {"structured ops": list(session.run(feeds).values())}
        print(session.placement)
    with trireme.Session(graph, execution_options=dynamic) as session:
        answers["dataflow primitives"] = list(session.run(feeds).values())
        print("the last op that ran:", session.spans[-1])
    answers["Python over eager ops"] = list(settle(*map(eager.tensor, (xs, w, h)), np=eager))
    answers["captured Python"] = trireme.capture(settle, xs, w, h)(xs, w, h)
    for route, found in answers.items():
        state, rows, steps = map(np.asarray, found)
        same = np.allclose(state, wanted[0], atol=1e-5) and (rows, steps) == wanted[1:]
        print(f"{route}: {rows} rows, {steps} steps, {'as' if same else 'NOT as'} numpy")
        if not same:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
