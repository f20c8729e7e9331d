"""Random graphs: whatever the passes do, what comes out is what came out before."""

import math
from dataclasses import replace

import numpy as np
import pytest
from model_builder import Model, f32, ints
from random_graphs import random_graph
from same_results import assert_same_results

from trireme.ir.builder import scalar
from trireme.passes.pipeline import PASSES, optimise

UNARY = (
    "relu",
    "tanh",
    "sigmoid",
    "hard_swish",
    "swish",
    "abs",
    "neg",
    "identity",
    "relu6",
    "exp_small",
    "clip",
    "hard_sigmoid",
    "gelu",
    "softplus",
    "square",
)
BINARY = ("add", "sub", "mul", "max", "min")
SHAPES = [(1, 4, 6, 6), (2, 3, 5, 7), (1, 2, 4, 8), (2, 6, 4)]


class Random:
    """Grows a graph by random nodes on random values; every step keeps values within bounds."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.m = Model(x=f32(*SHAPES[self.rng.integers(len(SHAPES))]))
        self.values = [self.m.x]

    def graph(self, nodes):
        """A graph of about that many nodes."""
        for _ in range(nodes):
            step = STEPS[self.rng.integers(len(STEPS))]
            made = step(self, self.pick())
            if made is not None:
                self.values.append(made)
        outputs = self.rng.choice(self.values[1:], size=min(3, len(self.values) - 1), replace=False)
        last = self.values[-1]
        return self.m.finish(*dict.fromkeys([*(int(v) for v in outputs), last]))

    def pick(self):
        """A value, the recent ones more often."""
        back = min(int(self.rng.exponential(2.0)), len(self.values) - 1)
        return self.values[-1 - back]

    def op(self, name, *inputs, **attrs):
        pin = "cpu" if self.rng.random() < 0.03 else None
        return self.m.op(name, *inputs, pin=pin, **attrs)

    def normal(self, *shape):
        return np.asarray(self.rng.standard_normal(shape), np.float32)

    def dims(self, x):
        return self.m.type(x).dims

    def small(self, x):
        """Keep products and powers from growing without bounds."""
        return self.op("tanh", x) if self.rng.random() < 0.5 else x

    def channel_axis(self):
        return "NCHW" if self.rng.random() < 0.7 else "NHWC"

    def unary(self, x):
        name = UNARY[self.rng.integers(len(UNARY))]
        if name == "exp_small":
            return self.op("exp", self.op("min", x, scalar(2.0)))
        if name == "clip":
            low, high = sorted(self.rng.choice([-1.0, 0.0, 1.0, 6.0], 2, replace=False))
            return self.op("clip", x, scalar(low), scalar(high))
        if name == "square":
            return self.op("pow", self.small(x), scalar(2.0))
        return self.op(name, x)

    def by_constant(self, x):
        dims = self.dims(x)
        shape = [d if self.rng.random() < 0.4 else 1 for d in dims]
        shape = shape[self.rng.integers(len(shape) + 1) :]
        data = self.normal(*shape)
        name = ("add", "sub", "mul", "div")[self.rng.integers(4)]
        if name == "div":
            data = np.sign(data) * (np.abs(data) + 0.5)
        if self.rng.random() < 0.2:
            data = np.full_like(data, self.rng.choice([0.0, 1.0, 2.0, 0.25]) or 1.0)
        data = np.asarray(data, np.float32)
        if name in ("add", "mul") and self.rng.random() < 0.3:
            return self.op(name, data, x)
        return self.op(name, x, data)

    def binary(self, x):
        like = [v for v in self.values if self.dims(v) == self.dims(x)]
        other = like[self.rng.integers(len(like))]
        name = BINARY[self.rng.integers(len(BINARY))]
        return self.op(name, self.small(x), other if name != "mul" else self.small(other))

    def broadcast(self, x):
        """An operand that is x reduced, as in a squeeze-and-excite gate."""
        axes = [a for a in range(1, len(self.dims(x))) if self.rng.random() < 0.6]
        gate = self.op("reduce_mean", x, ints(*axes), keepdims=1) if axes else x
        return self.op("mul", self.small(x), self.op("sigmoid", gate))

    def conv(self, x):
        dims, layout = self.dims(x), self.channel_axis()
        rank = len(dims) - 2
        if rank < 1:
            return None
        channels = dims[1] if layout == "NCHW" else dims[-1]
        groups = int(self.rng.choice([g for g in (1, 2, channels) if channels % g == 0]))
        out = groups * int(self.rng.integers(1, 4))
        kernel = tuple(int(k) for k in self.rng.integers(1, 4, rank))
        spatial = dims[2:] if layout == "NCHW" else dims[1:-1]
        pads = tuple(int(p) for p in self.rng.integers(0, 2, 2 * rank))
        if any(s + pads[i] + pads[i + rank] < kernel[i] for i, s in enumerate(spatial)):
            return None
        per = channels // groups
        shape = (out, per, *kernel) if layout == "NCHW" else (out, *kernel, per)
        w = self.normal(*shape) / np.float32(math.sqrt(per * math.prod(kernel)))
        biases = [self.normal(out)] if self.rng.random() < 0.5 else []
        strides = tuple(int(s) for s in self.rng.integers(1, 3, rank))
        y = self.op(
            "conv",
            x,
            w,
            *biases,
            strides=strides,
            pads=pads,
            dilations=(1,) * rank,
            groups=groups,
            layout=layout,
        )
        return self.batch_norm(y, layout) if self.rng.random() < 0.4 else y

    def batch_norm(self, x, layout=None):
        layout = layout or self.channel_axis()
        if len(self.dims(x)) < 2:
            return None
        channels = self.dims(x)[1 if layout == "NCHW" else -1]
        stats = [self.normal(channels) for _ in range(3)] + [np.abs(self.normal(channels)) + 0.5]
        return self.op("batch_normalization", x, *stats, layout=layout)

    def pool(self, x):
        dims, layout = self.dims(x), self.channel_axis()
        rank = len(dims) - 2
        spatial = dims[2:] if layout == "NCHW" else dims[1:-1]
        if rank < 1 or min(spatial) < 2:
            return None
        pads = tuple(int(p) for p in self.rng.integers(0, 2, 2 * rank))
        name = "max_pool" if self.rng.random() < 0.5 else "average_pool"
        return self.op(
            name,
            x,
            kernel=(2,) * rank,
            strides=(int(self.rng.integers(1, 3)),) * rank,
            pads=pads,
            dilations=(1,) * rank,
            layout=layout,
        )

    def pad(self, x):
        rank = len(self.dims(x))
        pads = np.where(self.rng.random(2 * rank) < 0.3, 1, 0).astype(np.int64)
        if self.rng.random() < 0.7 and rank > 2:  # only where images have it
            pads[[0, 1, rank, rank + 1]] = 0
        extra = [] if self.rng.random() < 0.7 else [scalar(float(self.rng.integers(2)))]
        return self.op("pad", x, pads, *extra) if math.prod(self.dims(x)) < 4000 else None

    def transpose(self, x):
        rank = len(self.dims(x))
        images = [(0, 2, 3, 1), (0, 3, 1, 2)] if rank == 4 else []
        perms = [*images, *images, tuple(self.rng.permutation(rank).tolist())]
        return self.op("transpose", x, perm=perms[self.rng.integers(len(perms))])

    def reshape(self, x):
        dims = list(self.dims(x))
        if len(dims) > 2 and self.rng.random() < 0.6:
            at = int(self.rng.integers(len(dims) - 1))
            dims[at : at + 2] = [dims[at] * dims[at + 1]]
        else:
            at = int(self.rng.integers(len(dims)))
            divisor = int(self.rng.choice([d for d in (1, 2, 3) if dims[at] % d == 0]))
            dims[at : at + 1] = [divisor, dims[at] // divisor]
        return self.op("reshape", x, ints(*dims)) if len(dims) < 6 else None

    def reduce(self, x):
        rank = len(self.dims(x))
        axes = self.rng.choice(rank, int(self.rng.integers(1, max(rank, 2))), replace=False)
        name = ("reduce_mean", "reduce_max", "reduce_sum")[self.rng.integers(3)]
        keep = int(self.rng.random() < 0.5) if rank > 2 else 1
        if name == "reduce_sum":
            x = self.op("tanh", x)
        return self.op(name, x, np.sort(axes).astype(np.int64), keepdims=keep)

    def concat(self, x):
        axis = int(self.rng.integers(len(self.dims(x))))
        if math.prod(self.dims(x)) > 2000:
            return None
        like = [v for v in self.values if self.dims(v) == self.dims(x)]
        return self.op("concat", x, like[self.rng.integers(len(like))], axis=axis)

    def split(self, x):
        dims = self.dims(x)
        axis = int(np.argmax(dims))
        if dims[axis] < 2:
            return None
        sizes = ints(1, dims[axis] - 1)
        made = self.m.add_node("split", [x, self.m.constant("", sizes)], {"axis": axis}, outputs=2)
        self.values.append(made[0])
        return made[1]

    def slice(self, x):
        dims = self.dims(x)
        axis = int(self.rng.integers(len(dims)))
        if dims[axis] < 2:
            return None
        step = int(self.rng.choice([1, 2, -1]))
        first, last = (1, 99) if step > 0 else (-1, -99)
        return self.op("slice", x, ints(first), ints(last), ints(axis), ints(step))

    def gather(self, x):
        axis = int(self.rng.integers(len(self.dims(x))))
        if self.rng.random() < 0.3 and len(self.dims(x)) > 2:
            return self.op("gather", x, np.array(0, np.int64), axis=axis)
        return self.op("gather", x, ints(0, -1, 0), axis=axis)

    def resize(self, x):
        rank = len(self.dims(x))
        if math.prod(self.dims(x)) > 1000:
            return None
        scales = np.where(self.rng.random(rank) < 0.4, 2.0, 1.0).astype(np.float32)
        mode = "nearest" if self.rng.random() < 0.5 else "linear"
        return self.op("resize", x, None, scales, mode=mode)

    def softmax(self, x):
        return self.op("softmax", x, axis=int(self.rng.integers(len(self.dims(x)))))

    def layer_norm(self, x):
        mean = self.op("reduce_mean", x, ints(-1), keepdims=1)
        centred = self.op("sub", x, mean)
        var = self.op("reduce_mean", self.op("mul", centred, centred), ints(-1), keepdims=1)
        root = self.op("sqrt", self.op("add", var, scalar(1e-3)))
        y = self.op("div", centred, root)
        return self.op("mul", y, self.normal(self.dims(x)[-1])) if self.rng.random() < 0.5 else y

    def matmul(self, x):
        inner = self.dims(x)[-1]
        w = self.normal(inner, int(self.rng.integers(1, 6))) / np.float32(math.sqrt(inner))
        return self.op("matmul", x, w)

    def gemm(self, x):
        dims = self.dims(x)
        x = self.op("reshape", x, ints(dims[0], -1))
        w = self.normal(5, math.prod(dims[1:])) / np.float32(math.sqrt(math.prod(dims[1:])))
        return self.op("gemm", x, w, self.normal(5), alpha=0.5, beta=2.0, trans_b=1)


STEPS = [
    getattr(Random, name)
    for name in (
        "unary",
        "unary",
        "by_constant",
        "by_constant",
        "binary",
        "binary",
        "broadcast",
        "conv",
        "conv",
        "conv",
        "batch_norm",
        "pool",
        "pad",
        "transpose",
        "transpose",
        "reshape",
        "reduce",
        "concat",
        "split",
        "slice",
        "gather",
        "resize",
        "softmax",
        "layer_norm",
        "matmul",
        "gemm",
    )
]


def check_seed(seed, nodes=14, **options):
    graph = Random(seed).graph(nodes)
    made = optimise(graph, **options)
    assert_same_results(graph, made, tol=2e-4, floor=1.0, seed=seed)
    assert [v.type for v in made.output_values()] == [v.type for v in graph.output_values()]
    assert not any(node.attrs.get("layout") == "NCHW" for node in made.nodes) or options
    again = optimise(made, **options)
    assert again is made, f"seed {seed}: not idempotent\n{made}\n{again}"


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_random_graphs(first):
    for seed in range(first, first + 20):
        check_seed(seed)


@pytest.mark.parametrize("name", PASSES)
def test_random_graphs_without_one_pass(name):
    for seed in range(500, 506):
        check_seed(seed, disable=[name])


@pytest.mark.parametrize("name", PASSES)
def test_random_graphs_with_one_pass(name):
    for seed in range(600, 606):
        check_seed(seed, passes=[name])


def with_dead_copies(graph):
    """The graph after two copies of its nodes, whose results nothing reads."""
    nodes, values = [], dict(graph.values)
    for _ in range(2):
        copy = {}
        for node in graph.nodes:
            for out in node.outputs:
                copy[out] = len(values)
                values[len(values)] = replace(values[out], id=len(values), name=f"v{len(values)}")
            inputs = tuple(copy.get(i, i) for i in node.inputs)
            outputs = tuple(copy[out] for out in node.outputs)
            nodes.append(replace(node, inputs=inputs, outputs=outputs))
    everyone = (*nodes, *graph.nodes)
    renumbered = tuple(replace(node, id=k) for k, node in enumerate(everyone))
    return replace(graph, nodes=renumbered, values=values)


@pytest.mark.parametrize("name", [*PASSES, None])
def test_dead_nodes_are_in_nobodys_way(name):
    """A pass may leave nodes that nothing reads, and the next one meets them."""
    for seed in range(700, 712):
        graph = Random(seed).graph(12)
        copies = with_dead_copies(graph)
        made = optimise(copies) if name is None else optimise(copies, passes=[name])
        assert_same_results(graph, made, tol=1e-4, floor=1.0, seed=seed)


@pytest.mark.parametrize("quantised", [True, False], ids=["int8", "float32"])
def test_random_graphs_of_every_stage(quantised):
    """The graphs that other stages are tested with, pins and all; int8 to the bit."""
    for seed in range(40):
        graph = random_graph(seed, 20, quantised=quantised, pins=("cpu", "npu"))
        made = optimise(graph)
        pins = {node.pin for node in made.nodes}
        assert pins <= {None, "cpu", "npu"}
        assert_same_results(graph, made, tol=0 if quantised else 1e-4, floor=1.0, seed=seed)
        assert optimise(made) is made, f"seed {seed}"
