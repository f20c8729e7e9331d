"""Rows of a convolution's matrix, copied to where a product can walk them: im2row by blocks.

Row p of the matrix holds the inputs of output position p. For every kernel position they are the
channels of one input position, zero in the padding. Only the rows of one chunk exist at a time.
"""

from __future__ import annotations

from trireme.devices.cpu.codegen.ir import Function, Index, Value
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.support.records import dataclass


@dataclass(frozen=True)
class ImageWindow:
    """A 2-D window over an image [N,H,W,C]; one group reads `depth` of the C channels.

    Units: everything in elements; pads are those before the image only
    """

    height: int
    width: int
    channels: int
    depth: int
    out_height: int
    out_width: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int]
    dilations: tuple[int, int]

    @property
    def row(self) -> int:
        """Elements of a matrix row that one kernel row gives."""
        return self.kernel[1] * self.depth

    @property
    def is_dense(self) -> bool:
        """Whether the matrix is the image itself."""
        return (
            self.kernel == (1, 1)
            and self.strides == (1, 1)
            and self.pads == (0, 0)
            and (self.height, self.width) == (self.out_height, self.out_width)
        )


def emit_gather(
    fn: Function,
    window: ImageWindow,
    image: Value,
    target: Value,
    stride: int,
    rows: tuple[Index, Index],
    kernel_rows: tuple[Index, Index],
) -> None:
    """Emit the copy of matrix rows `rows` to target, for kernel rows kernel_rows[0]..[1].

    stride: elements between rows of the target
    """
    area = window.out_height * window.out_width
    for p in fn.range(*rows):
        n, rest = fn.integer("udiv", p, area), fn.integer("urem", p, area)
        oh, ow = (fn.integer(op, rest, window.out_width) for op in ("udiv", "urem"))
        to = fn.at(target, _i64(fn, p - _i64(fn, rows[0])) * stride)
        top = _i64(fn, oh) * window.strides[0] - window.pads[0]
        left = _i64(fn, ow) * window.strides[1] - window.pads[1]
        for kh in fn.range(*kernel_rows):
            h = _i64(fn, kh) * window.dilations[0] + top
            row_at = fn.at(to, _i64(fn, _i64(fn, kh) - _i64(fn, kernel_rows[0])) * window.row)
            inside = fn.compare("ult", h, window.height)
            for is_inside in fn.either(inside):
                if is_inside:
                    line = (_i64(fn, n) * window.height + h) * (window.width * window.channels)
                    _gather_line(fn, window, fn.at(image, line), row_at, left)
                else:
                    copy(fn, None, row_at, window.row)


def _gather_line(
    fn: Function, window: ImageWindow, line: Value, target: Value, left: Value
) -> None:
    """Emit the copy of a kernel row's inputs from one line of the image."""
    kw, depth = window.kernel[1], window.depth
    if window.dilations[1] == 1 and depth == window.channels:
        whole = fn.compare("ult", left, fn.maximum(window.width - kw + 1, 0))
        for is_whole in fn.either(whole):
            if is_whole:
                copy(fn, fn.at(line, left * depth), target, kw * depth)
            else:
                _gather_points(fn, window, line, target, left)
    else:
        _gather_points(fn, window, line, target, left)


def _gather_points(
    fn: Function, window: ImageWindow, line: Value, target: Value, left: Value
) -> None:
    for kw in fn.range(0, window.kernel[1]):
        w = _i64(fn, kw) * window.dilations[1] + left
        to = fn.at(target, _i64(fn, kw) * window.depth)
        for is_inside in fn.either(fn.compare("ult", w, window.width)):
            source = fn.at(line, w * window.channels) if is_inside else None
            copy(fn, source, to, window.depth)


def copy(fn: Function, source: Value | None, target: Value, count: int) -> None:
    """Emit the copy of `count` floats, zeros when there is no source."""
    lanes = fn.isa.lanes
    type = vector(lanes, "float")
    zero = Value(fn, type, "zeroinitializer")
    whole = count // lanes * lanes
    for i in fn.range(0, whole, lanes):
        fn.store(fn.load(type, fn.at(source, i)) if source else zero, fn.at(target, i))
    if whole < count:
        rest = count - whole
        tail = fn.load_some(type, fn.at(source, whole), rest) if source else zero
        fn.store_some(tail, fn.at(target, whole), rest)


def _i64(fn: Function, value: Index) -> Value:
    return fn.as_value("i64", value)
