"""Elementwise kernels on stored integers: add, sub, mul, prelu, tables; and to floats and back.

The walk over memory, with broadcasting, is the one of the float kernels (elementwise.plan_walk).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from trireme.backend.kernel_table import STORED_8, STORED_16
from trireme.devices.cpu.codegen.ir import Function, Index, Value
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.elementwise import ElementWalk, plan_walk, row_offset
from trireme.devices.cpu.kernels.int8.add import lower_sum
from trireme.devices.cpu.kernels.int8.arithmetic import (
    ELEMENTS,
    clamp_and_narrow,
    load_stored,
    requantise,
    splat_scale,
    store_stored,
    stored_reason,
    widen,
)
from trireme.devices.cpu.kernels.int8.conversions import (
    STORED,
    conversion_of,
    conversion_step,
    dequantize_reason,
    quantize_reason,
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
    in_every_shape,
)
from trireme.ir.graph import Graph, Node
from trireme.ir.op import Call, call_of, ops_with
from trireme.ops.integer import (
    EIGHT_BIT,
    TABLES_16,
    AddParams,
    add_params,
    mul_params,
    prelu_params,
    stored_dtypes,
    sub_params,
    unary_table,
)
from trireme.support.dtypes import Array
from trireme.support.errors import GraphError, InternalError

_MOST_SHIFT = 14
"""A product of two bytes, of 17 bits with its sign, may be shifted left so far."""
Combine = Callable[[Function, Value, Value], Value]
"""(fn, a, b) -> result, all vectors: i32 operands in, stored integers out."""


SUMS: dict[str, Callable[..., AddParams]] = {"add": add_params, "sub": sub_params}


def _element(call: Call) -> str:
    return ELEMENTS[call.outputs[0].dtype]


def _sum(call: Call, params: Callable[..., AddParams]) -> Combine:
    p, element = params(call, stored_dtypes(call)), _element(call)

    def combine(fn: Function, a: Value, b: Value) -> Value:
        type = a.type
        sides = []
        for x, zero, multiplier, shift in (
            (a, p.a_zero, p.a_multiplier, p.a_shift),
            (b, p.b_zero, p.b_multiplier, p.b_shift),
        ):
            moved = fn.emit(type, f"shl {x - zero}, {x.text_of(p.left_shift)}")
            sides.append(requantise(fn, moved, splat_scale(fn, type, multiplier, shift)))
        scale = splat_scale(fn, type, p.y_multiplier, p.y_shift, p.rounding)
        return clamp_and_narrow(
            fn, requantise(fn, sides[0] + sides[1], scale), p.y_zero, p.low, p.high, element
        )

    return combine


def _product(call: Call) -> Combine:
    p, element = mul_params(call, stored_dtypes(call)), _element(call)

    def combine(fn: Function, a: Value, b: Value) -> Value:
        scale = splat_scale(fn, a.type, p.multiplier, p.shift, p.rounding)
        product = (a - p.a_zero) * (b - p.b_zero)
        result = requantise(fn, product, scale)
        return clamp_and_narrow(fn, result, p.y_zero, p.low, p.high, element)

    return combine


def _prelu(call: Call) -> Combine:
    p = prelu_params(call)
    if max(p.shift, p.slope_shift) > _MOST_SHIFT:
        raise GraphError(f"its output is finer than its input by more than 2**{_MOST_SHIFT}")

    def combine(fn: Function, a: Value, slope: Value) -> Value:
        x = a - p.x_zero
        product = x * (slope - p.slope_zero)
        scale = splat_scale(fn, x.type, p.multiplier, p.shift, p.rounding)
        positive = requantise(fn, x, scale)
        scale = splat_scale(fn, x.type, p.slope_multiplier, p.slope_shift, p.rounding)
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
    if node.op in SUMS and context.type(node.outputs[0]).dtype in EIGHT_BIT:
        steps = lower_sum(context, node, SUMS[node.op](call_of(graph, node)))
        if steps:
            return steps
    combine = BINARY[node.op](call_of(graph, node))
    a, b = node.inputs
    if a is None or b is None:
        raise InternalError(f"{node.label}: an operand is missing")
    type = context.type(node.outputs[0])
    element = ELEMENTS[type.dtype]
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
            bases = [
                fn.at(p, row_offset(fn, row, walk, k), element) for k, p in enumerate(pointers)
            ]
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
    lanes, element = fn.isa.lanes, ELEMENTS[context.type(node.outputs[0]).dtype]
    operands = []
    for base, strides, value in zip(bases[:2], walk.strides, node.used * 2, strict=False):
        if strides[-1]:
            x = load_stored(fn, fn.at(base, at, element), lanes, count, element)
        else:
            x = fn.splat(fn.load(element, base, 1), lanes)
        operands.append(widen(fn, x, context.type(value).dtype))
    store_stored(fn, combine(fn, operands[0], operands[1]), fn.at(bases[2], at, element), count)


def _binary_reason(graph: Graph, node: Node) -> str | None:
    call = call_of(graph, node)
    return stored_reason(graph, node, lambda: BINARY[node.op](call), stored_dtypes(call))


def table_kernel(
    isa: Isa, rows: tuple[int, int, int, int], elements: tuple[str, str] = ("i8", "i8")
) -> tuple[Code, int]:
    """Return the kernel that maps numbers through a table, and its chunks; rows as of `table_step`.

    Operands: the numbers, the table, the result; elements: the types of numbers and results
    """
    narrow, made = elements
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
        number = fn.convert("zext", fn.load(narrow, fn.at(x, i, narrow), 1), "i64")
        result = fn.load(made, fn.at(entries, number, made), 1)
        at = i
        if stride != length:
            at = fn.integer("udiv", i, length) * stride + fn.integer("urem", i, length)
        fn.store(result, fn.at(y, at + start, made), 1)

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
    """Return the step that maps numbers through a table, row by row into a larger output.

    rows: (rows, length of a row, from one output row to the next, where the first begins)
    """
    ends = (context.type(value), context.type(node.outputs[0]))
    elements = (ELEMENTS[ends[0].dtype], ELEMENTS[ends[1].dtype])
    code, chunks = context.kernel(table_kernel, rows, elements)
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
    table = unary_table(node.op, call_of(context.graph, node), STORED)
    elements = context.type(node.outputs[0]).elements
    return [table_step(context, node, node.used[0], table, (1, elements, elements, 0))]


def _table_reason(graph: Graph, node: Node) -> str | None:
    if node.op == "quantize" and graph.type(node.used[0]).quant is None:
        return quantize_reason(graph, node)
    call = call_of(graph, node)
    dtypes = STORED if node.op == "quantize" else stored_dtypes(call)
    return stored_reason(graph, node, lambda: unary_table(node.op, call, dtypes), dtypes)


def _quantize_open_reason(graph: Graph, node: Node) -> str | None:
    if graph.type(node.used[0]).quant is not None:
        return "quantize has no kernel for every shape from one scale to another"
    return None


def _lower_quantize(context: Context, node: Node) -> Sequence[Step]:
    if context.type(node.used[0]).quant is not None:
        return _lower_table(context, node)
    return [conversion_step(context, node, conversion_of(context.graph, node))]


def _lower_dequantize(context: Context, node: Node) -> Sequence[Step]:
    return [conversion_step(context, node, conversion_of(context.graph, node))]


_BOTH = (*STORED_8, *STORED_16)
TABLE.add(BINARY, Rule(_binary_reason, lower_binary), STORED_8)
TABLE.add(("add", "sub", "mul"), Rule(_binary_reason, lower_binary), STORED_16)
TABLE.add(
    ops_with(lambda op: op.integer_form == "table"), Rule(_table_reason, _lower_table), STORED_8
)
TABLE.add(TABLES_16, Rule(_table_reason, _lower_table), STORED_16)
TABLE.add("quantize", Rule(_table_reason, _lower_quantize, _quantize_open_reason), _BOTH)
TABLE.add("dequantize", Rule(dequantize_reason, _lower_dequantize, in_every_shape), _BOTH)
