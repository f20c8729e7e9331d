"""Execute a verified stream for its values: every command works on the bytes its views name.

The simulator does not know the graph. A command reads tiles from simulated memory and writes tiles
back. So a wrong address, a missing load or a wrong size gives wrong results, as on the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trireme.devices.npu.simulator.functions import apply_function, half_table
from trireme.devices.npu.stream.commands import (
    SRAM,
    Barrier,
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
    array_of,
    dense,
)
from trireme.ir.graph import Rounding
from trireme.ops.integer import divide, multiply_by_quantized, requantize
from trireme.support.dtypes import Array

Memory = Sequence[Array]
"""One 1-D uint8 array a region."""

_UNFOLDED = 1 << 22
"""The most elements of windows that are expanded at once."""
LIMITS = {"int8": (-128, 127), "uint8": (0, 255)}


def execute(work: Work, memory: Memory) -> None:
    """Execute one command on memory."""
    if not isinstance(work, Barrier):
        with np.errstate(all="ignore"):
            _RUN[type(work)](work, memory)


def _array(memory: Memory, view: View) -> Array:
    return array_of(memory[view.region], view)


def _dma(work: Dma, memory: Memory) -> None:
    _array(memory, work.target)[...] = _array(memory, work.source)


def _fill(work: Fill, memory: Memory) -> None:
    target = _array(memory, work.target)
    bits = np.array([work.value], np.uint32).view(np.uint8)[: target.itemsize]
    target[...] = bits.view(target.dtype)[0]


def _matrix(work: Matrix, memory: Memory) -> None:
    if work.ifm.dtype == "float16":
        _matrix_float(work, memory)
    else:
        _matrix_int(work, memory)


def _matrix_int(work: Matrix, memory: Memory) -> None:
    sram, out = memory[SRAM], work.ofm.shape
    taps = work.window.kernel_h * work.window.kernel_w
    depth = taps * (1 if work.depthwise else work.ifm.shape[3])
    x_range = max(abs(limit - work.x_zero) for limit in LIMITS[work.ifm.dtype])
    w_range = max(abs(limit - work.w_zero) for limit in LIMITS[work.weights_dtype])
    exact: Any = np.float32 if depth * x_range * w_range < 2**24 else np.float64
    x = np.subtract(_array(memory, work.ifm), work.x_zero, dtype=exact)
    w = np.subtract(_weights(work, sram), work.w_zero, dtype=exact)
    acc = np.rint(_product(x, w, work)).astype(np.int64)
    scales = _vector(sram, work.scales, "int32", 3 * out[3]).reshape(3, out[3])
    sums = dense(SRAM, work.accumulators, "int32", out)
    if work.load_acc:
        acc += array_of(sram, sums)
    else:
        acc += scales[0]
    acc = acc.astype(np.int32)
    if work.store_acc:
        array_of(sram, sums)[...] = acc
        return
    _array(memory, work.ofm)[...] = requantize(
        acc,
        scales[1],
        scales[2],
        work.y_zero,
        work.low,
        work.high,
        Rounding(work.rounding),
    )


def _matrix_float(work: Matrix, memory: Memory) -> None:
    sram, out = memory[SRAM], work.ofm.shape
    x = _array(memory, work.ifm).astype(np.float32)
    acc = _product(x, _weights(work, sram).astype(np.float32), work)
    sums = dense(SRAM, work.accumulators, "float32", out)
    if work.load_acc:
        acc = acc + array_of(sram, sums)
    else:
        acc = acc + _vector(sram, work.scales, "float32", out[3])
    if work.store_acc:
        array_of(sram, sums)[...] = acc
        return
    if work.residual is not None:
        acc = acc + _array(memory, work.residual).astype(np.float32)
    _array(memory, work.ofm)[...] = apply_function(work.function, acc)


def _weights(work: Matrix, sram: Array) -> Array:
    """Return the weights as [KH,KW,IC,OC]; IC is 1 for a depthwise op."""
    ic = 1 if work.depthwise else work.ifm.shape[3]
    taps = work.window.kernel_h * work.window.kernel_w
    flat = _vector(sram, work.weights, work.weights_dtype, taps * ic * work.ofm.shape[3])
    return flat.reshape(work.window.kernel_h, work.window.kernel_w, ic, -1)


def _vector(sram: Array, offset: int, dtype: str, count: int) -> Array:
    row: Array = array_of(sram, dense(SRAM, offset, dtype, (1, 1, 1, count)))[0, 0, 0]
    return row


def _product(x: Array, w: Array, work: Matrix) -> Array:
    n, oh, ow, oc = work.ofm.shape
    if work.depthwise:
        return _depthwise(x, w, work)
    windows = sliding(x, work.window, oh, ow, 0)
    kh, kw, ic, _ = w.shape
    taps, some = kh * kw * ic, max(_UNFOLDED // (oh * ow * kh * kw * ic), 1)
    flat = w.reshape(taps, oc)
    rows = (windows[i : i + some] for i in range(0, n, some))
    sums = [part.reshape(len(part), oh * ow, taps) @ flat for part in rows]  # image by image
    return (
        np.concatenate(sums).reshape(n, oh, ow, oc)
        if len(sums) > 1
        else (sums[0].reshape(n, oh, ow, oc))
    )


def _depthwise(x: Array, w: Array, work: Matrix) -> Array:
    n, oh, ow, oc = work.ofm.shape
    windows = sliding(x, work.window, oh, ow, 0)
    repeat = oc // x.shape[3]
    acc = np.zeros((n, oh, ow, oc), x.dtype)
    for i in range(w.shape[0]):
        for j in range(w.shape[1]):
            tap = windows[:, :, :, i, j]
            acc += (np.repeat(tap, repeat, 3) if repeat > 1 else tap) * w[i, j, 0]
    return acc


def sliding(x: Array, window: Window, oh: int, ow: int, padding: float) -> Array:
    """Return the windows of an input, [n,oh,ow,kh,kw,c], without a copy for an unpadded input."""
    x = _padded(
        x, 1, oh, window.kernel_h, window.stride_h, window.dilation_h, window.pad_top, padding
    )
    x = _padded(
        x, 2, ow, window.kernel_w, window.stride_w, window.dilation_w, window.pad_left, padding
    )
    n, _, _, c = x.shape
    sn, sh, sw, sc = x.strides
    return np.lib.stride_tricks.as_strided(
        x,
        (n, oh, ow, window.kernel_h, window.kernel_w, c),
        (
            sn,
            sh * window.stride_h,
            sw * window.stride_w,
            sh * window.dilation_h,
            sw * window.dilation_w,
            sc,
        ),
        writeable=False,
    )


def _padded(
    x: Array,
    axis: int,
    out: int,
    kernel: int,
    stride: int,
    dilation: int,
    pad: int,
    padding: float,
) -> Array:
    """Return x so that row 0 along the axis is the first row of the first window."""
    need = (out - 1) * stride + (kernel - 1) * dilation + 1
    size = x.shape[axis]
    if pad == 0 and need <= size:
        return x
    shape = list(x.shape)
    shape[axis] = need
    full = np.full(shape, padding, x.dtype)
    first, last = max(-pad, 0), min(need - pad, size)
    if last > first:
        inside: list[slice] = [slice(None)] * x.ndim
        source = list(inside)
        inside[axis], source[axis] = slice(first + pad, last + pad), slice(first, last)
        full[tuple(inside)] = x[tuple(source)]
    return full


def _counts(size: int, out: int, kernel: int, stride: int, dilation: int, pad: int) -> Array:
    """Return how many taps of each window along an axis are inside the input."""
    rows = np.arange(out)[:, None] * stride + np.arange(kernel) * dilation - pad
    return np.asarray(((rows >= 0) & (rows < size)).sum(1))


def _pool(work: Pool, memory: Memory) -> None:
    x, y = _array(memory, work.ifm), _array(memory, work.ofm)
    floats = work.ifm.dtype == "float16"
    wide = x.astype(np.float32 if floats else np.int32)
    if work.kind == "max":
        least = -np.inf if floats else LIMITS[work.ifm.dtype][0]
        result = _reduce(wide, work, least, np.maximum)
    else:
        result = _reduce(wide, work, work.pad_value if work.count else 0, np.add)
    if work.kind == "average" or (work.kind == "mean" and floats):
        count = _window_counts(work)
        result = result / count if floats else _mean(work, result, count)
    if floats:
        y[...] = apply_function(work.function, result)
    elif work.kind == "mean":
        y[...] = _rescaled(work, result)
    else:
        y[...] = np.clip(result, work.low, work.high)


def _mean(work: Pool, total: Array, count: Array) -> Array:
    """Return the means of windows: see PoolParams."""
    rounding = Rounding(work.rounding)
    zero = work.pad_value if rounding is Rounding.HALF_EVEN else 0
    return divide(total - count * zero, count, rounding) + zero


def _rescaled(work: Pool, total: Array) -> Array:
    """Return a sum in steps of the output: see ReduceParams."""
    acc = total.astype(np.int64) - work.window.kernel_h * work.window.kernel_w * work.x_zero
    rounding = Rounding(work.rounding)
    if rounding is Rounding.HALF_EVEN:
        whole = divide(acc * work.multiplier, work.count << (31 - work.shift), rounding)
        return np.asarray(np.clip(whole + work.y_zero, work.low, work.high))
    return requantize(acc, work.multiplier, work.shift, work.y_zero, work.low, work.high, rounding)


def _reduce(x: Array, work: Pool, padding: float, combine: Callable[..., Array]) -> Array:
    win = work.window
    windows = sliding(x, win, work.ofm.shape[1], work.ofm.shape[2], padding)
    if win.kernel_h * win.kernel_w > 64:
        return np.asarray(combine.reduce(windows, axis=(3, 4)))  # type: ignore[attr-defined]
    result = windows[:, :, :, 0, 0]
    for i in range(win.kernel_h):
        for j in range(win.kernel_w):
            if i or j:
                result = combine(result, windows[:, :, :, i, j])
    return result


def _window_counts(work: Pool) -> Array:
    if work.count:
        return np.asarray(work.count)
    win, (_, h, w, _), (_, oh, ow, _) = work.window, work.ifm.shape, work.ofm.shape
    rows = _counts(h, oh, win.kernel_h, win.stride_h, win.dilation_h, win.pad_top)
    cols = _counts(w, ow, win.kernel_w, win.stride_w, win.dilation_w, win.pad_left)
    return np.asarray(np.maximum(rows[:, None, None] * cols[None, :, None], 1))


def _binary(work: Binary, memory: Memory) -> None:
    a, b, y = (_array(memory, view) for view in (work.a, work.b, work.y))
    if work.a.dtype == "float16":
        wide = _FLOAT_BINARY[work.kind](a.astype(np.float32), b.astype(np.float32))
        y[...] = apply_function(work.function, wide)
    elif work.kind in ("max", "min"):
        y[...] = _FLOAT_BINARY[work.kind](a, b)
    else:
        wide_a, wide_b = a.astype(np.int64) - work.a_zero, b.astype(np.int64) - work.b_zero
        if work.kind == "mul":
            wide = wide_a * wide_b
        else:
            wide = multiply_by_quantized(wide_a << work.left_shift, work.a_multiplier, work.a_shift)
            wide = wide + multiply_by_quantized(
                wide_b << work.left_shift, work.b_multiplier, work.b_shift
            )
        how = Rounding(work.rounding)
        scale = (work.y_multiplier, work.y_shift)
        y[...] = requantize(wide, *scale, work.y_zero, work.low, work.high, how)


_FLOAT_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
}


def _table(work: Table, memory: Memory) -> None:
    x, y = _array(memory, work.x), _array(memory, work.y)
    entries = _vector(memory[SRAM], work.table, work.y.dtype, 256)
    y[...] = entries[np.ascontiguousarray(x).view(np.uint8)]


def _unary(work: Unary, memory: Memory) -> None:
    x, y = _array(memory, work.x), _array(memory, work.y)
    entries = half_table(work.function, work.alpha, work.beta)
    y[...] = entries[np.ascontiguousarray(x).view(np.uint16)]


def _softmax(work: Softmax, memory: Memory) -> None:
    x, y = _array(memory, work.x), _array(memory, work.y)
    if work.x.dtype == "float16":
        wide = x.astype(np.float32)
        powers = np.exp((wide - wide.max(3, keepdims=True)) * np.float32(work.beta))
        y[...] = powers / powers.sum(3, keepdims=True)
        return
    steps = x.astype(np.int64)
    entries = _vector(memory[SRAM], work.table, "int32", 256)
    powers = entries[steps.max(3, keepdims=True) - steps].astype(np.int64)
    total = powers.sum(3, keepdims=True)
    y[...] = np.clip(
        (powers * work.gain + total // 2) // np.maximum(total, 1) + work.y_zero,
        work.low,
        work.high,
    )


def _resize(work: Resize, memory: Memory) -> None:
    x, y = _array(memory, work.x), _array(memory, work.y)
    floats = work.x.dtype == "float16"
    wide = x.astype(np.float32 if floats else np.int64)
    whole = np.float32(1) if floats else 1024
    for axis, place in ((1, work.rows), (2, work.cols)):
        count = work.y.shape[axis]
        table = _vector(memory[SRAM], place, "int32", 3 * count).reshape(3, count).copy()
        weight = table[2].view(np.float32) if floats else table[2].astype(np.int64)
        weight = weight.reshape((-1, 1, 1) if axis == 1 else (-1, 1))
        lower = wide.take(table[0], axis=axis, mode="clip")
        upper = wide.take(table[1], axis=axis, mode="clip")
        wide = lower * (whole - weight) + upper * weight
    if not floats:
        rounding = Rounding(work.rounding)
        zero = work.zero if rounding is Rounding.HALF_EVEN else 0
        wide = divide(wide - (zero << 20), 1 << 20, rounding) + zero
    y[...] = wide


_RUN: dict[type, Callable[..., None]] = {
    Dma: _dma,
    Fill: _fill,
    Matrix: _matrix,
    Pool: _pool,
    Binary: _binary,
    Table: _table,
    Unary: _unary,
    Softmax: _softmax,
    Resize: _resize,
}
