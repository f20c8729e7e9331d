"""The variants of a product of 8-bit integers on an instruction set, and the choice of the best."""

from __future__ import annotations

from collections.abc import Iterator

from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.int8.arithmetic import BYTES, Dot, dot_of
from trireme.devices.cpu.kernels.int8.pack import (
    MOST_VECTORS,
    Int8MatmulShape,
    RegisterTile,
    choose_tile,
    steps_of,
    weight_zero,
)
from trireme.devices.cpu.kernels.int8.params import ProductParams
from trireme.devices.cpu.kernels.int8.split import Split, split
from trireme.support.dtypes import Array
from trireme.support.records import dataclass

_MOST_AGAIN = 0.25
"""The share of steps done again beyond which wider sums, which repeat more, are not looked at."""


@dataclass(frozen=True, eq=False)
class Way:
    """One variant: the multiplier, the tile, and weights in steps.

    cycles: of one group, by a model
    parts: the rest of the weights, where `steps` are the first part of a split
    """

    dot: Dot
    tile: RegisterTile
    cycles: float
    steps: Array
    parts: Split | None = None


def best_way(isa: Isa, w: Array, params: ProductParams, product: Int8MatmulShape) -> Way:
    """Return the way that takes the fewest modelled cycles."""
    return min(_ways(isa, w, params, product), key=lambda way: way.cycles)


def _ways(isa: Isa, w: Array, params: ProductParams, product: Int8MatmulShape) -> Iterator[Way]:
    dot = dot_of(isa)
    tile, cycles = choose_tile(isa, product, dot)
    yield Way(dot, tile, cycles, steps_of(w, weight_zero(w, params, dot), product, dot))
    if isa.vnni or not isa.byte_pairs:
        return
    wide = steps_of(w, params.w_zero, product, BYTES[0])
    for dot in BYTES:
        parts = split(wide, product.span_steps(dot), dot)
        again = [parts.again(v * isa.lanes) for v in range(1, MOST_VECTORS + 1)]
        tile, cycles = choose_tile(isa, product, dot, again)
        yield Way(dot, tile, cycles, parts.main, parts)
        panels = -(-product.channels // isa.lanes)
        if again[0] > _MOST_AGAIN * panels * product.steps(dot):
            return
