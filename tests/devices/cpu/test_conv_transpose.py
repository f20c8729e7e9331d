"""conv_transpose on the cpu device: strides, pads, groups, dilations and what no input reaches."""

import numpy as np
import pytest
from cpu_run import agree, node_graph

import trireme.ops  # noqa: F401
from trireme.devices.cpu.codegen.target import available_isas
from trireme.ir.graph import Quant

SEED = 12
by_isa = pytest.mark.parametrize("isa", available_isas(variants=False))

CASES = {  # x, w [C,KH,KW,M/g], strides, pads, dilations, output_padding, groups, activation
    "4x4, 2x": ((2, 5, 6, 7), (7, 4, 4, 9), (2, 2), (1, 1, 1, 1), (1, 1), (0, 0), 1, "relu"),
    "3x3, 2x": ((1, 5, 4, 8), (8, 3, 3, 5), (2, 2), (1, 1, 1, 1), (1, 1), (1, 1), 1, ""),
    "2x2, 2x": ((1, 6, 7, 16), (16, 2, 2, 3), (2, 2), (0, 0, 0, 0), (1, 1), (0, 0), 1, "tanh"),
    "stride 1": ((1, 6, 5, 4), (4, 3, 2, 18), (1, 1), (1, 0, 0, 1), (1, 1), (0, 0), 1, "relu6"),
    "gaps": ((2, 3, 4, 3), (3, 2, 1, 5), (3, 4), (0, 0, 0, 0), (1, 1), (2, 1), 1, "sigmoid"),
    "dilated": ((1, 4, 5, 3), (3, 3, 3, 4), (2, 3), (1, 2, 0, 1), (3, 2), (1, 0), 1, ""),
    "far pads": ((1, 7, 6, 2), (2, 3, 5, 3), (2, 2), (3, 4, 5, 3), (1, 1), (0, 0), 1, ""),
    "groups": ((1, 4, 5, 12), (12, 3, 3, 5), (2, 2), (1, 1, 1, 1), (1, 1), (0, 1), 3, "relu"),
    "depthwise": ((2, 4, 5, 19), (19, 4, 3, 1), (2, 2), (1, 1, 1, 1), (1, 1), (0, 0), 19, "relu"),
    "one channel": ((1, 3, 3, 1), (1, 5, 5, 1), (2, 3), (2, 2, 2, 2), (1, 1), (0, 0), 1, ""),
    "line": ((1, 9, 5), (5, 16, 6), (8,), (4, 4), (1,), (0,), 1, ""),
    "line, uneven": ((2, 7, 3), (3, 7, 4), (5,), (1, 2), (1,), (3,), 1, "gelu"),
    "line, groups": ((1, 7, 6), (6, 5, 2), (2,), (0, 1), (2,), None, 2, ""),
}


def graph_of(rng, case, bias=True):
    x, w, strides, pads, dilations, extra, groups, activation = case
    attrs = dict(
        strides=strides,
        pads=pads,
        dilations=dilations,
        groups=groups,
        layout="NHWC",
        output_padding=extra,
        activation=activation,
    )
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in (x, w)]
    if bias:
        inputs.append(rng.standard_normal(w[-1] * groups).astype(np.float32))
    return node_graph("conv_transpose", inputs, attrs, {1, 2})


@by_isa
@pytest.mark.parametrize("name", CASES)
def test_float(cpus, name, isa):
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    agree(cpus, isa, *graph_of(rng, CASES[name], bias=name != "dilated"))


def test_not_a_number_reaches_no_further_than_its_taps(cpus):
    graph, feeds = graph_of(np.random.default_rng(SEED), CASES["3x3, 2x"])
    x = feeds[graph.inputs[0]]
    x[0, 0, 0, 0], x[0, 2, 1, 3], x[0, 4, 3, 7] = np.nan, np.inf, -np.inf
    agree(cpus, available_isas()[0], graph, feeds)


@by_isa
def test_random(cpus, isa):
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    for _ in range(12):
        rank = int(rng.integers(1, 3))
        kernel, strides, dilations = (
            tuple(int(n) for n in rng.integers(1, most, rank)) for most in (6, 5, 3)
        )
        size = tuple(int(n) for n in rng.integers(2, 6, rank))
        extra = tuple(int(rng.integers(0, stride)) for stride in strides)
        pads = tuple(int(n) for n in rng.integers(0, 3, 2 * rank))
        groups, each = int(rng.integers(1, 4)), int(rng.integers(1, 4))
        case = (
            (int(rng.integers(1, 3)), *size, groups * 2),
            (groups * 2, *kernel, each),
            strides,
            pads,
            dilations,
            extra,
            groups,
            "",
        )
        whole = [
            strides[i] * (size[i] - 1)
            + dilations[i] * (kernel[i] - 1)
            + 1
            + extra[i]
            - pads[i]
            - pads[i + rank]
            for i in range(rank)
        ]
        if min(whole) > 0:
            print(case)
            agree(cpus, isa, *graph_of(rng, case))


def stored_graph(rng, case, dtype, bias=True, per_channel=True):
    x, w, strides, pads, dilations, extra, groups, activation = case
    info, outputs = np.iinfo(dtype), w[-1] * groups
    scales = tuple(0.004 + 0.0007 * (k % 5) for k in range(w[-1] if per_channel else 1))
    zeros = (0 if dtype == "int8" else 120,) * len(scales)
    axis = len(w) - 1 if per_channel else None
    made = [rng.integers(info.min, info.max, shape, dtype, endpoint=True) for shape in (x, w)]
    quants = [Quant((0.05,), (3,)), Quant(scales, zeros, axis)]
    if bias:
        made.append(rng.integers(-3000, 3000, outputs, np.int32))
        quants.append(
            Quant(tuple(0.05 * s for s in scales), (0,) * len(scales), 0 if axis else None)
        )
    attrs = dict(
        strides=strides,
        pads=pads,
        dilations=dilations,
        groups=groups,
        layout="NHWC",
        output_padding=extra,
        activation=activation if activation in ("relu", "relu6") else "",
    )
    y = Quant((0.11,), (5,))
    return node_graph("conv_transpose", made, attrs, {1, 2}, quants, out_quants=(y,))


@by_isa
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][6] == 1])
def test_stored_integers(cpus, name, dtype, isa):
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    is_signed = dtype == "int8"
    graph = stored_graph(rng, CASES[name], dtype, name != "gaps", is_signed)
    agree(cpus, isa, *graph)


def test_stored_integers_in_groups_run_on_the_reference(cpus):
    graph = stored_graph(np.random.default_rng(SEED), CASES["groups"], "int8", False, False)
    agree(cpus, available_isas()[0], *graph, native=False)
