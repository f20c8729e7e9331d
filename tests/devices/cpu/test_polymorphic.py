"""Kernels for every shape: one compile, many shapes, the bits of the kernels of each shape.

Each case is a graph with symbols. It is compiled once for all shapes; at shapes that are drawn and
at small ones it gives the results of the reference, and the bits of the program of that shape.
"""

from dataclasses import replace

import numpy as np
import pytest
from cpu_run import run
from every_shape import Case, bound, check_every_shape, check_without_elements, fed

import trireme.ops  # noqa: F401
from trireme.backend.capabilities import PolymorphicDevice
from trireme.backend.registry import open_device
from trireme.devices.cpu.codegen.aligned_memory import aligned_copy
from trireme.devices.cpu.codegen.target import available_isas
from trireme.ir.bind_shapes import bind_shapes
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.support.errors import CompileError

ISAS = available_isas(variants=False)
SEED = 5


def dense(c, x, columns, depth, **attrs):
    return c.add("fully_connected", x, c.weight(columns, depth), c.weight(columns), **attrs)


def flat_chain(c):
    x, y = c.input("x", "b", "s", 37), c.input("y", "b", "s", 37)
    return [c.add("mul", c.add("tanh", c.add("add", x, y)), x)]


def broadcast_bias(c):
    x = c.input("x", "b", "s", 37)
    return [c.add("relu", c.add("add", x, c.weight(37)))]


def broadcast_rows(c):
    x, y = c.input("x", "b", "s", "t"), c.input("y", "b", 1, "t")
    return [c.add("add", x, y), c.add("mul", x, c.input("z", "s", 1))]


def broadcast_scalar(c):
    return [c.add("mul", c.input("x", "b", 3, "s"), c.weight(1))]


def compare_and_choose(c):
    x, y = c.input("x", "b", "s"), c.input("y", "s")
    return [c.add("where", c.add("greater", x, y), x, y)]


def integers(c):
    x, y = (c.input(n, "b", "s", dtype="int64") for n in "xy")
    return [c.add("cast", c.add("mul", c.add("add", x, y), y), to="int8")]


def many_operands(c):
    return [c.add("max", *(c.input(f"x{k}", "b", "s") for k in range(11)))]


def layer(c):
    return [dense(c, c.input("x", "b", "s", 40), 70, 40)]


def gelu_layer(c):
    x = c.input("x", "b", "s", 64)
    return [dense(c, x, 96, 64, activation="gelu")]


def deep_layer(c):
    return [dense(c, c.input("x", "b", 3000), 24, 3000, activation="relu")]


def wide_layer(c):
    return [dense(c, c.input("x", "b", "s", 8), 1000, 8)]


def residual_layer(c):
    x, r = c.input("x", "b", "s", 32), c.input("r", "b", "s", 17)
    return [c.add("fully_connected", x, c.weight(17, 32), c.weight(17), r)]


def products_of_constants(c):
    x = c.input("x", "b", "s", 20)
    y = c.add("matmul", x, c.weight(20, 33))
    return [y, c.add("gemm", c.input("g", "b", 5), c.weight(7, 5), c.weight(7), trans_b=1)]


def batched_products(c):
    x = c.input("x", "b", 3, "s", 16)
    scores = c.add("matmul", x, c.input("k", "b", 3, 16, "t"))
    return [c.add("matmul", scores, c.input("v", "b", 3, "t", 24))]


def norm(c):
    x = c.input("x", "b", "s", 100)
    y = c.add("layer_normalization", x, c.weight(100), c.weight(100), epsilon=1e-5)
    return [y, c.add("rms_normalization", x, c.weight(100), epsilon=1e-5)]


def softmax_of_any_length(c):
    x = c.input("x", "b", "t")
    return [c.add("softmax", x, axis=-1), c.add("log_softmax", x, axis=-1)]


def softmax_across(c):
    return [c.add("softmax", c.input("x", "b", "t", 20), axis=1)]


def reductions(c):
    x, axes = c.input("x", "b", "s", 45), c.builder.constant("a", np.array([1]))
    last = c.builder.constant("l", np.array([2]))
    y = c.input("y", "b", "t")
    mean = [c.add(f"reduce_{kind}", x, axes, keepdims=0) for kind in ("mean", "max")]
    total = c.add("reduce_sum", x, last, keepdims=1)
    length = c.add("reduce_l2", y, c.builder.constant("m", np.array([-1])), keepdims=0)
    return [*mean, total, length, c.add("reduce_mean", y, axes, keepdims=1)]


def heads(c):
    return [c.add("transpose", c.input("x", "b", "s", 4, 24), perm=(0, 2, 1, 3))]


def turned(c):
    x = c.input("x", "b", "s", "t")
    return [c.add("transpose", x, perm=(0, 2, 1)), c.add("transpose", x, perm=(2, 1, 0))]


def turned_wide(c):
    x = c.input("x", "b", "s", 35)
    return [c.add("transpose", x, perm=(0, 2, 1)), c.add("transpose", x, perm=(1, 2, 0))]


