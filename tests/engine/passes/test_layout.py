"""Layout: channels last, and how many transposes are left of the blocks of real networks."""

import numpy as np
import pytest
from model_builder import Model, batch_norm, conv, f32, ints, pool, weights
from same_results import assert_same_results, op_names

from trireme.ir.builder import scalar
from trireme.ir.graph import TensorType
from trireme.passes.pipeline import optimise
from trireme.passes.views_reshape import groups_of


def settled(graph, *, only_layout=False, tol=3e-6):
    """The optimised graph, checked against the one before and for a second run's no-op."""
    made = optimise(graph, passes=["layout", "simplify"] if only_layout else None)
    assert_same_results(graph, made, tol=tol)
    assert [v.type for v in made.output_values()] == [v.type for v in graph.output_values()]
    assert optimise(made) is made or only_layout
    assert not any(node.attrs.get("layout") == "NCHW" for node in made.nodes)
    return made


def transposes(graph):
    return [node for node in graph.nodes if node.op == "transpose"]


def body(graph):
    return [line.strip() for line in str(graph).splitlines()[1:]]


def test_golden_text_of_one_conv():
    m = Model(x=f32(1, 3, 8, 8))
    graph = m.finish(m.op("relu", conv(m, m.x, 3, 4, bias=True)))
    assert body(graph) == [
        "%3:float32[1,4,8,8] = conv(%0, float32[4,3,3,3]const, float32[4]const) {activation='' "
        "dilations=(1,1) groups=1 layout='NCHW' pads=(1,1,1,1) strides=(1,1)}",
        "%4:float32[1,4,8,8] = relu(%3)",
        "return %4",
    ]
    assert body(settled(graph, only_layout=True)) == [
        "%1:float32[1,8,8,3] = transpose(%0) {perm=(0,2,3,1)}",
        "%4:float32[1,8,8,4] = conv(%1, float32[4,3,3,3]const, float32[4]const) {activation='' "
        "dilations=(1,1) groups=1 layout='NHWC' pads=(1,1,1,1) strides=(1,1)}",
        "%5:float32[1,8,8,4] = relu(%4)",
        "%6:float32[1,4,8,8] = transpose(%5) {perm=(0,3,1,2)}",
        "return %6",
    ]


def head(m, x, c):
    """Global mean, flatten and classifier."""
    y = m.op("reduce_mean", x, ints(2, 3), keepdims=1)
    y = m.op("flatten", y, axis=1)
    return m.op("gemm", y, weights(c, 5), weights(5), alpha=1.0, beta=1.0, trans_a=0, trans_b=0)


def resnet(m):
    y = pool(m, m.op("relu", conv(m, m.x, 3, 4)), k=3, pads=(1, 1, 1, 1))
    z = batch_norm(m, conv(m, m.op("relu", conv(m, y, 4, 4)), 4, 4), 4)
    return head(m, m.op("relu", m.op("add", z, y)), 4)


def densenet(m):
    y = conv(m, m.x, 3, 4)
    for c in (4, 6):
        z = m.op("relu", batch_norm(m, y, c))
        y = m.op("concat", y, conv(m, z, c, 2), axis=1)
    return head(m, pool(m, y, "average_pool"), 8)


def shufflenet(m):
    y = conv(m, m.x, 3, 8)
    left, right = m.add_node("split", [y, m.constant("", ints(4, 4))], {"axis": 1}, outputs=2)
    y = m.op("concat", left, conv(m, right, 4, 4, groups=4), axis=1)
    y = m.op("reshape", y, ints(1, 2, 4, 8, 8))
    y = m.op("reshape", m.op("transpose", y, perm=(0, 2, 1, 3, 4)), ints(1, 8, 8, 8))
    return head(m, conv(m, y, 8, 8), 8)


