"""Matrix products: matmul, gemm, fully_connected; sums are in double precision."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from trireme.ir.dtype_rules import BIAS, WEIGHT, Like
from trireme.ir.graph import Dim, Value
from trireme.ir.op import Attr, Call, Sample, define
from trireme.ops import axis_maps, quantized
from trireme.ops.activation import ACTIVATION, ACTIVATIONS, activate
from trireme.ops.quantized_samples import with_quantized
from trireme.ops.shapes import (
    Shape,
    Types,
    broadcast,
    dtype_of_sums,
    expect,
    expect_rank,
    expect_spread,
    one,
)
from trireme.support.dtypes import REALS, Array
from trireme.support.errors import ShapeError


def matmul_shape(a: Shape, b: Shape) -> Shape:
    """Return the shape of numpy's a @ b; raise ShapeError when they do not fit."""
    if not a or not b:
        raise ShapeError("a matrix product of a scalar; expected rank 1 or more")
    rows: Shape = a[-2:-1]
    columns: Shape = b[-1:] if len(b) > 1 else ()
    inner: Dim = b[-2] if len(b) > 1 else b[0]
    expect("b's row count", inner, a[-1], "a's columns")
    return (*broadcast(a[:-2], b[:-2]), *rows, *columns)


def double_product(a: Array, b: Array) -> Array:
    """Return a @ b summed in double precision, which is exact for 8- and 16-bit integers."""
    return np.asarray(np.matmul(a.astype(np.float64), b.astype(np.float64)))


def _matmul(a: Array, b: Array) -> Array:
    if a.dtype.kind in "iu" and a.dtype.itemsize > 2:
        return np.asarray(np.matmul(a, b))
    return double_product(a, b).astype(a.dtype)


def _infer_matmul(a: Value, b: Value) -> Types:
    return one(matmul_shape(a.shape, b.shape), a.dtype)


def _matmul_flops(call: Call) -> int:
    return 2 * call.outputs[0].elements * call.type(0).dims[-1]


def _draw(rng: np.random.Generator, *shapes: tuple[int, ...]) -> tuple[Array, ...]:
    return tuple(rng.standard_normal(shape).astype(np.float32) for shape in shapes)


def _matmul_samples(rng: np.random.Generator) -> Iterable[Sample]:
    fixed = frozenset({1})
    yield Sample(_draw(rng, (1, 64), (64, 10)), constants=fixed, note="one row")
    yield Sample(_draw(rng, (13, 37), (37, 19)), constants=fixed, note="odd sizes")
    yield Sample(_draw(rng, (13, 37), (37, 19)), note="neither is constant")
    yield Sample(_draw(rng, (2, 3, 5, 7), (2, 3, 7, 4)), note="batches")
    yield Sample(_draw(rng, (2, 1, 5, 7), (3, 7, 1)), note="batches broadcast, one column")
    yield Sample(_draw(rng, (3, 5, 7), (7, 4)), constants=fixed, note="one b for all")
    yield Sample(_draw(rng, (7,), (7, 4)), note="vector times matrix")
    yield Sample(_draw(rng, (2, 3, 7), (7,)), note="matrices times vector")
    yield Sample(_draw(rng, (7,), (7,)), note="two vectors")
    a, b = _draw(rng, (5, 6), (6, 3))
    a[0, 0], a[2, 1], a[4, 5] = np.nan, np.inf, -np.inf
    yield Sample((a, b), note="NaN, infinities")


define(
    "matmul",
    "a b",
    "y = a @ b as numpy does it. Shapes: a [..,M,K], b [..,K,N] -> y [..,M,N], leading axes "
    "broadcast. Source: ONNX MatMul-13",
    _infer_matmul,
    _matmul,
    flops=_matmul_flops,
    family="matmul",
    rtol=1e-5,
    samples=with_quantized("matmul", _matmul_samples),
    quantized=quantized.matmul,
    integer_form="linear",
    axis_map=axis_maps.product,
    dtypes=(REALS, Like("a")),
)


def _infer_gemm(
    a: Value,
    b: Value,
    c: Value | None = None,
    *,
    alpha: float,
    beta: float,
    trans_a: int,
    trans_b: int,
) -> Types:
    expect_rank("a", a, 2)
    expect_rank("b", b, 2)
    rows, inner = reversed(a.shape) if trans_a else a.shape
    inner_b, columns = reversed(b.shape) if trans_b else b.shape
    expect("b's inner size", inner_b, inner, "a's")
    if c is not None:
        expect_spread("c", c, (rows, columns))
    return one((rows, columns), a.dtype)


