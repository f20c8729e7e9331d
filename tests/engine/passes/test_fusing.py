"""Passes that take nodes into a conv, a pool or a fully_connected: text, then both interpreted."""

import numpy as np
import pytest
from model_builder import Model, batch_norm, conv, f32, ints, pool, weights
from pass_text import body, only
from same_results import op_names

from trireme.ir.builder import scalar
from trireme.passes.pipeline import optimise


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
