"""Products of two 8-bit activations, bit for bit with the reference, on every instruction set.

Batches, broadcasts, odd sizes and the extremes of both types; transposes around the product, which
become strides; and ONNX Runtime and LiteRT as oracles.
"""

import functools

import numpy as np
import onnxruntime
import pytest
from cpu_run import isas_for, run
from onnx import TensorProto, helper
from sweep import sweep

import trireme
from trireme.devices.cpu.codegen.target import available_isas
from trireme.devices.cpu.kernels.int8.matmul_layout import dense_layout
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Quant, TensorType
from trireme.ir.interpreter import interpret

SEED = 23
SHAPES = [
    ((2, 5, 19), (2, 19, 7)),
    ((1, 64), (64, 10)),
    ((13, 37), (37, 19)),
    ((12, 17, 64), (12, 64, 17)),
    ((2, 3, 33, 65), (3, 65, 40)),
    ((2, 1, 5, 7), (3, 7, 1)),
    ((3, 70, 64), (3, 64, 197)),
    ((3, 1, 9), (1, 9, 130)),
    ((40, 2, 3), (40, 3, 2)),
    ((1, 2, 1, 1), (5, 1, 1, 1)),
    ((4, 2, 260), (4, 260, 33)),
]


def zero_point(rng, dtype):
    info = np.iinfo(dtype)
    return int(rng.choice([info.min, 0 if dtype == "int8" else 128, rng.integers(0, 99)]))


