"""Strided copies of items of 1, 2, 4 or 8 bytes: what every kernel that only moves elements is.

Where both sides run along the last dimension, rows are copied in vectors; where the source runs
along another one, squares are transposed in registers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trireme.devices.cpu.codegen.ir import Function, Index, Value
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.lowering import begin, deal, finish

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


def merged(copy: Copy) -> Copy:
    """Return the same copy with as few dimensions as can be."""
    dims: list[list[int]] = []
    for size, source, target in zip(copy.shape, copy.source, copy.target, strict=True):
        if size == 1:
            continue
        if dims and dims[-1][1:] == [source * size, target * size]:
            dims[-1] = [dims[-1][0] * size, source, target]
        else:
            dims.append([size, source, target])
    dims = dims or [[1, 1, 1]]
    shape, sources, targets = (tuple(column) for column in zip(*dims, strict=True))
    return replace(copy, shape=shape, source=sources, target=targets)


def copy_s(copy: Copy) -> float:
    """Return about how many seconds a copy takes: whole vectors, or an element at a time."""
    copy = merged(copy)
    elements = math.prod(copy.shape)
    squares = 1 in copy.source and copy.item == 4
    if copy.target[-1] == 1 and (copy.source[-1] in (0, 1) or squares):
        return elements * copy.item / 4.5e10 + elements // copy.shape[-1] * 1e-9
    return elements / 1.5e9


def copy_kernel(isa: Isa, copy: Copy, name: str) -> tuple[Code, int]:
    """Return the kernel of a strided copy, and its chunks. Operands: source, target."""
    copy = merged(copy)
    bits = 8 * copy.item
    fn, (x, y), chunk, _ = begin(f"{name}_b{bits}", isa, 2)
    element = f"i{bits}"
    x, y = fn.at(x, copy.source_at, element), fn.at(y, copy.target_at, element)
    if copy.target[-1] == 1 and copy.source[-1] != 1 and 1 in copy.source and copy.item == 4:
        chunks = _transposed(fn, copy, x, y, chunk)
    else:
        chunks = _rows(fn, copy, x, y, chunk, element)
    return finish(fn), chunks


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


def _rows(fn: Function, copy: Copy, x: Value, y: Value, chunk: Value, element: str) -> int:
    """Emit a copy row by row; returns the number of chunks."""
    inner = copy.shape[-1]
    if len(copy.shape) == 1 and inner > LONG_ROW and copy.source == copy.target == (1,):
        return _flat(fn, copy, x, y, chunk, element)
    axes = range(len(copy.shape) - 1)
    rows = math.prod(copy.shape[:-1])
    size, chunks = deal(rows, copy_s(copy))
    first: Index = chunk * size if chunks > 1 else 0
    for row in fn.range(first, fn.minimum(first + size, rows)):
        source, target = _offsets(fn, row, copy, axes)
        copy_row(fn, copy, fn.at(x, source, element), fn.at(y, target, element), element, inner)
    return chunks


def _flat(fn: Function, copy: Copy, x: Value, y: Value, chunk: Value, element: str) -> int:
    inner = copy.shape[0]
    size, chunks = deal(inner, copy_s(copy))
    first = chunk * size
    count = fn.minimum(first + size, inner) - first
    nbytes = fn.as_value("i64", count * copy.item)
    to, at = fn.at(y, first, element), fn.at(x, first, element)
    fn.declarations.add("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
    fn.line(f"call void @llvm.memcpy.p0.p0.i64({to}, {at}, {nbytes}, i1 false)")
    return chunks


def copy_row(fn: Function, copy: Copy, x: Value, y: Value, element: str, count: int) -> None:
    """Emit the copy of one row along the last dimension."""
    source, target = copy.source[-1], copy.target[-1]
    if source in (0, 1) and target == 1:
        lanes = fn.isa.vector_bits // (8 * copy.item)
        type = vector(lanes, element)
        same = fn.splat(fn.load(element, x, copy.item), lanes) if source == 0 else None
        whole = count // lanes * lanes
        for i in fn.range(0, whole, lanes):
            value = same or fn.load(type, fn.at(x, i, element), copy.item)
            fn.store(value, fn.at(y, i, element), copy.item)
        _pieces(fn, x, y, element, (whole, count), same, copy.item)
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


def _transposed(fn: Function, copy: Copy, x: Value, y: Value, chunk: Value) -> int:
    """Emit a copy whose source runs along another dimension than its target."""
    along, last = copy.source.index(1), len(copy.shape) - 1
    lanes = fn.isa.lanes
    blocks = -(-copy.shape[along] // lanes)
    others = [axis for axis in range(last) if axis != along]
    outer = math.prod(copy.shape[axis] for axis in others)
    items = outer * blocks
    size, chunks = deal(items, copy_s(copy))
    first: Index = chunk * size if chunks > 1 else 0
    for item in fn.range(first, fn.minimum(first + size, items)):
        row, block = fn.integer("udiv", item, blocks), fn.integer("urem", item, blocks)
        source, target = _offsets(fn, row, copy, others) if others else (0, 0)
        source = block * lanes + source
        target = block * (lanes * copy.target[along]) + target
        at, to = fn.at(x, source), fn.at(y, target)
        rest = copy.shape[along] % lanes
        if not rest or isinstance(block, int):
            _strip(fn, copy, along, at, to, rest or lanes)
            continue
        for is_last in fn.either(fn.compare("eq", block, blocks - 1)):
            _strip(fn, copy, along, at, to, rest if is_last else lanes)
    return chunks


def _strip(fn: Function, copy: Copy, along: int, x: Value, y: Value, rows: int) -> None:
    """Emit the transposition of a strip: `rows` target rows of the last dimension's length."""
    lanes, count = fn.isa.lanes, copy.shape[-1]
    if count <= 4 <= lanes and copy.target[along] == count:
        _interleave(fn, copy, x, y, rows)
        return
    whole = count // lanes * lanes
    for i in fn.range(0, whole, lanes):
        _square(fn, copy, along, fn.at(x, i * copy.source[-1]), fn.at(y, i), rows, lanes)
    if whole < count:
        at, to = fn.at(x, whole * copy.source[-1]), fn.at(y, whole)
        _square(fn, copy, along, at, to, rows, count - whole)


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
    fn: Function, copy: Copy, along: int, x: Value, y: Value, rows: int, columns: int
) -> None:
    """Emit the transposition of at most lanes by lanes elements in registers."""
    lanes = fn.isa.lanes
    type = vector(lanes, "float")
    nothing = fn.as_value(type, 0.0)
    lines = [
        fn.load_some(type, fn.at(x, k * copy.source[-1]), rows) if k < columns else nothing
        for k in range(lanes)
    ]
    for r, line in enumerate(transpose_registers(fn, lines)[:rows]):
        fn.store_some(line, fn.at(y, r * copy.target[along]), columns)


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
