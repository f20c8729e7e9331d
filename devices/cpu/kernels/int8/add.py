"""The sum of two quantised tensors of one shape, in float32 and exactly the reference's.

The reference (trireme.ops.integer.AddParams) rounds three times in 64-bit products. Its result
depends on two bytes, so all 65,536 cases can be looked at: `fit_sum` looks for float32 numbers with

    nearest(fma(a, a_scale, fma(b, b_scale, addend))) = y - y_zero                after the clamp

for every pair of bytes (the kernel's arithmetic is followed exactly: with scales of at least 2**-14
the products and their sums have fewer than the 53 bits of a float64, so rounding these to float32
is what a fused multiply-add does). Where neighbours of the nearest numbers are needed, only pairs
near a tie can tell candidates apart; the one that is taken is checked with all pairs.

Bytes are spread to 32-bit lanes inside of each 128 bits, in the order that packing undoes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np

from trireme.devices.cpu.codegen.ir import Function, Index, Value
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import lanes_of, vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.int8.arithmetic import CYCLES_PER_S
from trireme.devices.cpu.kernels.int8.requant import Requantiser, channel_order, nearest
from trireme.devices.cpu.kernels.lowering import ELEMENTWISE_Q8, Context, Step, begin, deal, finish
from trireme.ir.graph import Node
from trireme.ops.integer import AddParams, multiply, multiply_by_quantized
from trireme.support.dtypes import Array
from trireme.support.records import dataclass

_STEPS = (0, 1, -1, 2, -2)
"""Candidates for each number, in units in the last place from the nearest one."""
_BLOCK_CYCLES = 20
"""About what it takes to add four vectors of bytes."""
_NEAR = 1e-3
"""How far from a tie a pair may be for candidates to differ; they are within 1e-4 of each other."""


@dataclass(frozen=True)
class SumFit:
    """Numbers of float32; a and b are stored bytes, with the sign bit flipped where signed."""

    a_scale: float
    b_scale: float
    addend: float


@functools.lru_cache(256)
def fit_sum(p: AddParams, a_offset: int, b_offset: int) -> SumFit | None:
    """Return a fit for all pairs of bytes, None if none is found.

    a_offset, b_offset: 128 where the operand is signed, else 0
    """
    byte = np.arange(256, dtype=np.int64)
    a, b = (v.reshape(-1) for v in np.meshgrid(byte, byte, indexing="ij"))
    want = _reference(p, a - a_offset, b - b_offset)
    y = p.y_multiplier * 2.0 ** (p.y_shift - 31 + p.left_shift)
    real_a = p.a_multiplier * 2.0 ** (p.a_shift - 31) * y
    real_b = p.b_multiplier * 2.0 ** (p.b_shift - 31) * y
    if not all(2.0**-14 < abs(real) < 256 for real in (real_a, real_b)):
        return None
    zero_a, zero_b = p.a_zero + a_offset, p.b_zero + b_offset
    exact = (a - zero_a) * real_a + (b - zero_b) * real_b
    near = np.abs(exact - np.floor(exact) - 0.5) < _NEAR
    for up_a, up_b, up in itertools.product(_STEPS, _STEPS, _STEPS):
        a_scale, b_scale = _moved(real_a, up_a), _moved(real_b, up_b)
        addend = _moved(-(a_scale * zero_a + b_scale * zero_b), up)
        found = SumFit(a_scale, b_scale, addend)
        if not (_evaluated(found, p, a[near], b[near]) == want[near]).all():
            continue
        if (_evaluated(found, p, a, b) == want).all():
            return found
    return None


def _reference(p: AddParams, a: Array, b: Array) -> Array:
    """Return the reference's y - y_zero."""
    total = multiply_by_quantized((a - p.a_zero) << p.left_shift, p.a_multiplier, p.a_shift)
    total = total + multiply_by_quantized((b - p.b_zero) << p.left_shift, p.b_multiplier, p.b_shift)
    y = multiply(total, p.y_multiplier, p.y_shift, p.rounding)
    return np.asarray(np.clip(y, p.low - p.y_zero, p.high - p.y_zero))


