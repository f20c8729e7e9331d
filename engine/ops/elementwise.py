"""Elementwise ops of two inputs or more: arithmetic, bits, pow, max, clip, prelu, where."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from trireme.ir.dtype_rules import LIMIT, Like
from trireme.ir.graph import Value
from trireme.ir.op import Attr, Call, IntegerForm, OpDef, Sample, define
from trireme.ops import quantized
from trireme.ops.activation import ACTIVATION, ACTIVATIONS, activate, edge_values
from trireme.ops.conversion import cast
from trireme.ops.quantized_samples import with_quantized
from trireme.ops.shapes import Types, broadcast, one, same_type
from trireme.support.dtypes import ANY, BOOL, FLOATING, INTEGERS, NUMBERS, REALS, Array, dtype_name

Function = Callable[..., Array]


def binary_samples(rng: np.random.Generator, dtype: Any = np.float32) -> Iterable[Sample]:
    """Yield equal shapes, broadcasting of every kind, a constant operand and edge values."""

    def draw(*shape: int) -> Array:
        values = rng.standard_normal(shape) * 4
        return np.asarray(np.where(np.abs(values) < 1, values + 3, values)).astype(dtype)

    yield Sample((draw(3, 7), draw(3, 7)), note="equal shapes")
    yield Sample((draw(2, 5, 5, 19), draw(19)), constants=frozenset({1}), note="per channel")
    yield Sample((draw(2, 5, 1, 19), draw(2, 1, 3, 1)), note="both broadcast")
    yield Sample((draw(1, 1), draw(4, 5)), note="first broadcasts")
    yield Sample((draw(4, 3), draw()), constants=frozenset({1}), note="scalar")
    if np.dtype(dtype).kind == "f":
        edge = edge_values().astype(dtype)
        yield Sample((edge[:, None], edge[None, :]), note="NaN, infinities, -0")


def integer_samples(rng: np.random.Generator) -> Iterable[Sample]:
    """Yield binary_samples of int32."""
    yield from binary_samples(rng, np.int32)


def _bool_samples(rng: np.random.Generator) -> Iterable[Sample]:
    for sample in binary_samples(rng, np.int32):
        signs = (np.asarray(x) > 0 for x in sample.inputs)
        yield Sample(tuple(signs), note=sample.note)


def _infer_binary(a: Value, b: Value, **attrs: object) -> Types:
    return one(broadcast(a.shape, b.shape), a.dtype)


def _activated_samples(rng: np.random.Generator) -> Iterable[Sample]:
    yield from binary_samples(rng)
    for dtype in (np.int32, np.int64):
        whole, divisor = rng.integers(-99, 99, (3, 19)), rng.integers(1, 9, 19)
        divisor = np.where(divisor < 5, divisor - 6, divisor)
        yield Sample((whole.astype(dtype), divisor.astype(dtype)), note="integers")
    for name in ACTIVATIONS:
        if name:
            a, b = (rng.standard_normal((3, 7)).astype(np.float32) * 4 for _ in "ab")
            yield Sample((a, np.sign(b) + b), {"activation": name}, note=name)


def _arithmetic(
    name: str,
    doc: str,
    function: Function,
    stored: quantized.Quantized,
    integer_form: IntegerForm = "own",
    **options: Any,
) -> OpDef:
    def reference(a: Array, b: Array, activation: str) -> Array:
        return activate(activation, function(a, b))

    return define(
        name,
        "a b",
        f"y = activation({doc}), a and b broadcast. Source: ONNX",
        _infer_binary,
        reference,
        attrs={"activation": ACTIVATION},
        dtypes=(NUMBERS, Like("a")),
        samples=with_quantized(name, _activated_samples),
        rtol=2e-6,
        quantized=stored,
        integer_form=integer_form,
        elementwise=True,
        **options,
    )


def divide(a: Array, b: Array) -> Array:
    """Return a / b; integers are truncated toward zero, and x / 0 is 0 for them."""
    if a.dtype.kind not in "iu":
        return np.asarray(a / b)
    divisor = np.where(b == 0, np.ones((), b.dtype), b)
    quotient = a // divisor
    cut = (quotient < 0) & (quotient * divisor != a)
    return np.where(b == 0, np.zeros((), a.dtype), quotient + cut).astype(a.dtype)


_arithmetic("add", "a + b", np.add, quantized.add, commutes=True, neutral=0)
_arithmetic("sub", "a - b", np.subtract, quantized.sub, neutral=0)
_arithmetic("mul", "a * b", np.multiply, quantized.mul, commutes=True, neutral=1)
_arithmetic(
    "div", "a / b, integers cut toward zero", divide, quantized.through_float("div"), "", neutral=1
)


def define_binary(
    name: str, doc: str, reference: Function, dtypes: frozenset[str] = REALS, **options: Any
) -> OpDef:
    """Define an op of two inputs of one dtype that broadcast; `options` are the OpDef's."""
    options.setdefault("samples", with_quantized(name, binary_samples))
    rules = (dtypes, Like("a"))
    options["elementwise"] = True
    return define(name, "a b", doc, _infer_binary, reference, dtypes=rules, **options)


