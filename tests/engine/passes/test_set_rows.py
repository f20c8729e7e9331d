"""set_rows: a concat that sets rows of a list in a loop becomes a scatter where that is proved."""

import numpy as np
import pytest
from model_builder import Model, f32, ints
from onnx import parser
from programs import HEAD
from same_results import assert_same_results, op_names
from sweep import sweep

from trireme.ir.graph import TensorType
from trireme.model_file.convert import convert
from trireme.passes.pipeline import optimise

END = 2**63 - 1
COMPARISONS = ("less", "less_or_equal", "greater", "greater_or_equal")


def row_loop(
    length=5, count=1, first=0, step=1, gap=0, limit=5, cap=20, compares="less", trips=None, slip=0
):
    """A loop that sets `count` rows from i + gap on, while i + step is below a limit.

    cap: the most turns that the condition allows; slip: rows that the second slice begins too late
    """
    number, bool_ = TensorType((), "int32"), TensorType((), "bool")
    b = Model(turn=TensorType((), "int64"), going=bool_, i=number, s=f32("?", 2), r=f32(count, 2))
    at = b.op("add", b.op("cast", b.op("reshape", b.i, ints(1)), to="int64"), ints(gap))
    after = b.op("add", at, ints(count + slip))
    parts = b.op("slice", b.s, ints(0), at, ints(0)), b.op("slice", b.s, after, ints(END), ints(0))
    made = b.op("concat", parts[0], b.op("mul", b.r, b.r), parts[1], axis=0)
    following = b.op("add", b.i, np.array(step, np.int32))
    sides = following, np.array(limit, np.int32)
    ends = b.op(compares, *(sides if compares.startswith("less") else sides[::-1]))
    more = b.op("and", ends, b.op("less", b.turn, np.array(cap)))
    body = b.finish(more, following, made)
    m = Model(s=f32(length, 2), r=f32(count, 2))
    given = None if trips is None else m.constant("trips", np.array(trips))
    start = m.constant("first", np.array(first, np.int32))
    made = m.add_node(
        "loop", [given, None, start, m.s, m.r], {"body": body, "carried": 2}, outputs=2
    )
    return m.finish(*made)


def scattered(graph):
    """The graph after the pass, and whether the pass changed it."""
    made = optimise(graph, passes=["set_rows", "dead_code"])
    assert_same_results(graph, made)
    (loop,) = made.nodes
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
    rng = np.random.default_rng(seed)
    scattered(
        row_loop(
            length=int(rng.integers(1, 6)),
            count=int(rng.integers(1, 3)),
            first=int(rng.integers(-1, 4)),
            step=int(rng.integers(0, 3)),
            gap=int(rng.integers(-1, 2)),
            limit=int(rng.integers(-1, 7)),
            cap=int(rng.integers(0, 6)),
            compares=COMPARISONS[rng.integers(4)],
            trips=None if rng.integers(2) else int(rng.integers(0, 6)),
            slip=int(rng.integers(4) == 0),
        )
    )


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
