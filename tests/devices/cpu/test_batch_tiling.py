"""Large batches a part at a time give what the whole gives, in the memory of the whole.

The size from which values are cut is made small, so that small graphs are: convs of all kinds,
residuals, branches that leave a stretch, aliases at both its ends, quantised layers, attention.
"""

import numpy as np
import pytest
from cpu_run import assert_close, run

import trireme.devices.cpu.compile.table  # noqa: F401  (`build` looks kernels up in it)
from trireme.devices.cpu.codegen.target import available_isas, choose_isa
from trireme.devices.cpu.compile import batch_tiling as batches
from trireme.devices.cpu.compile.fusion import grouped, patterns_of
from trireme.devices.cpu.compile.program import build
from trireme.devices.cpu.kernels.lowering import Context
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Quant, TensorType
from trireme.ir.interpreter import interpret
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session

SEED = 53


def add(b, op, inputs, attrs):
    return b.add_node(op, inputs, attrs)[0]


def conv(b, rng, x, channels, kernel=1, groups=1, stride=1, residual=None):
    depth = b.values[x].type.dims[3] // groups
    w = b.constant("w", rng.standard_normal((channels, kernel, kernel, depth)).astype(np.float32))
    bias = b.constant("b", rng.standard_normal(channels).astype(np.float32))
    attrs = {
        "strides": (stride, stride),
        "pads": (kernel // 2,) * 4,
        "dilations": (1, 1),
        "groups": groups,
        "layout": "NHWC",
        "activation": "relu",
    }
    inputs = [x, w, bias] if residual is None else [x, w, bias, residual]
    return add(b, "conv", inputs, attrs)


def image_graph(rng, items):
    """Convs, a residual, two values that leave, reshapes at both ends, a row of logits."""
    b = GraphBuilder("images")
    x = b.input("x", TensorType((items, 11, 9, 5), "float32"))
    flat = add(b, "reshape", [x, b.constant("s", np.array([items, 99, 5]))], {})
    x = add(b, "reshape", [flat, b.constant("t", np.array([items, 11, 9, 5]))], {})
    wide = conv(b, rng, x, 24)
    deep = conv(b, rng, wide, 24, 3, groups=24)
    y = conv(b, rng, add(b, "add", [conv(b, rng, deep, 24), wide], {}), 17, 3, stride=2)
    rows = add(b, "reshape", [y, b.constant("u", np.array([items, 6 * 5 * 17]))], {})
    w = b.constant("w", rng.standard_normal((10, 6 * 5 * 17)).astype(np.float32))
    scores = add(b, "softmax", [add(b, "fully_connected", [rows, w], {})], {"axis": -1})
    return b.finish(scores, deep, rows)


def quantised_graph(rng, items):
    """An int8 conv, a depthwise one and their sum."""
    b = GraphBuilder("bytes")
    quant = Quant((0.02,), (3,))
    x = b.input("x", TensorType((items, 7, 6, 32), "int8", quant))
    made = []
    for groups in (1, 32):
        shape = (32, 3, 3, 32 // groups)
        scales = Quant(tuple(rng.uniform(0.001, 0.02, 32).tolist()), (0,) * 32, 0)
        w = b.constant("w", rng.integers(-127, 128, shape).astype(np.int8), scales)
        bias = b.constant("b", rng.integers(-500, 500, 32).astype(np.int32))
        attrs = {
            "strides": (1, 1),
            "pads": (1, 1, 1, 1),
            "dilations": (1, 1),
            "groups": groups,
            "layout": "NHWC",
            "activation": "",
        }
        (y,) = b.add_node("conv", [made[-1] if made else x, w, bias], attrs, quants=[quant])
        made.append(y)
    (y,) = b.add_node("add", made, {"activation": ""}, quants=[quant])
    return b.finish(y)


def token_graph(rng, items):
    """Matrix products of tokens, scores and their softmax, a mask without a batch."""
    b = GraphBuilder("tokens")
    x = b.input("x", TensorType((items, 29, 16), "float32"))
    weights = (rng.standard_normal((16, 16)).astype(np.float32) / 4 for _ in range(2))
    q, k = (add(b, "matmul", [x, b.constant("w", w)], {}) for w in weights)
    k = add(b, "transpose", [k], {"perm": (0, 2, 1)})
    mask = b.constant("m", rng.standard_normal((1, 29, 29)).astype(np.float32))
    scores = add(b, "add", [add(b, "matmul", [q, k], {}), mask], {})
    return b.finish(add(b, "matmul", [add(b, "softmax", [scores], {"axis": -1}), x], {}))


GRAPHS = {"images": image_graph, "bytes": quantised_graph, "tokens": token_graph}


@pytest.fixture
def small(monkeypatch):
    """Values are cut from a kilobyte on, into parts of one item or two."""
    monkeypatch.setattr(batches, "room_bytes", lambda isa: 1 << 10)


def groups_of(graph, isa):
    context = Context(graph, choose_isa(isa), 1)
    return list(grouped(context, patterns_of(context)))


def feeds_of(rng, graph):
    found = {}
    for value in graph.inputs:
        type = graph.type(value)
        if type.dtype == "int8":
            found[value] = rng.integers(-128, 128, type.dims).astype(np.int8)
        else:
            found[value] = rng.standard_normal(type.dims).astype(np.float32)
    return found


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("items", [2, 6, 7])
@pytest.mark.parametrize("isa", available_isas())
def test_parts_give_what_the_whole_gives(name, items, isa, cpus, small):
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    graph = GRAPHS[name](rng, items)
    stretches = [
        piece
        for piece in batches.cut(graph, groups_of(graph, isa), choose_isa(isa))
        if isinstance(piece, batches.BatchTile)
    ]
    assert stretches and all(s.parts > 1 for s in stretches)
    feeds = feeds_of(rng, graph)
    want = interpret(graph, feeds)
    first = None
    for threads in (1, 2):
        got, kernels, spans = run(cpus[isa, threads], graph, feeds, at_end=threads == 1)
        for value, array in zip(graph.outputs, got, strict=True):
            assert_close(array, want[value], 2e-5, f"{name} {kernels}")
        assert set(kernels) == {node.id for node in graph.nodes}
        assert {n for span in spans for n in span.nodes} <= set(kernels)
        first = first or [array.tobytes() for array in got]
        assert first == [array.tobytes() for array in got], "depends on the number of threads"


def test_results_given_elsewhere(small):
    """A session writes into arrays of its caller: parts follow the memory that moves."""
    rng = np.random.default_rng(SEED)
    graph = image_graph(rng, 6)
    (x,) = feeds_of(rng, graph).values()
    want = interpret(graph, {graph.inputs[0]: x})
    with Session(graph, threads=1, execution_options=ExecutionOptions(model_cache=None)) as session:
        runs = [session.run({"x": x}) for _ in range(3)]
    for found in runs:
        for value, array in zip(graph.outputs, found.values(), strict=True):
            assert_close(array, want[value], 2e-5, "a run")


def test_memory_of_a_part_is_used_by_all(small, monkeypatch):
    graph, isa = image_graph(np.random.default_rng(SEED), 6), choose_isa("generic")
    cut, whole = build(graph, isa, 1), build(graph, isa, 1, parts=False)
    assert cut.scratch_bytes < whole.scratch_bytes / 2
    assert len(cut.items) > len(whole.items)
    monkeypatch.setattr(batches, "room_bytes", lambda isa: 1 << 30)
    assert len(build(graph, isa, 1).items) == len(whole.items)


def test_what_mixes_items_is_not_cut(small):
    b = GraphBuilder("mixed")
    x = b.input("x", TensorType((4, 600), "float32"))
    y = add(b, "softmax", [add(b, "relu", [x], {})], {"axis": 0})
    y = add(b, "transpose", [y], {"perm": (1, 0)})
    graph = b.finish(y)
    pieces = list(batches.cut(graph, groups_of(graph, "generic"), choose_isa("generic")))
    assert not any(isinstance(piece, batches.BatchTile) for piece in pieces)
