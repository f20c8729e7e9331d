"""integer_svdf: one entry of the batch a chunk, all its products in integers.

The products of the input with the filters come first, then each filter's memory moves on by one and
is weighted, then neighbouring filters are summed and scaled.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from trireme.devices.cpu.codegen.ir import Function, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.products import constant_reason
from trireme.devices.cpu.kernels.int8.arithmetic import (
    dot_of,
    load_stored,
    requantise,
    splat_scale,
)
from trireme.devices.cpu.kernels.int8.recurrent_pack import packed, packed_bias, padded
from trireme.devices.cpu.kernels.int8.recurrent_parts import (
    block_sums,
    clamped,
    copy_bytes,
    prepare,
)
from trireme.devices.cpu.kernels.lowering import TABLE, Context, Rule, Step, begin, finish
from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import Array
from trireme.support.records import dataclass

_PRODUCTS_PER_S = 1e10


@dataclass(frozen=True)
class IntegerFilters:
    """The parameters of the kernel of an integer_svdf; scales are (multiplier, shift)."""

    inputs: int
    filters: int
    memory: int
    rank: int
    scales: tuple[tuple[int, int], tuple[int, int]]
    y_zero: int

    def seconds(self) -> float:
        """Return an estimate of the time of one entry of the batch on one thread."""
        products = self.filters * (self.inputs + 2 * self.memory)
        return products / _PRODUCTS_PER_S + self.filters * 3e-9 + 1e-7


def _weighted(fn: Function, memory: Value, weights: Value, count: int) -> Value:
    """Return the sum of products of 16-bit numbers, as i32."""
    lanes = fn.isa.lanes
    wide, narrow = vector(lanes, "i32"), vector(lanes, "i16")
    total = Var(fn, wide, 0)
    whole = count // lanes * lanes
    for i in fn.range(0, whole, lanes):
        a, b = (fn.load(narrow, fn.at(place, i, "i16"), 2) for place in (memory, weights))
        total.set(total.get() + fn.convert("sext", a, wide) * fn.convert("sext", b, wide))
    if whole < count:
        a, b = (
            fn.convert(
                "bitcast",
                load_stored(fn, fn.at(place, whole, "i16"), 2 * lanes, 2 * (count - whole)),
                narrow,
            )
            for place in (memory, weights)
        )
        total.set(total.get() + fn.convert("sext", a, wide) * fn.convert("sext", b, wide))
    return fn.call("i32", f"llvm.vector.reduce.add.v{lanes}i32", total.get())


def integer_svdf_kernel(isa: Isa, layer: IntegerFilters) -> tuple[Code, int]:
    """Return the kernel of one entry of the batch, and the bytes of its local memory.

    Operands: x, packed filters and their biases, time, bias, state; y, new state
    """
    fn, operands, chunk, local = begin("integer_svdf", isa, 8)
    x, features, feature_bias, time, bias, state, y, kept = operands
    lanes, wide, units = isa.lanes, vector(isa.lanes, "i32"), layer.filters // layer.rank
    sizes = (
        dot_of(isa).width * padded(layer.inputs, 4 * lanes),
        2 * padded(layer.filters, lanes),
        4 * layer.filters,
        4 * padded(units, lanes),
        padded(units, 4 * lanes),
    )
    buffers, nbytes = [], 0
    for size in sizes:
        buffers.append(fn.at(local, nbytes, "i8"))
        nbytes += padded(size, 64)
    prepared, made, totals, sums, stored = buffers
    prepare(fn, fn.at(x, chunk * layer.inputs, "i8"), prepared, layer.inputs)
    scale = splat_scale(fn, wide, *layer.scales[0])
    for block in fn.range(0, padded(layer.filters, lanes) // lanes):
        places = (features, feature_bias)
        (total,) = block_sums(fn, prepared, places, block, 1, layer.inputs)
        last = clamped(fn, requantise(fn, total, scale), -32768, 32767)
        narrow = fn.convert("trunc", last, vector(lanes, "i16"))
        fn.store(narrow, fn.at(made, block * lanes, "i16"), 2)
    first, length = chunk * (layer.filters * layer.memory), layer.memory
    for f in fn.range(0, layer.filters):
        row = first + f * length
        target = fn.at(kept, row, "i16")
        copy_bytes(fn, fn.at(state, row + 1, "i16"), target, 2 * (length - 1))
        newest = fn.load("i16", fn.at(made, f, "i16"), 2)
        fn.store(newest, fn.at(target, length - 1, "i16"), 2)
        weights = fn.at(time, f * length, "i16")
        fn.store(_weighted(fn, target, weights, length), fn.at(totals, f, "i32"))
    for u in fn.range(0, units):
        total = fn.load("i32", fn.at(bias, u, "i32"))
        for r in range(layer.rank):
            total = total + fn.load("i32", fn.at(totals, u * layer.rank + r, "i32"))
        fn.store(total, fn.at(sums, u, "i32"))
    scale = splat_scale(fn, wide, *layer.scales[1])
    for block in fn.range(0, padded(units, lanes) // lanes):
        value = requantise(fn, fn.load(wide, fn.at(sums, block * lanes, "i32")), scale)
        value = clamped(fn, value + layer.y_zero, -128, 127)
        fn.store(
            fn.convert("trunc", value, vector(lanes, "i8")), fn.at(stored, block * lanes, "i8"), 1
        )
    copy_bytes(fn, stored, fn.at(y, chunk * units, "i8"), units)
    return finish(fn), nbytes


def _lower(context: Context, node: Node) -> Sequence[Step]:
    x, features, time, state = node.used[:4]
    batch, inputs = context.type(x).dims
    filters, memory = context.type(time).dims
    attrs, lanes, dot = node.attrs, context.isa.lanes, dot_of(context.isa)
    pairs = tuple(zip(attrs["multipliers"], attrs["shifts"], strict=True))
    layer = IntegerFilters(
        inputs, filters, memory, attrs["rank"], (pairs[0], pairs[1]), attrs["y_zero"]
    )
    code, local_bytes = context.kernel(integer_svdf_kernel, layer)
    data = context.constant(features)
    zero = -attrs["x_zero"] * data.astype(np.int64).sum(axis=1)
    bias: Array = np.zeros(filters // layer.rank, np.int32)
    if len(node.used) > 4:
        bias = context.constant(node.used[4])
    make = partial(packed, data, 1, dot, lanes)
    reads = (
        context.operand(x),
        context.pack(features, f"{dot.name} {lanes}", make),
        packed_bias(zero, data, 1, dot, lanes),
        context.constant(time),
        bias,
        context.operand(state),
    )
    seconds = batch * layer.seconds()
    return [Step(code, reads, node.outputs, batch, local_bytes, seconds, family="recurrent")]


def _reason(graph: Graph, node: Node) -> str | None:
    if not all(graph.type(value).elements for value in (*node.used, *node.outputs)):
        return "integer_svdf has no native kernel for empty tensors"
    for position in (1, 2, 4):
        if position < len(node.inputs) and node.inputs[position] is not None:
            missing = constant_reason(graph, node, position, "weights and biases")
            if missing:
                return missing
    numbers = [*node.attrs["multipliers"], node.attrs["y_zero"], node.attrs["x_zero"]]
    if max(map(abs, numbers)) > 2**31 - 1 or max(map(abs, node.attrs["shifts"])) > 31:
        return "integer_svdf has no native kernel for numbers beyond 31 bits"
    if abs(node.attrs["x_zero"]) > 255 or abs(node.attrs["y_zero"]) > 32767:
        return "integer_svdf has no native kernel for zero points beyond 8 bits"
    if node.attrs["rank"] > 64:
        return "integer_svdf has no native kernel for ranks beyond 64"
    return None


TABLE.add("integer_svdf", Rule(_reason, _lower))
