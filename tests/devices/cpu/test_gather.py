"""gather and aliases on the cpu device: wrong indices too, and outputs that share their bytes."""

import itertools

import numpy as np
import pytest
from cpu_run import node_graph, run
from sweep import sweep

import trireme.ops  # noqa: F401
from trireme.devices.cpu.codegen.target import available_isas
from trireme.devices.cpu.compile.program import REFERENCE
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import interpret
from trireme.support.errors import RunError

ALL_ISAS = available_isas(variants=False)
by_isa = pytest.mark.parametrize("isa", ALL_ISAS)


def agree(cpus, graph, feeds):
    want = list(interpret(graph, feeds).values())
    for isa, threads in itertools.product(ALL_ISAS, (1, 2)):
        got, kernels, _ = run(cpus[isa, threads], graph, feeds, at_end=threads == 1)
        assert REFERENCE not in kernels.values(), kernels
        for g, w in zip(got, want, strict=True):
            np.testing.assert_array_equal(g, w, err_msg=f"{isa}, {threads} threads")


CASES = {  # shape of x, shape of the indices, axis, batch_dims
    "embedding": ((50, 37), (3, 11), 0, 0),
    "scalar": ((5, 7), (), 1, 0),
    "middle": ((3, 5, 7), (4,), 1, 0),
    "last": ((2, 3, 17), (2, 2), -1, 0),
    "one item": ((1, 1), (1,), 0, 0),
    "batches": ((3, 4, 5, 6), (3, 2), 2, 1),
    "two batches": ((2, 3, 5), (2, 3, 4), 2, 2),
    "many": ((9, 300), (700,), 0, 0),
}


def _always(case, dtype, constant):
    """Every case of float32; of other dtypes some with constant indices and some without."""
    return dtype == "float32" or (case in ("many", "middle")) != constant and case != "scalar"


@pytest.mark.parametrize(
    "case, dtype, constant",
    sweep(
        itertools.product(CASES, ["float32", "int64", "uint8", "float16"], [False, True]), _always
    ),
)
def test_gather(cpus, case, dtype, constant):
    shape, picks, axis, batch_dims = CASES[case]
    rng = np.random.default_rng(5)
    x = rng.integers(0, 100, shape).astype(dtype)
    size = shape[axis]
    index = np.int32 if dtype == "uint8" else np.int64
    indices = rng.integers(-size, size, picks).astype(index)
    attrs = {"axis": axis, "batch_dims": batch_dims}
    agree(cpus, *node_graph("gather", [x, indices], attrs, {1} if constant else ()))


@by_isa
@pytest.mark.parametrize("bad", [5, -6, 1 << 40, -(1 << 62)])
def test_a_wrong_index_ends_the_run_with_a_sentence(cpus, isa, bad):
    x = np.arange(20, dtype=np.float32).reshape(5, 4)
    indices = np.array([0, bad, 7, -5], np.int64)
    graph, feeds = node_graph("gather", [x, indices], {"axis": 0, "batch_dims": 0})
    with pytest.raises(RunError, match=f"index {bad} is outside the 5 elements"):
        run(cpus[isa, 2], graph, feeds)
    feeds[graph.inputs[1]] = np.array([0, 1, 4, -5], np.int64)
    agree(cpus, graph, feeds)


@by_isa
def test_a_bound_call_works_again_after_a_wrong_index(cpus, isa):
    x = np.arange(20, dtype=np.float32).reshape(5, 4)
    graph, feeds = node_graph("gather", [x, np.array([9, 1])], {"axis": 0, "batch_dims": 0}, {0})
    device = cpus[isa, 1]
    executable = device.compile([graph])[0]
    places = [device.alloc(graph.type(i).nbytes) for i in (*graph.inputs, *graph.outputs)]
    call = executable.bind(places, device.alloc(max(executable.scratch_bytes, 1)))
    device.write(places[0], next(iter(feeds.values())))
    for _ in range(2):
        with pytest.raises(RunError, match="index 9"):
            call.launch()
    device.write(places[0], np.array([3, -1]))
    call.launch()
    got = np.empty((2, 4), np.float32)
    device.read(places[1], got)
    np.testing.assert_array_equal(got, x[[3, -1]])


def _aliases(order):
    """x -> relu -> reshape -> reshape, read on the way; the chosen values are outputs."""
    builder = GraphBuilder("aliases")
    x = builder.input("x", TensorType((2, 6), "float32"))
    flat = builder.add("reshape", x, builder.constant("s", np.array([12])))
    made = builder.add("relu", x)
    first = builder.add("reshape", made, builder.constant("s", np.array([3, 4])))
    second = builder.add("reshape", first, builder.constant("s", np.array([4, 3])))
    read = builder.add("neg", first)
    values = {"in": flat, "made": made, "first": first, "second": second, "read": read}
    return builder.finish(*(values[name] for name in order.split())), x


@pytest.mark.parametrize(
    "order",
    [
        "first",
        "made first",
        "first made",
        "second first read",
        "in second",
        "made second first in",
        "read second",
        "second made",
    ],
)
def test_outputs_that_share_their_bytes(cpus, order):
    graph, x = _aliases(order)
    feeds = {x: np.random.default_rng(3).standard_normal((2, 6)).astype(np.float32)}
    agree(cpus, graph, feeds)
