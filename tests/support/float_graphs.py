"""Small float graphs to quantise, with weights whose outputs depend on their inputs."""

import numpy as np

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType

CONV = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "layout": "NHWC"}
POOL = CONV | {"strides": (2, 2), "kernel": (2, 2), "pads": (0, 0, 0, 0)}


def weights(rng, *shape):
    """Weights that keep the size of values, channels of unlike size."""
    fan = np.prod(shape[1:]) or 1
    scale = rng.uniform(0.3, 3, (shape[0], *[1] * (len(shape) - 1)))
    return (rng.standard_normal(shape) * scale / np.sqrt(fan)).astype(np.float32)


def conv_net(seed=0, activation="relu", *, ends_in="softmax"):
    """A residual block, a depthwise one, a concat of unlike ranges, pools and a head."""
    rng = np.random.default_rng(seed)
    b = GraphBuilder("net")

    def conv(x, out, inside, name, groups=1, size=3):
        w = b.constant(f"{name}.w", weights(rng, out, size, size, inside // groups))
        bias = b.constant(f"{name}.b", rng.standard_normal(out).astype(np.float32))
        pads = {"pads": (size // 2,) * 4}
        return b.add("conv", x, w, bias, names=[name], groups=groups, **(CONV | pads))

    x = b.input("x", TensorType((1, 12, 12, 3), "float32"))
    first = b.add(activation, conv(x, 8, 3, "first"), names=["first.act"])
    deep = b.add(activation, conv(first, 8, 8, "deep", groups=8), names=["deep.act"])
    total = b.add("add", first, conv(deep, 8, 8, "point", size=1), names=["sum"])
    pooled = b.add("max_pool", total, names=["pool"], **POOL)
    wide = b.add("concat", pooled, b.add("sigmoid", pooled, names=["gate"]), axis=3, names=["cat"])
    mean = b.add("average_pool", conv(wide, 8, 16, "last"), names=["mean"], **POOL)
    flat = b.add("reshape", mean, b.constant("flat", np.array([1, 72])), names=["flat"])
    w = b.constant("head.w", weights(rng, 10, 72))
    bias = b.constant("head.b", rng.standard_normal(10).astype(np.float32))
    head = b.add("fully_connected", flat, w, bias, names=["head"])
    return b.finish(b.add(ends_in, head, names=["y"]))


def encoder_block(seed=0):
    """A patch of a transformer: conv, norm, two products of one value, gelu, one without a bias."""
    rng = np.random.default_rng(seed)
    b = GraphBuilder("block")

    def products(*shape):
        data = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        return b.constant("w", data.astype(np.float32))

    def numbers(count):
        return b.constant("b", rng.standard_normal(count).astype(np.float32))

    x = b.input("x", TensorType((1, 8, 8, 3), "float32"))
    window = {"strides": (2, 2), "pads": (0, 0, 0, 0), "dilations": (1, 1), "layout": "NHWC"}
    patches = b.add("conv", x, products(24, 2, 2, 3), numbers(24), **window)
    rows = b.add("reshape", patches, b.constant("shape", np.array([1, 16, 24])))
    one = b.constant("one", np.ones(24, np.float32))
    normed = b.add("layer_normalization", rows, one, numbers(24), axis=-1)
    up = b.add("gelu", b.add("fully_connected", normed, products(48, 24), numbers(48)))
    gate = b.add("fully_connected", normed, products(48, 24))
    down = b.add("fully_connected", b.add("mul", up, gate), products(24, 48), numbers(24))
    return b.finish(b.add("add", rows, down, names=["y"]))


def samples_of(graph, count, seed=0):
    """Samples of every input of a graph, along a first axis that is one more."""
    rng = np.random.default_rng(seed)
    return {
        value.name: rng.standard_normal((count, *value.type.dims)).astype(np.float32)
        for value in graph.input_values()
    }