def numbers(rng, shape, dtype):
    info = np.iinfo(dtype)
    if rng.random() < 0.2:
        return rng.choice([info.min, info.max], shape).astype(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def type_of(rng, shape, dtype, scale=0.02):
    return TensorType(shape, dtype, Quant((scale,), (zero_point(rng, dtype),)))


def scaled(depth, *types):
    """A scale of the output that holds nearly all sums, of whatever zero points."""
    middles = [(-0.5 if t.dtype == "int8" else 127.5) - t.quant.zero_point for t in types]
    a, b = np.abs(middles or [0, 0])
    most = 1 + depth * a * b + 3 * depth**0.5 * (75 * 75 + 75 * a + 75 * b)
    return Quant((float(0.02**2 * most / 120),), (3,))


def dense_graph(rng, a, b):
    dtype = str(rng.choice(["int8", "uint8"]))
    g = GraphBuilder("matmul")
    types = [type_of(rng, shape, dtype) for shape in (a, b)]
    x, y = g.input("a", types[0]), g.input("b", types[1])
    return g.finish(*g.add_node("matmul", [x, y], {}, quants=[scaled(a[-1], *types)]))


def feeds_of(rng, graph):
    return {v: numbers(rng, graph.type(v).dims, graph.type(v).dtype) for v in graph.inputs}


def heads_graph(rng, heads, left, right, depth, transposes):
    """Operands [1, length, heads * depth] cut into heads, as attention has them."""
    dtype = str(rng.choice(["int8", "uint8"]))
    g = GraphBuilder("heads")
    sides = []
    for name, length, perm in (("q", left, (0, 2, 1, 3)), ("k", right, (0, 2, 3, 1))):
        x = g.input(name, type_of(rng, (1, length, heads * depth), dtype))
        shape = g.constant(f"{name}_shape", np.array([1, length, heads, depth]))
        quants = [g.type(x).quant]
        (cut,) = g.add_node("reshape", [x, shape], {}, quants=quants)
        sides += g.add_node("transpose", [cut], {"perm": perm}, quants=quants)
    quants = [scaled(depth, *map(g.type, sides))]
    made = g.add_node("matmul", sides, {}, quants=quants)
    if transposes:
        made = g.add_node("transpose", [*made], {"perm": (0, 2, 1, 3)}, quants=quants)
    return g.finish(*made)


@functools.cache
def cases():
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    graphs = [dense_graph(rng, *shape) for shape in SHAPES]
    for sizes in ((3, 17, 70, 64), (2, 33, 5, 19), (1, 1, 130, 8), (4, 16, 16, 68), (5, 1, 1, 3)):
        graphs += [heads_graph(rng, *sizes, transposes) for transposes in (True, False)]
    made = []
    for graph in graphs:
        feeds = feeds_of(rng, graph)
        (want,) = interpret(graph, feeds).values()
        made.append((graph, feeds, want))
    return made


@pytest.mark.parametrize("number", range(len(SHAPES) + 10))
def test_bit_for_bit(cpus, number):
    graph, feeds, want = cases()[number]
    assert want.size < 8 or np.unique(want).size > 4
    for isa in isas_for(number, available_isas()):
        for threads in (1, 2):
            (got,), kernels, _ = run(cpus[isa, threads], graph, feeds, threads == 1)
            names = " ".join(kernels.values())
            assert "reference" not in names
            assert "transpose" not in names
            np.testing.assert_array_equal(got, want, err_msg=f"{names}\n{graph}")


@pytest.mark.parametrize("seed", sweep(range(40), always=range(4)))
def test_random_products(cpus, seed):
    print("seed", seed)
    rng = np.random.default_rng(seed)
    batch = rng.integers(1, 4, rng.integers(0, 3)).tolist()
    rows, depth, columns = rng.choice([1, 2, 4, 15, 16, 17, 63, 64, 65, 129], 3).tolist()
    a = (*[1 if rng.random() < 0.3 else n for n in batch], rows, depth)
    b = (*[1 if rng.random() < 0.3 else n for n in batch], depth, columns)
    graph = dense_graph(rng, a, b)
    feeds = feeds_of(rng, graph)
    (want,) = interpret(graph, feeds).values()
    for isa in isas_for(seed, available_isas()):
        (got,), kernels, _ = run(cpus[isa, 1 + seed % 2], graph, feeds)
        np.testing.assert_array_equal(got, want, err_msg=f"{kernels}\n{graph}")


def test_a_product_for_others_keeps_its_transposes(cpus):
    """What another node reads stays in memory; the product reads through it."""
    rng = np.random.default_rng(SEED)
    g = GraphBuilder("shared")
    x = g.input("x", type_of(rng, (1, 9, 24), "int8"))
    (turned,) = g.add_node("transpose", [x], {"perm": (0, 2, 1)}, quants=[g.type(x).quant])
    made = g.add_node("matmul", [x, turned], {}, quants=[scaled(24, g.type(x), g.type(x))])
    graph = g.finish(*made, turned)
    feeds = feeds_of(rng, graph)
    wanted = interpret(graph, feeds).values()
    found, kernels, _ = run(cpus[available_isas()[0], 1], graph, feeds)
    assert any("transpose" in name for name in kernels.values())
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def note_of(cpus, a, b):
    graph = dense_graph(np.random.default_rng(SEED), a, b)
    return cpus[available_isas()[0], 1].kernel_note(graph, graph.nodes[0])


def test_what_has_no_kernel_says_why(cpus):
    assert "empty" in note_of(cpus, (0, 4), (4, 3))
    assert "empty" in note_of(cpus, (3, 0), (0, 3))
    assert "matrices only" in note_of(cpus, (2, 3, 4), (4,))
    assert "sums have 32 bits" in note_of(cpus, (1, 140000), (140000, 1))
    assert not note_of(cpus, (1, 20000), (20000, 1))


def test_rows_join_where_one_matrix_serves_all():
    assert dense_layout((2, 3, 5, 7), (1, 7, 4)).rows == 30
    assert dense_layout((2, 3, 5, 7), (3, 7, 4)).items == 6
    assert dense_layout((2, 3, 5, 7), (3, 7, 4)).right_items == 3


def onnx_product(a, b, dtype):
    """QLinearMatMul between QuantizeLinear and DequantizeLinear."""
    kind = TensorProto.INT8 if dtype == "int8" else TensorProto.UINT8
    zeros = (5, -7, 3) if dtype == "int8" else (130, 101, 3)
    facts, nodes, given = [], [], {}
    for name, scale, zero in zip("aby", (0.02, 0.02, scaled(a[-1]).scale), zeros, strict=True):
        facts.append(helper.make_tensor(f"{name}_scale", TensorProto.FLOAT, [], [scale]))
        facts.append(helper.make_tensor(f"{name}_zero", kind, [], [zero]))
        given[name] = [f"{name}_scale", f"{name}_zero"]
    for name in "ab":
        nodes.append(helper.make_node("QuantizeLinear", [name, *given[name]], [f"{name}_q"]))
    operands = ["a_q", *given["a"], "b_q", *given["b"], *given["y"]]
    nodes.append(helper.make_node("QLinearMatMul", operands, ["y_q"]))
    nodes.append(helper.make_node("DequantizeLinear", ["y_q", *given["y"]], ["y"]))
    floats = TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info(n, floats, s) for n, s in (("a", a), ("b", b))]
    out = helper.make_tensor_value_info("y", floats, np.matmul(np.zeros(a), np.zeros(b)).shape)
    graph = helper.make_graph(nodes, "product", inputs, [out], facts)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("shapes", [((3, 17, 64), (3, 64, 33)), ((2, 1, 5, 70), (1, 4, 70, 19))])
def test_one_unit_beside_onnx_runtime(dtype, shapes):
    """ONNX Runtime rounds a float; TensorFlow Lite's rule, followed here, rounds fixed point."""
    rng = np.random.default_rng(SEED)
    model = onnx_product(*shapes, dtype).SerializeToString()
    feeds = {n: rng.standard_normal(s, np.float32) for n, s in zip("ab", shapes, strict=True)}
    ort = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (want,) = ort.run(None, feeds)
    with trireme.Session(model, threads=1) as session:
        (got,) = session.run(feeds).values()
        assert "numpy" not in str(session.profile(feeds))
    apart = np.abs(np.rint((got - want) / scaled(shapes[0][-1]).scale))
    assert apart.max() <= 1
    assert (apart > 0).mean() < 0.01
