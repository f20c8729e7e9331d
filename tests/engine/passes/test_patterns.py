"""Formulas written out in small ops, as exporters write them, become the one op they are."""

import math

import numpy as np
import pytest
from model_builder import Model, conv, f32, ints, weights
from same_results import assert_same_results, op_names

from trireme.ir.builder import scalar
from trireme.passes.pipeline import optimise

HALF, ONE, TWO = scalar(0.5), scalar(1.0), scalar(2.0)
ROOT_TWO = scalar(math.sqrt(2))


def gelu_torch(m, x):
    inner = m.op("erf", m.op("div", x, ROOT_TWO))
    return m.op("mul", m.op("mul", x, m.op("add", inner, ONE)), HALF)


def gelu_half_first(m, x):
    inner = m.op("erf", m.op("mul", x, scalar(math.sqrt(0.5))))
    return m.op("mul", m.op("mul", HALF, x), m.op("add", ONE, inner))


def gelu_over_two(m, x):
    inner = m.op("erf", m.op("div", x, ROOT_TWO))
    return m.op("div", m.op("mul", m.op("add", inner, ONE), x), TWO)


def gelu_tanh_pow(m, x):
    cube = m.op("mul", m.op("pow", x, scalar(3.0)), scalar(0.044715))
    inner = m.op("tanh", m.op("mul", m.op("add", x, cube), scalar(math.sqrt(2 / math.pi))))
    return m.op("mul", m.op("mul", x, HALF), m.op("add", inner, ONE))


def gelu_tanh_fast(m, x):
    square = m.op("mul", m.op("mul", x, scalar(0.044715)), x)
    scaled = m.op("mul", x, scalar(0.7978845608))
    inner = m.op("tanh", m.op("mul", scaled, m.op("add", square, ONE)))
    return m.op("mul", x, m.op("add", m.op("mul", inner, HALF), HALF))


def swish(m, x):
    return m.op("mul", x, m.op("sigmoid", x))


def swish_alpha(m, x):
    return m.op("mul", m.op("sigmoid", m.op("mul", x, scalar(1.702))), x)


def mish(m, x):
    return m.op("mul", x, m.op("tanh", m.op("softplus", x)))


def softplus(m, x):
    return m.op("log", m.op("add", m.op("exp", x), ONE))


def hard_swish_torch(m, x):
    gate = m.op("clip", m.op("add", x, scalar(3.0)), scalar(0.0), scalar(6.0))
    return m.op("div", m.op("mul", x, gate), scalar(6.0))


def hard_swish_gate(m, x):
    gate = m.op("relu6", m.op("add", x, scalar(3.0)))
    return m.op("mul", x, m.op("mul", gate, scalar(1 / 6)))


def hard_swish_op(m, x):
    return m.op("mul", m.op("hard_sigmoid", x, alpha=1 / 6), x)


def hard_sigmoid_torch(m, x):
    gate = m.op("add", x, scalar(3.0), activation="relu6")
    return m.op("div", gate, scalar(6.0))


def hard_sigmoid_keras(m, x):
    inner = m.op("add", m.op("mul", x, scalar(0.2)), HALF)
    return m.op("clip", inner, scalar(0.0), ONE)


ACTIVATIONS = {
    gelu_torch: "gelu",
    gelu_half_first: "gelu",
    gelu_over_two: "gelu",
    gelu_tanh_pow: "gelu",
    gelu_tanh_fast: "gelu",
    swish: "swish",
    swish_alpha: "swish",
    mish: "mish",
    softplus: "softplus",
    hard_swish_torch: "hard_swish",
    hard_swish_gate: "hard_swish",
    hard_swish_op: "hard_swish",
    hard_sigmoid_torch: "hard_sigmoid",
    hard_sigmoid_keras: "hard_sigmoid",
}
each_activation = pytest.mark.parametrize("write", ACTIVATIONS, ids=lambda f: f.__name__)


@each_activation
def test_activations_become_one_op(write):
    m = Model(x=f32(3, 40))
    graph = m.finish(write(m, m.op("sin", m.op("mul", m.x, scalar(4.0)))))
    made = optimise(graph, passes=["patterns"])
    assert op_names(made) == f"mul sin {ACTIVATIONS[write]}"
    assert_same_results(graph, made, tol=1e-6)


