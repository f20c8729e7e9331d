"""8-bit kernels of the cpu device, bit for bit with the reference, at odd shapes.

Convolutions of every kind (borders, strides, dilations, groups, depthwise) and fully connected
layers, int8 with a scale a channel and uint8 with zero points in the weights, on every instruction
set that this machine has; each graph checks thousands of roundings.
"""

import functools

import numpy as np
import pytest
from cpu_run import run
from sweep import sweep

from trireme.backend.registry import open_device
from trireme.devices.cpu.codegen.target import available_isas
from trireme.devices.cpu.kernels.int8.arithmetic import QUADS
from trireme.devices.cpu.kernels.int8.columns import DepthwiseWindow
from trireme.devices.cpu.kernels.int8.depthwise import blocks_of, pack_weights
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Quant, TensorType
from trireme.ir.interpreter import interpret

SEED = 11


def zero_point(rng, dtype):
    info = np.iinfo(dtype)
    return int(rng.integers(info.min, info.max + 1))


def numbers(rng, shape, dtype):
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def weights(rng, b, shape, dtype):
    """Constant weights and bias: a scale a channel for int8, a zero point for uint8."""
    if dtype == "int8":
        scales = tuple(rng.uniform(0.001, 0.02, shape[0]).astype(np.float32).tolist())
        quant = Quant(scales, (0,) * shape[0], 0)
    else:
        quant = Quant((0.01,), (zero_point(rng, dtype),))
    bias = rng.integers(-5000, 5000, shape[0]).astype(np.int32)
    return b.constant("w", numbers(rng, shape, dtype), quant), b.constant("b", bias)


def conv_graph(rng, depthwise):
    dtype = str(rng.choice(["int8", "uint8"]))
    groups, depth = int(rng.choice([1, 1, 1, 2])), int(rng.choice([1, 3, 4, 7, 16, 33]))
    channels = groups * int(rng.choice([1, 3, 16, 17, 40]))
    if depthwise:
        depth, groups = 1, int(rng.choice([2, 5, 16, 24, 33, 64]))
        channels = groups
    kernel = rng.integers(1, 4, 2).tolist()
    size = rng.integers(3, 12, 2).tolist()
    dilations = rng.integers(1, 3, 2).tolist() if rng.random() < 0.3 else [1, 1]
    if any((k - 1) * d + 1 > s for k, d, s in zip(kernel, dilations, size, strict=True)):
        dilations = [1, 1]
    pads = rng.integers(0, 2, 4).tolist() if rng.random() < 0.6 else [0] * 4
    b = GraphBuilder("conv")
    x_type = TensorType(
        (int(rng.integers(1, 3)), *size, depth * groups),
        dtype,
        Quant((0.02,), (zero_point(rng, dtype),)),
    )
    x = b.input("x", x_type)
    w, bias = weights(rng, b, (channels, *kernel, depth), dtype)
    attrs = {
        "strides": rng.integers(1, 3, 2).tolist(),
        "pads": pads,
        "dilations": dilations,
        "groups": groups,
        "layout": "NHWC",
        "activation": str(rng.choice(["", "relu", "relu6"])),
    }
    out = Quant((0.05,), (zero_point(rng, dtype),))
    return b.finish(*b.add_node("conv", [x, w, bias], attrs, quants=[out]))


def fully_connected_graph(rng):
    dtype = str(rng.choice(["int8", "uint8"]))
    rows, depth = int(rng.choice([1, 2, 9])), int(rng.choice([1, 5, 8, 64, 130]))
    b = GraphBuilder("fully_connected")
    x_type = TensorType((rows, depth), dtype, Quant((0.02,), (zero_point(rng, dtype),)))
    x = b.input("x", x_type)
    w, bias = weights(rng, b, (int(rng.choice([1, 10, 500])), depth), dtype)
    out = Quant((float(rng.choice([0.001, 0.05])),), (zero_point(rng, dtype),))
    return b.finish(*b.add_node("fully_connected", [x, w, bias], {}, quants=[out]))


