"""Attention, MultiHeadAttention and QAttention of ONNX Runtime, as products, masks and a softmax.

A mask becomes numbers that are added to the scores, as ONNX Runtime adds them: `mask_filter_value`
for padding, the lowest float for later positions. So a row that is all padding is no NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field

import numpy as np

from trireme.converters.onnx.quantized import real
from trireme.converters.onnx.scope import GIVE_SIZES, NodeUse
from trireme.ir.graph import Dim
from trireme.support.records import dataclass

LOWEST = float(np.finfo(np.float32).min)
_SHARED = "past and present in one buffer are not supported; use the form with a past that grows"


@dataclass
class Scores:
    """How scores become probabilities.

    scale: the number that multiplies the scores; None for 1 / sqrt(depth)
    masks: values to add to them, each of a shape that broadcasts to the scores'
    softcap: the bound c of c tanh(score / c), 0 for none
    sink: scores of one more key, which takes probability and gives nothing; None for none
    """

    scale: float | None = None
    masks: list[int] = field(default_factory=list)
    softcap: float = 0.0
    sink: int | None = None


def shape_of(use: NodeUse, value: int) -> tuple[Dim, ...]:
    """Return the shape of a value."""
    return use.scope.builder.type(value).shape


def size_of(use: NodeUse, value: int, axis: int) -> int:
    """Return an extent that must be known."""
    dim = shape_of(use, value)[axis]
    if not isinstance(dim, int):
        raise use.error(
            f"dimension {axis} of the input is {dim}, expected a known size", GIVE_SIZES
        )
    return dim


def extent(use: NodeUse, value: int, axis: int) -> int:
    """Return the value that holds an extent: a constant where it is known."""
    sizes = use.add("shape", value)
    return use.add("gather", sizes, use.constant(axis, "int64"))


def count_up(use: NodeUse, stop: int) -> int:
    """Return the int64 values 0, 1, ... below the scalar `stop`."""
    known = use.scope.builder.values[stop].data
    if known is not None:
        return use.constant(np.arange(int(known)), "int64")
    return use.add("range", use.constant(0, "int64"), stop, use.constant(1, "int64"))


def unsqueeze(use: NodeUse, value: int, *axes: int) -> int:
    """Return a value with axes of 1 put in."""
    return use.add("unsqueeze", value, use.constant(axes, "int64"))


def reshape(use: NodeUse, value: int, *dims: int) -> int:
    """Return a value reshaped; 0 keeps a dimension and -1 takes the rest."""
    return use.add("reshape", value, use.constant(dims, "int64"))


def transpose(use: NodeUse, value: int, *perm: int) -> int:
    """Return a value transposed."""
    return use.add("transpose", value, perm=perm)


def heads_first(use: NodeUse, value: int, heads: int) -> int:
    """Return [B,S,heads x D] as [B,heads,S,D]."""
    width = size_of(use, value, 2)
    if width % heads:
        raise use.error(f"{width} columns do not split into {heads} heads")
    return transpose(use, reshape(use, value, 0, 0, heads, width // heads), 0, 2, 1, 3)


def attend(use: NodeUse, q: int, k: int, v: int, scores: Scores) -> int:
    """Return softmax(scale q k^T + masks) v as [B,S,heads x D].

    Shapes: q [B,N,S,D], k [B,N,T,D], v [B,N,T,E]; or with heads in groups, q [B,N,G,S,D],
        k [B,N,1,T,D], v [B,N,1,T,E]
    """
    rank = len(shape_of(use, q))
    depth = size_of(use, q, -1)
    scale = 1 / math.sqrt(depth) if not scores.scale else scores.scale
    turned = transpose(use, k, *range(rank - 2), rank - 1, rank - 2)
    y = use.add("matmul", q, turned)
    dtype = use.scope.builder.type(y).dtype
    y = use.add("mul", y, use.constant(scale, dtype))
    if scores.softcap:
        cap = use.constant(scores.softcap, dtype)
        y = use.add("mul", use.add("tanh", use.add("div", y, cap)), cap)
    for mask in scores.masks:
        y = use.add("add", y, mask)
    y = use.add("matmul", _probabilities(use, y, scores.sink), v)
    width = math.prod(size_of(use, y, axis) for axis in (-1, *range(1, rank - 2)))
    order = (0, rank - 2, *range(1, rank - 2), rank - 1)
    return reshape(use, transpose(use, y, *order), 0, 0, width)


def _probabilities(use: NodeUse, scores: int, sink: int | None) -> int:
    if sink is None:
        return use.add("softmax", scores, axis=-1)
    one = use.add("reduce_max", scores, use.constant([-1], "int64"), keepdims=1)
    column = use.add("expand", sink, use.add("shape", one))
    y = use.add("softmax", use.add("concat", scores, column, axis=-1), axis=-1)
    ends = (use.constant([number], "int64") for number in (0, -1, -1))
    return use.add("slice", y, *ends)


def choose(use: NodeUse, kept: int, otherwise: float) -> int:
    """Return 0 where a bool is true and a number elsewhere."""
    zero, number = (use.constant(value, "float32") for value in (0.0, otherwise))
    return use.add("where", kept, zero, number)


def causal_mask(use: NodeUse, queries: int, keys: int) -> int:
    """Return the mask [S,T] of the lowest float where a key comes after the query.

    queries, keys: scalars that hold S and T; the last query is at the last key
    """
    past = use.add("sub", keys, queries)
    places = unsqueeze(use, use.add("add", count_up(use, queries), past), 1)
    after = unsqueeze(use, count_up(use, keys), 0)
    return choose(use, use.add("less_or_equal", after, places), LOWEST)


def padding_mask(use: NodeUse, position: int, batch: Dim, keys: int, number: float) -> int:
    """Return the mask that an input stands for, as [B,1,1,T] or [B,1,S,T].

    The input is [B] lengths, [2 B] ends and then starts, or [B,T] or [B,S,T] of 0 and 1.
    """
    mask = use.need(position)
    dims = shape_of(use, mask)
    if len(dims) in (2, 3):
        kept = use.add("greater", mask, use.constant(0, use.type(position).dtype))
        return choose(use, unsqueeze(use, kept, *range(1, 4 - len(dims) + 1)), number)
    if len(dims) != 1:
        raise use.error(f"a mask of shape {list(dims)} is not supported")
    both = isinstance(batch, int) and dims[0] == 2 * batch
    if not both and isinstance(batch, int) and dims[0] != batch:
        raise use.error(f"a mask of shape {list(dims)} for batch {batch} is not supported")
    places = unsqueeze(use, count_up(use, keys), 0)
    mask = use.add("cast", mask, to="int64")
    if not both:
        kept = use.add("less", places, unsqueeze(use, mask, 1))
        return choose(use, unsqueeze(use, kept, 1, 2), number)
    ends, starts = (reshape(use, half, -1, 1) for half in _halves(use, mask, int(dims[0])))
    inside = (use.add("less", places, ends), use.add("greater_or_equal", places, starts))
    return choose(use, unsqueeze(use, use.add("and", *inside), 1, 2), number)


def _halves(use: NodeUse, value: int, length: int) -> tuple[int, int]:
    at = (range(length // 2), range(length // 2, length))
    first, second = (use.add("gather", value, use.constant(rows, "int64")) for rows in at)
    return first, second


def masks_of(use: NodeUse, mask: int, bias: int, q: int, k: int) -> list[int]:
    """Return the masks of a node: its mask and additive bias by position, and the causal one.

    q, k: [B,N,S,D] and [B,N,T,D]
    """
    found = []
    keys = extent(use, k, 2)
    if use.input(mask) is not None:
        number = float(use.attrs.get("mask_filter_value", -10000.0))
        found.append(padding_mask(use, mask, shape_of(use, q)[0], keys, number))
    if use.attrs.get("unidirectional"):
        found.append(causal_mask(use, extent(use, q, 2), keys))
    if use.input(bias) is not None:
        found.append(use.need(bias))
    return found


def _blocks(use: NodeUse, value: int, sizes: Sequence[int]) -> list[int]:
    """Cut the last axis of a value, a constant into constants."""
    data, axis = use.scope.builder.values[value].data, len(shape_of(use, value)) - 1
    if data is not None:
        cuts = np.split(data, np.cumsum(sizes)[:-1], axis=axis)
        return [use.constant(np.ascontiguousarray(cut)) for cut in cuts]
    counts = use.constant(sizes, "int64")
    return list(use.add_node("split", [value, counts], {"axis": axis}, len(sizes)))


def _sizes(use: NodeUse, columns: int) -> list[int]:
    given = use.attrs.get("qkv_hidden_sizes") or (columns // 3,) * 3
    if sum(given) != columns or any(size % use.attrs["num_heads"] for size in given):
        raise use.error(
            f"{columns} columns do not split into q, k and v of {use.attrs['num_heads']} heads"
        )
    return [int(size) for size in given]


def attention(use: NodeUse) -> Sequence[int]:
    """Attention(x, w, bias?, mask?, past?, attention bias?), w being the blocks q | k | v."""
    if use.attrs.get("do_rotary"):
        raise use.error("do_rotary is not supported; put RotaryEmbedding before MultiHeadAttention")
    if use.attrs.get("past_present_share_buffer") or use.input(6) is not None:
        raise use.error(_SHARED)
    return _self_attention(use, use.need(0), use.need(1), (3, 4, 5))


def qattention(use: NodeUse) -> Sequence[int]:
    """QAttention(x, w, bias, x scale, w scale, mask?, x zero?, w zero?, past?)."""
    use.inputs = [*use.inputs, *[None] * (10 - len(use.inputs))]
    x, w, bias, x_scale, w_scale, mask, x_zero, w_zero, past, _ = use.inputs
    use.inputs = [x, x_scale, x_zero, w, w_scale, w_zero, bias, mask, past, None]
    x, w = real(use, 0), real(use, 3, -1)
    use.inputs[2] = bias
    return _self_attention(use, x, w, (7, 8, 9))


def _self_attention(use: NodeUse, x: int, w: int, places: tuple[int, int, int]) -> Sequence[int]:
    """Attention of x to itself; `places` are those of mask, past and attention bias."""
    heads, (mask, past, bias) = use.attrs["num_heads"], places
    sizes = _sizes(use, size_of(use, w, 1))
    parts = [use.add("matmul", x, block) for block in _blocks(use, w, sizes)]
    if use.input(2) is not None:
        rows = _blocks(use, use.need(2), sizes)
        parts = [use.add("add", part, row) for part, row in zip(parts, rows, strict=True)]
    q, k, v = (heads_first(use, part, heads) for part in parts)
    if use.input(past) is not None:
        before = [use.add("gather", use.need(past), use.constant(i, "int64")) for i in (0, 1)]
        k, v = (
            use.add("concat", old, new, axis=2) for old, new in zip(before, (k, v), strict=True)
        )
    scores = Scores(use.attrs.get("scale"), masks_of(use, mask, bias, q, k))
    y = attend(use, q, k, v, scores)
    if len(use.outputs) < 2:
        return (y,)
    return y, use.add("concat", unsqueeze(use, k, 0), unsqueeze(use, v, 0), axis=0)


def multi_head_attention(use: NodeUse) -> Sequence[int]:
    """MultiHeadAttention(q, k?, v?, bias?, key mask?, attention bias?, past k?, past v?)."""
    if use.input(8) is not None or use.input(9) is not None:
        raise use.error(_SHARED)
    if len(use.outputs) > 3:
        raise use.error("the output of scores (qk) is not supported")
    q, k, v = _with_bias(use, _packed(use))
    if use.input(6) is not None:
        k = use.add("concat", use.need(6), k, axis=2)
        v = use.add("concat", use.need(7), v, axis=2)
    y = attend(use, q, k, v, Scores(use.attrs.get("scale"), masks_of(use, 4, 5, q, k)))
    return (y, k, v)[: max(len(use.outputs), 1)]


def _packed(use: NodeUse) -> list[int]:
    """Return q, k and v as [B,S,N x D], or [B,N,T,D] where they are given so."""
    q, k, v = use.need(0), use.input(1), use.input(2)
    if k is None:
        return _unpack(use, q, 3)
    if v is None:
        return [q, *_unpack(use, k, 2)]
    return [q, k, v]


def _unpack(use: NodeUse, value: int, parts: int) -> list[int]:
    """Cut [B,S,N,parts,D] into parts [B,S,N x D]."""
    if len(shape_of(use, value)) != 5:
        raise use.error(f"packed input of shape {list(shape_of(use, value))}, expected 5 axes")
    width = size_of(use, value, 2) * size_of(use, value, 4)
    cut = (use.add("gather", value, use.constant(i, "int64"), axis=3) for i in range(parts))
    return [reshape(use, part, 0, 0, width) for part in cut]


def _with_bias(use: NodeUse, parts: list[int]) -> list[int]:
    """Return q, k and v as [B,N,S,D], with their parts of the bias added."""
    heads = use.attrs["num_heads"]
    if use.input(3) is not None:
        width = size_of(use, parts[0], -1)
        rest = size_of(use, use.need(3), 0) - 2 * width
        for i, row in enumerate(_blocks(use, use.need(3), (width, width, rest))):
            if len(shape_of(use, parts[i])) == 3:
                parts[i] = use.add("add", parts[i], row)
    return [
        part if len(shape_of(use, part)) == 4 else heads_first(use, part, heads) for part in parts
    ]