def _gemm(
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    alpha: float,
    beta: float,
    trans_a: int,
    trans_b: int,
) -> Array:
    product = alpha * double_product(a.T if trans_a else a, b.T if trans_b else b)
    if c is not None:
        product = product + beta * c.astype(np.float64)
    return product.astype(a.dtype)


def _gemm_flops(call: Call) -> int:
    inner = call.type(0).dims[0 if call.attrs["trans_a"] else 1]
    return 2 * call.outputs[0].elements * inner


def _gemm_samples(rng: np.random.Generator) -> Iterable[Sample]:
    fixed = frozenset({1, 2})
    yield Sample(_draw(rng, (5, 7), (7, 19), (19,)), constants=fixed, note="plain")
    turned = {"trans_a": 1, "trans_b": 1, "alpha": 0.5, "beta": 2.0}
    yield Sample(_draw(rng, (7, 5), (19, 7), (5, 1)), turned, note="all turned")
    yield Sample(_draw(rng, (5, 7), (19, 7)), {"trans_b": 1}, fixed, note="no c")
    yield Sample(_draw(rng, (5, 7), (7, 3), ()), {"beta": 0.5}, note="scalar c")


define(
    "gemm",
    "a b c?",
    "y = alpha * a' @ b' + beta * c, where a' and b' are transposed when asked. Shapes: "
    "a' [M,K], b' [K,N], c broadcast to y [M,N]. Source: ONNX Gemm-13",
    _infer_gemm,
    _gemm,
    flops=_gemm_flops,
    samples=_gemm_samples,
    axis_map=axis_maps.gemm_product,
    family="matmul",
    rtol=1e-5,
    attrs={
        "alpha": Attr("float", 1.0),
        "beta": Attr("float", 1.0),
        "trans_a": Attr("int", 0),
        "trans_b": Attr("int", 0),
    },
    dtypes=(REALS, Like("a"), Like("a")),
)


def _infer_fully_connected(
    x: Value, w: Value, bias: Value | None = None, residual: Value | None = None, *, activation: str
) -> Types:
    expect_rank("w", w, 2)
    if not x.shape:
        raise ShapeError("x is a scalar, expected at least one dimension")
    expect("the input's last dimension", x.shape[-1], w.shape[1], "columns of the weight [O,I]")
    shape = (*x.shape[:-1], w.shape[0])
    if bias is not None:
        expect_rank("bias", bias, 1)
        expect("the bias' length", bias.shape[0], w.shape[0], "rows of the weight")
    if residual is not None:
        expect_rank("residual", residual, len(shape))
        for axis, dim in enumerate(shape):
            expect(f"the residual's dimension {axis}", residual.shape[axis], dim)
    return one(shape, dtype_of_sums(x, bias))


def _fully_connected(
    x: Array, w: Array, bias: Array | None = None, residual: Array | None = None, *, activation: str
) -> Array:
    y = double_product(x, w.T)
    for addend in (bias, residual):
        y = y if addend is None else y + addend
    return activate(activation, y.astype(x.dtype))


def _fully_connected_flops(call: Call) -> int:
    return 2 * call.outputs[0].elements * math.prod(call.type(1).dims[1:])


def _fully_connected_samples(rng: np.random.Generator) -> Iterable[Sample]:
    fixed = frozenset({1, 2})
    yield Sample(_draw(rng, (1, 64), (10, 64), (10,)), constants=fixed, note="classifier")
    yield Sample(_draw(rng, (3, 37), (19, 37), (19,)), {"activation": "relu"}, fixed, note="odd")
    yield Sample(_draw(rng, (2, 3, 5), (7, 5)), constants=fixed, note="three axes, no bias")
    yield Sample(
        _draw(rng, (3, 5), (7, 5), (7,), (3, 7)), {"activation": "relu"}, fixed, note="residual"
    )
    yield Sample(_draw(rng, (5, 1), (1, 1), (1,)), constants=fixed, note="all ones")
    for name in ACTIVATIONS:
        if name:
            yield Sample(_draw(rng, (2, 5), (7, 5), (7,)), {"activation": name}, fixed, note=name)


define(
    "fully_connected",
    "x w bias? residual?",
    "y = activation(x @ transpose(w) + bias + residual). Shapes: x [..,I], w [O,I], bias [O] "
    "-> y [..,O]. Source: TFLite FULLY_CONNECTED",
    _infer_fully_connected,
    _fully_connected,
    attrs={"activation": ACTIVATION},
    flops=_fully_connected_flops,
    family="matmul",
    rtol=1e-5,
    samples=with_quantized("fully_connected", _fully_connected_samples),
    quantized=quantized.or_floats("fully_connected", quantized.fully_connected, activate),
    integer_form="linear",
    axis_map=axis_maps.rows_times_weight,
    dtypes=(REALS, WEIGHT, BIAS, Like("x")),
)
