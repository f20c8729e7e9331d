"""Parameter sets of the kernels by device class, adjusted by the device's own figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trireme.devices.opencl.platforms import FoundDevice


@dataclass(frozen=True)
class ProductBlock:
    """A block of a product that a work-group makes through local memory.

    rows, columns: results of the block
    item_rows, item_columns: results of an item, multiples of 4
    depth: length of a slice
    latency: cycles of a slice in a compute unit that has no other group
    cycles: cycles of a slice for each of many groups in a compute unit
    start: the same for a group's start and end
    """

    rows: int
    columns: int
    item_rows: int
    item_columns: int
    depth: int
    latency: float
    cycles: float
    start: float

    @property
    def items(self) -> int:
        """Work items of the group."""
        return self.rows * self.columns // (self.item_rows * self.item_columns)

    def row_step(self, wide: int) -> int:
        """Rows between the loads of an item, of `wide` elements each."""
        return self.items * wide // self.depth

    def row_loads(self, wide: int) -> int:
        """Loads of rows of an item in a slice."""
        return self.rows // self.row_step(wide)

    @property
    def column_step(self) -> int:
        """Elements of the depth between the loads of columns of an item, of four each."""
        return self.items * 4 // self.columns

    @property
    def column_loads(self) -> int:
        """Loads of columns of an item in a slice."""
        return self.depth // self.column_step

    @property
    def local_bytes(self) -> int:
        """Bytes of local memory: two slices of floats, and four more rows against conflicts."""
        return 2 * 4 * self.depth * (self.rows + 4 + self.columns)


@dataclass(frozen=True)
class ProductSizes:
    """The sizes of `batches` products of a [rows,depth] by b [depth,columns]."""

    rows: int
    depth: int
    columns: int
    batches: int = 1


@dataclass(frozen=True)
class BlockCut:
    """The cut of a product: its blocks, and the groups that share the depth of one.

    slices: slices of a group
    groups: groups of the product
    """

    block: ProductBlock
    parts: int
    slices: int
    groups: int

    @property
    def busy_cycles(self) -> float:
        """Cycles of all groups where they keep compute units busy."""
        return self.groups * (self.slices * self.block.cycles + self.block.start)

    @property
    def chain_cycles(self) -> float:
        """Cycles of the slices of a group, which follow each other."""
        return self.slices * self.block.latency


@dataclass(frozen=True)
class Tuning:
    """The parameters of the kernels for a class of devices.

    vector: lanes of a vector of 4-byte elements
    rows, columns: a tile of a matrix product is `rows` by `columns` vectors, kept in registers
    group: work items of a work-group in kernels of independent items
    product_group: the same in matrix products: (tiles of rows, tiles of columns)
    on_cores: whether the driver runs work-groups on the CPU's cores
    blocks: blocks of products through local memory
    row_items: the most work items that share a row of a softmax, a norm or a reduction
    units: compute units
    """

    name: str
    vector: int
    rows: int
    columns: int
    group: int
    product_group: tuple[int, int]
    on_cores: bool = False
    blocks: tuple[ProductBlock, ...] = ()
    row_items: int = 1
    units: int = 64


BLOCKS = (
    ProductBlock(16, 32, 4, 4, 32, latency=1180, cycles=410, start=200),
    ProductBlock(16, 64, 4, 4, 32, latency=1230, cycles=670, start=250),
    ProductBlock(128, 128, 8, 8, 16, latency=3200, cycles=2900, start=2400),
)
"""Of 14 blocks, the three that come within 2 % of the fastest for 38 products of real models on an
NVIDIA H200, as a geometric mean. The cycles were fitted to the same products."""
_SUM_CYCLES = 8000.0
"""Cycles by which a second kernel delays a product whose depth is shared. Four models were as fast
or faster with it than with 12,000 and 18,000."""
_PART_BYTES = 21.0
"""Bytes of parts that a compute unit writes or reads in a cycle."""
_MOST_PARTS = 32
_ITEM_SUMS = 32
"""The most results of an item that also keeps sums of integers."""

CLASSES: Mapping[str, Tuning] = {
    "cpu": Tuning("cpu", 16, 12, 2, 16, (1, 1), on_cores=True),
    "desktop_gpu": Tuning("desktop_gpu", 4, 4, 1, 64, (8, 8), blocks=BLOCKS, row_items=256),
    "mobile_gpu": Tuning("mobile_gpu", 4, 4, 2, 64, (4, 8)),
}
_MOBILE = ("adreno", "mali", "powervr", "videocore", "immortalis")


def tuning_for(found: FoundDevice, asked: str | None) -> Tuning:
    """Return the parameters for a device, or those of the class asked for.

    On a CPU the tile follows the vector width: 12 rows by 2 vectors fill 32 registers of AVX-512 or
    NEON, 4 by 2 the 16 of AVX2, where a float8 is one register.
    """
    base = CLASSES[asked or _class_of(found)]
    if not base.on_cores:
        return _of_gpu(base, found.handle)
    width = int(found.handle.native_vector_width_float) or 4
    if width >= 16:
        return base
    if width == 8:
        return replace(base, vector=8, rows=6)
    return replace(base, vector=4, rows=8)


def _of_gpu(base: Tuning, device: Any) -> Tuning:
    """Return the parameters that fit the device's local memory and work-groups."""
    most_items, most_bytes = int(device.max_work_group_size), int(device.local_mem_size)
    return replace(
        base,
        blocks=tuple(
            block
            for block in base.blocks
            if block.items <= most_items and block.local_bytes <= most_bytes
        ),
        row_items=min(base.row_items, most_items),
        units=units_and_clock(device)[0],
    )


