"""Kernels between floats and stored integers of one scale: quantize and dequantize."""

from __future__ import annotations

from trireme.devices.cpu.codegen.index import minus, times
from trireme.devices.cpu.codegen.ir import Function, Index, Value
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.int8.arithmetic import ELEMENTS, load_stored, store_stored, widen
from trireme.devices.cpu.kernels.lowering import ELEMENTWISE_Q8, Context, Step, finish
from trireme.devices.cpu.kernels.spans import SpanCut, SpanWork, Wiring, begin_span, span_step
from trireme.ir.graph import Graph, Node, Rounding
from trireme.ops.integer import EIGHT_BIT, SIXTEEN_BIT, dtype_limits, quant_of
from trireme.support.records import dataclass

STORED = (*EIGHT_BIT, *SIXTEEN_BIT)
"""The dtypes that floats are rounded to."""
_FLAT_S = 1e-10
"""About the seconds of an element between floats and stored integers."""


@dataclass(frozen=True)
class Requantised:
    """Floats to stored integers by one scale and zero point, or back.

    rounding: of a quantize, HALF_AWAY or HALF_EVEN
    """

    op: str
    dtype: str
    scale: float
    zero_point: int
    rounding: Rounding

    @property
    def name(self) -> str:
        """The name of its kernels."""
        return "quantize_f32_q8" if self.op == "quantize" else "dequantize_q8_f32"

    def emit(self, fn: Function, x: Value, y: Value, at: Index, count: int) -> None:
        """Convert `count` elements from `at` on, a vector at most."""
        (self._quantize if self.op == "quantize" else self._dequantize)(fn, x, y, at, count)

    def _quantize(self, fn: Function, x: Value, y: Value, at: Index, count: int) -> None:
        lanes, (low, high) = fn.isa.lanes, dtype_limits(self.dtype)
        real = fn.load_some(vector(lanes, "float"), fn.at(x, at), count)
        to_even = self.rounding is Rounding.HALF_EVEN
        ratio = fn.unary("roundeven" if to_even else "round", real / self.scale)
        least, most = float(low - self.zero_point), float(high - self.zero_point)
        ratio = fn.select(fn.compare("uge", ratio, least), ratio, least)
        ratio = fn.select(fn.compare("uno", ratio, ratio), least, ratio)
        ratio = fn.select(fn.compare("ole", ratio, most), ratio, most)
        whole = fn.convert("fptosi", ratio, vector(lanes, "i32")) + self.zero_point
        element = ELEMENTS[self.dtype]
        narrow = fn.convert("trunc", whole, vector(lanes, element))
        store_stored(fn, narrow, fn.at(y, at, element), count)

    def _dequantize(self, fn: Function, x: Value, y: Value, at: Index, count: int) -> None:
        lanes, element = fn.isa.lanes, ELEMENTS[self.dtype]
        loaded = load_stored(fn, fn.at(x, at, element), lanes, count, element)
        stored = widen(fn, loaded, self.dtype)
        whole = fn.convert("sitofp", stored - self.zero_point, vector(lanes, "float"))
        fn.store_some(whole * self.scale, fn.at(y, at), count)


def conversion_of(graph: Graph, node: Node) -> Requantised:
    """Return what a quantize of floats or a dequantize does to each element."""
    is_in = node.op == "dequantize"
    type = graph.type(node.used[0] if is_in else node.outputs[0])
    quant = quant_of(type, "input" if is_in else "output", STORED)
    rounding = quant.rounding or Rounding.HALF_AWAY
    return Requantised(node.op, type.dtype, quant.scale, quant.zero_point, rounding)


def dequantize_reason(graph: Graph, node: Node) -> str | None:
    """Say why a dequantize has no native kernel, None when it has."""
    x = graph.type(node.used[0])
    if x.dtype not in STORED or x.quant is None or x.quant.axis is not None:
        return f"dequantize has no native kernel for {x}"
    return None if x.elements else "dequantize has no native kernel for empty tensors"


def conversion_kernel(isa: Isa, elements: int, cut: SpanCut, conversion: Requantised) -> Code:
    """Return the kernel of all elements, in vectors. Operands: x, y."""
    fn, (x, y), chunk, _, (first, end) = begin_span(conversion.name, isa, 2, cut)
    count, lanes = fn.known(elements), isa.lanes
    rest = fn.integer("urem", count, lanes)
    whole = minus(fn, count, rest)
    after = fn.minimum(times(fn, end, lanes), whole)
    for i in fn.range(times(fn, first, lanes), after, lanes):
        conversion.emit(fn, x, y, i, lanes)
    if cut.words or not isinstance(rest, int):
        for i in fn.range(after, fn.minimum(times(fn, end, lanes), count)):
            conversion.emit(fn, x, y, i, 1)
    elif rest:
        with fn.when(fn.compare("eq", chunk, -(-cut.units // cut.size) - 1)):
            conversion.emit(fn, x, y, whole, rest)
    return finish(fn)


def conversion_step(context: Context, node: Node, conversion: Requantised) -> Step:
    """Return a step over all elements of two dense arrays of one shape."""
    (output,), lanes = node.outputs, context.isa.lanes
    wiring = Wiring((context.operand(node.used[0]),), node.outputs, (node.id,), ELEMENTWISE_Q8)
    return span_step(
        context,
        wiring,
        lambda graph: graph.values[output].type.elements,
        lambda elements: SpanWork(-(-elements // lanes), elements * _FLAT_S),
        conversion_kernel,
        conversion,
    )


def quantize_reason(graph: Graph, node: Node) -> str | None:
    """Say why a quantize of floats has no native kernel, None when it has."""
    x, y = graph.type(node.used[0]), graph.type(node.outputs[0])
    if x.dtype != "float32" or y.dtype not in STORED:
        return f"quantize has no native kernel from {x.dtype} to {y.dtype}"
    if y.quant is None or y.quant.axis is not None:
        return "quantize has no native kernel for a scale per channel"
    return None
