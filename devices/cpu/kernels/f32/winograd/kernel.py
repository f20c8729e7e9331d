"""The Winograd kernel: transform a block of tiles, multiply, transform back, all within a cache.

A chunk is a block of tiles by a group of output panels. Its tiles' inputs are transformed into
memory of the thread, V [p * p, tiles, C]. Then, panel by panel, p * p products with the weights U
[panel, p * p, C, width] give M [p * p, tiles, width]. M is transformed back with bias, residual and
activation on the way to the output.

Pixels outside the image are read from zeros and written to a dump: tables of addresses in the
thread's memory say where each pixel of a tile lies, so borders, pads and odd sizes need no code of
their own.

NaN and infinities: an infinite input would make NaN of outputs of its tile that never saw it, and
so could huge finite ones by overflow. Both leave a tile's outputs non-finite; such a vector of
outputs is computed again as plain sums of products, so only the values that the definition of a
convolution makes NaN or infinite are. (Costs a multiply-add an output.) That reads the weights of
the model where they lie, by their strides, so no copy is kept; a tile's m * m outputs share them.
"""

from __future__ import annotations

from collections.abc import Callable

from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.expressions import COSTS, activate
from trireme.devices.cpu.kernels.f32.im2row import ImageWindow
from trireme.devices.cpu.kernels.f32.register_tile import multiply_tile, part_ahead
from trireme.devices.cpu.kernels.f32.winograd.layout import (
    WinogradConv,
    WinogradLayout,
    WinogradOperands,
    layout_of,
)
from trireme.devices.cpu.kernels.f32.winograd.plan import WinogradCut
from trireme.devices.cpu.kernels.f32.winograd.transforms import (
    Scheme,
    emit_input,
    emit_output,
    scheme,
)
from trireme.devices.cpu.kernels.lowering import begin, finish

_DIVIDE = ("udiv", "urem")


def winograd_kernel(isa: Isa, conv: WinogradConv, cut: WinogradCut) -> tuple[Code, int, int]:
    """Return the kernel, its chunks and the bytes each thread needs of its own.

    Operands: x [N,H,W,C], the transformed weights, the weights [O,KH,KW,C] as they lie and their
        strides in elements (i64), bias and residual where there are any, y [N,OH,OW,O]
    """
    made = scheme_of(conv.window, cut.outputs)
    name = f"conv_f32_winograd{kernel_note(made)}_{cut.tile_rows}x{cut.vectors}"
    fn, operands, chunk, local = begin(name, isa, 5 + conv.bias + conv.residual)
    layout = layout_of(isa, conv, cut, made)
    x, u, weights, strides, *extra, y = operands
    given = WinogradOperands.of(conv, x, u, (weights, strides), extra, y)
    WinogradEmitter(fn, conv, cut, made, layout, given, local).chunk(chunk)
    return finish(fn), cut.blocks * cut.groups, layout.nbytes


def scheme_of(window: ImageWindow, outputs: int) -> Scheme:
    """Return the scheme of a window for tiles of outputs x outputs."""
    return scheme(window.kernel[0], window.strides[0], outputs)


def kernel_note(made: Scheme) -> str:
    """Return a scheme's part of a kernel's name: 4x4 for a 3x3 kernel, else 2x2_of_5x5..."""
    m, kernel, stride = made.outputs, made.kernel, made.stride
    of = "" if (kernel, stride) == (3, 1) else f"_of_{kernel}x{kernel}"
    return f"{m}x{m}{of}" + (f"_stride{stride}" if stride > 1 else "")