def _bit_shift(a: Array, b: Array, direction: str) -> Array:
    return np.left_shift(a, b) if direction == "LEFT" else np.right_shift(a, b)


def _shift_samples(rng: np.random.Generator) -> Iterable[Sample]:
    a = rng.integers(0, 1 << 30, (3, 7), np.uint32)
    for direction in ("LEFT", "RIGHT"):
        yield Sample((a, rng.integers(0, 31, (7,), np.uint32)), {"direction": direction})


define_binary(
    "squared_difference",
    "y = (a - b)^2. Source: TFLite SQUARED_DIFFERENCE",
    lambda a, b: np.square(a - b),
    quantized=quantized.squared_difference,
    rtol=2e-6,
    commutes=True,
)
define_binary(
    "atan2",
    "y = the angle of the point (b, a). Source: TFLite ATAN2",
    np.arctan2,
    FLOATING,
    rtol=2e-6,
    samples=lambda rng: list(binary_samples(rng))[:-1],
)
define_binary(
    "bit_shift",
    "y = a << b or a >> b. Source: ONNX BitShift-11",
    _bit_shift,
    INTEGERS,
    attrs={"direction": Attr("str", choices=("LEFT", "RIGHT"))},
    samples=_shift_samples,
)
for _name, _sign, _neutral in (("and", "&", 1), ("or", "|", 0), ("xor", "^", 0)):
    define_binary(
        f"bitwise_{_name}",
        f"y = a {_sign} b, bit by bit. Source: ONNX Bitwise-18",
        getattr(np, f"bitwise_{_name}"),
        INTEGERS,
        samples=integer_samples,
        commutes=True,
    )
    define_binary(
        _name,
        f"y = a {_name} b. Source: ONNX {_name.title()}-7",
        getattr(np, f"logical_{_name}"),
        BOOL,
        samples=_bool_samples,
        commutes=True,
        neutral=_neutral,
    )


def _infer_pow(a: Value, b: Value) -> Types:
    return one(broadcast(a.shape, b.shape), a.dtype)


def _pow(a: Array, b: Array) -> Array:
    """Return a^b: of integers modulo 2^bits, and as a float is cut to one where b < 0.

    Special cases are those of C's pow, which numpy leaves for an exponent without axes.
    """
    a, b = np.broadcast_arrays(a, b)
    with np.errstate(all="ignore"):
        wide = np.power(a.astype(np.float64), b.astype(np.float64))
        if a.dtype.kind not in "iu":
            return np.asarray(wide).astype(a.dtype)
        floats = cast(np.asarray(wide), dtype_name(a.dtype))
        if b.dtype.kind not in "iu":
            return floats
        bits = a.astype(np.int64).astype(np.uint64)  # a negative power of these is undefined
        whole = np.power(bits, np.where(b < 0, 0, b).astype(np.uint64)).astype(a.dtype)
    return np.asarray(np.where(b < 0, floats, whole))


def _pow_samples(rng: np.random.Generator) -> Iterable[Sample]:
    yield from binary_samples(rng)
    base, exponent = rng.integers(-9, 9, (5, 7)), rng.integers(-3, 9, (5, 7))
    base[0] = (0, 1, -1, 2, 0, 1, -1)
    exponent[0] = (-1, -2, -3, -1, 0, 5, 4)
    for dtype in (np.int32, np.int64):
        yield Sample((base.astype(dtype), exponent.astype(dtype)), note="integers")
    whole = rng.integers(-3, 4, (5, 7)).astype(np.float32)
    yield Sample((whole, exponent), note="an integer exponent")
    for power in (-1.0, 0.5, 3.0, 4.0):
        number = np.array(power, np.float32)
        yield Sample((edge_values(), number), constants=frozenset({1}), note=f"^{power}")


define(
    "pow",
    "a b",
    "y = a^b in a's dtype, a and b broadcast. Source: ONNX Pow-15",
    _infer_pow,
    _pow,
    samples=with_quantized("pow", _pow_samples),
    rtol=4e-6,
    quantized=quantized.through_float("pow"),
    flops=lambda call: 20 * call.outputs[0].elements,
    dtypes=(REALS, REALS),
    elementwise=True,
    neutral=1,
)


def _infer_many(*xs: Value) -> Types:
    return one(broadcast(*(x.shape for x in xs)), xs[0].dtype)


def _many(function: Function) -> Function:
    return lambda *xs: functools.reduce(function, xs)


