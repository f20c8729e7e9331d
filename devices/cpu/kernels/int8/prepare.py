"""Lines of a quantised image as products want them: with a border, in the form of the multiplier.

Where bytes are multiplied they become unsigned (the sign bit flipped) and the border is the zero
point. Else they become 16-bit with the zero point subtracted, and the border is 0. A chunk of a
kernel prepares its lines in memory of its own thread. So they are in the cache when they are
multiplied, and no step of their own is spent on them. An image that needs no preparation is used
itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from trireme.devices.cpu.codegen.ir import Function, Index, Value
from trireme.devices.cpu.codegen.llvm_types import element_of, lanes_of, vector
from trireme.devices.cpu.kernels.int8.arithmetic import Dot, load_stored, store_stored, widen
from trireme.support.records import dataclass

_FRONT_BYTES = 128
"""Room before the first line: the last vector of a copy may begin before it."""
SLACK_BYTES = 64
"""Room behind the last line: a group of taps may be read beyond it, times weights that are zero."""
MOST_LOCAL_BYTES = 20 << 10
"""Bytes that a chunk should prepare at most: more would leave the nearest cache too early."""


@dataclass(frozen=True)
class LineWindow:
    """The lines of an image that the rows of a kernel see; a row is an output position.

    height, width: of the output; tall, stride, window: lines of an image with its border, from one
    output line to the next, and of the kernel's window
    """

    height: int
    width: int
    tall: int
    stride: int
    window: int

    @property
    def one_to_one(self) -> bool:
        """Whether row i sees line i alone."""
        return self.width == self.stride == self.window == 1 and self.tall == self.height

    def lines(self, fn: Function, first: Index, last: Index) -> tuple[Index, Index]:
        """Return the lines that rows first..last see, as first and last of them."""
        if self.one_to_one:
            return first, last
        ends = []
        for row in (first, fn.as_value("i64", last) - 1):
            n = fn.integer("udiv", row, self.height * self.width)
            rest = fn.integer("urem", row, self.height * self.width)
            ends.append(n * self.tall + fn.integer("udiv", rest, self.width) * self.stride)
        return ends[0], ends[1] + self.window

    def most_lines(self, rows: int, block: int, least: int = 1) -> int:
        """Return the lines that a block of rows sees at most; the last one has `least` or more."""
        first = np.minimum(np.arange(0, rows, block), max(rows - least, 0))
        last = np.minimum(first + block, rows) - 1
        n, rest = np.divmod(np.stack([first, last]), self.height * self.width)
        low, high = n * self.tall + rest // self.width * self.stride
        return int((high - low).max()) + self.window


@dataclass(frozen=True)
class Image:
    """An image [N,H,W,C] of one dtype and zero point, and the border that a kernel wants around it.

    reads: elements that a kernel may read from the first channel of any pixel on
    prepared: whether the memory holds it in the multiplier's form already, border and slack too
    pitch: elements from one line to the next in memory, where lines do not follow each other

    Lines are counted over the batch and include the border: line y of image n is n * tall + y.
    """

    shape: tuple[int, int, int, int]
    pads: tuple[int, int, int, int]
    dtype: str
    zero: int
    dot: Dot
    reads: int = 1
    prepared: bool = False
    pitch: int | None = None

    @property
    def tall(self) -> int:
        """Lines of one image with its border."""
        return self.shape[1] + self.pads[0] + self.pads[2]

    @property
    def row(self) -> int:
        """Elements of a line with its border."""
        return (self.shape[2] + self.pads[1] + self.pads[3]) * self.shape[3]

    @property
    def form(self) -> Image:
        """The facts that code depends on: bytes show their zero point in a border only."""
        return self if self.dot.width > 1 or any(self.pads) else replace(self, zero=0)

    @property
    def as_is(self) -> bool:
        """Whether kernels read the image in place."""
        if self.prepared:
            return True
        plain = self.dot.width == 1 and self.dtype == "uint8" and self.shape[3] % 4 == 0
        plain = plain and self.shape[3] >= self.reads
        return plain and not any(self.pads)

    def local_bytes(self, lines: int) -> int:
        """Return the memory that `fetch` of that many lines takes."""
        if self.as_is:
            return 0
        return -(-(_FRONT_BYTES + lines * self.row * self.dot.width + SLACK_BYTES) // 64) * 64

    def fetch(self, fn: Function, x: Value, local: Value, first: Index, last: Index) -> Value:
        """Emit the preparation of lines first..last; return where line 0 would be."""
        if self.as_is:
            return x
        start = fn.at(local, _FRONT_BYTES, "i8")
        total = self.shape[0] * self.shape[1] * self.row
        if total < self._lanes(fn) and not any(self.pads) and self.pitch is None:
            self._span(fn, x, start, total)
            return start
        if self.pitch is not None:
            for line in fn.range(first, last):
                target = fn.at(start, (line - first) * self.row, self.dot.element)
                self._span(fn, fn.at(x, line * self.pitch, "i8"), target, self.row)
        elif any(self.pads):
            for line in fn.range(first, last):
                self._line(fn, x, line, fn.at(start, (line - first) * self.row, self.dot.element))
        else:
            self._lines(fn, x, start, first, last)
        return fn.at(start, fn.as_value("i64", first) * -self.row, self.dot.element)

    def _line(self, fn: Function, x: Value, line: Index, target: Value) -> None:
        """Emit one line with its border."""
        n, height, width, channels = self.shape
        top, left, _, right = self.pads
        y = fn.integer("urem", line, self.tall) if n > 1 else line
        image = fn.integer("udiv", line, self.tall) if n > 1 else 0
        y = fn.as_value("i64", y) - top
        for is_inside in fn.either(fn.compare("ult", y, height)):
            if is_inside:
                source = fn.at(x, (y + image * height) * (width * channels), "i8")
                self._fill(fn, target, left * channels)
                middle = fn.at(target, left * channels, self.dot.element)
                self._span(fn, source, middle, width * channels)
                end = fn.at(target, (left + width) * channels, self.dot.element)
                self._fill(fn, end, right * channels)
            else:
                self._fill(fn, target, self.row)

    def _lines(self, fn: Function, x: Value, start: Value, first: Index, last: Index) -> None:
        """Emit whole lines without a border: one run of bytes, its last vector overlapping."""
        lanes = self._lanes(fn)
        total = self.shape[0] * self.shape[1] * self.row
        low, high = (fn.as_value("i64", end) * self.row for end in (first, last))
        base = fn.at(start, low * -1, self.dot.element)
        for i in fn.range(low, high, lanes):
            at = fn.minimum(i, total - lanes)
            source, target = fn.at(x, at, "i8"), fn.at(base, at, self.dot.element)
            self._convert(fn, source, target, lanes)

    def _lanes(self, fn: Function) -> int:
        return fn.isa.lanes * (4 // self.dot.width)

    def _span(self, fn: Function, source: Value, target: Value, count: int) -> None:
        """Convert `count` bytes."""
        lanes = self._lanes(fn)
        whole = count // lanes * lanes
        for i in fn.range(0, whole, lanes):
            self._convert(fn, fn.at(source, i, "i8"), fn.at(target, i, self.dot.element), lanes)
        rest, at = count - whole, whole
        while rest:  # powers of two, so that no instruction set needs masks
            part = 1 << (rest.bit_length() - 1)
            self._convert(fn, fn.at(source, at, "i8"), fn.at(target, at, self.dot.element), part)
            at, rest = at + part, rest - part

    def _convert(self, fn: Function, source: Value, target: Value, lanes: int) -> None:
        x = load_stored(fn, source, lanes, lanes) if lanes > 1 else fn.load("i8", source, 1)
        if self.dot.width == 1:
            if self.dtype == "int8":
                x = fn.emit(x.type, f"xor {x}, {x.text_of(-128)}")
            if lanes > 1:
                store_stored(fn, x, target, lanes)
            else:
                fn.store(x, target, 1)
            return
        wide = (
            widen(fn, x, self.dtype, "i16")
            if lanes > 1
            else fn.convert("sext" if self.dtype == "int8" else "zext", x, "i16")
        )
        fn.store(wide - self.zero, target, 2)

    def _fill(self, fn: Function, target: Value, count: int) -> None:
        """Write the border: `count` elements that stand for zero."""
        value = 0 if self.dot.width == 2 else self.zero + (128 if self.dtype == "int8" else 0)
        text = value - 256 if value > 127 else value
        fill(fn, target, count, self.dot, lambda lanes: _constant(fn, self.dot, lanes, text))


def _constant(fn: Function, dot: Dot, lanes: int, value: int) -> Value:
    return fn.as_value(vector(lanes, dot.element), value)


def store_elements(fn: Function, value: Value, target: Value, count: int) -> None:
    """Store the first `count` elements of a vector of bytes or 16-bit integers."""
    element, lanes = element_of(value.type), lanes_of(value.type)
    if element == "i8":
        store_stored(fn, value, target, count)
        return
    at = 0
    while at < count:  # powers of two, so that no instruction set needs masks
        part = min(1 << ((count - at).bit_length() - 1), lanes)
        some = value if part == lanes else fn.shuffle(value, value, range(at, at + part))
        fn.store(some if part > 1 else fn.extract(value, at), fn.at(target, at, element), 2)
        at += part


def fill(fn: Function, target: Value, count: int, dot: Dot, value: Callable[[int], Value]) -> None:
    """Write `count` prepared elements, each the same; value(lanes) is a vector of them."""
    lanes = fn.isa.lanes * (4 // dot.width)
    whole = count // lanes * lanes
    for i in fn.range(0, whole, lanes):
        fn.store(value(lanes), fn.at(target, i, dot.element), dot.width)
    rest, at = count - whole, whole
    while rest:
        part = 1 << (rest.bit_length() - 1)
        fn.store(value(part), fn.at(target, at, dot.element), dot.width)
        at, rest = at + part, rest - part