class WinogradEmitter:
    """Writes one Winograd kernel: tables and input transform, then panels."""

    def __init__(
        self,
        fn: Function,
        conv: WinogradConv,
        cut: WinogradCut,
        made: Scheme,
        layout: WinogradLayout,
        operands: WinogradOperands,
        local: Value,
    ) -> None:
        self.fn, self.conv, self.cut, self.layout = fn, conv, cut, layout
        self.x, self.u, self.y = operands.x, operands.u, operands.y
        self.weights, self.bias, self.residual = operands.weights, operands.bias, operands.residual
        self.local = local
        self.lanes = fn.isa.lanes
        self.type = vector(self.lanes, "float")
        self.scheme = made
        self.zero = fn.as_value(self.type, 0.0)
        self.is_heavy = COSTS.get(conv.activation, 2) > 4

    def chunk(self, chunk: Value) -> None:
        """Emit the work of a chunk: a block of tiles by a group of panels."""
        fn, cut = self.fn, self.cut
        block = fn.integer("udiv", chunk, cut.groups)
        group = fn.integer("urem", chunk, cut.groups)
        self.first = self._share(block, cut.tile_count, cut.blocks)
        self.count = self._share(self.i64(block) + 1, cut.tile_count, cut.blocks) - self.first
        zeros = self.own(self.layout.zeros)
        for i in fn.range(0, (self.layout.dump - self.layout.zeros) // 4, self.lanes):
            fn.store(self.zero, fn.at(zeros, i))
        for tile in fn.range(0, self.count):
            self._tables(tile)
            self._transform_input(tile)
        low = self._share(group, cut.panels, cut.groups)
        high = self._share(self.i64(group) + 1, cut.panels, cut.groups)
        whole = cut.panels - (cut.last_columns < cut.width)
        for panel in fn.range(low, fn.minimum(high, whole)):
            self._panel(panel, cut.width)
        if whole < cut.panels:
            with fn.when(fn.compare("eq", high, cut.panels)):
                self._panel(whole, cut.last_columns)

    def _share(self, index: Index, total: int, parts: int) -> Value:
        """Return where part `index` begins when `total` is cut into near-equal parts."""
        return self.i64(self.fn.integer("udiv", self.i64(index) * total, parts))

    def i64(self, value: Index) -> Value:
        """Return a number as a value."""
        return self.fn.as_value("i64", value)

    def own(self, offset: int) -> Value:
        """Return where a part of the thread's memory lies, from its offset in bytes."""
        return self.fn.at(self.local, offset, "i8")

    # -- tables -----------------------------------------------------------------------------

    def _tables(self, tile: Index) -> None:
        """Emit the addresses of the input and output pixels of a tile of the chunk."""
        fn, window, m = self.fn, self.conv.window, self.cut.outputs
        corner = self._source_table(tile)
        size = (window.out_height, window.out_width)
        for image, offset, outside in (
            (self.y, self.layout.targets, self.layout.dump),
            (self.residual, self.layout.residuals, self.layout.zeros),
        ):
            if image is not None:
                table = fn.at(self.own(offset), self.i64(tile) * (m * m), "ptr")
                self._table(table, image, self.own(outside), corner, m, size, self.conv.outputs)

    def _source_table(self, tile: Index) -> tuple[Index, Value, Value]:
        """Emit the addresses of a tile's input pixels; returns image, row, column of outputs."""
        fn, cut, window, m = self.fn, self.cut, self.conv.window, self.cut.outputs
        index = self.first + self.i64(tile)
        n, rest = (fn.integer(op, index, cut.tiles_high * cut.tiles_wide) for op in _DIVIDE)
        th, tw = (fn.integer(op, rest, cut.tiles_wide) for op in _DIVIDE)
        top, left, (down, right) = self.i64(th) * m, self.i64(tw) * m, window.strides
        self._table(
            self.own(self.layout.sources),
            self.x,
            self.own(self.layout.zeros),
            (n, top * down - window.pads[0], left * right - window.pads[1]),
            self.scheme.inputs,
            (window.height, window.width),
            window.channels,
        )
        return n, top, left

    def _table(
        self,
        table: Value,
        image: Value,
        outside: Value,
        corner: tuple[Index, Value, Value],
        side: int,
        size: tuple[int, int],
        channels: int,
    ) -> None:
        """Emit the addresses of side * side pixels from a corner on, `outside` for the others."""
        fn, (n, top, left) = self.fn, corner
        columns = [left + j for j in range(side)]
        inside = [fn.compare("ult", column, size[1]) for column in columns]
        for i in range(side):
            row = top + i
            line = fn.at(image, (self.i64(n) * size[0] + row) * (size[1] * channels))
            is_row = fn.compare("ult", row, size[0])
            for j in range(side):
                both = fn.emit("i1", f"and {is_row}, {inside[j].text}")
                place = fn.select(both, fn.at(line, columns[j] * channels), outside)
                fn.store(place, fn.at(table, i * side + j, "ptr"), 8)

    # -- transforms -------------------------------------------------------------------------

    def _transform_input(self, tile: Index) -> None:
        """Emit V[:, tile, :] = B^T d B, a vector of channels at a time."""
        fn, channels = self.fn, self.conv.window.channels
        v = fn.at(self.own(self.layout.v), self.i64(tile) * self.layout.v_row)
        whole = channels // self.lanes * self.lanes
        for c in fn.range(0, whole, self.lanes):
            self._transform_vector(v, c, self.lanes)
        if whole < channels:
            self._transform_vector(v, whole, channels - whole)

    def _transform_vector(self, v: Value, c: Index, count: int) -> None:
        fn, inputs, points = self.fn, self.scheme.inputs, self.scheme.points
        transform = self.scheme.to_input
        half = [
            emit_input(
                fn,
                transform,
                [
                    fn.load_some(self.type, fn.at(self._source(i * inputs + j), c), count)
                    for i in range(inputs)
                ],
            )
            for j in range(inputs)
        ]
        for i in range(points):
            row = emit_input(fn, transform, [column[i] for column in half])
            for j, value in enumerate(row):
                place = fn.at(v, (i * points + j) * self.layout.v_point)
                fn.store(value, fn.at(place, c), 4 * self.lanes)

    def _source(self, pixel: int) -> Value:
        return self.fn.load("ptr", self.fn.at(self.own(self.layout.sources), pixel, "ptr"), 8)

    def _panel(self, panel: Index, columns: int) -> None:
        """Emit the products of one panel and their transform back."""
        fn, cut = self.fn, self.cut
        points, channels = self.scheme.points**2, self.conv.window.channels
        vectors = -(-columns // self.lanes)
        u = fn.at(self.u, self.i64(panel) * (points * channels * cut.width))
        for point in fn.range(0, points):
            v = fn.at(self.own(self.layout.v), self.i64(point) * self.layout.v_point)
            m = fn.at(self.own(self.layout.m), self.i64(point) * self.layout.m_point)
            self.product(v, fn.at(u, self.i64(point) * (channels * cut.width)), m, vectors)
        column = self.i64(panel) * cut.width
        for tile in fn.range(0, self.count):
            m = fn.at(self.own(self.layout.m), self.i64(tile) * cut.width)
            whole = columns // self.lanes
            for k in fn.range(0, whole):
                offset = self.i64(k) * self.lanes
                self._transform_output(tile, fn.at(m, offset), column + offset, self.lanes)
            if columns % self.lanes:
                at = whole * self.lanes
                self._transform_output(tile, fn.at(m, at), column + at, columns - at)

    def product(self, v: Value, u: Value, m: Value, vectors: int) -> None:
        """Emit M = V U for one point: register tiles of tile_rows rows, and of one row less."""
        fn, rows = self.fn, self.cut.tile_rows
        tiles = self.i64(fn.integer("udiv", self.count + (rows - 1), rows))
        full = self.count - tiles * (rows - 1)
        for i in fn.range(0, full if rows > 1 else tiles):
            self.tile(i, self.i64(i) * rows, rows, v, u, m, vectors)
        if self.cut.is_even or rows == 1:
            return
        for i in fn.range(full, tiles):
            self.tile(i, self.i64(i) * (rows - 1) + full, rows - 1, v, u, m, vectors)

    def turn(self, i: Index) -> tuple[Index, int]:
        """Return which of how many register tiles, that bring the next point's U, tile i is."""
        return i, -(-self.cut.tiles // self.cut.tile_rows)

    def tile(
        self,
        i: Index,
        row: Value,
        rows: int,
        v: Value,
        u: Value,
        m: Value,
        vectors: int,
        steps: int = 4,
    ) -> None:
        """Emit register tile i of a point, from a row on; meanwhile the next point's U comes.

        steps: of depth, at most, which its loop spells out
        """
        fn, channels, width, lanes = self.fn, self.conv.window.channels, self.cut.width, self.lanes
        acc = [[Var(fn, self.type, 0.0) for _ in range(vectors)] for _ in range(rows)]

        def panel(at: Value) -> list[Value]:
            return [fn.load(self.type, fn.at(at, k * lanes), 4 * lanes) for k in range(vectors)]

        unroll = next(u for u in (4, 2, 1) if u <= steps and channels % u == 0)
        a = fn.at(v, row * self.layout.v_row)
        lines = [(a, r * self.layout.v_row) for r in range(rows)]
        following = fn.at(u, channels * width)
        turn = self.turn(i)
        ahead = part_ahead(fn, following, self.cut.tile_rows, turn, (channels, width), unroll)
        multiply_tile(fn, acc, lines, (u, width), panel, channels, unroll, ahead=ahead)
        m = fn.at(m, row * width)
        for r, accumulators in enumerate(acc):
            for k, accumulator in enumerate(accumulators):
                fn.store(accumulator.get(), fn.at(m, r * width + k * lanes), 4 * lanes)

    def _transform_output(self, tile: Index, m: Value, column: Value, count: int) -> None:
        """Emit A^T M A of one tile and one vector of outputs, with the epilogue."""
        fn, n, side = self.fn, self.scheme.points, self.cut.outputs
        transform = self.scheme.to_output
        bias = None
        if self.bias is not None:
            bias = fn.load_some(self.type, fn.at(self.bias, column), count)
        half = [
            emit_output(
                fn,
                transform,
                [
                    fn.load(self.type, fn.at(m, (i * n + j) * self.layout.m_point), 4 * self.lanes)
                    for i in range(n)
                ],
            )
            for j in range(n)
        ]
        check = self.zero
        for i in range(side):
            row = emit_output(fn, transform, [half[j][i] for j in range(n)], bias)
            for j, value in enumerate(row):
                check = fn.fma(value, self.zero, check)
                self._finish(tile, i * side + j, column, value, count)
        if self.is_heavy:  # in a loop: unrolled it would be thousands of instructions
            for pixel in fn.range(0, side * side):
                place = self._place(self.layout.targets, tile, pixel, column)
                value = activate(fn, self.conv.activation, fn.load_some(self.type, place, count))
                fn.store_some(value, place, count)
        bits = fn.convert("bitcast", fn.compare("uno", check, check), f"i{self.lanes}")
        with fn.when(fn.compare("ne", bits, 0)):
            self._again(tile, column, count, bias)

    def _place(self, offset: int, tile: Index, pixel: Index, column: Value) -> Value:
        """Return the address of a tile's output vector, by the table at an offset."""
        fn = self.fn
        at = self.i64(tile) * self.cut.outputs**2 + pixel
        return fn.at(fn.load("ptr", fn.at(self.own(offset), at, "ptr"), 8), column)

    def _finish(
        self,
        tile: Index,
        pixel: Index,
        column: Value,
        value: Value,
        count: int,
        *,
        at_once: bool = False,
    ) -> None:
        """Emit residual, activation (unless left for later) and store of one output vector."""
        fn = self.fn
        if self.residual is not None:
            place = self._place(self.layout.residuals, tile, pixel, column)
            value = value + fn.load_some(self.type, place, count)
        if at_once or not self.is_heavy:
            value = activate(fn, self.conv.activation, value)
        fn.store_some(value, self._place(self.layout.targets, tile, pixel, column), count)

    # -- what is not finite -----------------------------------------------------------------

    def _again(self, tile: Index, column: Value, count: int, bias: Value | None) -> None:
        """Emit the same outputs as sums of products, for tiles with NaN, infinities, overflow."""
        fn, pixels = self.fn, self.cut.outputs**2
        self._source_table(tile)
        scratch = self.own(self.layout.scratch)
        for pixel, total in enumerate(self.sums(column, count)):
            value = total if bias is None else total + bias
            fn.store(value, fn.at(scratch, pixel * self.lanes))
        for k in fn.range(0, pixels):
            value = fn.load(self.type, fn.at(scratch, self.i64(k) * self.lanes))
            self._finish(tile, k, column, value, count, at_once=True)

    def sums(self, column: Value, count: int) -> list[Value]:
        """Return a tile's sums of products over the pixels in the table and their channels."""
        fn, side, made = self.fn, self.cut.outputs, self.scheme
        weight = self.weight_at(column, count)
        totals = [Var(fn, self.type, 0.0) for _ in range(side * side)]
        for c in fn.range(0, self.conv.window.channels):
            for kh in fn.range(0, made.kernel):
                for kw in fn.range(0, made.kernel):
                    factor = weight(kh, kw, c)
                    first = self.i64(kh) * made.inputs + kw
                    for k, total in enumerate(totals):
                        down, across = (made.stride * index for index in divmod(k, side))
                        at = first + (down * made.inputs + across)
                        pixel = fn.load("ptr", fn.at(self.own(self.layout.sources), at, "ptr"), 8)
                        value = fn.splat(fn.load("float", fn.at(pixel, c)), self.lanes)
                        total.set(fn.fma(value, factor, total.get()))
        return [total.get() for total in totals]

    def weight_at(self, column: Value, count: int) -> Callable[[Index, Index, Index], Value]:
        """Return what loads a vector of weights from a column on, by kernel row and column and
        channel.
        """
        fn = self.fn
        place, steps_at = self.weights
        output, *steps = (fn.load("i64", fn.at(steps_at, k, "i64"), 8) for k in range(4))
        weights = fn.at(place, output * column)

        def load(kh: Index, kw: Index, c: Index) -> Value:
            row, right, channel = (step * k for k, step in zip((kh, kw, c), steps, strict=True))
            return fn.gather(self.type, fn.at(weights, row + right + channel), output, count)

        return load
