"""Choose tiles: the parts of an op's input, weights and output that are in SRAM at once.

Every choice that fits the workspace is ranked by cycles. With two buffers they are the larger of
compute and DMA cycles, with one buffer the sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod

from trireme.backend.arena import align_up
from trireme.devices.npu.compiler.emit import ALIGN
from trireme.devices.npu.simulator.cycles import conv_cycles, depthwise_cycles
from trireme.devices.npu.spec import NpuSpec
from trireme.devices.npu.stream.commands import LARGEST_WINDOWS, Dims, Window

STEP_CYCLES = 24
"""The fixed cost of a tile in cycles, so that smaller tiles must bring a gain."""

MANY = 32
"""Choices with over this many times the fewest tiles are skipped."""


@dataclass(frozen=True)
class WindowShape:
    """A matrix op or pool for the tiler: sizes in elements, widths in bytes an element.

    out [n,oh,ow,oc], size [h,w,ic] of one part (a group, or a batch of a matmul). A width is 0
    where the whole tensor is in SRAM, or absent.
    channels: outputs that a channel-wise op makes of one input channel, 0 for a dense one
    """

    out: Dims
    size: tuple[int, int, int]
    window: Window
    parts: int
    channels: int
    rate: float
    x_width: int
    y_width: int
    residual_width: int
    w_width: int
    scale_width: int


@dataclass(frozen=True)
class Tiles:
    """Tile sizes; `weights_outer` loops over output channels outside of space.

    n: images of a tile; above 1 only for whole images
    copies: tile buffers of each kind, 1 or 2
    """

    n: int
    h: int
    w: int
    oc: int
    ic: int
    weights_outer: bool
    copies: int


def splits(size: int, unit: int = 1) -> list[int]:
    """Return tile sizes to try, largest first: the size in 1, 2, 3, 4, 6, 8, 12... parts."""
    found: dict[int, None] = {}
    count = 1
    while count < 2 * size:
        tile = ceil(size / count)
        if unit > 1 and tile > unit:
            tile = min(size, ceil(tile / unit) * unit)
        found[tile] = None
        count = (
            count + 1
            if count < 4
            else count * 3 // 2
            if count & (count - 1) == 0
            else (count * 4 // 3)
        )
    found[1] = None
    return list(found)


def span(size: int, out: int, kernel: int, stride: int, dilation: int) -> int:
    """Return the most input rows that `out` output rows need."""
    return min(size, (out - 1) * stride + (kernel - 1) * dilation + 1)


def tile_sizes(op: WindowShape, tiles: Tiles) -> tuple[int, int, int, int]:
    """Return the bytes of a tile's input, weights with scales, output with residual, sums."""
    h, w, ic = op.size
    rows = span(h, tiles.h, op.window.kernel_h, op.window.stride_h, op.window.dilation_h)
    cols = span(w, tiles.w, op.window.kernel_w, op.window.stride_w, op.window.dilation_w)
    depth = ceil(tiles.oc / op.channels) if op.channels else tiles.ic
    taps = op.window.kernel_h * op.window.kernel_w
    outputs = tiles.n * tiles.h * tiles.w * tiles.oc
    weights = taps * tiles.oc * (1 if op.channels else depth) * op.w_width
    sums = 4 * outputs if not op.channels and tiles.ic < ic else 0
    return (
        tiles.n * rows * cols * depth * op.x_width,
        weights + tiles.oc * op.scale_width,
        outputs * op.y_width,
        sums + outputs * op.residual_width,
    )


def ring_copies(op: WindowShape, tiles: Tiles) -> tuple[int, int, int]:
    """Return how many buffers input, weights and output tiles have."""
    space, outs, depth = _steps(op, tiles)
    counts = space * depth * (outs if op.channels else 1), op.parts * outs * depth, space * outs
    x, w, y = (tiles.copies if count > 1 else 1 for count in counts)
    return x, w, y


def workspace_bytes(op: WindowShape, tiles: Tiles) -> int:
    """Return the SRAM bytes of all tile buffers."""
    x, w, y, rest = tile_sizes(op, tiles)
    copies_x, copies_w, copies_y = ring_copies(op, tiles)
    total = copies_x * align_up(x, ALIGN) + copies_y * align_up(y, ALIGN) + 4 * ALIGN
    return total + copies_w * (align_up(w, ALIGN) + ALIGN) + align_up(rest, ALIGN)


