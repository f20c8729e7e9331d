"""Chains of reshapes and transposes: one transpose, whatever the chain."""

import numpy as np
import pytest
from model_builder import Model, f32, ints
from same_results import assert_same_results, op_names

from trireme.passes.move_chains import AxisFactors
from trireme.passes.pipeline import optimise


def test_golden_text_of_a_patch_unfold():
    m = Model(x=f32(1, 6, 4, 8))
    y = m.op("reshape", m.op("transpose", m.x, perm=(0, 3, 1, 2)), ints(24, 2, 2, 2))
    y = m.op("reshape", m.op("transpose", y, perm=(0, 2, 1, 3)), ints(8, 6, 4))
    graph = m.finish(m.op("transpose", y, perm=(2, 1, 0)))
    made = optimise(graph, passes=["move_chains"])
    assert [line.strip() for line in str(made).splitlines()[1:]] == [
        "%2:float32[3,2,2,2,8] = reshape(%0, int64[5]const) {allowzero=0}",
        "%3:float32[2,2,3,2,8] = transpose(%2) {perm=(1,3,0,2,4)}",
        "%5:float32[4,6,8] = reshape(%3, int64[3]const) {allowzero=0}",
        "return %5",
    ]
    assert_same_results(graph, made)


def test_axes_of_unknown_size_that_move_together_are_one_transpose():
    """Heads are joined with the batch, and parted again: as torch exports attention to ONNX."""
    m = Model(x=f32("b", 8, "s", 32))
    joined = m.op("concat", ints(-1), m.op("shape", m.x, start=2, end=4), axis=0)
    first, last = m.op("shape", m.x, start=0, end=2), m.op("shape", m.x, start=2, end=3)
    parted = m.op("concat", first, ints(32), last, axis=0)
    y = m.op("transpose", m.op("reshape", m.x, joined), perm=(0, 2, 1))
    graph = m.finish(m.op("reshape", y, parted))
    made = optimise(graph, passes=["symbolic_shapes", "move_chains"])
    (node,) = (node for node in made.nodes if node.outputs[0] == made.outputs[0])
    assert (node.op, node.attrs["perm"], node.inputs) == ("transpose", (0, 1, 3, 2), made.inputs)


@pytest.mark.parametrize("seed", range(30))
def test_random_chains(seed):
    rng = np.random.default_rng(seed)
    m = Model(x=f32(*rng.choice([1, 2, 3, 4, 6], rng.integers(1, 5)).tolist()))
    y, count = m.x, 0
    for _ in range(6):
        dims = m.type(y).dims
        if rng.random() < 0.5:
            y = m.op("transpose", y, perm=tuple(rng.permutation(len(dims)).tolist()))
            count += 1
        else:
            y = m.op("reshape", y, ints(*random_dims(rng, int(np.prod(dims)))))
    graph = m.finish(y)
    made = optimise(graph, passes=["move_chains", "simplify"])
    assert_same_results(graph, made, seed=seed)
    assert len(made.nodes) <= len(graph.nodes), f"seed {seed}\n{graph}\n{made}"
    assert optimise(made, passes=["move_chains", "simplify"]) is made, f"seed {seed}"


def random_dims(rng, elements):
    """Random dimensions with a product, in primes joined at random."""
    dims = [1]
    for prime in (2, 3):
        while elements % prime == 0:
            elements //= prime
            dims.insert(int(rng.integers(len(dims) + 1)), prime)
    while len(dims) > 1 and rng.random() < 0.6:
        at = int(rng.integers(len(dims) - 1))
        dims[at : at + 2] = [dims[at] * dims[at + 1]]
    return dims


def test_factors_that_do_not_divide_are_refused():
    factors = AxisFactors([4, 6])
    factors.transpose([1, 0])
    assert not factors.reshape([4, 6])


def test_a_value_read_on_the_way_ends_the_chain():
    m = Model(x=f32(2, 3, 4))
    y = m.op("transpose", m.x, perm=(1, 0, 2))
    z = m.op("transpose", m.op("reshape", y, ints(6, 4)), perm=(1, 0))
    graph = m.finish(m.op("relu", y), z)
    assert op_names(optimise(graph, passes=["move_chains"])) == op_names(graph)
