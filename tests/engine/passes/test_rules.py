"""Passes that clean up, fold and fuse: golden text before and after, then both interpreted."""

import time

import numpy as np
import pytest
from model_builder import Model, batch_norm, conv, f32, ints, pool, weights
from same_results import assert_same_results, op_names

import trireme.ir.op
from trireme.ir.builder import scalar
from trireme.ir.interpreter import run_reference
from trireme.ir.op import OpDef
from trireme.ir.verify import check
from trireme.ops.shapes import same_type
from trireme.passes.pipeline import PASSES, optimise, optimise_report
from trireme.support.dtypes import FLOATING
from trireme.support.errors import GraphError


def only(graph, *passes, **checks):
    """The graph after some passes alone, checked against the graph before."""
    made = optimise(graph, passes=passes)
    assert_same_results(graph, made, **checks)
    again = optimise(made, passes=passes)
    assert again is made, "not idempotent"
    return made


def body(graph):
    """The lines of a graph's text without its first."""
    return [line.strip() for line in str(graph).splitlines()[1:]]


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
    (product,) = [node for node in made.nodes if node.op == "matmul"]
    assert all(len(made.type(value).shape) >= 2 for value in product.used)
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


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("groups", [1, 2])
def test_batch_norm_goes_into_the_conv_before(layout, groups):
    m = Model(x=f32(2, 4, 5, 4))
    y = conv(m, m.x, 4, 6, layout=layout, groups=groups, source="onnx:Conv_1")
    graph = m.finish(batch_norm(m, y, 6, layout, source="onnx:BN_2"))
    made = only(graph, "batch_norm", tol=2e-6)
    assert op_names(made) == "conv"
    assert made.nodes[0].source == "onnx:Conv_1+BN_2"


def test_batch_norm_goes_into_transposed_conv():
    m = Model(x=f32(1, 4, 5, 5))
    y = m.op(
        "conv_transpose",
        m.x,
        weights(4, 3, 3, 3),
        pads=(1, 1, 1, 1),
        strides=(2, 2),
        dilations=(1, 1),
        output_padding=(0, 0),
        groups=2,
        layout="NCHW",
    )
    made = only(m.finish(batch_norm(m, y, 6)), "batch_norm", tol=2e-6)
    assert op_names(made) == "conv_transpose"


def test_batch_norm_before_a_conv_without_pads_goes_into_it():
    m = Model(x=f32(2, 4, 5, 5))
    y = conv(m, batch_norm(m, m.x, 4), 4, 6, pads=(0, 0, 0, 0), groups=2)
    made = only(m.finish(y), "batch_norm", "canonicalise", tol=5e-6)
    assert op_names(made) == "conv"


def test_batch_norm_before_a_padded_conv_stays_outside():
    m = Model(x=f32(2, 4, 5, 5))
    graph = m.finish(conv(m, batch_norm(m, m.x, 4), 4, 6))
    assert op_names(only(graph, "batch_norm", "canonicalise", tol=5e-6)) == "mul add conv"


def test_batch_norm_needs_the_conv_to_itself():
    m = Model(x=f32(1, 4, 5, 5))
    y = conv(m, m.x, 4, 6)
    graph = m.finish(m.op("add", y, batch_norm(m, y, 6)))
    assert op_names(only(graph, "batch_norm", tol=2e-6)) == "conv mul add add"


def test_nothing_merges_across_pins():
    m = Model(x=f32(1, 4, 5, 5))
    graph = m.finish(m.op("relu", conv(m, m.x, 4, 6, pin="npu"), pin="cpu"))
    assert optimise(graph, passes=["fuse_activation"]) is graph
    m = Model(x=f32(1, 4, 5, 5))
    made = only(m.finish(m.op("relu", conv(m, m.x, 4, 6, pin="npu"), pin="npu")), "fuse_activation")
    assert op_names(made) == "conv" and made.nodes[0].pin == "npu"