def _steps(op: WindowShape, tiles: Tiles) -> tuple[int, int, int]:
    """Return the numbers of tiles over space, output channels and input channels, of all parts."""
    n, oh, ow, oc = op.out
    space = ceil(n / tiles.n) * ceil(oh / tiles.h) * ceil(ow / tiles.w)
    depth = 1 if op.channels else ceil(op.size[2] / tiles.ic)
    return space * op.parts, ceil(oc / tiles.oc), depth


@lru_cache(maxsize=4096)
def choose_tiles(spec: NpuSpec, op: WindowShape, budget: int) -> Tiles | None:
    """Return the fastest tiles that fit a budget of SRAM bytes, None if none fits.

    The answer is cached, because nets repeat layers, and estimates and compilation ask the same.
    """
    best: tuple[float, Tiles] | None = None
    fewest = 0
    for tiles in _candidates(spec, op):
        if best is not None and tiles.ic < op.size[2] and best[1].ic == op.size[2]:
            break
        steps = prod(_steps(op, tiles))
        if fewest and steps > MANY * fewest or workspace_bytes(op, tiles) > budget:
            continue
        fewest = min(fewest or steps, steps)
        cycles = _predict(spec, op, tiles)
        if best is None or cycles < best[0]:
            best = (cycles, tiles)
    return best[1] if best else None


def _candidates(spec: NpuSpec, op: WindowShape) -> Iterator[Tiles]:
    """Yield tiles to try; those that split the reduction come last."""
    n, oh, ow, oc = op.out
    depths = [op.size[2]] if op.channels else splits(op.size[2], 16)
    unit = spec.matrix.block[2] if spec.matrix.block else spec.matrix.rows
    channels = splits(oc, unit)
    if op.channels > 1:
        channels = sorted({align_up(c, op.channels) for c in channels}, reverse=True)
    side = spec.matrix.block[0] if spec.matrix.block else 1
    taps = oh * ow * oc * op.window.kernel_h * op.window.kernel_w
    spaces = [(images, oh, ow) for images in splits(n) if images * taps <= LARGEST_WINDOWS]
    spaces = spaces or [(1, oh, ow)]
    spaces += [(1, h, ow) for h in splits(oh, side)[1:]] + [(1, 1, w) for w in splits(ow)[1:]]
    for ic in depths:
        for images, h, w in spaces:
            for tile in channels:
                for copies in (2, 1):
                    yield Tiles(images, h, w, tile, ic, True, copies)
                    if not op.channels:
                        yield Tiles(images, h, w, tile, ic, False, copies)


def _predict(spec: NpuSpec, op: WindowShape, tiles: Tiles) -> float:
    space, outs, depth = _steps(op, tiles)
    x, w, y, _ = tile_sizes(op, tiles)
    out = (tiles.n, tiles.h, tiles.w, tiles.oc)
    if op.channels:
        cycles = depthwise_cycles(spec.matrix, out, op.window)
    else:
        cycles = conv_cycles(spec.matrix, out, op.window, tiles.ic)
    compute = space * outs * depth * cycles / op.rate
    whole = prod(op.out[:3]) * op.out[3] * op.parts
    compute *= min(1.0, whole / (space * outs * tiles.n * tiles.h * tiles.w * tiles.oc))
    again_x = outs if tiles.weights_outer and space * depth > op.parts or depth > 1 else 1
    if op.channels:
        again_x = outs
    again_w = 1 if tiles.weights_outer and depth == 1 or outs * depth == 1 else space // op.parts
    copy = _Copies(spec)
    dma = copy.cycles(space * depth * again_x, x, False)
    dma += copy.cycles(op.parts * outs * depth * again_w, w, True)
    dma += copy.cycles(space * outs, y, False)
    steps = space * outs * depth
    overhead = STEP_CYCLES * steps
    if tiles.copies == 1:
        return compute + dma + overhead
    first = copy.cycles(1, x, False) + copy.cycles(1, w, True) + copy.cycles(1, y, False)
    return max(compute, dma) + first / 2 + overhead


@dataclass(frozen=True)
class _Copies:
    spec: NpuSpec

    def cycles(self, count: int, nbytes: int, constants: bool) -> float:
        if not nbytes:
            return 0.0
        rate = min(self.spec.dma.bytes_per_cycle, self.spec.dram_bytes_per_cycle(constants))
        return count * (self.spec.dma.latency_cycles + nbytes / rate)
