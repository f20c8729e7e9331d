"""Find the lines of a depthwise kernel's window, and interleave them to columns.

**In place** the lines of the image are read where they lie, and in registers the sign bit is
flipped, or bytes become 16-bit integers, whose zero point stays and goes into the bias. A line
above or below the image is one constant line of zero points. A column to the left or right of the
image is a constant. Otherwise the lines are prepared, border and all, in memory of the thread's
own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trireme.devices.cpu.codegen.ir import Function, Index, Value
from trireme.devices.cpu.codegen.llvm_types import lanes_of, vector
from trireme.devices.cpu.kernels.int8.arithmetic import widen
from trireme.devices.cpu.kernels.int8.prepare import Image, LineWindow
from trireme.support.dtypes import Array
from trireme.support.records import dataclass

MOST_EDGES = 6
"""Output columns at the left and right edges that may be spelled out one by one."""
_SPARE_BYTES = 64


@dataclass(frozen=True)
class DepthwiseWindow:
    """The geometry of a depthwise convolution."""

    channels: int
    out: tuple[int, int, int]
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]

    @property
    def kept(self) -> int:
        """Columns of a window that the next window sees again."""
        return max(self.kernel[1] - self.strides[1], 0) if self.dilations[1] == 1 else 0


@dataclass(frozen=True)
class Source:
    """The image as a kernel reads it."""

    image: Image
    window: DepthwiseWindow
    in_place: bool

    @property
    def element(self) -> str:
        """The LLVM type of elements of lines."""
        return "i8" if self.in_place else self.image.dot.element

    @property
    def zero(self) -> int:
        """The value that stands for zero in columns."""
        if self.image.dot.width == 2:
            return self.image.zero if self.in_place else 0
        return self.image.zero + (128 if self.image.dtype == "int8" else 0)

    @property
    def view(self) -> LineWindow:
        """The lines that an output line sees."""
        reach = (self.window.kernel[0] - 1) * self.window.dilations[0] + 1
        return LineWindow(self.window.out[1], 1, self.image.tall, self.window.strides[0], reach)

    def local_bytes(self, lines: int, block: int) -> int:
        """Return the thread's own memory that blocks of output lines take."""
        if self.in_place:
            return 0
        return self.image.local_bytes(self.view.most_lines(lines, block))

    def constants(self) -> list[Array]:
        """Return the further operands of a kernel: a line of the zero point, if in place."""
        if not self.in_place:
            return []
        count = self.image.shape[2] * self.image.shape[3] + _SPARE_BYTES
        return [np.full(count, self.image.zero, self.image.dtype).view(np.uint8)]

    def lines(self, fn: Function, base: Value, spare: Value | None, line: Index) -> list[Value]:
        """Return where the lines of the window of an output line begin.

        base: the image, or where prepared line 0 would be; spare: the line of zero points
        """
        image, window = self.image, self.window
        n, height, width, channels = image.shape
        number = fn.integer("udiv", line, window.out[1]) if n > 1 else 0
        at = fn.integer("urem", line, window.out[1]) if n > 1 else line
        top = fn.as_value("i64", at) * window.strides[0]
        found = []
        for ky in range(window.kernel[0]):
            y = top + ky * window.dilations[0]
            if spare is None:
                place = (y + number * image.tall) * image.row
                found.append(fn.at(base, place, image.dot.element))
                continue
            y = y - image.pads[0]
            place = fn.at(base, (y + number * height) * (width * channels), "i8")
            found.append(fn.select(fn.compare("ult", y, height), place, spare))
        return found

    def is_outside(self, ox: Index, kx: int) -> bool:
        """Whether a column of an output column given as a number lies beside the image."""
        at = self.place(ox, kx)
        return self.in_place and isinstance(at, int) and not 0 <= at < self.image.shape[2]

    def place(self, ox: Index, kx: int) -> Index:
        """Return the column of the lines that kernel column kx of an output column sees."""
        left = self.image.pads[1] if self.in_place else 0
        return ox * self.window.strides[1] + (kx * self.window.dilations[1] - left)

    def inner(self) -> tuple[int, int]:
        """Return first and last of the output columns that see new columns of the lines alone."""
        new = range(self.window.kept, self.window.kernel[1])
        inside = [
            ox for ox in range(self.window.out[2]) if not any(self.is_outside(ox, kx) for kx in new)
        ]
        return (inside[0], inside[-1] + 1) if inside else (0, 0)

    def column(
        self, fn: Function, lines: Sequence[Value], lanes: int, ox: Index, kx: int
    ) -> list[Value]:
        """Return a kernel column: for each group of lines and vector of channels, their taps."""
        dot, image = self.image.dot, self.image
        type = vector(lanes * dot.taps, dot.element)
        stored = vector(lanes * dot.taps, self.element)
        zero = Value(fn, type, "zeroinitializer")
        found: list[Value] = []
        loaded = []
        for line in lines:
            if self.is_outside(ox, kx):
                x = fn.as_value(stored, _signed(image.zero))
            else:
                at = self.place(ox, kx) * self.window.channels
                x = fn.load(stored, fn.at(line, at, self.element), 1)
            if self.in_place and dot.width == 2:
                x = widen(fn, x, image.dtype, "i16")
            elif self.in_place and image.dtype == "int8":
                x = fn.emit(type, f"xor {x}, {x.text_of(-128)}")
            loaded.append(x)
        loaded += [zero] * (-len(lines) % dot.taps)
        for first in range(0, len(loaded), dot.taps):
            found += _interleaved(fn, loaded[first : first + dot.taps])
        return found


def source_of(image: Image, window: DepthwiseWindow) -> Source:
    """Return how the image is best read."""
    found = Source(image, window, in_place=True)
    first, last = found.inner()
    edges = window.out[2] - (last - first)
    possible = window.channels >= image.reads and edges <= MOST_EDGES and not image.prepared
    return Source(image, window, in_place=possible)


def _signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def _interleaved(fn: Function, lines: Sequence[Value]) -> list[Value]:
    """Return two or four vectors of lines as as many vectors of 32-bit groups, one a channel."""
    if len(lines) == 2:
        pairs = [_unpacked(fn, lines[0], lines[1], high) for high in (False, True)]
    else:
        pairs = []
        for high in (False, True):
            ab, cd = (_unpacked(fn, lines[i], lines[i + 1], high) for i in (0, 2))
            words = vector(lanes_of(ab.type) // 2, "i16")
            ab, cd = (fn.convert("bitcast", v, words) for v in (ab, cd))
            pairs += [_unpacked(fn, ab, cd, upper) for upper in (False, True)]
    lanes = vector(lanes_of(pairs[0].type) // 2, "i32")  # pairs of 16-bit integers by now
    return [fn.convert("bitcast", pair, lanes) for pair in pairs]


def _unpacked(fn: Function, a: Value, b: Value, high: bool) -> Value:
    """Interleave the elements of the lower (or upper) halves of every 128 bits of a and b."""
    lanes = lanes_of(a.type)
    per = 16 if a.type.endswith("i8>") else 8
    order = []
    for part in range(0, lanes, per):
        first = part + (per // 2 if high else 0)
        for i in range(first, first + per // 2):
            order += [i, lanes + i]
    return fn.shuffle(a, b, order)
