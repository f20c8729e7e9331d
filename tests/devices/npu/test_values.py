"""What the NPU computes: integers bit for bit, float16 as declared, whatever the SRAM size."""

import numpy as np
import pytest
from npu import Int8Builder, Run, sample_graph

from trireme.backend.registry import open_device
from trireme.devices.npu.compiler.constraints import supported_ops
from trireme.ir.interpreter import interpret
from trireme.ir.op import all_ops
from trireme.support.dtypes import numpy_dtype

SEED = 7
SRAM_SIZES = (8 << 10, 64 << 10, 1 << 20)


@pytest.fixture(scope="module")
def devices():
    opened = [open_device("npu", float32="float16", sram_bytes=size) for size in SRAM_SIZES]
    yield opened
    for device in opened:
        device.close()


def samples():
    """Every sample; every second one of an op is a sweep."""
    for op in all_ops():
        if op.name in supported_ops():
            for number, sample in enumerate(op.samples(np.random.default_rng(SEED))):
                marks = pytest.mark.sweep if number % 2 else ()
                name = f"{op.name}-{number}-{sample.note}"
                yield pytest.param(op, sample, id=name, marks=marks)


def halves(array):
    with np.errstate(over="ignore"):
        return array.astype(np.float16).astype(array.dtype) if array.dtype.kind == "f" else array


def check_close(got, want, tolerance):
    """Equal where either is NaN or infinite; elsewhere within a part of the largest value."""
    with np.errstate(all="ignore"):
        want = halves(want.astype(np.float32))
        finite = np.isfinite(want)
        error = np.abs(got.astype(np.float32) - want)[finite].max(initial=0)
        largest = np.abs(want[finite]).max(initial=0)
    np.testing.assert_array_equal(got[~finite].astype(np.float32), want[~finite])
    assert error <= tolerance * largest + 1e-7


@pytest.mark.parametrize(("op", "sample"), list(samples()))
def test_float_samples_with_float16_operands(devices, op, sample):
    """Inputs rounded to float16, one rounding of the result, float32 between."""
    if any(np.asarray(a).dtype.kind not in "fiu" for a in sample.inputs if a is not None):
        pytest.skip("not a dtype of the NPU")
    graph, feeds = sample_graph(op, sample)
    rounded = {value: halves(data) for value, data in feeds.items()}
    want = None
    for device in devices:
        reason = device.unsupported_reason(graph, graph.nodes[0])
        if reason:
            pytest.skip(reason)
        got = Run(device, graph, feeds).outputs
        want = want or interpret(graph, rounded)
        for value in graph.outputs:
            if got[value].dtype.kind in "iu":
                np.testing.assert_array_equal(got[value], want[value])
                continue
            assert got[value].dtype == numpy_dtype(graph.type(value).dtype)
            check_close(got[value], want[value], 2e-3)


def build(kind, dtype):
    """Return a quantised graph of odd shapes, and its feeds."""
    b = Int8Builder(np.random.default_rng(SEED), dtype)
    return b, GRAPHS[kind](b)


def window(b, op, x, kernel, stride=1, pad=0, dilation=1, **attrs):
    sizes = {"strides": (stride, stride), "pads": (pad,) * 4, "dilations": (dilation, dilation)}
    return b.op(op, x, quant=b.type(x).quant, kernel=(kernel, kernel), **sizes, **attrs)


def same(b, op, *inputs, **attrs):
    return b.op(op, *inputs, quant=b.type(inputs[0]).quant, **attrs)


def ints(b, *values):
    return b.constant("i", np.array(values, np.int64))


def conv(b, shape, w, **attrs):
    given = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), **attrs}
    return b.op("conv", b.feed(*shape), b.weights(*w), b.bias(w[0]), **given)


def chain(b):
    x = b.feed(1, 17, 13, 7)
    y = b.conv(x, 19, activation="relu6")
    y = b.conv(y, 19, groups=19, stride=2)
    z = b.conv(y, 23, kernel=1)
    z = b.op("add", z, b.conv(y, 23, kernel=1), activation="relu")
    z = window(b, "average_pool", z, 2, 2)
    z = b.op("reduce_mean", z, ints(b, 1, 2), keepdims=0)
    z = b.op("fully_connected", z, b.weights(11, 23), b.bias(11))
    return b.op("softmax", z)


def two_inputs(op, a, c, **attrs):
    return lambda b: b.op(op, b.feed(*a), b.feed(*c), **attrs)