def squeeze_and_excite(m):
    y = conv(m, m.x, 3, 4)
    gate = m.op("reduce_mean", y, ints(2, 3), keepdims=1)
    gate = m.op("sigmoid", conv(m, gate, 4, 4, k=1))
    y = m.op("mul", gate, y)
    shifted = m.op("mul", m.op("add", y, weights(4, 1, 1)), m.op("clip", y, scalar(0.0)))
    return head(m, conv(m, shifted, 4, 4), 4)


def u_net(m):
    y = m.op("pad", conv(m, m.x, 3, 4), ints(0, 0, 1, 0, 0, 0, 0, 1), mode="reflect")
    z = conv(m, pool(m, y), 4, 4)
    scales = np.array([1, 1, 2, 2], np.float32)
    up = m.op("resize", z, None, scales, mode="nearest")
    part = m.op("slice", y, ints(0, 0), ints(8, 8), ints(2, 3))
    return head(m, conv(m, m.op("concat", up, part, axis=1), 8, 4), 4)


def upsampling(m):
    y = conv(m, m.x, 3, 4)
    y = m.op(
        "conv_transpose",
        y,
        weights(4, 4, 3, 3),
        weights(4),
        strides=(2, 2),
        pads=(1, 1, 1, 1),
        dilations=(1, 1),
        output_padding=(1, 1),
        layout="NCHW",
    )
    best = m.op("arg_max", y, axis=1, keepdims=0)
    return m.op("cast", best, to="float32")


BLOCKS = {
    resnet: 1,
    densenet: 1,
    squeeze_and_excite: 1,
    u_net: 1,
    upsampling: 1,
    shufflenet: 2,  # the input's and the shuffle itself
}


@pytest.mark.parametrize("block", BLOCKS, ids=lambda f: f.__name__)
def test_blocks_keep_the_input_transpose_alone(block):
    m = Model(x=f32(1, 3, 8, 8))
    made = settled(m.finish(block(m)), tol=1e-5)
    assert len(transposes(made)) == BLOCKS[block], str(made)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda f: f.__name__)
def test_blocks_in_batches_of_unknown_size(block):
    m = Model(x=f32("N", 3, 8, 8))
    if block is shufflenet:
        pytest.skip("its reshapes fix the batch")
    made = settled(m.finish(block(m)), tol=1e-5)
    assert len(transposes(made)) <= BLOCKS[block] + 1, str(made)


def test_flatten_moves_into_the_weights():
    m = Model(x=f32(2, 3, 4, 5))
    y = m.op("reshape", conv(m, m.x, 3, 4), ints(2, -1))
    graph = m.finish(m.op("matmul", y, weights(80, 6)))
    made = settled(graph)
    assert op_names(made) == "transpose conv reshape fully_connected"


def test_one_dimension_and_three():
    m = Model(x=f32(2, 3, 9))
    y = m.op(
        "conv", m.x, weights(4, 3, 3), strides=(1,), pads=(1, 1), dilations=(1,), layout="NCHW"
    )
    y = m.op("relu", m.op("unsqueeze", y, ints(2)))
    y = m.op(
        "conv",
        y,
        weights(4, 4, 1, 3),
        strides=(1, 1),
        pads=(0, 1, 0, 1),
        dilations=(1, 1),
        layout="NCHW",
    )
    y = m.op("reshape", y, ints(2, 4, 1, 3, 3))
    y = m.op(
        "conv",
        y,
        weights(4, 4, 1, 3, 3),
        strides=(1, 1, 1),
        pads=(0, 1, 1, 0, 1, 1),
        dilations=(1, 1, 1),
        layout="NCHW",
    )
    made = settled(m.finish(m.op("reduce_max", y, ints(1, 2), keepdims=0)))
    assert len(transposes(made)) == 1, str(made)


def test_weights_that_are_not_constant_are_transposed():
    m = Model(x=f32(1, 3, 5, 5), w=f32(4, 3, 3, 3))
    y = m.op("conv", m.x, m.w, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), layout="NCHW")
    assert op_names(settled(m.finish(y))) == "transpose transpose conv transpose"


