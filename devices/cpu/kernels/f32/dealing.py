"""The last step of a transposed convolution: results of plain ones are put side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trireme.devices.cpu.codegen.index import known, minus, times
from trireme.devices.cpu.codegen.ir import Function, Index, Value
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.copies import Copy, copy_row
from trireme.devices.cpu.kernels.lowering import Context, Step, Temp, dims_of, finish
from trireme.devices.cpu.kernels.phases import PhaseAxis, PhaseRange, pairs
from trireme.devices.cpu.kernels.spans import SpanCut, SpanWork, Wiring, begin_span, span_step
from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import Array
from trireme.support.records import dataclass


@dataclass(frozen=True)
class Dealing:
    """Images [batch, windows, phases of a run, channels] -> image [batch, height, width, channels].

    item: bytes of an element
    """

    batch: int
    axes: Sequence[PhaseAxis]
    channels: int
    item: int


def _dealing_kernel(isa: Isa, dealing: Dealing, cut: SpanCut) -> Code:
    """Return the kernel that deals results out.

    Operands: the results of each pair of runs, a pixel that no input reaches, y
    """
    name, operands = f"copy_phases_b{8 * dealing.item}", len(pairs(dealing.axes)) + 2
    fn, pointers, _, _, span = begin_span(name, isa, operands, cut)
    _emit_dealing(fn, fn.known(dealing), pointers, span)
    return finish(fn)


def _work(dealing: Dealing) -> SpanWork:
    """Return the rows of the output, and the seconds of all."""
    down, along = dealing.axes
    rows = dealing.batch * down.out
    row_bytes = along.out * dealing.channels * dealing.item
    return SpanWork(rows, rows * (row_bytes / 2.5e10 + along.windows * len(along.runs) * 5e-10))


def _emit_dealing(
    fn: Function, dealing: Dealing, pointers: Sequence[Value], span: tuple[Index, Index]
) -> None:
    """Emit some of the output's rows; sizes and windows of the axes may be read."""
    results = dict(zip(pairs(dealing.axes), pointers, strict=False))
    writer = _Dealer(fn, dealing, results, pointers[-2])
    row_bytes = times(fn, dealing.axes[1].out, dealing.channels * dealing.item)
    for row in fn.range(*span):
        writer.row(row, fn.at(pointers[-1], fn.as_value("i64", row) * row_bytes, "i8"))


