"""RotaryEmbedding and GroupQueryAttention of ONNX Runtime.

A call of GroupQueryAttention gets S new positions of each sequence. It keeps the keys and values of
the positions before. The length of sequence b, new positions included, is seqlens_k[b] + 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trireme.converters.onnx.microsoft_attention import (
    LOWEST,
    Scores,
    attend,
    choose,
    count_up,
    extent,
    heads_first,
    reshape,
    shape_of,
    size_of,
    transpose,
    unsqueeze,
)
from trireme.converters.onnx.scope import NodeUse
from trireme.support.records import dataclass

_REFUSED = {
    "sliding_window_cache": "a cache that wraps around is not supported",
    "qk_output": "the output of scores (output_qk) is not supported",
    "kv_cache_bit_width": "a quantised cache is not supported",
}
_LEFT_OUT = {
    12: "a quantised cache (k_scale) is not supported",
    13: "a quantised cache (v_scale) is not supported",
    16: "query_seqlens is not supported",
}


def rotary_embedding(use: NodeUse) -> Sequence[int]:
    """RotaryEmbedding(x, positions, cos, sin) of [B,S,N x D] or [B,N,S,D]."""
    if use.attrs.get("is_packed_batching"):
        raise use.error("is_packed_batching is not supported")
    x, rank = use.need(0), len(use.type().shape)
    if rank not in (3, 4):
        raise use.error(f"an input of rank {rank}, expected 3 or 4")
    width = 2 * size_of(use, use.need(2), 1)
    heads = use.attrs.get("num_heads") or 0
    if rank == 3:
        depth = size_of(use, x, 2) // heads if heads else width
        x = transpose(use, reshape(use, x, 0, 0, -1, depth), 0, 2, 1, 3)
    places = use.need(1)
    if len(shape_of(use, places)) == 1:  # the place of the first position
        steps = count_up(use, extent(use, x, 2))
        places = unsqueeze(use, use.add("add", use.add("cast", places, to="int64"), steps), 0)
    y = rotate(use, x, places, (2, 3), bool(use.attrs.get("interleaved")))
    if rank == 4:
        return (y,)
    return (reshape(use, transpose(use, y, 0, 2, 1, 3), 0, 0, size_of(use, use.need(0), 2)),)


def rotate(use: NodeUse, x: int, places: int, tables: tuple[int, int], interleaved: bool) -> int:
    """Turn pairs of x [B,N,S,D] by the angles at `places` [B,S].

    tables: the inputs that hold cos and sin [positions, R/2]; elements of x from R on stay.
    interleaved: a pair is two neighbours; else it is element i and element i + R/2
    """
    cos, sin = (unsqueeze(use, use.add("gather", use.need(i), places), 1) for i in tables)
    half, depth = size_of(use, cos, -1), size_of(use, x, -1)
    if interleaved:
        ends = ((0, 2 * half, 2), (1, 2 * half, 2))
    else:
        ends = ((0, half, 1), (half, 2 * half, 1))
    a, b = (_cut(use, x, *end) for end in ends)
    turned = [
        use.add("sub", use.add("mul", a, cos), use.add("mul", b, sin)),
        use.add("add", use.add("mul", b, cos), use.add("mul", a, sin)),
    ]
    if interleaved:
        pairs = use.add("concat", *(unsqueeze(use, part, 4) for part in turned), axis=4)
        turned = [reshape(use, pairs, 0, 0, 0, 2 * half)]
    if depth > 2 * half:
        turned.append(_cut(use, x, 2 * half, depth, 1))
    return turned[0] if len(turned) == 1 else use.add("concat", *turned, axis=3)


def _cut(use: NodeUse, x: int, start: int, stop: int, step: int) -> int:
    numbers = (use.constant([number], "int64") for number in (start, stop, -1, step))
    return use.add("slice", x, *numbers)


@dataclass(frozen=True)
class _Lengths:
    """The positions of a call.

    queries, keys, cached: scalars that hold S, the extent T of the output's keys, and the extent
        of the past's
    before: how many positions each sequence has before the new ones: a constant scalar, or [B]
    """

    queries: int
    keys: int
    cached: int
    before: int


def group_query_attention(use: NodeUse) -> Sequence[int]:
    """GroupQueryAttention(q, k?, v?, past k?, past v?, lengths, total, cos?, sin?, places?...)."""
    _refuse(use)
    heads, groups = use.attrs["num_heads"], use.attrs["kv_num_heads"]
    if heads % groups:
        raise use.error(f"{heads} heads do not split into {groups} groups")
    q, k, v = _parts(use, heads, groups)
    lengths = _lengths(use, k)
    if use.attrs.get("do_rotary"):
        places = use.input(9)
        if places is None:
            places = _places(use, lengths)
        turn = bool(use.attrs.get("rotary_interleaved"))
        q, k = (rotate(use, part, places, (7, 8), turn) for part in (q, k))
    if use.input(3) is not None:
        k, v = (_with_past(use, use.need(3 + i), new, lengths) for i, new in enumerate((k, v)))
    scores = _scores(use, lengths, heads)
    if groups == heads:
        y = attend(use, q, k, v, scores)
    else:
        depth, each = size_of(use, q, 3), heads // groups
        q = use.add("reshape", q, _group_shape(use, q, groups, each, depth))
        scores.masks = [_grouped(use, mask, groups, each) for mask in scores.masks]
        if scores.sink is not None:
            scores.sink = reshape(use, scores.sink, 1, groups, each, 1, 1)
        y = attend(use, q, unsqueeze(use, k, 2), unsqueeze(use, v, 2), scores)
    return (y, k, v)[: max(len(use.outputs), 1)]


def _refuse(use: NodeUse) -> None:
    for name, why in _REFUSED.items():
        if use.attrs.get(name):
            raise use.error(why)
    for position, why in _LEFT_OUT.items():
        if use.input(position) is not None:
            raise use.error(why)
    if len(use.outputs) > 3:
        raise use.error(_REFUSED["qk_output"])
    if (use.input(3) is None) != (use.input(4) is None):
        raise use.error("past_key and past_value come together or not at all")


def _parts(use: NodeUse, heads: int, groups: int) -> list[int]:
    """Return q [B,N,S,D], k and v [B,KV,S,D]; one input may hold the three side by side."""
    if use.input(1) is None:
        depth = size_of(use, use.need(0), 2) // (heads + 2 * groups)
        sizes = use.constant([depth * n for n in (heads, groups, groups)], "int64")
        parts = list(use.add_node("split", [use.need(0), sizes], {"axis": 2}, 3))
    else:
        parts = [use.need(i) for i in range(3)]
    made = [
        heads_first(use, part, n) for part, n in zip(parts, (heads, groups, groups), strict=True)
    ]
    for i, position in enumerate((14, 15)):
        if use.input(position) is not None:
            name = f"{'qk'[i]}_norm_epsilon"
            epsilon = use.attrs.get(name, use.attrs.get("qk_norm_epsilon", 1e-6))
            made[i] = use.add("rms_normalization", made[i], use.need(position), epsilon=epsilon)
    return made


def _lengths(use: NodeUse, k: int) -> _Lengths:
    queries = extent(use, k, 2)
    if use.input(3) is None:
        return _Lengths(queries, queries, use.constant(0, "int64"), use.constant(0, "int64"))
    cached = extent(use, use.need(3), 2)
    total = use.add("cast", reshape(use, use.need(6), 1), to="int64")
    total = use.add("squeeze", total)
    keys = use.add("max", cached, total)
    known = [use.scope.builder.values[i].data for i in (queries, cached, keys)]
    if shape_of(use, k)[0] == 1 and all(n is not None for n in known):
        s, p, t = (int(n) for n in known if n is not None)
        if t == s + p:
            return _Lengths(queries, keys, cached, cached)
    own = use.add("cast", reshape(use, use.need(5), -1), to="int64")
    own = use.add("add", own, use.constant(1, "int64"))
    before = use.add("max", use.add("sub", own, queries), use.constant(0, "int64"))
    return _Lengths(queries, keys, cached, before)


def _places(use: NodeUse, lengths: _Lengths) -> int:
    """Return the positions of the new elements: [1,S] or [B,S]."""
    steps = unsqueeze(use, count_up(use, lengths.queries), 0)
    return use.add("add", reshape(use, lengths.before, -1, 1), steps)


def _with_past(use: NodeUse, past: int, new: int, lengths: _Lengths) -> int:
    """Return [B,KV,T,D]: the past up to each sequence's length, its new positions, then zeros."""
    both = use.add("concat", past, new, axis=2)
    if lengths.before == lengths.cached:
        return both
    place = unsqueeze(use, count_up(use, lengths.keys), 0)
    before = unsqueeze(use, lengths.before, 1)
    shift = use.add("sub", lengths.cached, before)
    zeros = use.add("add", lengths.cached, lengths.queries)
    moved = use.add("min", use.add("add", place, shift), zeros)
    index = use.add("where", use.add("less", place, before), place, moved)
    sizes = [extent(use, new, axis) for axis in (0, 1, 3)]
    sizes.insert(2, lengths.keys)
    whole = use.add("concat", *(reshape(use, size, 1) for size in sizes), axis=0)
    index = use.add("expand", unsqueeze(use, index, 1, 3), whole)
    both = use.add("pad", both, use.constant((0, 0, 0, 0, 0, 0, 1, 0), "int64"))
    found = use.add("gather_elements", both, index, axis=2)
    groups, depth = size_of(use, new, 1), size_of(use, new, 3)
    return reshape(use, found, 0, groups, -1, depth)