def turned_bytes(c):
    return [c.add("transpose", c.input("x", "b", "s", 35, dtype="int8"), perm=(0, 2, 1))]


def joined(c):
    x, y = c.input("x", "b", "s", 20), c.input("y", "b", "t", 20)
    z = c.add("concat", x, y, axis=1)
    return [z, c.add("concat", z, z, axis=-1)]


def parted(c):
    x = c.input("x", "b", "s", 21)
    return c.builder.add_node(
        "split", [x, c.builder.constant("p", np.array([8, 13]))], {"axis": 2}, outputs=2
    )


def sliced(c):
    x, numbers = c.input("x", "b", "s", 24), lambda *n: c.builder.constant("", np.array(n))
    first = c.add("slice", x, numbers(0), numbers(1), numbers(1))
    every = c.add("slice", x, numbers(20), numbers(0), numbers(2), numbers(-3))
    return [first, every, c.add("slice", x, numbers(-1), numbers(1 << 62), numbers(1))]


def embedded(c):
    table, ids = c.weight(30, 50), c.input("i", "b", "s", dtype="int64")
    x = c.add("gather", table, ids, axis=0)
    return [x, c.add("gather", x, c.builder.constant("z", np.array(0)), axis=1)]


def last_of_each(c):
    x = c.input("x", "b", "s", 18)
    return [c.add("gather", x, c.builder.constant("z", np.array([-1, 0])), axis=1)]


def heads_of(c, name, length, width):
    x = c.input(name, "b", length, 3, width)
    return c.add("transpose", x, perm=(0, 2, 1, 3))


def attention(c):
    q, k, v = (heads_of(c, name, "s", 24) for name in "qkv")
    scores = c.add("matmul", q, c.add("transpose", k, perm=(0, 1, 3, 2)))
    scaled = c.add("mul", scores, c.builder.constant("d", np.float32(0.2)))
    masked = c.add("add", scaled, c.input("m", "b", 1, 1, "s"))
    y = c.add("matmul", c.add("softmax", masked, axis=-1), v)
    return [c.add("transpose", y, perm=(0, 2, 1, 3))]


def cross_attention(c):
    q, k, v = heads_of(c, "q", "s", 19), heads_of(c, "k", "t", 19), heads_of(c, "v", "t", 33)
    scores = c.add("matmul", q, c.add("transpose", k, perm=(0, 1, 3, 2)))
    return [c.add("matmul", c.add("softmax", scores, axis=-1), v)]


def attention_of_masked_queries(c):
    q, k, v = (heads_of(c, name, "s", 16) for name in "qkv")
    scores = c.add("matmul", q, c.add("transpose", k, perm=(0, 1, 3, 2)))
    masked = c.add("add", scores, c.input("m", "b", 1, "s", "s"))
    return [c.add("matmul", c.add("softmax", masked, axis=-1), v)]


def picked(c):
    x, places = c.input("x", "b", "s"), c.input("o", "t", 3, 2, dtype="int64")
    rows = c.add("gather_nd", c.input("y", 1, 1, 7), places)
    return [rows, c.add("gather_elements", x, c.input("o2", "b", "t", dtype="int32"), axis=1)]


def image(c, channels):
    return c.input("x", "b", "h", "w", channels)


def conv(c, x, outputs, kernel, depth, strides=1, pads=0, groups=1, dilations=1, **attrs):
    weight = c.weight(outputs, kernel, kernel, depth)
    strides, dilations = (strides,) * 2, (dilations,) * 2
    attrs = {"pads": (pads,) * 4, "strides": strides, "dilations": dilations, **attrs}
    return c.add("conv", x, weight, c.weight(outputs), groups=groups, layout="NHWC", **attrs)


def pointwise(c):
    x = image(c, 20)
    return [conv(c, x, 40, 1, 20, activation="relu6"), conv(c, x, 18, 1, 20, strides=2)]


def gathered(c):
    x = image(c, 24)
    y = conv(c, x, 70, 3, 24, pads=1, strides=2, activation="relu")
    return [y, conv(c, x, 36, 3, 12, pads=2, dilations=2, groups=2)]


def first_layer(c):
    x = image(c, 3)
    return [conv(c, x, 32, 3, 3, pads=1, strides=2, activation="relu"), conv(c, x, 9, 5, 3, pads=2)]


def depthwise(c):
    x = image(c, 35)
    y = conv(c, x, 35, 3, 1, pads=1, groups=35, activation="relu6")
    return [y, conv(c, x, 35, 5, 1, pads=2, strides=2, groups=35)]


def pools(c):
    x = image(c, 21)
    attrs = dict(kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), dilations=(1, 1))
    return [c.add(op, x, layout="NHWC", **attrs) for op in ("max_pool", "average_pool")]


def whole_image(c):
    axes = c.builder.constant("a", np.array([1, 2]))
    return [c.add("reduce_mean", image(c, 40), axes, keepdims=1)]