@each_activation
def test_wrong_constants_are_left_alone(write):
    """The same graphs with every constant 3 % off are no formula of ours (a slope may be)."""
    m = Model(x=f32(3, 40))
    graph = m.finish(write(m, m.x))
    off = Model(x=f32(3, 40))
    values = {graph.inputs[0]: off.x}
    for node in graph.nodes:
        for i in node.used:
            if graph.values[i].is_constant:
                values[i] = off.constant("", graph.values[i].data * np.float32(1.03))
        ins = [values[i] for i in node.inputs]
        values[node.outputs[0]] = off.add(node.op, *ins, **node.attrs)
    graph = off.finish(values[graph.outputs[0]])
    made = optimise(graph, passes=["patterns"])
    free = (swish, swish_alpha, mish, hard_swish_op, hard_sigmoid_keras)
    assert made is graph or write in free
    assert_same_results(graph, made, tol=1e-6)


def test_gelu_tanh_says_so():
    m = Model(x=f32(3))
    made = optimise(m.finish(gelu_tanh_pow(m, m.x)), passes=["patterns"])
    assert made.nodes[0].attrs == {"approximate": "tanh"}


def test_a_value_read_elsewhere_is_still_computed():
    m = Model(x=f32(3, 4))
    gate = m.op("sigmoid", m.x)
    graph = m.finish(m.op("mul", m.x, gate), gate)
    assert optimise(graph, passes=["patterns"]) is graph


def layer_norm(m, x, *, root="sqrt", twice=False, axes=(-1,)):
    mean = m.op("reduce_mean", x, ints(*axes), keepdims=1)
    centred = m.op("sub", x, mean)
    again = m.op("sub", x, mean) if twice else centred
    square = {
        "sqrt": lambda: m.op("pow", again, TWO),
        "rsqrt": lambda: m.op("square", again),
        "reciprocal": lambda: m.op("mul", again, again),
    }[root]()
    variance = m.op("reduce_mean", square, ints(*axes), keepdims=1)
    shifted = m.op("add", variance, scalar(1e-5))
    if root == "rsqrt":
        return m.op("mul", centred, m.op("rsqrt", shifted))
    if root == "reciprocal":
        return m.op("mul", m.op("reciprocal", m.op("sqrt", shifted)), centred)
    return m.op("div", centred, m.op("sqrt", shifted))


@pytest.mark.parametrize("root", ["sqrt", "rsqrt", "reciprocal"])
@pytest.mark.parametrize("twice", [False, True])
def test_layer_norm(root, twice):
    m = Model(x=f32(2, 5, 16))
    y = m.op("mul", layer_norm(m, m.x, root=root, twice=twice), weights(16))
    graph = m.finish(m.op("add", weights(1, 16, seed=2), y))
    made = optimise(graph, passes=["patterns"])
    assert op_names(made) == "layer_normalization" and len(made.nodes[0].inputs) == 3
    assert_same_results(graph, made, tol=1e-5)


def test_layer_norm_as_tensorflow_writes_it():
    m = Model(x=f32(2, 5, 16))
    mean = m.op("reduce_mean", m.x, ints(2), keepdims=1)
    variance = m.op("reduce_mean", m.op("squared_difference", m.x, mean), ints(2), keepdims=1)
    factor = m.op("mul", m.op("rsqrt", m.op("add", variance, scalar(1e-5))), weights(16))
    rest = m.op("sub", weights(16, seed=2), m.op("mul", mean, factor))
    graph = m.finish(m.op("add", m.op("mul", m.x, factor), rest))
    made = optimise(graph, passes=["patterns"])
    assert op_names(made) == "layer_normalization"
    assert_same_results(graph, made, tol=1e-5)


def test_layer_norm_over_two_axes_only_when_they_are_last():
    for axes, ops in (((-1, 1), "layer_normalization"), ((0,), "")):
        m = Model(x=f32(3, 4, 5))
        graph = m.finish(layer_norm(m, m.x, axes=axes))
        made = optimise(graph, passes=["patterns"])
        assert op_names(made) == (ops or op_names(graph))
        assert_same_results(graph, made, tol=1e-5)


