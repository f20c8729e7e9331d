"""counted_loops: a condition that compares counters with constants becomes a trip count."""

import numpy as np
import pytest
from model_builder import Model
from row_loops import random_row_loop, row_loop
from same_results import assert_same_results
from sweep import sweep

from trireme.ir.graph import TensorType
from trireme.passes.pipeline import optimise

GOING = TensorType((), "bool")


def counted(graph):
    """The graph after the pass, its trip count, and whether a turn still decides."""
    made = optimise(graph, passes=["counted_loops", "dead_code"])
    assert_same_results(graph, made)
    assert optimise(made, passes=["counted_loops", "dead_code"]) is made
    (loop,) = made.nodes
    trips, body = loop.inputs[0], loop.attrs["body"]
    count = None if trips is None else int(made.values[trips].data)
    return count, not body.values[body.outputs[0]].is_constant


@pytest.mark.parametrize(
    ("changes", "trips"),
    [
        ({"limit": 5}, 5),
        ({"limit": 5, "compares": "less_or_equal"}, 6),
        ({"limit": 5, "compares": "greater"}, 5),
        ({"limit": 5, "compares": "greater_or_equal"}, 6),
        ({"limit": 0}, 1),
        ({"limit": 8, "first": 1, "step": 3}, 3),
        ({"limit": 99, "cap": 2}, 3),
        ({"limit": 99, "step": 0, "cap": 2}, None),  # the counter ends no loop
        ({"limit": 5, "trips": 3}, 3),
        ({"limit": 5, "trips": 0}, 0),
    ],
    ids=str,
)
def test_the_trip_count_is_that_of_the_first_comparison_to_fail(changes, trips):
    count, decides = counted(row_loop(**changes))
    assert decides == (trips is None)
    assert count == (3 if trips is None else trips)


@pytest.mark.parametrize("seed", sweep(range(300), always=range(0, 300, 10)))
def test_random_loops_keep_their_turns(seed):
    print("seed", seed)
    counted(random_row_loop(seed))


def narrow_loop(first, step, limit, dtype, most=9):
    """A loop over a counter of a dtype, and at most `most` turns; x doubles in each."""
    type = TensorType((), dtype)
    b = Model(turn=TensorType((), "int64"), going=GOING, i=type, x=TensorType((2,), "float32"))
    following = b.op("add", b.i, np.array(step, dtype))
    is_below = b.op("less", following, np.array(limit, dtype))
    body = b.finish(is_below, following, b.op("add", b.x, b.x))
    m = Model(x=TensorType((2,), "float32"))
    given = m.constant("trips", np.array(most)), None, m.constant("first", np.array(first, dtype))
    made = m.add_node("loop", [*given, m.x], {"body": body, "carried": 2}, outputs=2)
    return m.finish(*made)


@pytest.mark.parametrize(
    ("first", "step", "limit", "dtype", "decides"),
    [(120, 2, 127, "int8", True), (120, 2, 126, "int8", False), (0, 60, 130, "int16", False)],
)
def test_a_counter_that_wraps_around_ends_no_loop(first, step, limit, dtype, decides):
    assert counted(narrow_loop(first, step, limit, dtype))[1] is decides


def test_a_trip_count_of_a_run_stays():
    b = Model(turn=TensorType((), "int64"), going=GOING, x=TensorType((2,), "float32"))
    body = b.finish(b.op("less", b.turn, np.array(3)), b.op("add", b.x, b.x))
    m = Model(n=TensorType((), "int64"), x=TensorType((2,), "float32"))
    graph = m.finish(m.op("loop", m.n, None, m.x, body=body, carried=1))
    assert optimise(graph, passes=["counted_loops"]) is graph


def test_a_loop_without_operands_is_counted():
    b = Model(turn=TensorType((), "int64"), going=GOING)
    body = b.finish(b.op("less", b.turn, np.array(3)), b.op("mul", b.turn, b.turn))
    m = Model()
    graph = m.finish(m.add_node("loop", [], {"body": body, "carried": 0}, outputs=1)[0])
    made = optimise(graph)
    assert_same_results(graph, made)
    assert made.type(made.outputs[0]).shape == (4,)
