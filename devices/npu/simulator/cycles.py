"""Cycles of a command, from the machine's description alone: formulas, no state.

`timing` adds them up over a stream, `tiling` ranks tiles by them, and `estimate_s` uses both.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, gcd

from trireme.devices.npu.spec import MatrixUnit, NpuSpec
from trireme.devices.npu.stream.commands import (
    CONSTANTS,
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
    Window,
    Work,
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Cycles an engine is busy, multiply-adds done, and bytes moved to and from DRAM."""

    cycles: int
    macs: int = 0
    dram_bytes: int = 0


def systolic_cycles(dataflow: str, rows: int, cols: int, m: int, n: int, k: int) -> int:
    """Return the cycles of an [m,k] x [k,n] product on a systolic array, edges included.

    Source: SCALE-Sim 3.0.0, whose compute cycles these are exactly
    """
    if dataflow == "os":
        return ceil(m / rows) * ceil(n / cols) * (k + rows + cols - 2) - 1
    if dataflow == "ws":
        return ceil(k / rows) * ceil(n / cols) * (m + 2 * rows + cols - 2) - 1
    return ceil(k / rows) * ceil(m / cols) * (n + 2 * rows + cols - 2) - 1


def conv_cycles(unit: MatrixUnit, out: tuple[int, int, int, int], window: Window, ic: int) -> int:
    """Return the cycles of a dense convolution of int8.

    Shapes: out [n, oh, ow, oc]; ic input channels
    """
    n, oh, ow, oc = out
    taps = window.kernel_h * window.kernel_w
    if unit.dataflow == "dot":
        row = window.kernel_w * ic if window.dilation_w == 1 else ic
        steps = window.kernel_h * ceil(row / unit.cols)
        if window.dilation_w != 1:
            steps *= window.kernel_w
        return n * oh * ow * steps * ceil(oc / unit.rows) + unit.fill_cycles
    if unit.dataflow == "blocks":
        block = min(4 * taps * ceil(ic / 32), 4 * ceil(taps / 4) * ceil(ic / 8))
        return _blocks(unit, out) * block + _fills(unit, out)
    return systolic_cycles(unit.dataflow, unit.rows, unit.cols, n * oh * ow, oc, taps * ic)


def depthwise_cycles(unit: MatrixUnit, out: tuple[int, int, int, int], window: Window) -> int:
    """Return the cycles of a depthwise convolution or a pool of int8.

    dot: each row takes a channel, its columns the taps. blocks: Arm's rule. In a systolic array
        each column takes a channel and its rows the taps. So an output costs ceil(taps / rows)
        cycles for `cols` channels, with one fill a group of channels.
    """
    n, oh, ow, oc = out
    taps = window.kernel_h * window.kernel_w
    if unit.dataflow == "dot":
        return n * oh * ow * ceil(taps / unit.cols) * ceil(oc / unit.rows) + unit.fill_cycles
    if unit.dataflow == "blocks":
        return _blocks(unit, out) * 4 * ceil(taps / 4) + _fills(unit, out)
    fold = n * oh * ow * ceil(taps / unit.rows) + unit.rows + unit.cols - 2
    return ceil(oc / unit.cols) * fold


def _blocks(unit: MatrixUnit, out: tuple[int, int, int, int]) -> int:
    """Output blocks; Source: Arm Vela 5.2.0's estimates, as measured (docs/explanation/npu.md)."""
    n, oh, ow, oc = out
    h, w, depth = unit.block
    return n * ceil(oh / h) * ceil(ow / w) * ceil(oc / depth)


def _fills(unit: MatrixUnit, out: tuple[int, int, int, int]) -> int:
    if not unit.fill_elements:
        return unit.fill_cycles
    n, oh, ow, oc = out
    return ceil(n * oh * ow * oc / unit.fill_elements) * unit.fill_cycles


def vector_cycles(spec: NpuSpec, kind: str, elements: int) -> int:
    """Return the cycles of elementwise work."""
    cost = spec.vector.cost.get(kind, 1.0)
    return ceil(elements * cost / spec.vector.lanes) + spec.vector.latency_cycles


