"""Padded graphs: random ones give the results of the graph without padding, or are refused."""

import numpy as np
import pytest
from open_graphs import WIDTH, ints, random_graph, run
from sweep import sweep

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.passes.padding import padded
from trireme.runtime.shapes.buckets import Buckets
from trireme.support.errors import GraphError, ShapeError

SEED = 20261124


@pytest.mark.parametrize("part", sweep(range(8), always=range(2)))
@pytest.mark.parametrize("names", [("seq",), ("n",), ("n", "seq")])
def test_random_graphs(part, names):
    seed = SEED + part
    print("seed", seed)
    rng, proven, refused = np.random.default_rng(seed), 0, 0
    for number in range(40):
        graph = random_graph(rng)
        try:
            buckets = Buckets(graph, dict.fromkeys(names, [4, 9]))
        except ShapeError as error:
            assert (
                "padding would reach" in str(error)
                or "do not follow" in str(error)
                or ("follow from its inputs'" in str(error))
            )
            refused += 1
            continue
        for _ in range(3):
            shape = (int(rng.integers(1, 10)), int(rng.integers(1, 10)), WIDTH)
            x = rng.standard_normal(shape).astype(np.float32)
            try:
                wanted = run(graph, [x])
            except GraphError:  # a size is too small for the graph
                continue
            fit = buckets.fit((shape,))
            found = buckets.cut(run(buckets.graph, buckets.padded([x], fit)), fit)
            for a, b in zip(found, wanted, strict=True):
                assert a.shape == b.shape, (number, shape, str(graph))
                np.testing.assert_allclose(
                    a, b, rtol=1e-4, atol=1e-4, err_msg=f"{number} {shape} {graph}"
                )
                proven += 1
    print("results", proven, "refused", refused)
    assert proven > 40
    assert refused > 3


def test_a_mask_comes_only_where_it_is_needed():
    b = GraphBuilder("rows")
    x = b.input("x", TensorType(("seq", WIDTH), "float32"))
    rows = b.add("softmax", b.add("tanh", x), axis=-1)
    graph = b.finish(rows)
    assert not padded(graph, ["seq"], {}).masks
    b = GraphBuilder("sums")
    x = b.input("x", TensorType(("seq", WIDTH), "float32"))
    zero = b.add("reduce_sum", b.add("transpose", x, perm=(1, 0)), ints(b, 1), keepdims=0)
    graph = b.finish(zero, b.add("reduce_max", x, ints(b, 0), keepdims=0))
    found = padded(graph, ["seq"], {})
    assert [str(mask.type) for mask in found.masks] == ["bool[seq,1]"]  # x is padded with zeros
    assert [node.op for node in found.graph.nodes].count("where") == 1
