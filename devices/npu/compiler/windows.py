"""Jobs that slide a window or multiply matrices: conv, depthwise, fully connected, matmul, pools.

Weights are packed for their tiles: one contiguous block for each tile of output (and input)
channels, its scales in front. So one DMA brings all the weights and scales of a command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from trireme.backend.arena import align_up
from trireme.devices.npu.compiler.emit import ALIGN, Emitter, Ring
from trireme.devices.npu.compiler.jobs import BoxedValue, Job, Shared, Site
from trireme.devices.npu.compiler.tiling import (
    Tiles,
    WindowShape,
    choose_tiles,
    ring_copies,
    tile_sizes,
    workspace_bytes,
)
from trireme.devices.npu.stream.access import scale_bytes
from trireme.devices.npu.stream.commands import ITEMSIZE, Dims, Matrix, Pool, View, Window
from trireme.support.dtypes import Array
from trireme.support.errors import CompileError, InternalError

PackWeights = Callable[[int, slice, slice], Array]
"""(part, input channels, output channels) -> weights [KH,KW,IC,OC] of the engine's type."""

PackScales = Callable[[int, slice], Array]
"""(part, output channels) -> bias, multipliers, shifts, one after the other, as bytes."""


@dataclass(frozen=True)
class Part:
    """A group of a conv or a batch of a matmul: its input, output, residual and moving weights."""

    x: BoxedValue
    y: BoxedValue
    residual: BoxedValue | None = None
    w: BoxedValue | None = None


class Space(NamedTuple):
    """A tile of the output without its channels: the first of each axis, and how many."""

    n: int
    images: int
    h: int
    rows: int
    w: int
    cols: int


@dataclass
class WindowJob(Job):
    """The common part of matrix ops and pools: parts of one shape under one window.

    channels: outputs made of one input channel, 0 where all inputs go into each output
    """

    parts: tuple[Part, ...]
    window: Window
    channels: int

    def shape(self, site: Site) -> WindowShape:
        """Return the job in the tiler's form."""
        part = self.parts[0]
        _, h, w, ic = part.x.layout.shape
        dtype = site.dtype(part.x.value)
        residual = part.residual
        return WindowShape(
            part.y.layout.shape,
            (h, w, ic),
            self.window,
            len(self.parts),
            self.channels,
            site.spec.matrix.rate.get(dtype, 1.0),
            site.width(part.x.value),
            site.width(part.y.value),
            site.width(residual.value) if residual else 0,
            *self._weight_widths(site),
        )

    def _weight_widths(self, site: Site) -> tuple[int, int]:
        """Return the bytes of a weight, and of the scales of a channel."""
        return 0, 0

    def least_bytes(self, site: Site) -> int:
        """Return the bytes of tiles of one output element."""
        shape = self.shape(site)
        return workspace_bytes(shape, Tiles(1, 1, 1, max(self.channels, 1), 1, True, 1))

    def wanted_bytes(self, site: Site) -> int:
        """Return the bytes of all tensors that are not in SRAM."""
        shape = self.shape(site)
        return workspace_bytes(shape, Tiles(*shape.out, shape.size[2], True, 1))

    def space(self, tiles: Tiles, out: Dims) -> Iterator[Space]:
        """Yield the tiles over images and space."""
        for n in range(0, out[0], tiles.n):
            for h in range(0, out[1], tiles.h):
                for w in range(0, out[2], tiles.w):
                    sizes = zip((tiles.n, tiles.h, tiles.w), out, (n, h, w), strict=False)
                    images, rows, cols = (min(tile, size - at) for tile, size, at in sizes)
                    yield Space(n, images, h, rows, w, cols)

    def input_box(self, x: View, space: Space, channels: slice) -> tuple[View, Window]:
        """Return the input of an output tile, and the window relative to that tile."""
        n, images, h, rows, w, cols = space
        win = self.window
        top, size_h, pad_top = reach(
            x.shape[1], h, rows, win.kernel_h, win.stride_h, win.dilation_h, win.pad_top
        )
        left, size_w, pad_left = reach(
            x.shape[2], w, cols, win.kernel_w, win.stride_w, win.dilation_w, win.pad_left
        )
        depth = channels.stop - channels.start
        box = x.box((n, top, left, channels.start), (images, size_h, size_w, depth))
        return box, replace(win, pad_top=pad_top, pad_left=pad_left)


