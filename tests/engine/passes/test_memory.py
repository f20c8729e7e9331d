"""No pass raises the bound of memory: the most bytes alive at one node, in the order of the graph.

The one exception is a transpose that `layout` leaves: a value is then held in both layouts. Counted
as one value in two layouts, the bound does not rise there either.
"""

import numpy as np
import pytest
from zoo import zoo_folder

from trireme.backend.arena import LiveRange, peak_bytes
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.model_file.convert import convert
from trireme.passes.pipeline import PASSES, optimise

SIDE = 8


def peak(graph, transposes=True):
    """The most bytes alive at once; without transposes, what they make is what they read."""
    of, first, last = {}, dict.fromkeys(graph.inputs, 0), {}
    for step, node in enumerate(graph.nodes):
        for value in node.used:
            if of.get(value, value) in first:
                last[of.get(value, value)] = step
        for value in node.outputs:
            if node.op == "transpose" and not transposes and node.used[0] in {*first, *of}:
                of[value] = of.get(node.used[0], node.used[0])
            else:
                first[value] = last[value] = step
    for value in graph.outputs:
        if of.get(value, value) in first:
            last[of.get(value, value)] = len(graph.nodes)
    return peak_bytes(
        [LiveRange(v, first[v], last.get(v, first[v]), graph.type(v).nbytes) for v in first]
    )


def check(graph, name=""):
    """Run every pass after the other, twice, and see that no bound is above the one before."""
    for run in range(2):
        for one in PASSES:
            after = optimise(graph, passes=[one])
            free = one == "layout"
            before, now = peak(graph, not free), peak(after, not free)
            assert now <= before, f"{name}: {one} in round {run} raises {before} to {now} bytes"
            graph = after
    return graph


class Wide:
    """A random net of convolutions of 2 to 64 channels, adds of what lies far apart, and forks."""

    def __init__(self, seed):
        self.rng, self.b = np.random.default_rng(seed), GraphBuilder(f"wide {seed}")
        self.layout = ("NHWC", "NCHW")[seed % 2]
        self.values = [self.b.input("x", self.type(8))]
        for _ in range(int(self.rng.integers(6, 30))):
            self.grow()
        used = {value for node in self.b.nodes for value in node.used}
        self.graph = self.b.finish(*(v for v in self.values if v not in used))

    def type(self, channels):
        dims = (1, SIDE, SIDE, channels) if self.layout == "NHWC" else (1, channels, SIDE, SIDE)
        return TensorType(dims, "float32")

    def channels(self, value):
        return self.b.values[value].type.shape[3 if self.layout == "NHWC" else 1]

    def one_of(self, values):
        return values[int(self.rng.integers(len(values)))]

    def grow(self):
        x, draw = self.one_of(self.values[-6:]), self.rng.random()
        if draw < 0.4:
            made = self.conv(x, int(self.rng.choice([2, 4, 8, 16, 64])))
        elif draw < 0.7:
            like = [v for v in self.values if self.channels(v) == self.channels(x)]
            made = self.b.add("add", x, self.one_of(like))
        else:
            made = self.b.add(str(self.rng.choice(["relu", "sigmoid", "neg"])), x)
        self.values.append(made)

    def conv(self, x, channels):
        kernel, inside = int(self.rng.choice([1, 3])), self.channels(x)
        shape = (channels, kernel, kernel, inside)
        if self.layout == "NCHW":
            shape = (channels, inside, kernel, kernel)
        w = self.b.constant("w", self.rng.normal(size=shape).astype(np.float32))
        return self.b.add(
            "conv",
            x,
            w,
            strides=(1, 1),
            pads=(kernel // 2,) * 4,
            dilations=(1, 1),
            groups=1,
            layout=self.layout,
        )


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_no_pass_raises_the_bound_of_wide_nets(first):
    for seed in range(first, first + 10):
        check(Wide(seed).graph, f"seed {seed}")


@pytest.mark.slow
def test_no_pass_raises_the_bound_of_a_thousand_wide_nets():
    for seed in range(40, 1040):
        check(Wide(seed).graph, f"seed {seed}")


@pytest.mark.parametrize(
    "name",
    [
        "kws_dscnn_f32",
        "mobilenet_v2_1.0_224_quant",
        "deeplabv3_f32",
        "resnet8_cifar10_f32",
        "ssd_mobilenet_v1_quant",
        "yamnet",
    ],
)
def test_no_pass_raises_the_bound_of_the_zoo(name):
    path = zoo_folder() / f"{name}.tflite"
    if not path.exists():
        pytest.skip("the zoo is not there")
    graph = convert(path)
    assert peak(check(graph, name)) <= peak(graph)


def narrow(b, x, channels):
    w = b.constant("w", np.ones((channels, 1, 1, b.values[x].type.shape[3]), np.float32))
    return b.add(
        "conv",
        x,
        w,
        strides=(1, 1),
        pads=(0,) * 4,
        dilations=(1, 1),
        groups=1,
        layout="NHWC",
    )


def late_add(count=6):
    """Wide inputs that are narrowed at once and added to a value that is there only at the end."""
    b = GraphBuilder("late")
    wide = TensorType((1, 16, 16, 64), "float32")
    x = b.input("x", wide)
    small = []
    for _ in range(count):
        x = b.add("relu", x)
        small.append(narrow(b, x, 2))
    end = b.add("sigmoid", narrow(b, x, 2))
    for value in small:
        end = b.add("add", value, end)
    return b.finish(end)


def test_an_add_that_comes_late_keeps_no_wide_operand():
    graph = late_add()
    made = check(graph)
    assert peak(made) <= peak(graph)
    assert not any(node.op == "conv" and len(node.inputs) > 3 for node in made.nodes[:-1])


def test_a_residual_that_is_there_is_added_where_the_convolution_was():
    b = GraphBuilder("early")
    x = b.input("x", TensorType((1, 16, 16, 8), "float32"))
    y = narrow(b, b.add("relu", x), 8)
    other = narrow(b, x, 32)
    graph = b.finish(b.add("relu", b.add("add", y, x)), other)
    made = check(graph)
    assert [node.op for node in made.nodes] == ["relu", "conv", "conv"]
    assert len(made.nodes[1].inputs) == 4 and made.nodes[1].attrs["activation"] == "relu"