def extremum(op):
    def make(b):
        x = b.feed(2, 5, 7, 3)
        return same(
            b,
            op,
            x,
            b.feed(1, 7, 3, quant=b.type(x).quant),
            b.feed(2, 1, 1, 3, quant=b.type(x).quant),
        )

    return make


def moves(b):
    x = b.feed(1, 6, 5, 7)
    y = same(b, "transpose", x, perm=(0, 3, 1, 2))
    y = same(b, "reshape", y, ints(b, 1, 14, 15))
    return same(b, "pad", y, ints(b, 0, 1, 2, 0, 3, 1), mode="constant")


def split_and_join(b):
    x = b.feed(1, 4, 5, 12)
    quants = [b.type(x).quant] * 3
    parts = b.add_node("split", [x], {"axis": -1, "num_outputs": 3}, outputs=3, quants=quants)
    cut = same(b, "slice", parts[0], ints(b, 1), ints(b, 4), ints(b, 2), ints(b, 2))
    wide = b.op("concat", parts[1], parts[2], b.feed(1, 4, 5, 3), axis=3)
    joined = b.op("concat", wide, wide, axis=1)
    tail = b.op("mul", cut, same(b, "slice", parts[1], ints(b, 0), ints(b, 2), ints(b, 2)))
    return joined, tail


GRAPHS = {
    "chain": chain,
    "pointwise": lambda b: conv(b, (1, 5, 7, 13), (37, 1, 1, 13)),
    "batch of 3": lambda b: conv(b, (3, 9, 7, 5), (11, 3, 3, 5), pads=(1, 1, 1, 1)),
    "large kernel": lambda b: conv(b, (1, 19, 23, 2), (5, 7, 11, 2), strides=(3, 2)),
    "dilated": lambda b: conv(b, (1, 17, 15, 4), (6, 3, 3, 4), dilations=(2, 3), pads=(2, 3, 1, 0)),
    "3 groups": lambda b: conv(b, (2, 7, 6, 12), (9, 3, 3, 4), groups=3, pads=(1, 1, 1, 1)),
    "images": lambda b: conv(b, (7, 5, 6, 3), (18, 3, 3, 3), pads=(1, 0, 1, 2), strides=(2, 1)),
    "depthwise images": lambda b: conv(b, (11, 6, 5, 9), (9, 3, 3, 1), groups=9, pads=(1,) * 4),
    "pooled images": lambda b: window(b, "average_pool", b.feed(13, 5, 4, 7), 3, 1, 1),
    "all padding": lambda b: conv(b, (1, 1, 1, 3), (4, 5, 5, 3), pads=(4, 4, 4, 4)),
    "one pixel": lambda b: conv(b, (1, 3, 3, 1), (1, 3, 3, 1)),
    "deep": lambda b: conv(b, (1, 4, 4, 1100), (9, 3, 3, 1100), pads=(1, 1, 1, 1)),
    "multiplier 3": lambda b: conv(b, (1, 9, 8, 5), (15, 3, 3, 1), groups=5, strides=(2, 2)),
    "one axis": lambda b: conv(b, (2, 31, 5), (7, 4, 5), strides=(3,), pads=(1, 2), dilations=(1,)),
    "fully connected": lambda b: b.op(
        "fully_connected", b.feed(3, 257), b.weights(61, 257), b.bias(61), activation="relu"
    ),
    "per tensor": lambda b: b.op(
        "fully_connected", b.feed(1, 2000), b.weights(10, 2000, per_channel=False), None
    ),
    "matmul": two_inputs("matmul", (2, 3, 5, 31), (3, 31, 17)),
    "add": two_inputs("add", (2, 5, 7, 11), (2, 5, 7, 11), activation="relu"),
    "add a row": two_inputs("add", (2, 5, 7, 11), (11,)),
    "add outer": two_inputs("add", (5, 1, 3), (1, 7, 1)),
    "sub": two_inputs("sub", (37, 41), (1, 41)),
    "mul": two_inputs("mul", (3, 64, 64), (3, 1, 64), activation="relu6"),
    "max": extremum("max"),
    "min": extremum("min"),
    "max pool": lambda b: window(b, "max_pool", b.feed(2, 11, 9, 13), 3, 2, 1),
    "ceil pool": lambda b: window(b, "max_pool", b.feed(1, 10, 8, 5), 3, 2, 0, ceil_mode=1),
    "average pool": lambda b: window(b, "average_pool", b.feed(2, 11, 9, 13), 3, 2, 1),
    "with pads": lambda b: window(
        b, "average_pool", b.feed(1, 7, 7, 3), 3, 2, 1, count_include_pad=1
    ),
    "mean": lambda b: b.op("reduce_mean", b.feed(2, 25, 5, 64), ints(b, 1, 2), keepdims=1),
    "mean of rows": lambda b: b.op("reduce_mean", b.feed(13, 64), ints(b, -1), keepdims=0),
    "reduce max": lambda b: (lambda x: same(b, "reduce_max", x, ints(b, 1), keepdims=0))(
        b.feed(3, 50, 7)
    ),
    "softmax": lambda b: b.op("softmax", b.feed(5, 1001), quant=b.quant(1 / 256)),
    "softmax of columns": lambda b: b.op("softmax", b.feed(2, 7, 5), axis=1),
    "requantise": lambda b: b.op("quantize", b.feed(3, 1000), dtype=b.dtype),
    "moves": moves,
    "split and join": split_and_join,
    "nearest": lambda b: (
        lambda x: same(b, "resize", x, None, None, ints(b, 1, 10, 14, 3), mode="nearest")
    )(b.feed(1, 5, 7, 3)),
    "uneven nearest": lambda b: (
        lambda x: same(b, "resize", x, None, None, ints(b, 1, 13, 9, 3), mode="nearest")
    )(b.feed(1, 5, 7, 3)),
}


