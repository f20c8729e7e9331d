"""Strided copies of items of 1, 2, 4 or 8 bytes: what every kernel that only moves elements is.

Where both sides run along the last dimension, rows are copied in vectors. Where the source runs
along another one, squares are transposed in registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from trireme.devices.cpu.codegen.index import known, minus, plus, times
from trireme.devices.cpu.codegen.ir import Function, Index, Value
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.lowering import At, Context, Step, finish
from trireme.devices.cpu.kernels.spans import (
    NOTHING,
    SpanCut,
    SpanWork,
    Wiring,
    begin_span,
    span_step,
)
from trireme.ir.graph import Graph
from trireme.support.records import dataclass

Ints = tuple[int, ...]

LONG_ROW = 16 << 10
"""Elements of a copy in one piece that are worth a cut."""


@dataclass(frozen=True)
class Copy:
    """A strided copy; strides and offsets in items of `item` bytes."""

    shape: Ints
    source: Ints
    target: Ints
    item: int
    source_at: int = 0
    target_at: int = 0


def dense(shape: Sequence[int]) -> Ints:
    """Return the strides of a dense array."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _copy_runs(copy: Copy) -> tuple[Ints, ...]:
    """Return runs of axes that both sides walk as one; axes of size 1 are left out."""
    runs: list[Ints] = []
    for axis, size in enumerate(copy.shape):
        if size == 1:
            continue
        sides = (copy.source, copy.target)
        if runs and all(side[runs[-1][-1]] == side[axis] * size for side in sides):
            runs[-1] = (*runs[-1], axis)
        else:
            runs.append((axis,))
    return tuple(runs)


def _with_runs(copy: Copy, runs: Sequence[Ints]) -> Copy:
    """Return the same copy with a dimension for each run of axes; of one element without any."""
    if not runs:
        return replace(copy, shape=(1,), source=(1,), target=(1,))
    shape = tuple(math.prod([copy.shape[axis] for axis in run]) for run in runs)
    source, target = (tuple(side[run[-1]] for run in runs) for side in (copy.source, copy.target))
    return Copy(shape, source, target, copy.item, copy.source_at, copy.target_at)


def is_transposed(copy: Copy) -> bool:
    """Whether a merged copy is done by squares that are transposed in registers."""
    runs_across = copy.target[-1] == 1 and copy.source[-1] != 1
    return runs_across and 1 in copy.source and copy.item == 4


def _copy_s(copy: Copy) -> float:
    """Return about how many seconds a copy takes: whole vectors, or an element at a time."""
    copy = _with_runs(copy, _copy_runs(copy))
    elements = math.prod(copy.shape)
    squares = 1 in copy.source and copy.item == 4
    if copy.target[-1] == 1 and (copy.source[-1] in (0, 1) or squares):
        return elements * copy.item / 4.5e10 + elements // copy.shape[-1] * 1e-9
    return elements / 1.5e9


def copy_kernel(isa: Isa, copy: Copy, cut: SpanCut, name: str, is_one_piece: bool) -> Code:
    """Return the kernel of a merged copy. Operands: source, target.

    Units are items of a copy in one piece, strips of a transposed one, else rows.
    """
    element = f"i{8 * copy.item}"
    fn, (x, y), _, _, span = begin_span(f"{name}_b{8 * copy.item}", isa, 2, cut)
    known = fn.known(copy)
    x, y = fn.at(x, known.source_at, element), fn.at(y, known.target_at, element)
    if is_transposed(copy):
        _emit_strips(fn, known, x, y, span)
    elif is_one_piece:
        _emit_piece(fn, known, x, y, span)
    else:
        _emit_rows(fn, known, x, y, element, span)
    return finish(fn)


def copy_step(
    context: Context, wiring: Wiring, copy: Copy, name: str, copy_at: Callable[[Graph], Copy]
) -> Step:
    """Return the step of a strided copy from what is read to what is written.

    Numbers are added to the addresses of values, so that the parts of a split or a concat share a
    kernel.
    copy: in the context's graph; copy_at: gives it in a graph of one shape, where sizes vary
    """
    runs = _copy_runs(copy)
    plan = _with_runs(copy, runs)
    (read,), (write,) = wiring.reads, wiring.writes
    if not context.is_open and isinstance(read, int):
        read, plan = _at(read, plan.source_at * plan.item), replace(plan, source_at=0)
    if not context.is_open and isinstance(write, int):
        write, plan = _at(write, plan.target_at * plan.item), replace(plan, target_at=0)
    is_dense = plan.source == plan.target == (1,)
    is_one_piece = is_dense and (context.is_open or plan.shape[0] > LONG_ROW)
    along = plan.source.index(1) if is_transposed(plan) else None

    def plan_of(graph: Graph) -> Copy:
        return plan if graph is context.graph else _with_runs(copy_at(graph), runs)

    def work(copy: Copy) -> SpanWork:
        if 0 in copy.shape:
            return NOTHING
        units = math.prod(copy.shape if is_one_piece else copy.shape[:-1])
        if along is not None:
            units = _strips(copy, along, context.isa.lanes)
        return SpanWork(units, _copy_s(copy))

    wiring = wiring._replace(reads=(read,), writes=(write,))
    return span_step(context, wiring, plan_of, work, copy_kernel, name, is_one_piece)


