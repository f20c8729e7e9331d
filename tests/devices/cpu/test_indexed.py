"""gather_elements, gather_nd and the scatters on the cpu device: shapes, dtypes, wrong indices."""

import numpy as np
import pytest
from cpu_run import agree, node_graph, run

import trireme.ops  # noqa: F401
from trireme.devices.cpu.codegen.target import available_isas
from trireme.support.errors import RunError, ShapeError

SEED = 20261124
BEST = available_isas()[0]
by_isa = pytest.mark.parametrize("isa", available_isas(variants=False))

ELEMENTS = {  # shape of x, shape of the indices, axis
    "row": ((7,), (19,), 0),
    "last axis": ((5, 6, 9), (5, 6, 4), -1),
    "middle axis, fewer rows": ((5, 6, 9), (3, 40, 7), 1),
    "first axis": ((300, 11), (70, 11), 0),
}
ND = {  # shape of x, shape of the indices, batch_dims of a gather
    "rows": ((50, 37), (3, 5, 1), 0),
    "items": ((6, 5, 4), (30, 3), 0),
    "one pick": ((6, 5, 4), (2,), 0),
    "batches": ((3, 4, 5, 6), (3, 7, 1), 1),
    "two batches": ((2, 3, 5, 4), (2, 3, 6, 2), 2),
}


def draw(rng, shape, dtype):
    return rng.integers(-9 if not dtype.startswith("u") else 0, 9, shape).astype(dtype)


def nd_indices(rng, shape, picks, lead):
    sizes = shape[lead : lead + picks[-1]]
    return np.stack([rng.integers(-s, s, picks[:-1]) for s in sizes], -1)


@by_isa
@pytest.mark.parametrize("case", ELEMENTS)
def test_elements(cpus, isa, case):
    shape, picks, axis = ELEMENTS[case]
    rng = np.random.default_rng(SEED)
    size = shape[axis]
    indices = rng.integers(-size, size, picks).astype(np.int64)
    for dtype in ("float32", "int8"):
        x = draw(rng, shape, dtype)
        agree(cpus, isa, *node_graph("gather_elements", [x, indices], {"axis": axis}))
        updates, attrs = draw(rng, picks, dtype), {"axis": axis, "reduction": "none"}
        agree(cpus, isa, *node_graph("scatter_elements", [x, indices, updates], attrs), rtol=0)


@by_isa
@pytest.mark.parametrize("case", ND)
def test_nd(cpus, isa, case):
    shape, picks, lead = ND[case]
    rng = np.random.default_rng(SEED)
    for dtype, index in (("float32", np.int64), ("uint8", np.int32)):
        x, indices = draw(rng, shape, dtype), nd_indices(rng, shape, picks, lead).astype(index)
        agree(cpus, isa, *node_graph("gather_nd", [x, indices], {"batch_dims": lead}))
        if not lead:
            updates = draw(rng, (*picks[:-1], *shape[picks[-1] :]), dtype)
            agree(cpus, isa, *node_graph("scatter_nd", [x, indices, updates], {}))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8"])
@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
def test_updates_of_one_place_are_combined_in_order(cpus, dtype, reduction):
    rng = np.random.default_rng(SEED)
    x, attrs = draw(rng, (5, 19), dtype), {"reduction": reduction}
    rows, updates = rng.integers(-5, 5, (8, 1)), draw(rng, (8, 19), dtype)
    agree(cpus, BEST, *node_graph("scatter_nd", [x, rows, updates], attrs))
    places = rng.integers(-19, 19, (5, 30))
    inputs = [x, places, draw(rng, (5, 30), dtype)]
    agree(cpus, BEST, *node_graph("scatter_elements", inputs, {"axis": 1, **attrs}))


@by_isa
@pytest.mark.parametrize("bad", [5, -6, (1 << 32) + 1, -(1 << 62)])
def test_a_wrong_index_ends_the_run_with_a_sentence(cpus, isa, bad):
    """The first one, at the end of a long run of right ones; memory around is left alone."""
    x, many = np.arange(20, dtype=np.float32).reshape(5, 4), np.zeros((40, 4), np.int64)
    many[37, 2], many[39, 3] = bad, 99
    rows = np.zeros((6, 2), np.int64)
    rows[4, 0] = bad
    cases = (
        ("gather_elements", [x, many], {"axis": 0}),
        ("scatter_elements", [x, many[-5:], x], {"axis": 0, "reduction": "none"}),
        ("gather_nd", [x, rows], {}),
        ("scatter_nd", [x, rows, np.zeros(6, np.float32)], {}),
    )
    for op, inputs, attrs in cases:
        graph, feeds = node_graph(op, inputs, attrs)
        for threads in (1, 2):
            with pytest.raises(RunError, match=f"index {bad} is outside the 5 elements"):
                run(cpus[isa, threads], graph, feeds)
        right = {value: np.where(a == bad, 0, a) % 99 for value, a in feeds.items()}
        agree(cpus, isa, graph, {v: a.astype(feeds[v].dtype) for v, a in right.items()})


@pytest.mark.parametrize(
    ("op", "shape", "picks", "attrs"),
    [
        ("gather_elements", (3, 4), (5, 4), {"axis": 1}),
        ("scatter_elements", (3, 4), (3, 5), {"axis": 0}),
        ("gather_nd", (3, 4), (4, 1), {"batch_dims": 1}),
        ("gather", (3, 4), (2, 1), {"axis": 1, "batch_dims": 1}),
    ],
)
def test_more_indices_than_x_has_are_refused_by_inference(op, shape, picks, attrs):
    inputs = [np.zeros(shape, np.float32), np.zeros(picks, np.int64)]
    if op.startswith("scatter"):
        inputs.append(np.zeros(picks, np.float32))
    with pytest.raises(ShapeError, match=r"indices' dimension [01] is \d, (x has|expected) "):
        node_graph(op, inputs, attrs)
