"""Elementwise kernels on 8-bit integers: add, sub, mul, prelu, tables; and to floats and back.

The walk over memory, with broadcasting, is the one of the float kernels (elementwise.plan_walk).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from trireme.backend.kernel_table import STORED_8
from trireme.devices.cpu.codegen.ir import Function, Index, Value
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.elementwise import ElementWalk, plan_walk, row_offset
from trireme.devices.cpu.kernels.int8.add import lower_sum
from trireme.devices.cpu.kernels.int8.arithmetic import (
    EIGHT_BIT,
    clamp_and_narrow,
    load_stored,
    requantise,
    splat_scale,
    store_stored,
    stored_reason,
    widen,
)
from trireme.devices.cpu.kernels.lowering import (
    ELEMENTWISE_Q8,
    TABLE,
    Context,
    Rule,
    Step,
    begin,
    deal,
    finish,
)
from trireme.ir.graph import Graph, Node
from trireme.ir.op import Call, call_of, ops_with
from trireme.ops.integer import (
    AddParams,
    add_params,
    concat_tables,
    dtype_limits,
    mul_params,
    prelu_params,
    quant_of,
    sub_params,
    unary_table,
)
from trireme.support.dtypes import Array
from trireme.support.errors import GraphError, InternalError

FLAT_S = 1e-10
"""About the seconds of an element between floats and bytes."""
_MOST_SHIFT = 14
"""A product of two bytes, of 17 bits with its sign, may be shifted left so far."""
Combine = Callable[[Function, Value, Value], Value]
"""(fn, a, b) -> result, all vectors: i32 operands in, bytes out."""


SUMS: dict[str, Callable[[Call], AddParams]] = {"add": add_params, "sub": sub_params}


def _sum(call: Call, params: Callable[[Call], AddParams]) -> Combine:
    p = params(call)

    def combine(fn: Function, a: Value, b: Value) -> Value:
        type = a.type
        sides = []
        for x, zero, multiplier, shift in (
            (a, p.a_zero, p.a_multiplier, p.a_shift),
            (b, p.b_zero, p.b_multiplier, p.b_shift),
        ):
            moved = fn.emit(type, f"shl {x - zero}, {x.text_of(p.left_shift)}")
            sides.append(requantise(fn, moved, splat_scale(fn, type, multiplier, shift)))
        scale = splat_scale(fn, type, p.y_multiplier, p.y_shift)
        return clamp_and_narrow(
            fn, requantise(fn, sides[0] + sides[1], scale), p.y_zero, p.low, p.high
        )

    return combine


def _product(call: Call) -> Combine:
    p = mul_params(call)

    def combine(fn: Function, a: Value, b: Value) -> Value:
        scale = splat_scale(fn, a.type, p.multiplier, p.shift)
        product = (a - p.a_zero) * (b - p.b_zero)
        return clamp_and_narrow(fn, requantise(fn, product, scale), p.y_zero, p.low, p.high)

    return combine


def _prelu(call: Call) -> Combine:
    p = prelu_params(call)
    if max(p.shift, p.slope_shift) > _MOST_SHIFT:
        raise GraphError(f"its output is finer than its input by more than 2**{_MOST_SHIFT}")

    def combine(fn: Function, a: Value, slope: Value) -> Value:
        x = a - p.x_zero
        product = x * (slope - p.slope_zero)
        positive = requantise(fn, x, splat_scale(fn, x.type, p.multiplier, p.shift))
        scale = splat_scale(fn, x.type, p.slope_multiplier, p.slope_shift)
        negative = requantise(fn, product, scale)
        chosen = fn.select(fn.compare("slt", x, 0), negative, positive)
        return clamp_and_narrow(fn, chosen, p.y_zero, p.low, p.high)

    return combine


BINARY: dict[str, Callable[[Call], Combine]] = {
    "add": lambda call: _sum(call, add_params),
    "sub": lambda call: _sum(call, sub_params),
    "mul": _product,
    "prelu": _prelu,
}


def lower_binary(context: Context, node: Node) -> Sequence[Step]:
    """Return the step of a quantised add, sub, mul or prelu."""
    graph, isa = context.graph, context.isa
    if node.op in SUMS:
        steps = lower_sum(context, node, SUMS[node.op](call_of(graph, node)))
        if steps:
            return steps
    combine = BINARY[node.op](call_of(graph, node))
    a, b = node.inputs
    if a is None or b is None:
        raise InternalError(f"{node.label}: an operand is missing")
    type = context.type(node.outputs[0])
    walk = plan_walk(type.dims, [context.type(a).dims, context.type(b).dims])
    fn, pointers, chunk, _ = begin(f"{node.op}_q8", isa, 3)
    inner = walk.dims[-1]
    rows = math.prod(walk.dims[:-1])
    seconds = 15 * rows * -(-inner // isa.lanes) / 2e9
    if rows == 1:  # one long row is cut, several are dealt out
        size, chunks = deal(-(-inner // isa.lanes), seconds)
        size *= isa.lanes
        first = chunk * size
        whole = inner // isa.lanes * isa.lanes
        for i in fn.range(first, fn.minimum(first + size, whole), isa.lanes):
            _binary_vector(fn, pointers, (context, node), walk, combine, i, isa.lanes)
        if whole < inner:
            with fn.when(fn.compare("eq", chunk, chunks - 1)):
                _binary_vector(fn, pointers, (context, node), walk, combine, whole, inner - whole)
    else:
        size, chunks = deal(rows, seconds)
        first = chunk * size
        for row in fn.range(first, fn.minimum(first + size, rows)):
            bases = [fn.at(p, row_offset(fn, row, walk, k), "i8") for k, p in enumerate(pointers)]
            whole = inner // isa.lanes * isa.lanes
            for i in fn.range(0, whole, isa.lanes):
                _binary_vector(fn, bases, (context, node), walk, combine, i, isa.lanes)
            if whole < inner:
                _binary_vector(fn, bases, (context, node), walk, combine, whole, inner - whole)
    step = Step(
        finish(fn),
        (context.operand(a), context.operand(b)),
        (node.outputs[0],),
        chunks,
        seconds=seconds,
        nodes=(node.id,),
        family=ELEMENTWISE_Q8,
    )
    return [step]


def _binary_vector(
    fn: Function,
    bases: Sequence[Value],
    where: tuple[Context, Node],
    walk: ElementWalk,
    combine: Combine,
    at: Index,
    count: int,
) -> None:
    context, node = where
    lanes = fn.isa.lanes
    operands = []
    for base, strides, value in zip(bases[:2], walk.strides, node.used * 2, strict=False):
        if strides[-1]:
            x = load_stored(fn, fn.at(base, at, "i8"), lanes, count)
        else:
            x = fn.splat(fn.load("i8", base, 1), lanes)
        operands.append(widen(fn, x, context.type(value).dtype))
    store_stored(fn, combine(fn, operands[0], operands[1]), fn.at(bases[2], at, "i8"), count)


def _binary_reason(graph: Graph, node: Node) -> str | None:
    return stored_reason(graph, node, lambda: BINARY[node.op](call_of(graph, node)))


def table_kernel(isa: Isa, rows: tuple[int, int, int, int]) -> tuple[Code, int]:
    """Return the kernel that maps bytes through a table, and its chunks; rows as of `table_step`.

    Operands: the bytes, the table, the result
    """
    count, length, stride, start = rows
    fn, (x, entries, y), chunk, _ = begin("table_q8", isa, 3)
    size, chunks = deal(count * length, count * length / 1e9)
    unroll = 8 if stride == length or length % 8 == 0 else 1
    size = -(-size // unroll) * unroll
    chunks = -(-(count * length) // size)
    first = chunk * size
    total = count * length
    last = fn.minimum(first + size, total // unroll * unroll)

    def one(i: Index) -> None:
        byte = fn.convert("zext", fn.load("i8", fn.at(x, i, "i8"), 1), "i64")
        result = fn.load("i8", fn.at(entries, byte, "i8"), 1)
        at = i
        if stride != length:
            at = fn.integer("udiv", i, length) * stride + fn.integer("urem", i, length)
        fn.store(result, fn.at(y, at + start, "i8"), 1)

    for i in fn.range(first, last, unroll):
        for u in range(unroll):
            one(i + u)
    if total % unroll:
        with fn.when(fn.compare("eq", chunk, chunks - 1)):
            for i in range(total // unroll * unroll, total):
                one(i)
    return finish(fn), chunks


def table_step(
    context: Context, node: Node, value: int, table: Array, rows: tuple[int, int, int, int]
) -> Step:
    """Return the step that maps bytes through a table, row by row into a larger output.

    rows: (rows, bytes of a row, bytes from one output row to the next, where the first begins)
    """
    code, chunks = context.kernel(table_kernel, rows)
    return Step(
        code,
        (context.operand(value), table.view(np.uint8)),
        (node.outputs[0],),
        chunks,
        seconds=rows[0] * rows[1] / 1e9,
        nodes=(node.id,),
        family="table_q8",
    )


def _lower_table(context: Context, node: Node) -> Sequence[Step]:
    table = unary_table(node.op, call_of(context.graph, node))
    elements = context.type(node.outputs[0]).elements
    return [table_step(context, node, node.used[0], table, (1, elements, elements, 0))]


def _table_reason(graph: Graph, node: Node) -> str | None:
    if node.op == "quantize" and graph.type(node.used[0]).quant is None:
        return quantize_reason(graph, node)
    return stored_reason(graph, node, lambda: unary_table(node.op, call_of(graph, node)))


def quantize_reason(graph: Graph, node: Node) -> str | None:
    """Say why a quantize of floats has no native kernel, None when it has."""
    x, y = graph.type(node.used[0]), graph.type(node.outputs[0])
    if x.dtype != "float32" or y.dtype not in EIGHT_BIT:
        return f"quantize has no native kernel from {x.dtype} to {y.dtype}"
    if y.quant is None or y.quant.axis is not None:
        return "quantize has no native kernel for a scale per channel"
    return None


def _lower_quantize(context: Context, node: Node) -> Sequence[Step]:
    if context.type(node.used[0]).quant is not None:
        return _lower_table(context, node)
    return [_flat_step(context, node, conversion_of(context.graph, node))]


def _lower_dequantize(context: Context, node: Node) -> Sequence[Step]:
    return [_flat_step(context, node, conversion_of(context.graph, node))]


@dataclass(frozen=True)
class Requantised:
    """Floats to stored bytes by one scale and zero point, or back."""

    op: str
    dtype: str
    scale: float
    zero_point: int

    @property
    def name(self) -> str:
        """The name of its kernels."""
        return "quantize_f32_q8" if self.op == "quantize" else "dequantize_q8_f32"

    def emit(self, fn: Function, x: Value, y: Value, at: Index, count: int) -> None:
        """Convert `count` elements from `at` on, a vector at most."""
        (self._quantize if self.op == "quantize" else self._dequantize)(fn, x, y, at, count)

    def _quantize(self, fn: Function, x: Value, y: Value, at: Index, count: int) -> None:
        lanes, (low, high) = fn.isa.lanes, dtype_limits(self.dtype)
        real = fn.load_some(vector(lanes, "float"), fn.at(x, at), count)
        ratio = fn.unary("round", real / self.scale)  # ties away from zero
        least, most = float(low - self.zero_point), float(high - self.zero_point)
        ratio = fn.select(fn.compare("uge", ratio, least), ratio, least)
        ratio = fn.select(fn.compare("uno", ratio, ratio), least, ratio)
        ratio = fn.select(fn.compare("ole", ratio, most), ratio, most)
        whole = fn.convert("fptosi", ratio, vector(lanes, "i32")) + self.zero_point
        narrow = fn.convert("trunc", whole, vector(lanes, "i8"))
        store_stored(fn, narrow, fn.at(y, at, "i8"), count)

    def _dequantize(self, fn: Function, x: Value, y: Value, at: Index, count: int) -> None:
        lanes = fn.isa.lanes
        stored = widen(fn, load_stored(fn, fn.at(x, at, "i8"), lanes, count), self.dtype)
        whole = fn.convert("sitofp", stored - self.zero_point, vector(lanes, "float"))
        fn.store_some(whole * self.scale, fn.at(y, at), count)


def conversion_of(graph: Graph, node: Node) -> Requantised:
    """Return what a quantize of floats or a dequantize does to each element."""
    is_in = node.op == "dequantize"
    type = graph.type(node.used[0] if is_in else node.outputs[0])
    quant = quant_of(type, "input" if is_in else "output")
    return Requantised(node.op, type.dtype, quant.scale, quant.zero_point)


def dequantize_reason(graph: Graph, node: Node) -> str | None:
    """Say why a dequantize has no native kernel, None when it has."""
    x = graph.type(node.used[0])
    if x.dtype not in EIGHT_BIT or x.quant is None or x.quant.axis is not None:
        return f"dequantize has no native kernel for {x}"
    return None if x.elements else "dequantize has no native kernel for empty tensors"


def _flat_step(context: Context, node: Node, conversion: Requantised) -> Step:
    """Return a step over all elements of two dense arrays of one shape."""
    elements, lanes = context.type(node.outputs[0]).elements, context.isa.lanes
    fn, (x, y), chunk, _ = begin(conversion.name, context.isa, 2)
    size, chunks = deal(-(-elements // lanes), elements * FLAT_S)
    first = chunk * (size * lanes)
    whole = elements // lanes * lanes
    for i in fn.range(first, fn.minimum(first + size * lanes, whole), lanes):
        conversion.emit(fn, x, y, i, lanes)
    if whole < elements:
        with fn.when(fn.compare("eq", chunk, chunks - 1)):
            conversion.emit(fn, x, y, whole, elements - whole)
    return Step(
        finish(fn),
        (context.operand(node.used[0]),),
        (node.outputs[0],),
        chunks,
        seconds=elements * FLAT_S,
        nodes=(node.id,),
        family=ELEMENTWISE_Q8,
    )


def _lower_concat(context: Context, node: Node) -> Sequence[Step]:
    """Return one step an input: its bytes, through a table where its scale is another."""
    graph = context.graph
    tables = concat_tables(call_of(graph, node))
    out = context.type(node.outputs[0]).dims
    axis = node.attrs["axis"] % len(out)
    inner = math.prod(out[axis + 1 :])
    count, stride = math.prod(out[:axis]), out[axis] * inner
    steps, start = [], 0
    for value, table in zip(node.used, tables, strict=True):
        length = context.type(value).dims[axis] * inner
        identity = np.arange(256, dtype=np.uint8)
        entries = identity if table is None else table
        if length * count:
            steps.append(table_step(context, node, value, entries, (count, length, stride, start)))
        start += length
    return steps


def _concat_reason(graph: Graph, node: Node) -> str | None:
    return stored_reason(graph, node, lambda: concat_tables(call_of(graph, node)))


TABLE.add(BINARY, Rule(_binary_reason, lower_binary), STORED_8)
TABLE.add(
    ops_with(lambda op: op.integer_form == "table"), Rule(_table_reason, _lower_table), STORED_8
)
TABLE.add("quantize", Rule(_table_reason, _lower_quantize), STORED_8)
TABLE.add("dequantize", Rule(dequantize_reason, _lower_dequantize), STORED_8)
TABLE.add("concat", Rule(_concat_reason, _lower_concat), STORED_8)