def _many_samples(rng: np.random.Generator) -> Iterable[Sample]:
    yield from binary_samples(rng)
    draws = [rng.standard_normal(s).astype(np.float32) for s in ((2, 3, 7), (7,), (3, 1))]
    yield Sample(tuple(draws), note="three inputs")
    yield Sample((draws[0],), note="one input")
    yield Sample(tuple(rng.integers(-99, 99, (2, 3, 7)).astype(np.int32)), note="integers")


def _mean(*xs: Array) -> Array:
    return np.asarray(_many(np.add)(*xs) / np.asarray(len(xs), xs[0].dtype))


def _many_flops(call: Call) -> int:
    return len(call.inputs) * call.outputs[0].elements


for _name, _combine, _doc, _dtypes in (
    ("max", _many(np.maximum), "the greatest of the inputs; NaN wins", REALS),
    ("min", _many(np.minimum), "the least of the inputs; NaN wins", REALS),
    ("sum", _many(np.add), "the sum of the inputs", NUMBERS),
    ("mean", _mean, "their mean", NUMBERS),
):
    define(
        _name,
        "x xs*",
        f"y = {_doc}, all broadcast. Source: ONNX {_name.title()}",
        _infer_many,
        _combine,
        samples=with_quantized(_name, _many_samples),
        flops=_many_flops,
        dtypes=(_dtypes, Like("x")),
        rtol=0 if _name in ("max", "min") else 2e-6,
        quantized=quantized.on_stored(_name) if _name in ("max", "min") else None,
        elementwise=True,
        commutes=_name in ("max", "min"),
        integer_form="same" if _name in ("max", "min") else "",
    )


def _infer_clip(x: Value, low: Value | None = None, high: Value | None = None) -> Types:
    return same_type(x)


def _clip(x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    y = x if low is None else np.maximum(x, low.reshape(()))
    return np.asarray(y if high is None else np.minimum(y, high.reshape(())))


def _clip_samples(rng: np.random.Generator) -> Iterable[Sample]:
    x, low, high = edge_values(), np.array(-1, np.float32), np.array(6, np.float32)
    both = frozenset({1, 2})
    yield Sample((rng.standard_normal((3, 17)).astype(np.float32) * 9, low, high), constants=both)
    yield Sample((x, low, high), constants=both, note="NaN, infinities, -0")
    yield Sample((x, low), constants=both, note="no upper limit")
    yield Sample((x, None, high), constants=both, note="no lower limit")
    yield Sample((x, high, low), constants=both, note="low above high")
    whole = (rng.integers(-99, 99, (3, 7)), np.array(-10), np.array(20))
    yield Sample(tuple(v.astype(np.int32) for v in whole), constants=both, note="integers")


define(
    "clip",
    "x min? max?",
    "y = min(max(x, min), max); NaN stays. Source: ONNX Clip-13",
    _infer_clip,
    _clip,
    samples=with_quantized("clip", _clip_samples),
    quantized=quantized.table("clip"),
    dtypes=(REALS, LIMIT, LIMIT),
    elementwise=True,
    integer_form="table",
)


def _infer_prelu(x: Value, slope: Value) -> Types:
    return one(broadcast(x.shape, slope.shape), x.dtype)


def _prelu_samples(rng: np.random.Generator) -> Iterable[Sample]:
    x, slope = rng.standard_normal((2, 3, 5, 19)), rng.standard_normal(19)
    fixed = frozenset({1})
    yield Sample((x.astype(np.float32), slope.astype(np.float32)), constants=fixed)
    yield Sample((edge_values(), slope[:1].astype(np.float32)), constants=fixed, note="NaN")


define(
    "prelu",
    "x slope",
    "y = x where x >= 0, else slope * x, slope broadcast to x. Source: ONNX PRelu-16",
    _infer_prelu,
    lambda x, slope: np.where(x < 0, x * slope, x),
    samples=with_quantized("prelu", _prelu_samples),
    quantized=quantized.prelu,
    dtypes=(REALS, Like("x")),
    elementwise=True,
    integer_form="own",
)


def _infer_where(condition: Value, x: Value, y: Value) -> Types:
    return one(broadcast(condition.shape, x.shape, y.shape), x.dtype)


def _where_samples(rng: np.random.Generator) -> Iterable[Sample]:
    for sample in binary_samples(rng):
        a, b = sample.inputs
        if a is not None and b is not None:
            condition = rng.integers(0, 2, np.broadcast_shapes(a.shape, b.shape)).astype(bool)
            yield Sample((condition, a, b), note=sample.note)


define(
    "where",
    "condition x y",
    "out = x where condition, else y; all broadcast. Source: ONNX",
    _infer_where,
    np.where,
    samples=_where_samples,
    moves=True,
    dtypes=(BOOL, ANY, Like("x")),
    elementwise=True,
    main_input=1,
)
