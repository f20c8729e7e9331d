"""Pools and means on stored integers: what looks at many elements for one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trireme.backend.kernel_table import STORED_8, STORED_16
from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.int8.arithmetic import (
    ELEMENTS,
    clamp_and_narrow,
    divide_to_even,
    load_stored,
    requantise,
    splat_scale,
    store_stored,
    stored_reason,
    widen,
)
from trireme.devices.cpu.kernels.lines import for_lines
from trireme.devices.cpu.kernels.lowering import (
    ELEMENTWISE_Q8,
    TABLE,
    Context,
    Rule,
    Step,
    begin,
    finish,
    split_evenly,
)
from trireme.ir.graph import Graph, Node, Rounding
from trireme.ir.op import call_of
from trireme.ops.integer import (
    SIXTEEN_BIT,
    ReduceParams,
    pool_params,
    reduce_mean_params,
    stored_dtypes,
)
from trireme.ops.shapes import may_miss
from trireme.support.errors import InternalError

_MOST_SUMMED = 65535
"""Numbers of int16 whose sum fits int32."""


def _lower_pool(context: Context, node: Node) -> Sequence[Step]:
    """Return the step of max_pool or average_pool over NHWC: a vector of channels at a time."""
    x, y = context.type(node.used[0]).dims, context.type(node.outputs[0]).dims
    fn, (source, out), chunk, _ = begin(f"{node.op}_q8", context.isa, 2)
    rows = y[0] * y[1]
    work = y[2] * x[3] * math.prod(node.attrs["kernel"])
    size, chunks = split_evenly(rows, max(1, (128 << 10) // max(work, 1)))
    first = chunk * size
    lanes, element = context.isa.lanes, ELEMENTS[context.type(node.used[0]).dtype]
    for row in fn.range(first, fn.minimum(first + size, rows)):
        image = fn.integer("udiv", row, y[1]) if y[0] > 1 else 0
        line = fn.integer("urem", row, y[1]) if y[0] > 1 else row
        start = fn.at(source, image * (x[1] * x[2] * x[3]), element)
        for column in fn.range(0, y[2]):
            target = fn.at(out, (row * y[2] + column) * y[3], element)
            whole = x[3] // lanes * lanes
            for c in fn.range(0, whole, lanes):
                _pool_vector(fn, (context, node), (start, target), (line, column, c), lanes)
            if whole < x[3]:
                place = (line, column, whole)
                _pool_vector(fn, (context, node), (start, target), place, x[3] - whole)
    return [
        Step(
            finish(fn),
            (context.operand(node.used[0]),),
            (node.outputs[0],),
            chunks,
            seconds=rows * work / (lanes * 1e9),
            nodes=(node.id,),
            family=ELEMENTWISE_Q8,
        )
    ]


def _pool_vector(
    fn: Function,
    where: tuple[Context, Node],
    pointers: tuple[Value, Value],
    place: tuple[Index, Index, Index],
    count: int,
) -> None:
    """Emit one output pixel's vector of channels."""
    context, node = where
    source, target = pointers
    line, column, c = place
    call = call_of(context.graph, node)
    params, type_in = pool_params(call, stored_dtypes(call)), context.type(node.used[0])
    element = ELEMENTS[type_in.dtype]
    (_, height, width, channels), lanes = type_in.dims, fn.isa.lanes
    average = node.op == "average_pool"
    wide = vector(lanes, "i32")
    total = Var(fn, wide, 0 if average else -(1 << 30))
    bounds = []
    for at, size, axis in ((line, height, 0), (column, width, 1)):
        kernel, stride = node.attrs["kernel"][axis], node.attrs["strides"][axis]
        low = at * stride - node.attrs["pads"][axis]
        if node.attrs["pads"][axis] == 0 and node.attrs["pads"][axis + 2] == 0:
            bounds.append((low, low + kernel))
        else:
            bounds.append((fn.maximum(low, 0), fn.minimum(low + kernel, size)))
    (top, bottom), (left, right) = bounds
    for iy in fn.range(top, bottom):
        for ix in fn.range(left, right):
            pixel = fn.at(source, (iy * width + ix) * channels, element)
            stored = load_stored(fn, fn.at(pixel, c, element), lanes, count, element)
            loaded = widen(fn, stored, type_in.dtype)
            if average:
                total.set(total.get() + loaded)
            else:
                total.set(fn.call(wide, f"llvm.smax.v{lanes}i32", total.get(), loaded))
    result = total.get()
    if average:
        number = (bottom - top) * (right - left)
        if isinstance(number, Value):
            number = fn.splat(fn.convert("trunc", number, "i32"), lanes)
        if params.rounding is Rounding.HALF_EVEN:
            zeros = fn.as_value(wide, params.zero)
            result = divide_to_even(fn, result - zeros * number, number) + zeros
        else:
            result = _divide(fn, result, number)
    made = clamp_and_narrow(fn, result, 0, params.low, params.high, element)
    store_stored(fn, made, fn.at(target, c, element), count)


def _divide(fn: Function, total: Value, count: Value | int) -> Value:
    """Return total / count rounded to nearest, ties away from zero."""
    half = (
        count // 2
        if isinstance(count, int)
        else (fn.emit(total.type, f"lshr {count}, {count.text_of(1)}"))
    )
    up, down = total + half, total - half
    moved = fn.select(fn.compare("sgt", total, 0), up, down)
    return fn.emit(total.type, f"sdiv {moved}, {moved.text_of(count)}")


