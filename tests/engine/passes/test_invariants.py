"""loop_invariants: constants move into bodies, and what no turn changes out of loops."""

import numpy as np
import pytest
from onnx import parser
from programs import HEAD, f32, peer
from same_results import op_names

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import run_reference
from trireme.model_file.convert import convert
from trireme.passes.pipeline import optimise

ONLY = ["loop_invariants"]
LOOP = """
g (int64 n, float[3,3] v, float[1,3] x) => (float[1,3] y)
{{
    y = Loop (n, , x) <body = turn
        (int64 i, bool going, float[1,3] s) => (bool more, float[1,3] r)
        {{ more = Identity(going)  {nodes} }}
    >
}}
"""


def model(nodes):
    return parser.parse_model(HEAD + LOOP.format(nodes=nodes)).SerializeToString()


@pytest.mark.parametrize(
    ("nodes", "outside", "inside"),
    [
        ("q = MatMul(v, v) z = Tanh(q) r = MatMul(s, z)", "matmul tanh loop", "matmul"),
        ("a = Add(s, x) r = Mul(a, a)", "loop", "add mul"),
        (
            "k = Cast <to = 7> (v) z = Div(k, k) c = Cast <to = 1> (z) r = MatMul(s, c)",
            "cast loop",
            "div cast matmul",
        ),
        (
            "r = Loop (n, , s) <body = inner (int64 j, bool on, float[1,3] a) => "
            "(bool on2, float[1,3] b) { on2 = Identity(on) t = Tanh(v) b = MatMul(a, t) }>",
            "tanh loop",
            "loop",
        ),
    ],
)
def test_what_every_turn_would_compute_alike_is_computed_once(nodes, outside, inside):
    graph = convert(model(nodes))
    made = optimise(graph, passes=ONLY)
    assert " ".join(node.op for node in made.nodes) == outside
    body = made.nodes[-1].attrs["body"]
    assert " ".join(node.op for node in body.nodes) == inside
    v = np.linspace(1, 2, 9, dtype=np.float32).reshape(3, 3)
    for turns in (0, 1, 4):
        feeds = {"n": np.array(turns), "v": v, "x": f32(0.5, -1, 2, shape=(1, 3))}
        want = peer(model(nodes), feeds)["y"]
        np.testing.assert_allclose(run_reference(made, feeds)["y"], want, rtol=1e-5)


@pytest.mark.parametrize("op", ["loop", "if"])
def test_a_captured_constant_becomes_one_of_the_body(op):
    type, b = TensorType((3,), "float32"), GraphBuilder("g")
    inner = GraphBuilder("body")
    first = [inner.input("i", TensorType((), "int64")), inner.input("c", TensorType((), "bool"))]
    s, w = inner.input("s", type), inner.input("w", type)
    if op == "if":
        inner.inputs = [s, w]
    outputs = [inner.add("mul", s, w)]
    body = inner.finish(*([first[1]] if op == "loop" else []), *outputs)
    x, weights = b.input("x", type), b.constant("w", f32(1, 2, 3))
    if op == "loop":
        y = b.add("loop", b.input("n", first_type()), None, x, weights, body=body, carried=1)
    else:
        c = b.input("c", TensorType((), "bool"))
        y = b.add("if", c, x, weights, then_branch=body, else_branch=body)
    graph = b.finish(y)
    made = optimise(graph, passes=ONLY)
    (node,) = made.nodes
    assert len(node.inputs) == len(graph.nodes[0].inputs) - 1
    for one in (value for value in node.attrs.values() if hasattr(value, "inputs")):
        assert [v.data.tolist() for v in one.values.values() if v.is_constant] == [[1, 2, 3]]
    feeds = {"x": f32(1, 1, 2)} | ({"n": np.array(2)} if op == "loop" else {"c": np.array(True)})
    np.testing.assert_array_equal(
        *(list(run_reference(one, feeds).values())[0] for one in (graph, made))
    )


def first_type():
    return TensorType((), "int64")


CHOSEN = """
g (float[{rows},2,3] xs, float[2,4] h) => (float[2,4] y)
{{
    turns = Constant <value = int64 {{4}}> ()
    w = Constant <value = float[3,4] {{{weights}}}> ()
    u = Constant <value = float[4,4] {{{weights}, 1, 2, 3, 4}}> ()
    y = Loop (turns, , h) <body = turn
        (int64 i, bool going, float[2,4] s) => (bool more, float[2,4] t)
        {{ more = Identity(going)  x = Gather <axis = 0> (xs, i)  {nodes} }}
    >
}}
"""


def chosen(nodes, rows):
    """A loop whose turns read a row of xs."""
    weights = ", ".join(str(k / 8) for k in range(-5, 7))
    text = CHOSEN.format(nodes=nodes, rows=rows, weights=weights)
    return parser.parse_model(HEAD + text).SerializeToString()


PRODUCT = "p = MatMul(x, w)"


@pytest.mark.parametrize(
    ("nodes", "rows", "outside", "inside"),
    [
        (f"{PRODUCT} q = Add(p, s) t = Tanh(q)", 8, "fully_connected loop", "gather add"),
        (f"{PRODUCT} q = Add(p, s) t = Tanh(q)", 9, "loop", "gather fully_connected"),
        (f"{PRODUCT} r = Relu(p) t = Add(r, s)", 4, "fully_connected loop", "gather add"),
        (
            f"a = MatMul(s, u) {PRODUCT} q = Add(p, a) t = Tanh(q)",
            4,
            "fully_connected loop",
            "gather fully_connected",
        ),
    ],
)
def test_products_of_rows_that_turns_choose_are_one_product(
    nodes, rows, outside, inside, monkeypatch
):
    data = chosen(nodes, rows)
    few = optimise(convert(data), disable=["known_branches"])
    assert op_names(few) == "loop"  # so few bytes of weights stay
    monkeypatch.setattr("trireme.passes.invariants.LEAST_READ_BYTES", 0)
    made = optimise(convert(data), disable=["known_branches"])
    assert op_names(made) == outside
    assert op_names(made.nodes[-1].attrs["body"]) == inside
    feeds = {
        "xs": np.linspace(-1, 1, rows * 6, dtype=np.float32).reshape(rows, 2, 3),
        "h": np.linspace(-1, 2, 8, dtype=np.float32).reshape(2, 4),
    }
    found = run_reference(made, feeds)["y"]
    np.testing.assert_allclose(found, peer(data, feeds)["y"], rtol=1e-4, atol=1e-5)


STEADY = """
g (int64 n, float[2] x, float[2] c) => (float[2] y, float[2] d)
{
    y, d, e = Loop (n, , x, c, x) <body = turn
        (int64 i, bool going, float[2] s, float[2] k, float[2] unread)
        => (bool more, float[2] t, float[2] k2, float[2] same)
        { more = Identity(going)  t = Add(s, k)  k2 = Identity(k)  same = Identity(unread) }
    >
}
"""


def test_a_carried_value_that_no_turn_changes_is_a_capture():
    data = parser.parse_model(HEAD + STEADY).SerializeToString()
    made = optimise(convert(data))
    assert op_names(made) == "loop identity"
    assert made.nodes[0].attrs["carried"] == 1 and len(made.nodes[0].inputs) == 4
    for turns in (0, 3):
        feeds = {"n": np.array(turns), "x": f32(1, 2), "c": f32(3, 4)}
        found = run_reference(made, feeds)
        for name, want in peer(data, feeds).items():
            np.testing.assert_array_equal(found[name], want)
