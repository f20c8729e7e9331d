"""Attention as decoders write it: a past that grows, heads that share keys, masks, few queries.

One session serves every shape. Results are those of numpy in float64, and the bits of the program
that is made for the shape; one thread and two agree.
"""

import numpy as np
import pytest
from attention_graphs import ALL_ISAS, Attention, agree
from cpu_run import assert_close, run

import trireme.ops  # noqa: F401
from trireme.devices.cpu.patterns.attention import find_attention
from trireme.ir.builder import GraphBuilder, scalar
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import interpret
from trireme.runtime.session.session import Session

SEED = 7


def decoder(groups, repeats, size, width, guarded=True):
    """softmax(q k^T / 4 + mask) v over the past and the new keys, [b,s,heads*width]."""
    b = GraphBuilder("decoder")
    heads = groups * repeats

    def input(name, *shape):
        return b.input(name, TensorType(shape, "float32"))

    def ints(*numbers):
        return b.constant("n", np.array(numbers, np.int64))

    def grown(name, size):
        past = input(f"past_{name}", "b", groups, "t", size)
        new = b.add("reshape", input(name, "b", "s", groups * size), ints(0, 0, groups, size))
        whole = b.add("concat", past, b.add("transpose", new, perm=(0, 2, 1, 3)), axis=2)
        more = b.add("expand", b.add("unsqueeze", whole, ints(2)), ints(1, 1, repeats, 1, 1))
        return whole, b.add("reshape", more, ints(0, heads, -1, size))

    q = b.add("reshape", input("q", "b", "s", heads * size), ints(0, 0, heads, size))
    q = b.add("mul", b.add("transpose", q, perm=(0, 2, 1, 3)), b.constant("half", scalar(0.5)))
    present_k, k = grown("k", size)
    present_v, v = grown("v", width)
    k = b.add("mul", b.add("transpose", k, perm=(0, 1, 3, 2)), b.constant("half", scalar(0.5)))
    masks = input("past_mask", "b", 1, "s", "t"), input("mask", "b", 1, "s", "s")
    scores = b.add("add", b.add("matmul", q, k), b.add("concat", *masks, axis=3))
    soft = b.add("softmax", scores, axis=-1)
    if guarded:
        soft = b.add("where", b.add("is_nan", soft), b.constant("zero", scalar(0.0)), soft)
    out = b.add("transpose", b.add("matmul", soft, v), perm=(0, 2, 1, 3))
    out = b.add("reshape", out, ints(0, 0, heads * width))
    return b.finish(out, present_k, present_v)


def feeds_of(graph, b, s, t, rng):
    sizes = {"b": b, "s": s, "t": t}
    feeds = {}
    for value in graph.input_values():
        shape = [sizes.get(dim, dim) for dim in value.shape]
        feeds[value.name] = rng.standard_normal(shape).astype(np.float32)
        if "mask" in value.name:
            hidden = rng.random(shape) < 0.3
            feeds[value.name][hidden] = -np.inf
    feeds["mask"][0, :, 0] = -np.inf  # a query that sees nothing
    feeds["past_mask"][0, :, 0] = -np.inf
    return feeds


def expected(feeds, groups, repeats, guarded=True):
    """The same in float64."""
    x = {name: array.astype(np.float64) for name, array in feeds.items()}
    batch, queries, _ = x["q"].shape
    heads = groups * repeats
    q = x["q"].reshape(batch, queries, heads, -1).transpose(0, 2, 1, 3)
    k, v = (
        np.concatenate(
            [x[f"past_{n}"], x[n].reshape(batch, queries, groups, -1).transpose(0, 2, 1, 3)], 2
        ).repeat(repeats, 1)
        for n in "kv"
    )
    scores = q @ k.swapaxes(-1, -2) / 4 + np.concatenate([x["past_mask"], x["mask"]], 3)
    with np.errstate(invalid="ignore"):
        soft = np.exp(scores - scores.max(-1, keepdims=True))
        soft /= soft.sum(-1, keepdims=True)
    soft = np.nan_to_num(soft) if guarded else soft
    return (soft @ v).transpose(0, 2, 1, 3).reshape(batch, queries, -1)


