"""Jobs: the steps between a graph and a stream. One node becomes a few; each emits its commands.

A job knows its values, their Layouts, the least SRAM it can work in, and how to cut itself into
tiles. The Site knows where values live (see `residency`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from trireme.backend.arena import align_up
from trireme.devices.npu.compiler.emit import ALIGN, Emitter, Ring
from trireme.devices.npu.compiler.layout import Box
from trireme.devices.npu.spec import NpuSpec
from trireme.devices.npu.stream.commands import (
    CONSTANTS,
    ITEMSIZE,
    SRAM,
    Dims,
    Dma,
    Fill,
    View,
    Work,
)
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.errors import InternalError


class Shared(NamedTuple):
    """The key of bytes that depend on constants and not on a node: all nodes of a task share one
    copy.

    value: the constant, by id
    addend: another constant that is packed with it
    packing: all further facts that the bytes depend on
    tile: the part of the constant
    """

    value: int
    addend: int | None
    packing: Hashable
    tile: tuple[int, ...] = ()


class PackedConstants:
    """Packed constants of a task: reserved with a function that makes the bytes when needed."""

    def __init__(self, alignment: int) -> None:
        self.nbytes = 0
        self._alignment = alignment
        self._blobs: dict[Hashable, tuple[int, int, Callable[[], Array]]] = {}
        self.shared: dict[Shared, int] = {}
        """Bytes by key, those of all tiles together."""

    def reserve(self, key: Hashable, nbytes: int, make: Callable[[], Array]) -> View:
        """Return the future place of the bytes; the same key has the same bytes, and place."""
        if key not in self._blobs:
            self._blobs[key] = (self.nbytes, nbytes, make)
            taken = align_up(nbytes, self._alignment)
            self.nbytes += taken
            if isinstance(key, Shared):
                whole = key._replace(tile=())
                self.shared[whole] = self.shared.get(whole, 0) + taken
        offset = self._blobs[key][0]
        return View(CONSTANTS, offset, "uint8", (1, 1, 1, nbytes), (0, 0, 0, 1))

    def build(self) -> Array:
        """Return the memory image.

        Errors: InternalError, if the bytes differ from the reserved ones in size or alignment
        """
        image = np.zeros(self.nbytes, np.uint8)
        for key, (offset, nbytes, make) in self._blobs.items():
            data = np.ascontiguousarray(make()).reshape(-1).view(np.uint8)
            if nbytes not in (data.size, align_up(data.size, ALIGN)):
                raise InternalError(f"npu: {key} has {data.size} bytes, {nbytes} are reserved")
            image[offset : offset + data.size] = data
        return image


@dataclass
class Site:
    """Where values live: a dense view of each, by value id."""

    spec: NpuSpec
    constants: PackedConstants
    places: Mapping[int, View]

    def resident(self, value: int) -> bool:
        """Whether the whole value is in SRAM."""
        return self.places[value].region == SRAM

    def width(self, value: int) -> int:
        """Return an element's bytes in a tile buffer; 0 for a value in SRAM."""
        return 0 if self.resident(value) else ITEMSIZE[self.dtype(value)]

    def dtype(self, value: int) -> str:
        """Return the element type for the engines: float32 becomes float16 on its way to SRAM."""
        dtype = self.places[value].dtype
        return "float16" if dtype == "float32" else dtype


@dataclass(frozen=True)
class BoxedValue:
    """A value, and the op's view of it."""

    value: int
    layout: Box

    def view(self, site: Site) -> View:
        """Return the view of the operand in its place."""
        return self.layout.view(site.places[self.value])


@dataclass
class Job(ABC):
    """A step of a node; `node` is an index into the graph's nodes."""

    node: int
    reads: tuple[int, ...]
    writes: int

    @abstractmethod
    def least_bytes(self, site: Site) -> int:
        """Return the least workspace of the job."""

    @abstractmethod
    def wanted_bytes(self, site: Site) -> int:
        """Return the largest useful workspace."""

    @abstractmethod
    def emit(self, out: Emitter, site: Site, budget: int) -> None:
        """Emit the commands; the workspace of `budget` bytes is open."""


@dataclass
class MoveJob(Job):
    """Copies by DMA, after an optional fill of the target with one value."""

    copies: Sequence[tuple[BoxedValue, BoxedValue]]
    fill: tuple[BoxedValue, float] | None = None

    def least_bytes(self, site: Site) -> int:
        """Return 0: DMA needs no buffers."""
        return 0

    def wanted_bytes(self, site: Site) -> int:
        """Return 0: DMA needs no buffers."""
        return 0

    def emit(self, out: Emitter, site: Site, budget: int) -> None:
        """Emit a fill and the copies."""
        if self.fill is not None:
            place = self.fill[0].view(site)
            out.add(Fill(place, element_bits(self.fill[1], place.dtype)))
        for source, target in self.copies:
            out.add(Dma(source.view(site), target.view(site)))


def element_bits(value: float, dtype: str) -> int:
    """Return the bits of one element, in the form of the Fill command."""
    data = np.zeros(4, np.uint8)
    with np.errstate(over="ignore"):
        data[: ITEMSIZE[dtype]] = np.array([value]).astype(numpy_dtype(dtype)).view(np.uint8)
    return int(data.view(np.uint32)[0])


