"""Read shapes, dtypes, quantisation and symbols from their tables, within the limits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trireme.ir.graph import ANY_DIMS, ANY_RANK, UNKNOWN, Dim, Quant, Rounding, TensorType
from trireme.model_file.attributes import FIRST_SYMBOL, UNKNOWN_DIM, UNKNOWN_RANK
from trireme.model_file.flat import FileDefect, Table
from trireme.model_file.layout import MAX_RANK, MAX_TENSOR_BYTES
from trireme.support.dtypes import INTS, NAMES, itemsize


def read_type(table: Table, symbols: Sequence[str]) -> TensorType:
    """Return the type in a table; raise FileDefect for an invalid or too large one."""
    dtype, shape = table["dtype"], table["shape"]
    if dtype not in _DTYPES:
        raise FileDefect(f"unknown dtype {dtype!r}", facts=[f"known: {', '.join(NAMES)}"])
    if len(shape) > MAX_RANK:
        raise FileDefect(f"{len(shape)} dimensions, at most {MAX_RANK}")
    # Python's integers do not overflow; zeros are left out so that they cannot hide the rest.
    nbytes = math.prod(dim for dim in shape if dim > 0) * itemsize(dtype)
    if nbytes > MAX_TENSOR_BYTES:
        raise FileDefect(f"{dtype}{list(shape)} takes {nbytes} bytes, at most {MAX_TENSOR_BYTES}")
    if UNKNOWN_RANK in shape and len(shape) > 1:
        raise FileDefect(f"dimensions {list(shape)}: {UNKNOWN_RANK} stands alone")
    dims = ANY_RANK if UNKNOWN_RANK in shape else tuple(_dim(dim, symbols) for dim in shape)
    quant = None if table["quant"] is None else _quant(table["quant"], dtype)
    return TensorType(dims, dtype, quant)


_DTYPES = frozenset(NAMES)


def _dim(dim: int, symbols: Sequence[str]) -> Dim:
    if dim >= 0:
        return dim
    if dim == UNKNOWN_DIM:
        return UNKNOWN
    if FIRST_SYMBOL - dim >= len(symbols):
        raise FileDefect(f"dimension {dim} names symbol {FIRST_SYMBOL - dim} of {len(symbols)}")
    return symbols[FIRST_SYMBOL - dim]


def _quant(table: Table, dtype: str) -> Quant:
    """Read scales and zero points; `verify` checks them against the shape."""
    if dtype not in INTS:
        raise FileDefect(f"{dtype} cannot be quantised")
    if not table["scales"] or not table["zero_points"]:
        raise FileDefect("quantisation: it has no scale or no zero point")
    bits = int(dtype.lstrip("uint"))
    least = -(1 << bits - 1) if dtype.startswith("int") else 0
    most = least + (1 << bits) - 1
    for zero_point in table["zero_points"]:
        if not least <= zero_point <= most:
            raise FileDefect(f"quantisation: zero point {zero_point} is outside {dtype}")
    rounding = table["rounding"]
    if rounding not in (None, Rounding.HALF_EVEN):
        raise FileDefect(f"quantisation: rounding {rounding!r} is unknown")
    how = None if rounding is None else Rounding(rounding)
    return Quant(table["scales"], table["zero_points"], table["axis"], how)


def read_symbols(tables: Sequence[Table]) -> dict[str, tuple[int, int | None]]:
    """Return the bounds of a graph's symbols by name, in the order of the file."""
    symbols: dict[str, tuple[int, int | None]] = {}
    for position, table in enumerate(tables):
        name, least, most = table["name"], table["least"], table["most"]
        if name in ("", UNKNOWN, ANY_DIMS) or name in symbols:
            raise FileDefect(
                f"name {name!r} is empty, reserved or used before", at=f".symbols[{position}]"
            )
        if least < 0 or (most is not None and most < least):
            raise FileDefect(f"bounds {least} to {most} of {name!r}", at=f".symbols[{position}]")
        symbols[name] = (least, most)
    return symbols
