"""The kernel of Fourier transforms: a vector of signals at a time.

A lane is a signal, so a transform is the textbook's on vectors. A chunk copies as many signals as a
vector has lanes into memory of its own thread, real and imaginary parts apart. It transforms them
in place by decimation in frequency with factors 4, 2, 3, 5, .... It stores the bins, which come out
with the digits of their numbers reversed. An inverse transform has real and imaginary parts swapped
before and after.
Source: W. Gentleman, G. Sande, Fast Fourier Transforms - For Fun and Profit, 1966
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trireme.devices.cpu.codegen.ir import Function, Index, Value
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.fft_butterfly import Complex, butterfly
from trireme.devices.cpu.kernels.lowering import begin, deal, finish
from trireme.support.dtypes import Array
from trireme.support.records import dataclass

_FACTORS = (4, 2, 3, 5, 7, 11, 13)


@dataclass(frozen=True)
class SignalWalk:
    """The distances of elements, in items: of [outer, inner] signals, and along a signal."""

    outer: int
    inner: int
    step: int


@dataclass(frozen=True)
class FourierTransform:
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
    source: SignalWalk
    target: SignalWalk
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


def twiddles(length: int) -> Array:
    """Return what each stage multiplies by: of each offset, of each output but the first."""
    parts, rest = [], length
    for factor in factors_of(length) or []:
        after = rest // factor
        angles = np.outer(np.arange(after), np.arange(1, factor)) * (-2 * np.pi / rest)
        parts.append(np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(-1))
        rest = after
    return np.concatenate([*parts, np.zeros(2)]).astype(np.float32)


def places_of(length: int) -> Array:
    """Return where each bin lies when all stages are done."""
    bins = np.arange(length)
    places, rest = np.zeros(length, np.int64), length
    for factor in factors_of(length) or []:
        rest //= factor
        places += bins % factor * rest
        bins = bins // factor
    return places


def fft_kernel(isa: Isa, transform: FourierTransform) -> tuple[Code, int, int, float]:
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
    body = _SignalTile(fn, transform, operands, local)
    size, chunks = deal(tiles, seconds)
    first: Index = chunk * size if chunks > 1 else 0
    for tile in fn.range(first, fn.minimum(first + size, tiles)):
        start = fn.as_value("i64", tile) * lanes
        count = fn.minimum(signals - start, lanes)
        body.enter(start, count)
        body.stages()
        body.leave(start, count)
    return finish(fn), chunks, 8 * transform.length * lanes, seconds


class _SignalTile:
    """Writes a tile of signals: copies in, stages, copies out."""

    def __init__(
        self, fn: Function, transform: FourierTransform, operands: Sequence[Value], local: Value
    ) -> None:
        self.fn, self.transform = fn, transform
        self.lanes = transform.lanes(fn.isa)
        self.type = vector(self.lanes, "float")
        self.x, self.twiddles, self.places, *window, self.y = operands
        self.window = window[0] if window else None
        planes = [local, fn.at(local, transform.length * self.lanes)]
        self.planes = planes[::-1] if transform.is_inverse else planes  # as seen from outside
        self.inner = planes

    def _signal(self, walk: SignalWalk, signal: Value) -> Value:
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