def test_gemm_and_matmul_become_fully_connected():
    m = Model(x=f32(2, 3))
    y = m.op("gemm", m.x, weights(3, 5), weights(1, 5), alpha=0.5, beta=2.0, trans_a=0, trans_b=0)
    y = m.op("add", m.op("matmul", y, weights(5, 4)), weights(4))
    y = m.op(
        "gemm",
        y,
        weights(7, 4),
        m.op("reduce_sum", y, ints(1)),
        alpha=1.0,
        beta=0.5,
        trans_a=0,
        trans_b=1,
    )
    assert body(only(m.finish(y), "canonicalise", tol=2e-6)) == [
        "%3:float32[2,5] = fully_connected(%0, float32[5,3]const, float32[5]const) {activation=''}",
        "%6:float32[2,4] = fully_connected(%3, float32[4,5]const, float32[4]const) {activation=''}",
        "%8:float32[2,1] = reduce_sum(%6, int64[1]const) {keepdims=1 noop_with_empty_axes=0}",
        "%10:float32[2,7] = fully_connected(%6, float32[7,4]const) {activation=''}",
        "%12:float32[2,1] = mul(%8, float32[]const) {activation=''}",
        "%13:float32[2,7] = add(%10, %12) {activation=''}",
        "return %13",
    ]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_constants_around_a_conv_go_into_it(layout):
    one = (4, 1, 1) if layout == "NCHW" else (4,)
    m = Model(x=f32(2, 4, 4, 4))
    y = m.op("mul", m.x, weights(*one, seed=3))
    y = conv(m, y, 4, 4, layout=layout)
    y = m.op("add", y, weights(*one, seed=4))
    y = m.op("mul", y, scalar(0.37))
    y = m.op("sub", y, weights(*one, seed=5))
    y = m.op("div", y, scalar(3.0), activation="relu")
    made = only(m.finish(y), "canonicalise", tol=2e-6)
    assert op_names(made) == "conv"
    assert made.nodes[0].attrs["activation"] == "relu"


def test_bit_safe_rewrites_of_sub_and_div():
    m = Model(x=f32(2, 4))
    y = m.op("div", m.op("sub", m.x, weights(4)), np.array([2, 4, 0.5, -8], np.float32))
    y = m.op("div", y, np.array([3], np.float32))
    graph = m.finish(m.op("max", m.op("pow", y, scalar(2.0)), scalar(0.0)))
    assert op_names(only(graph, "canonicalise")) == "add mul div mul relu"


def test_constants_in_a_row_become_one():
    m = Model(x=f32(2, 4))
    y = m.op("add", weights(4), m.op("mul", m.x, weights(4, seed=2)))
    y = m.op("add", m.op("mul", y, weights(4, seed=3)), scalar(0.5), activation="relu")
    made = only(m.finish(y), "canonicalise", tol=1e-6)
    assert op_names(made) == "mul add"
    assert made.nodes[1].attrs["activation"] == "relu"


def test_sums_of_two_are_adds():
    m = Model(x=f32(2, 4), y=f32(4))
    graph = m.finish(m.op("sum", m.op("sum", m.x, m.y), m.x, m.y))
    assert op_names(only(graph, "canonicalise")) == "add sum"


def test_pads_go_into_conv_and_pools():
    m = Model(x=f32(1, 4, 6, 6))
    y = m.op("pad", m.x, ints(0, 0, 1, 2, 0, 0, 0, 1))
    y = m.op("relu", conv(m, y, 4, 4))
    y = m.op(
        "pad",
        y,
        ints(1, 1),
        scalar(0.0),
        ints(
            2,
        ),
    )
    y = pool(m, y, k=3)
    y = m.op("pad", y, ints(0, 0, 1, 1, 0, 0, 1, 1))
    y = pool(m, y, "average_pool", stride=1)
    made = only(m.finish(y), "fuse_pad", tol=1e-6)
    assert op_names(made) == "conv relu max_pool average_pool"
    assert made.nodes[0].attrs["pads"] == (2, 3, 1, 2)
    assert made.nodes[3].attrs["count_include_pad"] == 1


def test_pads_that_pools_do_not_pad_with_stay():
    m = Model(x=f32(1, 4, 6, 6))
    y = pool(m, m.op("pad", m.x, ints(0, 0, 1, 1, 0, 0, 1, 1)))
    y = m.op("pad", y, ints(0, 0, 1, 1, 0, 0, 1, 1), scalar(1.0))
    graph = m.finish(pool(m, y, "average_pool"))
    assert optimise(graph, passes=["fuse_pad"]) is graph


def test_residual_and_activation_go_into_the_conv():
    m = Model(x=f32(1, 4, 6, 6))
    left = conv(m, m.x, 4, 4, bias=True)
    right = conv(m, m.x, 4, 4, seed=9)
    graph = m.finish(m.op("relu", m.op("add", left, right)))
    made = only(graph, "fuse_residual", "fuse_activation", tol=1e-6)
    assert body(made)[1].startswith(
        "%5:float32[1,4,6,6] = conv(%0, float32[4,4,3,3]const, -, %3) {activation='relu'"
    )
    assert op_names(made) == "conv conv"