def reach(
    size: int, start: int, count: int, kernel: int, stride: int, dilation: int, pad: int
) -> tuple[int, int, int]:
    """Return first row, rows and padding before them, of the input that output rows read.

    At least one row is returned, also where all of the window is padding.
    """
    low = start * stride - pad
    high = (start + count - 1) * stride - pad + (kernel - 1) * dilation + 1
    first = min(max(low, 0), size - 1)
    last = max(min(high, size), first + 1)
    return first, last - first, first - low


@dataclass
class MatrixJob(WindowJob):
    """conv, depthwise conv, fully connected, matmul.

    fields: further fields of the command (zero points, clamp, function)
    w_dtype: type of packed weights; moving weights have their own
    packed: the key of packed weights and scales
    """

    w_dtype: str
    pack_weights: PackWeights | None
    pack_scales: PackScales
    fields: dict[str, Any]
    packed: Shared

    def _weight_widths(self, site: Site) -> tuple[int, int]:
        return ITEMSIZE[self.w_dtype], scale_bytes(1, site.dtype(self.parts[0].x.value))

    def emit(self, out: Emitter, site: Site, budget: int) -> None:
        """Emit the tiles in the tiler's order."""
        shape = self.shape(site)
        tiles = fit(site, shape, budget, self.node)
        buffers = self._buffers(out, site, shape, tiles)
        _, _, _, oc = shape.out
        outs = [slice(o, min(o + tiles.oc, oc)) for o in range(0, oc, tiles.oc)]
        for index in range(len(self.parts)):
            spaces = list(self.space(tiles, shape.out))
            if tiles.weights_outer:
                order = [(s, o) for o in outs for s in spaces]
            else:
                order = [(s, o) for s in spaces for o in outs]
            for where, channels in order:
                self._emit_output(out, site, index, where, channels, tiles, buffers)

    def _buffers(
        self, out: Emitter, site: Site, shape: WindowShape, tiles: Tiles
    ) -> dict[str, Ring]:
        x, w, y, rest = tile_sizes(shape, tiles)
        copies_x, copies_w, copies_y = ring_copies(shape, tiles)
        rings = {"x": out.ring(x, copies_x), "y": out.ring(y, copies_y)}
        scales = tiles.oc * shape.scale_width
        if self.pack_weights is None:
            rings["w"] = out.ring(w - scales, copies_w)
            rings["scales"] = out.ring(scales, copies_w)
        else:
            rings["w"] = out.ring(align_up(scales, ALIGN) + w - scales, copies_w)
        residual = tiles.n * tiles.h * tiles.w * tiles.oc * shape.residual_width
        rings["residual"] = out.ring(residual)
        rings["sums"] = out.ring(rest - residual)
        return rings

    def _emit_output(
        self,
        out: Emitter,
        site: Site,
        index: int,
        where: Space,
        channels: slice,
        tiles: Tiles,
        rings: dict[str, Ring],
    ) -> None:
        """Emit the commands of one output tile: one for each tile of input channels."""
        part = self.parts[index]
        start = (where.n, where.h, where.w, channels.start)
        size = (where.images, where.rows, where.cols, channels.stop - channels.start)
        target = part.y.view(site).box(start, size)
        work_fields = dict(self.fields)
        if part.residual is not None:
            source = part.residual.view(site).box(start, size)
            work_fields["residual"] = out.fetch(
                rings["residual"], source, site.dtype(part.residual.value)
            )
        x = part.x.view(site)
        staged = out.stage(rings["y"], target, site.dtype(part.y.value))
        inputs = self._input_slices(x.shape[3], channels, tiles)
        for position, depth in enumerate(inputs):
            tile, window = self.input_box(x, where, depth)
            ifm = out.fetch(rings["x"], tile, site.dtype(part.x.value))
            weights, scales = self._weights(out, site, index, depth, channels, rings)
            out.add(
                Matrix(
                    ifm,
                    staged,
                    weights,
                    self.w_dtype,
                    scales,
                    window,
                    bool(self.channels),
                    accumulators=rings["sums"].offset if len(inputs) > 1 else 0,
                    load_acc=position > 0,
                    store_acc=position < len(inputs) - 1,
                    **work_fields,
                )
            )
        out.commit(staged, target)

    def _input_slices(self, ic: int, channels: slice, tiles: Tiles) -> list[slice]:
        if self.channels:
            start, stop = channels.start // self.channels, -(-channels.stop // self.channels)
            return [slice(start, stop)]
        return [slice(i, min(i + tiles.ic, ic)) for i in range(0, ic, tiles.ic)]

    def _weights(
        self,
        out: Emitter,
        site: Site,
        index: int,
        depth: slice,
        channels: slice,
        rings: dict[str, Ring],
    ) -> tuple[int, int]:
        """Load a tile of weights and return the addresses of weights and scales."""
        oc = channels.stop - channels.start
        front = align_up(scale_bytes(oc, site.dtype(self.parts[index].x.value)), ALIGN)
        tile = (index, channels.start, channels.stop, depth.start, depth.stop)
        moving = self.parts[index].w
        if moving is not None:
            scales_key = ("scales", self.node, self.writes, *tile)
            blob = site.constants.reserve(
                scales_key, front, lambda: self.pack_scales(index, channels)
            )
            scales = out.fetch(rings["scales"], blob)
            view = moving.view(site).box(
                (0, 0, depth.start, channels.start), (1, 1, depth.stop - depth.start, oc)
            )
            return out.copy(rings["w"], view, self.w_dtype).offset, scales.offset
        ic = 1 if self.channels else depth.stop - depth.start
        taps = self.window.kernel_h * self.window.kernel_w
        nbytes = front + taps * ic * oc * ITEMSIZE[self.w_dtype]
        blob = site.constants.reserve(
            self.packed._replace(tile=tile),
            nbytes,
            lambda: self._blob(index, depth, channels, front),
        )
        start = out.fetch(rings["w"], blob).offset
        return start + front, start

    def _blob(self, index: int, depth: slice, channels: slice, front: int) -> Array:
        if self.pack_weights is None:
            raise InternalError("weights that move have no blob")
        scales = self.pack_scales(index, channels)
        weights = np.ascontiguousarray(self.pack_weights(index, depth, channels))
        padding = np.zeros(front - scales.nbytes, np.uint8)
        return np.concatenate(
            [scales.reshape(-1).view(np.uint8), padding, weights.reshape(-1).view(np.uint8)]
        )


