"""lrn: each element over a power of the sum of squares of neighbouring channels."""

from __future__ import annotations

import math
from collections.abc import Callable

from trireme.devices.cpu import mathfn
from trireme.devices.cpu.ir import Index, Value, Var, vector
from trireme.devices.cpu.kernels import (
    RULES,
    Context,
    Rule,
    Step,
    begin,
    deal,
    finish,
    float_reason,
)
from trireme.graph import Graph, Node


def _reason(graph: Graph, node: Node) -> str | None:
    if node.attrs["layout"] != "NHWC":
        return "lrn has native kernels for NHWC only"
    return float_reason(graph, node)


def _lower(context: Context, node: Node) -> list[Step]:
    """Lower lrn: the squares of a position go to the thread's memory between zeros, and the window
    slides over them.
    """
    attrs, lanes = node.attrs, context.isa.lanes
    *positions, channels = context.type(node.used[0]).dims
    rows, before = math.prod(positions), (attrs["size"] - 1) // 2
    type, padded = vector(lanes, "float"), -(-channels // lanes) * lanes
    fn, (x, y), chunk, local = begin("lrn_f32", context.isa, 2)
    seconds = rows * channels * 40 / (lanes * 2e9)
    size, chunks = deal(rows, seconds)
    first: Index = chunk * size if chunks > 1 else 0
    room = before + padded + attrs["size"] + lanes

    def vectors(emit: Callable[[Index, int], None]) -> None:
        whole = channels // lanes * lanes
        for i in fn.range(0, whole, lanes):
            emit(i, lanes)
        if whole < channels:
            emit(whole, channels - whole)

    for i in fn.range(0, -(-room // lanes) * lanes, lanes):
        fn.store(fn.as_value(type, 0.0), fn.at(local, i))
    for row in fn.range(first, fn.minimum(first + size, rows)):
        base: Index = row * channels
        source, target = fn.at(x, base), fn.at(y, base)

        def square(i: Index, count: int, source: Value = source) -> None:
            element = fn.load_some(type, fn.at(source, i), count)
            fn.store(element * element, fn.at(local, i + before))

        def divide(i: Index, count: int, source: Value = source, target: Value = target) -> None:
            total = Var(fn, type, 0.0)
            for k in range(attrs["size"]):
                total.set(total.get() + fn.load(type, fn.at(local, i + k)))
            scale = fn.as_value("float", attrs["alpha"] / attrs["size"])
            level = fn.fma(total.get(), fn.splat(scale, lanes), float(attrs["bias"]))
            power = mathfn.exp(fn, mathfn.log(fn, level) * -float(attrs["beta"]))
            element = fn.load_some(type, fn.at(source, i), count)
            fn.store_some(element * power, fn.at(target, i), count)

        vectors(square)
        vectors(divide)
    return [
        Step(
            finish(fn), (context.operand(node.used[0]),), (node.outputs[0],), chunks,
            4 * (room + 2 * lanes), seconds, (node.id,),
        )
    ]  # fmt: skip


RULES["lrn"] = Rule(_reason, _lower)