Make = Callable[[Sequence[View], View, int], Work]
"""(input tiles, output tile, address of the table) -> command."""


@dataclass
class MapJob(Job):
    """Elementwise work, and work along the last axis (`whole_rows`), in tiles of any shape.

    parts: inputs and output, all of one shape
    table: key, bytes and maker of a constant that the command needs in SRAM
    """

    parts: Sequence[tuple[tuple[BoxedValue, ...], BoxedValue]]
    make: Make
    whole_rows: bool = False
    table: tuple[object, int, Callable[[], Array]] | None = None

    def least_bytes(self, site: Site) -> int:
        """Return the bytes of one element, or one row, of each tensor that is not in SRAM."""
        return max(self._bytes(site, part, self._smallest(part), 1) for part in self.parts)

    def wanted_bytes(self, site: Site) -> int:
        """Return the bytes of all tensors that are not in SRAM."""
        return max(self._bytes(site, part, part[1].layout.shape, 1) for part in self.parts)

    def emit(self, out: Emitter, site: Site, budget: int) -> None:
        """Emit the tiles of every part."""
        address = 0
        if self.table is not None:
            blob = site.constants.reserve(*self.table)
            address = out.fetch(out.ring(blob.elements), blob).offset
        workspace = out.mark()
        for part in self.parts:
            out.rewind(workspace)
            tile, copies = self._choose(site, part, budget)
            self._emit_part(out, site, part, tile, copies, address)

    def _emit_part(
        self,
        out: Emitter,
        site: Site,
        part: tuple[tuple[BoxedValue, ...], BoxedValue],
        tile: Dims,
        copies: int,
        address: int,
    ) -> None:
        xs, y = part
        rings = [self._ring(out, site, x, tile, copies) for x in xs]
        ring = self._ring(out, site, y, tile, copies)
        views, target = [x.view(site) for x in xs], y.view(site)
        for start, shape in boxes(y.layout.shape, tile):
            tiles = [
                out.fetch(r, v.box(start, shape), site.dtype(x.value))
                for r, v, x in zip(rings, views, xs, strict=True)
            ]
            place = target.box(start, shape)
            staged = out.stage(ring, place, site.dtype(y.value))
            out.add(self.make(tiles, staged, address))
            out.commit(staged, place)

    def _ring(
        self, out: Emitter, site: Site, operand: BoxedValue, tile: Dims, copies: int
    ) -> Ring | None:
        nbytes = operand_bytes(site, operand, tile)
        return out.ring(nbytes, copies) if nbytes else None

    def _smallest(self, part: tuple[tuple[BoxedValue, ...], BoxedValue]) -> Dims:
        return (1, 1, 1, part[1].layout.shape[3] if self.whole_rows else 1)

    def _bytes(
        self, site: Site, part: tuple[tuple[BoxedValue, ...], BoxedValue], tile: Dims, copies: int
    ) -> int:
        total = align_up(self.table[1], ALIGN) + ALIGN if self.table else 0
        for operand in (*part[0], part[1]):
            total += copies * align_up(operand_bytes(site, operand, tile), ALIGN)
        return total + ALIGN

    def _choose(
        self, site: Site, part: tuple[tuple[BoxedValue, ...], BoxedValue], budget: int
    ) -> tuple[Dims, int]:
        """Return the largest tile that fits twice; at least four tiles where tensors are copied."""
        shape = part[1].layout.shape
        total = self._bytes(site, part, shape, 1)
        streams = any(operand_bytes(site, o, shape) for o in (*part[0], part[1]))
        aim = max(total // 2, 4096) if streams else budget
        tile = shape
        while self._bytes(site, part, tile, 2) > min(budget, aim):
            smaller = halved(tile, self.whole_rows)
            if smaller == tile or self._bytes(site, part, smaller, 2) < 1024 < budget:
                break
            tile = smaller
        if self._bytes(site, part, tile, 2) <= budget:
            return tile, 2
        while self._bytes(site, part, tile, 1) > budget:
            tile = halved(tile, self.whole_rows)
        return tile, 1


def operand_bytes(site: Site, operand: BoxedValue, tile: Dims) -> int:
    """Return the bytes of a tile's buffer; 0 where the value is in SRAM."""
    sizes = (n if s else 1 for n, s in zip(tile, operand.layout.strides, strict=True))
    return prod(sizes) * site.width(operand.value)


def halved(tile: Dims, whole_rows: bool) -> Dims:
    """Return the tile with its outermost dimension above 1 halved."""
    for axis in range(3 if whole_rows else 4):
        if tile[axis] > 1:
            sizes = list(tile)
            sizes[axis] = (tile[axis] + 1) // 2
            n, h, w, c = sizes
            return n, h, w, c
    return tile


def boxes(shape: Dims, tile: Dims) -> Iterable[tuple[Dims, Dims]]:
    """Yield (start, shape) of the tiles of a box, row-major."""
    for n in range(0, shape[0], tile[0]):
        for h in range(0, shape[1], tile[1]):
            for w in range(0, shape[2], tile[2]):
                for c in range(0, shape[3], tile[3]):
                    start = (n, h, w, c)
                    a, b, d, e = (min(t, s - i) for t, s, i in zip(tile, shape, start, strict=True))
                    yield start, (a, b, d, e)