@dataclass
class PoolJob(WindowJob):
    """max_pool, average_pool and means. `fields`: further fields of the command."""

    fields: dict[str, Any] = field(default_factory=dict)

    def emit(self, out: Emitter, site: Site, budget: int) -> None:
        """Emit the tiles: over channels, then over space."""
        shape = self.shape(site)
        tiles = fit(site, shape, budget, self.node)
        x_bytes, _, y_bytes, _ = tile_sizes(shape, tiles)
        copies_x, _, copies_y = ring_copies(shape, tiles)
        ring_x, ring_y = out.ring(x_bytes, copies_x), out.ring(y_bytes, copies_y)
        (part,) = self.parts
        x, y = part.x.view(site), part.y.view(site)
        for first in range(0, shape.out[3], tiles.oc):
            channels = slice(first, min(first + tiles.oc, shape.out[3]))
            for where in self.space(tiles, shape.out):
                tile, window = self.input_box(x, where, channels)
                ifm = out.fetch(ring_x, tile, site.dtype(part.x.value))
                size = (where.images, where.rows, where.cols, channels.stop - first)
                target = y.box((where.n, where.h, where.w, first), size)
                staged = out.stage(ring_y, target, site.dtype(part.y.value))
                out.add(Pool(ifm, staged, window, **self.fields))
                out.commit(staged, target)


def fit(site: Site, shape: WindowShape, budget: int, node: int) -> Tiles:
    """Return the tiles to use; raise CompileError when nothing fits."""
    tiles = choose_tiles(site.spec, shape, budget)
    if tiles is None:
        raise CompileError(
            f"node {node}: no tile of output {shape.out} fits {budget} bytes of SRAM"
        )
    return tiles
