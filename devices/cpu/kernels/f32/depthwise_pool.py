"""Kernels that slide a window over each channel by itself: depthwise conv, max and average pool.

window_emitter.py writes the tiles; here is which kernel an op has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from trireme.devices.cpu.codegen.aligned_memory import aligned_copy
from trireme.devices.cpu.codegen.ir import Function, Index, Value
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.im2row import ImageWindow
from trireme.devices.cpu.kernels.f32.products import image_reason, window_of
from trireme.devices.cpu.kernels.f32.reductions import (
    REDUCE_COST,
    RowKernel,
    row_kernel,
    row_work,
)
from trireme.devices.cpu.kernels.f32.rows import Rows
from trireme.devices.cpu.kernels.f32.window_body import (
    AverageBody,
    DepthwiseBody,
    MaxBody,
    WindowBody,
)
from trireme.devices.cpu.kernels.f32.window_emitter import WindowEmitter
from trireme.devices.cpu.kernels.lowering import (
    TABLE,
    AnyStep,
    Context,
    Operand,
    Rule,
    Step,
    begin,
    deal,
    finish,
)
from trireme.devices.cpu.kernels.spans import Wiring, span_step
from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import Array
from trireme.support.records import dataclass

DEPTHWISE_CYCLES, POOL_CYCLES = 0.8, 6.0
MOST_TAPS = 256
"""Taps of a window that these kernels spell out."""


@dataclass(frozen=True)
class WindowKernel:
    """A window kernel: its op and what decides what is done with the elements.

    op: depthwise, max_pool or average_pool
    fixed: the number that averages divide by, where it is the same for all
    """

    op: str
    activation: str
    bias: bool = False
    residual: bool = False
    fixed: int | None = None

    @property
    def operands(self) -> int:
        """Operands of the kernel: x, weights [taps, C], bias and residual where present, y."""
        return 3 + self.bias + self.residual if self.op == "depthwise" else 2

    @property
    def cycles(self) -> float:
        """Cycles of a vector of one tap."""
        return DEPTHWISE_CYCLES if self.op == "depthwise" else POOL_CYCLES

    def name(self, window: ImageWindow) -> str:
        """Return the kernel's name."""
        return f"{self.op}_f32_{'x'.join(map(str, window.kernel))}"

    def body(self, fn: Function, operands: Sequence[Value], channels: int) -> WindowBody:
        """Return what is done with the elements."""
        if self.op == "depthwise":
            return DepthwiseBody(fn, operands, channels, self.activation, self.bias, self.residual)
        if self.op == "max_pool":
            return MaxBody(fn, self.activation)
        return AverageBody(fn, self.activation, self.fixed)


def window_kernel(
    isa: Isa, kernel: WindowKernel, window: ImageWindow, rows: int
) -> tuple[Code, int, float]:
    """Return a window kernel, its chunks and seconds."""
    seconds = window_s(isa, window, rows, kernel.cycles)
    fn, pointers, chunk, _ = begin(kernel.name(window), isa, kernel.operands)
    body = kernel.body(fn, pointers, window.channels)
    emitter = WindowEmitter(fn, window, body, pointers[0], pointers[-1])
    size, chunks = deal(rows, seconds)
    first: Index = chunk * size if chunks > 1 else 0
    emitter.rows(first, fn.minimum(first + size, rows))
    return finish(fn), chunks, seconds


def depthwise_kernel(
    isa: Isa, window: ImageWindow, rows: int, activation: str, bias: bool, residual: bool
) -> tuple[Code, int, float]:
    """Return the kernel of a depthwise conv, its chunks and seconds."""
    kernel = WindowKernel("depthwise", activation, bias, residual)
    return window_kernel(isa, kernel, window, rows)


