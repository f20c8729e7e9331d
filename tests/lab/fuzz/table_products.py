"""Rows of products and normalisations: MatMul, Gemm, Einsum, LayerNormalization, recurrences."""

from __future__ import annotations

import math

import numpy as np

from lab.fuzz.grower import Grower, Refused
from lab.fuzz.rows import REAL, Drawn, Row, drawn, filled, maybe_axis, row, uniform


def matmul(g: Grower) -> None:
    """MatMul of every mix of ranks, batches that broadcast included."""
    x = g.pick(g.choose([("float32",), REAL, ("int32", "int64")]), (1, 2, 3, 4))
    inner, columns = x.shape[-1], int(g.rng.integers(1, 7))
    fit = [
        t
        for t in g.values
        if t.dtype == x.dtype and t.rank > 1 and t.shape[-2] == inner and t.array.size
    ]
    if fit and g.chance(0.3):
        w = g.choose(fit)
    else:
        lead = [d if g.chance(0.7) else 1 for d in x.shape[:-2]] if g.chance(0.3) else []
        dims = (inner,) if g.chance(0.1) else (*lead, inner, columns)
        w = g.operand(scaled(g, x.dtype, dims, inner))
    pair = [x, w] if g.chance(0.9) or x.rank < 2 or w.rank < 2 else [w, x]
    g.node("MatMul", pair)


def scaled(g: Grower, dtype: str, dims: tuple[int, ...], inner: int) -> np.ndarray:
    """Weights whose products with values about 1 are about 1."""
    data = g.random(dtype, dims)
    if data.dtype.kind in "iub":
        return data
    return (data / math.sqrt(max(inner, 1))).astype(data.dtype)


def gemm(g: Grower) -> None:
    """Gemm with its transposes, factors and a bias that broadcasts, or none."""
    x = g.pick(("float32", "float32", "float64", "float16"), (2,))
    ta, tb = (int(g.chance(0.4)) for _ in "ab")
    rows, inner = x.shape[::-1] if ta else x.shape
    columns = int(g.rng.integers(1, 7))
    w = g.operand(scaled(g, x.dtype, (columns, inner) if tb else (inner, columns), inner))
    dims = g.choose([(), (1,), (columns,), (1, columns), (rows, 1), (rows, columns), (1, 1)])
    c = g.operand(g.random(x.dtype, dims)) if g.opset < 11 or g.chance(0.7) else None
    attrs = {"transA": ta or None, "transB": tb or None}
    attrs |= {name: g.choose([None, None, 0.5, 2.0]) for name in ("alpha", "beta")}
    g.node("Gemm", [x, w, c], attrs)


EQUATIONS = (
    "ij,jk->ik",
    "bij,bjk->bik",
    "ij->ji",
    "ij,ij->",
    "bhid,bhjd->bhij",
    "...ij->...i",
    "i,j->ij",
)


def einsum(g: Grower) -> None:
    """Einsum of equations that models hold."""
    equation = g.choose(EQUATIONS)
    left, *rest = equation.split("->")[0].split(",")
    letters = left.replace("...", "")
    ranks = (len(letters),) if "..." not in left else (3,)
    x = g.pick(("float32",), ranks, lambda t: t.array.size > 0)  # ONNX Runtime dies of none
    sizes = dict(zip(letters, x.shape[-len(letters) :], strict=True))
    for letter in "".join(rest):
        sizes.setdefault(letter, int(g.rng.integers(1, 5)))
    others = [g.operand(g.random(x.dtype, [sizes[letter] for letter in term])) for term in rest]
    g.node("Einsum", [x, *others], {"equation": equation})


def layer_normalization(g: Grower) -> None:
    """LayerNormalization, its mean and deviation too at times."""
    x = g.pick(("float32", "float32", "float64"), (2, 3, 4))
    at = int(g.rng.integers(-x.rank, x.rank))
    dims = x.shape[at:]
    if math.prod(dims) < 2:
        raise Refused("one element has no deviation")
    scale = g.operand(g.random(x.dtype, dims, 0.5, 2))
    bias = g.operand(g.random(x.dtype, dims)) if g.chance(0.6) else None
    attrs = {"axis": at, "epsilon": g.choose([None, 1e-3])}
    g.node("LayerNormalization", [x, scale, bias], attrs, g.choose([1, 1, 1, 3]))


