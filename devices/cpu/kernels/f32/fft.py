"""Lower the Fourier ops: rfft2d, dft, stft, and complex_abs behind them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trireme.devices.cpu.codegen.ir import Function, Index, Value
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.fft_transform import (
    FourierTransform,
    SignalWalk,
    factors_of,
    fft_kernel,
    places_of,
    twiddles,
)
from trireme.devices.cpu.kernels.lowering import (
    TABLE,
    Context,
    Operand,
    Rule,
    Step,
    Temp,
    begin,
    deal,
    finish,
)
from trireme.ir.graph import Graph, Node

_MOST_LOCAL_BYTES = 8 << 20


def _step(
    context: Context,
    node: Node,
    transform: FourierTransform,
    source: Operand,
    target: int | Temp,
    window: Operand | None = None,
) -> Step:
    code, chunks, local_bytes, seconds = context.kernel(fft_kernel, transform)
    extra = () if window is None else (window,)
    reads = (source, twiddles(transform.length), places_of(transform.length), *extra)
    return Step(code, reads, (target,), chunks, local_bytes, seconds, (node.id,), family="fft_f32")


def _lower_rfft2d(context: Context, node: Node) -> list[Step]:
    *lead, height, width = context.type(node.used[0]).dims
    rows, columns = node.attrs["fft_length"]
    images, bins, used = math.prod(lead), columns // 2 + 1, min(height, rows)
    lines = FourierTransform(
        images,
        used,
        columns,
        min(width, columns),
        bins,
        SignalWalk(height * width, width, 1),
        SignalWalk((1 if rows == 1 else used) * bins, bins, 1),
    )
    source, y = context.operand(node.used[0]), node.outputs[0]
    if rows == 1:
        return [_step(context, node, lines, source, y)]
    between = Temp(f"%{y} lines", 8 * images * used * bins)
    down = FourierTransform(
        images,
        bins,
        rows,
        used,
        rows,
        SignalWalk(used * bins, 1, bins),
        SignalWalk(rows * bins, 1, bins),
        parts=2,
        is_real=False,
    )
    return [_step(context, node, lines, source, between), _step(context, node, down, between, y)]


def _rfft2d_reason(graph: Graph, node: Node) -> str | None:
    return next((r for n in node.attrs["fft_length"] if (r := _length_reason(node, n))), None) or (
        _empty_reason(graph, node)
    )


def _empty_reason(graph: Graph, node: Node) -> str | None:
    if all(graph.type(i).elements for i in (node.used[0], node.outputs[0])):
        return None
    return f"{node.op} has no native kernel for empty tensors"


def _length_reason(node: Node, length: int) -> str | None:
    if factors_of(length) is None:
        return f"{node.op} has no native kernel for length {length}: a prime factor is above 13"
    if 8 * 16 * length > _MOST_LOCAL_BYTES:
        return f"{node.op} has no native kernel for length {length}"
    return None


def _constant(graph: Graph, node: Node, position: int) -> int | None:
    """Return an optional constant of one element."""
    value = node.inputs[position] if position < len(node.inputs) else None
    data = None if value is None else graph.values[value].data
    return None if data is None else int(data.reshape(-1)[0])


def _is_open(graph: Graph, node: Node, positions: Sequence[int]) -> bool:
    """Whether an optional input is unknown before the run."""
    given = [node.inputs[k] for k in positions if k < len(node.inputs)]
    return any(value is not None and not graph.values[value].is_constant for value in given)


def _dft_of(graph: Graph, node: Node) -> FourierTransform:
    x, y = graph.type(node.used[0]).dims, graph.type(node.outputs[0]).dims
    axis = _constant(graph, node, 2)
    at = (-2 if axis is None else axis) % len(x)
    given = _constant(graph, node, 1)
    length = x[at] if given is None else given
    outer, inner = math.prod(x[:at]), math.prod(x[at + 1 : -1])
    onesided = bool(node.attrs["onesided"])
    return FourierTransform(
        outer,
        inner,
        length,
        min(x[at], length),
        y[at],
        SignalWalk(x[at] * inner, 1, inner),
        SignalWalk(y[at] * inner, 1, inner),
        x[-1],
        x[-1] == 1 or onesided,
        bool(node.attrs["inverse"]),
    )


def _dft_reason(graph: Graph, node: Node) -> str | None:
    if _is_open(graph, node, (1, 2)):
        return "dft has native kernels for a constant length and axis only"
    if node.attrs["inverse"] and node.attrs["onesided"]:
        return "dft has no native kernel for a one-sided inverse"
    missing = _empty_reason(graph, node)
    return missing or _length_reason(node, _dft_of(graph, node).length)


def _lower_dft(context: Context, node: Node) -> list[Step]:
    transform = _dft_of(context.graph, node)
    return [_step(context, node, transform, context.operand(node.used[0]), node.outputs[0])]


def _stft_of(graph: Graph, node: Node) -> FourierTransform:
    x, y = graph.type(node.used[0]).dims, graph.type(node.outputs[0]).dims
    step, given = _constant(graph, node, 1), _constant(graph, node, 3)
    window = node.inputs[2] if len(node.inputs) > 2 else None
    length = given or (x[1] if window is None else graph.type(window).dims[0])
    _, frames, bins, _ = y
    parts = x[2] if len(x) == 3 else 1
    return FourierTransform(
        x[0],
        frames,
        length,
        length,
        bins,
        SignalWalk(x[1], step or 1, 1),
        SignalWalk(frames * bins, bins, 1),
        parts,
        parts == 1,
        is_windowed=window is not None,
    )


def _stft_reason(graph: Graph, node: Node) -> str | None:
    if _is_open(graph, node, (1, 3)):
        return "stft has native kernels for a constant step and length only"
    missing = _empty_reason(graph, node)
    return missing or _length_reason(node, _stft_of(graph, node).length)


def _lower_stft(context: Context, node: Node) -> list[Step]:
    transform = _stft_of(context.graph, node)
    window = context.operand(w) if (w := (*node.inputs, None, None)[2]) is not None else None
    source = context.operand(node.used[0])
    return [_step(context, node, transform, source, node.outputs[0], window)]


def _abs_kernel(isa: Isa, count: int) -> tuple[Code, int, float]:
    """Return the kernel of sqrt(re^2 + im^2), its chunks and seconds; nothing overflows inside."""
    fn, (x, y), chunk, _ = begin("complex_abs_f32", isa, 2)
    vectors, rest = divmod(count, isa.lanes)
    seconds = (vectors + 1) * 20 / 3e9
    size, chunks = deal(max(vectors, 1), seconds)
    first: Index = chunk * size if chunks > 1 else 0
    for v in fn.range(first, fn.minimum(first + size, vectors)):
        _abs(fn, fn.at(x, v * (2 * isa.lanes)), fn.at(y, v * isa.lanes), isa.lanes)
    with fn.when(fn.compare("eq", chunk, 0)):
        for k in fn.range(count - rest, count):
            _abs(fn, fn.at(x, k * 2), fn.at(y, k), 1)
    return finish(fn), chunks, seconds


def _abs(fn: Function, x: Value, y: Value, lanes: int) -> None:
    type = vector(lanes, "float")
    halves = [fn.load(type, fn.at(x, k * lanes)) for k in (0, 1)]
    if lanes > 1:
        low, high = halves
        halves = [fn.shuffle(low, high, range(k, 2 * lanes, 2)) for k in (0, 1)]
    re, im = (fn.unary("fabs", half) for half in halves)
    more = fn.select(fn.compare("ogt", re, im), re, im)
    less = fn.select(fn.compare("ogt", re, im), im, re)
    ratio = less / more
    made = more * fn.unary("sqrt", fn.fma(ratio, ratio, fn.as_value(type, 1.0)))
    made = fn.select(fn.compare("oeq", more, 0.0), re + im, made)  # 0, or NaN
    for part in (re, im):
        made = fn.select(fn.compare("oeq", part, math.inf), part, made)
    fn.store(made, y)


def _lower_abs(context: Context, node: Node) -> list[Step]:
    code, chunks, seconds = context.kernel(_abs_kernel, context.type(node.used[0]).elements)
    reads = (context.operand(node.used[0]),)
    return [Step(code, reads, node.outputs, chunks, seconds=seconds, nodes=(node.id,))]


TABLE.add("rfft2d", Rule(_rfft2d_reason, _lower_rfft2d), ["float32"])
TABLE.add("dft", Rule(_dft_reason, _lower_dft), ["float32"])
TABLE.add("stft", Rule(_stft_reason, _lower_stft), ["float32"])
TABLE.add("complex_abs", Rule(_empty_reason, _lower_abs), ["complex64"])
