"""Softmax on int16 along the last axis, number by number: see Softmax16Params."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trireme.backend.kernel_table import STORED_16
from trireme.devices.cpu.codegen.ir import Function, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.int8.arithmetic import stored_reason
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
from trireme.ir.op import call_of
from trireme.ops.integer import SIXTEEN_BIT, softmax_16_params

_ELEMENT_S = 3e-9
_MOST_LENGTH = 65535
"""Powers of 15 bits whose sum fits 31."""


def softmax_16_kernel(isa: Isa, rows: int, length: int) -> tuple[Code, int]:
    """Return the kernel, and its chunks. Operands: x, powers, reciprocals (int32), the result."""
    fn, (x, powers, reciprocals, y), chunk, _ = begin("softmax_16", isa, 4)
    size, chunks = deal(rows, rows * length * _ELEMENT_S)
    first = chunk * size
    for row in fn.range(first, fn.minimum(first + size, rows)):
        source, target = (fn.at(one, row * length, "i16") for one in (x, y))
        largest, total = Var(fn, "i64", -32768), Var(fn, "i64", 0)
        for i in fn.range(0, length):
            largest.set(fn.maximum(_number(fn, source, i), largest.get()))

        def power(i: Value | int, source: Value = source, largest: Var = largest) -> Value:
            below = largest.get() - _number(fn, source, i)
            loaded = fn.load("i32", fn.at(powers, below, "i32"))
            return fn.convert("sext", loaded, "i64")

        for i in fn.range(0, length):
            total.set(total.get() + power(i))
        gain, shift, half = _reciprocal(fn, reciprocals, total.get())
        for i in fn.range(0, length):
            share = fn.emit("i64", f"ashr {power(i) * gain + half}, {shift.text}")
            bounded = fn.minimum(fn.maximum(share, 0), 32767)
            narrow = fn.convert("trunc", fn.as_value("i64", bounded), "i16")
            fn.store(narrow, fn.at(target, i, "i16"), 2)
    return finish(fn), chunks


def _number(fn: Function, x: Value, i: Value | int) -> Value:
    return fn.convert("sext", fn.load("i16", fn.at(x, i, "i16"), 2), "i64")


def _reciprocal(fn: Function, table: Value, total: Value) -> tuple[Value, Value, Value]:
    """Return the reciprocal of a sum, the shift of a product with it, and half of its unit."""
    flag = Value(fn, "i1", "true")
    zeros = fn.call("i64", "llvm.ctlz.i64", total, flag)
    bits = 64 - zeros
    moved = fn.emit("i64", f"shl {total}, {(31 - bits).text}") + (1 << 13)
    whole = fn.emit("i64", f"ashr {moved}, 14") - ((1 << 15) + (1 << 16))
    at = fn.as_value("i64", fn.minimum(fn.maximum(whole, -32768), 32767))
    place = fn.emit("i64", f"ashr {at}, 7") + 256
    offset = fn.emit("i64", f"and {at}, 127")
    base, after = (
        fn.convert("sext", fn.load("i32", fn.at(table, place + k, "i32")), "i64") for k in range(2)
    )
    delta = fn.emit("i64", f"ashr {(after - base) * offset + 64}, 7")
    half = fn.emit("i64", f"shl i64 1, {(bits - 2).text}")
    return base + delta, bits - 1, half


def _lower(context: Context, node: Node) -> Sequence[Step]:
    p = softmax_16_params(call_of(context.graph, node))
    x = context.type(node.used[0])
    length = x.dims[-1]
    code, chunks = context.kernel(softmax_16_kernel, x.elements // length, length)
    tables = (p.powers.astype(np.int32), p.reciprocals.astype(np.int32))
    return [
        Step(
            code,
            (context.operand(node.used[0]), *tables),
            (node.outputs[0],),
            chunks,
            seconds=x.elements * _ELEMENT_S,
            nodes=(node.id,),
            family=ELEMENTWISE_Q8,
        )
    ]


def _reason(graph: Graph, node: Node) -> str | None:
    x = graph.type(node.used[0])
    if node.attrs["axis"] not in (-1, len(x.shape) - 1):
        return "softmax on int16 has a native kernel for the last axis only"
    call = call_of(graph, node)
    reason = stored_reason(graph, node, lambda: softmax_16_params(call), SIXTEEN_BIT)
    if reason is None and x.dims[-1] > _MOST_LENGTH:
        return f"softmax on int16 has a native kernel for rows of {_MOST_LENGTH} at most"
    return reason


TABLE.add("softmax", Rule(_reason, _lower), STORED_16)
