"""gather_elements, gather_nd, scatter_elements, scatter_nd: slices of x at places that indices say.

Both gathers and both scatters are one walk over **picks**. A pick is a run of `depth` indices and a
slice of `inner` elements. In x the slices lie where the indices say, on the other side one after
another. An index outside its axis counts as 0, or is left out of a scatter, and the run ends with
an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from trireme.devices.cpu.codegen.index import known, minus, plus, product, times
from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.scalars import SCALARS, bits, load, rounded, store
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.copies import Copy, copy_row, copy_step, dense
from trireme.devices.cpu.kernels.expressions import emitter
from trireme.devices.cpu.kernels.lowering import (
    TABLE,
    Context,
    KernelFault,
    Rule,
    Step,
    finish,
    in_every_shape,
)
from trireme.devices.cpu.kernels.movement.gather import index_fault
from trireme.devices.cpu.kernels.movement.move import whole_copy
from trireme.devices.cpu.kernels.spans import SpanCut, SpanWork, Wiring, begin_span, span_step
from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import itemsize
from trireme.support.errors import InternalError
from trireme.support.records import dataclass

Ints = tuple[int, ...]


@dataclass(frozen=True)
class Picks:
    """The picks of a gather or a scatter.

    dims, base: the picks as a tensor, and what a step along each axis adds to the place in x
    sizes, strides: of the axes of x that the indices of a pick name
    inner, item: elements of a slice, bytes of one
    index_bits: of an index
    """

    dims: Ints
    base: Ints
    sizes: Ints
    strides: Ints
    inner: int
    item: int
    index_bits: int

    @property
    def is_of_items(self) -> bool:
        """Whether each pick is an item by one index, of a size that vectors gather."""
        return self.inner == len(self.sizes) == 1 and self.item >= 4

    @property
    def count(self) -> int:
        """The number of picks."""
        return math.prod(self.dims)


def _picks_of(graph: Graph, node: Node) -> Picks:
    """Return the picks of a gather or a scatter."""
    x, indices = (graph.type(value) for value in node.used[:2])
    strides = dense(x.dims)
    item, index_bits = itemsize(x.dtype), 8 * itemsize(indices.dtype)
    if "axis" in node.attrs:
        axis = node.attrs["axis"] % len(x.dims)
        base = tuple(0 if k == axis else stride for k, stride in enumerate(strides))
        sizes, steps = (x.dims[axis],), (strides[axis],)
        return Picks(indices.dims, base, sizes, steps, 1, item, index_bits)
    lead, depth = node.attrs.get("batch_dims", 0), indices.dims[-1]
    dims = indices.dims[:-1]
    base = tuple(strides[k] if k < lead else 0 for k in range(len(dims)))
    named = slice(lead, lead + depth)
    inner = math.prod(x.dims[lead + depth :])
    return Picks(dims, base, x.dims[named], strides[named], inner, item, index_bits)


@dataclass(frozen=True)
class _IndexedEmitter:
    """Writes the parts that gathers and scatters share."""

    fn: Function
    picks: Picks
    indices: Value

    def index(self, pick: Index, k: int) -> Value:
        """Load index k of a pick as i64."""
        element, width = f"i{self.picks.index_bits}", self.picks.index_bits // 8
        at = pick * len(self.picks.sizes) + k
        found = self.fn.load(element, self.fn.at(self.indices, at, element), width)
        return found if width == 8 else self.fn.convert("sext", found, "i64")

    def place(self, pick: Index, base: Index) -> tuple[Value, Value]:
        """Return a pick's place in x, and whether its indices lie inside; 0 stands for others."""
        fn, total = self.fn, self.fn.as_value("i64", base)
        inside = fn.as_value("i1", 1)
        for k, (size, stride) in enumerate(zip(self.picks.sizes, self.picks.strides, strict=True)):
            index = self.index(pick, k)
            index = fn.select(fn.compare("slt", index, 0), index + size, index)
            found = fn.compare("ult", index, size)
            inside = bits(fn, "and", inside, found)
            total = total + fn.select(found, index, fn.as_value("i64", 0)) * stride
        return total, inside

    def gather_items(self, x: Value, y: Value, pick: Index, base: Index) -> None:
        """Emit a vector of picks of one item by one index each."""
        fn, lanes, picks = self.fn, self.fn.isa.lanes, self.picks
        offsets, element = vector(lanes, "i64"), f"i{8 * picks.item}"
        size, stride = picks.sizes[0], picks.strides[0]
        place = self.fn.at(self.indices, pick, f"i{picks.index_bits}")
        index = fn.load(vector(lanes, f"i{picks.index_bits}"), place, picks.index_bits // 8)
        index = index if picks.index_bits == 64 else fn.convert("sext", index, offsets)
        index = fn.select(fn.compare("slt", index, 0), index + size, index)
        index = fn.select(fn.compare("ult", index, size), index, fn.as_value(offsets, 0))
        along = picks.base[-1] if picks.base else 0
        steps = ", ".join(f"i64 {lane * along}" for lane in range(lanes))
        total = index * stride + fn.splat(fn.as_value("i64", base), lanes)
        total = total + Value(fn, offsets, f"<{steps}>")
        found = fn.gather_at(vector(lanes, element), x, total)
        fn.store(found, fn.at(y, pick, element), min(picks.item, 4))

    def check(self, faults: Sequence[Value]) -> None:
        """Emit a look at all indices: of each axis the first that is outside is reported."""
        fn, count = self.fn, product(self.fn, self.picks.dims)
        for k, (fault, size) in enumerate(zip(faults, self.picks.sizes, strict=True)):
            with fn.when(self._any_outside(k, size)):
                for back in fn.range(0, count):
                    pick = (
                        fn.as_value("i64", minus(fn, count, 1)) - back
                    )  # so the first is written last
                    index = self.index(pick, k)
                    with fn.when(self._outside(index, size)):
                        fn.store(fn.as_value("i64", 1), fault, 8)
                        fn.store(index, fn.at(fault, 1, "i64"), 8)

    def _any_outside(self, k: int, size: int) -> Value:
        """Whether an index of an axis is outside; in vectors where a pick has one index."""
        fn, count = self.fn, product(self.fn, self.picks.dims)
        lanes = fn.isa.vector_bits // self.picks.index_bits
        element = f"i{self.picks.index_bits}"
        found = Var(fn, "i1", 0)
        in_vectors = known(size) and len(self.picks.sizes) == 1 and size < 1 << 31
        whole: Index = 0
        if in_vectors:
            whole = minus(fn, count, fn.integer("urem", count, lanes))
        if not (isinstance(whole, int) and whole == 0):
            wrong = Var(fn, vector(lanes, "i1"), 0)
            for i in fn.range(0, whole, lanes):
                index = fn.load(vector(lanes, element), fn.at(self.indices, i, element), 4)
                moved = self._outside(index, size)
                wrong.set(bits(fn, "or", wrong.get(), moved))
            found.set(fn.call("i1", f"llvm.vector.reduce.or.v{lanes}i1", wrong.get()))
        for pick in fn.range(whole, count):
            outside = self._outside(self.index(pick, k), size)
            found.set(bits(fn, "or", found.get(), outside))
        return found.get()

    def _outside(self, index: Value, size: int) -> Value:
        """Whether indices are outside -size..size-1."""
        low = self.fn.compare("slt", index, minus(self.fn, 0, size))
        return bits(self.fn, "or", low, self.fn.compare("sgt", index, size - 1))


def gather_picks_kernel(isa: Isa, picks: Picks, cut: SpanCut) -> Code:
    """Return the kernel of a gather. Operands: x, indices, a fault for each axis, y."""
    name, operands = f"gather_picks_b{8 * picks.item}", 3 + len(picks.sizes)
    fn, (x, indices, *faults, y), chunk, _, span = begin_span(name, isa, operands, cut)
    _emit_picks(fn, fn.known(picks), (x, indices, y), faults, span, chunk)
    return finish(fn)


def _emit_picks(
    fn: Function,
    picks: Picks,
    operands: tuple[Value, Value, Value],
    faults: Sequence[Value],
    span: tuple[Index, Index],
    chunk: Value,
) -> None:
    """Emit the gather of some rows of picks, and in chunk 0 a look at all indices."""
    (x, indices, y), element = operands, f"i{8 * picks.item}"
    emit = _IndexedEmitter(fn, picks, indices)
    with fn.when(fn.compare("eq", chunk, 0)):
        emit.check(faults)
    inner = (picks.dims or (1,))[-1]
    slice_ = Copy((picks.inner,), (1,), (1,), picks.item)
    in_vectors = picks.is_of_items and all(map(known, (*picks.sizes, *picks.strides)))
    lanes = fn.isa.lanes if in_vectors else 1
    whole: Index = 0
    if lanes > 1:
        whole = minus(fn, inner, fn.integer("urem", inner, lanes))
    for row in fn.range(*span):
        base = _base(fn, row, picks)
        for i in fn.range(0, whole, lanes):
            emit.gather_items(x, y, row * inner + i, _plus(base, i, picks))
        for i in fn.range(whole, inner):
            pick = row * inner + i
            place, _ = emit.place(pick, _plus(base, i, picks))
            source, target = fn.at(x, place, element), fn.at(y, pick * picks.inner, element)
            copy_row(fn, slice_, source, target, element, picks.inner)


def scatter_picks_kernel(isa: Isa, picks: Picks, cut: SpanCut, reduction: str, dtype: str) -> Code:
    """Return the kernel of a scatter onto a copy of x; one chunk, in order.

    Operands: indices, updates, a fault for each axis, y
    """
    what = f"{reduction}_{SCALARS[dtype].short}" if dtype else f"picks_b{8 * picks.item}"
    fn, operands, *_ = begin_span(f"scatter_{what}", isa, 3 + len(picks.sizes), cut)
    _emit_scatter(fn, fn.known(picks), operands, reduction, dtype)
    return finish(fn)


def _emit_scatter(
    fn: Function, picks: Picks, operands: Sequence[Value], reduction: str, dtype: str
) -> None:
    """Emit a look at all indices, then the picks one after another."""
    (indices, updates, *faults, y), element = operands, f"i{8 * picks.item}"
    emit = _IndexedEmitter(fn, picks, indices)
    emit.check(faults)
    rows, inner = product(fn, picks.dims[:-1]), (picks.dims or (1,))[-1]
    slice_ = Copy((picks.inner,), (1,), (1,), picks.item)
    for row in fn.range(0, rows):
        base = _base(fn, row, picks)
        for i in fn.range(0, inner):
            pick = plus(fn, times(fn, row, inner), i)
            place, inside = emit.place(pick, _plus(base, i, picks))
            with fn.when(inside):
                target = fn.at(y, place, element)
                source = fn.at(updates, times(fn, pick, picks.inner), element)
                if reduction == "none":
                    copy_row(fn, slice_, source, target, element, picks.inner)
                else:
                    _combine_row(fn, reduction, dtype, (source, target), picks.inner)


def _combine_row(
    fn: Function, op: str, dtype: str, places: tuple[Value, Value], count: Index
) -> None:
    """Emit target = op(target, source) for `count` neighbouring elements."""
    source, target = places
    emit, scalar = emitter(op, dtype), SCALARS[dtype]
    if emit is None:
        raise InternalError(f"no expression of {op} on {dtype}")
    lanes = fn.isa.vector_bits // (8 * min(scalar.nbytes, 4)) if count != 1 else 1

    def combine(at: Index, some: Index) -> None:
        to = fn.at(target, at, scalar.memory)
        update = load(fn, dtype, fn.at(source, at, scalar.memory), lanes, some)
        made = emit(fn, {"activation": ""}, load(fn, dtype, to, lanes, some), update)
        store(fn, dtype, rounded(fn, dtype, made), to, some)

    rest = fn.integer("urem", count, lanes)
    whole = minus(fn, count, rest)
    for i in fn.range(0, whole, lanes):
        combine(i, lanes)
    if isinstance(rest, Value):
        with fn.when(fn.compare("ne", rest, 0)):
            combine(whole, rest)
    elif rest:
        combine(whole, rest)


def _base(fn: Function, row: Index, picks: Picks) -> Index:
    """The offset in x of the coordinates of a row of picks."""
    offset: Index = 0
    for axis in reversed(range(len(picks.dims) - 1)):
        index = fn.integer("urem", row, picks.dims[axis]) if axis else row
        row = fn.integer("udiv", row, picks.dims[axis]) if axis else 0
        if picks.base[axis]:
            offset = index * picks.base[axis] + offset
    return offset


def _plus(base: Index, i: Index, picks: Picks) -> Index:
    return i * picks.base[-1] + base if picks.base and picks.base[-1] else base


def _pick_s(picks: Picks) -> float:
    """Return about how many seconds the picks take: their indices, and the bytes of the slices."""
    slice_s = 0.0 if picks.inner == 1 else 2e-9 + picks.inner * picks.item / 3e10
    return picks.count * (1.1e-9 * len(picks.sizes) + slice_s)


def _gather_work(picks: Picks) -> SpanWork:
    return SpanWork(math.prod(picks.dims[:-1]), _pick_s(picks))


def _scatter_work(picks: Picks) -> SpanWork:
    """Return one unit: picks keep their order."""
    return SpanWork(1, _pick_s(picks))


def _reason(graph: Graph, node: Node) -> str | None:
    """Say why a gather or a scatter has no native kernel, None when it has."""
    x, y = graph.type(node.used[0]), graph.type(node.outputs[0])
    types = [graph.type(value) for value in (*node.used, *node.outputs)]
    if any(type.quant != x.quant for type in types if type.dtype == x.dtype) or x.quant != y.quant:
        return f"{node.op} has no native kernel between different quantisations"
    if not all(type.elements for type in types):
        return f"{node.op} has no native kernel for empty tensors"
    if x.dtype == "string" or itemsize(x.dtype) not in (1, 2, 4, 8):
        return f"{node.op} has no native kernel for {x.dtype}"
    reduction = node.attrs.get("reduction", "none")
    if reduction != "none" and (x.quant is not None or emitter(reduction, x.dtype) is None):
        return f"{node.op} has no native kernel for {reduction} of {x.dtype}"
    return None


def _faults(node: Node, picks: Picks) -> list[KernelFault]:
    return [index_fault(node, size) for size in picks.sizes]


def _lower_gather(context: Context, node: Node) -> list[Step]:
    faults = _faults(node, _picks_of(context.graph, node))
    reads = (*(context.operand(i) for i in node.used), *faults)
    wiring = Wiring(reads, node.outputs, (node.id,), "gather")
    plan_of = partial(_picks_of, node=node)
    return [span_step(context, wiring, plan_of, _gather_work, gather_picks_kernel)]


def _copy_of(context: Context, node: Node) -> Step:
    """Return the step that copies x to the output."""
    source, (output,) = node.used[0], node.outputs
    if context.is_open:
        return whole_copy(context, node, source, output)
    x = context.type(source)
    whole = Copy((x.elements,), (1,), (1,), itemsize(x.dtype))
    wiring = Wiring((context.operand(source),), (output,), (), "copy")
    step = copy_step(context, wiring, whole, "copy", lambda _: whole)
    return replace(step, is_copy=True)


def _lower_scatter(context: Context, node: Node) -> list[Step]:
    reduction = node.attrs["reduction"]
    dtype = context.type(node.used[0]).dtype if reduction != "none" else ""
    faults = _faults(node, _picks_of(context.graph, node))
    reads = (*(context.operand(i) for i in node.used[1:]), *faults)
    wiring = Wiring(reads, node.outputs, (node.id,), "scatter")
    plan_of, make = partial(_picks_of, node=node), scatter_picks_kernel
    scatter = span_step(context, wiring, plan_of, _scatter_work, make, reduction, dtype)
    return [_copy_of(context, node), scatter]


TABLE.add(("gather_elements", "gather_nd"), Rule(_reason, _lower_gather, in_every_shape))
TABLE.add(("scatter_elements", "scatter_nd"), Rule(_reason, _lower_scatter, in_every_shape))