def channels(low: float, high: float):
    """One number a channel."""
    return drawn(lambda d: d.x.shape[1:2], low, high)


def spread(d: Drawn):
    """An image whose channels all vary: what is divided by the deviation is not noise."""
    return d.g.pick(
        ("float32",),
        (3, 4),
        lambda t: t.array.size and t.array.std(axis=tuple(range(2, t.rank))).min() > 0.05,
    )


def grouped(d: Drawn) -> int:
    """A divisor of the channels."""
    return int(d.g.choose([k for k in range(1, d.x.shape[1] + 1) if d.x.shape[1] % k == 0] or [1]))


def recurrent(op: str, gates: int, outputs: int):
    """RNN, GRU or LSTM with the optional inputs given or absent."""

    def build(g: Grower) -> None:
        x = g.pick(("float32",), (3,), when=lambda t: t.array.size > 0)
        steps, batch, width = x.shape
        hidden, way = int(g.rng.integers(1, 4)), g.choose(["forward", "reverse", "bidirectional"])
        ways = 2 if way == "bidirectional" else 1
        rows = gates * hidden
        w = g.operand(g.random("float32", (ways, rows, width), -0.5, 0.5), 0.9)
        r = g.operand(g.random("float32", (ways, rows, hidden), -0.5, 0.5), 0.9)
        b = g.operand(g.random("float32", (ways, 2 * rows))) if g.chance(0.5) else None
        lengths = None
        if g.chance(0.2):
            lengths = g.operand(g.rng.integers(1, steps + 1, batch).astype(np.int32))
        states = [
            g.operand(g.random("float32", (ways, batch, hidden))) if g.chance(0.4) else None
            for _ in range(outputs - 1)
        ]
        attrs = {"hidden_size": hidden, "direction": way}
        if op == "GRU":
            attrs["linear_before_reset"] = int(g.chance(0.5))
        g.node(op, [x, w, r, b, lengths, *states], attrs, int(g.rng.integers(1, outputs + 1)))

    return build


ROWS: tuple[Row, ...] = (
    Row("MatMul", matmul, 3),
    Row("Gemm", gemm, 2),
    Row("Einsum", einsum, 0.5),
    Row("LayerNormalization", layer_normalization),
    row(
        "BatchNormalization",
        filled(("float32", "float32", "float64"), (2, 3, 4, 5)),
        channels(0.5, 2),
        channels(-1, 1),
        channels(-1, 1),
        channels(0.5, 2),
        attrs={"epsilon": (None, 1e-3)},
        weight=2,
    ),
    row(
        "InstanceNormalization",
        spread,
        channels(0.5, 2),
        channels(-1, 1),
        attrs={"epsilon": (None, 1e-2)},
    ),
    row(
        "GroupNormalization",
        spread,
        channels(0.5, 2),
        channels(-1, 1),
        attrs={"num_groups": grouped},
        weight=0.5,
    ),
    row("LpNormalization", filled(), attrs={"axis": maybe_axis, "p": (1, 2, None)}, weight=0.5),
    row("MeanVarianceNormalization", filled(("float32",), (4,)), weight=0.4),
    row(
        "LRN",
        filled(("float32",), (3, 4)),
        attrs={
            "size": (1, 3, 5),
            "alpha": uniform(1e-4, 0.1),
            "beta": uniform(0.5, 1),
            "bias": uniform(0.5, 2),
        },
        weight=0.5,
    ),
    Row("RNN", recurrent("RNN", 1, 2), 0.3),
    Row("GRU", recurrent("GRU", 3, 2), 0.3),
    Row("LSTM", recurrent("LSTM", 4, 3), 0.3),
)
