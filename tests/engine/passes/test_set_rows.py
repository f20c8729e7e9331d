"""set_rows: a concat that sets rows of a list in a loop becomes a scatter where that is proved."""

import pytest
from onnx import parser
from programs import HEAD
from row_loops import random_row_loop, row_loop
from same_results import assert_same_results, op_names
from sweep import sweep

from trireme.ir.graph import Quant
from trireme.model_file.convert import convert
from trireme.passes.pipeline import optimise


def scattered(graph):
    """The graph after the pass, and whether the pass changed it."""
    made = optimise(graph, passes=["counted_loops", "set_rows", "dead_code"])
    assert_same_results(graph, made)
    loop = made.nodes[-1]
    return made, "scatter_nd" in op_names(loop.attrs["body"])


def test_rows_between_two_slices_are_scattered_and_the_list_keeps_its_type():
    made, is_set = scattered(row_loop())
    assert is_set
    assert made.type(made.outputs[1]).shape == (5, 2)
    assert "slice" not in op_names(made.nodes[0].attrs["body"])


@pytest.mark.parametrize(
    ("changes", "is_set"),
    [
        ({"limit": 6}, False),  # the last turn appends a row
        ({"limit": 4, "compares": "less_or_equal"}, True),
        ({"limit": 5, "compares": "less_or_equal"}, False),
        ({"limit": 5, "compares": "greater"}, True),
        ({"limit": 4, "compares": "greater_or_equal"}, True),
        ({"limit": 99, "cap": 4}, True),  # turns 0 to 4
        ({"limit": 99, "cap": 5}, False),
        ({"limit": 99, "trips": 5}, True),
        ({"limit": 99, "trips": 6}, False),
        ({"first": -1, "limit": 3}, False),
        ({"first": 2, "step": 2}, True),
        ({"first": 7, "limit": 3}, False),  # one turn, and it appends
        ({"count": 2, "limit": 4}, True),
        ({"count": 2, "limit": 5}, False),
        ({"gap": 2, "limit": 3}, True),
        ({"gap": 2, "limit": 4}, False),
        ({"slip": 1}, False),
        ({"step": 0, "first": 3, "limit": 9}, True),
    ],
    ids=str,
)
def test_the_bounds_of_the_turn_decide(changes, is_set):
    assert scattered(row_loop(**changes))[1] is is_set


@pytest.mark.parametrize("seed", sweep(range(400), always=range(0, 400, 10)))
def test_random_lists_keep_their_results(seed):
    print("seed", seed)
    scattered(random_row_loop(seed))


ONE, OTHER = Quant((0.5,), (3,)), Quant((0.25,), (3,))


@pytest.mark.parametrize(("rows", "is_set"), [(ONE, True), (OTHER, False)])
def test_stored_integers_are_scattered_as_they_are(rows, is_set):
    assert scattered(row_loop(quants=(ONE, rows)))[1] is is_set


COUNTED = """
g (float[4,3] x, float[1,3] w) => (float[4,3] y)
{
    four = Constant <value = int64 {4}> ()
    y = Loop (four, , x) <body = turn
        (int64 i, bool going, float[r,3] s) => (bool more, float[q,3] t)
        {
            more = Identity(going)  zero = Constant <value = int64[1] {0}> ()
            at = Unsqueeze(i, zero)  one = Constant <value = int64[1] {1}> ()
            next = Add(at, one)  end = Constant <value = int64[1] {99}> ()
            before = Slice(s, zero, at)  after = Slice(s, next, end)
            row = Mul(w, w)  t = Concat <axis = 0> (before, row, after)
        }
    >
}
"""


def test_the_number_of_the_turn_is_a_counter():
    graph = convert(parser.parse_model(HEAD + COUNTED).SerializeToString())
    made = optimise(graph, passes=["loop_invariants", "set_rows", "dead_code"])
    assert_same_results(graph, made)
    assert op_names(made.nodes[-1].attrs["body"]) == "reshape scatter_nd"


def test_the_pass_has_a_switch():
    made = optimise(row_loop(), disable=["set_rows"])
    assert "scatter_nd" not in op_names(made.nodes[-1].attrs["body"])
