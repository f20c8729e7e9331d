"""Products with weights of a few bits, which share a scale in blocks along the depth."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from trireme.ir.dtype_rules import Like
from trireme.ir.graph import Value
from trireme.ir.op import Attr, Call, Sample, define
from trireme.ops import axis_maps
from trireme.ops.shapes import Types, expect, expect_dims, expect_rank, one
from trireme.support.dtypes import FLOATING, Array
from trireme.support.errors import ShapeError

ROUNDED = 4
"""The accuracy level at which a is rounded to 8 bits."""

LEAST = np.float32(1e-30)


def codes(b: Array, bits: int) -> Array:
    """Return the codes of b as uint8: the low bits of a byte come first.

    Shapes: b [.., bytes] -> [.., bytes * 8 / bits]
    """
    mask = (1 << bits) - 1
    parts = [(b >> shift) & mask for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*b.shape[:-1], b.shape[-1] * len(parts))


def in_blocks(a: Array, block_size: int) -> Array:
    """Cut the last axis into blocks, the last one filled up with 0."""
    fill = -a.shape[-1] % block_size
    whole = np.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, fill)])
    return whole.reshape(*a.shape[:-1], whole.shape[-1] // block_size, block_size)


def rounded(blocks: Array) -> tuple[Array, Array]:
    """Return whole numbers in [-127, 127] and the step of each block along the last axis.

    step = max |a| / 127, and the numbers are a * (127 / max |a|) in float32, rounded half to even.
    A block whose max |a| is below LEAST gives 0.
    """
    narrow = blocks.astype(np.float32)
    most = np.abs(narrow).max(-1, keepdims=True)
    return np.rint(narrow * (np.float32(127) / np.maximum(most, LEAST))), most / np.float32(127)


def _infer(
    a: Value,
    b: Value,
    scales: Value,
    zero_points: Value | None = None,
    bias: Value | None = None,
    *,
    bits: int,
    block_size: int,
    accuracy_level: int,
) -> Types:
    if not a.shape:
        raise ShapeError("a is a scalar, expected rank 1 or more")
    expect_rank("b", b, 3)
    columns, blocks, nbytes = b.shape
    if block_size * bits % 8:
        raise ShapeError(
            f"a block of {block_size} codes of {bits} bits is no whole number of bytes"
        )
    expect("b's bytes in a block", nbytes, block_size * bits // 8, "block_size * bits / 8")
    depth = a.shape[-1]
    if isinstance(depth, int):
        expect("b's blocks", blocks, -(-depth // block_size), "a's columns / block_size")
    for name, part in (("scales", scales), ("zero_points", zero_points)):
        if part is not None:
            expect_dims(name, part, columns, blocks)
    if bias is not None:
        expect_dims("bias", bias, columns)
    return one((*a.shape[:-1], columns), a.dtype)


def _product(
    a: Array,
    b: Array,
    scales: Array,
    zero_points: Array | None = None,
    bias: Array | None = None,
    *,
    bits: int,
    block_size: int,
    accuracy_level: int,
) -> Array:
    zero = 1 << (bits - 1) if zero_points is None else zero_points.astype(np.float64)[..., None]
    w = codes(b, bits).astype(np.float64) - zero
    depth = np.arange(w.shape[1] * block_size).reshape(w.shape[1:])
    w = np.where(depth < a.shape[-1], w, 0)
    numbers, step = in_blocks(a, block_size), np.ones(1, np.float32)
    if accuracy_level == ROUNDED:
        numbers, step = rounded(numbers)
    wide = np.moveaxis(numbers.astype(np.float64).reshape(-1, *w.shape[1:]), 1, 0)
    sums = np.moveaxis(wide @ w.transpose(1, 2, 0), 0, -1)
    steps = np.broadcast_to(step, (*numbers.shape[:-1], 1)).reshape(-1, 1, w.shape[1])
    y = (sums * (scales.astype(np.float64) * steps)).sum(-1).reshape(*a.shape[:-1], len(w))
    return np.asarray(y if bias is None else y + bias).astype(a.dtype)


def _flops(call: Call) -> int:
    return 2 * call.outputs[0].elements * call.type(0).dims[-1]


def drawn(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    columns: int,
    block_size: int,
    bits: int = 4,
    zeros: bool = False,
    bias: bool = False,
) -> tuple[Array | None, ...]:
    """Return random inputs of the op for a of a shape."""
    blocks = -(-shape[-1] // block_size)
    a = rng.standard_normal(shape).astype(np.float32)
    b = rng.integers(0, 256, (columns, blocks, block_size * bits // 8)).astype(np.uint8)
    scales = rng.uniform(0.01, 0.1, (columns, blocks)).astype(np.float32)
    points = rng.integers(0, 1 << bits, (columns, blocks)).astype(np.uint8) if zeros else None
    return a, b, scales, points, rng.standard_normal(columns).astype(np.float32) if bias else None


def _samples(rng: np.random.Generator) -> Iterable[Sample]:
    fixed = frozenset({1, 2, 3, 4})
    cases: list[tuple[tuple[int, ...], int, int, int, bool, bool, str]] = [
        ((1, 64), 33, 32, 4, False, False, "one row"),
        ((1, 64), 33, 32, 4, True, True, "zero points and a bias"),
        ((2, 5, 50), 70, 16, 4, False, True, "part of a block"),
        ((13, 72), 19, 16, 4, True, False, "part of a block, zero points"),
        ((3, 128), 16, 128, 4, False, False, "one block"),
        ((2, 70), 21, 32, 8, False, False, "8 bits"),
        ((5, 64), 40, 16, 8, True, True, "8 bits, zero points"),
        ((3, 48), 20, 32, 2, True, False, "2 bits"),
        ((40,), 7, 16, 4, False, False, "a vector"),
    ]
    for shape, columns, block, bits, zeros, bias, note in cases:
        inputs = drawn(rng, shape, columns, block, bits, zeros, bias)
        there = frozenset(n for n in fixed if inputs[n] is not None)
        for level in (0, ROUNDED):
            attrs = {"bits": bits, "block_size": block, "accuracy_level": level}
            yield Sample(inputs, attrs, there, note=f"{note}, level {level}")
    inputs = drawn(rng, (2, 32), 5, 16)
    yield Sample(inputs, {"block_size": 16}, note="weights are no constants")


define(
    "matmul_nbits",
    "a b scales zero_points? bias?",
    "y = a @ transpose(w) + bias, w = (code - zero_point) * scale. b holds the codes, the low bits "
    "of a byte first; `block_size` neighbours share a scale and a zero point, 2^(bits - 1) when "
    "left out. The sum of each block is scaled. At accuracy_level 4 each block of a is rounded to "
    "whole numbers of max |a| / 127. "
    "Shapes: a [..,K], b uint8 [N, blocks, block_size * bits / 8], scales and zero_points "
    "[N, blocks], bias [N] -> y [..,N]. Source: ONNX Runtime com.microsoft.MatMulNBits-1",
    _infer,
    _product,
    attrs={
        "bits": Attr("int", 4, (2, 4, 8)),
        "block_size": Attr("int", least=1),
        "accuracy_level": Attr("int", 0, (0, ROUNDED)),
    },
    flops=_flops,
    family="matmul",
    rtol=2e-5,
    axis_map=axis_maps.rows_times_blocks,
    samples=_samples,
    dtypes=(FLOATING, frozenset({"uint8"}), Like("a"), FLOATING | frozenset({"uint8"}), Like("a")),
)
