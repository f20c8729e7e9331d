"""The bytes that a command reads and writes, for barriers, checks and race tests."""

from __future__ import annotations

from trireme.devices.npu.stream.commands import (
    ITEMSIZE,
    SRAM,
    Binary,
    Dma,
    Fill,
    Matrix,
    Pool,
    Resize,
    Softmax,
    Table,
    Unary,
    View,
    Work,
)

Extent = tuple[int, int, int]
"""(region, first byte, byte behind the last)."""


def extent(view: View) -> Extent:
    """Return the bytes between a view's first and last element."""
    return (view.region, *view.extent)


def reads(work: Work) -> list[Extent]:
    """Return the bytes a command may read."""
    if isinstance(work, Dma):
        return [extent(work.source)]
    if isinstance(work, Matrix):
        return _matrix_reads(work)
    if isinstance(work, Pool):
        return [extent(work.ifm)]
    if isinstance(work, Binary):
        return [extent(work.a), extent(work.b)]
    if isinstance(work, Table):
        size = 256 * ITEMSIZE[work.y.dtype]
        return [extent(work.x), (SRAM, work.table, work.table + size)]
    if isinstance(work, Softmax):
        table = [] if work.x.dtype == "float16" else [(SRAM, work.table, work.table + 1024)]
        return [extent(work.x), *table]
    if isinstance(work, Resize):
        tables = ((work.rows, work.y.shape[1]), (work.cols, work.y.shape[2]))
        return [extent(work.x), *((SRAM, at, at + 12 * count) for at, count in tables)]
    return [extent(work.x)] if isinstance(work, Unary) else []


def writes(work: Work) -> list[Extent]:
    """Return the bytes a command may write."""
    if isinstance(work, (Dma, Fill)):
        return [extent(work.target)]
    if isinstance(work, Matrix):
        return [_accumulators(work)] if work.store_acc else [extent(work.ofm)]
    if isinstance(work, Pool):
        return [extent(work.ofm)]
    if isinstance(work, (Binary, Table, Unary, Softmax, Resize)):
        return [extent(work.y)]
    return []


def weight_bytes(work: Matrix) -> int:
    """Return the bytes of a command's weights."""
    ic = 1 if work.depthwise else work.ifm.shape[3]
    taps = work.window.kernel_h * work.window.kernel_w
    return taps * ic * work.ofm.shape[3] * ITEMSIZE[work.weights_dtype]


def scale_bytes(oc: int, dtype: str) -> int:
    """Return the bytes of bias, multipliers and shifts of `oc` channels of a dtype."""
    return oc * (4 if dtype == "float16" else 12)


def _matrix_reads(work: Matrix) -> list[Extent]:
    scales = scale_bytes(work.ofm.shape[3], work.ifm.dtype)
    found = [
        extent(work.ifm),
        (SRAM, work.weights, work.weights + weight_bytes(work)),
        (SRAM, work.scales, work.scales + scales),
    ]
    if work.load_acc:
        found.append(_accumulators(work))
    if work.residual is not None:
        found.append(extent(work.residual))
    return found


def _accumulators(work: Matrix) -> Extent:
    return (SRAM, work.accumulators, work.accumulators + 4 * work.ofm.elements)
