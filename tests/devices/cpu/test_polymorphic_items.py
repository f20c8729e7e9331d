"""Kernels for every batch: the samples of every op with an open axis, the first or the second."""

from dataclasses import replace

import numpy as np
import pytest
from cpu_run import assert_close, isas_for, run, sample_graph

import trireme.ops  # noqa: F401
from trireme.devices.cpu.codegen.target import available_isas
from trireme.devices.cpu.compile.program import REFERENCE
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Quant, TensorType
from trireme.ir.interpreter import interpret
from trireme.ir.op import all_ops, get_op
from trireme.ir.verify import check, infer_types
from trireme.runtime.shapes.closed import ClosedGraph, why_not_closed
from trireme.support.errors import CompileError, TriremeError

SEED = 20261123
ISAS = available_isas(variants=False)


def opened(graph, axis=0):
    """The graph of a sample with a symbol for an axis of each input that has the first one's.

    None where no input has one, or the output's shape is unknown then
    """
    first = next((v for v in graph.input_values() if v.shape), None)
    if first is None or len(first.shape) <= axis:
        return None
    values = dict(graph.values)
    for value in graph.input_values():
        start, rest = value.shape[: axis + 1], value.shape[axis + 1 :]
        if start == first.shape[: axis + 1] and len(value.shape) >= len(first.shape):
            type = replace(value.type, shape=(*start[:-1], "n", *rest))
            values[value.id] = replace(value, type=type)
    (node,) = graph.nodes
    inputs = [None if i is None else values[i] for i in node.inputs]
    try:
        types = infer_types(get_op(node.op), inputs, node.attrs, len(node.outputs), node.label)
    except TriremeError:
        return None
    for out, type in zip(node.outputs, types, strict=True):
        values[out] = replace(values[out], type=replace(type, quant=values[out].type.quant))
    made = check(replace(graph, values=values, symbols={"n": (0, None)}))
    return None if why_not_closed(made) else made


def repeated(graph, feeds, times):
    """The feeds with an open axis that is so many times as long."""
    axes = {i: graph.type(i).shape.index("n") for i in graph.inputs if "n" in graph.type(i).shape}
    return {
        i: np.concatenate([x] * times, axes[i]) if i in axes else np.asarray(x)
        for i, x in feeds.items()
    }


OPS = [op.name for op in all_ops() if not op.random]
DEEPER = (
    *("arg_max", "cum_sum", "lrn", "matmul_nbits", "one_hot", "top_k", "trilu"),
    *("average_pool", "gemm", "layer_normalization", "max_pool", "pad", "rms_normalization"),
)
"""Ops that are done item by item, whose items may lie along two axes; ops that work along both."""


@pytest.mark.parametrize(("axis", "name"), [*((0, op) for op in OPS), *((1, op) for op in DEEPER)])
def test_samples_with_an_open_axis(cpus, axis, name):
    print("seed", SEED)
    op = get_op(name)
    for number, sample in enumerate(op.samples(np.random.default_rng(SEED))):
        what = f"{name} sample {number} {sample.note}"
        try:
            graph, feeds = sample_graph(op, sample)
            many = opened(graph, axis)
        except TriremeError:
            continue  # a sample that only the reference takes
        (isa,) = isas_for(what, ISAS)[:1]
        device = cpus[isa, 1 + number % 2]
        if many is None or device.unsupported_reason(graph, graph.nodes[0]):
            continue
        if ClosedGraph(many).at([np.shape(feeds[i]) for i in many.inputs]).nodes and (
            device.polymorphic_reason(many, many.nodes[0]) is None
        ):
            check_batches(op, device, many, feeds, what)


def check_batches(op, device, graph, feeds, what):
    """Each batch has the results of the reference, and the bits of a program of its own."""
    (every,) = device.compile_polymorphic([graph])
    for times in (1, 3):
        fed = repeated(graph, feeds, times)
        try:
            one = ClosedGraph(graph).at([fed[i].shape for i in graph.inputs])
            want = list(interpret(one, fed).values())
        except TriremeError:
            continue  # a batch that the node refuses
        if any(not one.type(i).elements for i in (*one.inputs, *one.outputs)):
            continue
        try:
            executable = every.at(one)
        except CompileError as error:
            assert error.fix == "compile this shape by itself", what
            continue  # such as a batch of 1 that is broadcast
        special, own, _ = run(device, one, fed)
        got, kernels, _ = run(device, one, fed, executable=executable)
        is_numpy = [REFERENCE in names.values() for names in (own, kernels)]
        assert is_numpy[0] or not is_numpy[1], f"{what}: a native kernel is left unused"
        for g, w, s in zip(got, want, special, strict=True):
            assert_close(g, w, op.rtol, f"{what} x {times} {kernels}")
            same = g.tobytes() == s.tobytes() or is_numpy == [True, False]
            assert same, f"{what} x {times}: not its own bits {kernels}"


