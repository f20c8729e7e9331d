"""Rounding float32 to 8 bits by a range that is measured first: one step, two for large images.

Products on 8-bit integers get their input in the form of int8/prepare.py, with its border: unsigned
bytes (level + zero) or 16-bit levels. Beside it lies the **state**: the step of each image, and its
zero where that is not known before.

    symmetric:  step = max(max |x|, tiny), level = round(x * (127 / step)), zero = 128
    asymmetric: low = min(x, 0), high = max(x, 0), step = max((high - low) / 255, tiny),
                point = clip(round(-128 - low / step)), zero = 128 + point,
                level = clip(round(x / step + point)) - point
    unsigned:   step = (high - low) / 255, or 1 for 0, zero = clip(round(-low / step)),
                level = clip(round(x / step) + zero) - zero       (ONNX DynamicQuantizeLinear-11)

Every operation rounds as the float nodes' would. Where the range is not finite the step is NaN, and
so are all results. The largest and smallest are found among the bits as integers, which order
floats of one sign, and NaN beyond infinity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trireme.devices.cpu.codegen import mathfn
from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import lanes_of, vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.int8.arithmetic import Dot
from trireme.devices.cpu.kernels.int8.prepare import SLACK_BYTES, fill, store_elements
from trireme.devices.cpu.kernels.int8.requant import groups_of, nearest, saturated_bytes
from trireme.devices.cpu.kernels.lowering import (
    ALONE_S,
    Context,
    Operand,
    Step,
    Temp,
    begin,
    deal,
    finish,
)
from trireme.ir.quantization.dynamic_range import RoundingKind
from trireme.support.records import dataclass

_MAGNITUDE = 0x7FFFFFFF
_MANY_IMAGES = 8
"""So many are dealt to threads whole; fewer large ones are cut into lines."""
VECTOR_S = 1e-9
"""About the seconds of a vector of floats, both passes together."""
_ACCUMULATORS = 4


@dataclass(frozen=True)
class LineLayout:
    """Images of `lines` x `row` floats, and the border around each: lines and elements of a line.

    dot: how levels are multiplied, which says whether they are bytes
    """

    images: int
    lines: int
    row: int
    border: tuple[int, int, int, int]
    dot: Dot

    @property
    def wide(self) -> int:
        """Elements of a line with its border."""
        return self.border[1] + self.row + self.border[3]

    @property
    def tall(self) -> int:
        """Lines of an image with its border."""
        return self.border[0] + self.lines + self.border[2]

    @property
    def nbytes(self) -> int:
        """Memory of all levels; products may read a little beyond them."""
        return self.images * self.tall * self.wide * self.dot.width + SLACK_BYTES

    def merged(self) -> LineLayout:
        """The same memory as images of one line, where there is no border."""
        return self if any(self.border) else replace(self, lines=1, row=self.lines * self.row)


@dataclass(frozen=True)
class LevelRounding:
    """The rule that makes a step between levels of a range; see the module's formulas.

    tiny: the least step, of the first two kinds
    """

    kind: RoundingKind
    tiny: float

    @property
    def symmetric(self) -> bool:
        """Whether the zero point is known before the run."""
        return self.kind == "symmetric"


@dataclass(frozen=True)
class Parameters:
    """The facts of an image that follow from its range, in every lane.

    factor: 127 / step or the step; point: of the asymmetric kind, as a float and as an integer
    """

    factor: Value
    point: Value | None = None
    whole: Value | None = None


def rounding_steps(
    context: Context,
    layout: LineLayout,
    rounding: LevelRounding,
    x: Operand,
    levels: Temp,
    state: Temp,
) -> list[Step]:
    """Return the steps that write levels and state of the images in x."""
    seconds = layout.images * layout.lines * layout.row / context.isa.lanes * VECTOR_S
    if seconds < ALONE_S or layout.images >= _MANY_IMAGES or layout.lines == 1:
        size, chunks = deal(layout.images, seconds)
        code = context.kernel(_whole_kernel, layout.merged(), rounding, size)
        return [Step(code, (x,), (levels, state), chunks, seconds=seconds)]
    one = seconds / layout.images
    size, parts = deal(layout.lines, one / 3)
    ranges = Temp(f"{levels.key} ranges", 8 * layout.images * parts)
    code = context.kernel(_range_kernel, layout, rounding, size, parts)
    first = Step(code, (x,), (ranges,), layout.images * parts, seconds=seconds / 3)
    size, cuts = deal(layout.tall, one * 2 / 3)
    code = context.kernel(_lines_kernel, layout, rounding, size, cuts, parts)
    chunks = layout.images * cuts
    return [first, Step(code, (x, ranges), (levels, state), chunks, seconds=seconds * 2 / 3)]


def _whole_kernel(isa: Isa, layout: LineLayout, rounding: LevelRounding, size: int) -> Code:
    kernel = QuantizeKernel(isa, layout, rounding)
    fn, pointers, chunk, _ = begin(kernel.name, isa, 3)
    kernel.whole(fn, pointers, chunk if size < layout.images else 0, size)
    return finish(fn)


def _range_kernel(
    isa: Isa, layout: LineLayout, rounding: LevelRounding, size: int, parts: int
) -> Code:
    kernel = QuantizeKernel(isa, layout, rounding)
    fn, pointers, chunk, _ = begin(kernel.range_name, isa, 2)
    kernel.ranges(fn, pointers, chunk, size, parts)
    return finish(fn)


def _lines_kernel(
    isa: Isa, layout: LineLayout, rounding: LevelRounding, size: int, cuts: int, parts: int
) -> Code:
    kernel = QuantizeKernel(isa, layout, rounding)
    fn, pointers, chunk, _ = begin(kernel.name, isa, 4)
    kernel.lines_of_ranges(fn, pointers, chunk, size, (cuts, parts))
    return finish(fn)


class QuantizeKernel:
    """Emits the kernels: range, parameters, levels.

    counts: images and lines where the kernel reads them, those of the layout where None
    """

    def __init__(
        self,
        isa: Isa,
        layout: LineLayout,
        rounding: LevelRounding,
        counts: tuple[Index, Index] | None = None,
    ) -> None:
        self.isa, self.layout, self.rounding = isa, layout, rounding
        self.images, self.height = counts or (layout.images, layout.lines)
        self.tall = self.height + (layout.border[0] + layout.border[2])
        self.integers = vector(isa.lanes, "i32")
        self.name = f"levels_{rounding.kind}_{layout.dot.dtype}"
        self.range_name = f"range_of_{self.name}"

    def whole(self, fn: Function, pointers: Sequence[Value], chunk: Index, size: Index) -> None:
        """Operands: x, levels, state; a chunk is `size` images."""
        layout, (x, levels, state) = self.layout, pointers
        first = chunk * size
        for image in fn.range(first, fn.minimum(first + size, self.images)):
            source = fn.at(x, image * (self.height * layout.row))
            bits = self.extent(fn, source, 0, self.height)
            known = self.parameters(fn, bits, state, image)
            target = fn.at(levels, image * (self.tall * layout.wide), layout.dot.element)
            self.lines(fn, source, target, (0, self.tall), known)

    def ranges(
        self, fn: Function, pointers: Sequence[Value], chunk: Value, size: Index, parts: Index
    ) -> None:
        """Operands: x, ranges; a chunk is `size` lines of an image, of which there are `parts`."""
        x, ranges = pointers
        image, part = fn.integer("udiv", chunk, parts), fn.integer("urem", chunk, parts)
        first = part * size
        source = fn.at(x, image * (self.height * self.layout.row))
        bits = self.extent(fn, source, first, fn.minimum(first + size, self.height))
        for k, value in enumerate(bits):
            fn.store(value, fn.at(ranges, chunk * 2 + k))

    def lines_of_ranges(
        self,
        fn: Function,
        pointers: Sequence[Value],
        chunk: Value,
        size: Index,
        counts: tuple[Index, Index],
    ) -> None:
        """Operands: x, ranges, levels, state; a chunk is `size` lines with their border.

        counts: the chunks of an image, and the parts that its range was found in
        """
        layout, (x, ranges, levels, state), (cuts, parts) = self.layout, pointers, counts
        image, cut = fn.integer("udiv", chunk, cuts), fn.integer("urem", chunk, cuts)
        found = [Var(fn, "i32", start) for start in self._starts()]
        for part in fn.range(0, parts):
            for k, (var, op) in enumerate(zip(found, self._ops(), strict=True)):
                value = fn.load("i32", fn.at(ranges, (image * parts + part) * 2 + k))
                var.set(fn.call("i32", f"llvm.{op}.i32", var.get(), value))
        known = self.parameters(fn, [var.get() for var in found], state, image)
        first = cut * size
        source = fn.at(x, image * (self.height * layout.row))
        target = fn.at(levels, image * (self.tall * layout.wide), layout.dot.element)
        self.lines(fn, source, target, (first, fn.minimum(first + size, self.tall)), known)

    # -- range ------------------------------------------------------------------------------

    def _ops(self) -> tuple[str, ...]:
        """The comparisons of floats as bits: for the largest, and for the one furthest below 0."""
        return ("smax",) if self.rounding.symmetric else ("smax", "umax")

    def _starts(self) -> tuple[int, ...]:
        """The bits of 0, and those of -0."""
        return (0,) if self.rounding.symmetric else (0, -_MAGNITUDE - 1)

    def extent(self, fn: Function, x: Value, first: Index, last: Index) -> list[Value]:
        """Return the bits of the largest float of some lines (or magnitude), and of the least."""
        lanes, row = self.isa.lanes, self.layout.row
        found = [
            [Var(fn, self.integers, start) for start in self._starts()]
            for _ in range(_ACCUMULATORS)
        ]
        whole, step = row // lanes * lanes, _ACCUMULATORS * lanes
        unrolled = whole // step * step
        for line in fn.range(first, last):
            base = fn.at(x, line * row)
            for i in fn.range(0, unrolled, step):
                for u, variables in enumerate(found):
                    self._widen(fn, variables, fn.at(base, i + u * lanes), lanes)
            for i in fn.range(unrolled, whole, lanes):
                self._widen(fn, found[0], fn.at(base, i), lanes)
            if whole < row:
                self._widen(fn, found[0], fn.at(base, whole), row - whole)
        return [
            self._together(fn, op, [variables[k].get() for variables in found])
            for k, op in enumerate(self._ops())
        ]

    def _widen(self, fn: Function, found: Sequence[Var], place: Value, count: int) -> None:
        x = fn.convert("bitcast", fn.load_some(self.isa.vector, place, count), self.integers)
        if self.rounding.symmetric:
            x = fn.emit(x.type, f"and {x}, {x.text_of(_MAGNITUDE)}")
        for var, op in zip(found, self._ops(), strict=True):
            var.set(fn.call(x.type, f"llvm.{op}.v{self.isa.lanes}i32", var.get(), x))

    def _together(self, fn: Function, op: str, parts: Sequence[Value]) -> Value:
        name = f"v{self.isa.lanes}i32"
        most = parts[0]
        for part in parts[1:]:
            most = fn.call(most.type, f"llvm.{op}.{name}", most, part)
        return fn.call("i32", f"llvm.vector.reduce.{op}.{name}", most)

    # -- parameters -------------------------------------------------------------------------

    def parameters(
        self, fn: Function, bits: Sequence[Value], state: Value, image: Index
    ) -> Parameters:
        """Return the parameters of an image from the bits of its range, and store its state."""
        ends = [fn.convert("bitcast", fn.splat(b, self.isa.lanes), self.isa.vector) for b in bits]
        if self.rounding.symmetric:
            step = mathfn.maximum(fn, ends[0], self.rounding.tiny)
            self._store_step(fn, step, state, image)
            return Parameters(127.0 / step)
        step, point = self.step_and_point(fn, *ends)
        whole = nearest(fn, point)
        self._store_step(fn, step, state, image)
        zeros = fn.at(state, self.images)
        fn.store(fn.extract(whole + 128, 0), fn.at(zeros, image))
        return Parameters(step, point, whole)

    def step_and_point(self, fn: Function, high: Value, low: Value) -> tuple[Value, Value]:
        """Return the step of a range and the point, which is the zero point less 128."""
        if self.rounding.kind == "asymmetric":
            step = mathfn.maximum(fn, (high - low) * (1 / 255), self.rounding.tiny)
            point = fn.unary("roundeven", -128.0 - low / step)
            return step, mathfn.clamp(fn, point, -128.0, 127.0)
        extent = high - low
        step = fn.select(fn.compare("oeq", extent, 0.0), 1.0, extent / 255.0)
        zero = fn.unary("roundeven", (0.0 - low) / step)
        return step, mathfn.clamp(fn, zero, 0.0, 255.0) - 128.0

    def _store_step(self, fn: Function, step: Value, state: Value, image: Index) -> None:
        finite = fn.extract(step + (step - step), 0)  # infinity becomes NaN
        fn.store(finite, fn.at(state, image))

    # -- levels -----------------------------------------------------------------------------

    def lines(
        self, fn: Function, x: Value, target: Value, ends: tuple[Index, Index], known: Parameters
    ) -> None:
        """Emit some lines of an image with their border."""
        layout = self.layout
        top, left, bottom, right = layout.border
        for line in fn.range(*ends):
            place = fn.at(target, line * layout.wide, layout.dot.element)
            inside = fn.at(place, left, layout.dot.element)
            source = fn.at(x, (line - top) * layout.row)
            if not top and not bottom:
                self._border(fn, place, left, known)
                self._span(fn, source, inside, known)
                self._border(fn, fn.at(inside, layout.row, layout.dot.element), right, known)
                continue
            y = fn.as_value("i64", line) - top
            for is_inside in fn.either(fn.compare("ult", y, self.height)):
                if not is_inside:
                    self._border(fn, place, layout.wide, known)
                    continue
                self._border(fn, place, left, known)
                self._span(fn, source, inside, known)
                self._border(fn, fn.at(inside, layout.row, layout.dot.element), right, known)

    def _border(self, fn: Function, target: Value, count: int, known: Parameters) -> None:
        """Emit elements that stand for 0."""
        element = self.layout.dot.element
        if element == "i8" and known.whole is not None:
            zero = fn.convert("trunc", fn.extract(known.whole + 128, 0), "i8")
        else:
            zero = fn.as_value(element, -128 if element == "i8" else 0)
        fill(fn, target, count, self.layout.dot, lambda lanes: fn.splat(zero, lanes))

    def _span(self, fn: Function, x: Value, target: Value, known: Parameters) -> None:
        """Emit the levels of one line."""
        lanes, row, element = self.isa.lanes, self.layout.row, self.layout.dot.element
        whole, step = row // lanes, 4 * lanes
        for i in fn.range(0, whole // 4 * step, step):
            self._group(fn, fn.at(x, i), fn.at(target, i, element), known, step)
        at = whole // 4 * step
        for size in groups_of(whole % 4):
            place = fn.at(target, at, element)
            self._group(fn, fn.at(x, at), place, known, size * lanes)
            at += size * lanes
        if at < row:
            self._group(fn, fn.at(x, at), fn.at(target, at, element), known, row - at)

    def _group(self, fn: Function, x: Value, target: Value, known: Parameters, count: int) -> None:
        """Emit `count` levels: one, two or four vectors, or a part of one."""
        lanes = self.isa.lanes
        numbers = []
        for at in range(0, count, lanes):
            loaded = fn.load_some(self.isa.vector, fn.at(x, at), min(count - at, lanes))
            numbers.append(self._level(fn, loaded, known))
        if self.layout.dot.width == 1:
            stored = saturated_bytes(fn, numbers)
            stored = fn.emit(stored.type, f"xor {stored}, {stored.text_of(-128)}")
            store_elements(fn, stored, target, count)
            return
        for at, number in zip(range(0, count, lanes), numbers, strict=True):
            words = fn.convert("trunc", self._signed(fn, number, known), vector(lanes, "i16"))
            store_elements(fn, words, fn.at(target, at, "i16"), min(count - at, lanes))

    def _level(self, fn: Function, x: Value, known: Parameters) -> Value:
        """Return levels and their point, not limited to 8 bits."""
        if known.point is None or known.whole is None:
            return nearest(fn, x * known.factor)
        if self.rounding.kind == "unsigned":
            return nearest(fn, x / known.factor) + known.whole
        return nearest(fn, x / known.factor + known.point)

    def _signed(self, fn: Function, number: Value, known: Parameters) -> Value:
        """Return levels as they are multiplied without VNNI."""
        if known.whole is None:
            return number
        name = f"v{lanes_of(number.type)}i32"
        for op, limit in (("smax", -128), ("smin", 127)):
            bound = fn.as_value(number.type, limit)
            number = fn.call(number.type, f"llvm.{op}.{name}", number, bound)
        return number - known.whole