def _at(value: int, offset: int) -> int | At:
    return At(value, offset) if offset else value


def _offsets(fn: Function, row: Index, copy: Copy, axes: Sequence[int]) -> tuple[Index, Index]:
    """The source and target offsets of the row-th combination of the axes."""
    source: Index = 0
    target: Index = 0
    for axis in reversed(axes):
        first = axis == axes[0]
        index = row if first else fn.integer("urem", row, copy.shape[axis])
        row = 0 if first else fn.integer("udiv", row, copy.shape[axis])
        source = index * copy.source[axis] + source
        target = index * copy.target[axis] + target
    return source, target


def _emit_rows(
    fn: Function, copy: Copy, x: Value, y: Value, element: str, rows: tuple[Index, Index]
) -> None:
    """Emit the copy of some of the rows along the last dimension."""
    axes = range(len(copy.shape) - 1)
    for row in fn.range(*rows):
        source, target = _offsets(fn, row, copy, axes)
        at, to = fn.at(x, source, element), fn.at(y, target, element)
        copy_row(fn, copy, at, to, element, copy.shape[-1])


def _emit_piece(fn: Function, copy: Copy, x: Value, y: Value, items: tuple[Index, Index]) -> None:
    """Emit the copy of some items of a dense copy."""
    element, (first, end) = f"i{8 * copy.item}", items
    nbytes = fn.as_value("i64", minus(fn, end, first) * copy.item)
    to, at = fn.at(y, first, element), fn.at(x, first, element)
    fn.declarations.add("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
    fn.line(f"call void @llvm.memcpy.p0.p0.i64({to}, {at}, {nbytes}, i1 false)")


def copy_row(fn: Function, copy: Copy, x: Value, y: Value, element: str, count: Index) -> None:
    """Emit the copy of one row along the last dimension."""
    source, target = copy.source[-1], copy.target[-1]
    if source in (0, 1) and target == 1:
        lanes = fn.isa.vector_bits // (8 * copy.item)
        type = vector(lanes, element)
        same = fn.splat(fn.load(element, x, copy.item), lanes) if source == 0 else None
        whole = minus(fn, count, fn.integer("urem", count, lanes))
        for i in fn.range(0, whole, lanes):
            value = same or fn.load(type, fn.at(x, i, element), copy.item)
            fn.store(value, fn.at(y, i, element), copy.item)
        if isinstance(whole, int) and isinstance(count, int):
            _pieces(fn, x, y, element, (whole, count), same, copy.item)
            return
        rest = fn.as_value("i64", minus(fn, count, whole))
        with fn.when(fn.compare("ne", rest, 0)):
            value = same or fn.load_some(type, fn.at(x, whole, element), rest, copy.item)
            fn.store_some(value, fn.at(y, whole, element), rest, copy.item)
        return
    for i in fn.range(0, count):
        value = fn.load(element, fn.at(x, i * source, element), copy.item)
        fn.store(value, fn.at(y, i * target, element), copy.item)


def _pieces(
    fn: Function,
    x: Value,
    y: Value,
    element: str,
    span: tuple[int, int],
    same: Value | None,
    item: int,
) -> None:
    """Emit the end of a row in powers of two, so that no byte beyond it is touched."""
    at, end = span
    while at < end:
        lanes = 1 << (end - at).bit_length() - 1
        type = vector(lanes, element)
        if same is None:
            value = fn.load(type, fn.at(x, at, element), item)
        else:
            value = fn.splat(fn.extract(same, 0), lanes)
        fn.store(value, fn.at(y, at, element), item)
        at += lanes


def _strips(copy: Copy, along: int, lanes: int) -> int:
    """Return the strips of a transposed copy, each of at most `lanes` rows of the target.

    along: the dimension that the source runs along
    """
    blocks = -(-copy.shape[along] // lanes)
    return math.prod(copy.shape[:along]) * blocks * math.prod(copy.shape[along + 1 : -1])


def _emit_strips(fn: Function, copy: Copy, x: Value, y: Value, items: tuple[Index, Index]) -> None:
    """Emit some of the strips of a transposed copy."""
    along, last = copy.source.index(1), len(copy.shape) - 1
    lanes, length = fn.isa.lanes, copy.shape[along]
    blocks = fn.integer("udiv", plus(fn, length, lanes - 1), lanes)
    others = [axis for axis in range(last) if axis != along]
    for item in fn.range(*items):
        row, block = fn.integer("udiv", item, blocks), fn.integer("urem", item, blocks)
        source, target = _offsets(fn, row, copy, others) if others else (0, 0)
        source = block * lanes + source
        target = times(fn, block, copy.target[along] * lanes) + target
        at, to = fn.at(x, source), fn.at(y, target)
        rest = fn.integer("urem", length, lanes)
        if isinstance(block, int) or (isinstance(rest, int) and not rest):
            _strip(fn, copy, along, at, to, rest or lanes)
            continue
        left = fn.as_value("i64", fn.minimum(minus(fn, length, block * lanes), lanes))
        is_short = fn.compare("slt", left, lanes)
        for short in fn.either(is_short):
            _strip(
                fn,
                copy,
                along,
                at,
                to,
                (rest if isinstance(rest, int) else left) if short else lanes,
            )


def _strip(fn: Function, copy: Copy, along: int, x: Value, y: Value, rows: Index) -> None:
    """Emit the transposition of a strip: `rows` target rows of the last dimension's length."""
    lanes, count = fn.isa.lanes, copy.shape[-1]
    few = known(count) and count <= 4 <= lanes and copy.target[along] == count
    if few and isinstance(rows, int):
        _interleave(fn, copy, x, y, rows)
        return
    rest = fn.integer("urem", count, lanes)
    whole = minus(fn, count, rest)
    for i in fn.range(0, whole, lanes):
        _square(fn, copy, along, fn.at(x, i * copy.source[-1]), fn.at(y, i), rows, lanes)
    if isinstance(rest, int) and not rest:
        return
    at, to = fn.at(x, times(fn, whole, copy.source[-1])), fn.at(y, whole)
    if isinstance(rest, int):
        _square(fn, copy, along, at, to, rows, rest)
        return
    with fn.when(fn.compare("ne", rest, 0)):
        _square(fn, copy, along, at, to, rows, rest)


def _interleave(fn: Function, copy: Copy, x: Value, y: Value, rows: int) -> None:
    """Emit the transposition of a few long lines into many short ones that follow each other."""
    lanes, count = fn.isa.lanes, copy.shape[-1]
    type = vector(lanes, "float")
    lines = [fn.load_some(type, fn.at(x, k * copy.source[-1]), rows) for k in range(count)]
    for at in range(0, rows * count, lanes):
        places = [divmod(at + lane, count) for lane in range(lanes)]
        made = lines[0]
        for k in range(1, count):
            order = [
                lanes + row if column == k else (row if k == 1 and column == 0 else lane)
                for lane, (row, column) in enumerate(places)
            ]
            made = fn.shuffle(made, lines[k], order)
        fn.store_some(made, fn.at(y, at), min(lanes, rows * count - at))


def _square(
    fn: Function, copy: Copy, along: int, x: Value, y: Value, rows: Index, columns: Index
) -> None:
    """Emit the transposition of at most lanes by lanes elements in registers."""
    lanes, stride = fn.isa.lanes, copy.source[-1]
    type = vector(lanes, "float")
    lines = []
    for k in range(lanes):
        if isinstance(columns, int) and k >= columns:
            lines.append(fn.as_value(type, 0.0))
            continue
        of = k if isinstance(columns, int) else fn.minimum(k, columns - 1)  # none beyond the last
        lines.append(fn.load_some(type, fn.at(x, times(fn, of, stride)), rows))
    for r, line in enumerate(transpose_registers(fn, lines)):
        to = fn.at(y, times(fn, r, copy.target[along]))
        if isinstance(rows, int):
            if r < rows:
                fn.store_some(line, to, columns)
            continue
        with fn.when(fn.compare("sgt", rows, r)):
            fn.store_some(line, to, columns)


def transpose_registers(fn: Function, lines: Sequence[Value]) -> list[Value]:
    """Return the columns of a square of vectors, by log2(lanes) perfect shuffles of pairs."""
    lanes = len(lines)
    low = [k // 2 + (k % 2) * lanes for k in range(lanes)]
    high = [k + lanes // 2 for k in low]
    lines = list(lines)
    for _ in range(lanes.bit_length() - 1):
        pairs = list(zip(lines[: lanes // 2], lines[lanes // 2 :], strict=True))
        lines = [fn.shuffle(a, b, order) for a, b in pairs for order in (low, high)]
    return lines
