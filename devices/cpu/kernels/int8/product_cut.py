"""How a product of 8-bit integers is cut into chunks."""

from __future__ import annotations

from trireme.devices.cpu.codegen.ir import Index
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.int8.pack import Int8MatmulShape, RegisterTile
from trireme.devices.cpu.kernels.int8.prepare import MOST_LOCAL_BYTES, Image, LineWindow
from trireme.devices.cpu.kernels.lowering import deal
from trireme.support.records import dataclass


@dataclass(frozen=True)
class ProductCut:
    """The rows of a product, and how it is cut into chunks: blocks of rows by parts of panels.

    block, blocks: rows of a chunk, and blocks; part, parts: panels of a chunk, and parts
    """

    rows: Index
    block: Index
    blocks: Index
    part: Index
    parts: Index


def panels_of(isa: Isa, product: Int8MatmulShape, tile: RegisterTile) -> int:
    """Return the panels of channels of a group."""
    return -(-product.channels // (tile.vectors * isa.lanes))


def cut_product(
    isa: Isa,
    product: Int8MatmulShape,
    source: tuple[Image, LineWindow],
    tile: RegisterTile,
    seconds: float,
) -> tuple[ProductCut, int, int]:
    """Return the cut of a product of one shape, its chunks and the bytes of a chunk's lines."""
    image, view = source
    tiles, panels = -(-product.rows // tile.rows), panels_of(isa, product, tile)

    def fetched(size: int) -> int:
        return image.local_bytes(view.most_lines(product.rows, size * tile.rows, tile.rows))

    size, blocks = deal(tiles, seconds)
    while size > 1 and fetched(size) > MOST_LOCAL_BYTES:
        size = -(-size // 2)
        blocks = -(-tiles // size)
    part, parts = panels, 1
    if tiles < 4 and panels > 1:
        (size, blocks), (part, parts) = (tiles, 1), deal(panels, seconds)
    cut = ProductCut(product.rows, size * tile.rows, blocks, part, parts)
    return cut, product.groups * blocks * parts, fetched(size)