SHAPES = [(1, 1, 0), (1, 1, 1), (2, 1, 37), (1, 3, 16), (1, 5, 20), (2, 17, 3), (1, 1, 480)]


@pytest.mark.parametrize("form", [(4, 2, 32, 32), (3, 1, 20, 9), (2, 3, 64, 130)], ids=str)
@pytest.mark.parametrize("guarded", [True, False])
def test_one_session_decodes_at_any_length(form, guarded):
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    graph = decoder(*form, guarded)
    shapes = {v.name: v.shape for v in graph.input_values()}
    both = [Session(graph, shapes=shapes, devices=["cpu"], threads=n) for n in (1, 2)]
    for b, s, t in SHAPES:
        feeds = feeds_of(graph, b, s, t, rng)
        want = expected(feeds, *form[:2], guarded)
        fixed = {name: array.shape for name, array in feeds.items()}
        with Session(graph, shapes=fixed, devices=["cpu"], threads=1) as special:
            own = list(special.run(feeds).values())
        for session in both:
            got = list(session.run(feeds).values())
            assert session.stages[0].tier == "polymorphic", session.stages[0]
            assert_close(got[0], want.astype(np.float32), 1e-5, f"{form} {(b, s, t)}")
            for mine, other in zip(got, own, strict=True):
                assert mine.tobytes() == other.tobytes(), (form, b, s, t)
    for session in both:
        session.close()


MASKS = [None, (2, 3, 3, 41), (3, 41), (2, 1, 1, 41), (2, 3, 1, 1), (1, 1, 3, 41)]


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_few_queries_take_every_mask(cpus, mask, constant):
    a = Attention()
    q, k, v = a.input(2, 3, 3, 21), a.input(2, 3, 41, 21), a.input(2, 3, 41, 19)
    scores = a.scores(q, a.turned(k, 0, 1, 3, 2), 0.3)
    if mask is not None:
        more = a.constant(*mask) if constant else a.input(*mask)
        scores = a.builder.add("add", scores, more)
    graph = a.finish(scores, v, beta=0.7)[0]
    _, kernels, _ = run(cpus[ALL_ISAS[0], 1], graph, a.feeds)
    assert any("attention_f32_row" in name for name in kernels.values()), kernels
    agree(cpus, graph, a.feeds)


def test_keys_that_lie_in_columns_are_served_in_blocks(cpus):
    a = Attention()
    graph = a.finish(a.scores(a.input(2, 1, 8), a.input(2, 8, 21)), a.input(2, 21, 6))[0]
    agree(cpus, graph, a.feeds)


def test_what_others_read_of_repeated_heads_stays(cpus):
    """The repeated keys are an output too; a repeat that no stride tells is made in memory."""
    a = Attention()
    b = a.builder
    q, k, v = a.input(1, 4, 1, 8), a.input(1, 2, 11, 8), a.input(1, 4, 11, 8)
    more = b.add("unsqueeze", k, b.constant("two", np.array([2])))
    more = b.add("expand", more, b.constant("s", np.array([1, 2, 2, 11, 8])))
    heads = b.add("reshape", more, b.constant("t", np.array([1, 4, 11, 8])))
    graph = a.finish(a.scores(q, a.turned(heads, 0, 1, 3, 2)), v, more=[heads])[0]
    (found,) = find_attention(graph)
    assert "expand" not in [node.op for node in found.nodes]
    agree(cpus, graph, a.feeds)


def test_nan_that_is_made_0_is_made_0_of_whole_queries(cpus):
    a = Attention()
    b = a.builder
    q, k, v = a.input(2, 37, 8), a.input(2, 8, 21), a.input(2, 21, 6)
    a.feeds[q][0, 3, 2] = np.nan
    a.feeds[q][0, 5, 1] = np.inf
    a.feeds[v][0, 2, 5] = -np.inf
    soft = b.add("softmax", a.scores(q, k), axis=-1)
    soft = b.add("where", b.add("is_nan", soft), b.constant("zero", scalar(0.0)), soft)
    graph = b.finish(b.add("matmul", soft, v))
    assert (find_attention(graph)[0].walk.shape).guarded
    want = list(interpret(graph, a.feeds).values())[0]
    assert not want[0, 3, :5].any()
    agree(cpus, graph, a.feeds)