def _pool_reason(graph: Graph, node: Node) -> str | None:
    x = graph.type(node.used[0])
    if len(x.shape) != 4:
        return f"quantised {node.op} has native kernels for one or two spatial axes only"
    if any(d != 1 for d in node.attrs["dilations"]) or len(node.outputs) > 1:
        return f"quantised {node.op} has no native kernel for dilations or indices"
    if node.attrs["ceil_mode"] or node.attrs.get("count_include_pad"):
        return f"quantised {node.op} has no native kernel for ceil_mode or count_include_pad"
    pads, kernel = node.attrs["pads"], node.attrs["kernel"]
    if node.op == "average_pool" and any(
        may_miss(x.dims[1 + a], kernel[a], (pads[a], pads[a + 2]), 1) for a in range(2)
    ):
        return "quantised average_pool has no native kernel for windows of pads alone"
    call = call_of(graph, node)
    dtypes = stored_dtypes(call)
    if dtypes == SIXTEEN_BIT and math.prod(kernel) > _MOST_SUMMED:
        return f"{node.op} on int16 has a native kernel for {_MOST_SUMMED} elements at most"
    return stored_reason(graph, node, lambda: pool_params(call, dtypes), dtypes)


def _mean_shape(graph: Graph, node: Node) -> tuple[int, int, int] | None:
    """Return (outer, reduced, inner) if the reduced axes lie together, else None."""
    dims = graph.type(node.used[0]).dims
    axes = tuple(range(len(dims)))
    if len(node.used) > 1:
        data = graph.values[node.used[1]].data
        if data is None:
            return None
        axes = tuple(sorted(int(a) % len(dims) for a in data.reshape(-1))) or axes
    if axes != tuple(range(axes[0], axes[-1] + 1)):
        return None
    first, last = axes[0], axes[-1] + 1
    return math.prod(dims[:first]), math.prod(dims[first:last]), math.prod(dims[last:])


def mean_kernel(
    isa: Isa, dtype: str, shape: tuple[int, int, int], p: ReduceParams
) -> tuple[Code, int]:
    """Return the kernel of a mean, and its chunks. Operands: the tensor, the means.

    shape: outer, reduced, inner
    """
    outer, reduced, inner = shape
    lanes, element = isa.lanes, ELEMENTS[dtype]
    fn, (x, y), chunk, _ = begin("reduce_mean_q8", isa, 2)
    blocks = -(-inner // lanes)
    wide = vector(lanes, "i32")
    row = fn.integer("udiv", chunk, blocks)
    block = fn.integer("urem", chunk, blocks)

    def one(at: Index, count: int) -> None:
        total = Var(fn, wide, 0)
        start = fn.at(fn.at(x, row * (reduced * inner), element), at, element)
        for k in fn.range(0, reduced):
            place = fn.at(start, k * inner, element)
            loaded = load_stored(fn, place, lanes, count, element)
            total.set(total.get() + widen(fn, loaded, dtype))
        acc = total.get() - p.count * p.x_zero
        made = _scaled_mean(fn, acc, p)
        result = clamp_and_narrow(fn, made, p.y_zero, p.low, p.high, element)
        store_stored(fn, result, fn.at(fn.at(y, row * inner, element), at, element), count)

    tail = inner % lanes
    if blocks > 1 or not tail:
        last = blocks - 1 if tail else blocks
        with fn.when(fn.compare("slt", fn.as_value("i64", block), last)):
            one(block * lanes, lanes)
    if tail:
        with fn.when(fn.compare("eq", fn.as_value("i64", block), blocks - 1)):
            one(inner - tail, tail)
    return finish(fn), outer * blocks


def _scaled_mean(fn: Function, acc: Value, p: ReduceParams) -> Value:
    """Return a mean in steps of the output: see ReduceParams."""
    if p.rounding is Rounding.TWICE:
        return requantise(fn, acc, splat_scale(fn, acc.type, p.multiplier, p.shift))
    wide = fn.convert("sext", acc, vector(fn.isa.lanes, "i64"))
    whole = divide_to_even(fn, wide * p.multiplier, p.divisor << (31 - p.shift))
    return fn.convert("trunc", whole, acc.type)


def _lower_mean(context: Context, node: Node) -> Sequence[Step]:
    """Return the step of reduce_mean: sums of vectors of the inner elements."""
    shape = _mean_shape(context.graph, node)
    if shape is None:
        raise InternalError(f"{node.label}: axes are apart")
    call = call_of(context.graph, node)
    p = reduce_mean_params(call, stored_dtypes(call))
    dtype = context.type(node.used[0]).dtype
    code, chunks = context.kernel(mean_kernel, dtype, shape, p)
    return [
        Step(
            code,
            (context.operand(node.used[0]),),
            (node.outputs[0],),
            chunks,
            seconds=math.prod(shape) / (context.isa.lanes * 1e9),
            nodes=(node.id,),
            family="reduce",
        )
    ]


def _mean_reason(graph: Graph, node: Node) -> str | None:
    shape = _mean_shape(graph, node)
    if shape is None:
        return "quantised reduce_mean has a native kernel for constant neighbouring axes only"
    call = call_of(graph, node)
    dtypes = stored_dtypes(call)
    if dtypes == SIXTEEN_BIT and shape[1] > _MOST_SUMMED:
        return f"reduce_mean on int16 has a native kernel for {_MOST_SUMMED} elements at most"
    return stored_reason(graph, node, lambda: reduce_mean_params(call, dtypes), dtypes)


_BOTH = (*STORED_8, *STORED_16)
TABLE.add(("max_pool", "average_pool"), for_lines(Rule(_pool_reason, _lower_pool)), _BOTH, "NHWC")
TABLE.add("reduce_mean", Rule(_mean_reason, _lower_mean), _BOTH)