IMAGES = (pointwise, gathered, first_layer, depthwise, pools)
CASES = {
    f.__name__: f
    for f in (
        flat_chain,
        broadcast_bias,
        broadcast_rows,
        broadcast_scalar,
        compare_and_choose,
        integers,
        many_operands,
        layer,
        gelu_layer,
        deep_layer,
        wide_layer,
        residual_layer,
        products_of_constants,
        batched_products,
        norm,
        softmax_of_any_length,
        softmax_across,
        reductions,
        heads,
        turned,
        turned_wide,
        turned_bytes,
        joined,
        parted,
        sliced,
        embedded,
        last_of_each,
        picked,
        whole_image,
        *IMAGES,
        attention,
        cross_attention,
        attention_of_masked_queries,
    )
}


def made(name):
    case = Case(name)
    outputs = CASES[name](case)
    return case, case.builder.finish(*outputs)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", CASES)
def test_one_compile_serves_every_shape(cpus, name, isa):
    case, graph = made(name)
    device = cpus[isa, 1]
    assert isinstance(device, PolymorphicDevice)
    reasons = [device.polymorphic_reason(graph, node) for node in graph.nodes]
    assert not any(reasons), reasons
    if CASES[name] in IMAGES:  # either may choose Winograd's algorithm where the other does not
        cpus = {(isa, n): open_device("cpu", threads=n, isa=isa, winograd=False) for n in (1, 2)}
        device = cpus[isa, 1]
    check_every_shape(cpus, device, case, graph, isa)


@pytest.mark.parametrize("name", CASES)
def test_one_compile_serves_shapes_without_elements(cpus, name):
    case = Case(name)
    graph = case.builder.finish(*CASES[name](case))
    check_without_elements(cpus, case, graph, ISAS[0])


def test_a_node_without_a_kernel_is_named(cpus):
    builder = GraphBuilder("sorted")
    x = builder.input("x", TensorType((4, "s"), "float32"))
    k = builder.constant("k", np.array([3]))
    graph = builder.finish(*builder.add_node("top_k", [x, k], {}, outputs=2))
    device = cpus[ISAS[0], 1]
    reason = device.polymorphic_reason(graph, graph.nodes[0])
    assert reason == "top_k has no kernel for every shape where it works along an axis that varies"
    with pytest.raises(CompileError, match="top_k"):
        device.compile_polymorphic([graph])


def test_shapes_share_code_and_weights(cpus):
    case, graph = made("gelu_layer")
    every = cpus[ISAS[0], 1].compile_polymorphic([graph])[0]
    one, two = (every.at(bound(graph, {"b": 2, "s": s})) for s in (7, 300))
    assert [code.symbol for code in one.codes] == [code.symbol for code in two.codes]
    assert one.constant_bytes == two.constant_bytes == every.constant_bytes > 96 * 64 * 4


_ROWS = np.random.default_rng(SEED).random((90, 20)).astype(np.float32)
_SAME_ROWS = np.broadcast_to(aligned_copy(_ROWS[0]), (90, 20))


@pytest.mark.parametrize("rows", [_ROWS, _SAME_ROWS], ids=["contiguous", "a view"])
def test_results_of_shapes_alone_are_constants(cpus, rows):
    """A graph of one shape has the results that its shapes decide; kernels read them."""
    builder = GraphBuilder("positions")
    x = builder.input("x", TensorType(("s", 20), "float32"))
    zero, one = (builder.constant(name, np.array(n)) for name, n in (("z", 0), ("o", 1)))
    length = builder.add(
        "reshape",
        builder.add("shape", x, start=0, end=1),
        builder.constant("e", np.array([], np.int64)),
    )
    places = builder.add("range", zero, length, one)
    y = builder.add("add", x, builder.add("gather", builder.constant("t", rows), places, axis=0))
    graph = builder.finish(y)
    device = cpus[ISAS[0], 1]
    assert not any(device.polymorphic_reason(graph, node) for node in graph.nodes)
    every = device.compile_polymorphic([graph])[0]
    for size in (1, 9, 90):
        known = bind_shapes(graph, {"x": (size, 20)})
        values = dict(known.values)
        for value, data in zip(
            (node.outputs[0] for node in known.nodes),
            (np.array([size]), np.array(size), np.arange(size), rows[:size], None),
            strict=True,
        ):
            shape = (size, 20) if data is None else data.shape
            type = TensorType(shape, values[value].dtype)
            values[value] = replace(values[value], type=type, data=data)
        one_shape = replace(known, values=values)
        feeds = fed(one_shape, np.random.default_rng(size))
        (got,), _, _ = run(device, one_shape, feeds, executable=every.at(one_shape))
        np.testing.assert_array_equal(got, feeds[x] + rows[:size])
    with pytest.raises(CompileError, match="not constant"):
        every.at(bind_shapes(graph, {"x": (3, 20)}))


def test_a_shape_that_breaks_an_assumption_is_refused(cpus):
    builder = GraphBuilder("unequal")
    x = builder.input("x", TensorType(("b", "s"), "float32"))
    graph = builder.finish(builder.add("relu", x))
    every = cpus[ISAS[0], 1].compile_polymorphic([graph])[0]
    with pytest.raises(CompileError, match="empty"):
        every.at(bind_shapes(graph, {"x": (0, 3)}))