def _scores(use: NodeUse, lengths: _Lengths, heads: int) -> Scores:
    """Return what happens to scores [B,N,S,T]."""
    masks = []
    window = int(use.attrs.get("local_window_size", -1))
    own = unsqueeze(use, _places(use, lengths), 2)
    place = unsqueeze(use, count_up(use, lengths.keys), 0, 1)
    kept = None
    if use.attrs.get("causal", 1):
        kept = use.add("less_or_equal", place, own)
    else:
        whole = use.add("add", reshape(use, lengths.before, -1, 1, 1), lengths.queries)
        kept = use.add("less", place, whole)
    if window > 0:
        near = use.add("greater", place, use.add("sub", own, use.constant(window, "int64")))
        kept = use.add("and", kept, near)
    masks.append(unsqueeze(use, choose(use, kept, LOWEST), 1))
    if use.input(10) is not None:
        masks.append(use.need(10))
    sink = use.input(11)
    if sink is not None:
        sink = reshape(use, sink, 1, heads, 1, 1)
    elif use.attrs.get("smooth_softmax", -1) == 1:
        sink = use.constant(np.zeros((1, heads, 1, 1), np.float32))
    return Scores(use.attrs.get("scale"), masks, float(use.attrs.get("softcap", 0.0)), sink)


def _group_shape(use: NodeUse, q: int, groups: int, each: int, depth: int) -> int:
    batch, queries = extent(use, q, 0), extent(use, q, 2)
    sizes = (batch, use.constant(groups), use.constant(each), queries, use.constant(depth))
    return use.add(
        "concat", *(reshape(use, use.add("cast", n, to="int64"), 1) for n in sizes), axis=0
    )


def _grouped(use: NodeUse, mask: int, groups: int, each: int) -> int:
    """Return a mask [B,N or 1,S,T] for scores [B,KV,G,S,T]."""
    if shape_of(use, mask)[1] == 1:
        return unsqueeze(use, mask, 1)
    parts = [extent(use, mask, axis) for axis in (0, 2, 3)]
    sizes = (parts[0], use.constant(groups), use.constant(each), *parts[1:])
    whole = [reshape(use, use.add("cast", n, to="int64"), 1) for n in sizes]
    return use.add("reshape", mask, use.add("concat", *whole, axis=0))