def transposed(shape, w, stride, pads, groups=1, **attrs):
    def make(b):
        weights = b.constant(
            "w",
            b.random(w),
            b.quant(0.004) if b.dtype == "uint8" else type(b.quant())((0.004,), (0,)),
        )
        given = {"strides": stride, "pads": pads, "dilations": (1, 1), "groups": groups, **attrs}
        return b.op("conv_transpose", b.feed(*shape), weights, b.bias(w[3] * groups), **given)

    return make


GRAPHS |= {
    "transposed": transposed((1, 7, 5, 6), (6, 3, 3, 11), (2, 2), (1, 1, 1, 1)),
    "transposed, cut": transposed((2, 4, 9, 5), (5, 2, 4, 3), (2, 3), (1, 2, 0, 1)),
    "transposed groups": transposed((1, 6, 6, 8), (8, 3, 3, 3), (2, 2), (0, 0, 0, 0), 2),
    "transposed, wider": transposed(
        (1, 5, 5, 3), (3, 3, 3, 4), (2, 2), (1, 1, 1, 1), output_padding=(1, 1), activation="relu"
    ),
    "transposed in place": transposed(
        (1, 5, 5, 3), (3, 3, 3, 4), (1, 1), (1, 1, 1, 1), dilations=(2, 1)
    ),
    "sum": lambda b: b.op("reduce_sum", b.feed(2, 9, 7, 5), ints(b, 1, 2), keepdims=0),
}


def linear(size, how, shape=(2, 5, 7, 6)):
    def make(b):
        x = b.feed(*shape)
        return same(
            b,
            "resize",
            x,
            None,
            None,
            ints(b, *size),
            mode="linear",
            axes=(1, 2),
            coordinate_transformation_mode=how,
        )

    return make


GRAPHS |= {
    "linear half_pixel": linear((13, 9), "half_pixel"),
    "linear align_corners": linear((9, 13), "align_corners"),
    "linear asymmetric": linear((40, 3), "asymmetric"),
    "linear from one pixel": linear((33, 33), "align_corners", (1, 1, 1, 40)),
    "linear wide": linear((20, 70), "half_pixel", (1, 10, 35, 150)),
    "gather": lambda b: (lambda x: same(b, "gather", x, ints(b, 5, 0, 1, 2, 2, -1), axis=1))(
        b.feed(2, 7, 3)
    ),
    "reverse": lambda b: (lambda x: same(b, "reverse", x, axes=(1,)))(b.feed(2, 9, 3)),
}


def unary(op):
    return lambda b: b.op(op, b.feed(2, 3, 1000))


GRAPHS |= {
    op: unary(op)
    for op in ("relu", "tanh", "sigmoid", "hard_swish", "exp", "gelu", "abs", "sqrt", "mish")
}


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("kind", GRAPHS)
def test_quantised_graphs_bit_for_bit_in_any_sram(devices, kind, dtype):
    builder, outputs = build(kind, dtype)
    graph = builder.finish(*(outputs if isinstance(outputs, tuple) else (outputs,)))
    want = interpret(graph, builder.feeds)
    for device in devices:
        for node in graph.nodes:
            assert device.unsupported_reason(graph, node) is None
        got = Run(device, graph, builder.feeds)
        for value in graph.outputs:
            np.testing.assert_array_equal(got.outputs[value], want[value], f"seed {SEED}")
        used = got.executable.task.regions[0].nbytes
        assert used <= device.machine.sram.bytes
