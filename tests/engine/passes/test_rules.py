"""Passes that clean up and fold: golden text before and after, then both interpreted."""

import numpy as np
import pytest
from model_builder import Model, f32, ints, weights
from pass_text import body, only
from same_results import op_names

import trireme.ir.op
from trireme.ir.builder import scalar
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import run_reference
from trireme.ir.op import OpDef
from trireme.ops.shapes import same_type
from trireme.passes.pipeline import optimise
from trireme.support.dtypes import FLOATING


def test_constant_folding_and_its_limit():
    m = Model(x=f32(4))
    grown = m.op("expand", m.op("add", weights(1), weights(1)), ints(4))
    graph = m.finish(m.op("mul", m.x, grown))
    assert op_names(graph) == "add expand mul"
    assert body(only(graph, "constant_folding")) == [
        "%2:float32[4] = mul(%0, float32[4]const) {activation=''}",
        "return %2",
    ]
    limited = optimise(graph, passes=["constant_folding"], fold_limit_bytes=0)
    assert op_names(limited) == "expand mul"


def test_shapes_of_static_types_fold():
    m = Model(x=f32("N", 3, 4))
    shape = m.op("shape", m.x)
    rows = m.op("gather", shape, ints(1), axis=0)
    target = m.op("concat", rows, ints(4), axis=0)
    graph = m.finish(m.op("reduce_sum", m.op("expand", m.x, target), ints(2)))
    made = only(graph, "constant_folding")
    assert op_names(made) == "expand reduce_sum"
    assert made.type(made.outputs[0]).shape == ("N", 3, 1)


def test_unknown_shapes_become_known():
    m = Model(x=f32(2, 3, 4))
    shape = m.op("slice", m.op("shape", m.x), ints(0), ints(2))
    target = m.op("concat", shape, ints(2, 2), axis=0)
    graph = m.finish(m.op("relu", m.op("reshape", m.x, target)))
    made = only(graph, "constant_folding")
    assert op_names(made) == "reshape relu"
    assert made.type(made.outputs[0]).shape == (2, 3, 2, 2)


def test_dead_code_keeps_effects_and_outputs():
    m = Model(x=f32(4))
    m.op("relu", m.op("tanh", m.x))
    m.constant("unread", weights(3))
    graph = m.finish(m.op("neg", m.x))
    made = only(graph, "dead_code")
    assert op_names(made) == "neg" and len(made.values) == 2


def test_common_subexpressions_respect_pins_and_attributes():
    m = Model(x=f32(4))
    twins = [m.op("add", m.x, weights(4)) for _ in range(2)]
    pinned = m.op("add", m.x, weights(4), pin="cpu")
    other = m.op("add", m.x, weights(4), activation="relu")
    graph = m.finish(m.op("sum", *twins, pinned, other))
    assert body(only(graph, "common_subexpressions"))[-2:] == [
        "%7:float32[4] = sum(%2, %2, %4, %6)",
        "return %7",
    ]


def test_constants_with_equal_ends_are_compared_whole():
    m = Model(x=f32(1000))
    first = np.linspace(0, 1, 1000, dtype=np.float32)
    other = first.copy()
    other[500] = -1
    ids = [m.op("add", m.x, m.constant("w", data)) for data in (first, other, first.copy(), other)]
    made = only(m.finish(m.op("sum", *ids)), "common_subexpressions")
    assert op_names(made) == "add add sum"
    one, two = made.nodes[0].outputs[0], made.nodes[1].outputs[0]
    assert made.nodes[2].inputs == (one, two, one, two)


@pytest.mark.parametrize(
    ("left", "right"),
    [((5,), (5, 3)), ((4, 5), (5,)), ((5,), (5,)), ((5,), (2, 5, 3)), ((0,), (0,))],
)
def test_products_with_a_vector_are_products_of_matrices(left, right):
    m = Model(a=f32(*left), b=f32(*right))
    graph = m.finish(m.op("matmul", m.a, m.b))
    made = optimise(graph)
    products = [node for node in made.nodes if node.op == "matmul"]
    assert len(products) == (left != (0,))  # a product of nothing is a constant
    assert all(len(made.type(value).shape) >= 2 for node in products for value in node.used)
    rng = np.random.default_rng(5)
    feeds = {
        "a": rng.standard_normal(left, np.float32),
        "b": rng.standard_normal(right, np.float32),
    }
    (name,) = [value.name for value in made.output_values()]
    found, wanted = run_reference(made, feeds)[name], feeds["a"] @ feeds["b"]
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_random_nodes_are_neither_folded_nor_merged(monkeypatch):
    dice = np.random.default_rng(1)
    noise = OpDef(
        "noise",
        "x",
        "y = x and noise of x's shape. Source: this test",
        same_type,
        lambda x: (x + dice.standard_normal(x.shape)).astype(x.dtype),
        elementwise=True,
        random=True,
        dtypes=(FLOATING,),
    )
    monkeypatch.setitem(trireme.ir.op._OPS, "noise", noise)
    m = Model(x=f32(4))
    twins = [m.op("noise", m.x) for _ in range(2)]
    graph = m.finish(m.op("sum", *twins, m.op("noise", weights(4)), m.op("noise", weights(4))))
    assert op_names(optimise(graph)) == "noise noise noise noise sum"