def dma_cycles(spec: NpuSpec, source: View, target: View) -> Cost:
    """Return the cycles of a copy: start, then the slower of its two ends.

    DRAM moves whole bursts, so a copy of short runs costs more than its bytes.
    """
    nbytes = max(source.elements * ITEMSIZE[source.dtype], target.elements * ITEMSIZE[target.dtype])
    slowest = nbytes / spec.dma.bytes_per_cycle
    dram = 0
    for view in (source, target):
        if view.region == SRAM:
            slowest = max(slowest, sram_cycles(spec, (view,)))
            continue
        touched = burst_bytes(view, spec.dma.burst_bytes)
        rate = spec.dram_bytes_per_cycle(constants=view.region == CONSTANTS)
        slowest = max(slowest, touched / rate)
        dram += touched
    return Cost(spec.dma.latency_cycles + ceil(slowest), 0, dram)


def burst_bytes(view: View, burst: int) -> int:
    """Return the bytes of DRAM that a view touches, in whole bursts a contiguous run."""
    run, runs = ITEMSIZE[view.dtype], 1
    for size, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if size > 1 and stride == run and runs == 1:
            run *= size
        elif stride and size > 1:
            runs *= size
    return runs * ceil(run / burst) * burst


def sram_cycles(spec: NpuSpec, views: tuple[View, ...]) -> float:
    """Return the cycles of moving each view's bytes once.

    Lines of `bank_bytes_per_cycle` bytes go round the banks; a bank gives one line a cycle. A dense
    view uses all banks. A view with strides of a multiple of few banks waits for these few.
    """
    return sum(_view_cycles(spec, view) for view in views)


def _view_cycles(spec: NpuSpec, view: View) -> float:
    line, banks = spec.sram.bank_bytes_per_cycle, spec.sram.banks
    run, runs, reach = float(ITEMSIZE[view.dtype]), 1, 1
    for size, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if size == 1 or not stride:
            continue
        if runs == 1 and stride <= max(run, line):
            run += (size - 1) * stride
            continue
        runs *= size
        step = stride / line
        distinct = banks // gcd(int(step), banks) if step == int(step) else banks
        reach = min(banks, reach * min(size, distinct))
    lines = ceil(run / line)
    return runs * lines / min(banks, reach * lines)


def work_cost(spec: NpuSpec, work: Work) -> Cost:
    """Return a command's cost on its engine: the slower of compute and SRAM."""
    if isinstance(work, Dma):
        return dma_cycles(spec, work.source, work.target)
    if isinstance(work, Fill):
        return dma_cycles(spec, work.target, work.target)
    if isinstance(work, Matrix):
        return _matrix_cost(spec, work)
    if isinstance(work, Pool):
        cycles, views = pool_cycles(spec, work.ofm, work.window), (work.ifm, work.ofm)
    elif isinstance(work, Binary):
        cycles = vector_cycles(spec, "binary", work.y.elements)
        views = (work.a, work.b, work.y)  # type: ignore[assignment]
    elif isinstance(work, (Table, Unary, Softmax, Resize)):
        cycles = vector_cycles(spec, type(work).__name__.lower(), work.y.elements)
        views = (work.x, work.y)
    else:
        return Cost(0)
    return Cost(max(cycles, ceil(sram_cycles(spec, views))))


def pool_cycles(spec: NpuSpec, ofm: View, window: Window) -> int:
    """Return the cycles of a pool, on the engine that the description names."""
    if spec.vector.pools == "matrix":
        return ceil(depthwise_cycles(spec.matrix, ofm.shape, window) / _rate(spec, ofm.dtype))
    return vector_cycles(spec, "pool", ofm.elements * window.kernel_h * window.kernel_w)


def _matrix_cost(spec: NpuSpec, work: Matrix) -> Cost:
    ic, oc = work.ifm.shape[3], work.ofm.shape[3]
    taps = work.window.kernel_h * work.window.kernel_w
    if work.depthwise:
        ideal, ic = depthwise_cycles(spec.matrix, work.ofm.shape, work.window), 1
    else:
        ideal = conv_cycles(spec.matrix, work.ofm.shape, work.window, ic)
    size = ITEMSIZE[work.weights_dtype]
    count = taps * ic * oc
    weights = View(SRAM, work.weights, work.weights_dtype, (1, 1, 1, count), (0, 0, 0, size))
    views = (work.ifm, weights, work.ofm)
    cycles = max(ceil(ideal / _rate(spec, work.ifm.dtype)), ceil(sram_cycles(spec, views)))
    return Cost(cycles, work.ofm.elements * taps * ic)


def _rate(spec: NpuSpec, dtype: str) -> float:
    return spec.matrix.rate.get(dtype) or 1.0