def window_s(isa: Isa, window: ImageWindow, rows: int, tap_cycles: float) -> float:
    """Estimate a window kernel for one thread, given the cycles of a vector of one tap."""
    vectors = window.out_width * -(-window.channels // isa.lanes)
    return rows * (vectors * math.prod(window.kernel) * tap_cycles + 50) / 3e9


def depthwise_window(graph: Graph, node: Node) -> ImageWindow:
    """Return the window of a depthwise conv."""
    w = graph.type(node.used[1]).dims
    return window_of(graph, node, w[1:-1], w[0])


def depthwise_of(node: Node) -> WindowKernel:
    """Return the kernel of a depthwise conv."""
    given = [k < len(node.inputs) and node.inputs[k] is not None for k in (2, 3)]
    return WindowKernel("depthwise", node.attrs["activation"], *given)


def depthwise_reads(context: Context, node: Node) -> tuple[Operand, ...]:
    """Return what a depthwise conv reads, its weights as [taps, C]."""
    weight = node.used[1]
    w = context.type(weight).dims

    def pack() -> Array:
        data = context.graph.values[weight].data
        return aligned_copy(np.asarray(data).reshape(w[0], -1).T)

    extra = (context.operand(i) for i in node.inputs[2:4] if i is not None)
    weights = context.pack_later(weight, "taps", 4 * math.prod(w), pack)
    return (context.operand(node.used[0]), weights, *extra)


def lower_depthwise(context: Context, node: Node) -> list[Step]:
    """Lower a conv whose groups are its channels, with one output channel each."""
    window = depthwise_window(context.graph, node)
    rows = context.type(node.used[0]).dims[0] * window.out_height
    code, chunks, seconds = context.kernel(window_kernel, depthwise_of(node), window, rows)
    return [
        Step(
            code,
            depthwise_reads(context, node),
            (node.outputs[0],),
            chunks,
            seconds=seconds,
            nodes=(node.id,),
            family="depthwise_f32",
        )
    ]


def pool_window(graph: Graph, node: Node) -> ImageWindow:
    """Return the window of a pool."""
    return window_of(graph, node, node.attrs["kernel"], graph.type(node.used[0]).dims[-1])


def pool_of(node: Node) -> WindowKernel:
    """Return the kernel of a pool."""
    fixed = math.prod(node.attrs["kernel"]) if node.attrs.get("count_include_pad") else None
    return WindowKernel(node.op, node.attrs["activation"], fixed=fixed)


def pool_reason(graph: Graph, node: Node) -> str | None:
    """Say why a pool has no native kernel, None when it has."""
    if len(node.outputs) > 1:
        return "max_pool has no native kernel for indices"
    if node.op == "average_pool" and node.attrs["count_include_pad"] and node.attrs["ceil_mode"]:
        return "average_pool has no native kernel for counted pads with ceil_mode"
    if math.prod(node.attrs["kernel"]) > MOST_TAPS and not is_global(graph, node):
        return f"{node.op} has no native kernel for windows of more than {MOST_TAPS} elements"
    return image_reason(graph, node)


def is_global(graph: Graph, node: Node) -> bool:
    """Whether a pool's only window is the whole image."""
    x, y = graph.type(node.used[0]).dims, graph.type(node.outputs[0]).dims
    whole = tuple(node.attrs["kernel"]) == x[1:-1] and not any(node.attrs["pads"])
    return whole and math.prod(y[1:-1]) == 1 and not node.attrs["activation"]


def global_kernel(node: Node) -> RowKernel:
    """Return the reduction that pools a whole image."""
    op = "reduce_max" if node.op == "max_pool" else "reduce_mean"
    return RowKernel(op, 2, REDUCE_COST)


def _lower_global(context: Context, node: Node) -> list[AnyStep]:
    """Lower a pool of the whole image to a reduction over its rows."""

    def rows_of(graph: Graph) -> Rows:
        x = graph.type(node.used[0]).dims
        return Rows(x[0], math.prod(x[1:-1]), x[-1])

    kernel = global_kernel(node)
    wiring = Wiring((context.operand(node.used[0]),), node.outputs[:1], (node.id,), "reduce")
    work = partial(row_work, context.isa, kernel)
    return [span_step(context, wiring, rows_of, work, row_kernel, kernel)]


def _lower_pool(context: Context, node: Node) -> list[AnyStep]:
    if is_global(context.graph, node):
        return _lower_global(context, node)
    window = pool_window(context.graph, node)
    rows = context.type(node.used[0]).dims[0] * window.out_height
    code, chunks, seconds = context.kernel(window_kernel, pool_of(node), window, rows)
    reads = (context.operand(node.used[0]),)
    return [
        Step(
            code,
            reads,
            (node.outputs[0],),
            chunks,
            seconds=seconds,
            nodes=(node.id,),
            family=f"{node.op}_f32",
        )
    ]


TABLE.add(("max_pool", "average_pool"), Rule(pool_reason, _lower_pool), ["float32"], "NHWC")