DEPTHWISE = [  # (n, h, w, c), kernel, strides, dilations, pads (top, left, bottom, right)
    ((1, 9, 11, 64), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    ((2, 8, 10, 96), (3, 3), (2, 2), (1, 1), (0, 0, 1, 1)),
    ((1, 7, 7, 144), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    ((1, 12, 9, 48), (5, 5), (1, 1), (1, 1), (2, 2, 2, 2)),
    ((1, 12, 9, 24), (5, 5), (2, 2), (1, 1), (1, 2, 2, 1)),
    ((2, 11, 13, 67), (3, 3), (1, 1), (2, 2), (2, 2, 2, 2)),
    ((1, 2, 2, 20), (5, 5), (1, 1), (1, 1), (2, 2, 2, 2)),
    ((1, 6, 1, 33), (3, 1), (1, 1), (1, 1), (1, 0, 1, 0)),
    ((1, 1, 37, 17), (1, 9), (1, 3), (1, 1), (0, 4, 0, 4)),
    ((1, 5, 30, 16), (2, 4), (1, 1), (1, 1), (0, 3, 1, 0)),
    ((1, 4, 4, 7), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    ((1, 40, 3, 130), (4, 3), (3, 1), (1, 1), (1, 1, 2, 1)),
]


def depthwise_graph(rng, x, kernel, strides, dilations, pads):
    dtype = str(rng.choice(["int8", "uint8"]))
    b = GraphBuilder("depthwise")
    value = b.input("x", TensorType(x, dtype, Quant((0.02,), (zero_point(rng, dtype),))))
    w, bias = weights(rng, b, (x[3], *kernel, 1), dtype)
    attrs = {
        "strides": strides,
        "pads": pads,
        "dilations": dilations,
        "groups": x[3],
        "layout": "NHWC",
        "activation": str(rng.choice(["", "relu"])),
    }
    out = Quant((0.05,), (zero_point(rng, dtype),))
    return b.finish(*b.add_node("conv", [value, w, bias], attrs, quants=[out]))


@functools.cache
def cases(part):
    print("seed", SEED + part)
    rng = np.random.default_rng(SEED + part)
    graphs = [conv_graph(rng, depthwise=i % 5 == 4) for i in range(20)]
    graphs += [fully_connected_graph(rng) for _ in range(6)]
    graphs += [depthwise_graph(rng, *case) for case in DEPTHWISE]
    made = []
    for graph in graphs:
        (x,) = graph.inputs
        array = numbers(rng, graph.type(x).dims, graph.type(x).dtype)
        (want,) = interpret(graph, {x: array}).values()
        made.append((graph, array, want))
    return made


@pytest.mark.parametrize("part", sweep(range(3), always=[0]))
@pytest.mark.parametrize("isa", available_isas())
def test_bit_for_bit(cpus, isa, part):
    graphs = [graph for graph, _, _ in cases(part)]
    made = {threads: cpus[isa, threads].compile(graphs) for threads in (1, 2)}
    for number, (graph, array, want) in enumerate(cases(part)):
        feeds = {graph.inputs[0]: array}
        for threads, executables in made.items():
            executable = executables[number]
            (name,) = executable.kernels.values()
            assert "reference" not in name
            (got,), *_ = run(cpus[isa, threads], graph, feeds, threads == 1, executable)
            np.testing.assert_array_equal(got, want, err_msg=f"{name}\n{graph}")


def test_weights_that_are_not_constant_say_so():
    b = GraphBuilder("g")
    x = b.input("x", TensorType((1, 4), "int8", Quant((0.1,), (0,))))
    w = b.input("w", TensorType((3, 4), "int8", Quant((0.1,), (0,))))
    out = Quant((0.1,), (0,))
    graph = b.finish(*b.add_node("fully_connected", [x, w], {}, quants=[out]))
    device = open_device("cpu", threads=1)
    try:
        assert "not constant" in device.kernel_note(graph, graph.nodes[0])
    finally:
        device.close()


def test_a_depthwise_conv_of_weights_that_are_all_beyond_int8():
    """Less their zero point none fits a signed byte, so that each is the sum of two."""
    rng = np.random.default_rng(SEED)
    b = GraphBuilder("far")
    x = b.input("x", TensorType((1, 6, 5, 32), "uint8", Quant((0.02,), (7,))))
    far = rng.integers(250, 256, (32, 3, 3, 1)).astype(np.uint8)
    w = b.constant("w", far, Quant((0.01,), (3,)))
    attrs = {
        "strides": (1, 1),
        "pads": (1,) * 4,
        "dilations": (1, 1),
        "groups": 32,
        "layout": "NHWC",
    }
    graph = b.finish(*b.add_node("conv", [x, w], attrs, quants=[Quant((2.0,), (9,))]))
    feeds = {graph.inputs[0]: numbers(rng, (1, 6, 5, 32), "uint8")}
    device = open_device("cpu", threads=1)
    try:
        (found,), _, _ = run(device, graph, feeds)
    finally:
        device.close()
    (wanted,) = interpret(graph, feeds).values()
    np.testing.assert_array_equal(found, wanted)
    assert len(np.unique(wanted)) > 30


def test_depthwise_weights_take_a_second_term_only_where_they_are_beyond_int8():
    """A second term of zeros would be as right, and twice the work."""
    window = DepthwiseWindow(32, (1, 6, 5), (3, 3), (1, 1), (1, 1))
    w = numbers(np.random.default_rng(SEED), (32, 3, 3, 1), "int8")
    blocks, order = blocks_of(32, QUADS.taps, 8), np.arange(32)
    within, beyond = (pack_weights(w, zero, window, blocks, QUADS, order) for zero in (0, 1))
    assert beyond.size == 2 * within.size


def prelu_graph(rng, dtype, x, slope, scales):
    b = GraphBuilder("prelu")
    kind = TensorType(x, dtype, Quant((0.05,), (zero_point(rng, dtype),)))
    value = b.input("x", kind)
    quant = Quant((scales[0],), (zero_point(rng, dtype),))
    slopes = b.constant("slope", numbers(rng, slope, dtype), quant)
    out = Quant((scales[1],), (zero_point(rng, dtype),))
    return b.finish(*b.add_node("prelu", [value, slopes], {}, quants=[out]))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("scales", [(0.01, 0.05), (0.004, 0.001), (0.5, 0.2), (0.3, 0.00002)])
def test_prelu_bit_for_bit(cpus, dtype, scales):
    rng = np.random.default_rng(SEED)
    for number, (x, slope) in enumerate(
        (((2, 5, 7, 19), (19,)), ((1, 33), (1,)), ((3, 40, 64), (64,)), ((2, 4, 3), (4, 1)))
    ):
        graph = prelu_graph(rng, dtype, x, slope, scales)
        feeds = {graph.inputs[0]: numbers(rng, x, dtype)}
        (want,) = interpret(graph, feeds).values()
        for isa in available_isas():
            (got,), kernels, _ = run(cpus[isa, 1 + number % 2], graph, feeds)
            assert "prelu_q8" in " ".join(kernels.values())
            np.testing.assert_array_equal(got, want, err_msg=f"seed {SEED} {graph}")


def test_a_prelu_of_a_far_finer_output_says_why(cpus):
    graph = prelu_graph(np.random.default_rng(SEED), "int8", (1, 4), (4,), (0.3, 1e-7))
    note = cpus[available_isas()[0], 1].kernel_note(graph, graph.nodes[0])
    assert "finer than its input by more than 2**14" in note
