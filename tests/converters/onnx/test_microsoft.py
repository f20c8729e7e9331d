"""ONNX Runtime's own float ops, each over its attributes and forms, against ONNX Runtime."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx_single import Single, answers_of, assert_same, assert_single

from trireme.converters.onnx import convert
from trireme.ir.interpreter import run_reference
from trireme.passes.pipeline import optimise

SEED = 20261123
B, S, T, N, D = 2, 5, 7, 4, 16
H = N * D
RNG = np.random.default_rng(SEED)


def draw(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def i32(*values):
    return np.array(values, np.int32)


def some(*shape):
    """A mask of 0 and 1 whose first column is 1."""
    mask = RNG.integers(0, 2, shape).astype(np.int32)
    mask[..., 0] = 1
    return mask


def attention(mask=None, past=None, bias=None, heads=N, w=None, b=True, outputs="1", **attrs):
    w = draw(H, 3 * H) if w is None else w
    shift = draw(w.shape[1]) if b else None
    fixed = frozenset({1, 2} if b else {1})
    inputs = (draw(B, S, H), w / 4, shift, mask, past, bias)
    return Single("Attention", inputs, {"num_heads": heads, **attrs}, fixed, outputs)


ATTENTION = {
    "plain": attention(),
    "no bias": attention(b=False),
    "weights are inputs": Single(
        "Attention", (draw(B, S, H), draw(H, 3 * H) / 4, draw(3 * H)), {"num_heads": N}
    ),
    "scale": attention(scale=0.5),
    "causal": attention(unidirectional=1),
    "mask of keys": attention(some(B, S)),
    "mask all padding": attention(np.zeros((B, S), np.int32)),
    "mask of queries and keys": attention(some(B, S, S)),
    "mask of lengths": attention(i32(3, 5)),
    "mask of ends and starts": attention(i32(5, 4, 1, 0)),
    "mask and causal": attention(some(B, S), unidirectional=1),
    "filter value": attention(some(B, S), mask_filter_value=-2.5),
    "additive bias": attention(bias=draw(B, N, S, S)),
    "additive bias for all": attention(bias=draw(1, 1, S, S)),
    "past": attention(past=draw(2, B, N, 3, D), outputs="11"),
    "past, causal": attention(past=draw(2, B, N, 3, D), outputs="11", unidirectional=1),
    "past, mask": attention(some(B, S + 3), past=draw(2, B, N, 3, D), outputs="11"),
    "present": attention(outputs="11"),
    "values of another width": attention(
        w=draw(H, 2 * H + 16), qkv_hidden_sizes=[H, H, 16], outputs="1"
    ),
}


def multi(inputs, fixed=(), outputs="1", **attrs):
    return Single(
        "MultiHeadAttention", inputs, {"num_heads": N, **attrs}, frozenset(fixed), outputs
    )


Q, K, V = draw(B, S, H), draw(B, T, H), draw(B, T, H)
PAST = draw(B, N, 3, D), draw(B, N, 3, D)
MULTI = {
    "plain": multi((Q, K, V)),
    "bias": multi((Q, K, V, draw(3 * H)), {3}),
    "bias is an input": multi((Q, K, V, draw(3 * H))),
    "scale": multi((Q, K, V), scale=0.3),
    "values of another width": multi((Q, K, draw(B, T, 3 * N), draw(2 * H + 3 * N))),
    "key mask": multi((Q, K, V, None, some(B, T))),
    "key mask of lengths": multi((Q, K, V, None, i32(4, 7))),
    "mask of queries and keys": multi((Q, K, V, None, some(B, S, T))),
    "additive bias": multi((Q, K, V, None, None, draw(B, N, S, T))),
    "additive bias of one head": multi((Q, K, V, None, None, draw(B, 1, S, T))),
    "mask and additive bias": multi((Q, K, V, None, some(B, T), draw(1, N, S, T))),
    "causal": multi((Q, draw(B, S, H), draw(B, S, H)), unidirectional=1),
    "cross attention": multi((Q, draw(B, N, T, D), draw(B, N, T, D))),
    "cross attention with bias": multi((Q, draw(B, N, T, D), draw(B, N, T, D), draw(3 * H))),
    "past": multi((Q, Q + 1, Q - 1, None, None, None, *PAST), outputs="111"),
    "past, causal": multi(
        (Q, Q + 1, Q - 1, draw(3 * H), None, None, *PAST), outputs="111", unidirectional=1
    ),
    "past, mask": multi((Q, Q + 1, Q - 1, None, some(B, S + 3), None, *PAST), outputs="111"),
    "present": multi((Q, K, V), outputs="111"),
}


QKV = draw(B, S, N, 3, D)
QKV_ROWS = tuple(QKV[:, :, :, i].reshape(B, S, H) for i in range(3))
KV = draw(B, T, N, 2, D)
KV_ROWS = tuple(KV[:, :, :, i].reshape(B, T, H) for i in range(2))
SHIFT = draw(3 * H)
PACKED = {
    "keys and values": (multi((Q, KV)), multi((Q, *KV_ROWS))),
    "all": (multi((QKV,)), multi(QKV_ROWS)),
    "all, with bias": (multi((QKV, None, None, SHIFT)), multi((*QKV_ROWS, SHIFT))),
}
"""Packed forms, which ONNX Runtime's CPU refuses, and the same unpacked."""