def _moved(real: float, ulps: int) -> float:
    """Return the float32 that lies some steps away from the nearest one."""
    single = np.float32(real)
    for _ in range(abs(ulps)):
        single = np.nextafter(single, np.float32(np.copysign(np.inf, ulps)))
    return float(single)


def _evaluated(fit: SumFit, p: AddParams, a: Array, b: Array) -> Array:
    """Return what the kernel computes."""
    inner = (b * fit.b_scale + fit.addend).astype(np.float32)
    outer = (a * fit.a_scale + inner.astype(np.float64)).astype(np.float32)
    return np.asarray(np.clip(np.rint(outer), p.low - p.y_zero, p.high - p.y_zero))


def sum_kernel(
    isa: Isa, op: str, found: SumFit, requantiser: Requantiser, offsets: tuple[int, ...], total: int
) -> tuple[Code, int, float]:
    """Return the kernel of a sum of so many elements, its chunks and seconds.

    Operands: both tensors, the result; offsets: what makes bytes of them unsigned
    """
    size = 4 * isa.lanes
    seconds = total / size * _BLOCK_CYCLES / CYCLES_PER_S
    chunk_blocks, chunks = deal(-(-total // size), seconds)
    fn, (x1, x2, out), chunk, _ = begin(f"{op}_q8_fit", isa, 3)
    first: Index = chunk * (chunk_blocks * size)
    last = fn.minimum(first + chunk_blocks * size, total)
    for i in fn.range(first, last, size):
        at = fn.minimum(i, total - size)  # the last block overlaps its neighbour
        left, right = (
            _spread(fn, fn.at(x, at, "i8"), offset)
            for x, offset in zip((x1, x2), offsets, strict=False)
        )
        numbers = [_sum(fn, found, *pair) for pair in zip(left, right, strict=True)]
        requantiser.store(fn, numbers, fn.at(out, at, "i8"), size)
    return finish(fn), chunks, seconds


def lower_sum(context: Context, node: Node, p: AddParams) -> list[Step] | None:
    """Return the step of an add or sub of two tensors of one shape, None if it has none."""
    isa = context.isa
    a, b, y = node.used[0], node.used[-1], node.outputs[0]
    types = [context.type(value) for value in (a, b, y)]
    total, size = types[2].elements, 4 * isa.lanes
    if not isa.fused or types[0].shape != types[2].shape or types[1].shape != types[2].shape:
        return None
    offsets = [128 if type.dtype == "int8" else 0 for type in types]
    found = fit_sum(p, offsets[0], offsets[1])
    if found is None or total < size:
        return None
    requantiser = Requantiser(
        np.zeros((0, 0), np.int32), "fit", False, types[2].dtype, p.y_zero, p.low, p.high
    )
    code, chunks, seconds = context.kernel(
        sum_kernel, node.op, found, requantiser.form, tuple(offsets), total
    )
    reads = (context.operand(a), context.operand(b))
    return [
        Step(code, reads, (y,), chunks, seconds=seconds, nodes=(node.id,), family=ELEMENTWISE_Q8)
    ]


def _sum(fn: Function, fit: SumFit, a: Value, b: Value) -> Value:
    """Return y - y_zero of bytes given as floats."""
    name = f"llvm.fma.v{lanes_of(a.type)}f32"
    numbers = [fn.as_value(a.type, v) for v in (fit.a_scale, fit.b_scale, fit.addend)]
    inner = fn.call(a.type, name, b, numbers[1], numbers[2])
    return nearest(fn, fn.call(a.type, name, a, numbers[0], inner))


def _spread(fn: Function, pointer: Value, offset: int) -> Sequence[Value]:
    """Return four vectors of bytes as floats, in the order that packing undoes."""
    lanes = fn.isa.lanes
    x = fn.load(vector(4 * lanes, "i8"), pointer, 1)
    if offset:
        x = fn.emit(x.type, f"xor {x}, {x.text_of(-128)}")
    zero = Value(fn, x.type, "zeroinitializer")
    found = []
    for order in channel_order(fn.isa, lanes, 4):
        taken = [i for at in order.tolist() for i in (at, 4 * lanes, 4 * lanes, 4 * lanes)]
        wide = fn.convert("bitcast", fn.shuffle(x, zero, taken), vector(lanes, "i32"))
        found.append(fn.convert("sitofp", wide, vector(lanes, "float")))
    return found