class _Dealer:
    """Writes rows of the output: rows > runs of rows > runs of columns > windows."""

    def __init__(
        self,
        fn: Function,
        dealing: Dealing,
        results: dict[tuple[PhaseRange, PhaseRange], Value],
        blank: Value,
    ) -> None:
        self.fn, self.dealing, self.results, self.blank = fn, dealing, results, blank
        self.pixel = dealing.channels * dealing.item

    def row(self, row: Index, line: Value) -> None:
        """Emit a row of the output, by the phase that it is."""
        fn, down = self.fn, self.dealing.axes[0]
        image, oh = (fn.integer(op, row, down.out) for op in ("udiv", "urem"))
        place = fn.as_value("i64", oh) - down.shift
        window, phase = (fn.integer(op, place, down.stride) for op in ("udiv", "urem"))
        source = fn.as_value("i64", image) * down.windows + window
        self._choose(list(down.runs), source, fn.as_value("i64", phase), line)

    def _choose(self, runs: list[PhaseRange], source: Value, phase: Value, line: Value) -> None:
        """Emit the choice of a run of rows by the phase."""
        if len(runs) == 1:
            self._columns(runs[0], source, phase, line)
            return
        middle = len(runs) // 2
        for is_low in self.fn.either(self.fn.compare("slt", phase, runs[middle].first)):
            self._choose(runs[:middle] if is_low else runs[middle:], source, phase, line)

    def _columns(self, rows: PhaseRange, source: Value, phase: Value, line: Value) -> None:
        """Emit a row's pixels, for each run of columns, window by window."""
        fn, along = self.fn, self.dealing.axes[1]
        for columns in along.runs:
            start = columns.first + along.shift
            low = max(-(start // along.stride), 0)
            block = rows.count * columns.count * self.pixel
            step, pick = columns.count * self.pixel, phase - rows.first
            data = self.results.get((rows, columns))
            base = None
            if data is not None:
                at = source * times(fn, along.windows, block) + pick * step
                base = fn.at(data, at, "i8")
            if not known(along.out):
                self._open_columns(base, line, columns, low, block)
                continue
            high = max((along.out - start - columns.count) // along.stride + 1, low)
            for window in range(min(low, along.windows)):
                self._pixels(base, line, columns, window, block)
            for t in fn.range(low, min(high, along.windows)):
                self._pixels(base, line, columns, t, block)
            for window in range(max(low, high), along.windows):
                self._pixels(base, line, columns, window, block)

    def _open_columns(
        self, base: Value | None, line: Value, columns: PhaseRange, low: int, block: int
    ) -> None:
        """Emit a row's pixels where its width is read: those at its ends one by one."""
        fn, along = self.fn, self.dealing.axes[1]
        end = columns.first + along.shift + columns.count - along.stride
        fits = fn.maximum(minus(fn, along.out, end), 0)
        inner = fn.minimum(fn.integer("udiv", fits, along.stride), along.windows)
        for window in range(low):
            with fn.when(fn.compare("sgt", fn.as_value("i64", along.windows), window)):
                self._single_pixels(base, line, columns, window, block)
        for t in fn.range(low, inner):
            self._pixels(base, line, columns, t, block)
        for t in fn.range(fn.maximum(inner, low), along.windows):
            self._single_pixels(base, line, columns, t, block)

    def _single_pixels(
        self, base: Value | None, line: Value, columns: PhaseRange, window: Index, block: int
    ) -> None:
        """Emit the pixels of one window one by one, each where it lies inside the output."""
        fn, along = self.fn, self.dealing.axes[1]
        start = fn.as_value("i64", window * along.stride + (columns.first + along.shift))
        for pixel in range(columns.count):
            place = start + pixel
            with fn.when(fn.compare("ult", place, along.out)):
                target = fn.at(line, place * self.pixel, "i8")
                source = self.blank
                if base is not None:
                    source = fn.at(base, window * block + pixel * self.pixel, "i8")
                self._copy(source, target, 1)

    def _pixels(
        self, base: Value | None, line: Value, columns: PhaseRange, window: Index, block: int
    ) -> None:
        """Emit the pixels of one window that lie inside the output."""
        fn, along = self.fn, self.dealing.axes[1]
        first, last = 0, columns.count
        start = window * along.stride + (columns.first + along.shift)
        if isinstance(start, int):
            first, last = max(0, -start), min(last, along.out - start)
        if last <= first:
            return
        target = fn.at(line, (start + first) * self.pixel, "i8")
        if base is not None:
            place = fn.at(base, window * block + first * self.pixel, "i8")
            self._copy(place, target, last - first)
            return
        for pixel in fn.range(0, last - first):
            self._copy(self.blank, fn.at(target, pixel * self.pixel, "i8"), 1)

    def _copy(self, source: Value, target: Value, pixels: int) -> None:
        item, count = self.dealing.item, pixels * self.dealing.channels
        along = Copy((count,), (1,), (1,), item)
        copy_row(self.fn, along, source, target, f"i{8 * item}", count)


def deal_step(
    context: Context,
    node: Node,
    axes_at: Callable[[Graph], tuple[PhaseAxis, PhaseAxis]],
    results: Sequence[Temp],
    blank: Array,
) -> Step:
    """Return the step that puts the results of pairs of runs side by side."""

    def dealing_of(graph: Graph) -> Dealing:
        y = dims_of(graph, node.outputs[0])
        return Dealing(y[0], tuple(axis.places for axis in axes_at(graph)), y[-1], blank.itemsize)

    wiring = Wiring((*results, blank), node.outputs, (node.id,), "copy")
    return span_step(context, wiring, dealing_of, _work, _dealing_kernel)
