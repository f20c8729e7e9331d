"""Convolutions and pools for every shape: batch and height or width vary, channels do not.

A convolution is depthwise, direct or a product, as for one shape, with the bits of the kernel of
that shape. One by Winograd's algorithm may have another scheme than at one shape, and other bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.depthwise_pool import (
    WindowKernel,
    depthwise_of,
    depthwise_reads,
    depthwise_window,
    global_kernel,
    is_global,
    pool_of,
    pool_reason,
    pool_window,
    window_s,
)
from trireme.devices.cpu.kernels.f32.direct_conv import (
    DirectConvEmitter,
    direct_reads,
    direct_s,
    direct_window,
    given_extra,
    is_depthwise,
    suits,
)
from trireme.devices.cpu.kernels.f32.im2row import ImageWindow
from trireme.devices.cpu.kernels.f32.products import (
    conv_operands,
    conv_product,
    conv_reason,
    window_of,
)
from trireme.devices.cpu.kernels.f32.reductions import row_kernel, row_work
from trireme.devices.cpu.kernels.f32.rows import Rows
from trireme.devices.cpu.kernels.f32.window_emitter import WindowEmitter
from trireme.devices.cpu.kernels.lines import as_image
from trireme.devices.cpu.kernels.lowering import Context, finish, only
from trireme.devices.cpu.kernels.polymorphic.opaque import opaque
from trireme.devices.cpu.kernels.polymorphic.products import product_steps
from trireme.devices.cpu.kernels.polymorphic.sample import deal_evenly, generalised, varies
from trireme.devices.cpu.kernels.polymorphic.step import (
    POLYMORPHIC,
    PolymorphicRule,
    PolymorphicStep,
    Sized,
    begin_sized,
    dims_of,
)
from trireme.devices.cpu.kernels.polymorphic.winograd import winograd_variants
from trireme.devices.cpu.kernels.spans import read_cut
from trireme.devices.cpu.runtime.window_blocks import window_words
from trireme.ir.graph import Graph, Node


def sized_window_kernel(isa: Isa, kernel: WindowKernel, window: ImageWindow, words: int) -> Code:
    """Return a window kernel for every shape; the last words are those of `window_words`."""
    name = kernel.name(window)
    fn, pointers, chunk, _ = begin_sized(name, isa, kernel.operands, words + 4)
    part, parts, rows, block = fn.words[words:]
    known = fn.known(window)
    body = kernel.body(fn, pointers, window.channels)
    channel = fn.as_value("i64", fn.integer("udiv", chunk, parts)) * block
    channels = channel, channel + block
    emitter = WindowEmitter(fn, known, body, pointers[0], pointers[-1], channels)
    first = fn.as_value("i64", fn.integer("urem", chunk, parts)) * part
    emitter.rows(first, fn.minimum(first + part, rows))
    return finish(fn)


def _dealt(
    isa: Isa, kernel: WindowKernel, window: ImageWindow, rows: int
) -> tuple[tuple[int, ...], int, float]:
    """Return the words of a window kernel's chunks, their number, and the kernel's seconds."""
    seconds = window_s(isa, window, rows, kernel.cycles)
    given = isa.lanes, isa.l1_bytes, window.channels, window.kernel[0]
    *words, chunks = opaque(partial(window_words, *given), rows, window.width, seconds)
    return tuple(words), chunks, seconds


def _depthwise(context: Context, node: Node) -> PolymorphicStep:
    isa, kernel = context.isa, depthwise_of(node)
    known, count, words = generalised(depthwise_window(context.graph, node), node.label)
    code = context.kernel(sized_window_kernel, kernel, known, count)

    def size(graph: Graph) -> Sized:
        window = depthwise_window(graph, node)
        rows = dims_of(graph, node.used[0])[0] * window.out_height
        dealt, chunks, seconds = _dealt(isa, kernel, window, rows)
        return Sized((*words(window), *dealt), chunks, seconds)

    reads = depthwise_reads(context, node)
    return PolymorphicStep((code,), reads, (node.outputs[0],), size, (node.id,), "depthwise_f32")


def _may_be_global(graph: Graph, node: Node) -> bool:
    """Whether a pool's only window is the whole image in some shape."""
    pairs = zip(node.attrs["kernel"], dims_of(graph, node.used[0])[1:-1], strict=True)
    fits = all(varies(size) or taps == size for taps, size in pairs)
    return fits and not any(node.attrs["pads"]) and not node.attrs["activation"]


class _Whole:
    """The pool of whole images in those shapes whose images are as large as the window."""

    def __init__(self, context: Context, node: Node, words: int) -> None:
        self._node, self._isa, self._words = node, context.isa, words
        self._kernel = global_kernel(node)
        made = generalised(self._rows(context.graph), node.label)
        known, self._count, self._take = made
        cut = read_cut(self._count)
        self.code = context.kernel(row_kernel, known, cut, self._kernel)

    def _rows(self, graph: Graph) -> Rows:
        x = dims_of(graph, self._node.used[0])
        return Rows(x[0], math.prod(self._node.attrs["kernel"]), x[-1])

    def size(self, graph: Graph) -> Sized:
        """Return the same number of words as the step has for other images."""
        rows = self._rows(graph)
        items, seconds, _ = row_work(self._isa, self._kernel, rows)
        part, chunks = deal_evenly(items, seconds)
        taken = *self._take(rows), part, items
        unread = (0,) * (self._words - len(taken))
        return Sized((*taken, *unread), chunks, seconds, variant=1)


