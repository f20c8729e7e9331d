"""Kernels of the cpu device at shapes that break things: 1, primes, tails, strides, dilations,
groups, batches, many slices and chunks; every instruction set against the reference.
"""

import itertools

import numpy as np
import pytest
from cpu_run import agree_everywhere, node_graph, run
from sweep import sweep

import trireme.ops  # noqa: F401
from trireme.devices.cpu.codegen.target import available_isas
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import interpret
from trireme.ops.trees import drawn_trees

SEED = 7
ALL_ISAS = available_isas(variants=False)


@pytest.fixture
def rng():
    print("seed", SEED)
    return np.random.default_rng(SEED)


def draw(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


CONVS = {  # (n, h, w, c), (o, kh, kw), strides, pads, dilations, groups, activation, residual
    "1x1": ((1, 5, 7, 3), (5, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1, "relu", False),
    "1x1 wide": ((2, 7, 7, 37), (67, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1, "relu6", True),
    "1x1 strided": ((1, 9, 8, 19), (33, 1, 1), (2, 2), (0, 0, 0, 0), (1, 1), 1, "", False),
    "1x1 padded": ((1, 3, 4, 5), (6, 1, 1), (1, 1), (1, 0, 2, 1), (1, 1), 1, "", False),
    "3x3": ((1, 13, 11, 17), (31, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, "hard_swish", False),
    "3x3 same, strided": ((2, 8, 9, 16), (32, 3, 3), (2, 2), (0, 0, 1, 1), (1, 1), 1, "relu", True),
    "3x3 dilated": ((1, 11, 12, 5), (7, 3, 3), (1, 1), (2, 3, 2, 3), (2, 3), 1, "", False),
    "5x2 uneven": ((1, 10, 6, 4), (9, 5, 2), (3, 1), (2, 0, 1, 1), (1, 1), 1, "gelu", False),
    "first layer, 8": ((1, 13, 29, 3), (8, 3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 1, "relu6", False),
    "first layer, 23": ((1, 13, 29, 3), (23, 3, 3), (2, 2), (0, 0, 1, 1), (1, 1), 1, "", True),
    "first layer, 32": ((2, 9, 31, 3), (32, 3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 1, "relu", False),
    "first layer": ((1, 17, 19, 3), (16, 7, 7), (2, 2), (3, 3, 3, 3), (1, 1), 1, "relu", False),
    "wider than the image": ((1, 2, 2, 8), (8, 5, 5), (1, 1), (2, 2, 2, 2), (1, 1), 1, "", False),
    "groups": ((1, 6, 5, 12), (8, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 4, "relu", True),
    "groups 1x1": ((2, 4, 4, 40), (60, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 2, "", False),
    "multiplier": ((1, 5, 5, 6), (12, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 6, "", False),
    "deep, in slices": ((1, 6, 6, 260), (40, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, "relu", True),
    "deep 1x1": ((1, 30, 30, 1030), (20, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1, "tanh", True),
    "many chunks": ((1, 40, 40, 24), (72, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1, "relu6", False),
    "depthwise": ((1, 9, 7, 19), (19, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 19, "relu6", False),
    "depthwise strided": ((2, 8, 10, 33), (33, 3, 3), (2, 2), (0, 0, 1, 1), (1, 1), 33, "", True),
    "depthwise 5x5": ((1, 9, 31, 16), (16, 5, 5), (1, 1), (2, 2, 2, 2), (1, 1), 16, "swish", True),
    "depthwise dilated": ((1, 9, 40, 5), (5, 3, 3), (1, 1), (3, 4, 3, 4), (3, 4), 5, "", False),
    "depthwise small": ((1, 2, 2, 20), (20, 5, 5), (1, 1), (2, 2, 2, 2), (1, 1), 20, "", False),
    "depthwise wide": ((1, 17, 19, 4), (4, 17, 17), (1, 1), (8, 8, 8, 8), (1, 1), 4, "", False),
    "far dilation": ((1, 3, 90, 4), (4, 1, 3), (1, 1), (0, 40, 0, 40), (1, 40), 4, "", False),
    "one channel": ((1, 1, 300, 1), (7, 1, 25), (1, 3), (0, 12, 0, 12), (1, 1), 1, "", False),
    "direct, 4 vectors": ((2, 9, 33, 2), (61, 3, 2), (2, 2), (1, 1, 1, 0), (1, 2), 1, "", True),
    "depthwise big": ((1, 50, 45, 48), (48, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 48, "relu", False),
}


@pytest.mark.parametrize("name", CONVS)
def test_conv(cpus, rng, name):
    x, (o, kh, kw), strides, pads, dilations, groups, activation, residual = CONVS[name]
    attrs = dict(
        strides=strides,
        pads=pads,
        dilations=dilations,
        groups=groups,
        layout="NHWC",
        activation=activation,
    )
    weights = draw(rng, o, kh, kw, x[3] // groups) / np.float32((kh * kw * x[3] / groups) ** 0.5)
    inputs = [draw(rng, *x), weights, draw(rng, o)]
    graph, feeds = node_graph("conv", inputs, attrs, {1, 2})
    if residual:
        inputs.append(draw(rng, *graph.type(graph.outputs[0]).dims))
        graph, feeds = node_graph("conv", inputs, attrs, {1, 2})
    agree_everywhere(cpus, graph, feeds)


@pytest.mark.parametrize("op", ["max_pool", "average_pool"])
@pytest.mark.parametrize(
    "x, kernel, strides, pads, dilations, more",
    [
        ((1, 7, 7, 19), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), {}),
        ((2, 5, 9, 16), (2, 2), (2, 2), (0, 0, 0, 0), (1, 1), {"ceil_mode": 1}),
        ((1, 6, 31, 3), (3, 2), (1, 1), (1, 0, 2, 1), (1, 2), {}),
        ((1, 1, 1, 5), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), {"activation": "relu"}),
        ((1, 14, 14, 33), (14, 14), (1, 1), (0, 0, 0, 0), (1, 1), {}),
        ((2, 31, 29, 5), (31, 29), (1, 1), (0, 0, 0, 0), (1, 1), {}),
        ((1, 20, 21, 7), (15, 15), (3, 2), (7, 7, 7, 7), (1, 1), {}),
    ],
)
def test_pool(cpus, rng, op, x, kernel, strides, pads, dilations, more):
    attrs = dict(kernel=kernel, strides=strides, pads=pads, dilations=dilations, layout="NHWC")
    data = draw(rng, *x)
    data.flat[:: max(data.size // 3, 1)] = (np.nan, np.inf, -np.inf, 0)[
        : -(-data.size // max(data.size // 3, 1))
    ]
    if op == "average_pool":
        data = draw(rng, *x)
    agree_everywhere(cpus, *node_graph(op, [data], attrs | more))


@pytest.mark.parametrize(
    "a, b",
    [
        ((1, 1), (1, 1)),
        ((7, 13), (13, 5)),
        ((1, 640), (640, 67)),
        ((50, 3), (3, 100)),
        ((3, 17, 9), (3, 9, 31)),
        ((2, 3, 5, 16), (2, 3, 16, 48)),
        ((4, 5, 8), (8, 20)),
        ((5, 8), (4, 8, 20)),
        ((130, 1100), (1100, 50)),
    ],
)
@pytest.mark.parametrize("constant", [False, True])
def test_matmul(cpus, rng, a, b, constant):
    constants = {1} if constant else ()
    inputs = [draw(rng, *a), draw(rng, *b)]
    agree_everywhere(cpus, *node_graph("matmul", inputs, {}, constants))


@pytest.mark.parametrize(
    "rows, depth, columns", [(1, 1, 1), (1, 1280, 1001), (5, 33, 7), (29, 64, 96)]
)
def test_fully_connected(cpus, rng, rows, depth, columns):
    inputs = [draw(rng, rows, depth), draw(rng, columns, depth), draw(rng, columns)]
    attrs = {"activation": "gelu_tanh"}
    agree_everywhere(cpus, *node_graph("fully_connected", inputs, attrs, {1, 2}))


@pytest.mark.parametrize(
    "shape, perm",
    [
        ((3, 37, 41), (0, 2, 1)),
        ((1, 3, 29, 31), (0, 2, 3, 1)),
        ((2, 7, 5, 17), (0, 3, 1, 2)),
        ((5, 4, 3, 2), (3, 2, 1, 0)),
        ((16, 16), (1, 0)),
        ((1, 2, 5, 37), (0, 2, 3, 1)),
        ((4, 51), (1, 0)),
        ((2, 9, 4, 16), (0, 2, 1, 3)),
        ((1, 300, 200), (0, 2, 1)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "int8", "int64"])
def test_transpose(cpus, rng, shape, perm, dtype):
    data = rng.integers(-100, 100, shape).astype(dtype)
    agree_everywhere(cpus, *node_graph("transpose", [data], {"perm": perm}), rtol=0)


@pytest.mark.parametrize(
    "left, right",
    [
        ((1, 5, 6, 19), (19,)),
        ((1, 5, 6, 19), (1, 5, 6, 1)),
        ((4, 1, 3), (1, 5, 3)),
        ((), (3, 4)),
        ((50_000,), (50_000,)),
        ((300, 150), (300, 1)),
        ((2, 1, 3, 1, 5), (1, 4, 1, 6, 1)),
    ],
)
def test_broadcasting(cpus, rng, left, right):
    inputs = [draw(rng, *left), draw(rng, *right)]
    agree_everywhere(cpus, *node_graph("add", inputs, {"activation": "relu"}), rtol=0)
    agree_everywhere(cpus, *node_graph("mul", [inputs[1], inputs[0]], {"activation": "tanh"}))


@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (2, 100, 33), (1, 7, 7, 130), (40_000, 3)])
def test_rows(cpus, rng, shape):
    x = draw(rng, *shape) * 3
    last = np.array([-1], np.int64)
    middle = np.arange(1, len(shape) - 1) if len(shape) > 2 else np.array([0])
    for axis in (-1, len(shape) // 2):
        agree_everywhere(cpus, *node_graph("softmax", [x], {"axis": axis}))
    for op in ("reduce_mean", "reduce_max", "reduce_l2"):
        for axes in (last, middle):
            agree_everywhere(cpus, *node_graph(op, [x, axes.astype(np.int64)], {}, {1}))
    scale = [draw(rng, shape[-1]), draw(rng, shape[-1])]
    attrs = {"axis": -1, "epsilon": 1e-5}
    agree_everywhere(cpus, *node_graph("layer_normalization", [x, *scale], attrs, {1, 2}), 2e-5)


LRN_ALWAYS = [(1, 1), (2, 41), (5, 2), (16, 5), (19, 1), (33, 2), (64, 41), (192, 5)]


@pytest.mark.parametrize(
    "channels, size",
    sweep(itertools.product([1, 2, 5, 16, 19, 33, 64, 192], [1, 2, 5, 41]), LRN_ALWAYS),
)
def test_lrn(cpus, rng, channels, size):
    x = 3 * draw(rng, 2, 3, 2, channels)
    x[0, 0, 0, channels // 2], x[0, 1, 0, 0], x[1, 0, 1, -1] = 1e25, np.nan, -np.inf
    for bias in (1.0, 0.0):
        attrs = {"size": size, "alpha": 0.2, "beta": 0.75, "bias": bias}
        agree_everywhere(cpus, *node_graph("lrn", [x], attrs))


def test_max_pool_keeps_each_nan_where_it_is_seen(cpus, rng):
    for shape, kernel, stride, pads in (
        ((2, 9, 33, 21), (3, 3), (2, 2), (0, 0, 1, 1)),
        ((1, 7, 15, 16), (3, 3), (1, 1), (1, 1, 1, 1)),
        ((1, 5, 6, 3), (2, 1), (1, 2), (0, 0, 0, 0)),
    ):
        x = draw(rng, *shape)
        x.reshape(-1)[rng.integers(0, x.size, 9)] = np.nan
        x[0, 0, 0], x[0, 1, 1] = -np.inf, np.inf
        attrs = {"kernel": kernel, "strides": stride, "pads": pads, "dilations": (1, 1)}
        attrs["layout"] = "NHWC"
        agree_everywhere(cpus, *node_graph("max_pool", [x], attrs))


FUNCTIONS = ("exp", "log", "tanh", "sigmoid", "erf", "gelu", "hard_swish", "swish", "elu", "sqrt")


@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions_to_a_few_ulp(cpus, rng, op):
    """Each element on its own: within 4 units in the last place, or 1e-7 where results cancel."""
    x = np.concatenate(
        [
            np.linspace(-30, 30, 20_011),
            np.linspace(-1.5, 1.5, 20_011),
            np.logspace(-40, 38, 999),
            [np.nan, np.inf, -np.inf, 0.0, -0.0, 88.7, 88.8, -87.4, -103.9, -104.1, 1e-45],
        ]
    ).astype(np.float32)
    graph, feeds = node_graph(op, [x], {})
    want = next(iter(interpret(graph, feeds).values())).astype(np.float64)
    finite, nan = np.isfinite(want), np.isnan(want)
    cancels = op in ("gelu", "swish", "elu", "hard_swish", "log")
    limit = 6e-7 * np.abs(want[finite]) + (2e-6 if cancels else 1e-44)
    for isa in ALL_ISAS:
        got = run(cpus[isa, 1], graph, feeds)[0][0].astype(np.float64)
        np.testing.assert_array_equal(np.isnan(got), nan, err_msg=isa)
        np.testing.assert_array_equal(got[~finite & ~nan], want[~finite & ~nan], err_msg=isa)
        wrong = np.abs(got[finite] - want[finite]) > limit
        assert not wrong.any(), (isa, *(a[finite][wrong][:5] for a in (x, got, want)))


def test_a_chain_is_one_kernel(cpus, rng):
    builder = GraphBuilder("chain")
    x = builder.input("x", TensorType((2, 9, 11, 21), "float32"))
    bias = builder.constant("bias", draw(rng, 21))
    y = builder.add("add", x, bias)
    gate = builder.add("sigmoid", y)
    graph = builder.finish(builder.add("relu", builder.add("mul", y, gate)))
    feed = {x: draw(rng, 2, 9, 11, 21)}
    agree_everywhere(cpus, graph, feed)
    for isa in ALL_ISAS:
        kernels = run(cpus[isa, 1], graph, feed)[1]
        assert len(set(kernels.values())) == 2, kernels  # y has two readers and is stored


def test_random_regions(cpus):
    """Small random networks of convs, pools, adds and concats, in one region each."""
    for seed in range(6):
        rng = np.random.default_rng(SEED + seed)
        print("seed", SEED + seed)
        graph, feeds = random_network(rng)
        agree_everywhere(cpus, graph, feeds, rtol=2e-5)


def random_network(rng):
    builder = GraphBuilder("random")
    h, w, c = (int(v) for v in rng.integers(3, 15, 3))
    x = builder.input("x", TensorType((1, h, w, c), "float32"))
    live = [x]
    for _ in range(int(rng.integers(3, 9))):
        source = live[int(rng.integers(len(live)))]
        depth = builder.type(source).dims[-1]
        kind = rng.choice(["conv", "depthwise", "add", "concat", "pool", "sigmoid"])
        if kind in ("conv", "depthwise"):
            k, out = int(rng.choice([1, 3])), int(rng.integers(1, 40))
            groups = depth if kind == "depthwise" else 1
            shape = (depth, k, k, 1) if kind == "depthwise" else (out, k, k, depth)
            weights = builder.constant("w", draw(rng, *shape) / np.float32(k * 3))
            live.append(
                builder.add(
                    "conv",
                    source,
                    weights,
                    strides=(1, 1),
                    pads=(k // 2,) * 4,
                    dilations=(1, 1),
                    groups=groups,
                    layout="NHWC",
                    activation="relu",
                )
            )
        elif kind == "add":
            live.append(builder.add("add", source, source))
        elif kind == "concat":
            other = live[int(rng.integers(len(live)))]
            live.append(builder.add("concat", source, other, axis=3))
        elif kind == "pool":
            live.append(
                builder.add(
                    "average_pool",
                    source,
                    kernel=(3, 3),
                    strides=(1, 1),
                    pads=(1, 1, 1, 1),
                    dilations=(1, 1),
                    layout="NHWC",
                )
            )
        else:
            live.append(builder.add("sigmoid", source))
    outputs = {live[-1], live[int(rng.integers(1, len(live)))]}
    return builder.finish(*sorted(outputs)), {x: draw(rng, 1, h, w, c)}


@pytest.mark.parametrize(
    ("rows", "trees", "depth", "outputs", "each"),
    [(1, 7, 5, 1, 1), (3, 8, 9, 1, 1), (65, 9, 4, 3, 2), (700, 33, 6, 2, 1)],
)
def test_trees(rows, trees, depth, outputs, each, rng, cpus):
    x = draw(rng, rows, 5)
    x[rng.random(x.shape) < 0.1] = np.nan
    arrays = drawn_trees(rng, trees, depth, 5, outputs, each, missing=0.3 if rows > 1 else 0)
    attrs = {"num_targets": outputs}
    agree_everywhere(cpus, *node_graph("tree_ensemble", [x, *arrays], attrs, range(1, 9)))
