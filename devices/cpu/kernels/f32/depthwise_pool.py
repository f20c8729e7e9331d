"""Kernels that slide a window over each channel by itself: depthwise conv, max and average pool.

window_emitter.py writes the tiles; here is which kernel an op has. A pool whose only window is the
whole image is a reduction, whose sums have another order: where sizes vary, that is one more code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from trireme.devices.cpu.codegen.aligned_memory import aligned_copy
from trireme.devices.cpu.codegen.ir import Function, Value
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.im2row import ImageWindow
from trireme.devices.cpu.kernels.f32.products import image_reason, window_of
from trireme.devices.cpu.kernels.f32.reductions import REDUCE_COST, RowKernel, row_kernel, row_work
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
    Context,
    Operand,
    Rule,
    Step,
    dims_of,
    finish,
    varies,
)
from trireme.devices.cpu.kernels.opaque import opaque
from trireme.devices.cpu.kernels.spans import (
    Planned,
    SpanCut,
    SpanWork,
    Wiring,
    begin_span,
    planned_step,
    span_step,
)
from trireme.devices.cpu.runtime.window_blocks import window_words
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


def window_kernel(isa: Isa, window: ImageWindow, cut: SpanCut, kernel: WindowKernel) -> Code:
    """Return a window kernel."""
    fn, pointers, chunk, _, span = begin_span(kernel.name(window), isa, kernel.operands, cut)
    window, cut = fn.known(window), fn.known(cut)
    channels = None
    if cut.parts:
        first = fn.as_value("i64", fn.integer("udiv", chunk, cut.parts)) * cut.block
        channels = first, first + cut.block
    body = kernel.body(fn, pointers, window.channels)
    WindowEmitter(fn, window, body, pointers[0], pointers[-1], channels).rows(*span)
    return finish(fn)


def window_step(
    context: Context,
    wiring: Wiring,
    window_of: Callable[[Graph], ImageWindow],
    image: int,
    kernel: WindowKernel,
) -> Step:
    """Return the step of a window kernel over a value."""
    planned = partial(_planned_window, context, window_of, image, kernel)
    samples = (window_of(context.graph),) if context.is_open else ()
    wiring = wiring._replace(in_blocks=True)
    return planned_step(context, wiring, planned, samples, window_kernel, kernel)


def _planned_window(
    context: Context,
    window_of: Callable[[Graph], ImageWindow],
    image: int,
    kernel: WindowKernel,
    graph: Graph,
) -> Planned[ImageWindow]:
    window = window_of(graph)
    rows = dims_of(graph, image)[0] * window.out_height
    isa = context.isa
    given = isa.lanes, isa.l1_bytes, window.channels, window.kernel[0]

    def deal(rows: int, seconds: float) -> tuple[int, ...]:
        return opaque(partial(window_words, *given), rows, window.width, seconds)

    seconds = _window_s(isa, window, rows, kernel.cycles)
    return Planned(window, SpanWork(rows, seconds, 0, deal if context.is_open else None))


def _window_s(isa: Isa, window: ImageWindow, rows: int, tap_cycles: float) -> float:
    """Estimate a window kernel for one thread, given the cycles of a vector of one tap."""
    vectors = window.out_width * -(-window.channels // isa.lanes)
    return rows * (vectors * math.prod(window.kernel) * tap_cycles + 50) / 3e9


def _depthwise_window(graph: Graph, node: Node) -> ImageWindow:
    """Return the window of a depthwise conv."""
    w = graph.type(node.used[1]).dims
    return window_of(graph, node, w[1:-1], w[0])


def _depthwise_of(node: Node) -> WindowKernel:
    """Return the kernel of a depthwise conv."""
    given = [k < len(node.inputs) and node.inputs[k] is not None for k in (2, 3)]
    return WindowKernel("depthwise", node.attrs["activation"], *given)


def _depthwise_reads(context: Context, node: Node) -> tuple[Operand, ...]:
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
    reads, window_of = _depthwise_reads(context, node), partial(_depthwise_window, node=node)
    wiring = Wiring(reads, node.outputs[:1], (node.id,), "depthwise_f32")
    return [window_step(context, wiring, window_of, node.used[0], _depthwise_of(node))]


def _pool_window(graph: Graph, node: Node) -> ImageWindow:
    """Return the window of a pool."""
    return window_of(graph, node, node.attrs["kernel"], graph.type(node.used[0]).dims[-1])


def _pool_of(node: Node) -> WindowKernel:
    """Return the kernel of a pool."""
    fixed = math.prod(node.attrs["kernel"]) if node.attrs.get("count_include_pad") else None
    return WindowKernel(node.op, node.attrs["activation"], fixed=fixed)


def _pool_reason(graph: Graph, node: Node) -> str | None:
    """Say why a pool has no native kernel, None when it has."""
    if len(node.outputs) > 1:
        return "max_pool has no native kernel for indices"
    if node.op == "average_pool" and node.attrs["count_include_pad"] and node.attrs["ceil_mode"]:
        return "average_pool has no native kernel for counted pads with ceil_mode"
    if math.prod(node.attrs["kernel"]) > MOST_TAPS and not _is_global(graph, node):
        return f"{node.op} has no native kernel for windows of more than {MOST_TAPS} elements"
    return image_reason(graph, node)


def open_image_reason(graph: Graph, node: Node) -> str | None:
    """Say why a node has no kernel of images in a graph whose sizes vary, None when it has."""
    x = dims_of(graph, node.used[0])
    if len(x) not in (3, 4) or varies(x[-1]):
        return (
            f"{node.op} has kernels for every shape with one or two spatial axes and known channels"
        )
    if not any(map(varies, x[1:-1])):
        return f"{node.op} has kernels for every shape where height or width varies"
    return None


def _open_pool_reason(graph: Graph, node: Node) -> str | None:
    if _is_global(graph, node):
        return f"{node.op} of a whole image of one size has no kernel for every shape"
    return open_image_reason(graph, node)


def _is_global(graph: Graph, node: Node) -> bool:
    """Whether a pool's only window is the whole image."""
    x, y = graph.type(node.used[0]).dims, graph.type(node.outputs[0]).dims
    whole = tuple(node.attrs["kernel"]) == x[1:-1] and not any(node.attrs["pads"])
    return whole and math.prod(y[1:-1]) == 1 and not node.attrs["activation"]


