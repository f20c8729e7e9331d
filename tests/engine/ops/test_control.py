"""if, loop and scan on graphs built by hand: captures, early ends, no turns at all, directions."""

import numpy as np
import pytest
from onnx import parser
from programs import HEAD

from trireme.ir.builder import GraphBuilder, scalar
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import run_reference
from trireme.runtime.session.session import Session
from trireme.support.errors import ShapeError, TriremeError

F = "float32"


def body(name, inputs, build):
    """A graph of named input types whose outputs `build` returns."""
    builder = GraphBuilder(name)
    values = [builder.input(key, type_) for key, type_ in inputs.items()]
    return builder.finish(*build(builder, *values))


def vector(*shape):
    return TensorType(shape, F)


def branch(op):
    return body(op, {"a": vector(3), "b": vector(3)}, lambda g, a, b: [g.add(op, a, b)])


@pytest.mark.parametrize("taken", [True, False])
def test_if_runs_one_branch_on_the_captures(taken):
    builder = GraphBuilder("if")
    condition = builder.input("c", TensorType((), "bool"))
    a, b = builder.input("a", vector(3)), builder.input("b", vector(3))
    made = builder.add(
        "if", condition, a, b, then_branch=branch("add"), else_branch=branch("mul"), names=["y"]
    )
    x, y = np.array([1, 2, 3], F), np.array([4, 5, 6], F)
    found = run_reference(builder.finish(made), {"c": np.array(taken), "a": x, "b": y})["y"]
    np.testing.assert_array_equal(found, x + y if taken else x * y)


@pytest.mark.parametrize("taken", [True, False])
def test_if_of_branches_of_unlike_rank(taken):
    builder = GraphBuilder("if")
    condition, a = builder.input("c", TensorType((), "bool")), builder.input("a", vector(3))
    same = body("same", {"a": vector(3)}, lambda g, a: [a])
    flat = body("flat", {"a": vector(3)}, lambda g, a: [g.add("flatten", a)])
    made = builder.add("if", condition, a, then_branch=same, else_branch=flat)
    assert str(builder.type(made)) == "float32[...]"
    (found,) = run_reference(
        builder.finish(made), {"c": np.array(taken), "a": np.ones(3, F)}
    ).values()
    assert found.shape == ((3,) if taken else (3, 1))


def test_loops_keep_the_rank_of_a_state():
    builder = GraphBuilder("loop")
    types = {"turn": TensorType((), "int64"), "going": TensorType((), "bool"), "x": vector(3)}
    flat = body("flat", types, lambda g, turn, going, x: [going, g.add("flatten", x)])
    with pytest.raises(ShapeError, match="of no one rank"):
        builder.add(
            "loop",
            builder.input("n", types["turn"]),
            None,
            builder.input("a", vector(3)),
            body=flat,
            carried=1,
        )


def doubling(limit):
    """x -> 2 x + step while x < limit; each x is kept."""

    def build(g, turn, going, x, step):
        made = g.add("add", g.add("mul", x, g.constant("two", scalar(2))), step)
        return g.add("less", made, g.constant("limit", scalar(limit))), made, x

    types = {
        "turn": TensorType((), "int64"),
        "going": TensorType((), "bool"),
        "x": vector(),
        "step": vector(),
    }
    return body("doubling", types, build)


@pytest.mark.parametrize(("most", "limit", "turns"), [(3, 1e9, 3), (99, 20, 4), (0, 1e9, 0)])
def test_loop_ends_by_count_or_condition(most, limit, turns):
    builder = GraphBuilder("loop")
    count = builder.input("n", TensorType((), "int64"))
    x, step = builder.input("x", vector()), builder.input("step", vector())
    outs = builder.add_node(
        "loop",
        [count, None, x, step],
        {"body": doubling(limit), "carried": 1},
        outputs=2,
        names=["last", "all"],
    )
    assert builder.type(outs[1]).shape == ("?",)
    feeds = {"n": np.array(most), "x": np.array(1, F), "step": np.array(0.5, F)}
    found = run_reference(builder.finish(*outs), feeds)
    kept, value = [], 1.0
    for _ in range(turns):
        kept.append(value)
        value = 2 * value + 0.5
    assert found["last"] == np.float32(value)
    np.testing.assert_array_equal(found["all"], np.array(kept, F))