def test_both_names_stay_when_equal_values_are_outputs():
    m = Model(x=f32(4))
    ids = [m.op("relu", m.x, names=[name]) for name in "ab"]
    made = only(m.finish(*ids), "common_subexpressions")
    assert [v.name for v in made.output_values()] == ["a", "b"]


def test_simplify_drops_what_changes_nothing():
    m = Model(x=f32(2, 3, 4))
    y = m.op("identity", m.x)
    y = m.op("add", y, scalar(0.0))
    y = m.op("div", y, scalar(1.0))
    y = m.op("cast", y, to="float32")
    y = m.op("pad", y, ints(0, 0, 0, 0, 0, 0))
    y = m.op("slice", y, ints(0), ints(9), ints(1))
    y = m.op("transpose", m.op("transpose", y, perm=(1, 2, 0)), perm=(2, 0, 1))
    y = m.op("reshape", m.op("reshape", y, ints(6, 4)), ints(2, 3, 4))
    graph = m.finish(m.op("relu", y))
    assert body(only(graph, "simplify")) == ["%1:float32[2,3,4] = relu(%0)", "return %1"]


def test_simplify_merges_moves():
    m = Model(x=f32(2, 3, 4))
    y = m.op("transpose", m.op("transpose", m.x, perm=(1, 2, 0)), perm=(1, 0, 2))
    y = m.op("unsqueeze", m.op("reshape", y, ints(12, 2)), ints(0))
    y = m.op("transpose", y, perm=(1, 0, 2))
    graph = m.finish(y)
    assert body(only(graph, "simplify")) == [
        "%1:float32[4,3,2] = transpose(%0) {perm=(2,1,0)}",
        "%3:float32[12,1,2] = reshape(%1, int64[3]const) {allowzero=0}",
        "return %3",
    ]


def test_a_transpose_without_a_permutation_reverses_the_axes():
    m = Model(x=f32(2, 3, 4))
    graph = m.finish(m.op("transpose", m.op("transpose", m.x), perm=(1, 0, 2)))
    assert body(only(graph, "simplify")) == [
        "%1:float32[3,4,2] = transpose(%0) {perm=(1,2,0)}",
        "return %1",
    ]


def test_identity_between_input_and_output_stays():
    m = Model(x=f32(4))
    made = only(m.finish(m.op("identity", m.x, names=["y"])), "simplify")
    assert op_names(made) == "identity"
    assert [v.name for v in made.output_values()] == ["y"]


def test_output_takes_its_name_along():
    m = Model(x=f32(4))
    y = m.op("relu", m.x, names=["inner"])
    made = only(m.finish(m.op("identity", y, names=["y"])), "simplify")
    assert op_names(made) == "relu"
    assert [v.name for v in made.output_values()] == ["y"]


def test_results_without_elements_are_constants_and_leave_a_concat():
    m = Model(x=f32(2, 3))
    none = m.op("slice", m.op("tanh", m.x), ints(1), ints(1))
    same = m.op("identity", m.op("slice", m.x, ints(1), ints(1)))
    joined = m.op("concat", none, m.op("relu", m.x), same, axis=0)
    graph = m.finish(m.op("neg", joined))
    assert op_names(optimise(graph)) == "relu neg"
    assert op_names(only(graph, "constant_folding")) == "relu concat neg"


def test_a_node_that_may_find_a_wrong_index_stays_without_elements():
    m = Model(x=f32(3, 0), at=TensorType((2,), "int64"))
    graph = m.finish(m.op("neg", m.op("gather", m.x, m.at, axis=0)))
    assert op_names(optimise(graph)) == "gather neg"


def test_an_output_without_elements_stays():
    m = Model(x=f32(2, 3))
    graph = m.finish(m.op("slice", m.x, ints(1), ints(1)))
    assert op_names(only(graph, "constant_folding")) == "slice"


def test_a_concat_of_nothing_stays():
    m = Model(x=f32(0, 3), y=f32(0, 3))
    graph = m.finish(m.op("concat", m.x, m.y, axis=0))
    assert op_names(only(graph, "simplify")) == "concat"