def _lower_pool(context: Context, node: Node) -> Sequence[PolymorphicStep]:
    isa, kernel = context.isa, pool_of(node)
    known, count, words = generalised(pool_window(context.graph, node), node.label)
    codes = [context.kernel(sized_window_kernel, kernel, known, count)]
    whole = _Whole(context, node, count + 4) if _may_be_global(context.graph, node) else None
    if whole is not None:  # the sums of a whole image have another order
        codes.append(whole.code)

    def size(graph: Graph) -> Sized:
        if whole is not None and is_global(graph, node):
            return whole.size(graph)
        window = pool_window(graph, node)
        lines = dims_of(graph, node.used[0])[0] * window.out_height
        dealt, chunks, seconds = _dealt(isa, kernel, window, lines)
        return Sized((*words(window), *dealt), chunks, seconds)

    reads, family = (context.operand(node.used[0]),), f"{node.op}_f32"
    return [PolymorphicStep(tuple(codes), reads, (node.outputs[0],), size, (node.id,), family)]


def sized_direct_kernel(
    isa: Isa,
    window: ImageWindow,
    outputs: int,
    extra: tuple[bool, bool],
    activation: str,
    words: int,
) -> Code:
    """Return a direct conv for every shape; the last words are a chunk's rows, and all."""
    name = f"direct_conv_f32_{'x'.join(map(str, window.kernel))}"
    fn, operands, chunk, _ = begin_sized(name, isa, 3 + sum(extra), words + 2)
    size, rows = fn.words[words:]
    emitter = DirectConvEmitter(fn, fn.known(window), outputs, operands, extra, activation)
    first = chunk * size
    emitter.rows(first, fn.minimum(first + size, rows))
    return finish(fn)


def _direct(context: Context, node: Node) -> PolymorphicStep:
    isa, outputs = context.isa, context.type(node.used[1]).dims[0]
    known, count, words = generalised(direct_window(context.graph, node), node.label)
    activation, extra = node.attrs["activation"], given_extra(node)
    code = context.kernel(sized_direct_kernel, known, outputs, extra, activation, count)

    def size(graph: Graph) -> Sized:
        window = direct_window(graph, node)
        rows = dims_of(graph, node.used[0])[0] * window.out_height
        seconds = direct_s(isa, window, rows, outputs)
        part, chunks = deal_evenly(rows, seconds)
        return Sized((*words(window), part, rows), chunks, seconds)

    reads = direct_reads(context, node)
    return PolymorphicStep((code,), reads, (node.outputs[0],), size, (node.id,), "direct_conv_f32")


def _lower_conv(context: Context, node: Node) -> Sequence[PolymorphicStep]:
    if is_depthwise(context.graph, node):
        return [_depthwise(context, node)]
    others = winograd_variants(context, node, conv_product(context.graph, node), _conv_window)
    if not others and suits(context.isa, context.graph, node):
        return [_direct(context, node)]
    operands = conv_operands(context, node)
    return product_steps(context, node, conv_product, operands, "conv", others)


def _conv_window(graph: Graph, node: Node) -> ImageWindow:
    _, *kernel, depth = graph.type(node.used[1]).dims
    return window_of(graph, node, kernel, depth)


def _image_reason(graph: Graph, node: Node) -> str | None:
    x = dims_of(graph, node.used[0])
    if len(x) != 4 or varies(x[-1]):
        return (
            f"{node.op} has kernels for every shape with one or two spatial axes and known channels"
        )
    if not (varies(x[1]) or varies(x[2])):
        return f"{node.op} has kernels for every shape where height or width varies"
    return None


def _conv_reason(graph: Graph, node: Node) -> str | None:
    return conv_reason(graph, node) or _image_reason(graph, node)


def _pool_reason(graph: Graph, node: Node) -> str | None:
    if is_global(graph, node):
        return f"{node.op} of a whole image of one size has no kernel for every shape"
    return pool_reason(graph, node) or _image_reason(graph, node)


def _for_lines(rule: PolymorphicRule) -> PolymorphicRule:
    """Return the rule for images of two axes as one for images of one axis too."""

    def reason(graph: Graph, node: Node) -> str | None:
        return rule.reason(*as_image(graph, node))

    def lower(context: Context, node: Node) -> Sequence[PolymorphicStep]:
        graph, wide = as_image(context.graph, node)
        steps = only(PolymorphicStep, rule.lower(replace(context, graph=graph), wide))
        if wide is node:
            return steps
        return [replace(step, size=partial(_line_size, step.size, node)) for step in steps]

    return PolymorphicRule(reason, lower)


def _line_size(size: Callable[[Graph], Sized], node: Node, graph: Graph) -> Sized:
    return size(as_image(graph, node)[0])


POLYMORPHIC.add("conv", _for_lines(PolymorphicRule(_conv_reason, _lower_conv)), ["float32"], "NHWC")
POLYMORPHIC.add(
    ("max_pool", "average_pool"),
    _for_lines(PolymorphicRule(_pool_reason, _lower_pool)),
    ["float32"],
    "NHWC",
)