def test_what_no_turn_of_a_loop_makes_has_the_shape_of_a_turn():
    def build(g, turn, going, x):
        return g.constant("true", np.array(True)), g.add("relu", x), g.add("neg", x)

    builder = GraphBuilder("loop")
    types = {"turn": TensorType((), "int64"), "going": TensorType((), "bool"), "x": vector(2, 3)}
    count, x = builder.input("n", TensorType((), "int64")), builder.input("x", vector(2, 3))
    outs = builder.add_node(
        "loop",
        [count, None, x],
        {"body": body("turns", types, build), "carried": 1},
        outputs=2,
        names=["last", "all"],
    )
    feeds = {"n": np.array(0), "x": np.ones((2, 3), F)}
    assert run_reference(builder.finish(*outs), feeds)["all"].shape == (0, 2, 3)


def test_loop_without_conditions_has_a_known_length():
    builder = GraphBuilder("loop")
    types = {"turn": TensorType((), "int64"), "going": TensorType((), "bool")}
    turns = body("turns", types, lambda g, turn, _: [g.constant("true", np.array(True)), turn])
    count = builder.constant("n", np.array(5))
    made = builder.add("loop", count, None, body=turns, carried=0, names=["y"])
    assert builder.type(made).shape == (5,)
    found = run_reference(builder.finish(made), {})["y"]
    np.testing.assert_array_equal(found, np.arange(5))


@pytest.mark.parametrize("backward", [0, 1])
def test_scan_cuts_stacks_and_turns(backward):
    types = {"sum": vector(2), "x": vector(2), "factor": vector(2)}

    def build(g, total, x, factor):
        made = g.add("add", total, g.add("mul", x, factor))
        return made, made

    builder = GraphBuilder("scan")
    start, x = builder.input("start", vector(2)), builder.input("x", vector(2, 4))
    factor = builder.constant("factor", np.array([2, 3], F))
    outs = builder.add_node(
        "scan",
        [start, x, factor],
        {
            "body": body("running", types, build),
            "carried": 1,
            "num_scan_inputs": 1,
            "scan_input_axes": (1,),
            "scan_input_directions": (backward,),
            "scan_output_axes": (-1,),
            "scan_output_directions": (backward,),
        },
        outputs=2,
        names=["last", "all"],
    )
    assert builder.type(outs[1]).shape == (2, 4)
    data, begin = np.arange(8, dtype=F).reshape(2, 4), np.array([1, -1], F)
    found = run_reference(builder.finish(*outs), {"start": begin, "x": data})
    scaled = data * np.array([[2], [3]], F)
    scaled = scaled[:, ::-1] if backward else scaled
    running = begin[:, None] + np.cumsum(scaled, axis=1)
    np.testing.assert_array_equal(found["last"], running[:, -1])
    np.testing.assert_array_equal(found["all"], running[:, ::-1] if backward else running)


SCANNED = """
scanned (float[2] h, float[{dims[0]},2] x, float[{dims[1]},2] z) => (float[2] y)
{{
    y = Scan (h, x, z) <
        num_scan_inputs = 2, scan_input_directions = [0, {back}],
        body = step (float[2] s, float[2] p, float[2] q) => (float[2] t)
        {{ u = Add(s, p)  t = Sub(u, q) }}
    >
}}
"""


@pytest.mark.parametrize("back", [0, 1])
@pytest.mark.parametrize("dims", [("a", "b"), (3, 4), (4, 3), (3, 0), (1100, 1101)])
def test_scanned_arrays_of_unlike_lengths_are_refused(dims, back):
    """As by ONNX Runtime: where the lengths are known when the session opens, or in the run."""
    model = parser.parse_model(HEAD + SCANNED.format(dims=dims, back=back)).SerializeToString()
    lengths = [(3, 4), (4, 3), (0, 2)] if dims == ("a", "b") else [dims]
    for x, z in lengths:
        feeds = {"h": np.zeros(2, np.float32)}
        feeds |= {"x": np.ones((x, 2), np.float32), "z": np.ones((z, 2), np.float32)}
        said = "length of scanned input 1 is"
        with pytest.raises(TriremeError, match=said), Session(model) as session:
            session.run(feeds)