def test_rms_norm():
    m = Model(x=f32(2, 5, 16))
    mean = m.op("reduce_mean", m.op("pow", m.x, TWO), ints(2), keepdims=1)
    root = m.op("sqrt", m.op("add", mean, scalar(1e-6)))
    y = m.op("mul", m.x, m.op("reciprocal", root))
    graph = m.finish(m.op("mul", weights(16), y))
    made = optimise(graph, passes=["patterns"])
    assert op_names(made) == "rms_normalization"
    assert_same_results(graph, made, tol=1e-5)


@pytest.mark.parametrize("groups", [1, 4, 8])
def test_group_norm_as_pytorch_exports_it(groups):
    m = Model(x=f32(2, 8, 5, 6))
    rows = m.op("reshape", m.x, ints(2, groups, -1))
    rows = m.op(
        "instance_normalization", rows, weights(groups), weights(groups, seed=2), layout="NCHW"
    )
    y = m.op("mul", m.op("reshape", rows, ints(2, 8, 5, 6)), weights(8, 1, 1, seed=3))
    graph = m.finish(m.op("add", weights(1, 8, 1, 1, seed=4), y))
    made = optimise(graph, passes=["patterns"])
    assert op_names(made) == "group_normalization"
    assert made.nodes[0].attrs["num_groups"] == groups
    assert_same_results(graph, made, tol=1e-5)


def test_group_norm_is_left_alone_where_groups_cross_images_or_the_shape_changes():
    for rows, shape in (((1, 8, -1), (2, 4, 5, 6)), ((2, 2, -1), (2, 4, 6, 5))):
        m = Model(x=f32(2, 4, 5, 6))
        y = m.op("reshape", m.x, ints(*rows))
        depth = rows[1]
        y = m.op("instance_normalization", y, weights(depth), weights(depth), layout="NCHW")
        graph = m.finish(m.op("reshape", y, ints(*shape)))
        assert optimise(graph, passes=["patterns"]) is graph


def test_a_factor_along_the_width_is_no_scale_of_channels():
    m = Model(x=f32(2, 6, 5, 6))
    y = m.op("instance_normalization", m.x, weights(6), weights(6), layout="NCHW")
    graph = m.finish(m.op("mul", y, weights(6)))
    assert optimise(graph, passes=["patterns"]) is graph


def test_softmax_and_its_scale():
    m = Model(x=f32(2, 5, 16))
    x = m.op("div", m.x, scalar(8.0))
    power = m.op("exp", m.op("sub", x, m.op("reduce_max", x, ints(-1), keepdims=1)))
    graph = m.finish(m.op("div", power, m.op("reduce_sum", power, ints(-1), keepdims=1)))
    made = optimise(graph, passes=["patterns"])
    assert op_names(made) == "softmax" and made.nodes[0].attrs["beta"] == 0.125
    assert_same_results(graph, made, tol=1e-6)


def test_log_of_softmax():
    m = Model(x=f32(2, 16))
    graph = m.finish(m.op("log", m.op("softmax", m.x, axis=1)))
    made = optimise(graph, passes=["patterns"])
    assert op_names(made) == "log_softmax"
    assert_same_results(graph, made, tol=1e-5)


@pytest.mark.parametrize("write", [gelu_torch, hard_swish_torch, swish], ids=lambda f: f.__name__)
def test_patterns_end_in_the_conv(write):
    m = Model(x=f32(1, 3, 5, 5))
    graph = m.finish(write(m, conv(m, m.x, 3, 4)))
    made = optimise(graph)
    assert op_names(made) == "transpose conv transpose"
    assert_same_results(graph, made, tol=1e-5)


def test_a_gemm_that_adds_nothing_becomes_fully_connected():
    m = Model(x=f32(2, 3))
    graph = m.finish(m.op("gemm", m.x, weights(3, 5), alpha=1.0, beta=1.0, trans_a=0, trans_b=0))
    made = optimise(graph, passes=["canonicalise"])
    assert_same_results(graph, made)
    assert op_names(made) == "fully_connected" and len(made.nodes[0].used) == 2