POSITIONS = 12


def tables(depth=D):
    angles = np.arange(POSITIONS)[:, None] / 10 ** (np.arange(depth // 2) / 4)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


PLACES = np.array([[0, 1, 2, 3, 4], [7, 6, 5, 4, 11]])


def rotary(x, places, depth=D, **attrs):
    return Single("RotaryEmbedding", (x, places, *tables(depth)), attrs, frozenset({2, 3}))


ROTARY = {
    "halves": rotary(Q, PLACES, num_heads=N),
    "neighbours": rotary(Q, PLACES, num_heads=N, interleaved=1),
    "heads from the tables": rotary(Q, PLACES),
    "rank 4": rotary(draw(B, N, S, D), PLACES, num_heads=N),
    "rank 4, neighbours": rotary(draw(B, N, S, D), PLACES, num_heads=N, interleaved=1),
    "one place": rotary(Q, np.array([3]), num_heads=N),
    "one place, neighbours": rotary(Q, np.array([3]), num_heads=N, interleaved=1),
    "part": rotary(Q, PLACES, 4, num_heads=N, rotary_embedding_dim=4),
    "part, neighbours": rotary(Q, PLACES, 4, num_heads=N, rotary_embedding_dim=4, interleaved=1),
    "scale": rotary(Q, PLACES, num_heads=N, scale=0.5),
}

KVN = 2


def grouped(s, lengths, total, past=None, kv=KVN, packed=False, rest=(), turn=True, **attrs):
    """A GroupQueryAttention; `past` is the extent of the past's buffer."""
    b = len(lengths)
    q, k, v = draw(b, s, H), draw(b, s, kv * D), draw(b, s, kv * D)
    before = (None, None) if past is None else (draw(b, kv, past, D), draw(b, kv, past, D))
    head = (np.concatenate([q, k, v], 2), None, None) if packed else (q, k, v)
    last = np.array(lengths, np.int32) - 1
    cos_sin = tables() if turn else (None, None)
    inputs = (*head, *before, last, np.array(total, np.int32), *cos_sin, *rest)
    fixed = {6, 7, 8} if turn else {6}
    flags = {"num_heads": N, "kv_num_heads": kv, "do_rotary": int(turn), **attrs}
    return Single("GroupQueryAttention", inputs, flags, frozenset(fixed), "111")


GROUPED = {
    "prompt": grouped(5, [5], 5),
    "prompt without rotary": grouped(5, [5], 5, turn=False),
    "as many keys as queries": grouped(5, [5], 5, kv=N),
    "one group": grouped(5, [5], 5, kv=1),
    "packed": grouped(5, [5], 5, packed=True),
    "neighbours": grouped(5, [5], 5, rotary_interleaved=1),
    "prompts of two": grouped(5, [5, 5], 5),
    "step": grouped(1, [4], 4, past=3),
    "steps of two": grouped(1, [4, 4], 4, past=3),
    "steps of unequal lengths": grouped(1, [4, 2], 4, past=3),
    "step in a large buffer": grouped(1, [4], 4, past=9),
    "steps in a large buffer": grouped(1, [4, 7], 7, past=9),
    "prompt in a large buffer": grouped(5, [5], 5, past=9),
    "several new positions": grouped(3, [6], 6, past=3),
    "several new positions, packed": grouped(3, [6], 6, past=3, packed=True),
    "several in a large buffer": grouped(3, [6], 6, past=9),
    "an empty past": grouped(5, [5, 5], 5, past=0),
    "scale": grouped(5, [5], 5, scale=0.2),
    "softcap": grouped(5, [5], 5, softcap=1.5),
    "smooth softmax": grouped(5, [5], 5, smooth_softmax=1),
    "sink": grouped(5, [5], 5, rest=(None, None, draw(N))),
    "window of 2": grouped(5, [5], 5, local_window_size=2),
    "window of 2, step": grouped(1, [6], 6, past=5, local_window_size=2),
    "window of 9": grouped(5, [5], 5, local_window_size=9),
    "places": grouped(3, [6], 6, past=3, rest=(np.array([[4, 5, 6]]),)),
    "additive bias": grouped(5, [5], 5, rest=(None, draw(1, N, 5, 5))),
    "additive bias of one head": grouped(3, [6], 6, past=3, rest=(None, draw(1, 1, 3, 6))),
    "additive bias, as many keys": grouped(5, [5], 5, kv=N, rest=(None, draw(1, N, 5, 5))),
    "not causal": grouped(5, [5], 5, causal=0),
}


@pytest.mark.parametrize("name", ROTARY)
def test_rotary_embedding(name):
    assert_single(ROTARY[name])


@pytest.mark.parametrize("name", GROUPED)
def test_group_query_attention(name):
    assert_single(GROUPED[name])


def test_group_query_attention_of_normalised_queries_and_keys():
    """ONNX Runtime's CPU refuses the norms: it gets queries and keys normalised by numpy."""
    plain = grouped(5, [5], 5)
    scales = draw(D), draw(D)
    wanted = list(plain.inputs)
    for i in (0, 1):
        parts = wanted[i].reshape(1, 5, -1, D)
        root = np.sqrt(np.square(parts).mean(-1, keepdims=True) + 1e-6)
        wanted[i] = (parts / root * scales[i]).reshape(wanted[i].shape).astype(np.float32)
    with_norms = replace(plain, inputs=(*plain.inputs, *[None] * 5, *scales))
    (right, *_) = answers_of(
        replace(plain, inputs=tuple(wanted)).model(), replace(plain, inputs=tuple(wanted)).feeds
    ).values()
    (found, *_) = run_reference(convert(with_norms.model()), with_norms.feeds).values()
    assert_same("y", found, right, plain.limit)


@pytest.mark.parametrize("name", PACKED)
def test_packed_attention(name):
    packed, plain = PACKED[name]
    (wanted,) = answers_of(plain.model(), plain.feeds).values()
    (found,) = run_reference(convert(packed.model()), packed.feeds).values()
    assert_same(name, found, wanted, packed.limit)


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name):
    assert_single(ATTENTION[name])


@pytest.mark.parametrize("name", MULTI)
def test_multi_head_attention(name):
    assert_single(MULTI[name])


OPEN = {
    "attention, mask": (attention(some(B, S)), {"i0": "b s -", "i3": "b s"}),
    "attention, causal": (attention(unidirectional=1), {"i0": "b s -"}),
    "attention, lengths": (attention(i32(3, 5)), {"i0": "b s -", "i3": "b"}),
    "attention, past": (
        attention(past=draw(2, B, N, 3, D), outputs="11", unidirectional=1),
        {"i0": "b s -", "i4": "- b - p -"},
    ),
    "multi head": (MULTI["key mask"], {"i0": "b s -", "i1": "b t -", "i2": "b t -", "i4": "b t"}),
    "multi head, past": (
        MULTI["past, causal"],
        {"i0": "b s -", "i1": "b s -", "i2": "b s -", "i6": "b - p -", "i7": "b - p -"},
    ),
    "rotary": (ROTARY["halves"], {"i0": "b s -", "i1": "b s"}),
    "grouped, prompt": (GROUPED["prompt"], {"i0": "- s -", "i1": "- s -", "i2": "- s -"}),
    "grouped, step": (GROUPED["step"], {"i3": "- - p -", "i4": "- - p -"}),
    "grouped, unequal": (
        GROUPED["steps of unequal lengths"],
        {"i0": "b - -", "i1": "b - -", "i2": "b - -", "i3": "b - p -", "i4": "b - p -", "i5": "b"},
    ),
}
"""Cases with open dimensions: the symbols of the axes of their inputs."""


@pytest.mark.parametrize("name", OPEN)
def test_open_dimensions(name):
    case, symbols = OPEN[name]
    model = onnx.load_from_string(case.model())
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        for dim, symbol in zip(dims, symbols.get(value.name, "").split(), strict=False):
            if symbol != "-":
                dim.dim_param = symbol
    data = model.SerializeToString()
    graph = convert(data)
    assert any(not value.type.is_static for value in graph.input_values())
    wanted = answers_of(data, case.feeds)
    for form in (graph, optimise(graph)):
        found = run_reference(form, case.feeds)
        for output, right in wanted.items():
            assert_same(output, found[output], right, case.limit)