def _global_kernel(node: Node) -> RowKernel:
    """Return the reduction that pools a whole image."""
    op = "reduce_max" if node.op == "max_pool" else "reduce_mean"
    return RowKernel(op, 2, REDUCE_COST)


def _global_step(context: Context, node: Node) -> Step:
    """Return the step of a pool of the whole image, a reduction over its rows."""
    kernel, rows_of = _global_kernel(node), partial(_global_rows, node=node)
    wiring = Wiring((context.operand(node.used[0]),), node.outputs[:1], (node.id,), "reduce")
    work = partial(row_work, context.isa, kernel)
    return span_step(context, wiring, rows_of, work, row_kernel, kernel)


def _lower_pool(context: Context, node: Node) -> list[Step]:
    graph, kernel, whole = context.graph, _pool_of(node), _global_kernel(node)
    if _is_global(graph, node):
        return [_global_step(context, node)]
    window_at = partial(_pool_window, node=node)
    windows = partial(_planned_window, context, window_at, node.used[0], kernel)

    def planned(graph: Graph) -> Planned[ImageWindow | Rows]:
        if not context.is_open or not _is_global(graph, node):
            window, work, _ = windows(graph)
            return Planned(window, work)
        rows = _global_rows(graph, node)
        return Planned(rows, row_work(context.isa, whole, rows))

    samples: list[ImageWindow | Rows] = []
    if context.is_open:
        samples = [_pool_window(graph, node)]
        samples += [_global_rows(graph, node)] if _may_be_global(graph, node) else []
    reads = (context.operand(node.used[0]),)
    wiring = Wiring(reads, node.outputs[:1], (node.id,), f"{node.op}_f32", in_blocks=True)
    return [planned_step(context, wiring, planned, samples, _pool_kernel, kernel, whole)]


def _may_be_global(graph: Graph, node: Node) -> bool:
    """Whether a pool's only window is the whole image in some shape of a sample."""
    pairs = zip(node.attrs["kernel"], dims_of(graph, node.used[0])[1:-1], strict=True)
    fits = all(varies(size) or taps == size for taps, size in pairs)
    return fits and not any(node.attrs["pads"]) and not node.attrs["activation"]


def _global_rows(graph: Graph, node: Node) -> Rows:
    x = dims_of(graph, node.used[0])
    return Rows(x[0], math.prod(node.attrs["kernel"]), x[-1])


def _pool_kernel(
    isa: Isa, plan: ImageWindow | Rows, cut: SpanCut, kernel: WindowKernel, whole: RowKernel
) -> Code:
    """Return the kernel of a pool, or of whole images where the plan is of rows."""
    if isinstance(plan, ImageWindow):
        return window_kernel(isa, plan, cut, kernel)
    return row_kernel(isa, plan, replace(cut, parts=0), whole)


TABLE.add(
    ("max_pool", "average_pool"),
    Rule(_pool_reason, _lower_pool, _open_pool_reason),
    ["float32"],
    "NHWC",
)