def test_a_transposed_input_is_shared():
    m = Model(x=f32(1, 4, 5, 5))
    y = m.op("add", conv(m, m.x, 4, 4), conv(m, m.x, 4, 4, seed=5))
    made = settled(m.finish(m.op("reduce_sum", m.op("mul", y, m.x), ints(1, 2, 3))))
    assert len(transposes(made)) == 1, str(made)


def test_attention_keeps_its_transposes():
    m = Model(x=f32(2, 6, 8))
    q, k, v = (
        m.op(
            "transpose",
            m.op("reshape", m.op("matmul", m.x, weights(8, 8, seed=s)), ints(2, 6, 2, 4)),
            perm=(0, 2, 1, 3) if s != 2 else (0, 2, 3, 1),
        )
        for s in (1, 2, 3)
    )
    scores = m.op("softmax", m.op("div", m.op("matmul", q, k), scalar(2.0)), axis=-1)
    y = m.op("transpose", m.op("matmul", scores, v), perm=(0, 2, 1, 3))
    graph = m.finish(m.op("reshape", y, ints(2, 6, 8)))
    assert len(transposes(settled(graph))) == 4


def test_opposite_transposes_far_apart_cancel():
    m = Model(x=f32(2, 3, 4, 5))
    y = m.op("transpose", m.x, perm=(0, 2, 3, 1))
    y = m.op("softmax", m.op("mul", y, weights(3)), axis=-1)
    y = m.op("tile", m.op("gather", y, ints(2, 0), axis=3), ints(1, 2, 1, 1))
    graph = m.finish(m.op("transpose", m.op("abs", y), perm=(0, 3, 1, 2)))
    assert op_names(settled(graph)) == "mul softmax gather tile abs"


BETWEEN = {
    "bit_cast": lambda m, y: m.op("bit_cast", y, to="int32"),
    "complex_abs": lambda m, y: m.op("complex_abs", y),
    "mean_variance_normalization": lambda m, y: m.op("mean_variance_normalization", y, axes=(1, 3)),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_transposes_cancel_across(name):
    dtype = "complex64" if name == "complex_abs" else "float32"
    m = Model(x=TensorType((2, 3, 4, 5), dtype))
    y = BETWEEN[name](m, m.op("transpose", m.x, perm=(0, 2, 3, 1)))
    graph = m.finish(m.op("transpose", y, perm=(0, 3, 1, 2)))
    assert op_names(settled(graph)) == name


def test_a_pinned_transpose_stays():
    m = Model(x=f32(2, 3, 4, 5))
    y = m.op("abs", m.op("transpose", m.x, perm=(0, 2, 3, 1), pin="cpu"))
    graph = m.finish(m.op("transpose", y, perm=(0, 3, 1, 2)))
    assert op_names(settled(graph)) == "transpose abs transpose"


def test_growing_outputs_are_not_transposed_late():
    m = Model(x=f32(1, 3, 4, 4))
    scales = np.array([1, 1, 4, 4], np.float32)
    graph = m.finish(m.op("resize", conv(m, m.x, 3, 4), None, scales, mode="nearest"))
    assert op_names(settled(graph)) == "transpose conv transpose resize"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((2, 3, 4), (6, 4), [((0, 1), (0,)), ((2,), (1,))]),
        ((6, 4), (2, 3, 2, 2), [((0,), (0, 1)), ((1,), (2, 3))]),
        ((1, 4), (4, 1), [((0, 1), (0,)), ((), (1,))]),
        ((4, 1, 1), (4,), [((0,), (0,)), ((1,), ()), ((2,), ())]),
        ((), (1,), [((), (0,))]),
    ],
)
def test_groups_of_a_reshape(before, after, expected):
    assert [(g.before, g.after) for g in groups_of(before, after)] == expected
