"""Fourier transforms over pairs (real, imaginary) in the last axis: dft and stft."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from trireme.ir.dtype_rules import Like
from trireme.ir.graph import UNKNOWN, Dim, Value
from trireme.ir.op import Attr, Call, Sample, define
from trireme.ops.bounds import check_range
from trireme.ops.movement import draw
from trireme.ops.shapes import Types, axis_of, expect_dims, expect_rank, expect_single, ints_of, one
from trireme.support.dtypes import FLOATING, INDICES, Array
from trireme.support.errors import ShapeError
from trireme.support.limits import MOST_SAMPLES


def _complex(x: Array) -> Array:
    """Return pairs [..,2] or reals [..,1] as complex numbers [..]."""
    wide = x.astype(np.float64)
    return wide[..., 0] + 1j * wide[..., 1] if x.shape[-1] == 2 else wide[..., 0] + 0j


def _pairs(y: Array, dtype: np.dtype[np.generic]) -> Array:
    return np.stack([y.real, y.imag], axis=-1).astype(dtype)


def _infer_dft(
    x: Value,
    dft_length: Value | None = None,
    axis: Value | None = None,
    *,
    inverse: int,
    onesided: int,
) -> Types:
    rank = len(x.shape)
    for what, value in (("dft_length", dft_length), ("axis", axis)):
        if value is not None:
            expect_single(what, value)
    if rank < 2 or (isinstance(x.shape[-1], int) and x.shape[-1] not in (1, 2)):
        raise ShapeError(f"x is {x.type}, expected [..,1] or [..,2]")
    where = (-2,) if axis is None else ints_of(axis)
    if where is None:
        return one((*[UNKNOWN] * (rank - 1), 1 if inverse and onesided else 2), x.dtype)
    at, length = axis_of(where[0], rank), ints_of(dft_length)
    if at == rank - 1:
        raise ShapeError(f"axis {at} holds the parts of complex numbers")
    if (length or (1,))[0] < 1 or (dft_length is None and x.shape[at] == 0):
        raise ShapeError(f"a transform of no elements of x {x.type} along axis {at}")
    size: Dim = x.shape[at] if dft_length is None else (UNKNOWN if length is None else length[0])
    if onesided and isinstance(size, int):
        if not inverse:
            size = size // 2 + 1
        elif dft_length is None:
            size = 2 * (size - 1)
    elif onesided:
        size = UNKNOWN
    last = 1 if inverse and onesided else 2
    return one((*x.shape[:at], size, *x.shape[at + 1 : -1], last), x.dtype)


def _dft(
    x: Array,
    dft_length: Array | None = None,
    axis: Array | None = None,
    *,
    inverse: int,
    onesided: int,
) -> Array:
    if axis is not None:
        check_range("axis", axis, -x.ndim, x.ndim - 1)
    at = (-2 if axis is None else int(axis.reshape(()))) % x.ndim
    if dft_length is not None:
        check_range("dft_length", dft_length, 1, MOST_SAMPLES)
    length = None if dft_length is None else int(dft_length.reshape(()))
    signal = _complex(x)
    if inverse and onesided:
        real = np.fft.irfft(signal, length, axis=at)
        return np.asarray(real[..., None]).astype(x.dtype)
    if inverse:
        return _pairs(np.fft.ifft(signal, length, axis=at), x.dtype)
    if onesided:
        return _pairs(np.fft.rfft(signal.real, length, axis=at), x.dtype)
    return _pairs(np.fft.fft(signal, length, axis=at), x.dtype)


def _flops(call: Call) -> int:
    return 40 * call.outputs[0].elements


def _dft_samples(rng: np.random.Generator) -> Iterable[Sample]:
    axis = np.array(1, np.int64)
    fixed = frozenset({1, 2})
    for depth, attrs in ((1, {}), (1, {"onesided": 1}), (2, {}), (2, {"inverse": 1})):
        yield Sample((draw(rng, 2, 12, depth), None, axis), attrs, fixed)
    yield Sample((draw(rng, 2, 12, 1), np.array(16, np.int64), axis), {}, fixed, note="padded")
    yield Sample((draw(rng, 19, 64, 1), None, axis), {"onesided": 1}, fixed, note="a power of two")


_SIDES = {"onesided": Attr("int", 0)}
define(
    "dft",
    "x dft_length? axis?",
    "y[k] = sum over n of x[n] e^(-2 pi i k n / N) along `axis`, or the inverse; onesided "
    "gives (or takes) only k <= N/2 of a real signal. Shapes: [..,1] is real, [..,2] complex. "
    "Source: ONNX DFT-20",
    _infer_dft,
    _dft,
    flops=_flops,
    samples=_dft_samples,
    family="other",
    rtol=1e-5,
    attrs={"inverse": Attr("int", 0), **_SIDES},
    dtypes=(FLOATING, INDICES, INDICES),
)


def _infer_stft(
    signal: Value,
    frame_step: Value,
    window: Value | None = None,
    frame_length: Value | None = None,
    *,
    onesided: int,
) -> Types:
    if expect_rank("signal", signal, 2, 3) == 3 and signal.shape[2] not in (1, 2, UNKNOWN):
        raise ShapeError(f"signal is {signal.type}, expected [B,L,1] or [B,L,2]")
    steps, lengths, size = ints_of(frame_step), ints_of(frame_length), signal.shape[1]
    length: Dim = UNKNOWN
    if lengths is not None:
        length = lengths[0]
    elif frame_length is None:
        length = size if window is None else window.shape[0]
    if isinstance(length, int) and length < 1:
        raise ShapeError(f"frames of {length} elements")
    expect_dims("window", window, length)
    frames: Dim = UNKNOWN
    if steps is not None and isinstance(size, int) and isinstance(length, int):
        if steps[0] < 1 or length > size:
            raise ShapeError(f"frames of {length} every {steps[0]} in a signal of {size}")
        frames = (size - length) // steps[0] + 1
    bins: Dim = length
    if onesided:
        bins = length // 2 + 1 if isinstance(length, int) else UNKNOWN
    return one((signal.shape[0], frames, bins, 2), signal.dtype)


def _stft(
    signal: Array,
    frame_step: Array,
    window: Array | None = None,
    frame_length: Array | None = None,
    *,
    onesided: int,
) -> Array:
    x = _complex(signal if signal.ndim == 3 else signal[..., None])
    step = int(frame_step.reshape(()))
    length = x.shape[1] if window is None else window.shape[0]
    length = length if frame_length is None else int(frame_length.reshape(()))
    starts = np.arange((x.shape[1] - length) // step + 1) * step
    frames = x[:, starts[:, None] + np.arange(length)]
    spectrum = np.fft.fft(frames if window is None else frames * window, axis=-1)
    return _pairs(spectrum[..., : length // 2 + 1] if onesided else spectrum, signal.dtype)


def _stft_samples(rng: np.random.Generator) -> Iterable[Sample]:
    step, window = np.array(8, np.int64), np.hanning(16).astype(np.float32)
    fixed = frozenset({1, 2, 3})
    yield Sample((draw(rng, 2, 64, 1), step, window), constants=fixed)
    yield Sample((draw(rng, 1, 50, 1), step, None, np.array(16, np.int64)), {"onesided": 0}, fixed)


define(
    "stft",
    "signal frame_step window? frame_length?",
    "y = the dft of each frame of the signal, times the window. Shapes: signal [B,L,1|2] -> "
    "y [B,(L - length) // step + 1,bins,2]. Source: ONNX STFT-17",
    _infer_stft,
    _stft,
    flops=_flops,
    samples=_stft_samples,
    family="other",
    rtol=1e-5,
    attrs={"onesided": Attr("int", 1)},
    dtypes=(FLOATING, INDICES, Like("signal"), INDICES),
)