@pytest.mark.parametrize(
    ("op", "attrs", "name"),
    [
        ("relu", {}, "relu"),
        ("tanh", {}, "tanh"),
        ("sigmoid", {}, "sigmoid"),
        ("hard_swish", {}, "hard_swish"),
        ("swish", {}, "swish"),
        ("gelu", {}, "gelu"),
        ("gelu", {"approximate": "tanh"}, "gelu_tanh"),
        ("relu6", {}, "relu6"),
        ("hard_sigmoid", {"alpha": 1 / 6}, "hard_sigmoid"),
        ("swish", {"alpha": 1.5}, None),
        ("hard_sigmoid", {"alpha": 0.2}, None),
        ("leaky_relu", {}, None),
    ],
)
def test_activations(op, attrs, name):
    m = Model(x=f32(2, 4), y=f32(4))
    made = only(m.finish(m.op(op, m.op("mul", m.x, m.y), **attrs)), "fuse_activation")
    assert op_names(made) == ("mul" if name else f"mul {op}")
    assert not name or made.nodes[0].attrs["activation"] == name


@pytest.mark.parametrize(("limits", "name"), [((0, 6), "relu6"), ((0,), "relu"), ((0, 5), None)])
def test_clips_that_are_activations(limits, name):
    m = Model(x=f32(2, 4), y=f32(4))
    clip = m.op("clip", m.op("add", m.x, m.y), *(scalar(v) for v in limits))
    made = only(m.finish(clip), "fuse_activation")
    assert made.nodes[0].attrs["activation"] == (name or "")


def test_an_activation_stays_when_the_value_between_is_read():
    m = Model(x=f32(2, 4), y=f32(4))
    y = m.op("add", m.x, m.y)
    graph = m.finish(y, m.op("relu", y))
    assert optimise(graph, passes=["fuse_activation"]) is graph


ELSEWHERE = (
    "quantize_folding",
    "known_branches",
    "narrow_bodies",
    "loop_invariants",
    "symbolic_shapes",
)
"""Passes whose switches other files test."""


def every_kind():
    """A graph in which every pass but the one for Q/DQ has something to do."""
    m = Model(x=f32(1, 3, 8, 8))
    y = m.op("identity", m.op("sub", m.x, scalar(0.5)))
    y = batch_norm(m, conv(m, m.op("pad", y, ints(0, 0, 1, 1, 0, 0, 1, 1)), 3, 4), 4)
    y = m.op("relu", y)
    z = m.op("add", conv(m, y, 4, 4), y)
    z = m.op("mul", z, m.op("sigmoid", z))
    for shape in (ints(8, 50), ints(20, 20)):
        z = m.op("transpose", m.op("reshape", z, shape), perm=(1, 0))
    z = m.op("reshape", z, ints(1, 4, 10, 10))
    z = m.op("reduce_mean", z, m.op("add", ints(1, 2), ints(1, 1)), keepdims=0)
    m.op("neg", z)
    return m.finish(m.op("add", m.op("tanh", z), m.op("tanh", z)))


@pytest.mark.parametrize("name", [name for name in PASSES if name not in ELSEWHERE])
def test_each_pass_has_a_switch(name):
    graph = every_kind()
    report = optimise_report(graph)
    assert any(one.counts for one in report.passes if one.name == name)
    off = optimise_report(graph, disable=[name])
    assert name not in {one.name for one in off.passes}
    assert_same_results(graph, off.graph, tol=1e-4)
    alone = optimise_report(graph, passes=[name])
    assert {one.name for one in alone.passes} == {name}
    assert_same_results(graph, alone.graph, tol=1e-4)


def test_the_whole_pipeline_once_is_enough():
    made = optimise(every_kind())
    assert optimise(made) is made
    check(made)


def test_unknown_passes_are_refused():
    with pytest.raises(GraphError, match="unknown pass nonsense"):
        optimise(every_kind(), disable=["nonsense"])


def test_the_report_says_what_was_done():
    report = optimise_report(every_kind())
    assert sum(one.counts.get("pad into", 0) for one in report.passes) == 1
    assert "fuse_pad" in str(report) and "1 x pad into" in str(report)
    assert report.passes[0].nodes_before == len(every_kind().nodes)


def a_thousand_nodes():
    m = Model(x=f32(1, 4, 6, 6))
    y = m.x
    for i in range(200):
        z = m.op("relu", batch_norm(m, conv(m, y, 4, 4, seed=i), 4))
        y = m.op("add", m.op("identity", z), y)
    return m.finish(y)


def test_a_thousand_nodes_become_four_hundred():
    graph = a_thousand_nodes()
    assert len(graph.nodes) == 1000
    assert len(optimise(graph).nodes) < 410


@pytest.mark.timed
def test_a_thousand_nodes_take_a_second():
    graph = a_thousand_nodes()
    assert min(_seconds(graph) for _ in range(3)) < 1.0


def _seconds(graph):
    start = time.perf_counter()
    optimise(graph)
    return time.perf_counter() - start
