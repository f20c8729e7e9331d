"""lrn: each element over a power of the sum of squares of neighbouring channels."""

from __future__ import annotations

import math

from trireme.devices.cpu.codegen import mathfn
from trireme.devices.cpu.codegen.ir import Function, Index, Value
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.lowering import (
    TABLE,
    Context,
    Rule,
    Step,
    begin,
    deal,
    finish,
    float_reason,
)
from trireme.ir.graph import Node
from trireme.support.records import dataclass


@dataclass(frozen=True)
class _Lrn:
    """x / (bias + scale * the sum of squares from `before` channels back, `size` of them)^beta."""

    channels: int
    before: int
    size: int
    scale: float
    bias: float
    beta: float

    def row(self, fn: Function, x: Value, y: Value) -> None:
        """Emit one position: its channels are read in place, the ends of the row apart."""
        lanes = fn.isa.lanes
        after = self.size - 1 - self.before
        low = -(-self.before // lanes) * lanes
        count = max((self.channels - after - low) // lanes, 0)
        high = low + count * lanes
        for at in range(0, min(low, self.channels), lanes):
            self._vector(fn, x, y, at)
        for index in fn.range(low, high, lanes):
            self._vector(fn, x, y, index)
        for at in range(high, self.channels, lanes):
            self._vector(fn, x, y, at)

    def _vector(self, fn: Function, x: Value, y: Value, at: Index) -> None:
        type = vector(fn.isa.lanes, "float")
        count = fn.isa.lanes
        if isinstance(at, int):
            count = min(count, self.channels - at)
        total = fn.as_value(type, 0.0)
        reach = self.channels + fn.isa.lanes  # no neighbour is further away
        for k in range(max(self.before - reach, 0), min(self.before + reach, self.size)):
            element = self._neighbours(fn, x, at, k - self.before)
            if element is not None:
                total = fn.fma(element, element, total)
        level = fn.fma(total, self.scale, self.bias)
        if self.bias > 1e-30 and self.scale >= 0:
            power = mathfn.exp_short(fn, mathfn.log_normal(fn, level) * -self.beta)
        else:
            power = mathfn.exp(fn, mathfn.log(fn, level) * -self.beta)
        fn.store_some(fn.load_some(type, fn.at(x, at), count) * power, fn.at(y, at), count)

    def _neighbours(self, fn: Function, x: Value, at: Index, offset: int) -> Value | None:
        """The vector of channels from at + offset, 0 beyond the row; None when all are."""
        lanes = fn.isa.lanes
        type = vector(lanes, "float")
        if not isinstance(at, int):
            return fn.load(type, fn.at(x, at + offset))
        low, high = max(at + offset, 0), min(at + offset + lanes, self.channels)
        if high <= low:
            return None
        part = fn.load_some(type, fn.at(x, low), high - low)
        shift = low - at - offset
        order = [k - shift if k >= shift else lanes for k in range(lanes)]
        return fn.shuffle(part, fn.as_value(type, 0.0), order) if shift else part


def _lrn_kernel(isa: Isa, lrn: _Lrn, rows: int) -> tuple[Code, int, float]:
    """Return the kernel of a lrn, its chunks and seconds. Operands: x, y."""
    fn, (x, y), chunk, _ = begin("lrn_f32", isa, 2)
    seconds = rows * lrn.channels * 40 / (isa.lanes * 2e9)
    size, chunks = deal(rows, seconds)
    first: Index = chunk * size if chunks > 1 else 0
    for row in fn.range(first, fn.minimum(first + size, rows)):
        lrn.row(fn, fn.at(x, row * lrn.channels), fn.at(y, row * lrn.channels))
    return finish(fn), chunks, seconds


def _lower(context: Context, node: Node) -> list[Step]:
    attrs = node.attrs
    *positions, channels = context.type(node.used[0]).dims
    lrn = _Lrn(
        channels,
        (attrs["size"] - 1) // 2,
        attrs["size"],
        attrs["alpha"] / attrs["size"],
        float(attrs["bias"]),
        float(attrs["beta"]),
    )
    code, chunks, seconds = context.kernel(_lrn_kernel, lrn, math.prod(positions))
    reads = (context.operand(node.used[0]),)
    return [Step(code, reads, node.outputs, chunks, seconds=seconds, nodes=(node.id,))]


TABLE.add("lrn", Rule(float_reason, _lower), ["float32"], "NHWC")
