"""Attention as one kernel of the cpu device: what fuses gives the reference's result at odd shapes
on every instruction set, and what must not fuse does not.
"""

from dataclasses import replace

import numpy as np
import pytest
from attention_graphs import ALL_ISAS, Attention, agree
from cpu_run import run

import trireme.ops  # noqa: F401
from trireme.devices.cpu.patterns.attention import find_attention
from trireme.ir.builder import scalar
from trireme.passes.pipeline import optimise

# batch, heads, queries, keys, size of a head, width of a value
SHAPES = [
    (1, 1, 1, 1, 1, 1),
    (1, 1, 2, 3, 5, 7),
    (2, 3, 17, 19, 36, 36),
    (1, 2, 37, 29, 16, 48),
    (1, 3, 53, 31, 33, 13),
    (4, 1, 16, 64, 60, 60),
    (1, 2, 60, 20, 9, 11),
    (1, 2, 70, 15, 4, 65),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_heads_are_read_where_they_lie(cpus, shape):
    """Projections in, heads merged out: the transposes around it are part of the kernel."""
    batch, heads, queries, keys, size, width = shape
    a = Attention()
    q = a.turned(a.heads(batch, queries, heads, size), 0, 2, 1, 3)
    k = a.turned(a.heads(batch, keys, heads, size), 0, 2, 3, 1)
    v = a.turned(a.heads(batch, keys, heads, width), 0, 2, 1, 3)
    soft = a.builder.add("softmax", a.scores(q, k), axis=-1, beta=size**-0.5)
    out = a.turned(a.builder.add("matmul", soft, v), 0, 2, 1, 3)
    graph = a.builder.finish(out)
    (found,) = find_attention(graph)
    assert [n.op for n in found.nodes].count("transpose") == 4
    agree(cpus, graph, a.feeds)


MASKS = [
    ((), "one number"),
    ((1, 1, 1, 23), "a row for all"),
    ((2, 1, 1, 23), "a row a batch"),
    ((23,), "a row without batches"),
    ((2, 3, 1, 1), "a number a head"),
]


@pytest.mark.parametrize("mask", MASKS, ids=lambda m: m[1])
@pytest.mark.parametrize("constant", [False, True])
def test_masks_that_are_the_same_for_all_queries(cpus, mask, constant):
    a = Attention()
    q, k, v = a.input(2, 3, 19, 8), a.input(2, 3, 8, 23), a.input(2, 3, 23, 9)
    if mask[0] in ((), (2, 3, 1, 1)):
        mask = ((1,) * (4 - len(mask[0])) + mask[0], mask[1])
    more = a.constant(*mask[0]) if constant else a.input(*mask[0])
    scores = a.builder.add("add", a.scores(q, k, 3.0, "div"), more)
    agree(cpus, a.finish(scores, v)[0], a.feeds)


@pytest.mark.parametrize("shape", [(1, 1, 37, 23), (37, 23), (2, 3, 37, 23), (37, 1)], ids=str)
def test_constant_masks_may_differ_by_query(cpus, shape):
    a = Attention()
    q, k, v = a.input(2, 3, 37, 8), a.input(2, 3, 8, 23), a.input(2, 3, 23, 9)
    scores = a.builder.add("add", a.constant(*shape), a.scores(q, k, 0.25))
    agree(cpus, a.finish(scores, v, beta=0.5)[0], a.feeds)


def test_causal_masks_of_minus_infinity(cpus):
    a = Attention()
    q, k, v = a.input(2, 21, 8), a.input(2, 8, 21), a.input(2, 21, 6)
    mask = np.triu(np.full((21, 21), -np.inf, np.float32), 1)
    mask[3] = -np.inf  # nothing to look at: NaN
    scores = a.builder.add("add", a.scores(q, k), a.builder.constant("mask", mask))
    agree(cpus, a.finish(scores, v)[0], a.feeds)


def test_nan_and_infinities_stay_with_their_query(cpus):
    a = Attention()
    q, k, v = a.input(1, 37, 8), a.input(1, 8, 21), a.input(1, 21, 6)
    a.feeds[q][0, 3, 2] = np.nan
    a.feeds[q][0, 5, 1] = np.inf
    a.feeds[v][0, 2, 4] = np.nan
    a.feeds[v][0, 2, 5] = -np.inf
    agree(cpus, a.finish(a.scores(q, k, 0.3), v)[0], a.feeds)


def test_keys_and_values_shared_by_heads(cpus):
    a = Attention()
    q, k, v = a.input(2, 4, 9, 8), a.input(2, 1, 8, 21), a.input(1, 1, 21, 6)
    agree(cpus, a.finish(a.scores(q, k), v)[0], a.feeds)


def test_large_scores_do_not_overflow(cpus):
    a = Attention()
    q, k, v = a.input(3, 8), a.input(8, 40), a.input(40, 6)
    a.feeds[q] *= 300
    agree(cpus, a.finish(a.scores(q, k), v)[0], a.feeds)


def _read_scores(a, q, k, v):
    scores = a.scores(q, k)
    return a.finish(scores, v, more=[a.builder.add("relu", scores)])[0]


def _scores_out(a, q, k, v):
    scores = a.scores(q, k)
    return a.finish(scores, v, more=[scores])[0]


def _softmax_out(a, q, k, v):
    soft = a.builder.add("softmax", a.scores(q, k), axis=-1)
    return a.builder.finish(a.builder.add("matmul", soft, v), soft)


def _softmax_twice(a, q, k, v):
    soft = a.builder.add("softmax", a.scores(q, k), axis=-1)
    return a.builder.finish(a.builder.add("matmul", soft, v), a.builder.add("exp", soft))


def _other_axis(a, q, k, v):
    return a.finish(a.scores(q, k), v, axis=-2)[0]


def _on_the_right(a, q, k, v):
    soft = a.builder.add("softmax", a.scores(q, k), axis=-1)
    return a.builder.finish(a.builder.add("matmul", a.input(2, 4, 13), soft))


def _mask_widens(a, q, k, v):
    return a.finish(a.builder.add("add", a.scores(q, k), a.constant(3, 1, 1, 11)), v)[0]


def _mask_scaled_after(a, q, k, v):
    masked = a.builder.add("add", a.scores(q, k), a.constant(1, 11))
    scaled = a.builder.add("mul", masked, a.builder.constant("two", scalar(2.0)))
    return a.finish(scaled, v)[0]


def _scaled_by_vector(a, q, k, v):
    return a.finish(a.builder.add("mul", a.scores(q, k), a.constant(11)), v)[0]


def _divided_into(a, q, k, v):
    one = a.builder.constant("one", scalar(1.0))
    return a.finish(a.builder.add("div", one, a.scores(q, k)), v)[0]


def _relu_between(a, q, k, v):
    return a.finish(a.builder.add("relu", a.scores(q, k)), v)[0]


@pytest.mark.parametrize("mask", [(2, 3, 37, 29), (1, 37, 29), (2, 1, 37, 29), (37, 29)])
def test_mask_of_each_query(cpus, mask):
    """A mask that is not known has a row for each query: blocks of it are turned."""
    a = Attention()
    q, k, v = a.input(2, 3, 37, 16), a.input(2, 3, 16, 29), a.input(2, 3, 29, 9)
    masked = a.builder.add("add", a.scores(q, k, 0.3), a.input(*mask))
    agree(cpus, a.finish(masked, v, beta=0.7)[0], a.feeds)


UNFUSED = [
    _read_scores,
    _scores_out,
    _softmax_out,
    _softmax_twice,
    _other_axis,
    _on_the_right,
    _mask_widens,
    _mask_scaled_after,
    _scaled_by_vector,
    _divided_into,
    _relu_between,
]


@pytest.mark.parametrize("make", UNFUSED)
def test_what_must_not_fuse(cpus, make):
    a = Attention()
    graph = make(a, a.input(2, 13, 8), a.input(2, 8, 11), a.input(2, 11, 5))
    assert not find_attention(graph)
    agree(cpus, graph, a.feeds, fused=False)


def test_transposes_that_others_read_stay(cpus):
    """The kernel walks through them; they are made for the others."""
    a = Attention()
    q = a.turned(a.input(1, 9, 2, 8), 0, 2, 1, 3)
    k = a.turned(a.input(1, 11, 2, 8), 0, 2, 3, 1)
    v = a.input(1, 2, 11, 5)
    graph = a.finish(a.scores(q, k), v, more=[a.builder.add("relu", k), q])[0]
    (found,) = find_attention(graph)
    assert "transpose" not in [node.op for node in found.nodes]
    agree(cpus, graph, a.feeds)


def test_queries_that_do_not_lie_in_rows(cpus):
    """Q or the result with its columns apart cannot be read in vectors: not fused."""
    a = Attention()
    q = a.turned(a.input(2, 8, 13), 0, 2, 1)
    graph = a.finish(a.scores(q, a.input(2, 8, 11)), a.input(2, 11, 5))[0]
    agree(cpus, graph, a.feeds, fused=False)


def test_a_mask_made_by_a_chain(cpus):
    """Elementwise nodes that feed the kernel are computed before it."""
    a = Attention()
    q, k, v = a.input(2, 13, 8), a.input(2, 8, 11), a.input(2, 11, 5)
    mask = a.builder.add("relu", a.builder.add("neg", a.input(2, 1, 11)))
    graph = a.finish(a.builder.add("add", a.scores(q, k), mask), v)[0]
    agree(cpus, graph, a.feeds)


def test_self_attention_of_one_value(cpus):
    a = Attention()
    x = a.input(2, 13, 8)
    graph = a.finish(a.scores(x, a.turned(x, 0, 2, 1)), x)[0]
    agree(cpus, graph, a.feeds)


def test_one_head_whose_transposes_move_nothing(cpus):
    a = Attention()
    q, v = (a.turned(a.input(1, n, 1, 8), 0, 2, 1, 3) for n in (9, 11))
    k = a.turned(a.input(1, 11, 1, 8), 0, 2, 3, 1)
    soft = a.builder.add("softmax", a.scores(q, k), axis=-1)
    graph = a.builder.finish(a.turned(a.builder.add("matmul", soft, v), 0, 2, 1, 3))
    agree(cpus, graph, a.feeds)


STAGES = [(4, 2), (2, 3), (1, 5)]  # batches and heads of three stages of windows


@pytest.mark.parametrize("masked", [False, True])
def test_attentions_that_differ_in_strides_share_code(cpus, masked):
    """Heads and windows differ, as from stage to stage; queries, keys and sizes do not."""
    a = Attention()

    def stage(batch, heads):
        q, k, v = (a.heads(batch, 37, heads, 16) for _ in range(3))
        q, k, v = a.turned(q, 0, 2, 1, 3), a.turned(k, 0, 2, 3, 1), a.turned(v, 0, 2, 1, 3)
        scores = a.scores(q, k, 0.25)
        if masked:
            scores = a.builder.add("add", scores, a.constant(batch, 1, 37, 37))
        soft = a.builder.add("softmax", scores, axis=-1, beta=1.0)
        return a.turned(a.builder.add("matmul", soft, v), 0, 2, 1, 3)

    outputs = [stage(*one) for one in STAGES]
    graph = a.builder.finish(*outputs)
    assert len(find_attention(graph)) == len(STAGES)
    agree(cpus, graph, a.feeds)
    for isa in ALL_ISAS:
        together, kernels, _ = run(cpus[isa, 2], graph, a.feeds)
        assert len({name for name in kernels.values() if name.endswith(f"_sized__{isa}")}) == 1
        for output, whole in zip(outputs, together, strict=True):
            one = optimise(replace(graph, outputs=(output,)), passes=["dead_code"])
            fed = dict(zip(one.inputs, (a.feeds[i] for i in graph.inputs), strict=True))
            alone, kernels, _ = run(cpus[isa, 2], one, fed)
            assert not any("sized" in name for name in kernels.values())
            assert alone[0].tobytes() == whole.tobytes()
