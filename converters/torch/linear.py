"""Rules of ATen's products: linear, matmul, convolution, attention, einsum."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trireme.converters.torch.use import NumberRef, Use, spread


def linear(use: Use) -> int:
    """linear: x [..,I] by weight [O,I] and bias [O]."""
    x, w, bias = use["input"], use["weight"], use["bias"]
    if use.rank(x) > 1 and use.rank(w) == 2 and use.data(w) is not None:
        return use.add("fully_connected", x, w, bias)
    turned = use.transpose(w, 1, 0) if use.rank(w) == 2 else w
    made = use.add("matmul", x, turned)
    return made if bias is None else use.add("add", made, bias)


def product(first: str = "self", second: str = "mat2") -> Any:
    """Return the rule of a matrix product of two arguments."""
    return lambda use: use.add("matmul", use[first], use[second])


def added_product(first: str, second: str) -> Any:
    """Return the rule of beta self + alpha (first @ second)."""

    def rule(use: Use) -> int:
        summand, a, b = use["self"], use[first], use[second]
        alpha, beta = (use.args.get(name, 1) for name in ("alpha", "beta"))
        if alpha == beta == 1 and use.rank(a) == use.rank(b) == 2 and use.data(b) is not None:
            return use.add("gemm", a, b, summand)
        made = use.add("matmul", a, b)
        if use.rank(made) > len(use.shape):  # addbmm adds the products of a batch
            made = use.add("reduce_sum", made, use.ints(0), keepdims=0)
        if alpha != 1:
            made = use.add("mul", made, use.operand(use.args["alpha"], use.dtype))
        if beta != 1:
            summand = use.add("mul", summand, use.operand(use.args["beta"], use.dtype))
        return made if beta == 0 else use.add("add", made, summand)

    return rule


def einsum(use: Use) -> int:
    """einsum with the equation as it is; axes of an ellipsis left out of the result are summed."""
    operands = [one.id for one in use["tensors"]]
    equation = use["equation"].replace(" ", "")
    before, arrow, after = equation.partition("->")
    if not arrow or "..." not in before or "..." in after:
        return use.add("einsum", *operands, equation=equation)
    terms = zip(before.split(","), operands, strict=True)
    extra = max(use.rank(one) - len(term.replace("...", "")) for term, one in terms)
    made = use.add("einsum", *operands, equation=f"{before}->...{after}")
    return use.add("reduce_sum", made, use.ints(*range(extra)), keepdims=0) if extra else made


def convolution(use: Use) -> int:
    """convolution and its transpose, of any rank, channels after the batch."""
    x, w, bias = use["input"], use["weight"], use["bias"]
    spatial = use.rank(w) - 2
    attrs: dict[str, Any] = {
        "strides": spread(use["stride"], spatial),
        "dilations": spread(use["dilation"], spatial),
        "pads": spread(use["padding"], spatial) * 2,
        "groups": use["groups"],
        "layout": "NCHW",
    }
    if not use["transposed"]:
        return use.add("conv", x, w, bias, **attrs)
    extra = spread(use["output_padding"], spatial)
    return use.add("conv_transpose", x, w, bias, output_padding=extra, **attrs)


def attention(use: Use) -> int:
    """scaled_dot_product_attention, written out: a row that is masked as a whole gives 0.

    Shapes: query [..,H,L,E], key [..,K,S,E], value [..,K,S,V] -> y [..,H,L,V]; K < H shares keys
    """
    q, k, v, mask = use["query"], use["key"], use["value"], use["attn_mask"]
    if use["dropout_p"]:
        raise use.error("attention with dropout is not supported")
    shared = bool(use["enable_gqa"]) and use.shape_of("query")[-3] != use.shape_of("key")[-3]
    if shared:
        q, k, v, mask = _grouped(use, q, k, v, mask)
    rank = use.rank(k)
    flipped = use.transpose(k, *range(rank - 2), rank - 1, rank - 2)
    scale = use.args["scale"]
    if scale is None:
        scale = 1 / math.sqrt(use.shape_of("query")[-1])
    scores = use.add("mul", use.add("matmul", q, flipped), use.operand(scale, use.dtype))
    if use["is_causal"]:
        mask = _causal(use)
    empty = None
    if mask is not None and use.type(mask).dtype == "bool":
        mask, empty = _additive(use, mask)
    if mask is not None:
        scores = use.add("add", scores, mask)
    made = use.add("matmul", use.add("softmax", scores, axis=-1), v)
    if empty is not None:
        made = use.add("where", empty, use.constant(0, use.dtype), made)
    if shared:
        made = _ungrouped(use, made)
    return made


def _grouped(
    use: Use, q: int, k: int, v: int, mask: int | None
) -> tuple[int, int, int, int | None]:
    """Give queries an axis of the heads that share keys, and keys an axis of 1."""
    heads, keys = use.shape_of("query")[-3], use.shape_of("key")[-3]
    if not isinstance(heads, int) or not isinstance(keys, int):
        raise use.error("attention that shares keys between an open number of heads")
    if use.rank(q) != 4:
        raise use.error(f"attention that shares keys has rank {use.rank(q)}, expected 4")
    q = use.reshape(q, [0, keys, heads // keys, -1, int(use.shape_of("query")[-1])])
    axes = use.ints(2)
    k, v = (use.add("unsqueeze", one, axes) for one in (k, v))
    if mask is not None and use.rank(mask) > 2:
        rank = use.rank(mask)
        if use.type(mask).shape[rank - 3] != 1:
            raise use.error("attention that shares keys has a mask for each head")
        mask = use.add("unsqueeze", mask, use.ints(rank - 2))
    return q, k, v, mask


def _ungrouped(use: Use, made: int) -> int:
    *_, heads, _, width = use.shape
    return use.reshape(made, [0, int(heads), -1, int(width)])


def _causal(use: Use) -> int:
    """Return the mask of positions that a query may read: those up to its own."""
    rows, columns = use.shape_of("query")[-2], use.shape_of("key")[-2]
    if isinstance(rows, int) and isinstance(columns, int):
        return use.constant(np.tri(rows, columns, dtype=np.bool_))
    counts = []
    for name in ("query", "key"):
        rank = use.rank(use[name])
        length = use.add("shape", use[name], start=rank - 2, end=rank - 1)
        limits = (use.constant(0, "int64"), use.scalar(NumberRef(length)), use.constant(1, "int64"))
        counts.append(use.add("range", *limits))
    return use.add("less_or_equal", counts[1], use.add("unsqueeze", counts[0], use.ints(1)))


def _additive(use: Use, mask: int) -> tuple[int, int | None]:
    """Return a mask to add, and the rows that it masks as a whole, None when there are none."""
    least = float(np.finfo(np.float32).min) if use.dtype != "float16" else -65504.0
    data = use.data(mask)
    if data is not None and data.any(-1).all():
        return use.constant(np.where(data, 0, -np.inf), use.dtype), None
    zero, low = use.constant(0, use.dtype), use.constant(least, use.dtype)
    any_left = use.add("reduce_any", mask, use.ints(-1), keepdims=1)
    return use.add("where", mask, zero, low), use.add("not", any_left)


def distances(use: Use) -> int:
    """cdist of any order but 0: the norm of differences."""
    order = float(use["p"])
    if not order:
        raise use.error("distances of order 0 are not supported")
    a = use.add("unsqueeze", use["x1"], use.ints(-2))
    b = use.add("unsqueeze", use["x2"], use.ints(-3))
    apart, last = use.add("sub", a, b), use.ints(-1)
    if order in (1.0, 2.0):
        return use.add(f"reduce_l{int(order)}", apart, last, keepdims=0)
    size = use.add("abs", apart)
    if math.isinf(order):
        return use.add("reduce_max", size, last, keepdims=0)
    powers = use.add("pow", size, use.constant(order, use.dtype))
    total = use.add("reduce_sum", powers, last, keepdims=0)
    return use.add("pow", total, use.constant(1 / order, use.dtype))


def trilinear(use: Use) -> int:
    """_trilinear: the sum over some axes of the product of three tensors with axes put in."""
    value = None
    for name, axes in (("i1", "expand1"), ("i2", "expand2"), ("i3", "expand3")):
        part = use[name]
        for axis in sorted(int(one) for one in use.args[axes]):
            part = use.add("unsqueeze", part, use.ints(axis))
        value = part if value is None else use.add("mul", value, part)
    return use.add("reduce_sum", value, use.ints(*map(int, use.args["sumdim"])), keepdims=0)


def determinant(use: Use) -> tuple[int, None, None]:
    """_linalg_det, of which only the first result is made."""
    if use.reads(1) or use.reads(2):
        raise use.error("the LU factors of a matrix are not supported")
    return use.add("det", use["A"]), None, None


LINEAR: dict[str, Any] = {
    "_cdist_forward": distances,
    "_linalg_det": determinant,
    "_trilinear": trilinear,
    "addbmm": added_product("batch1", "batch2"),
    "addmm": added_product("mat1", "mat2"),
    "addmv": added_product("mat", "vec"),
    "bmm": product(),
    "convolution": convolution,
    "einsum": einsum,
    "linear": linear,
    "matmul": product("self", "other"),
    "mm": product(),
    "scaled_dot_product_attention": attention,
}