def best_cut(tuning: Tuning, sizes: ProductSizes, has_integers: bool) -> BlockCut | None:
    """Return the cut that is estimated fastest; None without blocks.

    has_integers: whether an item keeps sums of integers beside those of floats
    """
    cuts = [
        cut
        for block in tuning.blocks
        if not has_integers or block.item_rows * block.item_columns <= _ITEM_SUMS
        for cut in _cuts(block, sizes)
    ]
    return min(cuts, key=lambda cut: _cycles(cut, tuning.units, sizes), default=None)


def _cuts(block: ProductBlock, sizes: ProductSizes) -> Iterator[BlockCut]:
    blocks = -(-sizes.rows // block.rows) * -(-sizes.columns // block.columns) * sizes.batches
    whole = -(-sizes.depth // block.depth)
    wanted = 1
    while wanted <= min(whole, _MOST_PARTS):
        slices = -(-whole // wanted)
        parts = -(-whole // slices)
        yield BlockCut(block, parts, slices, blocks * parts)
        wanted *= 2


def _cycles(cut: BlockCut, units: int, sizes: ProductSizes) -> float:
    """Return the estimated cycles of a product."""
    rounds = -(-cut.groups // units)
    cycles = max(cut.chain_cycles, rounds * cut.busy_cycles / cut.groups)
    if cut.parts > 1:
        moved = 2 * 4 * cut.parts * sizes.batches * sizes.rows * sizes.columns
        cycles += _SUM_CYCLES + moved / (_PART_BYTES * units)
    return cycles


def _class_of(found: FoundDevice) -> str:
    if found.kind in ("cpu", "custom"):
        return "cpu"
    return "mobile_gpu" if any(n in found.device.lower() for n in _MOBILE) else "desktop_gpu"


def units_and_clock(device: Any) -> tuple[int, float]:
    """Return the number of compute units and their clock in hertz, as the driver describes them."""
    return max(int(device.max_compute_units), 1), (int(device.max_clock_frequency) or 1000) * 1e6


def figures(device: Any, kind: str) -> tuple[float, float]:
    """Return (float32 operations, bytes) a second, guessed from the device's own description.

    Operations: compute units x clock x lanes x 2 (a multiply-add) x 2 pipes, at half of the peak. A
        CPU reports its lanes; a GPU's compute unit counts as 64 on one pipe. Bytes: 5 GB/s a core,
        and a tenth of a byte an operation on a GPU. Calibration replaces both.
    """
    units, clock = units_and_clock(device)
    if kind == "gpu":
        flops = units * clock * 64 * 2 * 0.5
        return flops, max(flops * 0.1, 1e10)
    lanes = int(device.native_vector_width_float) or 4
    return units * clock * lanes * 4 * 0.5, max(units * 5e9, 1e10)