@pytest.mark.parametrize("op", ["layer_normalization", "rms_normalization"])
@pytest.mark.parametrize("scale", [(1,), ("n",), (8,)])
def test_norms_of_an_open_length(cpus, op, scale):
    """A scale of one number, one as long as the axis, and one that tells the only length."""
    rng = np.random.default_rng(SEED)
    builder = GraphBuilder("norm")
    x = builder.input("x", TensorType(("b", "n"), "float32"))
    s = builder.input("s", TensorType(scale, "float32"))
    bias = (builder.constant("bias", np.array([0.5], np.float32)),)
    graph = builder.finish(builder.add(op, x, s, *bias[: op == "layer_normalization"]))
    device = cpus[ISAS[0], 2]
    (every,) = device.compile_polymorphic([graph])
    for rows, length in ((1, 8), *(((3, 1), (5, 37), (2, 300)) if scale != (8,) else ((3, 8),))):
        given = [(rows, length), tuple(length if dim == "n" else dim for dim in scale)]
        one = ClosedGraph(graph).at(given)
        feeds = {
            value: rng.standard_normal(shape, np.float32)
            for value, shape in zip((x, s), given, strict=True)
        }
        (got,), kernels, _ = run(device, one, feeds, executable=every.at(one))
        (own,), fixed, _ = run(device, one, feeds)
        assert REFERENCE not in (*kernels.values(), *fixed.values())
        assert got.tobytes() == own.tobytes()
        assert_close(got, *interpret(one, feeds).values(), get_op(op).rtol, f"{op} {given}")


def test_numpy_runs_a_node_between_kernels(cpus):
    """A node that has no kernel in any shape does not cost its graph the program of every shape."""
    builder = GraphBuilder("mixed")
    x = builder.input("x", TensorType(("b", "s"), "float32"))
    y = builder.add("asinh", builder.add("relu", x))
    graph = builder.finish(builder.add("relu", y), y)
    device = cpus[ISAS[0], 1]
    assert not any(device.polymorphic_reason(graph, node) for node in graph.nodes)
    (every,) = device.compile_polymorphic([graph])
    rng = np.random.default_rng(SEED)
    for shape in ((1, 1), (3, 50), (7, 20)):
        one, feeds = ClosedGraph(graph).at([shape]), {x: rng.standard_normal(shape, np.float32)}
        got, kernels, _ = run(device, one, feeds, executable=every.at(one))
        assert kernels[1] == REFERENCE
        for g, w in zip(got, interpret(one, feeds).values(), strict=True):
            np.testing.assert_array_equal(g, w)


def test_a_kernel_of_known_shapes_is_not_left_to_numpy(cpus):
    """An axis of a huge size in the sample has no native kernel; those of usual sizes have one."""
    builder = GraphBuilder("sorted")
    x = builder.input("x", TensorType((4, "s"), "float32"))
    k = builder.constant("k", np.array([3]))
    graph = builder.finish(*builder.add_node("top_k", [x, k], {}, outputs=2))
    reason = cpus[ISAS[0], 1].polymorphic_reason(graph, graph.nodes[0])
    assert reason == "top_k has no kernel for every shape where it works along an axis that varies"


def test_layers_of_stored_integers_in_a_row(cpus):
    """Memory of one layer is another's only where no item needs it any longer."""
    rng = np.random.default_rng(SEED)
    builder = GraphBuilder("layers")
    quant = Quant((0.05,), (3,))
    x = value = builder.input("x", TensorType(("b", 9, 11, 8), "int8", quant))
    for layer in range(4):
        data = rng.integers(-127, 128, (8, 3, 3, 8)).astype(np.int8)
        w = builder.constant(f"w{layer}", data, Quant((0.01,) * 8, (0,) * 8, 0))
        bias = builder.constant(f"b{layer}", rng.integers(-900, 900, 8).astype(np.int32))
        attrs = dict(pads=(1, 1, 1, 1), strides=(1, 1), dilations=(1, 1), groups=1, layout="NHWC")
        (made,) = builder.add_node("conv", [value, w, bias], attrs, quants=[quant])
        (value,) = builder.add_node("add", [made, value], {}, quants=[quant])
    graph = builder.finish(value)
    devices = [cpus[ISAS[-1], threads] for threads in (1, 2)]
    compiled = [device.compile_polymorphic([graph])[0] for device in devices]
    for batch in (1, 2, 5):
        one = ClosedGraph(graph).at([(batch, 9, 11, 8)])
        feeds = {x: rng.integers(-128, 128, (batch, 9, 11, 8)).astype(np.int8)}
        (want,) = interpret(one, feeds).values()
        for device, every in zip(devices, compiled, strict=True):
            (got,), _, _ = run(device, one, feeds, executable=every.at(one))
            np.testing.assert_array_equal(got, want)
