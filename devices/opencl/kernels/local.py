"""Products staged through local memory, for GPUs with fast local memory of their own.

A work-group of 8 x 8 items makes 32 rows by 32 columns. For each slice of the depth, its items
fetch the rows and the panels together, wait for each other, and multiply from local memory. No item
leaves early: items beyond the last tile or panel repeat the last one, so that barriers meet.
"""

from __future__ import annotations

from trireme.devices.opencl.kernels.source import Lanes
from trireme.devices.opencl.kernels.tiles import (
    ProductOperands,
    ProductTile,
    column_starts,
    declare_sums,
    finish_lines,
    indent,
    product_name,
)
from trireme.devices.opencl.lowering import C_TYPES, Pointer
from trireme.support.dtypes import Array

_SIDE = 8
_ROWS = 4
_LANES = 4
_DEPTH = 16


def fits(product: ProductOperands, rows: int, b: Array) -> bool:
    """Whether local memory suits a product of dense rows with b [K,N]."""
    return (
        product.low.tuning.name == "desktop_gpu"
        and not product.chunk
        and min(rows, b.shape[1]) >= _SIDE * _ROWS
        and b.shape[0] >= _DEPTH
    )


def emit_local(product: ProductOperands, name: str, rows: int, b: Array) -> None:
    """Emit a product of dense rows with a constant b [K,N] through local memory."""
    tile = ProductTile(_ROWS, 1, Lanes(_LANES), b.shape[1])
    packed, ctype = product.packed("columns", tile, b), C_TYPES[product.dtype]
    lines = [
        f"__local float rows[{_SIDE}][{_ROWS}][{_DEPTH}];",
        f"__local float{_LANES} panels[{_SIDE}][{_DEPTH}];",
        "const int l0 = get_local_id(0), l1 = get_local_id(1);",
        f"const int row = min(i0 * {_ROWS}, M - {_ROWS}), base = 0;",
        "const int panel = min(i1, PANELS - 1);",
        *column_starts(tile, "panel"),
        f"__global const {ctype} *p = w + panel * K * {_LANES};",
        *declare_sums(tile, 0),
        f"for (int k0 = 0; k0 < K; k0 += {_DEPTH}) {{",
        "barrier(CLK_LOCAL_MEM_FENCE);",
        *_fetch(product),
        "barrier(CLK_LOCAL_MEM_FENCE);",
        f"for (int k = 0; k < {_DEPTH}; k++) {{",
        f"const float{_LANES} v = panels[l1][k];",
        *(
            f"s{i}_0 = {product.multiply}((float{_LANES})(rows[l0][{i}][k]), v, s{i}_0);"
            for i in range(_ROWS)
        ),
        "}",
        "}",
        *finish_lines(product, tile),
    ]
    tensors = [
        Pointer("x", "float", product.x),
        Pointer("w", ctype, packed),
        *product.finish.tensors,
        product.finish.target(),
    ]
    product.low.emit(
        product.chain,
        product_name(product, name, tile, variant="_local"),
        tensors,
        (-(-rows // _ROWS), tile.panels),
        indent(lines),
        group=(_SIDE, _SIDE),
        local=True,
        scalars={
            "M": rows,
            "N": tile.columns,
            "K": b.shape[0],
            "PANELS": tile.panels,
            **product.scalars,
        },
    )


def _fetch(product: ProductOperands) -> list[str]:
    """Return the statements that fetch an item's share of a slice, zeros beyond K."""
    share = _DEPTH // _SIDE
    value = Lanes(_LANES).load(product.dtype, f"p + (k0 + b) * {_LANES}")
    return [
        f"for (int t = 0; t < {share}; t++) {{",
        f"const int a = l1 * {share} + t, b = l0 * {share} + t;",
        f"for (int r = 0; r < {_ROWS}; r++)",
        "  rows[l0][r][a] = k0 + a < K ? x[(row + r) * K + k0 + a] : 0.0f;",
        f"panels[l1][b] = (float{_LANES})(0.0f);",
        f"if (k0 + b < K) panels[l1][b] = {value};",
        "}",
    ]
