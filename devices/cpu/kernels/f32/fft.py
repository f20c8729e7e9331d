"""Fourier transforms: rfft2d, dft and stft, a vector of signals at a time.

A lane is a signal, so a transform is the textbook's on vectors. A chunk copies as many signals as a
vector has lanes into memory of its thread's own, real and imaginary parts apart, transforms them in
place by decimation in frequency with factors 4, 2, 3, 5, ..., and stores the bins, which come out
with the digits of their numbers reversed. An inverse transform has real and imaginary parts swapped
before and after.
Source: W. Gentleman, G. Sande, Fast Fourier Transforms - For Fun and Profit, 1966
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trireme.devices.cpu.codegen.ir import Function, Index, Value
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.fft_butterfly import Complex, butterfly
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
from trireme.support.dtypes import Array

_FACTORS = (4, 2, 3, 5, 7, 11, 13)
_MOST_LOCAL_BYTES = 8 << 20


@dataclass(frozen=True)
class Walk:
    """Where the elements of signals lie, in items: [outer, inner] signals, and along a signal."""

    outer: int
    inner: int
    step: int


@dataclass(frozen=True)
class Transform:
    """Transforms of outer * inner signals.

    length: of the transform; used: elements that are read, the others are 0; bins: those stored
    parts: floats of an input item, 1 for real ones; is_real: whether imaginary parts count as 0
    is_windowed: whether elements are multiplied by a window first
    """

    outer: int
    inner: int
    length: int
    used: int
    bins: int
    source: Walk
    target: Walk
    parts: int = 1
    is_real: bool = True
    is_inverse: bool = False
    is_windowed: bool = False

    def lanes(self, isa: Isa) -> int:
        """Return the signals of a vector: no more than there are, in a power of two."""
        return min(isa.lanes, 1 << (self.outer * self.inner - 1).bit_length())


def factors_of(length: int) -> list[int] | None:
    """Return a length as a product of factors with a butterfly, None where there is none."""
    found, rest = [], length
    for factor in _FACTORS:
        while rest % factor == 0:
            found.append(factor)
            rest //= factor
    return found if rest == 1 else None


def _twiddles(length: int) -> Array:
    """Return what each stage multiplies by: of each offset, of each output but the first."""
    parts, rest = [], length
    for factor in factors_of(length) or []:
        after = rest // factor
        angles = np.outer(np.arange(after), np.arange(1, factor)) * (-2 * np.pi / rest)
        parts.append(np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(-1))
        rest = after
    return np.concatenate([*parts, np.zeros(2)]).astype(np.float32)


def _places(length: int) -> Array:
    """Return where each bin lies when all stages are done."""
    bins = np.arange(length)
    places, rest = np.zeros(length, np.int64), length
    for factor in factors_of(length) or []:
        rest //= factor
        places += bins % factor * rest
        bins = bins // factor
    return places


def fft_kernel(isa: Isa, transform: Transform) -> tuple[Code, int, int, float]:
    """Return the kernel of transforms, its chunks, bytes of its thread's own and seconds.

    Operands: the signals, twiddles, places of the bins, the window where there is one, the bins
    """
    lanes, signals = transform.lanes(isa), transform.outer * transform.inner
    tiles = -(-signals // lanes)
    stages = len(factors_of(transform.length) or [])
    moved = (transform.used + 2 * transform.bins) * lanes
    cycles = 2 * moved + 12 * stages * transform.length
    seconds = tiles * cycles / 3e9
    fn, operands, chunk, local = begin("fft_f32", isa, 4 + transform.is_windowed)
    body = _Body(fn, transform, operands, local)
    size, chunks = deal(tiles, seconds)
    first: Index = chunk * size if chunks > 1 else 0
    for tile in fn.range(first, fn.minimum(first + size, tiles)):
        start = fn.as_value("i64", tile) * lanes
        count = fn.minimum(signals - start, lanes)
        body.enter(start, count)
        body.stages()
        body.leave(start, count)
    return finish(fn), chunks, 8 * transform.length * lanes, seconds


class _Body:
    """Writes a tile of signals: copies in, stages, copies out."""

    def __init__(
        self, fn: Function, transform: Transform, operands: Sequence[Value], local: Value
    ) -> None:
        self.fn, self.transform = fn, transform
        self.lanes = transform.lanes(fn.isa)
        self.type = vector(self.lanes, "float")
        self.x, self.twiddles, self.places, *window, self.y = operands
        self.window = window[0] if window else None
        planes = [local, fn.at(local, transform.length * self.lanes)]
        self.planes = planes[::-1] if transform.is_inverse else planes  # as seen from outside
        self.inner = planes

    def _signal(self, walk: Walk, signal: Value) -> Value:
        """Return where a signal begins, in items."""
        fn, inner = self.fn, self.transform.inner
        outer, rest = (fn.integer(op, signal, inner) for op in ("udiv", "urem"))
        return fn.as_value("i64", outer) * walk.outer + fn.as_value("i64", rest) * walk.inner

    def enter(self, start: Value, count: Index) -> None:
        """Emit the copy of signals into lanes, with zeros behind them."""
        fn, transform = self.fn, self.transform
        zero = fn.as_value(self.type, 0.0)
        for plane, known in zip(self.planes, (transform.used, self._imaginary()), strict=True):
            for k in fn.range(known, transform.length):
                fn.store(zero, fn.at(plane, k * self.lanes))
        for lane in fn.range(0, fn.as_value("i64", count)):
            at = self._signal(transform.source, start + lane) * transform.parts
            base = fn.at(self.x, at)
            targets = [fn.at(plane, lane) for plane in self.planes]
            for k in fn.range(0, transform.used):
                item = fn.at(base, k * (transform.source.step * transform.parts))
                factor = self.window and fn.load("float", fn.at(self.window, k))
                for part in range(1 + (self._imaginary() > 0)):
                    value = fn.load("float", fn.at(item, part))
                    value = value * factor if factor else value
                    fn.store(value, fn.at(targets[part], k * self.lanes))

    def _imaginary(self) -> int:
        """Return the elements whose imaginary part is read."""
        return 0 if self.transform.is_real else self.transform.used

    def stages(self) -> None:
        """Emit all stages in place."""
        rest, at = self.transform.length, 0
        for factor in factors_of(rest) or []:
            after = rest // factor
            for j in self.fn.range(0, after):
                turns = self._turns(at, j, factor) if after > 1 else []
                for start in self.fn.range(0, self.transform.length, rest):
                    self._butterfly(start + j, after, factor, turns)
            at += after * (factor - 1) * 2
            rest = after

    def _turns(self, at: int, j: Index, factor: int) -> list[Complex]:
        fn = self.fn
        base = fn.at(fn.at(self.twiddles, at), j * (2 * (factor - 1)))
        numbers = [fn.load("float", fn.at(base, k)) for k in range(2 * (factor - 1))]
        wide = [fn.splat(number, self.lanes) for number in numbers]
        return list(zip(wide[::2], wide[1::2], strict=True))

    def _butterfly(self, at: Index, step: int, factor: int, turns: list[Complex]) -> None:
        fn = self.fn
        places = [
            [fn.at(fn.at(plane, at * self.lanes), k * step * self.lanes) for plane in self.inner]
            for k in range(factor)
        ]
        points = [(fn.load(self.type, re), fn.load(self.type, im)) for re, im in places]
        for k, (re, im) in enumerate(butterfly(fn, points)):
            if k and turns:
                cos, sin = turns[k - 1]
                re, im = fn.fma(re, cos, -(im * sin)), fn.fma(re, sin, im * cos)
            fn.store(re, places[k][0])
            fn.store(im, places[k][1])

    def leave(self, start: Value, count: Index) -> None:
        """Emit the stores of the bins."""
        fn, transform = self.fn, self.transform
        for lane in fn.range(0, fn.as_value("i64", count)):
            base = fn.at(self.y, self._signal(transform.target, start + lane) * 2)
            sources = [fn.at(plane, lane) for plane in self.planes]
            for k in fn.range(0, transform.bins):
                place = fn.load("i64", fn.at(self.places, k, "i64"), 8) * self.lanes
                item = fn.at(base, k * (transform.target.step * 2))
                for part, source in enumerate(sources):
                    value = fn.load("float", fn.at(source, place))
                    if transform.is_inverse:
                        value = value * (1.0 / transform.length)
                    fn.store(value, fn.at(item, part))


def _step(
    context: Context,
    node: Node,
    transform: Transform,
    source: Operand,
    target: int | Temp,
    window: Operand | None = None,
) -> Step:
    code, chunks, local_bytes, seconds = context.kernel(fft_kernel, transform)
    extra = () if window is None else (window,)
    reads = (source, _twiddles(transform.length), _places(transform.length), *extra)
    return Step(code, reads, (target,), chunks, local_bytes, seconds, (node.id,), family="fft_f32")


def _lower_rfft2d(context: Context, node: Node) -> list[Step]:
    *lead, height, width = context.type(node.used[0]).dims
    rows, columns = node.attrs["fft_length"]
    images, bins, used = math.prod(lead), columns // 2 + 1, min(height, rows)
    lines = Transform(
        images,
        used,
        columns,
        min(width, columns),
        bins,
        Walk(height * width, width, 1),
        Walk((1 if rows == 1 else used) * bins, bins, 1),
    )
    source, y = context.operand(node.used[0]), node.outputs[0]
    if rows == 1:
        return [_step(context, node, lines, source, y)]
    between = Temp(f"%{y} lines", 8 * images * used * bins)
    down = Transform(
        images,
        bins,
        rows,
        used,
        rows,
        Walk(used * bins, 1, bins),
        Walk(rows * bins, 1, bins),
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
    """Whether one of some optional inputs is not known before the run."""
    given = [node.inputs[k] for k in positions if k < len(node.inputs)]
    return any(value is not None and not graph.values[value].is_constant for value in given)


def _dft_of(graph: Graph, node: Node) -> Transform:
    x, y = graph.type(node.used[0]).dims, graph.type(node.outputs[0]).dims
    axis = _constant(graph, node, 2)
    at = (-2 if axis is None else axis) % len(x)
    given = _constant(graph, node, 1)
    length = x[at] if given is None else given
    outer, inner = math.prod(x[:at]), math.prod(x[at + 1 : -1])
    onesided = bool(node.attrs["onesided"])
    return Transform(
        outer,
        inner,
        length,
        min(x[at], length),
        y[at],
        Walk(x[at] * inner, 1, inner),
        Walk(y[at] * inner, 1, inner),
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


def _stft_of(graph: Graph, node: Node) -> Transform:
    x, y = graph.type(node.used[0]).dims, graph.type(node.outputs[0]).dims
    step, given = _constant(graph, node, 1), _constant(graph, node, 3)
    window = node.inputs[2] if len(node.inputs) > 2 else None
    length = given or (x[1] if window is None else graph.type(window).dims[0])
    _, frames, bins, _ = y
    parts = x[2] if len(x) == 3 else 1
    return Transform(
        x[0],
        frames,
        length,
        length,
        bins,
        Walk(x[1], step or 1, 1),
        Walk(frames * bins, bins, 1),
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
